//! Code that a guest's program makes at run time.

use vprof_tests::Run;

use crate::stacks::programs;

/// Returns the start of a function, as `jit` printed it in the form of its map.
fn start(run: &Run, name: &str) -> u64 {
    let line = run.stdout.lines().find(|line| line.trim_end().ends_with(&format!(" {name}")));
    let line = line.unwrap_or_else(|| panic!("no line of {name} in {:?}", run.stdout));
    let digits = line.split(' ').next().expect("a start");
    u64::from_str_radix(digits, 16).expect("a hexadecimal number")
}

#[test]
fn made_functions_have_the_names_that_their_program_gives_them() {
    let run = programs();
    let functions = run.report().functions();
    let inner = functions.iter().find(|f| f.symbol == "jit_inner").expect("jit_inner among the functions");
    assert_eq!((inner.module.as_deref(), inner.mode.as_str()), (Some("[jit]"), "user"));
    let anonymous = run.number(
        "SELECT count(*) FROM sample JOIN frame ON frame.id = sample.frame JOIN instance ON instance.id = sample.instance \
         WHERE comm = 'jit' AND frame.symbol = '[anonymous]'",
    );
    // Up to half a second of seven may pass before the map is read again.
    assert!(
        inner.samples > 50 && anonymous < inner.samples as f64 / 5.0,
        "{} named, {anonymous} not",
        inner.samples
    );
}

#[test]
fn made_functions_start_where_their_program_says() {
    let run = programs();
    let rows = run
        .query("SELECT DISTINCT symbol, address - offset FROM frame WHERE module = '[jit]' ORDER BY symbol");
    let found: Vec<_> = rows.iter().map(|row| (row[0].as_str(), row[1].as_i64())).collect();
    let at = |name: &'static str| (Some(name), i64::try_from(start(run, name)).ok());
    assert_eq!(found, [at("jit_inner"), at("jit_outer")]);
}

#[test]
fn made_functions_stand_in_their_callers_stacks() {
    // stack.parent leads outwards: jit_inner was called by jit_outer.
    let pairs = programs().number(
        "SELECT count(*) FROM stack AS inner JOIN stack AS outer ON outer.id = inner.parent \
         JOIN frame AS callee ON callee.id = inner.frame JOIN frame AS caller ON caller.id = outer.frame \
         WHERE callee.symbol = 'jit_inner' AND caller.symbol = 'jit_outer' AND caller.call",
    );
    assert!(pairs > 0.0);
}
