//! Beginning and end of runs.

use std::time::Duration;

use nix::sys::signal::Signal;
use vprof_tests::Guest;

#[test]
#[ignore = "one more way to end: --all"]
fn the_commands_exit_code_and_output_are_the_runs() {
    let run = Guest::demo().next_to_others().script("echo hello from the guest; exit 7").run().exited(7);
    assert!(run.stdout.contains("hello from the guest"), "stdout: {}", run.stdout);
    assert_eq!(run.query("SELECT value FROM meta WHERE key = 'complete'")[0][0], "1");
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_command_ended_by_a_signal_exits_with_128_and_its_number() {
    Guest::demo().next_to_others().script("kill -TERM $$").run().exited(128 + 15);
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_duration_ends_the_run() {
    let run =
        Guest::demo().next_to_others().options(["--duration", "8"]).script("sleep 1000").run().succeeded();
    let seconds = run.report().number("duration_s");
    assert!((8.0..12.0).contains(&seconds), "{seconds} s");
}

fn ends_the_run_with_a_complete_profile(signal: Signal) {
    let mut running = Guest::demo().next_to_others().script("spin --seconds 1000").start();
    running.wait_for_samples(2000);
    running.signal(signal);
    let run = running.finish().succeeded();
    assert_eq!(run.query("SELECT value FROM meta WHERE key = 'complete'")[0][0], "1");
    assert!(run.report().number("samples") >= 2000.0);
}

#[test]
#[ignore = "one more way to end: --all"]
fn an_interrupt_ends_the_run_with_a_complete_profile() {
    ends_the_run_with_a_complete_profile(Signal::SIGINT);
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_termination_ends_the_run_with_a_complete_profile() {
    ends_the_run_with_a_complete_profile(Signal::SIGTERM);
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_killed_run_leaves_all_but_the_last_second() {
    let mut running = Guest::demo().next_to_others().script("spin --seconds 1000").start();
    running.wait_for_samples(2000);
    let started = std::time::Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let slept = started.elapsed().as_secs_f64();
    running.signal(Signal::SIGKILL);
    let run = running.finish();
    assert_eq!(run.status.code(), None, "killed");
    let report = run.report();
    assert_eq!(report.get("complete"), false);
    // 2,000 samples were there before the sleep; all but a second of it must be there, too.
    let least = 2000.0 + 1000.0 * (slept - 1.0) * 0.5;
    assert!(report.number("samples") >= least, "{} samples of {least}", report.number("samples"));
}
