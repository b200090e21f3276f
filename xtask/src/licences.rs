//! `cargo xtask licences`: the dependencies' licences, and dependencies that are there in several versions.
//!
//! Reads `cargo metadata` and `cargo tree` alone: no network, no other program. What only `fuzz` or `lab`
//! depends on is not shipped and not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use guest_images::cargo;

/// Licences that a statically linked program under "Apache-2.0 OR MIT" may include, by their SPDX
/// identifiers. CDDL-1.0 is the licence of one crate that is used as a library, unchanged. ISC, the
/// licence of what TLS is made of, is permissive: BSD-2-Clause in fewer words.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDDL-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

/// Crates that are there in more versions than one, since their users differ: an entry for each further
/// version, which is built, too.
const IN_MORE_VERSIONS: &[&str] = &[
    "bitflags",      // 1: fatfs, vmm-sys-util
    "crypto-common", // 0.1: crc-fast of object_store
    "digest",        // 0.10: the same
    "getrandom",     // 0.2: ring
    "getrandom",     // 0.3: ahash of fxprof-processed-profile and inferno
    "hashbrown",     // 0.16: gimli
    "itertools",     // 0.15: object_store
    "syn",           // 2: half of the procedural macros
];

/// A dependency.
#[derive(Debug, PartialEq, Eq)]
struct LicensedCrate {
    name: String,
    version: String,
    /// SPDX expression.
    licence: Option<String>,
}

/// The target of all builds.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Checks the dependencies of the workspace.
pub fn run() -> Result<ExitCode> {
    let metadata = printed(&["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET])?;
    let metadata = serde_json::from_str(&metadata).context("cargo metadata prints no JSON")?;
    // The metadata have a crate also where only another target has the feature that needs it.
    let tree = ["--workspace", "--locked", "--target", TARGET, "--prefix", "none", "--format", "{p}"];
    let built = printed(&[&["tree"], &tree[..]].concat())?;
    let dependencies = dependencies(&metadata, &built)?;
    let mut complaints = licences(&dependencies);
    complaints.extend(versions(&dependencies, IN_MORE_VERSIONS));
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!(
        "{} dependencies: every licence is allowed, {} are there in a further version",
        dependencies.len(),
        IN_MORE_VERSIONS.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Returns the output of cargo with these arguments.
fn printed(arguments: &[&str]) -> Result<String> {
    let command = arguments.first().copied().unwrap_or_default();
    let output = cargo().args(arguments).output().with_context(|| format!("cannot start cargo {command}"))?;
    ensure!(output.status.success(), "cargo {command} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).with_context(|| format!("cargo {command} prints no UTF-8"))
}

/// Returns the crates that are built and do not come from this repository. `built` is a list with a crate and
/// its version (`name v1.2.3`) in each line, as `cargo tree` prints it.
fn dependencies(metadata: &Value, built: &str) -> Result<Vec<LicensedCrate>> {
    let list = |value: &Value| value.as_array().cloned().context("not the form of cargo metadata");
    let words = |line: &'_ str| {
        let (name, rest) = line.split_once(" v")?;
        Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
    };
    let built: BTreeSet<(String, String)> = built.lines().filter_map(words).collect();
    ensure!(!built.is_empty(), "cargo tree lists no crates");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut found = Vec::new();
    for package in list(&metadata["packages"])? {
        if package["source"].is_string() {
            let name = text(&package["name"]).context("a package without a name")?;
            let version = text(&package["version"]).context("a package without a version")?;
            if !built.contains(&(name.clone(), version.clone())) {
                continue;
            }
            found.push(LicensedCrate { name, version, licence: text(&package["license"]) });
        }
    }
    Ok(found)
}

/// Returns a sentence for each dependency whose licence is not allowed.
fn licences(dependencies: &[LicensedCrate]) -> Vec<String> {
    let refused =
        dependencies.iter().filter(|dependency| !dependency.licence.as_deref().is_some_and(is_allowed));
    let sentence = |dependency: &LicensedCrate| {
        let licence = dependency.licence.as_deref().unwrap_or("none");
        format!("{} {}: its licence is not allowed: {licence}", dependency.name, dependency.version)
    };
    refused.map(sentence).collect()
}

/// True if the licences of [`ALLOWED`] satisfy an SPDX expression (SPDX 2.3, annex D). Older crates write `/`
/// for OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = either(&mut words);
    allowed && words.peek().is_none()
}

type ExpressionWords<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut ExpressionWords<'_>) -> bool {
    let mut allowed = both(words);
    while words.next_if_eq(&"OR").is_some() {
        allowed |= both(words);
    }
    allowed
}

/// Parses operands of AND, which binds closer than OR.
fn both(words: &mut ExpressionWords<'_>) -> bool {
    let mut allowed = one(words);
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words);
    }
    allowed
}

