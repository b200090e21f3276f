//! Kernels of several series, configurations and command lines: each is found, and processes, functions and
//! modules have their names. docs/guests.md has a row for each of these tests.

use vprof_tests::{Guest, RemovedPart, Run, images, kernel_without};

use crate::trip;

/// Works in user space and in the kernel, and prints facts about the kernel.
const SCRIPT: &str = "uname -r; grep -m 1 flags /proc/cpuinfo; grep ' _text$' /proc/kallsyms; cat /proc/interrupts \
     >/dev/null; spin --seconds 1.5; syscalls --call read --seconds 1.5";
/// Rate of the samples: lower than by default, because an emulated guest pays for each of them while it
/// boots.
const RATE: &str = "500";

/// Runs [`SCRIPT`], and asserts all that a report promises of a kernel that is known.
fn everything_is_named(guest: Guest) -> Run {
    everything_is_named_with(guest, SCRIPT)
}

fn everything_is_named_with(guest: Guest, script: &str) -> Run {
    let run = guest.next_to_others().options(["--rate", RATE]).script(script).run().succeeded();
    assert_named(&run);
    run
}

fn assert_named(run: &Run) {
    let report = run.report();
    let release = report.get("kernel").as_str().expect("a release").to_owned();
    assert!(run.stdout.lines().any(|line| line.trim() == release), "{release} in {}", run.stdout);
    assert_eq!(report.get("missing").as_array().map(Vec::len), Some(0), "{}", report.get("missing"));
    let (spin, syscalls) = (report.process("spin"), report.process("syscalls"));
    // On a slow emulated machine timer ticks, and the system calls and page faults of a program's start and
    // end, take up to half.
    assert!(spin.samples > 50 && spin.user_share > 0.4 * spin.share, "{spin:?}");
    assert!(syscalls.samples > 50 && syscalls.kernel_share > 0.6 * syscalls.share, "{syscalls:?}");
    // What /dev/zero reads with; its full name differs between kernels.
    let functions = report.functions();
    let clearing =
        functions.iter().find(|f| f.symbol.contains("clear_user") || f.symbol.contains("rep_stos"));
    assert!(clearing.is_some_and(|f| f.samples > 20), "{functions:#?}");
    let in_modules = run.number(
        "SELECT count(*) FROM frame WHERE kind = 'kernel' AND module IS NOT NULL AND symbol IS NOT NULL",
    );
    assert!(in_modules > 0.0, "no function of a module has a name");
    let walks = report.walks("kernel");
    // A module that starts is not known yet: on a slow emulated machine a driver's search for its device, in
    // that module's first function, takes up to 4 % of a boot's samples.
    assert!(walks.walks > 500 && walks.lost() * 16 <= walks.walks, "{walks:?}");
    // The timer's interrupts alone.
    let vcpus = report.vcpus();
    assert!(vcpus.iter().all(|vcpu| (0.01..0.5).contains(&vcpu.hardirq)), "{vcpus:?}");
    the_cpus_accounting_adds_up(run);
}

/// Asserts that a CPU's accounted times since their first reading add up to about the time since then.
fn the_cpus_accounting_adds_up(run: &Run) {
    let rusage = run.json(&["rusage"]);
    let cpu = &rusage["cpus"][0];
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    let (since, read) = (number(&cpu["since_s"]), number(&cpu["read_s"]));
    let length = read - since;
    // While the host takes the CPU away, the guest has no ticks to count.
    let had = run.number(&format!(
        "SELECT sum(guest_ns + halted_ns + kvm_ns) / 1e9 FROM microstate WHERE vcpu = 0 AND time_ns / 1e9 BETWEEN {since} AND {read}"
    ));
    let reported: f64 = cpu["reported"].as_object().expect("times").values().map(|ns| number(ns) / 1e9).sum();
    assert!(
        length > 1.0 && reported > 0.5 * had && reported < 1.1 * length,
        "{reported} s of {had} s in {length} s: {cpu}"
    );
}

