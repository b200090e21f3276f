//! Circles of modules inside a crate: modules that cannot be understood, or moved, one without the other.
//!
//! Cargo forbids circles of crates; nothing forbids them inside one. A crate is read by its top-level modules
//! here: an arrow leads from the module of a file to each module that the file names by `crate::` or, at the
//! top, by `super::`. Tests do not count. For example, `args` that imports `render`, which imports `args`, is
//! a circle of two, and its share is the part of the crate's lines that both have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A top-level module of a crate.
#[derive(Debug, Default)]
struct Module {
    /// Lines of production code with comments, without blank ones.
    lines: usize,
    /// Names after `crate::`, which may be modules.
    named: BTreeSet<String>,
}

/// Modules of a crate by name.
type Modules = BTreeMap<String, Module>;

/// The largest circle of a crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ModuleCircle {
    /// Modules in it, by name; none without a circle.
    pub modules: Vec<String>,
    /// Part of the crate's lines that it has, in percent.
    pub percent: usize,
}

/// Returns the largest circle of modules of a crate with its sources in this folder.
pub fn largest_circle(sources: &Path) -> Result<ModuleCircle> {
    let mut modules = Modules::new();
    read(sources, &mut Vec::new(), &mut modules)?;
    Ok(circle(&modules))
}

/// Reads the files of a folder, whose module path is `path`.
fn read(folder: &Path, path: &mut Vec<String>, modules: &mut Modules) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let file = entry.context("cannot read a folder")?.path();
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "tests" || stem == "bin" {
            continue;
        }
        let own = !["lib", "main", "mod"].contains(&&*stem);
        if own {
            path.push(stem);
        }
        if file.is_dir() {
            read(&file, path, modules)?;
        } else if file.extension().is_some_and(|extension| extension == "rs") && !path.is_empty() {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let module = modules.entry(path[0].clone()).or_default();
            add(&text, path.len(), module);
        }
        if own {
            path.pop();
        }
    }
    Ok(())
}

/// Adds a file, whose module is at this depth below the crate's root, to its top-level module.
fn add(text: &str, depth: usize, module: &mut Module) {
    let production = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let root = "super::".repeat(depth);
    for line in production.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
        module.lines += 1;
        if line.starts_with("//") {
            continue;
        }
        for start in ["crate::", &root] {
            // A longer path of `super` would lead out of the crate, and `$crate` is in a macro.
            let places = line
                .match_indices(start)
                .filter(|(at, _)| !line[..*at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)));
            for (at, _) in places {
                module.named.extend(names(&line[at + start.len()..]));
            }
        }
    }
}

/// Returns the first names of a path, several after a brace: `a`, `b` for `{a::x, b}`.
fn names(path: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let first = |path: &str| path.chars().take_while(|c| is_name(*c)).collect::<String>();
    let Some(list) = path.strip_prefix('{') else { return vec![first(path)] };
    let mut depth = 0_usize;
    let mut parts = vec![String::new()];
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {}
        }
        parts.last_mut().expect("never empty").push(c);
    }
    parts.iter().map(|part| first(part.trim_start_matches([',', ' ']))).collect()
}

fn circle(modules: &Modules) -> ModuleCircle {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        modules.keys().map(|name| (name.as_str(), reached(modules, name))).collect();
    let with = |name: &str| -> Vec<String> {
        let both = modules
            .keys()
            .filter(|other| reached[name].contains(other.as_str()) && reached[other.as_str()].contains(name));
        both.cloned().collect()
    };
    let lines = |names: &[String]| names.iter().map(|name| modules[name].lines).sum::<usize>();
    let circles = modules.keys().map(|name| with(name)).filter(|circle| circle.len() > 1);
    let Some(modules_of) = circles.max_by_key(|circle| lines(circle)) else { return ModuleCircle::default() };
    let all: usize = modules.values().map(|module| module.lines).sum();
    ModuleCircle { percent: lines(&modules_of) * 100 / all.max(1), modules: modules_of }
}

/// Returns the modules that one reaches by its arrows.
fn reached<'a>(modules: &'a Modules, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        for (name, _) in modules.iter().filter(|(name, _)| *name != module) {
            if modules[module].named.contains(name) && seen.insert(name.as_str()) {
                next.push(name);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    /// Part of a crate's lines that may be in one circle, percent.
    const MOST: usize = 20;

    /// Crates with a larger circle, which may only shrink, and its share.
    const LARGER: [(&str, usize); 6] =
        [("attach", 96), ("bench", 36), ("cli", 66), ("guest-linux", 32), ("host", 65), ("vmm", 28)];

    fn modules(files: &[(&str, &str)]) -> Modules {
        let mut modules = Modules::new();
        for (path, text) in files {
            let top = path.split('/').next().unwrap().to_owned();
            add(text, path.split('/').count(), modules.entry(top).or_default());
        }
        modules
    }

    #[test]
    fn a_circle_is_found_over_several_modules() {
        let files = [
            ("a", "use crate::{b::{X, c}, other};\nfn f() {}"),
            ("b/inner", "use super::Y;\nuse super::super::c::Z;"),
            ("c", "// crate::d is a comment\nuse super::a;\n#[cfg(test)]\nmod tests { use crate::d; }"),
            ("d", "use crate::a;"),
        ];
        let found = circle(&modules(&files));
        assert_eq!(found, ModuleCircle { modules: ["a", "b", "c"].map(str::to_owned).to_vec(), percent: 85 });
        assert_eq!(circle(&modules(&files[3..])), ModuleCircle::default());
    }

    #[test]
    fn no_crate_is_a_knot() {
        let root = workspace::root().unwrap();
        for entry in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
            if !entry.join("Cargo.toml").exists() || !entry.join("src").exists() {
                continue;
            }
            let name = entry.file_name().unwrap().to_string_lossy().into_owned();
            let found = largest_circle(&entry.join("src")).unwrap();
            let limit = LARGER.iter().find(|(larger, _)| *larger == name).map_or(MOST, |(_, most)| *most);
            println!("{name}: {found:?}");
            assert!(found.percent <= limit, "{name}: {found:?}");
            let has_shrunk = limit > MOST && found.percent + 2 < limit;
            assert!(!has_shrunk, "{name} has a circle of {} % now: lower its limit", found.percent);
        }
    }
}
