//! `cargo xtask corpus`: profiles real programs that measure themselves, and writes the table of docs/guests.md.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use guest_images::{DebianRelease, DemoOptions, Progress};

use crate::demo::{Tools, exit_code};
use crate::deps;
use crate::progress::Line;

/// Which programs.
#[derive(Debug, Args)]
pub struct Options {
    /// Which ones, by the last column of the table [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Builds what is needed and profiles the programs.
pub fn run(options: &Options) -> Result<ExitCode> {
    let line = Line::new();
    if !deps::ensure(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    guest_images::demo(&DemoOptions::default(), &line)?;
    for release in [DebianRelease::Bookworm, DebianRelease::Trixie] {
        guest_images::corpus(release, &line)?;
    }
    let tools = Tools::build(&line)?;
    line.end();
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guests.md");
    let status = tools
        .cargo()
        .args(["run", "--quiet", "--package", "vprof-tests", "--bin", "corpus", "--"])
        .arg(document)
        .args(&options.names)
        .status()
        .context("cannot start cargo run")?;
    Ok(exit_code(status))
}
