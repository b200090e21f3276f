//! The verdict on a boot.

use host::spec::GuestEnd;
use profile::boot::{Boot, Evidence, LastOf};
use profile::conditions::Condition;

use render::boot_test::BootVerdict;

use super::{expected, shown};
use crate::run::recording::Recorded;
use display::clean::escaped;
use vmm::{MachineEnd, TRIPLE_FAULT};

/// A guest without progress for this part of the run, and for [`STILL_S`], hangs when its time is over.
const STILL_PART: f64 = 0.25;
/// Shortest time without progress that counts as a hang, s.
const STILL_S: f64 = 5.0;
/// A vCPU that is busy for more than this part of the time is not waiting.
const BUSY: f64 = 0.2;

/// Returns the verdict on a panic or an oops of the kernel, if it had one.
pub fn kernel_failure(evidence: &Evidence) -> Option<(BootVerdict, String)> {
    let line = |line: &Option<String>| line.as_deref().map(|line| escaped(line).into_owned());
    if let Some(line) = line(&evidence.panic_line) {
        return Some((BootVerdict::Panic, format!("the kernel panicked: {line}")));
    }
    if evidence.panicked == Some(true) {
        let sentence = "the kernel panicked, by its own state; its console does not show why".to_owned();
        return Some((BootVerdict::Panic, sentence));
    }
    if let Some(line) = line(&evidence.oops_line) {
        return Some((BootVerdict::Oops, format!("the kernel had an oops: {line}")));
    }
    let sentence = "the kernel had an oops, by its own state; its console does not show which".to_owned();
    (evidence.died == Some(true)).then_some((BootVerdict::Oops, sentence))
}

/// Facts on a boot that the verdict depends on.
#[derive(Debug, Clone, Copy)]
pub struct BootFacts<'a> {
    /// Condition that means that the guest is up.
    pub until: Option<&'a Condition>,
    /// Condition that ends the boot.
    pub end_condition: Option<&'a Condition>,
    /// End of the run.
    pub recorded: &'a Recorded,
    /// State of the guest at the end.
    pub evidence: &'a Evidence,
    /// Phases of the boot.
    pub boot: &'a Boot,
    /// Number of restarts before.
    pub reboots: u32,
}

/// Judges a boot.
pub fn judge(facts: BootFacts<'_>) -> (BootVerdict, String) {
    let BootFacts { until, end_condition, recorded, evidence, boot, reboots } = facts;
    let until_shown = expected(until, end_condition);
    if let Some((verdict, sentence)) = kernel_failure(evidence) {
        return (verdict, sentence);
    }
    // A run may also end because its command can't run; then the condition was not reached.
    if let Some(reached) = boot.reached_s.filter(|_| end_condition.is_some()) {
        return (BootVerdict::Up, format!("{} was seen after {reached:.3} s", shown(end_condition)));
    }
    let after = format!("{:.2} s", evidence.duration_s);
    let end = match &recorded.outcome.end {
        GuestEnd::Ran(end) => end,
        // Only an attached guest is left running.
        GuestEnd::Left(_) => &MachineEnd::Stopped,
    };
    match end {
        MachineEnd::Failed(reason) if reason.contains(TRIPLE_FAULT) => {
            (BootVerdict::TripleFault, format!("the guest had a triple fault after {after}"))
        }
        MachineEnd::Failed(reason) => {
            (BootVerdict::Failed, format!("the guest failed after {after}: {}", escaped(reason)))
        }
        MachineEnd::Reset if reboots > 0 => (
            BootVerdict::RebootLoop,
            format!("reboot loop: the guest reset itself {} times, the last time after {after}", reboots + 1),
        ),
        MachineEnd::Reset => {
            (BootVerdict::RebootLoop, format!("the guest reset itself after {after}, before {until_shown}"))
        }
        MachineEnd::Exited(code) if *code != 0 && until.is_none() => {
            (BootVerdict::Failed, format!("the guest's command ended with status {code} after {after}"))
        }
        MachineEnd::PowerOff | MachineEnd::Exited(_) if until.is_none() => {
            (BootVerdict::Up, format!("the guest ended by itself after {after}"))
        }
        MachineEnd::PowerOff | MachineEnd::Exited(_) => {
            (BootVerdict::PowerOff, format!("the guest powered off after {after}, before {until_shown}"))
        }
        MachineEnd::Stopped if recorded.interrupted => {
            (BootVerdict::Interrupted, format!("the run was ended after {after}, before {until_shown}"))
        }
        MachineEnd::Stopped => still(evidence, &until_shown, recorded.outcome.totals.seen.still_ns.is_some()),
    }
}

