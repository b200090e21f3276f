//! The keys of the configuration in docs/config.md: written from the definitions of the options.
//!
//! `VPROF_GOLDEN=write cargo test -p vprof --bin vprof args::keys` writes them into the document.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Cli;
use crate::docs::titles;

/// The document.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/config.md");
/// Lines of the document between which the tables are.
const MARKS: [&str; 2] = ["<!-- options: generated -->\n", "<!-- end of options -->\n"];

/// Commands with many options in common, which have a table together.
const TOGETHER: [&[&str]; 6] = [
    &["run", "boot", "attach"],
    &["run", "boot"],
    &["run", "attach"],
    &["attach", "mem"],
    &["report", "annotate", "diff", "export"],
    &["rusage", "stat"],
];

/// Returns the tables: first those of several commands, then those with the rest of each command.
fn tables(program: &Command) -> String {
    let commands: Vec<&Command> =
        program.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let visible = |command: &Command| -> Vec<String> {
        command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(row).collect()
    };
    let names: Vec<&str> = commands.iter().map(|command| command.get_name()).collect();
    let mut rows: BTreeMap<&str, Vec<String>> =
        commands.iter().map(|command| (command.get_name(), visible(command))).collect();
    let mut tables = String::new();
    for group in TOGETHER.into_iter().chain(names.chunks(1)) {
        let is_common = |row: &&String| group.iter().all(|name| rows[name].contains(row));
        let common: Vec<String> = rows[group[0]].iter().filter(is_common).cloned().collect();
        for name in group {
            rows.entry(name).or_default().retain(|row| !common.contains(row));
        }
        if !common.is_empty() {
            let sections: Vec<String> = group.iter().map(|name| format!("`[{name}]`")).collect();
            let (heading, common) = (sections.join(", "), common.concat());
            write!(tables, "\n### {heading}\n\n| key | value | meaning |\n|---|---|---|\n{common}").unwrap();
        }
    }
    tables + "\n"
}

/// Returns the row of an option; `None` if it has no long name.
fn row(arg: &Arg) -> Option<String> {
    let key = arg.get_long()?;
    let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let value = match arg.get_value_names() {
        Some([name]) if !is_switch => name.as_str(),
        _ => "true",
    };
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut meaning = linked(&help.replace("\n\n", " "));
    if matches!(arg.get_action(), ArgAction::Append) && !meaning.contains("repeatable") {
        meaning += "; repeatable";
    }
    for default in arg.get_default_values() {
        write!(meaning, " [default: {}]", default.display()).unwrap();
    }
    for alias in arg.get_visible_aliases().into_iter().flatten() {
        write!(meaning, " [alias: --{alias}]").unwrap();
    }
    let possible = arg.get_possible_values();
    let names: Vec<&str> =
        possible.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect();
    if !names.is_empty() && !is_switch {
        write!(meaning, " ({})", names.join(", ")).unwrap();
    }
    Some(format!("| `{key}` | `{}` | {} |\n", value.replace('|', "\\|"), meaning.replace('|', "\\|")))
}

/// Makes a link of each document that a help names, such as docs/hosts.md.
fn linked(help: &str) -> String {
    titles().fold(help.to_owned(), |text, (name, title)| {
        text.replace(&format!("docs/{name}.md"), &format!("[{title}]({name}.md)"))
    })
}

#[test]
fn the_document_has_every_key() {
    let document = fs::read_to_string(DOCUMENT).expect("docs/config.md");
    let (before, rest) = document.split_once(MARKS[0]).expect("the mark before the tables");
    let (_, after) = rest.split_once(MARKS[1]).expect("the mark after the tables");
    let written = [before, MARKS[0], &tables(&Cli::command()), MARKS[1], after].concat();
    if std::env::var("VPROF_GOLDEN").is_ok_and(|value| value == "write") {
        return fs::write(DOCUMENT, written).expect("written");
    }
    assert!(
        written == document,
        "docs/config.md differs from the options: \
         `VPROF_GOLDEN=write cargo test -p vprof --bin vprof args::keys` writes it"
    );
}
