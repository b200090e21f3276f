//! Warning, during a run, of output to a serial port that takes most of the guest's time: the profile is then
//! one of its console.

use std::time::Duration;

use display::units;
use profile::live::Tables;
use render::summary::SERIAL_ADVICE;

/// Interval of the checks.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Time that a check covers: longer than a burst of the kernel's messages.
const SPAN: Duration = Duration::from_secs(10);
/// Share of the guest's CPU time from which the warning is due.
const MOST: f64 = 0.5;

/// Returns the warning, if it is due by more than chance.
pub fn warning(tables: &Tables) -> Option<String> {
    let serial = tables.serial_share(SPAN).filter(|share| share.low >= MOST)?;
    Some(format!(
        "the guest spends {} of its CPU time on writing to a serial port, which takes it an exit for each byte. {SERIAL_ADVICE}",
        units::percent(serial.share)
    ))
}

#[cfg(test)]
mod tests {
    use profile::rows::{Batch, FrameKind, FrameRow, InstanceRow, Mode, SampleRow, VcpuState};

    use super::*;

    /// Returns tables of 12 s with a sample each 10 ms, `serial` of ten of them in the driver.
    fn tables(serial: u64) -> Tables {
        let frame = |id, symbol: &str| FrameRow {
            id,
            kind: FrameKind::Kernel,
            symbol: Some(symbol.to_owned()),
            ..FrameRow::default()
        };
        let samples = (0..1_200).map(|n| SampleRow {
            time_ns: n * 10_000_000,
            mode: Mode::Kernel,
            instance: Some(1),
            frame: if n % 10 < serial { 1 } else { 2 },
            vcpu_state: VcpuState::Guest,
            ..SampleRow::default()
        });
        let mut tables = Tables::default();
        tables.add(&Batch {
            meta: vec![("duration_ns".to_owned(), "12000000000".to_owned())],
            instances: vec![InstanceRow { id: 1, pid: 1, comm: "cat".to_owned(), ..InstanceRow::default() }],
            frames: vec![frame(1, "io_serial_out"), frame(2, "vfs_read")],
            samples: samples.collect(),
            ..Batch::default()
        });
        tables
    }

    #[test]
    fn most_of_the_time_is_a_warning() {
        let warned = warning(&tables(7)).expect("a warning");
        assert!(warned.contains("spends 70.0 % of its CPU time") && warned.contains("/dev/null"), "{warned}");
        assert_eq!(warning(&tables(4)), None);
        assert_eq!(warning(&Tables::default()), None);
    }
}
