//! `vprof man`: the manual pages, made from the same description as the help texts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::errors::{Error, ExitCode};

/// Environment variables, with their meaning.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("VPROF_CONFIG", "the configuration file; empty for none"),
    ("VPROF_PAGER, PAGER", "program that shows a long text page by page; empty or cat for none"),
    ("NO_COLOR, CLICOLOR_FORCE", "no colours, or colours also in a pipe; --color overrides both"),
    ("VPROF_PORTABLE_HOST", "directory of the portable host"),
    ("DEBUGINFOD_URLS", "servers of debug files, as in debuginfod(8)"),
    ("TMPDIR", "directory of temporary files and of pages that vprof open shows"),
    ("XDG_RUNTIME_DIR", "directory of control sockets"),
    ("XDG_CONFIG_HOME", "directory of the configuration"),
];

/// Files, with their meaning.
const FILES: [(&str, &str); 3] = [
    ("vprof.vprof", "the profile, where no other name is given"),
    ("vprof.vprof.old", "the profile of the run before"),
    ("~/.config/vprof/config.toml", "defaults of options"),
];

/// Writes a page for `vprof` and one for each of its commands into `directory`.
pub fn command(program: &Command, directory: &Path) -> Result<ExitCode, Error> {
    let written = |source| Error::file("write manual pages to", directory, source);
    fs::create_dir_all(directory).map_err(written)?;
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let pages = pages(&program);
    for (name, command) in &pages {
        let others: Vec<&str> =
            pages.iter().map(|(other, _)| other.as_str()).filter(|other| other != name).collect();
        let file = File::create(directory.join(format!("{name}.1")));
        file.and_then(|mut file| page(name, command, &others, &mut file)).map_err(written)?;
    }
    Ok(ExitCode::Done)
}

/// Returns the command and all commands of it that are shown, with the names of their pages.
fn pages(program: &Command) -> Vec<(String, Command)> {
    let mut pages = vec![(program.get_name().to_owned(), program.clone())];
    let mut at = 0;
    while let Some((name, command)) = pages.get(at).cloned() {
        let below = command.get_subcommands().filter(|below| !below.is_hide_set());
        pages.extend(below.map(|below| (format!("{name}-{}", below.get_name()), below.clone())));
        at += 1;
    }
    pages
}

/// Writes one page (man-pages(7) has the order of its sections).
fn page(name: &str, command: &Command, others: &[&str], out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone()).title(name.to_owned());
    man.render_title(out)?;
    man.render_name_section(out)?;
    synopsis(command, out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let notes = text(command.get_after_help());
    let (exit, notes): (Vec<&str>, Vec<&str>) =
        notes.split("\n\n").partition(|paragraph| paragraph.starts_with("Exit codes:"));
    section(out, "EXIT STATUS", &exit, |line| line.strip_prefix("Exit codes: ").unwrap_or(line))?;
    section(out, "NOTES", &notes, |line| line)?;
    let examples = text(command.get_before_help());
    let lines: Vec<&str> = examples
        .lines()
        .filter(|line| *line != "Examples:")
        .map(|line| line.trim_start_matches("  "))
        .collect();
    if lines.iter().any(|line| !line.is_empty()) {
        writeln!(out, ".SH EXAMPLES\n.nf")?;
        lines.iter().try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
        writeln!(out, ".fi")?;
    }
    table(out, "ENVIRONMENT", &ENVIRONMENT)?;
    table(out, "FILES", &FILES)?;
    let others: Vec<String> = others.iter().map(|other| format!("{}(1)", escaped(other))).collect();
    writeln!(out, ".SH \"SEE ALSO\"\n{}", others.join(", "))
}

/// Writes the usage of the help: clap_mangen lists all options there, without their values.
fn synopsis(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let usage = command.clone().render_usage().to_string();
    writeln!(out, ".SH SYNOPSIS\n.nf")?;
    for line in usage.trim_start_matches("Usage: ").lines() {
        writeln!(out, "{}", escaped(line.trim()))?;
    }
    writeln!(out, ".fi")
}

/// Writes paragraphs as a section, if there are any.
fn section(
    out: &mut dyn Write,
    title: &str,
    paragraphs: &[&str],
    first: impl Fn(&str) -> &str,
) -> io::Result<()> {
    let full: Vec<&str> =
        paragraphs.iter().copied().filter(|paragraph| !paragraph.trim().is_empty()).collect();
    for (place, paragraph) in full.iter().enumerate() {
        writeln!(out, "{}", if place == 0 { format!(".SH \"{title}\"") } else { ".PP".to_owned() })?;
        for line in paragraph.lines() {
            let line = first(line);
            // An indented line is one of its own, such as a command.
            let separate = if line.starts_with("  ") { ".br\n" } else { "" };
            writeln!(out, "{separate}{}", escaped(line.trim()))?;
        }
    }
    Ok(())
}

/// Writes names with their meaning.
fn table(out: &mut dyn Write, title: &str, rows: &[(&str, &str)]) -> io::Result<()> {
    writeln!(out, ".SH {title}")?;
    rows.iter()
        .try_for_each(|(name, text)| writeln!(out, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(text)))
}

/// Escapes a line for roff: backslashes, hyphens, and a control character at its beginning (groff(7)).
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        command(&Cli::command(), directory.path()).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
        assert!(page("vprof").contains("See inside any Linux virtual machine"));
        for subcommand in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let text = page(&format!("vprof-{}", subcommand.get_name()));
            for section in
                [".TH", ".SH SYNOPSIS", ".SH ENVIRONMENT", ".SH FILES", ".SH \"SEE ALSO\"\nvprof(1), "]
            {
                assert!(text.contains(section), "{section} of {}", subcommand.get_name());
            }
            assert!(!text.contains("EXTRA"), "{}", subcommand.get_name());
        }
        assert!(page("vprof-image-inspect").contains(".TH"));
        let report = page("vprof-report");
        assert!(report.contains(".SH SYNOPSIS\n.nf\nvprof report [OPTIONS] [PROFILE]\n.fi"), "{report}");
    }

    #[test]
    fn a_page_has_examples_notes_and_exit_codes() {
        let directory = tempfile::tempdir().unwrap();
        command(&Cli::command(), directory.path()).unwrap();
        let text = fs::read_to_string(directory.path().join("vprof-attach.1")).unwrap();
        assert!(text.contains(".SH EXAMPLES\n.nf\nvprof attach  "), "{text}");
        assert!(text.contains(".SH \"EXIT STATUS\"\n0 done, also if the VM ended"), "{text}");
        assert!(text.contains(".SH \"NOTES\"\nThe VM has to run on KVM"), "{text}");
    }

    #[test]
    fn no_line_is_a_command_of_roff() {
        assert_eq!(escaped(".schema -a"), "\\&.schema \\-a");
        assert_eq!(escaped("'a\\b"), "\\&'a\\eb");
    }
}
