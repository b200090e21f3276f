use std::collections::BTreeMap;

use profile::report::{
    Lateness, ModeTimes, Overhead, Program, StackWalks, TickCounts, UserCode, UserFile, Vcpu, WalkFailure,
};

use super::*;
use crate::TextStyle;
use crate::paragraph::WIDTH;

/// Makes an estimate from 1,000 samples in a second.
fn estimate(samples: u64, half: f64) -> Estimate {
    let share = samples as f64 / 1000.0;
    let (share_low, share_high) = ((share - half).max(0.0), share + half);
    let (time_s, time_low_s, time_high_s) = (share, share_low, share_high);
    Estimate { samples, share, share_low, share_high, time_s, time_low_s, time_high_s }
}

fn program(comm: &str, pid: i32, instances: u64, kind: ProcessKind, samples: u64) -> Program {
    let share = samples as f64 / 1000.0;
    Program {
        comm: comm.to_owned(),
        pid: (instances == 1).then_some(pid),
        instances,
        kind,
        estimate: estimate(samples, 0.02),
        user_share: share * 0.75,
        kernel_share: share * 0.25,
    }
}

fn function(symbol: &str, module: Option<&str>, mode: &str, samples: u64) -> Function {
    Function {
        symbol: symbol.to_owned(),
        module: module.map(str::to_owned),
        mode: mode.to_owned(),
        estimate: estimate(samples, 0.01),
    }
}

fn ends(walks: u64, reason: &str, broken: u64) -> WalkEnds {
    let part = |n: u64| n as f64 / walks as f64;
    WalkEnds {
        walks,
        complete: walks - broken,
        complete_share: part(walks - broken),
        doubtful: 0,
        broken: vec![WalkFailure { reason: reason.to_owned(), walks: broken, share: part(broken) }],
    }
}

fn profile() -> &'static Path {
    Path::new("my profile.vprof")
}

const PAGE: PageLayout = PageLayout { width: WIDTH, style: TextStyle::Plain };

/// A report with everything that can look odd: hostile names, long names, many rows, reasons.
#[test]
fn samples_without_a_stack_are_next_to_the_lost_ones() {
    let (mut report, page) = (report(), PageLayout { width: 80, style: TextStyle::Plain });
    let is_shown =
        |report: &Report| render(report, Path::new("x.vprof"), 10, page).contains("without a stack");
    report.meta.insert("samples_without_stack".to_owned(), "0".to_owned());
    assert!(!is_shown(&report));
    report.meta.insert("samples_without_stack".to_owned(), "821".to_owned());
    assert!(render(&report, Path::new("x.vprof"), 10, page).contains(" lost, 821 without a stack"));
}

