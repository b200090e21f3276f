//! How a boot ended.

use host::spec::GuestEnd;
use profile::boot::{Boot, Evidence, LastOf};
use sampler::conditions::Condition;
use serde::{Deserialize, Serialize};

use super::{expected, shown};
use crate::run::recording::Recorded;
use text::clean::escaped;
use vmm::{MachineEnd, TRIPLE_FAULT};

/// A guest that has come no further for this part of the run, and for [`STILL_S`], hangs when its time is over.
const STILL_PART: f64 = 0.25;
/// At least so long, s.
const STILL_S: f64 = 5.0;
/// A vCPU that is busy for more than this part of the time is not waiting.
const BUSY: f64 = 0.2;

/// How a boot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It came up.
    Up,
    /// A kernel panic.
    Panic,
    /// An oops.
    Oops,
    /// A triple fault.
    TripleFault,
    /// It reset itself again and again, or once where no more was allowed.
    RebootLoop,
    /// It powered off before it was up.
    PowerOff,
    /// Nothing went on any more: all vCPUs wait.
    HangIdle,
    /// Nothing went on any more, while a vCPU was busy.
    HangBusy,
    /// It still went on, but too slowly.
    TimeOut,
    /// The machine failed otherwise.
    Failed,
    /// Somebody ended the run.
    Interrupted,
}

/// A failure of the kernel's own: a panic, or an oops.
pub fn failed_by_itself(evidence: &Evidence) -> Option<(Verdict, String)> {
    let line = |line: &Option<String>| line.as_deref().map(|line| escaped(line).into_owned());
    if let Some(line) = line(&evidence.panic_line) {
        return Some((Verdict::Panic, format!("the kernel panicked: {line}")));
    }
    if evidence.panicked == Some(true) {
        let sentence = "the kernel panicked, by its own notes; its console does not say why".to_owned();
        return Some((Verdict::Panic, sentence));
    }
    if let Some(line) = line(&evidence.oops_line) {
        return Some((Verdict::Oops, format!("the kernel had an oops: {line}")));
    }
    let sentence = "the kernel had an oops, by its own notes; its console does not say which".to_owned();
    (evidence.died == Some(true)).then_some((Verdict::Oops, sentence))
}

/// Judges a boot whose guest was started again so often.
pub fn judge(
    (until, waited): (Option<&Condition>, Option<&Condition>),
    ended: &Recorded,
    evidence: &Evidence,
    (boot, reboots): (&Boot, u32),
) -> (Verdict, String) {
    let until_shown = expected(until, waited);
    if let Some((verdict, sentence)) = failed_by_itself(evidence) {
        return (verdict, sentence);
    }
    // A command's run may also end since no command will run.
    if let Some(reached) = boot.reached_s.filter(|_| waited.is_some()) {
        return (Verdict::Up, format!("{} was seen after {reached:.3} s", shown(waited)));
    }
    let after = format!("{:.2} s", evidence.duration_s);
    let end = match &ended.outcome.end {
        GuestEnd::Ran(end) => end,
        // A guest that is booted is not left.
        GuestEnd::Left(_) => &MachineEnd::Stopped,
    };
    match end {
        MachineEnd::Failed(reason) if reason.contains(TRIPLE_FAULT) => {
            (Verdict::TripleFault, format!("the guest had a triple fault after {after}"))
        }
        MachineEnd::Failed(reason) => {
            (Verdict::Failed, format!("the guest failed after {after}: {}", escaped(reason)))
        }
        MachineEnd::Reset if reboots > 0 => (
            Verdict::RebootLoop,
            format!("reboot loop: the guest reset itself {} times, the last time after {after}", reboots + 1),
        ),
        MachineEnd::Reset => {
            (Verdict::RebootLoop, format!("the guest reset itself after {after}, before {until_shown}"))
        }
        MachineEnd::Exited(code) if *code != 0 && until.is_none() => {
            (Verdict::Failed, format!("the guest's command ended with status {code} after {after}"))
        }
        MachineEnd::PowerOff | MachineEnd::Exited(_) if until.is_none() => {
            (Verdict::Up, format!("the guest ended by itself after {after}"))
        }
        MachineEnd::PowerOff | MachineEnd::Exited(_) => {
            (Verdict::PowerOff, format!("the guest powered off after {after}, before {until_shown}"))
        }
        MachineEnd::Stopped if ended.interrupted => {
            (Verdict::Interrupted, format!("the run was ended after {after}, before {until_shown}"))
        }
        MachineEnd::Stopped => still(evidence, &until_shown, ended.outcome.totals.seen.still_ns.is_some()),
    }
}

