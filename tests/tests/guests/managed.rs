//! Functions of managed languages, by the CPU time that the program itself measures in each.

use std::sync::OnceLock;

use vprof_tests::{Guest, Run, assert_share};

/// Measures its functions by the thread's CPU clock, and prints `phase NAME SECONDS` for each.
const PROGRAM: &str = r#"
import sys, threading, time

spent = {"plain": 0.0, "recursive": 0.0, "generated": 0.0, "pooled": 0.0, "called_back": 0.0}
clock, total = time.thread_time, float(sys.argv[1])

def work(until):
    count = 0
    while clock() < until:
        for i in range(500):
            count += i * i % 7
    return count

def plain(until):
    work(until)

def recursive(until, depth=40):
    return recursive(until, depth - 1) if depth else work(until)

def generated(until):
    def values(depth):
        if depth:
            yield from values(depth - 1)
        else:
            yield work(until)
    return list(values(5))

def called_back(until):
    # From native code: list.sort calls the key function.
    def key(_):
        return work(until)
    [0].sort(key=key)

def pooled(until):
    work(until)

def measure(function, seconds):
    begin = clock()
    function(begin + seconds)
    spent[function.__name__] += clock() - begin

def pool():
    for _ in range(int(total * 20)):
        measure(pooled, 0.01)

threads = [threading.Thread(target=pool) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(int(total * 20)):
    measure(plain, 0.012)
    measure(recursive, 0.008)
    measure(generated, 0.006)
    measure(called_back, 0.004)
for thread in threads:
    thread.join()
for name, seconds in spent.items():
    print("phase", name, seconds)
"#;

fn command() -> [&'static str; 4] {
    ["python3", "-c", PROGRAM, "10"]
}

/// Returns the run on the demo image, whose CPython is 3.11.
fn demo() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let guest = Guest::demo().next_to_others().options(["-F", "250"]);
        guest.command(command()).run().succeeded()
    })
}

/// Returns the functions with the seconds that they have measured.
fn phases(run: &Run) -> Vec<(String, f64)> {
    let phase = |line: &str| {
        let (name, seconds) = line.trim_end().strip_prefix("phase ")?.split_once(' ')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    let phases: Vec<(String, f64)> = run.stdout.lines().filter_map(phase).collect();
    assert_eq!(phases.len(), 5, "{}", run.stdout);
    phases
}

fn assert_shares(run: &Run) {
    let report = run.report_with(&["--by", "function", "--process", "python3"]);
    let phases = phases(run);
    let total: f64 = phases.iter().map(|(_, seconds)| seconds).sum();
    let samples = |name: &str| report.row(name).total_samples;
    let all: i64 = phases.iter().map(|(name, _)| samples(name)).sum();
    for (name, seconds) in &phases {
        assert_share(name, samples(name), all, seconds / total);
    }
}

/// Asserts that the frames of at least 98 % of the stacks are there, and that 95 % of the samples in the
/// measured functions have a name.
fn assert_complete(run: &Run) {
    let walks = report(run).walks("user");
    let broken: i64 = walks.broken.iter().map(|(_, count)| count).sum();
    assert!(broken * 50 <= walks.walks, "{walks:?}");
    // Without those from before the process was recognised.
    let known = ["--by", "function", "--process", "python3", "--mode", "user", "--symbol", "measure"];
    let rows = run.report_with(&known).rows();
    let all: i64 = rows.iter().map(|row| row.self_samples).sum();
    let unnamed = rows.iter().filter(|row| row.name.contains('['));
    let unnamed: i64 = unnamed.map(|row| row.self_samples).sum();
    assert!(unnamed * 20 <= all && all > 500, "{unnamed} of {all}");
}

fn report(run: &Run) -> vprof_tests::Report {
    run.report_with(&["--process", "python3"])
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_functions_have_the_shares_that_they_measure() {
    assert_shares(demo());
    assert_complete(demo());
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_functions_are_among_native_ones_in_the_order_of_calls() {
    let stacks = demo().user_stacks("python3");
    let (mut right, mut all) = (0, 0);
    for (text, samples) in &stacks {
        let stack: Vec<&str> = text.split(';').collect();
        let at = |name: &str| stack.iter().position(|other| *other == name);
        let (Some(key), Some(caller)) = (at("called_back.<locals>.key"), at("called_back")) else { continue };
        all += samples;
        // Between the two is the native function that sorts.
        let natives = stack.get(key + 1..caller).unwrap_or_default();
        let between = natives.iter().all(|name| !["work", "key", "measure"].contains(name));
        right += if natives.len() > 1 && between { *samples } else { 0 };
    }
    assert!(all > 50 && right * 100 >= all * 99, "{right} of {all}");
    let depth = |text: &str| text.split(';').filter(|name| *name == "recursive").count();
    let recursions =
        stacks.iter().map(|(text, samples)| (depth(text), samples)).filter(|(depth, _)| *depth > 0);
    let (mut whole, mut all) = (0, 0);
    for (depth, samples) in recursions {
        all += samples;
        whole += if depth == 41 { *samples } else { 0 };
    }
    // The others are on the way down or up.
    assert!(whole * 10 >= all * 9 && all > 50, "{whole} of {all}");
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_frames_have_lines_and_may_be_left_out() {
    let lines = demo().query(
        "SELECT DISTINCT line FROM frame WHERE kind = 'managed' AND symbol = 'work' AND source = '<string>' ORDER BY line",
    );
    let lines: Vec<i64> = lines.iter().filter_map(|row| row[0].as_i64()).collect();
    // The loop of `work` and its first line.
    assert!(lines.contains(&11) && lines.iter().all(|line| (7..=12).contains(line)), "{lines:?}");
    let rows = |options: &[&str]| {
        demo().report_with(&[&["--by", "function", "--process", "python3"], options].concat()).rows()
    };
    let has = |rows: &[vprof_tests::NamedRow], name: &str| rows.iter().any(|row| row.name == name);
    let (managed, native) = (rows(&[]), rows(&["--native"]));
    assert!(has(&managed, "work") && !has(&managed, "_PyEval_EvalFrameDefault"), "{managed:?}");
    assert!(has(&native, "_PyEval_EvalFrameDefault") && !has(&native, "work"), "{native:?}");
}