fn report() -> Report {
    let vcpu = |id: u16, idle| Vcpu {
        id,
        vm: None,
        number: id,
        samples: 10_000,
        lost: u64::from(id),
        user: 0.5,
        kernel: 0.1,
        hardirq: 0.0004,
        softirq: 0.0096,
        idle,
        vmm_samples: 7,
        waiting_samples: 300 * u64::from(id),
        times: ModeTimes::default(),
        halted_s: 0.0,
        waiting_s: 0.0,
        kvm_s: 0.0,
        vmm_s: 0.0,
        sampler_s: 0.0,
        paused_s: 0.0,
        guest_s: 9.5,
        wall_s: 10.0,
        exits: 20_000,
    };
    Report {
        version: "0.1.0".to_owned(),
        host: "portable".to_owned(),
        kernel: Some("6.1.0-56-cloud-amd64".to_owned()),
        complete: true,
        started_unix_s: 1.7e9,
        duration_s: 20.034,
        unsampled_s: 0.0,
        command: None,
        rate_hz: 1000.0,
        measured_rate_hz: 998.2,
        clock: "uniform".to_owned(),
        intervals_valid: true,
        seed: 42,
        samples: 20_000,
        ticks: TickCounts { guest: 1_100, halted: 18_877, vmm: 20, waiting: 3 },
        busy_samples: 1000,
        chosen_samples: 1000,
        flat_samples: 0,
        lost: 1,
        filter: Filter::default(),
        overhead: Overhead { sampler_s: 0.08, guest_s: 19.0, wall_s: 20.0, share: 0.004 },
        lateness: Lateness { median_ns: 21_400, p99_ns: 80_000, max_ns: 1_200_000, over_1ms: 3 },
        vcpus: vec![vcpu(0, 0.39), vcpu(1, 0.39)],
        needed_for_half: Some(3.93),
        processes: Vec::new(),
        programs: vec![
            program("gzip", 312, 1, ProcessKind::Process, 480),
            program("evil\x1b[2Jname\n", 0, 429, ProcessKind::Process, 300),
            program("kworker/0:1-events_long", 9, 1, ProcessKind::KernelThread, 120),
            program("[interrupts]", 0, 0, ProcessKind::Interrupt, 60),
            program("sh", 300, 1, ProcessKind::Process, 40),
        ],
        functions: vec![
            function("deflate", Some("gzip"), "user", 700),
            function("ext4_readdir", Some("ext4"), "kernel", 150),
            function(&"very_long_function_name_".repeat(4), None, "softirq", 100),
            function("native_safe_halt", None, "hardirq", 50),
        ],
        stacks: StackWalks {
            kernel: ends(12_345, "unwind data is not in memory", 50),
            user: ends(8_000, "no CFI for this \x1b[2Jcode", 232),
        },
        user_code: UserCode {
            samples: 8_000,
            unnamed: 960,
            unnamed_share: 0.12,
            files: vec![UserFile {
                path: "/usr/bin/python3.11\n".to_owned(),
                build_id: Some("3f1c9b0a".to_owned()),
                read_from: Some("image".to_owned()),
                named_by: Some(".dynsym".to_owned()),
                samples: 2_000,
                unnamed: 900,
            }],
        },
        serial: Estimate::default(),
        by: None,
        tree: None,
        missing: vec![
            "no BTF in this kernel: no process names, so samples count by address alone and not by \
             the program that they belong to"
                .to_owned(),
        ],
        events: Vec::new(),
        meta: BTreeMap::new(),
    }
}

const EXPECTED: &str = "\
20.03 s of Linux 6.1.0-56-cloud-amd64 on 2 vCPUs, host: portable
  The host was emulated: times are not those of a real machine; relative shares
    are meaningful.

