//! Long recordings: memory and file of a vprof that attaches at 1,000 Hz, on this machine, and of one that
//! runs a guest with exact mode and task-state sampling, on an emulated host.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use profile::store::{Profile, Value};
use vmm::{Machine, Unobserved, VmConfig};
use vprof_tests::{KvmHost, once_on_kvm_host, vprof};

use crate::document::DocumentSection;
use crate::table::MarkdownTable;
use testkit::{LinePlot, PlotLine, PlotScale};

/// Length of one "run" of the command line.
const PART: Duration = Duration::from_secs(20 * 60);
/// Length of a spell: one recording on one emulated host, whose emulation fails after some time.
const SPELL: Duration = Duration::from_secs(10 * 60);
/// Least length of a spell that counts although the emulation failed before its end, min.
const SHORTEST_SPELL: f64 = 3.0;
/// Number of shorter ones with which the recording ends.
const MANY_SHORT: u32 = 20;
/// Interval between two measurements.
const INTERVAL: Duration = Duration::from_secs(20);
/// Time in which caches and pools fill: growth is judged after it, as a part of the whole.
const WARM_UP: f64 = 0.25;
/// Bound of each profile, as given to `--max-size`.
const MAX_SIZE: &str = "256M";
/// Argument of this program with which it runs the guest of [`attached`].
pub const GUEST: &str = "soak-guest";
/// Program at privilege level 3 that adds to 32 MiB of memory, 64 bytes apart: `0: mov $0x400000, %ebx;
/// 5: add %rax, (%rbx); add $64, %ebx; cmp $0x2400000, %ebx; jb 5b; jmp 0b`.
const CODE: &[u8] = &[
    0xbb, 0x00, 0x00, 0x40, 0x00, 0x48, 0x01, 0x03, 0x83, 0xc3, 0x40, 0x81, 0xfb, 0x00, 0x00, 0x40, 0x02,
    0x72, 0xf2, 0xeb, 0xeb,
];
/// Memory of that guest, bytes.
const MEMORY: u64 = 64 << 20;
/// Files, processes, switches and calculation, without an end.
const WORK: &str = "echo ready; while :; do cat /usr/bin/* | md5sum >/dev/null; \
    for n in 1 2 3 4 5 6 7 8; do /bin/true; done; sleep 0.5; done";