/// Asserts [`everything_is_named`] with words on the kernel's command line.
fn named_with_options(words: &str) -> Run {
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
#[ignore = "the kernel of all other tests: --all"]
fn debian_12s_6_1_with_kaslr_and_five_levels() {
    let run = everything_is_named(Guest::demo());
    assert!(is_moved_by_kaslr(&run) && has_flag(&run, "la57"), "{}", run.stdout);
}

#[test]
#[ignore = "another kernel: --all"]
fn debian_13s_6_12() {
    everything_is_named(Guest::demo_with_kernel("6.12"));
}

/// One boot also serves exact mode and watched functions.
#[test]
fn debians_newest() {
    let guest = Guest::demo_with_kernel("newest").options(["--exact"]).options(trip::WATCHED);
    let run = everything_is_named_with(guest, &format!("{SCRIPT}; {}", trip::CALLS));
    trip::assert_calls(&run);
    assert_eq!(run.number("SELECT sum(lost) FROM exact_vcpu"), 0.0);
    assert!(run.number("SELECT count(*) FROM task_run") > 100.0);
}

#[test]
#[ignore = "another kernel: --all"]
fn the_generic_flavour() {
    everything_is_named(Guest::demo_with_kernel("generic"));
}

#[test]
#[ignore = "another kernel: --all"]
fn the_realtime_flavour() {
    everything_is_named(Guest::demo_with_kernel("rt"));
}

#[test]
#[ignore = "another kernel: --all"]
fn debian_13s_realtime_6_12() {
    everything_is_named(Guest::demo_with_kernel("6.12-rt"));
}

#[test]
#[ignore = "another kernel: --all"]
fn the_newest_realtime_flavour() {
    everything_is_named(Guest::demo_with_kernel("newest-rt"));
}

#[test]
#[ignore = "another command line: --all"]
fn without_kaslr_page_table_isolation_and_five_levels() {
    let run = named_with_options("nokaslr pti=off no5lvl");
    assert!(!is_moved_by_kaslr(&run) && !has_flag(&run, "la57") && !has_flag(&run, "pti"), "{}", run.stdout);
}

#[test]
#[ignore = "another command line: --all"]
fn with_page_table_isolation() {
    let run = named_with_options("pti=on");
    assert!(has_flag(&run, "pti"), "{}", run.stdout);
}

/// Runs the demo image with a kernel from which a part is removed.
fn run_without(removed: RemovedPart) -> Run {
    let directory = tempfile::tempdir().expect("a directory");
    let (kernel, initrd) = kernel_without(removed, &images().join("demo.img"), directory.path());
    let guest = Guest::demo().options(["--kernel".as_ref(), kernel.as_os_str()]);
    let guest = guest.options(["--initrd".as_ref(), initrd.as_os_str()]);
    let run = guest.next_to_others().options(["--rate", RATE]).script(SCRIPT).run().succeeded();
    assert!(run.stdout.contains("cloud-amd64"), "the command ran: {}", run.stdout);
    run
}

fn missing(run: &Run) -> Vec<String> {
    let report = run.report();
    let list = report.get("missing").as_array().expect("a list").clone();
    list.iter().map(|reason| reason.as_str().expect("a sentence").to_owned()).collect()
}

#[test]
#[ignore = "another kernel: --all"]
fn without_btf_functions_have_names_and_processes_have_not() {
    let run = run_without(RemovedPart::Btf);
    let report = run.report();
    assert!(report.get("kernel").as_str().is_some_and(|release| run.stdout.contains(release)));
    let functions = report.functions();
    let named = |name: &str| functions.iter().any(|f| f.symbol.contains(name));
    assert!(named("clear_user") || named("rep_stos"), "{functions:#?}");
    // User code is known by its privilege level and address; its process is not.
    assert!(run.number("SELECT count(*) FROM sample WHERE cpl = 3") > 500.0);
    assert_eq!(run.number("SELECT count(*) FROM instance WHERE pid > 0"), 0.0);
    assert_eq!(missing(&run), ["the BTF of this kernel cannot be read: no process names"]);
}

#[test]
#[ignore = "another kernel: --all"]
fn without_kallsyms_samples_have_their_addresses() {
    let run = run_without(RemovedPart::Kallsyms);
    // The banner is found without symbols.
    assert!(run.report().get("kernel").as_str().is_some_and(|release| run.stdout.contains(release)));
    assert!(run.number("SELECT count(*) FROM sample WHERE cpl = 3") > 500.0);
    let kernel = "SELECT count(DISTINCT f.address) FROM sample s JOIN frame f ON f.id = s.frame \
                  WHERE f.kind = 'kernel' AND f.symbol IS NULL";
    assert!(run.number(kernel) > 50.0, "kernel code by address");
    assert_eq!(run.number("SELECT count(*) FROM frame WHERE kind = 'kernel' AND symbol IS NOT NULL"), 0.0);
    assert_eq!(missing(&run), ["no kallsyms in this kernel: no function and no process names"]);
}