Programs: shares of the time that was not idle, by 1,000 samples
   share  95 % interval      time    user  kernel  pid  program
  48.0 %  46.0 - 50.0 %  480.0 ms  36.0 %  12.0 %  312  gzip
  30.0 %  28.0 - 32.0 %  300.0 ms  22.5 %   7.5 %       evil\\x1b[2Jname\\x0a, 42…
  12.0 %  10.0 - 14.0 %  120.0 ms   9.0 %   3.0 %    9  [kworker/0:1-events_lon…
   6.0 %    4.0 - 8.0 %   60.0 ms   4.5 %   1.5 %       [interrupts]
   4.0 %  in 1 more; -n 0 shows all

Functions
   share  95 % interval      time  mode     function
  70.0 %  69.0 - 71.0 %  700.0 ms  user     deflate [gzip]
  15.0 %  14.0 - 16.0 %  150.0 ms  kernel   ext4_readdir [ext4]
  10.0 %   9.0 - 11.0 %  100.0 ms  softirq  very_long_function_name_very_long_f…
   5.0 %    4.0 - 6.0 %   50.0 ms  hardirq  native_safe_halt

Stacks: 99.6 % of 12,345 kernel walks and 97.1 % of 8,000 user walks are
  complete; most of the others end with: no CFI for this \\x1b[2Jcode (2.9 %).
Unnamed code: 12.0 % of user samples; most is /usr/bin/python3.11\\x0a: the debug
  file of build-id 3f1c9b0a would name it: install it on this machine, or name
  servers that have it in DEBUGINFOD_URLS (`vprof docs symbols`).

vCPUs: samples by mode, and ticks outside of the guest
  vCPU  samples  lost    user  kernel  hardirq  softirq    idle  VMM  no CPU
     0   10,000     0  50.0 %  10.0 %   <0.1 %    1.0 %  39.0 %    7       0
     1   10,000     1  50.0 %  10.0 %   <0.1 %    1.0 %  39.0 %    7     300

Measurement
  20,000 samples (1,000 not idle), 1 lost, 998 Hz of 1000 Hz requested, uniform
    clock, seed 42
  excluded from shares: 20 ticks in the VMM, 3 while the vCPU had no CPU of the
    host
  0.4 % of vCPU time in the sampler, ticks served 21 us late (median), 80 us
    (p99)
  to halve the interval of the largest share, run 3.9 times as long

Missing
  no BTF in this kernel: no process names, so samples count by address alone and
    not by the program that they belong to
";

#[test]
fn the_summary_looks_like_this() {
    assert_eq!(render(&report(), profile(), 4, PAGE), EXPECTED);
}

#[test]
fn lines_fit_and_carry_no_control_characters() {
    use unicode_width::UnicodeWidthStr;
    for (rows, width) in [(0, 80), (1, 80), (100, 40), (100, 60), (100, 80), (100, 120)] {
        let text = render(&report(), profile(), rows, PageLayout { width, ..PAGE });
        for line in text.lines() {
            assert!(line.width() <= width, "{} columns: {line}", line.width());
            assert!(!line.contains(char::is_control), "{line:?}");
        }
    }
}

#[test]
fn the_terminal_style_differs_by_bold_headings_and_colours_only() {
    let styled = render(&report(), profile(), 4, PageLayout { style: TextStyle::Terminal, ..PAGE });
    assert!(styled.starts_with("\x1b[1m20.03 s of"));
    assert!(styled.contains("  \x1b[1;31m48.0 %\x1b[0m  46.0 - 50.0 %"), "{styled}");
    let plain = ["\x1b[1;31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"]
        .iter()
        .fold(styled, |text, code| text.replace(code, ""));
    assert_eq!(plain, EXPECTED);
}

#[test]
fn parts_and_cut_runs_are_shown() {
    let mut report = report();
    report.complete = false;
    report.host = "kvm".to_owned();
    report.kernel = None;
    report.filter = Filter {
        process: vec!["gzip".to_owned()],
        symbol: Some("read\x1b[2J".to_owned()),
        modes: vec![ModeGroup::User, ModeGroup::Irq],
        vcpu: Some(1),
        from_ns: Some(2_000_000_000),
        ..Filter::default()
    };
    let text = render(&report, profile(), 4, PAGE);
    assert!(text.starts_with("20.03 s of an unknown kernel on 2 vCPUs, host: kvm\n"), "{text}");
    assert!(text.contains("The run is in progress or was cut short"));
    assert!(text.contains(
        "  Only process gzip, stacks with read\\x1b[2J, user code and interrupts, vCPU 1,\n    from 2.00 s.\n"
    ));
    assert!(!text.contains("emulated"));
    assert!(!text.contains("begun again"));
    report.meta.insert("host_restarts".to_owned(), "2".to_owned());
    assert!(
        render(&report, profile(), 4, PAGE)
            .contains("  The host's emulation failed before this run, which was begun again 2 times.\n")
    );
}

#[test]
fn much_output_to_a_serial_port_has_a_note() {
    let mut report = report();
    let warns = |report: &Report| render(report, profile(), 4, PAGE).contains("on writing to a serial port");
    report.serial = estimate(99, 0.01);
    assert!(!warns(&report));
    report.serial = estimate(910, 0.01);
    assert!(warns(&report));
    assert!(render(&report, profile(), 4, PAGE).contains("\nThe guest spent 91.0 % of its CPU time on"));
}

#[test]
fn a_sampler_that_takes_much_of_the_time_has_a_note() {
    let mut report = report();
    let note =
        |report: &Report| render(report, profile(), 4, PAGE).contains("which slowed the guest. Use a lower");
    assert!(!note(&report));
    report.overhead.share = 0.46;
    assert!(note(&report));
    let title = render(&report, profile(), 4, PAGE).split("\n\n").next().map(str::to_owned);
    assert!(title.is_some_and(|title| title.contains("Sampling took 46.0 % of the vCPUs' time")));
}

#[test]
fn ticks_in_the_vmm_of_an_attached_machine_are_no_samples() {
    let line = |host: &str, begin: &str| {
        let text = render(&Report { host: host.to_owned(), ..report() }, profile(), 4, PAGE);
        let line = text.lines().find(|line| line.starts_with(begin)).map(str::to_owned);
        line.unwrap_or_default()
    };
    let row = |host| line(host, "     1   10,000");
    assert!(row("kvm").ends_with("39.0 %    7     300"), "{}", row("kvm"));
    assert!(row("attached").ends_with("39.0 %    -     300"), "{}", row("attached"));
    let excluded = line("attached", "  excluded");
    assert_eq!(excluded, "  excluded from shares: 3 ticks while the vCPU had no CPU of the host");
}

#[test]
fn a_clock_without_chance_has_a_note() {
    let mut report = report();
    let note = "a program can be in step with it, so the intervals\n    are not valid.";
    assert!(!render(&report, profile(), 4, PAGE).contains(note));
    report.intervals_valid = false;
    let text = render(&report, profile(), 4, PAGE);
    assert!(text.contains(note) && !text.contains("halve the interval"), "{text}");
}

#[test]
fn a_share_of_everything_has_no_shorter_interval() {
    let mut report = report();
    assert!(render(&report, profile(), 4, PAGE).contains("run 3.9 times as long"));
    report.programs.truncate(1);
    report.programs[0].estimate.share = 1.0;
    assert!(!render(&report, profile(), 4, PAGE).contains("times as long"));
}

#[test]
fn wide_pages_have_bars_and_piped_ones_cut_nothing() {
    let text = |width| render(&report(), profile(), 9, PageLayout { width, ..PAGE });
    assert!(text(120).contains("48.0 %  ████▊  46.0 - 50.0 %  480.0 ms      480"), "{}", text(120));
    assert!(!text(usize::MAX).contains('█'));
    assert!(text(usize::MAX).contains(&"very_long_function_name_".repeat(4)));
    assert!(text(40).contains("  48.0 %  "), "{}", text(40));
}

#[test]
fn samples_without_stacks_are_counted() {
    let mut report = report();
    assert!(!render(&report, profile(), 10, PAGE).contains("have stacks"));
    report.flat_samples = 950;
    let page = PageLayout { width: usize::MAX, ..PAGE };
    let text = render(&report, profile(), 10, page);
    let expected =
        "50 samples have stacks, and stand for 950 without in totals, callers, system calls and interrupts";
    assert!(text.contains(expected), "{text}");
    // Those without are not among the busy ones then.
    report.filter.symbol = Some("main".to_owned());
    assert!(render(&report, profile(), 10, page).contains("1,000 samples have stacks"));
}

#[test]
fn an_idle_guest_has_no_empty_tables() {
    let mut report = report();
    report.busy_samples = 0;
    report.programs.clear();
    report.functions.clear();
    let text = render(&report, profile(), 10, PAGE);
    assert!(text.contains("No sample hit anything but idle vCPUs."));
    assert!(!text.contains("Programs"));
}

#[test]
fn a_profile_without_samples_says_why() {
    let mut report = report();
    (report.samples, report.busy_samples) = (0, 0);
    let shown = |report: &Report| {
        let text = render(report, profile(), 10, PAGE);
        assert!(!text.contains("idle vCPUs") && !text.contains("Programs"), "{text}");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    report.complete = true;
    report.command = Some(CommandTimes { cpu: Some(estimate(0, 0.0)), ..CommandTimes::default() });
    assert!(shown(&report).contains(" No sample was taken. ") && !shown(&report).contains("Command"));
    report.meta.insert(AWAITED.to_owned(), "process:a\x1b[2J".to_owned());
    let ended = "The run ended before process:a\\x1b[2J was seen, so nothing was sampled.";
    assert!(shown(&report).contains(ended));
    report.complete = false;
    assert!(shown(&report).contains("Sampling begins with process:a\\x1b[2J, which was not seen so far."));
    // Sampling had begun.
    report.meta.insert(AWAITED.to_owned(), String::new());
    assert!(shown(&report).contains(" No sample was taken. "));
}

#[test]
fn a_stall_that_the_kernel_reports_is_a_line() {
    let mut report = report();
    let line = "rcu: rcu_preempt kthread starved for 15020 jiffies!";
    for time_s in [63.5, 70.0] {
        report.events.push(profile::report::Event {
            time_s,
            kind: "stall".to_owned(),
            text: line.to_owned(),
        });
    }
    let (kind, still) = ("standstill".to_owned(), "all vCPUs were halted".to_owned());
    report.events.push(profile::report::Event { time_s: 80.0, kind, text: still });
    let text = render(&report, profile(), 5, PAGE);
    let lines: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(lines.contains(&format!("reports a stall at 63.50 s: {line}, and 1 more")), "{text}");
    assert!(lines.contains("made no progress at 80.00 s: all vCPUs were halted"), "{text}");
}
