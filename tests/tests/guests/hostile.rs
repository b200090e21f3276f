//! Guests whose programs attack the profile: its size, vprof's memory and the samples of others are bounded.
//!
//! Each attack lasts a minute, or the seconds of the variable `VPROF_HOSTILE_SECONDS`.

use std::thread::JoinHandle;
use std::time::Duration;

use vprof_tests::{Guest, Run};

use crate::network::DRIVERS;

/// Limit of the profile (`--max-size`), bytes.
const LIMIT: u64 = 16 << 20;
/// Bytes that the console of a run takes in its profile, at most (docs/security.md): what is kept in full,
/// and the last of what follows.
const CONSOLE: u64 = 65 << 20;
/// Rows of a console that has one byte in each, at most: `CONSOLE`, with 64 bytes counted for a row.
const ROWS: f64 = (CONSOLE / 65) as f64;
/// Bytes of a sample beyond the limit, with its share of indices and of the rows that it refers to, at most.
const SAMPLE: u64 = 400;
/// Memory of vprof itself, bytes: it holds live tables, and no guest.
const MEMORY: u64 = 512 << 20;

/// Measures the largest resident memory of a process until its end, bytes (proc_pid_status(5), VmHWM).
fn peak_of(pid: u32) -> JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut peak = 0;
        while let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) {
            // A process that has ended has none.
            let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) else { break };
            let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
            peak = peak.max(kib << 10);
            std::thread::sleep(Duration::from_millis(20));
        }
        peak
    })
}

/// Runs an attack next to a program that works, and asserts all bounds.
fn attacked_by(what: &str) -> Run {
    attacked_through(what, "", "", &[])
}

/// Runs an attack whose output goes through a device, after commands that prepare it, and asserts all bounds.
fn attacked_through(what: &str, before: &str, output: &str, options: &[&str]) -> Run {
    let seconds = std::env::var("VPROF_HOSTILE_SECONDS").unwrap_or_else(|_| "60".to_owned());
    let script = format!(
        "{before}spin --seconds {seconds} & hostile --what {what} --seconds {seconds} {output}; wait"
    );
    let limit = format!("{}M", LIMIT >> 20);
    let guest =
        Guest::demo().options(["--max-size", &limit, "--memory", "256M"]).options(options).script(&script);
    let (run, memory) = guest.run_watched(|running| peak_of(running.pid()));
    let run = run.succeeded();
    let peak = memory.join().expect("it measures");
    assert!(peak > 0 && peak < MEMORY, "{what}: {} MiB of memory", peak >> 20);
    let bytes = std::fs::metadata(run.profile()).expect("a profile").len();
    let samples = run.query("SELECT count(*) FROM sample")[0][0].as_u64().expect("a number");
    assert!(samples > 100, "{samples} samples");
    let most = LIMIT + CONSOLE + SAMPLE * samples;
    assert!(bytes < most, "{what}: {} of {} MiB", bytes >> 20, most >> 20);
    assert_eq!(run.number("SELECT sum(lost) FROM vcpu"), 0.0, "{what}: lost samples");
    assert_eq!(run.query("SELECT value FROM meta WHERE key = 'complete'")[0][0], "1");
    // The program that works is seen next to the attack, and reports can be made.
    assert!(run.report().process("spin").share > 0.0);
    run
}

#[test]
#[ignore = "an attack that lasts a minute: --all"]
fn empty_lines_of_the_console_do_not_fill_the_disk() {
    let options =
        ["--console", "none", "--console-device", "virtio", "--append", "console=ttyS0 console=hvc0"];
    let run = attacked_through("console", DRIVERS, ">/dev/hvc0", &options);
    let rows = run.number("SELECT count(*) FROM console");
    assert!(rows < ROWS, "{rows} rows");
    let bytes = run.number(
        "SELECT sum(length(bytes)) + coalesce((SELECT value FROM meta WHERE key = 'console_dropped_bytes'), 0) \
         FROM console",
    );
    assert!(bytes > 1e6, "only {bytes} bytes");
}

#[test]
#[ignore = "an attack that lasts a minute: --all"]
fn false_stacks_do_not_fill_the_disk() {
    let run = attacked_by("stacks");
    // Each is walked to the longest stack that is allowed, at most.
    let deepest = run.number("SELECT coalesce(max(depth), 0) FROM v_stacks");
    assert!(deepest <= 128.0, "{deepest} frames");
}

#[test]
#[ignore = "an attack that lasts a minute: --all"]
fn tasks_with_false_names_are_text() {
    let run = attacked_by("tasks");
    let control = run
        .number("SELECT count(*) FROM instance WHERE comm GLOB '*[' || char(1) || '-' || char(31) || ']*'");
    assert_eq!(control, 0.0, "control characters in names");
    let csv = run.csv("SELECT comm FROM instance");
    assert!(csv.lines().count() > 1, "{csv}");
    assert!(csv.lines().all(|line| !line.starts_with('=')), "{csv}");
}

#[test]
#[ignore = "an attack that lasts a minute: --all"]
fn processes_that_end_at_once_do_not_fill_the_disk() {
    attacked_by("processes");
}

#[test]
#[ignore = "an attack that lasts a minute: --all"]
fn mappings_that_come_and_go_do_not_fill_the_disk() {
    attacked_by("mappings");
}