/// Returns the verdict on a guest that was not up in time, or had no progress for --hang-after (`hangs`).
fn still(evidence: &Evidence, until: &str, hangs: bool) -> (BootVerdict, String) {
    let silent = (evidence.duration_s - evidence.progress_s).max(0.0);
    let not = format!("{until} was not seen within {:.2} s", evidence.duration_s);
    if !hangs && silent < STILL_S.max(evidence.duration_s * STILL_PART) {
        return (
            BootVerdict::TimeOut,
            format!("{not}, though the guest is still in progress: {}", doing(evidence)),
        );
    }
    let nothing = format!("the guest hangs: {not}, and it made no progress in the last {silent:.1} s");
    if evidence.busiest() > BUSY {
        (BootVerdict::HangBusy, format!("{nothing}; {}", doing(evidence)))
    } else {
        let waits = evidence.blocked.iter().find(|task| task.state == "disk");
        let waits = waits.or_else(|| evidence.blocked.iter().find(|task| task.pid == 1));
        let who = waits.map_or_else(String::new, |task| {
            let what = task.stack.iter().find(|name| !is_scheduler(name)).map_or("", String::as_str);
            let (comm, what) = (escaped(&task.comm), escaped(what));
            let slept = (evidence.duration_s - task.since_s).max(0.0);
            format!("; {comm} (pid {}) has slept in {what} for {slept:.1} s", task.pid)
        });
        (BootVerdict::HangIdle, format!("{nothing}; all vCPUs wait{who}"))
    }
}

/// Returns true for the functions that every sleeping task is in.
fn is_scheduler(function: &str) -> bool {
    ["__schedule", "schedule", "schedule_timeout", "io_schedule", "schedule_preempt_disabled"]
        .contains(&function)
}

/// Describes what the busiest vCPU does.
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
    fn a_hang_is_distinguished_from_a_slow_guest() {
        let (verdict, sentence) = still(&evidence(35.0, 0.9), "console:up", false);
        assert_eq!(verdict, BootVerdict::TimeOut);
        assert!(
            sentence.contains("vCPU 1 is busy for 90 % of the time, with loop in spin\\x1b"),
            "{sentence}"
        );
        assert_eq!(still(&evidence(35.0, 0.9), "console:up", true).0, BootVerdict::HangBusy);
        assert_eq!(still(&evidence(29.0, 0.9), "console:up", false).0, BootVerdict::HangBusy);
        let (verdict, sentence) = still(&evidence(29.0, 0.01), "console:up", false);
        assert_eq!(verdict, BootVerdict::HangIdle);
        assert!(sentence.ends_with("cp (pid 42) has slept in wait_on_page_bit for 37.0 s"), "{sentence}");
    }

    #[test]
    fn the_kernels_own_failures_come_first() {
        let mut failed = evidence(0.0, 0.0);
        assert_eq!(kernel_failure(&failed), None);
        (failed.died, failed.oops_line) = (Some(true), Some("Oops: 0002".to_owned()));
        assert_eq!(
            kernel_failure(&failed).unwrap(),
            (BootVerdict::Oops, "the kernel had an oops: Oops: 0002".to_owned())
        );
        failed.panicked = Some(true);
        assert_eq!(kernel_failure(&failed).unwrap().0, BootVerdict::Panic);
    }
}
