//! `cargo xtask demo`: from a fresh clone to a profile of a guest.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest_images::{DemoOptions, KernelFlavour, KernelSeries, cargo, guest_directory, portable_host};

use crate::compile::{VprofBuild, VprofKind};
use crate::deps;
use crate::progress::ProgressLine;

/// Name of the process that the guest's load begins with (`guest-images/src/demo-load.sh`).
pub const LOAD: &str = "demo-load";

/// Restarts of the guest after faults of an emulated host.
const RETRIES: u32 = 3;
/// Query for the first report of a stall in a profile.
const STALLS: &str = "SELECT text FROM event WHERE kind IN ('stall', 'standstill') ORDER BY time_ns LIMIT 1";

/// Arguments of `cargo xtask demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Series of the guest's kernel: 5.10, 6.1, 6.12 or newest
    #[arg(long, default_value_t)]
    kernel: KernelSeries,
    /// Configuration of the guest's kernel: cloud, generic or rt
    #[arg(long, default_value_t)]
    flavour: KernelFlavour,
    /// Seconds of the guest's load to profile
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

/// Program and portable host that demo and tests run with.
#[derive(Debug)]
pub struct GuestTools {
    /// The static `vprof`.
    pub vprof: PathBuf,
    /// The portable host's bundle.
    pub portable_host: PathBuf,
}

impl GuestTools {
    /// Builds what has changed.
    pub fn build(line: &ProgressLine) -> Result<Self> {
        let build = VprofBuild::start(VprofKind::Full, line)?;
        let portable_host = portable_host(line)?;
        Ok(Self { vprof: build.finish(line)?, portable_host })
    }

    /// Returns a call of cargo whose environment names these tools and the guest images, as the crate `tests`
    /// expects.
    pub fn cargo(&self) -> Command {
        let mut cargo = cargo();
        self.set_environment(&mut cargo);
        cargo
    }

    /// Puts them into a command's environment.
    pub fn set_environment(&self, command: &mut Command) {
        command
            .env("VPROF_BIN", &self.vprof)
            .env("VPROF_GUEST_DIR", guest_directory())
            .env("VPROF_PORTABLE_HOST", &self.portable_host);
    }
}

/// Runs the demo.
pub fn run(options: &DemoArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    // Packages and images wait for the network most of the time, so the compiler runs meanwhile.
    let build = VprofBuild::start(VprofKind::Demo, &line)?;
    if !deps::ensure_for_demo(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let image = guest_images::demo(&DemoOptions { series: options.kernel, flavour: options.flavour }, &line)?;
    let portable_host = portable_host(&line)?;
    let vprof = build.finish(&line)?;
    let profile = image.with_extension("vprof");

    let (vprof, image, profile) = (short(&vprof), short(&image), short(&profile));
    // Once the guest is up. With --snapshot the image stays what its manifest says.
    let begin = format!("process:{LOAD}");
    let end = format!("time:{}s", options.seconds);
    let retry = format!("--retry={RETRIES}");
    let mut arguments = vec!["run", &image, "--snapshot", &retry];
    arguments.extend(["--start-when", &begin, "--stop-when", &end, "-o", &profile, "--force"]);
    eprintln!("$ {vprof} {}", arguments.join(" "));
    let status = Command::new(&vprof)
        .args(arguments)
        .env("VPROF_PORTABLE_HOST", portable_host)
        .status()
        .with_context(|| format!("cannot start {vprof}"))?;
    if !status.success() {
        // vprof has said why.
        return Ok(exit_code(status));
    }
    if let Some(stall) = stall(&vprof, &profile)? {
        bail!(
            "the guest stalled, so the profile shows a machine at a standstill: {stall}. Type the command again, on a \
             machine with less load"
        );
    }
    println!();
    println!("The profile is {profile}. What to type next:");
    for (command, purpose) in [
        (format!("{vprof} report {profile}"), "the same summary again"),
        (format!("{vprof} report --process python3 {profile}"), "one process of it"),
        (format!("{vprof} report --json {profile}"), "the same for programs"),
        (format!("{vprof} query {profile} \"SELECT name FROM sqlite_schema\""), "its tables, for plain SQL"),
        (
            format!(
                "{vprof} run {image} --snapshot -o my.vprof -- sh -c 'gzip </dev/zero | dd of=/dev/null'"
            ),
            "a command of yours",
        ),
        (format!("{vprof} doctor"), "what this machine can do"),
    ] {
        println!("  {command}\n      {purpose}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the first stall that a profile reports.
fn stall(vprof: &str, profile: &str) -> Result<Option<String>> {
    let output = Command::new(vprof).args(["query", "--json", profile, STALLS]).output();
    let output = output.with_context(|| format!("cannot start {vprof}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(rows[0]["text"].as_str().map(str::to_owned))
}

/// Returns the path relative to the current directory, if it is below it.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}

/// Converts a child's exit code to this process's; a child that a signal ended has failed.
pub fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    match status.code().map(u8::try_from) {
        Some(Ok(code)) => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}
