//! The same run several times, and the spread between the runs.

mod render;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use display::message::write_stderr;
use display::units;
use profile::report::{Estimate, Report};
use profile::{Filter, Profile};
use serde::{Deserialize, Serialize};

use super::one;
use crate::args::RunArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};
use ::render::PageLayout;
use statistics::spread::ValueSpread;

/// Programs whose shares are compared.
const PROGRAMS: usize = 10;

/// Times that are measured of each run: name in JSON, and name for people.
pub const TIMES: [(&str, &str); 5] = [
    ("wall", "wall time of the command"),
    ("cpu", "CPU time of its processes"),
    ("user", "  in user code"),
    ("system", "  in the kernel"),
    ("run", "the whole run, with the guest's boot"),
];

/// Results of several runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepeatedRuns {
    /// vprof's version.
    pub version: String,
    /// The command, its words separated by blanks.
    pub command: Option<String>,
    /// The profiles, in order.
    pub profiles: Vec<PathBuf>,
    /// Times, s.
    pub times_s: Vec<ValueSpread>,
    /// Shares of all time in the guest that was not idle.
    pub shares: Vec<ValueSpread>,
}

/// Measurements of one run.
#[derive(Debug, Default)]
struct RunMeasurements {
    command: Option<String>,
    /// Times, s, by names of [`TIMES`].
    times_s: Vec<(&'static str, f64)>,
    shares: BTreeMap<String, f64>,
}

/// Returns the arguments of run `n` of `runs`: each run has a separate profile.
pub fn numbered(args: &RunArgs, n: u32, runs: u32) -> RunArgs {
    let mut own = args.clone();
    if runs > 1 {
        own.recording.output = with_number(&args.recording.output, n);
        if args.recording.keeps_older {
            own.recording.keep_older(own.recording.output.clone());
        }
        // Runs with the same seed would have the same intervals, so each run derives a seed from the
        // given one.
        own.recording.seed = args.recording.seed.map(|seed| seed.wrapping_add(u64::from(n - 1)));
    }
    own
}

/// `NAME.N.vprof` for `NAME.vprof`.
fn with_number(path: &Path, n: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{n}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Warns that a run may depend on the disk writes of the runs before.
pub fn warn_of_writes(args: &RunArgs) {
    if !(args.snapshot || args.read_only || args.recording.quiet) {
        display::stderr_line!(
            "vprof: a run starts with the disk contents that the run before left; with --snapshot all start with the same"
        );
    }
}

/// `vprof run --repeat`.
pub fn command(args: &RunArgs, times: u32) -> Result<ExitCode, Error> {
    // All names are checked before the first run, which may take long.
    for n in 1..=times {
        super::output::check(&numbered(args, n, times.max(2)).recording)?;
    }
    warn_of_writes(args);
    let mut profiles = Vec::new();
    let mut measured = Vec::new();
    for n in 1..=times {
        let mut own = numbered(args, n, times.max(2));
        own.repeat = None;
        own.recording.quiet = true;
        own.recording.json = false;
        // JSON on standard output excludes the console there.
        if args.recording.json && own.console.is_none() {
            own.console = Some(PathBuf::from("none"));
        }
        if !args.recording.quiet {
            display::stderr_line!("vprof: run {n} of {times}");
        }
        let run = one(&own)?;
        if run.interrupted {
            return Err(Error::Interrupted);
        }
        if run.code != ExitCode::Done {
            display::stderr_line!(
                "vprof: run {n} of {times} ended with code {}; stopping",
                run.code.number()
            );
            return Ok(run.code);
        }
        let found = measure(&own)?;
        if !args.recording.quiet {
            display::stderr_line!("vprof: run {n} of {times} {}", sentence(&found));
        }
        measured.push(found);
        profiles.push(own.recording.output);
    }
    let repeated = repeated(profiles, &measured);
    if args.recording.json {
        write_json(&repeated)?;
    } else if !args.recording.quiet {
        let text = render::render(&repeated, PageLayout::stdout());
        if args.command.is_empty() { write_text(&text)? } else { write_stderr(&text) }
    }
    Ok(ExitCode::Done)
}

/// Formats a run in one line.
fn sentence(run: &RunMeasurements) -> String {
    let time = |wanted: &str| {
        let found = run.times_s.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, s)| units::seconds(*s))
    };
    let command = time("wall").map(|wall| format!("took {wall}"));
    let run = || format!("ended after {}", time("run").unwrap_or_default());
    let parts = [("user", "in user code"), ("system", "in the kernel")];
    let parts = parts.map(|(name, mode)| time(name).map(|time| format!("{time} {mode}")));
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match command {
        Some(command) if parts.is_empty() => command,
        Some(command) => format!("{command}: {parts}"),
        None if parts.is_empty() => run(),
        None => format!("{}; its command: {parts}", run()),
    }
}

