//! `vprof boot`: boots a guest as `vprof run` does, and checks that it comes up.

mod baseline;
mod check;
mod verdict;

use std::path::{Path, PathBuf};

use host::spec::GuestEnd;
use profile::Profile;
use profile::boot::{Boot, Evidence, PHASES};
use profile::conditions::{Condition, RunTrigger};
use render::PageLayout;
use render::boot_test::{self, BootAttempt, BootOutcome, BootVerdict};
use statistics::spread::ValueSpread;

use crate::args::{BootArgs, RunArgs};
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{OutputTarget, ignore_closed_pipe, write_json, write_text};
use crate::run::{self, repeat};
use crate::symbolize;
use baseline::BootBaseline;
use display::message::write_stderr;
use display::units;
use verdict::BootFacts;
use vmm::MachineEnd;

/// Runs the command.
pub fn command(args: &BootArgs) -> Result<ExitCode, Error> {
    refuse(&args.run)?;
    if let Some(after) = args.hang_after.filter(|after| *after >= args.timeout) {
        let (hang_after, timeout) = (units::duration(after), units::duration(args.timeout));
        return Err(UsageError::LateHang { hang_after, timeout }.into());
    }
    let baseline = args.baseline.as_deref().map(BootBaseline::read).transpose()?;
    // A file that can't be written is reported before the guest runs.
    for path in [&args.junit, &args.save_baseline].into_iter().flatten() {
        writable(path)?;
    }
    let outcome = boots(args, baseline.as_ref())?;
    if let Some(path) = &args.save_baseline {
        if outcome.boots.iter().all(|attempt| attempt.verdict == BootVerdict::Up) {
            BootBaseline::from_outcome(&outcome).write(path)?;
        } else {
            display::stderr_line!("vprof: the baseline is not written: not all boots came up");
        }
    }
    if let Some(path) = &args.junit {
        replace(path, &boot_test::junit::render(&outcome))?;
    }
    let printed = if args.run.recording.json {
        write_json(&outcome)
    } else if args.md {
        write_text(&boot_test::markdown::render(&outcome))
    } else if !args.run.recording.quiet {
        write_text(&boot_test::text::render(&outcome, PageLayout::stdout()))
    } else {
        Ok(())
    };
    ignore_closed_pipe(printed)?;
    if !outcome.passed {
        write_stderr(&failed(&outcome));
    }
    Ok(if outcome.passed { ExitCode::Done } else { ExitCode::Expectation })
}

/// Refuses options of a run that do not apply to boots.
fn refuse(run: &RunArgs) -> Result<(), Error> {
    let given = [
        ("--start-when", run.recording.start_when.is_some(), "a boot is sampled from its beginning"),
        ("--stop-when", run.recording.stop_when.is_some(), "a boot ends with --until"),
        ("--until-precision", run.recording.until_precision.is_some(), "a boot ends with --until"),
        ("--duration", run.recording.duration.is_some(), "a boot ends with --timeout"),
        ("--top", run.recording.top, "boots are judged at their end"),
    ];
    match given.into_iter().find(|(_, given, _)| *given) {
        Some((option, _, reason)) => Err(UsageError::RunOption { option, reason }.into()),
        None => Ok(()),
    }
}

/// Formats the expectations that were not met, and the console's last lines.
fn failed(outcome: &BootOutcome) -> String {
    let failed = outcome.checks.iter().filter(|check| !check.passed);
    let mut text: String = failed.map(|check| format!("vprof: {}\n", check.message)).collect();
    let evidence = outcome.boots.iter().find_map(|attempt| attempt.evidence.as_ref());
    if let Some(evidence) = evidence.filter(|evidence| !evidence.console.is_empty()) {
        text.push_str("the console's last lines:\n");
        for line in &evidence.console {
            text.push_str(&format!("  {}\n", display::clean::escaped(line)));
        }
    }
    text
}

