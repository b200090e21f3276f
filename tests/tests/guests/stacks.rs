//! Call stacks and instructions of programs that were made to have known ones.

use std::sync::OnceLock;

use vprof_tests::{Guest, Run, assert_share};

use crate::{names, trip};

const PROGRAMS: &str = "shares --seconds 9 & recursion --seconds 7 & threads --seconds 7 --cpu 0 & \
     handler --seconds 7 & inlined --seconds 7 & cpp-inlined 7 & dlopened 7 & jit --seconds 8 & ";

/// Returns the run of all programs with functions of known shares and stacks, at once, and of the programs of
/// `names.rs` and `trip.rs`.
pub fn programs() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let script = format!("{PROGRAMS} {}; {}", names::SCRIPT, trip::CALLS);
        Guest::demo().next_to_others().options(trip::WATCHED).script(&script).run().succeeded()
    })
}

/// Returns the run of the paper's programs (docs/experiments.md), and of a stack deeper than the requested
/// depth.
fn sleepy() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    let script =
        "recursion --seconds 1; loop --seconds 2; call --outer 2000 --seconds 2; btree --operations 800000";
    RUN.get_or_init(|| Guest::demo().options(["--depth", "20"]).script(script).run().succeeded())
}

fn mixed_load() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| Guest::demo().command(["mixed-load", "20"]).run().succeeded())
}

/// Counts the samples with `function` on their stack: those of which `is` is true, and all.
fn count(run: &Run, program: &str, function: &str, is: impl Fn(&[&str]) -> bool) -> (i64, i64) {
    let (mut found, mut all) = (0, 0);
    for (text, samples) in run.user_stacks(program) {
        let stack: Vec<&str> = text.split(';').collect();
        if stack.contains(&function) {
            all += samples;
            found += if is(&stack) { samples } else { 0 };
        }
    }
    assert!(all > 30, "{program} has {all} samples in {function}");
    (found, all)
}

/// Asserts that `is` is true for 99 % of the samples with `function` on their stack.
fn assert_stacks(run: &Run, program: &str, function: &str, is: impl Fn(&[&str]) -> bool) {
    let (found, all) = count(run, program, function, is);
    assert!(
        found as f64 >= 0.99 * all as f64,
        "{found} of {all} in {function}: {:#?}",
        run.user_stacks(program).into_iter().max_by_key(|(_, samples)| *samples)
    );
}

fn times(stack: &[&str], function: &str) -> usize {
    stack.iter().filter(|name| **name == function).count()
}

#[test]
fn functions_have_the_shares_that_they_took() {
    let report = programs().user_code("shares", "function");
    let own = |name: &str| report.row(name).self_samples;
    let all = own("half") + own("third") + own("fifth");
    assert_share("half", own("half"), all, 0.5);
    assert_share("third", own("third"), all, 0.3);
    assert_share("fifth", own("fifth"), all, 0.2);
}

#[test]
fn callers_have_the_time_of_what_they_call() {
    let report = programs().user_code("shares", "function");
    let total = |name: &str| report.row(name).total_samples;
    let all = total("left") + total("right");
    assert_share("left", total("left"), all, 0.5);
    assert!((total("left") - total("half")).abs() * 100 <= all, "left calls half alone: {report:?}");
    let called = total("third") + total("fifth");
    assert!((total("right") - called).abs() * 100 <= all, "right calls third and fifth: {report:?}");
    assert_stacks(programs(), "shares", "third", |stack| {
        stack.windows(3).any(|s| s[0] == "third" && s[1] == "right")
    });
}

#[test]
fn a_recursion_is_on_the_stack_as_deep_as_it_went() {
    let whole = |stack: &[&str]| times(stack, "descend") == 60 && stack.last() == Some(&"_start");
    assert_stacks(programs(), "recursion", "descend", whole);
}

#[test]
#[ignore = "more programs: --all"]
fn a_stack_deeper_than_asked_for_is_cut_and_says_so() {
    // Above the work there may be what reads the clock.
    let cut = |stack: &[&str]| stack.len() == 21 && times(stack, "descend") >= 16 && stack[20] == "too deep";
    assert_stacks(sleepy(), "recursion", "descend", cut);
}

