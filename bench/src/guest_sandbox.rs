//! Cost of the sandbox around a guest's process: time until it is complete, and time of a guest that is
//! sampled inside it.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, ensure};
use sandbox::{REPORT_BYTES, SandboxConfig, SyscallPolicy};
use vmm::{kvm_check, monotonic_ns};

use crate::child;
use crate::kick::{self, CountedTurn};
use crate::table::{TableRow, median};

/// Number of rounds; the median of them counts.
const ROUNDS: usize = 15;
/// Rate of the samples, Hz.
const RATE_HZ: f64 = 1000.0;

/// Runs the counting guest in this process, inside the sandbox if `filters` is `on`. Prints the time at which
/// the guest could be started, ns of CLOCK_MONOTONIC, and the parts of a [`CountedTurn`].
///
/// # Errors
/// KVM cannot be used, or the sandbox cannot be entered.
pub fn measure(filters: &Path) -> anyhow::Result<[u64; 4]> {
    let kvm = kvm_check::open_descriptor()?;
    let directory = tempfile::tempdir()?;
    let (report, _written) = report_pipe()?;
    if filters == Path::new("on") {
        let policy = SyscallPolicy::Refuse;
        let standing =
            sandbox::enter(SandboxConfig { policy, directory: directory.path().to_owned(), report })?;
        ensure!(standing.syscalls, "the filters apply");
    }
    let ready_ns = monotonic_ns();
    let CountedTurn { ns, loops, gap_ns } = kick::sampled_alone(RATE_HZ, kvm);
    Ok([ready_ns, ns, loops, gap_ns])
}

/// Returns the two ends of a pipe for a report, first the one that is written to.
///
/// # Errors
/// No descriptors are left.
pub fn report_pipe() -> anyhow::Result<(OwnedFd, File)> {
    let (read, write) = std::io::pipe()?;
    ensure!(REPORT_BYTES < 4096, "a report fits into a pipe");
    Ok((write.into(), OwnedFd::from(read).into()))
}

/// Measures with the filters `on` and `off`; each comes first in every other round. Returns the values of
/// each, by rounds.
///
/// # Errors
/// A measurement fails.
pub fn by_turns<T>(rounds: usize, one: impl Fn(&str) -> anyhow::Result<T>) -> anyhow::Result<[Vec<T>; 2]> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            with.push(one("on")?);
            without.push(one("off")?);
        } else {
            without.push(one("off")?);
            with.push(one("on")?);
        }
    }
    Ok([with, without])
}

/// Measures the sandbox's cost: processes with and without it take turns.
///
/// # Errors
/// Such a process fails.
pub fn rows() -> anyhow::Result<Vec<TableRow>> {
    let one = |filters: &str| -> anyhow::Result<[f64; 3]> {
        let begin_ns = monotonic_ns();
        let path = OsString::from(filters);
        let [ready_ns, ns, loops, gap_ns, _peak] = child::run("sandbox", Path::new(&path))
            .with_context(|| format!("a guest with filters {filters}"))?;
        Ok([ready_ns.saturating_sub(begin_ns) as f64 / 1e6, loops as f64 / ns as f64, gap_ns as f64])
    };
    let [with, without] = by_turns(ROUNDS, one)?;
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(on, off)| off[1] / on[1]).collect();
    let middle =
        |turns: &[[f64; 3]], index: usize| median(&turns.iter().map(|turn| turn[index]).collect::<Vec<_>>());
    let (start, start_without) = (middle(&with, 0), middle(&without, 0));
    Ok(vec![
        TableRow::ratio(
            "guest's time at 1000 Hz: inside the sandbox / without",
            median(&ratios),
            "at most 1.02",
        )
        .detail(format!(
            "exit to re-entry {:.2} us / {:.2} us",
            middle(&with, 2) / 1e3,
            middle(&without, 2) / 1e3
        )),
        TableRow::text(
            "start of the guest's process inside the sandbox",
            format!("{start:.1} ms"),
            "at most 30 ms",
        )
        .detail(format!("{start_without:.1} ms without the sandbox")),
    ])
}
