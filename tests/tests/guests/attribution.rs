//! Profiles of guests whose true shares are known.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use vprof_tests::{Guest, Run, assert_share};

/// Two processes that share a CPU three to one, one that sleeps, and one that reads the disk.
const MIXTURE: &str = "sleeper --seconds 5 & split --seconds 5 --ratio 3:1 --cpu 0 & \
     dd if=/dev/vda of=/dev/null bs=64k count=600 iflag=direct 2>/dev/null; wait";

/// Returns the run of [`MIXTURE`] on a kernel of this series.
pub(crate) fn mixture(kernel: &'static str) -> &'static Run {
    static DEFAULT: OnceLock<Run> = OnceLock::new();
    static NEWER: OnceLock<Run> = OnceLock::new();
    let (run, guest) = match kernel {
        "6.12" => (&NEWER, Guest::demo_with_kernel("6.12")),
        _ => (&DEFAULT, Guest::demo()),
    };
    run.get_or_init(|| guest.on_own_cpu().options(["--rate", "1000"]).script(MIXTURE).run().succeeded())
}

/// Returns the CPU seconds that `split` printed for one of its processes.
fn used(run: &Run, name: &str) -> f64 {
    let line = run.stdout.lines().find(|l| l.starts_with(&format!("{name} used ")));
    let line = line.unwrap_or_else(|| panic!("no line of {name} in {:?}", run.stdout));
    line.split(' ').nth(2).and_then(|s| s.parse().ok()).expect("a number of seconds")
}

fn known_split_is_found(kernel: &'static str) {
    let run = mixture(kernel);
    let report = run.report();
    let (alpha, beta) = (report.process("alpha"), report.process("beta"));
    let expected = used(run, "alpha") / (used(run, "alpha") + used(run, "beta"));
    assert!((expected - 0.75).abs() < 0.05, "split itself: {expected}");
    assert_share("alpha", alpha.samples, alpha.samples + beta.samples, expected);
    assert!((alpha.user_share + alpha.kernel_share - alpha.share).abs() < 1e-9, "{alpha:?}");
    assert!(alpha.user_share > 0.2 * alpha.share, "alpha works in user space: {alpha:?}");
    assert!(alpha.share_low < alpha.share && alpha.share < alpha.share_high, "{alpha:?}");
}

#[test]
fn shares_of_a_known_split_come_out_6_1() {
    known_split_is_found("6.1");
}

#[test]
#[ignore = "another kernel: --all"]
fn shares_of_a_known_split_come_out_6_12() {
    known_split_is_found("6.12");
}

#[test]
fn a_sleeping_process_gets_no_time() {
    let report = mixture("6.1").report();
    let share: f64 = report.processes_named("sleeper").iter().map(|p| p.share).sum();
    // Starting and ending costs it a little; a share of its five seconds would be half.
    assert!(share < 0.02, "sleeper has {share}");
}

fn modules_are_named(kernel: &'static str) {
    let rows = mixture(kernel).query(
        "SELECT DISTINCT module FROM frame WHERE module IS NOT NULL AND symbol IS NOT NULL AND kind = 'kernel'",
    );
    let modules: BTreeSet<&str> = rows.iter().filter_map(|r| r[0].as_str()).collect();
    assert!(modules.iter().any(|m| m.starts_with("virtio")), "modules: {modules:?}");
}

#[test]
fn a_functions_module_is_named_6_1() {
    modules_are_named("6.1");
}

#[test]
#[ignore = "another kernel: --all"]
fn a_functions_module_is_named_6_12() {
    modules_are_named("6.12");
}

#[test]
fn samples_with_interrupts_off_exist() {
    let run = mixture("6.1");
    assert!(run.number("SELECT count(*) FROM sample WHERE cpl = 0 AND NOT interrupts_on") > 0.0);
}

#[test]
fn shares_add_up_to_one() {
    let report = mixture("6.1").report();
    let close = |sum: f64, what: &str| assert!((sum - 1.0).abs() < 1e-9, "{what}: {sum}");
    close(report.processes().iter().map(|p| p.share).sum(), "processes");
    close(report.functions().iter().map(|f| f.share).sum(), "functions");
    for v in report.vcpus() {
        close(v.user + v.kernel + v.hardirq + v.softirq + v.idle, "a vCPU");
        assert!(v.samples > 0, "{v:?}");
    }
}

#[test]
fn kernel_functions_have_names() {
    let run = mixture("6.1");
    let named = |condition: &str| {
        run.number(&format!(
            "SELECT count(*) FROM sample JOIN frame ON frame.id = sample.frame \
             WHERE kind = 'kernel' AND NOT halted AND mode <> 6 AND {condition}"
        ))
    };
    let (with, without) = (named("symbol IS NOT NULL"), named("symbol IS NULL"));
    assert!(with > 100.0 && without < 0.01 * with, "{with} with, {without} without a name");
}

#[test]
#[ignore = "two hundred processes: --all"]
fn every_run_of_a_program_is_a_separate_instance() {
    let run = Guest::demo()
        .options(["--rate", "1000"])
        .script("shortlived --count 200 --cpu-millis 50 --name brief")
        .run()
        .succeeded();
    let rows = run.query(
        "SELECT DISTINCT number FROM instance JOIN sample ON sample.instance = instance.id \
         WHERE comm = 'brief' ORDER BY number",
    );
    let numbers: Vec<i64> = rows.iter().filter_map(|r| r[0].as_i64()).collect();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    let brief = run.report().processes_named("brief");
    assert_eq!(brief.len(), 200);
}

/// Returns the samples of vCPU 0 in the guest, in a span of seconds since the loop began.
fn hits(run: &Run, condition: &str, (from_s, to_s): (f64, f64)) -> f64 {
    let sql = format!(
        "WITH began AS (SELECT min(s.time_ns) AS ns FROM v_samples v JOIN sample s ON s.id = v.id \
         WHERE v.comm = 'interfered' AND v.mode = 'user') \
         SELECT count(*) FROM v_samples v JOIN sample s ON s.id = v.id, began \
         WHERE s.vcpu = 0 AND s.vcpu_state = 'guest' AND s.time_ns - began.ns BETWEEN {} AND {} AND {condition}",
        from_s * 1e9,
        to_s * 1e9
    );
    run.query(&sql)[0][0].as_f64().expect("a number")
}

/// Datagrams that another CPU sends are received on the loop's CPU, by interrupts that do not belong to the
/// loop.
#[test]
#[ignore = "an emulated guest with two vCPUs for half a minute: --all"]
fn a_storm_of_interrupts_is_not_charged_to_whom_it_hits() {
    let run = Guest::demo()
        .options(["--rate", "1000", "--cpus", "2"])
        .command(["interfered", "--seconds", "15"])
        .run()
        .succeeded();
    let storm = (5.0, 10.0);
    let served = hits(&run, "v.mode IN ('hardirq', 'softirq')", storm);
    let own = hits(&run, "v.comm = 'interfered' AND v.mode = 'kernel'", storm);
    assert!(served > 100.0, "{served} samples in interrupts: there was no storm");
    assert!(own < 0.1 * served, "{own} samples in the loop's own kernel code, {served} in interrupts");
    let entered = "(v.symbol LIKE 'asm_sysvec_%' OR v.symbol LIKE 'sysvec_%')";
    let whole = (0.0, 15.0);
    let (all, named) = (
        hits(&run, entered, whole),
        hits(
            &run,
            &format!(
                "{entered} AND v.mode = 'hardirq' AND s.interrupt IN (SELECT id FROM interrupt WHERE kind = 'hard' \
                 AND name IN ('apic_timer_interrupt', 'call_function_single', 'reschedule_ipi', 'irq_work', \
                 'call_function'))"
            ),
            whole,
        ),
    );
    assert!(all > 3.0 && named == all, "{named} of {all} samples at an interrupt's entry are its own");
}
