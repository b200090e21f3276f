//! `cargo xtask bench`: vprof against its budgets, on this machine.

use std::process::ExitCode;

use anyhow::{Context, Result};
use guest_images::{DemoOptions, Progress};

use crate::demo::{GuestTools, exit_code};
use crate::deps;
use crate::progress::ProgressLine;

/// Builds what is measured and measures it.
pub fn run() -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure_for_demo(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    guest_images::demo(&DemoOptions::default(), &line)?;
    let tools = GuestTools::build(&line)?;
    line.end();
    let status = tools
        .cargo()
        .args(["run", "--quiet", "--release", "--package", "bench"])
        .status()
        .context("cannot start cargo run")?;
    Ok(exit_code(status))
}
