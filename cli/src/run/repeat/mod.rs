//! The same run several times, and how the runs lie.

mod render;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profile::report::{Estimate, Report};
use profile::{Filter, Profile};
use serde::{Deserialize, Serialize};
use text::units;

use super::one;
use crate::args::RunArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};
use crate::render::Page;
use crate::spread::Spread;

/// Programs whose shares are compared.
const PROGRAMS: usize = 10;

/// What is measured of each run, by its name in JSON, and for people.
pub const TIMES: [(&str, &str); 5] = [
    ("wall", "wall time of the command"),
    ("cpu", "CPU time of its processes"),
    ("user", "  in user code"),
    ("system", "  in the kernel"),
    ("run", "the whole run, with the guest's boot"),
];

/// What several runs came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repeated {
    /// vprof's version.
    pub version: String,
    /// The command, its words separated by blanks.
    pub command: Option<String>,
    /// The profiles, in order.
    pub profiles: Vec<PathBuf>,
    /// Times, s.
    pub times_s: Vec<Spread>,
    /// Shares of all time in the guest that was not idle.
    pub shares: Vec<Spread>,
}

/// What is measured of one run.
#[derive(Debug, Default)]
struct Measured {
    command: Option<String>,
    /// By a name of [`TIMES`].
    times_s: Vec<(&'static str, f64)>,
    shares: BTreeMap<String, f64>,
}

/// The arguments of the run `n` of so many: each has a profile of its own.
pub fn numbered(args: &RunArgs, n: u32, of: u32) -> RunArgs {
    let mut own = args.clone();
    if of > 1 {
        own.recording.output = with_number(&args.recording.output, n);
        // Runs with one seed would have the same intervals: that is what a seed is for, one run at a time.
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

/// Says that runs may differ by what those before have written.
pub fn warn_of_writes(args: &RunArgs) {
    if !(args.snapshot || args.read_only || args.recording.quiet) {
        eprintln!(
            "vprof: what a run writes to its disks, the next one finds there: --snapshot has each begin with the same"
        );
    }
}

/// `vprof run --repeat`.
pub fn command(args: &RunArgs, times: u32) -> Result<ExitCode, Error> {
    // All names are looked at before the first run: it may take long.
    for n in 1..=times {
        super::output::check(&numbered(args, n, times.max(2)).recording.output, args.recording.force)?;
    }
    warn_of_writes(args);
    let mut profiles = Vec::new();
    let mut measured = Vec::new();
    for n in 1..=times {
        let mut own = numbered(args, n, times.max(2));
        own.repeat = None;
        own.recording.quiet = true;
        own.recording.json = false;
        // What is not shown as a whole goes where it would go for one run.
        if args.recording.json && own.console.is_none() {
            own.console = Some(PathBuf::from("none"));
        }
        if !args.recording.quiet {
            eprintln!("vprof: run {n} of {times}");
        }
        let run = one(&own)?;
        if run.interrupted {
            return Err(Error::Interrupted);
        }
        if run.code != ExitCode::Done {
            eprintln!("vprof: run {n} of {times} ended with code {}: no more are made", run.code.number());
            return Ok(run.code);
        }
        let found = measure(&own)?;
        if !args.recording.quiet {
            eprintln!("vprof: run {n} of {times} {}", sentence(&found));
        }
        measured.push(found);
        profiles.push(own.recording.output);
    }
    let repeated = repeated(profiles, &measured);
    if args.recording.json {
        write_json(&repeated)?;
    } else if !args.recording.quiet {
        let text = render::render(&repeated, Page::stdout().for_summary());
        if args.command.is_empty() { write_text(&text)? } else { eprint!("{text}") }
    }
    Ok(ExitCode::Done)
}

/// A run in one line.
fn sentence(run: &Measured) -> String {
    let of = |wanted: &str| {
        let found = run.times_s.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, s)| units::seconds(*s))
    };
    let command = of("wall").map(|wall| format!("took {wall}"));
    let run = || format!("ended after {}", of("run").unwrap_or_default());
    let parts = [("user", "in user code"), ("system", "in the kernel")];
    let parts = parts.map(|(name, where_to)| of(name).map(|time| format!("{time} {where_to}")));
    let parts = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match command {
        Some(command) if parts.is_empty() => command,
        Some(command) => format!("{command}: {parts}"),
        None if parts.is_empty() => run(),
        None => format!("{}; its command: {parts}", run()),
    }
}

fn measure(args: &RunArgs) -> Result<Measured, Error> {
    let profile = Profile::open(&args.recording.output)?;
    let report = Report::read(&profile, &Filter::default())?;
    let mut measured = Measured::default();
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

fn repeated(profiles: Vec<PathBuf>, measured: &[Measured]) -> Repeated {
    let times = |name: &str| {
        let of = |run: &Measured| run.times_s.iter().find(|(own, _)| *own == name).map(|(_, s)| *s);
        measured.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mut programs: Vec<&String> = measured.iter().flat_map(|run| run.shares.keys()).collect();
    programs.sort();
    programs.dedup();
    // A program that a run has not seen had no share there.
    let shares = |name: &String| {
        measured.iter().map(|run| run.shares.get(name).copied().unwrap_or(0.0)).collect::<Vec<_>>()
    };
    let mut shares: Vec<Spread> =
        programs.iter().filter_map(|name| Spread::of(name, &shares(name))).collect();
    shares.sort_by(|a, b| b.median.total_cmp(&a.median));
    shares.truncate(PROGRAMS);
    Repeated {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command: measured.first().and_then(|run| run.command.clone()),
        profiles,
        times_s: TIMES.iter().filter_map(|(name, _)| Spread::of(name, &times(name))).collect(),
        shares,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_profile_of_its_own() {
        assert_eq!(with_number(Path::new("/a/b.c.vprof"), 3), Path::new("/a/b.c.3.vprof"));
        assert_eq!(with_number(Path::new("out"), 1), Path::new("out.1"));
    }

    #[test]
    fn a_program_that_is_not_in_all_runs_counts_as_nothing_there() {
        let run = |shares: &[(&str, f64)]| Measured {
            times_s: vec![("run", 2.0)],
            command: None,
            shares: shares.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect(),
        };
        let all = repeated(Vec::new(), &[run(&[("a", 0.5)]), run(&[("a", 0.7), ("b", 0.2)])]);
        let told: Vec<_> = all.shares.iter().map(|s| (s.name.as_str(), s.min, s.max)).collect();
        assert_eq!(told, [("a", 0.5, 0.7), ("b", 0.0, 0.2)]);
        assert_eq!(all.times_s[0].median, 2.0);
    }
}
