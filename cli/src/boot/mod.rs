//! `vprof boot`: boots a guest as `vprof run` does, watches it, and judges.

mod baseline;
mod check;
mod junit;
mod markdown;
mod render;
mod verdict;

use std::path::{Path, PathBuf};

use host::spec::GuestEnd;
use profile::Profile;
use profile::boot::{Boot, Evidence, PHASES};
use sampler::conditions::{Condition, RunTrigger};
use serde::{Deserialize, Serialize};

use crate::args::{BootArgs, RunArgs};
use crate::errors::{Error, ExitCode};
use crate::output::{Output, write_json, write_text};
use crate::render::Page;
use crate::run::{self, repeat};
use crate::spread::Spread;
use crate::symbolize;
use baseline::Baseline;
use check::Check;
use text::units;
use verdict::Verdict;
use vmm::MachineEnd;

/// What all boots came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// vprof's version.
    pub version: String,
    /// What was booted.
    pub image: String,
    /// All was as expected.
    pub passed: bool,
    /// The first expectation that was not met.
    pub failure: Option<String>,
    /// Each boot.
    pub boots: Vec<Attempt>,
    /// Each expectation.
    pub checks: Vec<Check>,
    /// Wall time of each phase over the boots that came up, s.
    pub spread: Vec<Spread>,
}

/// One boot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its profile.
    pub profile: PathBuf,
    /// How it ended.
    pub verdict: Verdict,
    /// The same as a sentence.
    pub sentence: String,
    /// How often the guest reset itself before.
    pub reboots: u32,
    /// Where its time went.
    pub boot: Boot,
    /// What is known of the end of a boot that failed.
    pub evidence: Option<Evidence>,
}

/// Runs the command.
pub fn command(args: &BootArgs) -> Result<ExitCode, Error> {
    refuse(&args.run)?;
    if let Some(after) = args.hang_after.filter(|after| *after >= args.timeout) {
        return Err(Error::Usage(format!(
            "--hang-after {} can never come: the boot is over after {} (--timeout)",
            units::duration(after),
            units::duration(args.timeout)
        )));
    }
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    // What can't be written is better known before the guest runs.
    for path in [&args.junit, &args.save_baseline].into_iter().flatten() {
        writable(path)?;
    }
    let outcome = boots(args, baseline.as_ref())?;
    if let Some(path) = &args.save_baseline {
        if outcome.boots.iter().all(|attempt| attempt.verdict == Verdict::Up) {
            Baseline::of(&outcome).write(path)?;
        } else {
            eprintln!("vprof: the baseline is not written: not all boots came up");
        }
    }
    if let Some(path) = &args.junit {
        replace(path, &junit::render(&outcome))?;
    }
    if args.run.recording.json {
        write_json(&outcome)?;
    } else if args.md {
        write_text(&markdown::render(&outcome))?;
    } else if !args.run.recording.quiet {
        write_text(&render::outcome(&outcome, Page::stdout().for_summary()))?;
    }
    if let Some(failure) = &outcome.failure {
        eprint!("{}", failed(&outcome, failure));
    }
    Ok(if outcome.passed { ExitCode::Done } else { ExitCode::Expectation })
}

/// Options of a run that mean nothing here.
fn refuse(run: &RunArgs) -> Result<(), Error> {
    let given = [
        ("--start-when", run.recording.start_when.is_some(), "a boot is sampled from its beginning on"),
        ("--stop-when", run.recording.stop_when.is_some(), "a boot ends with --until"),
        ("--until-precision", run.recording.until_precision.is_some(), "a boot ends with --until"),
        ("--duration", run.recording.duration.is_some(), "a boot ends with --timeout"),
        ("--top", run.recording.top, "boots are judged at their end"),
    ];
    match given.into_iter().find(|(_, given, _)| *given) {
        Some((option, _, why)) => Err(Error::Usage(format!("{option} is an option of `vprof run`: {why}"))),
        None => Ok(()),
    }
}

/// The first broken expectation, and the console's last lines.
fn failed(outcome: &Outcome, failure: &str) -> String {
    let mut text = format!("vprof: {failure}\n");
    let evidence = outcome.boots.iter().find_map(|attempt| attempt.evidence.as_ref());
    if let Some(evidence) = evidence.filter(|evidence| !evidence.console.is_empty()) {
        text.push_str("the console's last lines:\n");
        for line in &evidence.console {
            text.push_str(&format!("  {}\n", text::clean::escaped(line)));
        }
    }
    text
}

