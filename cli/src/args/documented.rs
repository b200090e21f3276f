//! Tests that vprof accepts every command line of vprof in the documents and in the help.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use testkit::{python_module, tool};

use super::{Cli, with_report};

/// Returns the lines of blocks of code, each that ends in a backslash joined with the next.
fn lines_of_code(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let blocks = document.split("\n```").skip(1).step_by(2);
    for line in blocks.flat_map(|block| block.lines().skip(1)) {
        lines.push(line.trim().to_owned());
    }
    joined(lines)
}

fn joined(lines: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut continued = false;
    for line in lines {
        let (own, more) = line.strip_suffix('\\').map_or((line.as_str(), false), |own| (own, true));
        match joined.last_mut().filter(|_| continued) {
            Some(last) => last.push_str(own),
            None => joined.push(own.to_owned()),
        }
        continued = more;
    }
    joined
}

/// Returns the words of a command of vprof in a line of shell, without what the shell itself takes.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches(['$', '#', ' ']);
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    if !line.starts_with("vprof ") {
        return None;
    }
    // A help's example has its meaning after it, two blanks away.
    let command = line.split("  ").next().unwrap_or(line);
    let mut words = shlex::split(command).unwrap_or_else(|| panic!("not a line of a shell: {line}"));
    let ends = |word: &String| matches!(word.as_str(), "|" | "||" | "&&" | "&" | ">" | ">>" | "2>" | "<");
    words.truncate(words.iter().position(ends).unwrap_or(words.len()));
    if let Some(last) = words.iter().position(|word| word.ends_with(';')) {
        words.truncate(last + 1);
        words[last].pop();
    }
    Some(words)
}

/// Returns the commands in the text of a document, which may lack what they require: `vprof run --exact`.
fn mentions(document: &str) -> Vec<String> {
    let text = document.split("\n```").step_by(2);
    let code = text.flat_map(|part| part.split('`').skip(1).step_by(2));
    // A table writes a bar with a backslash.
    code.map(|code| code.replace("\\|", "|").replace('\n', " ")).collect()
}

/// Parses each line; returns the number of commands.
fn all_are_taken(origin: &str, lines: &[String]) -> usize {
    let mut taken = 0;
    for words in lines.iter().filter_map(|line| words(line)) {
        let words = with_report(&Cli::command(), words.into_iter().map(Into::into).collect());
        if let Err(error) = Cli::try_parse_from(&words) {
            let shown = ["--help", "--version"].iter().any(|word| words.iter().any(|own| own == *word));
            assert!(shown, "{origin}: {words:?}: {error}");
        }
        taken += 1;
    }
    taken
}

#[test]
fn documents() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = vec![root.join("README.md")];
    for directory in ["docs", "docs/tutorial"] {
        let entries = fs::read_dir(root.join(directory)).expect("a directory");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    let (mut taken, mut mentioned) = (0, 0);
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let document = fs::read_to_string(file).expect("a document");
        taken += all_are_taken(&file.display().to_string(), &lines_of_code(&document));
        // Other documents have fragments in their text, such as `vprof report --by`.
        if !["README.md", "tutorial.md", "coming-from.md"].iter().any(|name| file.ends_with(name)) {
            continue;
        }
        for words in mentions(&document).iter().filter_map(|line| words(line)) {
            let words = with_report(&Cli::command(), words.into_iter().map(Into::into).collect());
            if let Err(error) = Cli::try_parse_from(&words) {
                let lacks =
                    [ErrorKind::MissingRequiredArgument, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
                assert!(lacks.contains(&error.kind()), "{}: {words:?}: {error}", file.display());
            }
            mentioned += 1;
        }
    }
    assert!(taken > 30 && mentioned > 60, "{taken} {mentioned}");
}

#[test]
fn help() {
    let mut taken = 0;
    for command in Cli::command().get_subcommands() {
        let examples = command.get_before_help().map(ToString::to_string).unwrap_or_default();
        let lines = joined(examples.lines().map(|line| line.trim().to_owned()).collect());
        taken += all_are_taken(command.get_name(), &lines);
    }
    assert!(taken > 20, "{taken}");
}

#[test]
fn the_workflow_of_docs_boot_is_yaml_with_a_step_that_boots() {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/boot.md")).expect("docs");
    let workflow =
        document.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a workflow");
    let script = "import sys, yaml; jobs = yaml.safe_load(sys.stdin)['jobs']; \
                  print('\\n'.join(step.get('run', '') for job in jobs.values() for step in job['steps']))";
    let Some(mut python) = tool("python3").filter(|_| python_module("yaml", "python3-yaml")) else { return };
    let python = python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = python.expect("python3");
    child.stdin.take().expect("its input").write_all(workflow.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success(), "no YAML");
    let lines =
        joined(String::from_utf8_lossy(&output.stdout).lines().map(|line| line.trim().to_owned()).collect());
    assert!(lines.iter().any(|line| line.starts_with("vprof boot ")), "{lines:?}");
    all_are_taken("docs/boot.md", &lines);
}
