//! Detection of a standstill: all vCPUs are halted for many seconds while a task is runnable, as after a
//! timer or a wake-up that the host has lost.

use crate::task_state::TaskKey;
use profile::rows::MicrostateRow;

/// Kind of the profile's events that report a standstill.
pub(super) const STANDSTILL: &str = "standstill";
/// Shortest standstill, ns: longer than any bandwidth period (`cpu.max`) keeps a group from its CPUs.
const LEAST_NS: u64 = 5_000_000_000;
/// Inverse of the part of its time that a vCPU may be in the guest and still count as halted.
const BUSY_PART: u64 = 200;
/// Tasks that are watched through a standstill, at most.
const WATCHED: usize = 16;
/// Standstills that are reported, at most.
const MOST: u32 = 16;

/// Detector of standstills.
#[derive(Debug, Default)]
pub(super) struct StandstillDetector {
    /// Start of the period in which all vCPUs are halted, ns since the run's start, and the tasks that were
    /// runnable throughout.
    halted: Option<(u64, Vec<TaskKey>)>,
    /// The present standstill was reported.
    reported: bool,
    count: u32,
}

impl StandstillDetector {
    /// Checks the vCPUs' clocks since the last call, and the tasks that were runnable at the last scan.
    /// Returns a task that was runnable throughout a standstill, once, and the length of the standstill so
    /// far, ns.
    pub(super) fn check(
        &mut self,
        vcpus: usize,
        windows: &[MicrostateRow],
        ready: impl Iterator<Item = TaskKey>,
    ) -> Option<(TaskKey, u64)> {
        let now = windows.iter().map(|window| window.time_ns).max()?;
        let halted = |window: &MicrostateRow| {
            let (all, states) = (window.states.wall(), window.states);
            (states.halted.saturating_add(states.kvm)).saturating_mul(BUSY_PART)
                >= all.saturating_mul(BUSY_PART - 1)
        };
        if vcpus == 0 || !windows.iter().all(halted) {
            (self.halted, self.reported) = (None, false);
            return None;
        }
        let ready: Vec<TaskKey> = ready.collect();
        let Some((since, watched)) = &mut self.halted else {
            self.halted = Some((now, ready.into_iter().take(WATCHED).collect()));
            return None;
        };
        watched.retain(|who| ready.contains(who));
        let (took, first) = (now.saturating_sub(*since), watched.first().copied());
        if watched.is_empty() {
            // The earlier tasks have run, or sleep: the wait of those that are runnable now begins here.
            self.halted = Some((now, ready.into_iter().take(WATCHED).collect()));
        }
        if took < LEAST_NS || self.reported || self.count == MOST {
            return None;
        }
        let who = first?;
        self.reported = true;
        self.count += 1;
        Some((who, took))
    }
}

/// Returns the text of the event.
pub(super) fn sentence(who: TaskKey, name: &str, took_ns: u64) -> String {
    let seconds = took_ns / 1_000_000_000;
    format!(
        "all vCPUs were halted for at least {seconds} s while thread {} ({name}) was runnable; the host may have \
         lost a timer or a wake-up",
        who.tid
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::rows::Microstates;

    const SECOND: u64 = 1_000_000_000;

    fn who(tid: i32) -> TaskKey {
        TaskKey { instance: 1, tid }
    }

    /// Windows of both vCPUs, a second long; `guest` is the guest time of the second one, ns.
    fn windows(second: u64, guest: u64) -> [MicrostateRow; 2] {
        let row = |vcpu, guest| MicrostateRow {
            vcpu,
            time_ns: second * SECOND,
            states: Microstates { guest, halted: SECOND - guest, ..Microstates::default() },
        };
        [row(0, 0), row(1, guest)]
    }

    #[test]
    fn a_task_that_could_run_while_all_vcpus_are_halted_is_reported_once() {
        let mut standstill = StandstillDetector::default();
        for second in 1..=5 {
            assert_eq!(
                standstill.check(2, &windows(second, SECOND / 1_000), [who(3), who(7)].into_iter()),
                None
            );
        }
        // One of them slept meanwhile.
        let found = standstill.check(2, &windows(6, 0), [who(7)].into_iter());
        assert_eq!(found, Some((who(7), 5 * SECOND)));
        assert_eq!(standstill.check(2, &windows(7, 0), [who(7)].into_iter()), None);
        assert!(
            sentence(who(7), "dd", 5 * SECOND)
                .starts_with("all vCPUs were halted for at least 5 s while thread 7 (dd) was runnable")
        );
        // The guest runs, and is halted again.
        assert_eq!(standstill.check(2, &windows(8, SECOND / 2), [].into_iter()), None);
        for second in 9..=13 {
            assert_eq!(standstill.check(2, &windows(second, 0), [who(7)].into_iter()), None);
        }
        assert!(standstill.check(2, &windows(14, 0), [who(7)].into_iter()).is_some());
    }

    #[test]
    fn a_guest_that_idles_or_works_has_no_standstill() {
        let mut standstill = StandstillDetector::default();
        for second in 1..20 {
            assert_eq!(standstill.check(2, &windows(second, 0), [].into_iter()), None, "nobody can run");
        }
        for second in 20..40 {
            // Each for less than five seconds.
            let ready = who(i32::try_from(second / 4).unwrap());
            assert_eq!(standstill.check(2, &windows(second, 0), [ready].into_iter()), None);
        }
        for second in 40..60 {
            let busy = windows(second, SECOND / 100);
            assert_eq!(standstill.check(2, &busy, [who(1)].into_iter()), None, "a vCPU works");
        }
        assert_eq!(standstill.check(2, &[], [who(1)].into_iter()), None);
    }
}
