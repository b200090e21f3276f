//! CPU times that the kernel reports to programs: their own, and those of all CPUs.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::ProgramError;

/// Returns user and system time of this process by getrusage.
///
/// # Errors
/// The kernel refuses, which no Linux does.
pub fn process_times() -> Result<(Duration, Duration), ProgramError> {
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(ProgramError::system("ask for the resource usage"))?;
    Ok((duration(usage.user_time()), duration(usage.system_time())))
}

fn duration(time: TimeVal) -> Duration {
    let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
    Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0)) + Duration::from_micros(micros)
}

/// Returns the time that all CPUs together were not idle, by `/proc/stat`, whose unit is 10 ms (`USER_HZ`).
pub fn busy() -> Option<Duration> {
    busy_of(&fs::read_to_string("/proc/stat").ok()?)
}

fn busy_of(stat: &str) -> Option<Duration> {
    let numbers: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user and nice.
    let idle = numbers.get(3)? + numbers.get(4)?;
    let all: u64 = numbers.iter().take(8).sum();
    Some(Duration::from_millis((all - idle) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_not_busy() {
        let stat = "cpu  100 2 30 4000 500 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_of(stat), Some(Duration::from_millis((100 + 2 + 30 + 6 + 7 + 8) * 10)));
        assert_eq!(busy_of("cpu 1 2 3"), None);
        assert_eq!(busy_of(""), None);
    }

    #[test]
    fn work_is_reported() {
        let (before, _) = process_times().unwrap();
        crate::burn_until_deadline(crate::since_boot() + Duration::from_millis(100));
        assert!(process_times().unwrap().0 > before);
    }
}