fn one(words: &mut ExpressionWords<'_>) -> bool {
    match words.next() {
        Some("(") => {
            let allowed = either(words);
            allowed && words.next() == Some(")")
        }
        // An exception allows more than the licence without it.
        Some(name) => {
            if words.next_if_eq(&"WITH").is_some() {
                words.next();
            }
            ALLOWED.contains(&name)
        }
        None => false,
    }
}

/// Returns a sentence for each dependency with more versions than `known` lists, and for each needless entry
/// of `known`.
fn versions(dependencies: &[LicensedCrate], known: &[&str]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for dependency in dependencies {
        versions.entry(&dependency.name).or_default().push(&dependency.version);
    }
    let expected = |name: &str| 1 + known.iter().filter(|known| **known == name).count();
    let mut complaints = Vec::new();
    for (name, versions) in &versions {
        if versions.len() > expected(name) {
            complaints.push(format!("{name} is there in versions {}", versions.join(" and ")));
        }
    }
    let stale = known
        .iter()
        .filter(|name| versions.get(**name).is_none_or(|versions| versions.len() < expected(name)));
    complaints.extend(
        stale.map(|name| format!("{name} is there in fewer versions than xtask/src/licences.rs lists")),
    );
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
            "GPL-2.0-only AND MIT OR Zlib",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-2.0-only",
            "(MIT OR GPL-2.0-only",
            "MIT)",
            "(MIT OR Zlib) AND NCSA",
        ] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    fn dependency(name: &str, version: &str, licence: Option<&str>) -> LicensedCrate {
        LicensedCrate { name: name.into(), version: version.into(), licence: licence.map(str::to_owned) }
    }

    #[test]
    fn what_is_built_and_from_elsewhere_is_checked() {
        let metadata = serde_json::json!({
            "packages": [
                { "name": "a", "version": "1", "license": "MIT", "source": "registry" },
                { "name": "a", "version": "2", "license": "MIT", "source": "registry" },
                { "name": "b", "version": "1", "license": null, "source": "registry" },
                { "name": "own", "version": "0", "license": null, "source": null },
            ],
        });
        let built = "own v0 (/src/own)\na v1\na v1 (*)\nc v1 (proc-macro)\n";
        assert_eq!(dependencies(&metadata, built).unwrap(), [dependency("a", "1", Some("MIT"))]);
        assert!(dependencies(&serde_json::json!({}), built).is_err());
        assert!(dependencies(&metadata, "").is_err());
    }

    #[test]
    fn complaints_name_the_dependency() {
        let some = [
            dependency("a", "1", None),
            dependency("b", "1", Some("MIT")),
            dependency("b", "2", Some("MIT")),
        ];
        assert_eq!(licences(&some), ["a 1: its licence is not allowed: none"]);
        assert_eq!(versions(&some, &[]), ["b is there in versions 1 and 2"]);
        assert_eq!(versions(&some, &["b"]), [""; 0]);
        assert_eq!(
            versions(&some, &["a", "b"]),
            ["a is there in fewer versions than xtask/src/licences.rs lists"]
        );
        assert_eq!(versions(&some, &["b", "b"]).len(), 2);
    }
}