/// Of a guest that was not up in time, or had come no further for long enough (`hangs`): whether it still went on.
fn still(evidence: &Evidence, until: &str, hangs: bool) -> (Verdict, String) {
    let silent = (evidence.duration_s - evidence.progress_s).max(0.0);
    let not = format!("{until} was not seen within {:.2} s", evidence.duration_s);
    if !hangs && silent < STILL_S.max(evidence.duration_s * STILL_PART) {
        return (Verdict::TimeOut, format!("{not}, though the guest still went on: {}", doing(evidence)));
    }
    let nothing = format!("the guest hangs: {not}, and nothing new happened in the last {silent:.1} s");
    if evidence.busiest() > BUSY {
        (Verdict::HangBusy, format!("{nothing}; {}", doing(evidence)))
    } else {
        let waits = evidence.blocked.iter().find(|task| task.state == "disk");
        let waits = waits.or_else(|| evidence.blocked.iter().find(|task| task.pid == 1));
        let who = waits.map_or_else(String::new, |task| {
            let what = task.stack.iter().find(|name| !is_scheduler(name)).map_or("", String::as_str);
            let (comm, what) = (escaped(&task.comm), escaped(what));
            let slept = (evidence.duration_s - task.since_s).max(0.0);
            format!("; {comm} (pid {}) has slept in {what} for {slept:.1} s", task.pid)
        });
        (Verdict::HangIdle, format!("{nothing}; all vCPUs wait{who}"))
    }
}

/// Functions that every sleeper is in.
fn is_scheduler(function: &str) -> bool {
    ["__schedule", "schedule", "schedule_timeout", "io_schedule", "schedule_preempt_disabled"]
        .contains(&function)
}

/// What the busiest vCPU does.
fn doing(evidence: &Evidence) -> String {
    let busiest = evidence.vcpus.iter().max_by(|a, b| a.busy.total_cmp(&b.busy));
    let Some(LastOf { vcpu, busy, process, stack }) = busiest else {
        return "nothing was sampled".to_owned();
    };
    let process = process.as_deref().unwrap_or("the kernel");
    let function = stack.first().map_or("", String::as_str);
    format!(
        "vCPU {vcpu} is busy for {:.0} % of the time, with {} in {}",
        busy * 100.0,
        escaped(process),
        escaped(function)
    )
}

#[cfg(test)]
mod tests {
    use profile::boot::BlockedTask;

    use super::*;

    fn evidence(progress_s: f64, busy: f64) -> Evidence {
        let vcpu =
            LastOf { vcpu: 1, busy, process: Some("loop".to_owned()), stack: vec!["spin\x1b".to_owned()] };
        let task = BlockedTask {
            comm: "cp".to_owned(),
            pid: 42,
            state: "disk".to_owned(),
            stack: ["__schedule", "schedule", "wait_on_page_bit"].map(str::to_owned).to_vec(),
            since_s: 3.0,
            ..BlockedTask::default()
        };
        Evidence {
            duration_s: 40.0,
            progress_s,
            vcpus: vec![vcpu],
            blocked: vec![task],
            ..Evidence::default()
        }
    }

    #[test]
    fn a_hang_is_told_from_a_slow_guest() {
        let (verdict, sentence) = still(&evidence(35.0, 0.9), "console:up", false);
        assert_eq!(verdict, Verdict::TimeOut);
        assert!(
            sentence.contains("vCPU 1 is busy for 90 % of the time, with loop in spin\\x1b"),
            "{sentence}"
        );
        assert_eq!(still(&evidence(35.0, 0.9), "console:up", true).0, Verdict::HangBusy);
        assert_eq!(still(&evidence(29.0, 0.9), "console:up", false).0, Verdict::HangBusy);
        let (verdict, sentence) = still(&evidence(29.0, 0.01), "console:up", false);
        assert_eq!(verdict, Verdict::HangIdle);
        assert!(sentence.ends_with("cp (pid 42) has slept in wait_on_page_bit for 37.0 s"), "{sentence}");
    }

    #[test]
    fn the_kernels_own_failures_come_first() {
        let mut told = evidence(0.0, 0.0);
        assert_eq!(failed_by_itself(&told), None);
        (told.died, told.oops_line) = (Some(true), Some("Oops: 0002".to_owned()));
        assert_eq!(
            failed_by_itself(&told).unwrap(),
            (Verdict::Oops, "the kernel had an oops: Oops: 0002".to_owned())
        );
        told.panicked = Some(true);
        assert_eq!(failed_by_itself(&told).unwrap().0, Verdict::Panic);
    }
}