fn boots(args: &BootArgs, baseline: Option<&Baseline>) -> Result<Outcome, Error> {
    let times = args.run.repeat.unwrap_or(1);
    if times > 1 {
        repeat::warn_of_writes(&args.run);
    }
    let mut boots = Vec::new();
    for n in 1..=times {
        let mut run = repeat::numbered(&args.run, n, times);
        run.recording.duration = Some(args.timeout);
        run.repeat = None;
        if run.console.is_none() {
            run.console = Some(PathBuf::from("none"));
        }
        let attempt = boot(args, &run)?;
        if times > 1 && !args.run.recording.quiet {
            eprintln!("vprof: boot {n} of {times}: {}", text::clean::escaped(&attempt.sentence));
        }
        let interrupted = attempt.verdict == Verdict::Interrupted;
        boots.push(attempt);
        if interrupted {
            break;
        }
    }
    let spread =
        PHASES.iter().filter_map(|phase| Spread::of(phase, &walls(&boots, phase))).collect::<Vec<_>>();
    let mut checks = check::of_boots(args, &boots);
    checks.extend(check::of_budgets(&args.budget, &spread));
    if let Some(baseline) = baseline {
        checks.extend(baseline.checks(&boots)?);
    }
    let failure = checks.iter().find(|check| !check.passed).map(|check| check.message.clone());
    Ok(Outcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        image: args.run.image.to_string_lossy().into_owned(),
        passed: failure.is_none(),
        failure,
        boots,
        checks,
        spread,
    })
}

/// How long a phase took in the boots that came up, s.
fn walls(boots: &[Attempt], phase: &str) -> Vec<f64> {
    let up = boots.iter().filter(|attempt| attempt.verdict == Verdict::Up);
    up.filter_map(|attempt| Some(attempt.boot.phase(phase)?.wall_s)).collect()
}

/// One boot, with as many resets in between as are allowed.
fn boot(args: &BootArgs, run: &RunArgs) -> Result<Attempt, Error> {
    let (until, waited) = (args.until(), args.waited());
    let mut waits = vec![RunTrigger::Still(args.hang_after)];
    waits.extend(waited.clone().map(RunTrigger::Until));
    let places = symbolize::named_places(&run.recording.debug)?;
    let mut reboots = 0;
    loop {
        let mut again = run.clone();
        again.recording.force |= reboots > 0;
        let ended = run::once(&again, waits.clone())?;
        if let Some(error) = &ended.outcome.totals.sink_error {
            return Err(Error::Sink(error.clone()));
        }
        let profile = Profile::open(&run.recording.output)?;
        let evidence = Evidence::read(&profile)?;
        let resets = ended.outcome.end == GuestEnd::Ran(MachineEnd::Reset)
            && verdict::failed_by_itself(&evidence).is_none();
        if resets && ended.outcome.totals.seen.until_ns.is_none() && reboots < args.reboots {
            reboots += 1;
            if !run.recording.quiet {
                eprintln!(
                    "vprof: the guest reset itself after {:.2} s and is started again",
                    evidence.duration_s
                );
            }
            continue;
        }
        drop(profile);
        if let Some(places) = &places {
            symbolize::add_names(&run.recording.output, places, run.recording.quiet)?;
        }
        let boot = Boot::read(&Profile::open(&run.recording.output)?)?;
        let (verdict, sentence) =
            verdict::judge((until.as_ref(), waited.as_ref()), &ended, &evidence, (&boot, reboots));
        let evidence = (verdict != Verdict::Up).then_some(evidence);
        let profile = run.recording.output.clone();
        return Ok(Attempt { profile, verdict, sentence, reboots, boot, evidence });
    }
}

/// What is expected of a boot, in a sentence: what was asked for, and what ends it where nothing was.
fn expected(until: Option<&Condition>, waited: Option<&Condition>) -> String {
    match (until, waited) {
        (None, Some(waited)) => format!("{} or its own end", shown(Some(waited))),
        (until, _) => shown(until),
    }
}

/// A condition in a sentence.
fn shown(until: Option<&Condition>) -> String {
    match until {
        None => "its end".to_owned(),
        Some(Condition::Started) => "the end of its startup".to_owned(),
        Some(until) => text::clean::escaped(&until.to_string()).into_owned(),
    }
}

fn writable(path: &Path) -> Result<(), Error> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(parent) {
        Ok(metadata) if metadata.is_dir() && !path.is_dir() => Ok(()),
        Ok(_) => Err(Error::file("write", path, std::io::ErrorKind::IsADirectory.into())),
        Err(source) => Err(Error::file("write", path, source)),
    }
}

/// Writes a file of text, in place of one that is there.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let mut output = Output::open(path, true)?;
    match output.writer().write_all(text.as_bytes()) {
        Ok(()) => output.finish(),
        Err(source) => Err(output.error(source)),
    }
}
