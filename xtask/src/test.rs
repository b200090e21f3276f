//! `cargo xtask test`: every floor of the tests, with everything they need built before.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use guest_images::{DebianOptions, DemoOptions, Flavour, Progress, Series};

use crate::demo::{Tools, exit_code};
use crate::deps;
use crate::progress::Line;

/// The images that end-to-end tests boot.
const IMAGES: &[(Series, Flavour)] = &[
    (Series::V5_10, Flavour::Cloud),
    (Series::V6_1, Flavour::Cloud),
    (Series::V6_1, Flavour::Generic),
    (Series::V6_1, Flavour::Rt),
    (Series::V6_12, Flavour::Cloud),
    (Series::V6_12, Flavour::Generic),
    (Series::V6_12, Flavour::Rt),
    (Series::Newest, Flavour::Cloud),
    (Series::Newest, Flavour::Rt),
];

/// What the tests may be told.
#[derive(Debug, Args)]
pub struct Options {
    /// Arguments for cargo test, like a test's name, or `-p symbols`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the tests.
pub fn run(options: &Options) -> Result<ExitCode> {
    let line = Line::new();
    if !deps::ensure_for_tests(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    for &(series, flavour) in IMAGES {
        guest_images::demo(&DemoOptions { series, flavour }, &line)?;
    }
    guest_images::debian(&DebianOptions::default(), &line)?;
    let tools = Tools::build(&line)?;
    line.end();

    let mut cargo = tools.cargo();
    cargo.args(["test", "--no-fail-fast"]);
    if !chooses_packages(&options.arguments) {
        cargo.arg("--workspace");
    }
    let status = cargo.args(&options.arguments).status().context("cannot start cargo test")?;
    Ok(exit_code(status))
}

/// Do the arguments for cargo say which packages to test? What follows `--` is for the tests themselves.
fn chooses_packages(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .map(|argument| argument.to_string_lossy())
        .take_while(|argument| argument != "--")
        .any(|argument| argument.starts_with("-p") || argument.starts_with("--package"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_packages_are_respected() {
        let chooses =
            |words: &[&str]| chooses_packages(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(chooses(&["-p", "vmm"]));
        assert!(chooses(&["--package=vmm", "name"]));
        assert!(!chooses(&["some_name", "--", "-p"]));
        assert!(!chooses(&[]));
    }
}
