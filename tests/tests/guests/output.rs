//! Output of a command: its bytes, the two streams apart, fast.

use std::fmt::Write;

use vprof_tests::Run;

use crate::distribution;

/// Lines of the long output.
const LINES: u32 = 300_000;
/// Slowest rate of it, bytes a second: far more than by a serial port, which is 5,000 in an emulated host.
const SLOWEST: f64 = 200_000.0;

/// Returns a script that writes each byte once, then many lines of text as fast as it can, and the time for
/// them to standard error.
pub(crate) fn script() -> String {
    format!(
        r#"for a in 0 1 2 3; do for b in 0 1 2 3 4 5 6 7; do for c in 0 1 2 3 4 5 6 7; do printf "\\$a$b$c"; done; done; done
echo 'an error' >&2
begun=$(date +%s%N)
seq 1 {LINES}
echo "took $(($(date +%s%N) - begun)) ns" >&2
"#
    )
}

/// Asserts that a run printed the output of [`script`] after this many bytes, and returns what follows it.
pub(crate) fn assert_output(run: &Run, before: usize) -> &[u8] {
    let mut expected: Vec<u8> = (0..=255).collect();
    let mut lines = String::new();
    (1..=LINES).for_each(|line| writeln!(lines, "{line}").expect("a string takes all"));
    expected.extend(lines.as_bytes());
    let found = run.stdout_bytes.get(before..).unwrap_or_default();
    let differ = found.iter().zip(&expected).position(|(found, wanted)| found != wanted);
    assert_eq!(differ, None, "{}", run.stderr);
    assert!(found.len() >= expected.len(), "{} of {} bytes: {}", found.len(), expected.len(), run.stderr);
    assert!(run.stderr.contains("an error\n"), "{}", run.stderr);
    let took = run.stderr.split("took ").nth(1).and_then(|rest| rest.split(" ns").next());
    let ns: f64 = took.and_then(|ns| ns.parse().ok()).unwrap_or_else(|| panic!("{}", run.stderr));
    let rate = lines.len() as f64 / (ns / 1e9);
    println!("{} bytes in {:.2} s by the guest's clock: {:.0} kB/s", lines.len(), ns / 1e9, rate / 1e3);
    assert!(rate > SLOWEST, "{rate:.0} bytes a second");
    &found[expected.len()..]
}

#[test]
fn a_distributions_command_has_its_bytes() {
    let rest = assert_output(distribution::ran(), distribution::first_output().len());
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(rest));
}
