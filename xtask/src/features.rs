//! Check that cargo builds each dependency once: for `cargo xtask`, for one package, and for the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::workspace;

/// Returns the features of each package in the build of a choice of packages.
fn features(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--prefix", "none", "--format", "{p}|{f}"]).args(arguments);
    let output = cargo.current_dir(workspace::root().unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((package, features)) = line.trim_end_matches(" (*)").split_once('|') else { continue };
        let features = features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned);
        packages.entry(package.to_owned()).or_default().extend(features);
    }
    packages
}

#[test]
fn a_part_of_the_workspace_is_built_with_the_features_of_the_whole() {
    let whole = features(&["--workspace"]);
    let one = ["--package", "workspace-features", "--package"];
    for (part, manifest) in [
        (vec!["--package", "xtask", "--edges", "normal,build"], "xtask/Cargo.toml"),
        ([&one[..], &["vprof"]].concat(), "workspace-features/Cargo.toml"),
        ([&one[..], &["guest-linux"]].concat(), "workspace-features/Cargo.toml"),
    ] {
        for (package, features) in self::features(&part) {
            let missing: Vec<_> = whole[&package].difference(&features).collect();
            assert!(missing.is_empty(), "{manifest} lacks features of {package}: {missing:?}");
        }
    }
}
