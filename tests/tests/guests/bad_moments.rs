//! Things that go wrong while a guest runs.

use vprof_tests::{Guest, images};

#[test]
#[ignore = "one more way to end: --all"]
fn a_full_disk_ends_the_run_and_what_was_written_stays_readable() {
    let mut running = Guest::demo().next_to_others().script("spin --seconds 1000").start();
    running.wait_for_samples(1000);
    let size = std::fs::metadata(running.profile()).expect("a profile").len();
    running.limit_file_size(size.max(256 << 10));
    let run = running.finish().exited(1);
    let sentences: Vec<&str> = run.stderr.lines().filter(|l| l.starts_with("vprof: ")).collect();
    assert!(sentences.iter().any(|s| s.contains("out.vprof")), "stderr: {}", run.stderr);
    assert!(run.report().number("samples") >= 1000.0);
}

#[test]
#[ignore = "one more change of the guest: --all"]
fn another_kernel_gets_no_names_of_the_first_one() {
    const RESTARTED: &str = "FROM event WHERE kind = 'missing' AND text LIKE '%started another kernel%'";
    let later = format!("FROM v_samples WHERE time_s > (SELECT time_ns * 1e-9 {RESTARTED})");
    // With a command the run would end with its kernel.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = directory.path().join("image");
    std::fs::copy(images().join("demo.img"), &image).expect("room for a copy of the image");
    let load = r"printf '#!/bin/sh\nspin --seconds 2\nrestart\n' >/usr/bin/demo-load";
    Guest::image(&image).in_place().next_to_others().script(load).run().succeeded();
    let mut running = Guest::image(&image).in_place().next_to_others().start();
    running.wait_for_rows(RESTARTED, 1);
    // What unpacks it runs at low addresses, then the kernel itself where the first one was or elsewhere.
    running.wait_for_rows(&format!("{later} AND address LIKE '0xffffffff%'"), 500);
    running.ctl(&["end"]);
    let run = running.finish().succeeded();
    assert!(run.report().process("spin").samples > 100);
    assert_eq!(
        run.number(&format!("SELECT count(*) {later} AND (comm IS NOT NULL OR symbol IS NOT NULL)")),
        0.0
    );
}

#[test]
#[ignore = "one more way to end: --all"]
fn a_guest_that_resets_after_a_panic_ends_the_run() {
    let run =
        Guest::demo().next_to_others().options(["--append", "panic=-1 rdinit=/nowhere init=/nowhere"]).run();
    assert_eq!(run.query("SELECT value FROM meta WHERE key = 'complete'")[0][0], "1");
    let ends = run.query("SELECT text FROM event WHERE kind = 'end'");
    assert!(ends[0][0].as_str().is_some_and(|text| text.contains("reset")), "{ends:?}");
    assert!(
        run.console().contains("Kernel panic"),
        "the console's lines are in the profile: {}",
        run.console()
    );
}
