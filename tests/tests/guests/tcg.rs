//! Guests on QEMU's emulation without KVM (`--host tcg`).

use vprof_tests::Guest;

#[test]
#[ignore = "one more host: --all"]
fn a_guest_without_kvm_has_names_a_console_and_its_exit_code() {
    let run = Guest::demo()
        .next_to_others()
        .options(["--host", "tcg", "--memory", "256M"])
        .script("echo console of the guest; spin --seconds 5; exit 7")
        .run()
        .exited(7);
    assert!(run.stdout.contains("console of the guest"), "{}", run.stdout);
    let report = run.report();
    assert_eq!(report.get("host"), "tcg");
    let sandbox = run.query("SELECT value FROM meta WHERE key = 'sandbox'");
    assert_eq!(sandbox, [["rights, files, system calls"]]);
    assert!(report.process("spin").share > 0.0);
    assert!(run.json(&["stat"])["unavailable"].is_string());
}

#[test]
#[ignore = "one more host: --all"]
fn a_guest_without_kvm_powers_off() {
    let run = Guest::demo()
        .next_to_others()
        .options(["--host", "tcg", "--memory", "256M"])
        .script("echo o > /proc/sysrq-trigger; sleep 60")
        .run()
        .exited(1);
    assert!(run.stderr.contains("it ended before its command did"), "{}", run.stderr);
    // QEMU is gone with its guest; nothing that was to be read once more counts as missing.
    let missing =
        run.query("SELECT text FROM event WHERE kind = 'missing' AND text LIKE '%could not be read%'");
    assert!(missing.is_empty(), "{missing:?}");
}