#[test]
fn main_is_beyond_the_frame_of_a_signal() {
    let has_main = |stack: &[&str]| stack[1] == "__restore_rt" && stack.contains(&"main");
    assert_stacks(programs(), "handler", "on_alarm", has_main);
    let waited = |stack: &[&str]| stack.contains(&"wait_for_signal");
    let (found, all) = count(programs(), "handler", "on_alarm", waited);
    assert!(found * 10 >= all * 8, "{found} of {all} interrupted wait_for_signal");
}

/// Returns the samples at the ten instructions that were hit most, and all, in code of `program`'s own file:
/// the libraries that start it take time on a slow machine.
fn at_ten_instructions(program: &str) -> (f64, f64) {
    let by_instruction = format!(
        "SELECT count(*) AS n FROM sample JOIN frame ON frame.id = sample.frame \
         JOIN mode ON mode.id = sample.mode JOIN instance ON instance.id = sample.instance \
         JOIN file ON file.id = frame.file WHERE comm = '{program}' AND mode.name = 'user' AND file.path LIKE '%/{program}' \
         GROUP BY address ORDER BY n DESC"
    );
    let sum = |limit| sleepy().number(&format!("SELECT sum(n) FROM ({by_instruction} LIMIT {limit})"));
    (sum(10), sum(-1))
}

#[test]
#[ignore = "more programs: --all"]
fn a_loop_is_within_its_handful_of_instructions() {
    let (ten, all) = at_ten_instructions("loop");
    assert!(all > 500.0 && ten >= 0.95 * all, "{ten} of {all}");
}

#[test]
#[ignore = "more programs: --all"]
fn a_nested_call_is_within_its_inner_loop() {
    let (ten, all) = at_ten_instructions("call");
    let inner = sleepy().user_code("call", "function").row("loop").self_samples as f64;
    assert!(all > 500.0 && ten >= 0.95 * all && inner >= 0.95 * all, "{ten}, {inner} of {all}");
}

#[test]
#[ignore = "more programs: --all"]
fn a_btree_spends_most_in_find_index() {
    let rows = sleepy().user_code("btree", "function").rows();
    let largest = rows.iter().max_by_key(|row| row.self_samples).expect("functions");
    assert_eq!(largest.name, "find_index");
    for name in ["lookup", "insert_recursive", "find_child", "get_parent_key", "operate"] {
        assert!(rows.iter().any(|row| row.name == name && row.self_samples > 0), "{name} in {rows:#?}");
    }
}

#[test]
#[ignore = "a guest with many programs: --all"]
fn walks_over_the_kernels_stacks_reach_the_end() {
    let walks = mixed_load().report().walks("kernel");
    assert!(walks.walks > 500 && walks.lost() * 100 <= walks.walks, "{walks:?}");
}

#[test]
#[ignore = "a guest with many programs: --all"]
fn walks_over_programs_stacks_reach_the_end() {
    let walks = mixed_load().report().walks("user");
    assert!(walks.walks > 500 && walks.lost() * 20 <= walks.walks, "{walks:?}");
}

/// Debian's fzf is stripped: its names and frames come from Go's own table.
#[test]
#[ignore = "a guest with many programs: --all"]
fn stripped_go_programs_have_names_and_stacks() {
    let walks = mixed_load().report_with(&["--process", "fzf"]).walks("user");
    assert!(walks.walks > 50 && walks.lost() * 10 <= walks.walks, "{walks:?}");
    let stacks = mixed_load().user_stacks("fzf");
    let samples = |is: fn(&str) -> bool| -> i64 {
        stacks.iter().filter(|(text, _)| text.split(';').any(is)).map(|(_, samples)| samples).sum()
    };
    let all = samples(|_| true);
    let own = samples(|name| name.starts_with("github.com/junegunn/fzf/src"));
    assert!(own * 5 > all, "{own} of {all} with a function of the program: {stacks:#?}");
    assert!(samples(|name| name == "runtime.main" || name == "runtime.goexit") * 5 > all, "{stacks:#?}");
}
