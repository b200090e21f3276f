//! Functions of managed languages, by the CPU time that the program itself measures in each.

use std::sync::OnceLock;

use vprof_tests::Run;
use vprof_tests::language::{
    JAVA, JAVA_21, JAVA_25, LanguageProgram, NODE, NODE_20, PHP, PHP_8_4, PYTHON, PYTHON_3_13, RUBY, RUBY_3_3,
};

/// CPU time of a program, s.
const SECONDS: u32 = 10;

/// Samples of a program in user code, at least.
const FEWEST: i64 = 500;

/// Runs a program, and asserts shares, whole stacks, names and lines.
fn holds(program: &LanguageProgram) -> Option<Run> {
    let run = program.run(SECONDS)?;
    program.assert_shares(&run, &run.stdout);
    program.assert_complete(&run, FEWEST);
    program.assert_lines(&run);
    Some(run)
}

/// Returns the run in Python on the demo image.
fn python() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| PYTHON.run(SECONDS).expect("a program that is not compiled"))
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_functions_have_the_shares_that_they_measure() {
    PYTHON.assert_shares(python(), &python().stdout);
    PYTHON.assert_complete(python(), FEWEST);
    PYTHON.assert_lines(python());
}

/// Asserts that the two threads of a pool have the names that the program gives them.
fn assert_thread_names(run: &Run, process: &str) {
    let rows = run.report_with(&["--by", "thread", "--process", process]).rows();
    for number in 0..2 {
        let name = format!("pool number {number}");
        let samples: i64 =
            rows.iter().filter(|row| row.name.contains(&name)).map(|row| row.self_samples).sum();
        assert!(samples > 100, "{name}: {rows:?}");
    }
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_threads_have_the_names_of_threading() {
    assert_thread_names(python(), "python3");
}

#[test]
#[ignore = "a program in Ruby: --all"]
fn ruby_functions_have_the_shares_that_they_measure() {
    holds(&RUBY);
}

#[test]
#[ignore = "a program in PHP: --all"]
fn php_functions_have_the_shares_that_they_measure() {
    holds(&PHP);
}

#[test]
#[ignore = "a program in JavaScript: --all"]
fn javascript_functions_have_the_shares_that_they_measure() {
    holds(&NODE);
}

#[test]
#[ignore = "a program in Java: --all"]
fn java_functions_have_the_shares_that_they_measure() {
    let Some(run) = holds(&JAVA) else { return };
    assert_thread_names(&run, "java");
    // The loop of `work` is between two readings of the clock, whose methods the compiler inlines into it.
    let rows = JAVA.measured(&run);
    let samples = |wanted: &dyn Fn(&str) -> bool| -> i64 {
        rows.iter().filter(|row| wanted(&row.name)).map(|row| row.self_samples).sum()
    };
    let [work, clock] =
        [samples(&|name| name == "Phases.work"), samples(&|name| name.ends_with(".getCurrentThreadCpuTime"))];
    assert!(work > 4 * clock, "{work} samples in `work`, {clock} in the method around the native one");
}

/// Makes a test of each program on another version of its runtime.
macro_rules! other_versions {
    ($($name:ident: $program:ident)*) => {
        $(
            #[test]
            #[ignore = "a program on another version of its runtime: --all"]
            fn $name() {
                holds(&$program);
            }
        )*
    };
}

other_versions! {
    python_3_13_functions_have_the_shares_that_they_measure: PYTHON_3_13
    ruby_3_3_functions_have_the_shares_that_they_measure: RUBY_3_3
    php_8_4_functions_have_the_shares_that_they_measure: PHP_8_4
    node_20_functions_have_the_shares_that_they_measure: NODE_20
    java_21_functions_have_the_shares_that_they_measure: JAVA_21
    java_25_functions_have_the_shares_that_they_measure: JAVA_25
}

#[test]
#[ignore = "a program in Python: --all"]
fn python_functions_are_among_native_ones_in_the_order_of_calls() {
    let stacks = python().user_stacks("python3");
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
fn python_frames_may_be_left_out() {
    let rows = |options: &[&str]| {
        python().report_with(&[&["--by", "function", "--process", "python3"], options].concat()).rows()
    };
    let has = |rows: &[vprof_tests::NamedRow], name: &str| rows.iter().any(|row| row.name == name);
    let (managed, native) = (rows(&[]), rows(&["--native"]));
    assert!(has(&managed, "work") && !has(&managed, "_PyEval_EvalFrameDefault"), "{managed:?}");
    assert!(has(&native, "_PyEval_EvalFrameDefault") && !has(&native, "work"), "{native:?}");
}
