//! `cargo xtask tree`: draws the crates by what they import, into docs/contributing.md, and prints the crates
//! whose modules import each other in circles.

mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest_images::cargo;
use serde_json::Value;

use crate::workspace;

/// Lines of the document between which the drawing is.
const MARKS: [&str; 2] = ["<!-- crates: cargo xtask tree -->", "<!-- end of crates -->"];

/// Arguments of `cargo xtask tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Write nothing; fail if the document shows another tree
    #[arg(long)]
    check: bool,
}

/// Draws the tree, or checks that the document has it.
pub fn run(options: &TreeArgs) -> Result<ExitCode> {
    let root = workspace::root()?;
    if !options.check {
        print_circles(&root)?;
    }
    let path = root.join("docs/contributing.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let drawn = workspace::between(&text, MARKS, &draw(&crates(&root)?)?)
        .context("docs/contributing.md has no place for the tree")?;
    if drawn == text {
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!options.check, "docs/contributing.md shows another tree of crates: run `cargo xtask tree`");
    fs::write(&path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the largest circle of modules of each crate that has one.
fn print_circles(root: &Path) -> Result<()> {
    let mut circles = Vec::new();
    for package in packages(root)? {
        let manifest = Path::new(package["manifest_path"].as_str().context("a package has a manifest")?);
        let sources = manifest.with_file_name("src");
        if sources.exists() {
            circles.push((modules::largest_circle(&sources)?, name(&package)?));
        }
    }
    circles.retain(|(circle, _)| circle.percent > 0);
    circles.sort_by_key(|(circle, _)| std::cmp::Reverse(circle.percent));
    for (circle, name) in circles {
        println!("{name}: {} % in a circle of {}", circle.percent, circle.modules.join(", "));
    }
    Ok(())
}

/// Members of the workspace, each with the members that its production code imports.
type CrateImports = BTreeMap<String, BTreeSet<String>>;

/// Reads the packages of a workspace from cargo, as `cargo metadata` describes them.
fn packages(workspace: &Path) -> Result<Vec<Value>> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(workspace.join("Cargo.toml"))
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata prints JSON")?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => bail!("cargo metadata lists no packages"),
    }
}

fn name(package: &Value) -> Result<String> {
    package["name"].as_str().map(str::to_owned).context("a package has a name")
}

/// Reads the members of the workspace: dependencies of tests and build scripts do not count.
fn crates(root: &Path) -> Result<CrateImports> {
    let packages = packages(root)?;
    let names: BTreeSet<String> = packages.iter().map(name).collect::<Result<_>>()?;
    let mut members = BTreeMap::new();
    for package in &packages {
        let imports = package["dependencies"].as_array().into_iter().flatten();
        let imports = imports.filter(|dependency| dependency["kind"].is_null());
        let imports = imports.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned));
        let imports = imports.filter(|import| names.contains(import)).collect();
        members.insert(name(package)?, imports);
    }
    Ok(members)
}

/// Draws floors, the highest first: a crate is above all that it imports.
fn draw(members: &CrateImports) -> Result<String> {
    let mut floors: BTreeMap<&str, usize> = BTreeMap::new();
    while floors.len() < members.len() {
        let before = floors.len();
        for (name, imports) in members {
            let below: Option<Vec<usize>> =
                imports.iter().map(|import| floors.get(import.as_str()).copied()).collect();
            if let Some(below) = below.filter(|_| !floors.contains_key(name.as_str())) {
                floors.insert(name, below.into_iter().max().map_or(0, |floor| floor + 1));
            }
        }
        if floors.len() == before {
            bail!("crates import each other in a circle");
        }
    }
    let highest = floors.values().max().copied().unwrap_or(0);
    let mut text = String::from("```text\n");
    for floor in (0..=highest).rev() {
        for (name, all) in members.iter().filter(|(name, _)| floors[name.as_str()] == floor) {
            // An import that another import has, too, is not drawn.
            let imports =
                all.iter().filter(|import| !all.iter().any(|other| reaches(members, other, import)));
            let imports = imports.map(String::as_str).collect::<Vec<_>>().join(", ");
            let line = format!("{floor} {name:<13} {}{imports}", if imports.is_empty() { "" } else { "-> " });
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.push_str("```\n");
    Ok(text)
}

/// True if `from`, which is not `to`, imports `to`, directly or through others. There is no circle.
fn reaches(members: &CrateImports, from: &str, to: &str) -> bool {
    from != to
        && members.get(from).is_some_and(|imports| {
            imports.contains(to) || imports.iter().any(|next| reaches(members, next, to))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(list: &[(&str, &[&str])]) -> CrateImports {
        let own = |(name, imports): &(&str, &[&str])| {
            ((*name).to_owned(), imports.iter().map(|&import| import.to_owned()).collect())
        };
        list.iter().map(own).collect()
    }

    #[test]
    fn floors_are_drawn_without_what_follows_from_others() {
        let members = members(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])]);
        let drawing = draw(&members).expect("no circle");
        assert_eq!(drawing, "```text\n2 c             -> b\n1 b             -> a\n0 a\n```\n");
    }

    #[test]
    fn circles_are_errors() {
        let members = members(&[("a", &["b"]), ("b", &["a"])]);
        assert!(draw(&members).is_err());
    }

    /// Returns the text of all Rust files below a directory.
    fn sources(directory: &Path) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.ends_with("target") {
                text += &sources(&entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                text += &fs::read_to_string(entry).unwrap();
            }
        }
        text
    }

    #[test]
    fn every_dependency_is_used() {
        let mut unused = Vec::new();
        let root = workspace::root().unwrap();
        let lab = packages(&root.join("lab")).unwrap();
        for package in packages(&root).unwrap().into_iter().chain(lab) {
            let name = name(&package).unwrap();
            // They turn on features of dependencies, which other crates use.
            if ["xtask", "workspace-features"].contains(&&*name) {
                continue;
            }
            let text = sources(Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap());
            let words: BTreeSet<&str> =
                text.split(|end: char| !end.is_alphanumeric() && end != '_').collect();
            for dependency in package["dependencies"].as_array().unwrap() {
                let dependency = dependency["name"].as_str().unwrap();
                if !words.contains(&*dependency.replace('-', "_")) {
                    unused.push(format!("{name}: {dependency}"));
                }
            }
        }
        // Chooses the version for others, as its manifest says.
        assert_eq!(unused, ["upload: idna_adapter"]);
    }

    #[test]
    fn the_document_shows_the_tree() {
        assert_eq!(
            run(&TreeArgs { check: true }).expect("the tree in docs/contributing.md is current"),
            ExitCode::SUCCESS
        );
    }
}
