//! The short help, `-h`: fits a screen. `--help` has everything.

use clap::{Arg, Command};

/// Commands with so many options that `-h` leaves some out.
const LARGE: [&str; 3] = ["attach", "boot", "run"];
/// Their options for special cases, which only `--help` lists.
const RARE: [&str; 26] = [
    "append",
    "clock",
    "console_device",
    "control",
    "debug_dir",
    "depth",
    "format",
    "hang_after",
    "host_timeout",
    "huge_pages",
    "initrd",
    "max_size",
    "nested",
    "pmu",
    "portable_host",
    "read_only",
    "reboots",
    "retry",
    "seccomp",
    "seed",
    "symfs",
    "task_rate",
    "then",
    "until_precision",
    "verbose",
    "vm_number",
];

/// Makes the help that `-h` prints short: each text in its first sentence, without special options and notes.
pub fn with_short_help(command: Command) -> Command {
    let large = LARGE.contains(&command.get_name());
    let command = command.mut_args(|arg| short_option(arg, large));
    let subcommands: Vec<String> = command.get_subcommands().map(|own| own.get_name().to_owned()).collect();
    let command = subcommands.iter().fold(command, |command, name| {
        if name == "help" { command } else { command.mut_subcommand(name, with_short_help) }
    });
    let Some(notes) = command.get_after_help().cloned() else { return command };
    // The program's own notes are its exit codes, and short.
    if command.has_subcommands() {
        return command;
    }
    command
        .after_help("`--help` explains more, and has the options for special cases.")
        .after_long_help(notes)
}

/// `large`: the option is one of a command with many.
fn short_option(arg: Arg, large: bool) -> Arg {
    let Some(help) = arg.get_help().map(ToString::to_string) else { return arg };
    let is_rare = large && RARE.contains(&arg.get_id().as_str());
    let arg = if is_rare { arg.hide_short_help(true) } else { arg };
    match first_sentence(&help) {
        Some(first) if arg.get_long_help().is_none() => arg.help(first).long_help(help),
        _ => arg,
    }
}

/// Returns the first sentence of a text with a hint in brackets at its end, such as `[default: 1]`; `None` if
/// that is all of it.
fn first_sentence(text: &str) -> Option<String> {
    let ends = text.match_indices(['.', ';', ':']);
    let end = ends.map(|(place, _)| place).find(|place| {
        let next = text.get(place + 1..).unwrap_or_default();
        next.starts_with([' ', '\n'])
    })?;
    let (first, rest) = text.split_at(end);
    let hint = rest.rfind('[').map(|place| &rest[place..]).filter(|hint| hint.ends_with(']'));
    Some(hint.map_or_else(|| first.to_owned(), |hint| format!("{first} {hint}")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn first_sentences_keep_their_hint() {
        assert_eq!(first_sentence("One thing"), None);
        assert_eq!(first_sentence("Like 1.5 or a..b"), None);
        assert_eq!(first_sentence("One. Two [default: 1]").unwrap(), "One [default: 1]");
        assert_eq!(first_sentence("One; two [and] three").unwrap(), "One");
    }

    #[test]
    fn help_fits_a_screen_and_long_help_has_all() {
        let mut program = with_short_help(Cli::command()).term_width(100);
        program.build();
        for command in program.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            let (short, long) =
                (command.render_help().to_string(), command.clone().render_long_help().to_string());
            let lines = short.lines().count();
            assert!(lines <= 80, "{}: {lines} lines\n{short}", command.get_name());
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                if let Some(name) = arg.get_long() {
                    assert!(long.contains(&format!("--{name}")), "{}: --{name}", command.get_name());
                }
            }
        }
    }

    #[test]
    fn every_rare_option_exists() {
        let program = Cli::command();
        for rare in RARE {
            let known = |command: &Command| command.get_arguments().any(|arg| arg.get_id() == rare);
            let large = |command: &&Command| LARGE.contains(&command.get_name());
            assert!(program.get_subcommands().filter(large).any(known), "{rare}");
        }
    }
}
