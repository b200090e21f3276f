//! Events of a run of the tests, which `cargo xtask test` counts and prints at its end.
//!
//! The file that [`EVENTS`] names gets a line for each: a kind, a test's name and a value, with tabs between
//! them.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

/// Environment variable with the path of the file.
pub const EVENTS: &str = "VPROF_TEST_EVENTS";

/// Failure of QEMU's emulation of SVM (docs/limits.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmulationFailure {
    /// The guest was reset by a fault that its own code did not cause.
    TripleFault,
    /// A vCPU stays in the guest, without ticks.
    Frozen,
    /// The emulator ended, or was reset itself.
    Other,
}

impl fmt::Display for EmulationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TripleFault => "triple fault",
            Self::Frozen => "frozen",
            Self::Other => "other",
        })
    }
}

/// Reports that a test repeats something because the emulation failed.
pub fn repeated(failure: EmulationFailure, state: &str) {
    note("repeated", &failure.to_string());
    eprintln!("REPEATED, the emulation failed ({failure}): {state}");
}

/// Reports that the emulation failed and the running test fails for it: the test may be run again.
pub fn failed_by_emulation(failure: EmulationFailure) {
    note("failed", &failure.to_string());
}

/// Reports the time of a test's guest.
pub fn guest_took(time: Duration) {
    note("guest", &format!("{:.1}", time.as_secs_f64()));
}

fn note(kind: &str, value: &str) {
    let Some(path) = std::env::var_os(EVENTS) else { return };
    let thread = std::thread::current();
    let line = format!("{kind}\t{}\t{value}\n", thread.name().unwrap_or("a thread"));
    let written =
        OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        eprintln!("cannot write an event of the tests: {error}");
    }
}