/// Prints size and resident part of each mapping of the process $1 and its children, KiB, then the sizes of
/// the profile $2 and of its log, bytes.
const MEASURE: &str = r#"
for pid in $1 $(cat /proc/$1/task/*/children); do grep -hE '^(Size|Rss):' /proc/$pid/smaps; done
stat -c 'File: %s' $2 $2-wal 2>/dev/null || true"#;
/// Size from which on a mapping is the guest's memory, KiB.
const GUEST_KIB: f64 = 65_536.0;

const ABOUT_ATTACHED: &str = "\
`vprof attach --max-size 256M` samples a guest on this machine's KVM at 1,000 Hz: a few bytes of code that write to
memory without an end. Memory is that of all processes of vprof; the file is the profile with its write-ahead log.";
const ABOUT_EXACT: &str = "\
`vprof run --exact --max-size 256M` with task-state sampling runs a guest on an emulated host, at 100 Hz. The guest
reads files, starts programs, sleeps and calculates without an end. Memory is that of vprof's processes beyond the
guest's. As the emulation fails after some time, the recording consists of spells of at most 10 minutes, each on a new
host: most of a spell is the time in which tables fill. Their bounds: 65,536 processes of the sampled guest (the older
half is then forgotten), 131,072 tasks of exact mode and 262,144 kinds of samples.";

/// Memory and file of one recording over time.
#[derive(Debug, Default, Clone)]
struct Growth {
    /// Time since the start, min, and memory, MiB.
    memory: Vec<(f64, f64)>,
    /// Time since the start, min, and size, MiB.
    file: Vec<(f64, f64)>,
}

impl Growth {
    /// Reads the output of [`MEASURE`].
    fn add_output(&mut self, minutes: f64, output: &str) -> Result<()> {
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
        self.add(minutes, memory_kib, file_bytes).with_context(|| output.to_owned())
    }

    fn add(&mut self, minutes: f64, memory_kib: f64, file_bytes: f64) -> Result<()> {
        ensure!(memory_kib > 0.0 && file_bytes > 0.0, "a vprof has ended");
        self.memory.push((minutes, memory_kib / 1024.0));
        self.file.push((minutes, file_bytes / f64::from(1 << 20)));
        Ok(())
    }
}

/// Returns the growth per hour that all lines have in common after their warm-ups, by least squares with a
/// level for each line, and their greatest value. Times are in minutes.
fn slope_and_peak<'a>(lines: impl Iterator<Item = &'a Vec<(f64, f64)>>) -> (f64, f64) {
    let (mut covariance, mut variance, mut peak) = (0.0, 0.0, 0.0_f64);
    for points in lines {
        let late: Vec<_> = points.iter().filter(|point| point.0 >= end(points) * WARM_UP).collect();
        let count = late.len() as f64;
        let mean = |value: fn(&(f64, f64)) -> f64| late.iter().map(|point| value(point)).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        covariance += late.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>();
        variance += late.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>();
        peak = points.iter().map(|point| point.1).fold(peak, f64::max);
    }
    (covariance / variance * 60.0, peak)
}

/// Runs the guest that is attached to, until this process is killed.
///
/// # Errors
/// There is no KVM, or the machine does not run.
pub fn guest() -> Result<()> {
    let config = VmConfig { memory_bytes: MEMORY, ..VmConfig::flat(CODE) };
    let machine = Machine::start(config, |_| Unobserved)?;
    println!("ready");
    machine.wait(None)?;
    Ok(())
}

/// Child process; killed at the end.
struct OwnedChild(Child);

impl OwnedChild {
    fn output(&mut self) -> Result<ChildStdout> {
        self.0.stdout.take().context("the output was taken")
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Returns the resident memory of a process and of all that it has started, KiB.
fn resident_kib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let own =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    // A process that is about to end has none.
    let mut kib: f64 = own.unwrap_or(0.0);
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            kib += resident_kib(child.parse()?).unwrap_or(0.0);
        }
    }
    Ok(kib)
}

/// Returns the size of a profile with its log, bytes.
fn file_bytes(profile: &Path) -> Result<f64> {
    let size = |path: &Path| fs::metadata(path).map(|metadata| metadata.size());
    let log = profile.with_extension("vprof-wal");
    Ok((size(profile)? + size(&log).unwrap_or(0)) as f64)
}

/// Attaches to a guest on this machine for `runs` times 20 minutes.
///
/// # Errors
/// There is no KVM; vprof ends early, or records nothing.
pub fn attached(runs: usize) -> Result<DocumentSection> {
    let length = PART * u32::try_from(runs).context("too many runs")?;
    let directory = tempfile::tempdir()?;
    let profile = directory.path().join("soak.vprof");
    let mut guest = Command::new(std::env::current_exe()?);
    let mut guest = OwnedChild(guest.arg(GUEST).stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    BufReader::new(guest.output()?).read_line(&mut line)?;
    ensure!(line == "ready\n", "the guest does not start");
    let pid = guest.0.id().to_string();
    let mut attach = Command::new(vprof());
    attach.args(["attach", &pid, "-q", "-F", "1000", "--max-size", MAX_SIZE, "--control", "none", "-o"]);
    let mut attached = OwnedChild(attach.arg(&profile).stdout(Stdio::null()).spawn()?);
    let begin = Instant::now();
    while !profile.exists() {
        if let Some(status) = attached.0.try_wait()? {
            bail!("vprof attach ended with {status}");
        }
        ensure!(begin.elapsed() < INTERVAL, "vprof attach records nothing");
        thread::sleep(Duration::from_millis(10));
    }
    let (mut growth, begin) = (Growth::default(), Instant::now());
    while begin.elapsed() < length {
        thread::sleep(INTERVAL.min(length));
        if let Some(status) = attached.0.try_wait()? {
            bail!("vprof attach ended with {status}");
        }
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        growth.add(minutes, resident_kib(attached.0.id())?, file_bytes(&profile)?)?;
    }
    let stop = Command::new("kill").args(["-INT", &attached.0.id().to_string()]).status()?;
    ensure!(stop.success() && attached.0.wait()?.success(), "vprof attach does not end as it should");
    let samples = samples(&profile)?;
    ensure!(samples > length.as_secs() * 100, "{samples} samples in {} s", length.as_secs());
    Ok(section(
        "Memory and file of a vprof that attaches",
        ABOUT_ATTACHED,
        ["soak-memory", "soak-file"],
        &[growth],
    ))
}

/// Records one spell into `growth`, which has what was measured if the host fails.
fn spell(host: &mut KvmHost, growth: &RefCell<Growth>) -> Result<()> {
    let run = host.vprof(&format!(
        "run /dev/vdb --read-only --host kvm -m 256M --exact --max-size {MAX_SIZE} -F 100 -- sh -c '{WORK}'"
    ));
    host.wait_for_output(&run, "ready");
    let (pid, profile) = (host.pid(&run), run.profile());
    let begin = Instant::now();
    while begin.elapsed() < SPELL {
        let output = host.must(&format!("set -- {pid} {profile}{MEASURE}"));
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        if let Err(error) = growth.borrow_mut().add_output(minutes, &output) {
            let directory = profile.trim_end_matches("/out.vprof");
            let last = host.must(&format!("tail -n 20 {directory}/stderr {directory}/stdout"));
            // Another way in which the emulation fails.
            let failed_by_emulation = last.contains("the guest caused a triple fault");
            return if failed_by_emulation { Ok(()) } else { Err(error.context(last)) };
        }
        thread::sleep(INTERVAL);
    }
    host.signal(&run, "INT");
    let ended = host.finish(run);
    ensure!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    ensure!(ended.number("SELECT count(*) FROM sample") > 1_000.0, "{}", ended.stderr);
    Ok(())
}

/// Runs a guest in exact mode for `runs` times 20 minutes, in spells.
///
/// # Errors
/// A vprof ends early, or records nothing.
pub fn exact(runs: usize) -> Result<DocumentSection> {
    let wanted = runs as f64 * PART.as_secs_f64() / 60.0;
    let (mut recordings, mut short) = (Vec::<Growth>::new(), 0);
    let minutes = |recordings: &[Growth]| recordings.iter().map(|growth| end(&growth.memory)).sum::<f64>();
    while minutes(&recordings) < wanted {
        let (growth, result) = (RefCell::new(Growth::default()), RefCell::new(Ok(())));
        let ended = once_on_kvm_host(|host| {
            let recorded = spell(host, &growth);
            *result.borrow_mut() = recorded;
        });
        result.into_inner()?;
        let growth = growth.into_inner();
        if end(&growth.memory) >= SHORTEST_SPELL {
            recordings.push(growth);
        } else {
            short += 1;
            ensure!(short < MANY_SHORT, "the emulated host fails early, {short} times");
        }
        let how = if ended.is_ok() { "" } else { ", the emulation failed" };
        eprintln!("soak-exact: {:.0} of {wanted:.0} minutes{how}", minutes(&recordings));
    }
    let plots = ["soak-exact-memory", "soak-exact-file"];
    Ok(section("Memory and file of a long run in exact mode", ABOUT_EXACT, plots, &recordings))
}

/// Makes the section of recordings that followed each other, with plots of these names: memory, file.
fn section(title: &str, about: &str, plots: [&'static str; 2], recordings: &[Growth]) -> DocumentSection {
    let mut table = MarkdownTable::new(&[
        "memory, peak",
        "memory, growth per hour",
        "file, peak",
        "file, growth per hour",
    ]);
    let memory = slope_and_peak(recordings.iter().map(|growth| &growth.memory));
    let file = slope_and_peak(recordings.iter().map(|growth| &growth.file));
    table.row([
        format!("{:.1} MiB", memory.1),
        format!("{:+.1} MiB", memory.0),
        format!("{:.0} MiB", file.1),
        format!("{:+.0} MiB", file.0),
    ]);
    let minutes: f64 = recordings.iter().map(|growth| end(&growth.memory)).sum();
    let count = match recordings.len() {
        1 => "one recording".to_owned(),
        many => format!("{many} recordings"),
    };
    let text = format!(
        "## {title}\n\n{about}\n\n{minutes:.0} minutes in {count}; growth after the first quarter of each:\n\n{}\n\
         ![Memory](experiments/{}.svg)\n\n![Profile](experiments/{}.svg)",
        table.markdown(),
        plots[0],
        plots[1]
    );
    let plot = |title, line: fn(&Growth) -> &Vec<(f64, f64)>| {
        let lines = vec![PlotLine { name: "vprof".to_owned(), points: in_a_row(recordings, line) }];
        LinePlot { title, x: "time, min", y: "MiB", scale: PlotScale::Linear, lines }.svg()
    };
    let svgs =
        [plot("vprof's memory", |growth| &growth.memory), plot("Size of the profile", |growth| &growth.file)];
    DocumentSection { text, plots: plots.into_iter().zip(svgs).collect() }
}

fn end(points: &[(f64, f64)]) -> f64 {
    points.last().map_or(0.0, |point| point.0)
}

/// Returns a line of all recordings, each after the end of the one before.
fn in_a_row(recordings: &[Growth], line: fn(&Growth) -> &Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for growth in recordings {
        let begin = end(&points);
        points.extend(line(growth).iter().map(|(minutes, value)| (begin + minutes, *value)));
    }
    points
}

/// Returns the number of samples in a profile.
fn samples(profile: &Path) -> Result<u64> {
    let profile = Profile::open(profile)?;
    let table = profile.query("SELECT count(*) FROM sample")?;
    match table.rows.first().and_then(|row| row.first()) {
        Some(Value::Integer(count)) => Ok(u64::try_from(*count)?),
        other => bail!("the number of samples is {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn growth_is_measured_after_the_warm_up() {
        let flat = |minute: f64| (minute, if minute < 10.0 { minute * 4.0 } else { 40.0 });
        let minutes = (0..=60).map(f64::from);
        let (slope, peak) = slope_and_peak([minutes.clone().map(flat).collect()].iter());
        assert!(slope.abs() < 1e-9 && (peak - 40.0).abs() < 1e-9, "{slope} {peak}");
        let (slope, _) = slope_and_peak([minutes.map(|minute| (minute, minute / 2.0)).collect()].iter());
        assert!((slope - 30.0).abs() < 1e-9, "{slope}");
    }

    #[test]
    fn recordings_follow_each_other() {
        let growth = |slope: f64| {
            let memory = (0..=10).map(|minute| (f64::from(minute), 7.0 + f64::from(minute) * slope));
            Growth { memory: memory.collect(), file: Vec::new() }
        };
        let both = [growth(1.0), growth(3.0)];
        let (mean, peak) = slope_and_peak(both.iter().map(|growth| &growth.memory));
        assert!((mean - 120.0).abs() < 1e-9 && (peak - 37.0).abs() < 1e-9, "{mean} {peak}");
        let row = in_a_row(&both, |growth| &growth.memory);
        assert_eq!((row.len(), row[10], row[11]), (22, (10.0, 17.0), (10.0, 7.0)));
    }

    #[test]
    fn a_vprof_that_has_ended_is_an_error() {
        let mut growth = Growth::default();
        let own = "Size: 40960 kB\nRss: 20480 kB\nSize: 262144 kB\nRss: 200000 kB\n";
        let file = "File: 1048576\nFile: 1048576\n";
        growth.add_output(1.0, &format!("{own}{file}")).unwrap();
        assert_eq!((growth.memory[0].1, growth.file[0].1), (20.0, 2.0));
        assert!(growth.add_output(2.0, own).is_err() && growth.add_output(2.0, file).is_err());
    }

    #[test]
    fn memory_is_that_of_a_process_and_of_what_it_has_started() {
        let own = resident_kib(std::process::id()).unwrap();
        // Before its line the child may still be a copy of this process, with the same memory.
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = OwnedChild(shell.spawn().unwrap());
        child.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let both = resident_kib(std::process::id()).unwrap();
        let of_child = resident_kib(child.0.id()).unwrap();
        assert!(own > 1_000.0 && of_child > 100.0 && both > own, "{own} {of_child} {both}");
    }
}
