//! Functions of managed languages and the frames of the runtime that runs them.

use super::super::shares::{Shares, SharesBy};
use super::*;
use crate::rows::{FileRow, StackRow};

/// Stacks of an interpreter (file 2) that a library (file 1) starts: in a native function `sin` of a third
/// file, in one of the interpreter, in Python itself, and in the interpreter before it has a function.
fn run() -> Run {
    let mut run = Run::new();
    run.batch.files = [(1, "/lib/libc.so.6"), (2, "/bin/python3.11"), (3, "/lib/libm.so.6")]
        .map(|(id, path)| FileRow { id, path: path.to_owned(), ..FileRow::default() })
        .to_vec();
    let native = |id: u32, name: &str, file: u32| FrameRow {
        id,
        kind: FrameKind::User,
        file: Some(file),
        address: u64::from(id) << 8,
        symbol: Some(name.to_owned()),
        module: Some("native".to_owned()),
        ..FrameRow::default()
    };
    let managed = |id: u32, name: &str| FrameRow {
        id,
        kind: FrameKind::Managed,
        instance: Some(1),
        address: u64::from(id) << 8,
        symbol: Some(name.to_owned()),
        module: Some("python".to_owned()),
        ..FrameRow::default()
    };
    run.batch.frames.extend([
        native(20, "main", 1),
        native(21, "run", 2),
        native(22, "eval", 2),
        managed(23, "a"),
        managed(24, "b"),
        native(25, "call", 2),
        managed(26, "c"),
        native(27, "add", 2),
        native(28, "sin", 3),
    ]);
    // Frames from the outermost on, each stack a caller of the next.
    for (id, frame) in (1..).zip([20, 21, 22, 23, 24, 25, 22, 26, 27, 28]) {
        run.batch.stacks.push(StackRow { id, parent: id.checked_sub(1).filter(|&id| id > 0), frame });
    }
    for (frame, stack) in [(28, 10), (27, 9), (26, 8), (22, 3)] {
        run.add(1, 0, Mode::User, Some(1), frame);
        run.batch.samples.last_mut().expect("a sample").stack = Some(stack);
    }
    run
}

fn stacks(native: bool) -> Vec<String> {
    stacks_of(&run(), native)
}

fn stacks_of(run: &Run, native: bool) -> Vec<String> {
    let (_directory, path) = run.write();
    let profile = Profile::open(&path).expect("a profile");
    let filter = Filter { native, ..Filter::default() };
    let shares = Shares::read(&profile, &filter, SharesBy::Stack).expect("stacks");
    let mut names: Vec<String> = shares.rows.into_iter().map(|row| row.0.name).collect();
    names.sort();
    names
}

#[test]
fn a_stack_has_functions_of_the_language_or_frames_of_its_runtime() {
    assert_eq!(stacks(false), ["main;a;b;c", "main;a;b;c;sin", "main;run;eval"]);
    let native = ["", ";call;eval", ";call;eval;add", ";call;eval;add;sin"]
        .map(|inner| format!("main;run;eval{inner}"));
    assert_eq!(stacks(true), native);
}

/// Stacks of a language with generated code (file 2, code without a file) that libraries (1, 3) start and
/// that calls one of them.
fn generating_run(language: &str) -> Run {
    let mut run = Run::new();
    run.batch.files = [(1, "/lib/libc.so.6"), (2, "/lib/libjvm.so"), (3, "/lib/libnative.so")]
        .map(|(id, path)| FileRow { id, path: path.to_owned(), ..FileRow::default() })
        .to_vec();
    let frame = |id: u32, kind: FrameKind, name: &str, file: Option<u32>, module: &str| FrameRow {
        id,
        kind,
        file,
        instance: file.is_none().then_some(1),
        address: u64::from(id) << 8,
        symbol: Some(name.to_owned()),
        module: Some(module.to_owned()),
        ..FrameRow::default()
    };
    let native = |id, name, file| frame(id, FrameKind::User, name, Some(file), "native");
    let generated = |id, name| frame(id, FrameKind::User, name, None, "anonymous");
    let java = |id, name| frame(id, FrameKind::Managed, name, None, language);
    run.batch.frames.extend([
        native(20, "start", 1),
        native(21, "run", 2),
        generated(22, "stub"),
        generated(23, "code"),
        java(24, "A.main"),
        java(25, "A.inlined"),
        native(26, "call", 3),
        java(27, "B.back"),
        native(28, "collect", 2),
    ]);
    // Frames from the outermost on, each stack a caller of the next.
    for (id, frame) in (1..).zip([20, 21, 22, 23, 24, 25, 26, 21, 22, 23, 27, 22, 28]) {
        run.batch.stacks.push(StackRow { id, parent: id.checked_sub(1).filter(|&id| id > 0), frame });
    }
    for (frame, stack) in [(25, 6), (26, 7), (28, 13)] {
        run.add(1, 0, Mode::User, Some(1), frame);
        run.batch.samples.last_mut().expect("a sample").stack = Some(stack);
    }
    run
}

