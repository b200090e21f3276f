//! A long recording: memory and file of a vprof that attaches at 1,000 Hz, and of one that runs a guest with
//! exact mode and task-state sampling, side by side on an emulated host.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vprof_tests::{KvmHost, on_kvm_host};

use crate::document::DocumentSection;
use crate::plot::{LinePlot, PlotLine};
use crate::table::MarkdownTable;

/// Length of one "run" of the command line.
const PART: Duration = Duration::from_secs(20 * 60);
/// Interval between two measurements.
const INTERVAL: Duration = Duration::from_secs(20);
/// Time in which caches and pools fill: growth is judged after it, as a part of the whole.
const WARM_UP: f64 = 0.25;
/// Bound of each profile, as given to `--max-size`.
const MAX_SIZE: &str = "256M";
/// Files, processes, switches and calculation, without an end.
const WORK: &str = "echo ready; while :; do cat /usr/bin/* | md5sum >/dev/null; \
    for n in 1 2 3 4 5 6 7 8; do /bin/true; done; sleep 0.1; done";
/// Prints size and resident part of each mapping of the process $1 and its children, KiB, then the sizes of
/// the profile $2 and of its log, bytes.
const MEASURE: &str = r#"
for pid in $1 $(cat /proc/$1/task/*/children); do grep -hE '^(Size|Rss):' /proc/$pid/smaps; done
stat -c 'File: %s' $2 $2-wal 2>/dev/null || true"#;
/// Size from which on a mapping is the guest's memory, KiB.
const GUEST_KIB: f64 = 65_536.0;

const ABOUT: &str = "\
A profiler that runs for weeks must not grow. One vprof attaches to a guest under QEMU with KVM at 1,000 Hz, and another
runs a guest with `--exact` and task-state sampling, both on one emulated host. The guests read files, start programs,
sleep and calculate without an end. Memory is what the processes of vprof hold beyond the guest's memory; the file is
the profile with its write-ahead log, with `--max-size 256M`.";

/// Memory and file of one vprof over time.
#[derive(Debug, Default, Clone)]
struct Growth {
    /// Time since the start, min, and memory, MiB.
    memory: Vec<(f64, f64)>,
    /// Time since the start, min, and size, MiB.
    file: Vec<(f64, f64)>,
}

impl Growth {
    /// Reads the output of [`MEASURE`].
    fn add(&mut self, minutes: f64, output: &str) -> Result<()> {
        let (mut memory_kib, mut file_bytes, mut size_kib) = (0.0, 0.0, 0.0);
        for line in output.lines() {
            let mut words = line.split_whitespace();
            let (name, value) = (words.next(), words.next().and_then(|value| value.parse::<f64>().ok()));
            let value = value.with_context(|| format!("a line is {line:?}"))?;
            match name {
                Some("Size:") => size_kib = value,
                Some("Rss:") if size_kib < GUEST_KIB => memory_kib += value,
                Some("File:") => file_bytes += value,
                _ => {}
            }
        }
        let (memory, file) = (memory_kib / 1024.0, file_bytes / f64::from(1 << 20));
        ensure!(memory > 0.0 && file > 0.0, "a vprof has ended: {output:?}");
        self.memory.push((minutes, memory));
        self.file.push((minutes, file));
        Ok(())
    }
}

/// Returns the growth of a line after its warm-up per hour, by least squares, and its greatest value.
fn slope_and_peak(points: &[(f64, f64)]) -> (f64, f64) {
    let end = points.last().map_or(0.0, |point| point.0);
    let late: Vec<_> = points.iter().filter(|point| point.0 >= end * WARM_UP).collect();
    let count = late.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| late.iter().map(|point| value(point)).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let covariance: f64 = late.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let variance: f64 = late.iter().map(|point| (point.0 - x).powi(2)).sum();
    (covariance / variance * 60.0, points.iter().map(|point| point.1).fold(0.0, f64::max))
}

fn record(host: &mut KvmHost, length: Duration) -> Result<[Growth; 2]> {
    host.guest("web", "-m 256 -smp 1", WORK);
    let options = format!("--max-size {MAX_SIZE} -F 1000");
    let attached = host.attach(&format!("--name web {options}"));
    host.wait_for_profile(&attached);
    let run = host
        .vprof(&format!("run /dev/vdb --read-only --host kvm -m 256M --exact {options} -- sh -c '{WORK}'"));
    host.wait_for_output(&run, "ready");
    let both = [&attached, &run].map(|profiling| (host.pid(profiling), profiling.profile()));
    let mut growth = [Growth::default(), Growth::default()];
    let begin = Instant::now();
    while begin.elapsed() < length {
        for ((pid, profile), growth) in both.iter().zip(&mut growth) {
            let output = host.must(&format!("set -- {pid} {profile}{MEASURE}"));
            if let Err(error) = growth.add(begin.elapsed().as_secs_f64() / 60.0, &output) {
                let directory = profile.trim_end_matches("/out.vprof");
                let last = host.must(&format!("tail -n 20 {directory}/stderr {directory}/stdout"));
                return Err(error.context(last));
            }
        }
        thread::sleep(INTERVAL);
    }
    for profiling in [&attached, &run] {
        host.signal(profiling, "INT");
    }
    for profiling in [attached, run] {
        let ended = host.finish(profiling);
        ensure!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.number("SELECT count(*) FROM sample") > 1_000.0, "{}", ended.stderr);
    }
    Ok(growth)
}

/// Runs the soak for `runs` times 20 minutes, without a pause.
///
/// # Errors
/// A vprof ends early, or records nothing.
pub fn run(runs: usize) -> Result<DocumentSection> {
    let length = PART * u32::try_from(runs).context("too many runs")?;
    let result = std::sync::Mutex::new(None);
    on_kvm_host(|host| {
        let growth = record(host, length);
        *result.lock().expect("one thread") = Some(growth);
    });
    let growth = result.into_inner().expect("one thread").context("the host did not come up")??;
    Ok(section(&growth, length))
}

fn section(growth: &[Growth; 2], length: Duration) -> DocumentSection {
    let names = ["attach, 1,000 Hz", "run, exact, 1,000 Hz"];
    let mut table = MarkdownTable::new(&[
        "vprof",
        "memory, peak",
        "memory, growth per hour",
        "file, peak",
        "file, growth per hour",
    ]);
    for (name, growth) in names.iter().zip(growth) {
        let ((memory, memory_peak), (file, file_peak)) =
            (slope_and_peak(&growth.memory), slope_and_peak(&growth.file));
        table.row([
            (*name).to_owned(),
            format!("{memory_peak:.1} MiB"),
            format!("{memory:+.1} MiB"),
            format!("{file_peak:.0} MiB"),
            format!("{file:+.0} MiB"),
        ]);
    }
    let plot = |title, y, line: fn(&Growth) -> &Vec<(f64, f64)>| {
        let lines = names.iter().zip(growth);
        let lines =
            lines.map(|(name, growth)| PlotLine { name: (*name).to_owned(), points: line(growth).clone() });
        LinePlot { title, x: "time, min", y, lines: lines.collect() }.svg()
    };
    let minutes = length.as_secs() / 60;
    let text = format!(
        "## Memory and file of a long recording\n\n{ABOUT}\n\nOver {minutes} minutes, growth after the first \
         quarter:\n\n{}\n\n![Memory](experiments/soak-memory.svg)\n\n![Profiles](experiments/soak-file.svg)",
        table.markdown()
    );
    let plots = vec![
        ("soak-memory", plot("vprof's memory beyond the guest's", "MiB", |growth| &growth.memory)),
        ("soak-file", plot("Size of the profiles", "MiB", |growth| &growth.file)),
    ];
    DocumentSection { text, plots }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_measured_after_the_warm_up() {
        let flat = |minute: f64| (minute, if minute < 10.0 { minute * 4.0 } else { 40.0 });
        let minutes = (0..=60).map(f64::from);
        let (slope, peak) = slope_and_peak(&minutes.clone().map(flat).collect::<Vec<_>>());
        assert!(slope.abs() < 1e-9 && (peak - 40.0).abs() < 1e-9, "{slope} {peak}");
        let (slope, _) = slope_and_peak(&minutes.map(|minute| (minute, minute / 2.0)).collect::<Vec<_>>());
        assert!((slope - 30.0).abs() < 1e-9, "{slope}");
    }

    #[test]
    fn a_vprof_that_has_ended_is_an_error() {
        let mut growth = Growth::default();
        let own = "Size: 40960 kB\nRss: 20480 kB\nSize: 262144 kB\nRss: 200000 kB\n";
        let file = "File: 1048576\nFile: 1048576\n";
        growth.add(1.0, &format!("{own}{file}")).unwrap();
        assert_eq!((growth.memory[0].1, growth.file[0].1), (20.0, 2.0));
        assert!(growth.add(2.0, own).is_err() && growth.add(2.0, file).is_err());
    }
}
