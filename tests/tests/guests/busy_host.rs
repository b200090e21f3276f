//! Ticks that come late, find a halted vCPU, or a vCPU without a CPU of the host: they bias no share.

use vprof_tests::{Guest, Run};

/// Two processes that share one vCPU 3:1, turn by turn, by work and not by time: the guest's clocks also run
/// while the host uses the CPU itself.
const SPLIT: [&str; 9] =
    ["split", "--seconds", "12", "--ratio", "3:1", "--slice-rounds", "500000", "--cpu", "0"];

/// Samples of both processes in the guest, and those of the one with three parts.
struct SplitSamples {
    all: f64,
    large: f64,
}

impl SplitSamples {
    fn from_run(run: &Run) -> Self {
        let rows = run.query(
            "SELECT sum(comm = 'alpha'), count(*) FROM v_charged WHERE comm IN ('alpha', 'beta') AND mode = 'user'",
        );
        let count = |column: usize| rows[0][column].as_f64().expect("a number");
        Self { large: count(0), all: count(1) }
    }

    fn share(&self) -> f64 {
        self.large / self.all
    }

    /// Returns the variance of as many independent samples; that of long turns is smaller.
    fn variance(&self) -> f64 {
        0.75 * 0.25 / self.all
    }
}

/// Runs both on the guest's first vCPU; `others` vCPUs work all the time, and take CPUs of the host from it.
fn split(others: usize) -> (Run, SplitSamples) {
    let cpus = (others + 1).to_string();
    let spinning: String = (1..=others).map(|cpu| format!("spin --seconds 1000 --cpu {cpu} & ")).collect();
    let script = format!("{spinning}{}", SPLIT.join(" "));
    let run = Guest::demo().options(["--cpus", &cpus]).script(&script).run().succeeded();
    let split = SplitSamples::from_run(&run);
    (run, split)
}

fn waiting(run: &Run) -> f64 {
    run.number("SELECT sum(waiting_s) / sum(wall_s) FROM v_vcpus")
}

#[test]
#[ignore = "two guests that run long: --all"]
fn a_busy_host_changes_no_share() {
    let (quiet_run, quiet) = split(0);
    let (loaded_run, loaded) = split(4);
    assert!(quiet.all > 400.0 && loaded.all > 60.0, "{} and {} samples", quiet.all, loaded.all);
    let (before, after) = (waiting(&quiet_run), waiting(&loaded_run));
    assert!(after > 0.2 && after > before + 0.1, "the vCPU waited {before} and {after} of the time");
    assert!(loaded_run.number("SELECT count(*) FROM sample WHERE vcpu_state = 'waiting'") > 20.0);
    let apart = (loaded.share() - quiet.share()) / (loaded.variance() + quiet.variance()).sqrt();
    assert!(apart.abs() < 3.3, "{} and {}: {apart:.1} standard errors", quiet.share(), loaded.share());
    for split in [&quiet, &loaded] {
        // A hundredth is for what passing the token takes in user code, the same for both.
        let off = (split.share() - 0.75).abs();
        assert!(off < 4.0 * split.variance().sqrt() + 0.01, "{} is not 3:1", split.share());
    }
}

/// Only code that runs is charged, the aim of Liang's profiler. Most ticks find a vCPU halted that is halted
/// most of the time, and the short work of its program is neither missed nor overestimated.
#[test]
#[ignore = "a guest that runs long: --all"]
fn a_guest_that_mostly_halts_is_charged_what_it_works() {
    const RATE: u32 = 200;
    // 40 ms of every half second.
    let program = "isochronous --seconds 20 --period-micros 500000 --work-micros 40000";
    let run = Guest::demo().options(["-F", &RATE.to_string()]).script(program).run().succeeded();
    // From the program's first sample to its last.
    let window = "time_ns BETWEEN (SELECT min(time_ns) FROM sample s JOIN instance i ON i.id = s.instance WHERE i.comm = 'isochronous') \
                  AND (SELECT max(time_ns) FROM sample s JOIN instance i ON i.id = s.instance WHERE i.comm = 'isochronous')";
    let halted = run.number(&format!(
        "SELECT sum(halted_ns + kvm_ns) * 1.0 / \
         sum(guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns) FROM microstate WHERE {window}"
    ));
    assert!(halted > 0.6, "halted for {halted} of the time");
    let ticks = run.number(&format!("SELECT avg(vcpu_state = 'halted') FROM sample WHERE {window}"));
    assert!((ticks - halted).abs() < 0.1, "{ticks} of the ticks, {halted} of the time");
    // The scheduler's own count, which no tick is needed for.
    let rusage = run.json(&["rusage", "--process", "isochronous"]);
    let process = &rusage["processes"][0];
    let ns = |name: &str| process[name].as_f64().expect("a time");
    let (reported, estimate) = (ns("runtime_ns"), ns("measured_cpu_ns"));
    let end = if reported < estimate { ns("measured_low_ns") } else { ns("measured_high_ns") };
    // The scheduler's time includes interrupts and the host's time: for exits and other processes, by the
    // ticks that found the vCPU there, and for samples, which are served as long as all others and late by
    // themselves.
    let rows = "FROM sample s JOIN instance i ON i.id = s.instance WHERE i.comm = 'isochronous'";
    let outside = run.number(&format!("SELECT count(*) {rows} AND vcpu_state IN ('vmm', 'waiting')"));
    let interval_ns = 1e9 / f64::from(RATE);
    let taken = run.number(&format!(
        "SELECT {outside} * {interval_ns}
              + (SELECT sum(late_ns) {rows} AND vcpu_state = 'guest')
              + (SELECT count(*) {rows})
                * ((SELECT sum(sampler_ns) FROM microstate) - sum(late_ns) FILTER (WHERE vcpu_state = 'guest'))
                / count(*)
         FROM sample"
    ));
    // Four standard errors of both estimates: twice the distance of the interval's end, and those of the
    // ticks outside, whose number varies by its root. A hundredth is the error of the host's time.
    let apart = (reported - ns("interrupted_ns") - taken - estimate).abs();
    let chance = (2.0 * (end - estimate)).hypot(4.0 * outside.sqrt() * interval_ns);
    assert!(apart < chance + 0.01 * reported, "{apart} ns apart, {taken} taken, chance {chance}: {process}");
}
