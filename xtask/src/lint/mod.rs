//! `cargo xtask lint`: checks the links of documents, and the widths of their lines and of comments.
//!
//! Other tools leave these to us: rustfmt does not break comments. Wording is for reviewers, because a rule
//! that counts words makes sentences worse.

mod finding;
mod links;
mod markdown;
mod width;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::finding::LintFinding;
use crate::workspace;

/// Documents outside of `docs/`.
const DOCUMENTS: [&str; 2] = ["README.md", "CHANGELOG.md"];

/// `cargo xtask lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Files and directories to check [default: the whole tree]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Prints the findings and their counts; fails if there are any.
pub fn run(options: &LintArgs) -> Result<ExitCode> {
    let root = workspace::root()?;
    let files = files(&root, &options.paths)?;
    ensure!(!files.is_empty(), "no Rust source or document there: name others");
    let mut out = io::stdout().lock();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faulty = 0;
    for file in &files {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        let findings = check(&root, file, &text);
        faulty += usize::from(!findings.is_empty());
        for finding in findings {
            writeln!(out, "{file}:{}: {}", finding.line, finding.text)?;
            *counts.entry(finding.rule).or_default() += 1;
        }
    }
    let total: usize = counts.values().sum();
    if total == 0 {
        writeln!(out, "no finding in {} files", files.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{total} findings in {faulty} of {} files:", files.len())?;
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(rule, count)| (std::cmp::Reverse(*count), *rule));
    for (rule, count) in sorted {
        writeln!(out, "{count:>8}  {rule}")?;
    }
    Ok(ExitCode::FAILURE)
}

/// Returns the sources and documents under `paths` that Git tracks or would track, relative to the root.
fn files(root: &Path, paths: &[PathBuf]) -> Result<BTreeSet<String>> {
    let mut command = Command::new("git");
    command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]);
    for path in paths {
        let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
        command.arg(path);
    }
    let output = command.output().context("cannot start git")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let listed = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let is_there = |file: &&str| is_checked(file) && root.join(file).is_file();
    Ok(listed.split('\0').filter(is_there).map(str::to_owned).collect())
}

fn is_checked(file: &str) -> bool {
    let ends = |extension: &str| Path::new(file).extension().is_some_and(|own| own == extension);
    ends("rs") || (file.starts_with("docs/") && ends("md")) || DOCUMENTS.contains(&file)
}

/// Returns the findings of one file in the order of its lines.
fn check(root: &Path, file: &str, text: &str) -> Vec<LintFinding> {
    if file.ends_with(".rs") {
        return width::check_source(text);
    }
    let mut findings = links::check(root, file, text);
    findings.extend(width::check_document(text));
    findings.sort_by_key(|finding| finding.line);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_documents_are_checked() {
        for file in ["vmm/src/lib.rs", "docs/a.md", "docs/tutorial/a.md", "README.md", "CHANGELOG.md"] {
            assert!(is_checked(file), "{file}");
        }
        for file in ["docs/a.svg", "vmm/README.md", "Cargo.toml", "docs"] {
            assert!(!is_checked(file), "{file}");
        }
    }

    #[test]
    fn findings_of_a_file_are_in_order() {
        let root = tempfile::tempdir().unwrap();
        let wide = "word ".repeat(30);
        let lines = |file: &str, text: &str| -> Vec<(usize, &str)> {
            check(root.path(), file, text).iter().map(|finding| (finding.line, finding.rule)).collect()
        };
        let document = format!("{wide}\n\n[x](gone.md)\n{wide}\n");
        let found = [(1, "wide document line"), (3, "dead link"), (4, "wide document line")];
        assert_eq!(lines("docs/a.md", &document), found);
        assert_eq!(lines("a.rs", &format!("fn f() {{}}\n// {wide}\n")), [(2, "wide comment line")]);
    }
}