fn boots(args: &BootArgs, baseline: Option<&BootBaseline>) -> Result<BootOutcome, Error> {
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
            display::stderr_line!(
                "vprof: boot {n} of {times}: {}",
                display::clean::escaped(&attempt.sentence)
            );
        }
        let interrupted = attempt.verdict == BootVerdict::Interrupted;
        boots.push(attempt);
        if interrupted {
            break;
        }
    }
    let spread = PHASES
        .iter()
        .filter_map(|phase| ValueSpread::from_values(phase, &walls(&boots, phase)))
        .collect::<Vec<_>>();
    let mut checks = check::check_boots(args, &boots);
    checks.extend(check::check_budgets(&args.budget, &spread));
    if let Some(baseline) = baseline {
        checks.extend(baseline.checks(&boots)?);
    }
    let failure = checks.iter().find(|check| !check.passed).map(|check| check.message.clone());
    Ok(BootOutcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        image: args.run.image.to_string_lossy().into_owned(),
        passed: failure.is_none(),
        failure,
        boots,
        checks,
        spread,
    })
}

/// Returns the time of a phase in each boot that came up, s.
fn walls(boots: &[BootAttempt], phase: &str) -> Vec<f64> {
    let up = boots.iter().filter(|attempt| attempt.verdict == BootVerdict::Up);
    up.filter_map(|attempt| Some(attempt.boot.phase(phase)?.wall_s)).collect()
}

/// Boots the guest, and again after resets, up to the allowed number.
fn boot(args: &BootArgs, run: &RunArgs) -> Result<BootAttempt, Error> {
    let (until, end_condition) = (args.until(), args.end_condition());
    let mut triggers = vec![RunTrigger::Still(args.hang_after)];
    triggers.extend(end_condition.clone().map(RunTrigger::Until));
    let places = symbolize::named_places(&run.recording.debug)?;
    let mut reboots = 0;
    loop {
        let mut again = run.clone();
        again.recording.force |= reboots > 0;
        let ended = run::once(&again, triggers.clone())?;
        if let Some(error) = &ended.outcome.totals.sink_error {
            return Err(Error::Sink(error.clone()));
        }
        let profile = Profile::open(&run.recording.output)?;
        let evidence = Evidence::read(&profile)?;
        let resets = ended.outcome.end == GuestEnd::Ran(MachineEnd::Reset)
            && verdict::kernel_failure(&evidence).is_none();
        if resets && ended.outcome.totals.seen.until_ns.is_none() && reboots < args.reboots {
            reboots += 1;
            if !run.recording.quiet {
                display::stderr_line!(
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
        let (verdict, sentence) = verdict::judge(BootFacts {
            until: until.as_ref(),
            end_condition: end_condition.as_ref(),
            recorded: &ended,
            evidence: &evidence,
            boot: &boot,
            reboots,
        });
        let evidence = (verdict != BootVerdict::Up).then_some(evidence);
        let profile = run.recording.output.clone();
        return Ok(BootAttempt { profile, verdict, sentence, reboots, boot, evidence });
    }
}

/// Formats the expectation: the given condition, or the one that ends the boot by default.
fn expected(until: Option<&Condition>, end_condition: Option<&Condition>) -> String {
    match (until, end_condition) {
        (None, Some(condition)) => format!("{} or its own end", shown(Some(condition))),
        (until, _) => shown(until),
    }
}

/// Formats a condition for a sentence.
fn shown(until: Option<&Condition>) -> String {
    match until {
        None => "its end".to_owned(),
        Some(Condition::Started) => "the end of its startup".to_owned(),
        Some(until) => display::clean::escaped(&until.to_string()).into_owned(),
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

/// Writes a file of text, and replaces an existing one.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let mut output = OutputTarget::open(path, true)?;
    match output.writer().write_all(text.as_bytes()) {
        Ok(()) => output.finish(),
        Err(source) => Err(output.error(source)),
    }
}