#[test]
fn code_that_a_runtime_generates_is_its_own() {
    for language in ["java", "ruby", "php"] {
        let inner = "start;A.main;A.inlined";
        let wanted = [inner.to_owned(), format!("{inner};call"), format!("{inner};call;B.back")];
        assert_eq!(stacks_of(&generating_run(language), false), wanted);
        let native = "start;run;stub;code";
        let wanted = [
            native.to_owned(),
            format!("{native};call"),
            format!("{native};call;run;stub;code;stub;collect"),
        ];
        assert_eq!(stacks_of(&generating_run(language), true), wanted);
    }
}

/// Stacks of JavaScript that a program (file 2) runs in itself and in generated code.
fn node_run() -> Run {
    let mut run = Run::new();
    run.batch.files = [(1, "/lib/libc.so.6"), (2, "/usr/bin/node")]
        .map(|(id, path)| FileRow { id, path: path.to_owned(), ..FileRow::default() })
        .to_vec();
    let frame = |id: u32, kind: FrameKind, name: &str, file: Option<u32>| FrameRow {
        id,
        kind,
        file,
        instance: file.is_none().then_some(1),
        address: u64::from(id) << 8,
        symbol: Some(name.to_owned()),
        module: Some(if kind == FrameKind::Managed { "javascript" } else { "native" }.to_owned()),
        ..FrameRow::default()
    };
    run.batch.frames.extend([
        frame(30, FrameKind::User, "start", Some(1)),
        frame(31, FrameKind::User, "JSEntry", Some(2)),
        frame(32, FrameKind::User, "InterpreterEntryTrampoline", Some(2)),
        frame(33, FrameKind::Managed, "main", None),
        frame(34, FrameKind::User, "code", None),
        frame(35, FrameKind::Managed, "parse", None),
        frame(36, FrameKind::User, "malloc", Some(1)),
    ]);
    for (id, frame) in (1..).zip([30, 31, 32, 33, 34, 35, 31, 36]) {
        run.batch.stacks.push(StackRow { id, parent: id.checked_sub(1).filter(|&id| id > 0), frame });
    }
    for (frame, stack) in [(33, 4), (35, 6), (31, 7), (36, 8)] {
        run.add(1, 0, Mode::User, Some(1), frame);
        run.batch.samples.last_mut().expect("a sample").stack = Some(stack);
    }
    run
}

#[test]
fn functions_of_javascript_are_shown_instead_of_their_program() {
    let inner = "start;main;parse";
    let wanted = ["start;main".to_owned(), inner.to_owned(), format!("{inner};malloc")];
    assert_eq!(stacks_of(&node_run(), false), wanted);
    let native = "start;JSEntry;InterpreterEntryTrampoline";
    let code = format!("{native};code");
    let wanted =
        [native.to_owned(), code.clone(), format!("{code};JSEntry"), format!("{code};JSEntry;malloc")];
    assert_eq!(stacks_of(&node_run(), true), wanted);
}

#[test]
fn a_sample_in_the_interpreter_is_in_the_function_that_it_runs() {
    let (_directory, path) = run().write();
    let report = |native| read(&path, &Filter { native, ..Filter::default() });
    let names = |report: &Report| {
        let mut names: Vec<_> =
            report.functions.iter().map(|f| (f.symbol.clone(), f.estimate.samples)).collect();
        names.sort();
        names
    };
    let rows = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|&(name, samples)| (name.to_owned(), samples)).collect()
    };
    assert_eq!(names(&report(false)), rows(&[("c", 2), ("eval", 1), ("sin", 1)]));
    assert_eq!(names(&report(true)), rows(&[("add", 1), ("eval", 2), ("sin", 1)]));
    assert!(report(true).functions.iter().all(|function| function.mode == "user"));
}
