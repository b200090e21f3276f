//! `cargo xtask experiments`: the papers' experiments on guests of today, written into docs/experiments.md.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use guest_images::{DemoOptions, Progress};

use crate::demo::{GuestTools, exit_code};
use crate::deps;
use crate::progress::ProgressLine;
use crate::workspace;

/// The experiments that the program `experiments` knows.
const NAMES: [&str; 8] =
    ["hog", "interference", "isochronous", "overhead", "costs", "blocked", "soak", "soak-exact"];

/// Experiments to run, and their repetitions.
#[derive(Debug, Args)]
pub struct ExperimentsArgs {
    /// Experiments to run [default: all]
    #[arg(value_name = "NAME", value_parser = NAMES)]
    names: Vec<String>,
    /// Runs of each guest in experiments that compare times
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
}

/// Builds what is needed and runs the experiments.
pub fn run(options: &ExperimentsArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure_for_demo(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    guest_images::demo(&DemoOptions::default(), &line)?;
    let tools = GuestTools::build(&line)?;
    line.end();
    let documents = workspace::root()?.join("docs");
    let mut cargo = tools.cargo();
    workspace::choose_lab(cargo.args(["run", "--quiet", "--package", "experiments"]))?;
    cargo.arg("--").arg(documents).arg(options.runs.to_string()).args(&options.names);
    Ok(exit_code(cargo.status().context("cannot start cargo run")?))
}