fn measure(args: &RunArgs) -> Result<RunMeasurements, Error> {
    let profile = Profile::open(&args.recording.output)?;
    let report = Report::read(&profile, &Filter::default())?;
    let mut measured = RunMeasurements::default();
    for process in &report.processes {
        *measured.shares.entry(process.comm.clone()).or_insert(0.0) += process.estimate.share;
    }
    if let Some(command) = report.command {
        let time = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.time_s);
        let times = [command.wall_s, time(command.cpu), time(command.user), time(command.system)].into_iter();
        let named = TIMES.iter().zip(times).filter_map(|((name, _), s)| Some((*name, s?)));
        measured.times_s.extend(named);
        measured
            .shares
            .insert("the command's processes".to_owned(), command.cpu.map_or(0.0, |cpu| cpu.share));
        measured.command = Some(command.command);
    }
    measured.times_s.push(("run", report.duration_s));
    Ok(measured)
}

fn repeated(profiles: Vec<PathBuf>, measured: &[RunMeasurements]) -> RepeatedRuns {
    let times = |name: &str| {
        let time = |run: &RunMeasurements| run.times_s.iter().find(|(own, _)| *own == name).map(|(_, s)| *s);
        measured.iter().filter_map(time).collect::<Vec<_>>()
    };
    let mut programs: Vec<&String> = measured.iter().flat_map(|run| run.shares.keys()).collect();
    programs.sort();
    programs.dedup();
    // A program without samples in a run has a share of 0 there.
    let shares = |name: &String| {
        measured.iter().map(|run| run.shares.get(name).copied().unwrap_or(0.0)).collect::<Vec<_>>()
    };
    let mut shares: Vec<ValueSpread> =
        programs.iter().filter_map(|name| ValueSpread::from_values(name, &shares(name))).collect();
    shares.sort_by(|a, b| b.median.total_cmp(&a.median));
    shares.truncate(PROGRAMS);
    RepeatedRuns {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: measured.first().and_then(|run| run.command.clone()),
        profiles,
        times_s: TIMES.iter().filter_map(|(name, _)| ValueSpread::from_values(name, &times(name))).collect(),
        shares,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_separate_profile() {
        assert_eq!(with_number(Path::new("/a/b.c.vprof"), 3), Path::new("/a/b.c.3.vprof"));
        assert_eq!(with_number(Path::new("out"), 1), Path::new("out.1"));
    }

    #[test]
    fn a_program_that_is_not_in_all_runs_has_no_share_there() {
        let run = |shares: &[(&str, f64)]| RunMeasurements {
            times_s: vec![("run", 2.0)],
            command: None,
            shares: shares.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect(),
        };
        let all = repeated(Vec::new(), &[run(&[("a", 0.5)]), run(&[("a", 0.7), ("b", 0.2)])]);
        let shares: Vec<_> = all.shares.iter().map(|s| (s.name.as_str(), s.min, s.max)).collect();
        assert_eq!(shares, [("a", 0.5, 0.7), ("b", 0.0, 0.2)]);
        assert_eq!(all.times_s[0].median, 2.0);
    }
}
