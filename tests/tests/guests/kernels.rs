//! Kernels of several series, configurations and command lines: each is found, and processes, functions and modules get
//! their names. docs/guests.md has a row for each of these tests.

use vprof_tests::{Guest, Run};

/// Works in user space and in the kernel, and shows what the kernel was told.
const SCRIPT: &str = "uname -r; grep -m 1 flags /proc/cpuinfo; grep ' _text$' /proc/kallsyms; cat /proc/interrupts \
     >/dev/null; spin --seconds 0.7; syscalls --call read --seconds 0.7";

/// Asserts all that a report promises of a kernel that is known.
fn everything_is_named(guest: Guest) -> Run {
    let run = guest.options(["--rate", "1000"]).script(SCRIPT).run().succeeded();
    let report = run.report();
    let release = report.get("kernel").as_str().expect("a release").to_owned();
    assert!(run.stdout.lines().any(|line| line.trim() == release), "{release} in {}", run.stdout);
    assert_eq!(report.get("missing").as_array().map(Vec::len), Some(0), "{}", report.get("missing"));
    let (spin, syscalls) = (report.process("spin"), report.process("syscalls"));
    assert!(spin.samples > 50 && spin.user_share > 0.8 * spin.share, "{spin:?}");
    assert!(syscalls.samples > 50 && syscalls.kernel_share > 0.5 * syscalls.share, "{syscalls:?}");
    // What /dev/zero reads with; its full name differs between kernels.
    let functions = report.functions();
    let clearing =
        functions.iter().find(|f| f.symbol.contains("clear_user") || f.symbol.contains("rep_stos"));
    assert!(clearing.is_some_and(|f| f.samples > 20), "{functions:#?}");
    let in_modules = run.number(
        "SELECT count(*) FROM frame WHERE kind = 'kernel' AND module IS NOT NULL AND symbol IS NOT NULL",
    );
    assert!(in_modules > 0.0, "no function of a module has a name");
    run
}

/// [`everything_is_named`] with words on the kernel's command line.
fn told(words: &str) -> Run {
    everything_is_named(Guest::demo().options(["--append", words]))
}

fn has_flag(run: &Run, flag: &str) -> bool {
    run.stdout.lines().any(|l| l.starts_with("flags") && l.split_whitespace().any(|word| word == flag))
}

fn is_moved_by_kaslr(run: &Run) -> bool {
    let text = run.stdout.lines().find(|line| line.trim().ends_with(" _text")).expect("the address of _text");
    !text.starts_with("ffffffff81000000")
}

#[test]
fn debian_11s_5_10() {
    everything_is_named(Guest::demo_with_kernel("5.10"));
}

#[test]
fn debian_12s_6_1_with_kaslr_and_five_levels() {
    let run = everything_is_named(Guest::demo());
    assert!(is_moved_by_kaslr(&run) && has_flag(&run, "la57"), "{}", run.stdout);
}

#[test]
fn debian_13s_6_12() {
    everything_is_named(Guest::demo_with_kernel("6.12"));
}

#[test]
fn debians_newest() {
    everything_is_named(Guest::demo_with_kernel("newest"));
}

#[test]
fn the_generic_flavour() {
    everything_is_named(Guest::demo_with_kernel("generic"));
}

#[test]
fn the_realtime_flavour() {
    everything_is_named(Guest::demo_with_kernel("rt"));
}

#[test]
fn the_newest_realtime_flavour() {
    everything_is_named(Guest::demo_with_kernel("newest-rt"));
}

#[test]
fn without_kaslr_page_table_isolation_and_five_levels() {
    let run = told("nokaslr pti=off no5lvl");
    assert!(!is_moved_by_kaslr(&run) && !has_flag(&run, "la57") && !has_flag(&run, "pti"), "{}", run.stdout);
}

#[test]
fn with_page_table_isolation() {
    let run = told("pti=on");
    assert!(has_flag(&run, "pti"), "{}", run.stdout);
}
