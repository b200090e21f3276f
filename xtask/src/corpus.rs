//! `cargo xtask corpus`: profiles real programs that measure themselves, and writes the table of
//! docs/guests.md.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use guest_images::{DebianRelease, DemoOptions, Progress};

use crate::demo::{GuestTools, exit_code};
use crate::deps;
use crate::progress::ProgressLine;
use crate::workspace;

/// Programs to profile.
#[derive(Debug, Args)]
pub struct CorpusArgs {
    /// Programs by the last column of the table [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Builds what is needed and profiles the programs.
pub fn run(options: &CorpusArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    guest_images::demo(&DemoOptions::default(), &line)?;
    for release in [DebianRelease::Bookworm, DebianRelease::Trixie] {
        guest_images::corpus(release, &line)?;
    }
    let tools = GuestTools::build(&line)?;
    line.end();
    let document = workspace::root()?.join("docs/guests.md");
    let status = tools
        .cargo()
        .args(["run", "--quiet", "--package", "vprof-tests", "--bin", "corpus", "--"])
        .arg(document)
        .args(&options.names)
        .status()
        .context("cannot start cargo run")?;
    Ok(exit_code(status))
}
