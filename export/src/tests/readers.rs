//! Exports in other programs' readers.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Output, Stdio};

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};
use serde_json::Value;

use super::{fixture, text, written};
use crate::{Count, Format, Request, Root};

/// Each line is a stack and a number, and the numbers add up.
pub fn assert_folded(text: &str, samples: u64) {
    let mut sum = 0;
    for line in text.lines() {
        let (stack, number) = line.rsplit_once(' ').expect("a number");
        assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line:?}");
        sum += number.parse::<u64>().expect("a number");
    }
    assert_eq!(sum, samples);
}

/// Asserts that all references to a table of the profile refer into it.
pub fn assert_pprof(plain: &[u8]) {
    crate::pprof::assert_sound(plain);
}

/// Asserts that all columns of a table have the length that it gives, and that all indexes are in their
/// tables.
pub fn assert_firefox(text: &str) -> Value {
    let profile: Value = serde_json::from_str(text).expect("JSON");
    let threads = profile["threads"].as_array().expect("threads");
    assert!(!threads.is_empty());
    for thread in threads {
        let length = |table: &str| thread[table]["length"].as_u64().expect("a length");
        let below = |table: &str, column: &str, limit: u64| {
            let places = thread[table][column].as_array().expect("a column");
            assert_eq!(places.len() as u64, length(table));
            assert!(places.iter().filter_map(Value::as_u64).all(|place| place < limit), "{table} {column}");
        };
        let strings = thread["stringArray"].as_array().expect("texts").len() as u64;
        below("samples", "stack", length("stackTable"));
        below("stackTable", "prefix", length("stackTable"));
        below("stackTable", "frame", length("frameTable"));
        below("frameTable", "func", length("funcTable"));
        below("funcTable", "name", strings);
    }
    profile
}

/// Every stack has frames that are in the file, and the weights add up to the samples.
pub fn assert_speedscope(text: &str) {
    let file: Value = serde_json::from_str(text).expect("JSON");
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    let mut sum = 0.0;
    for profile in file["profiles"].as_array().expect("profiles") {
        let (stacks, weights) = (&profile["samples"], &profile["weights"]);
        let stacks = stacks.as_array().expect("stacks");
        let places = stacks.iter().flat_map(|stack| stack.as_array().expect("a stack"));
        assert!(places.map(|place| place.as_u64().expect("a place")).all(|place| place < frames));
        let weights = weights.as_array().expect("weights");
        assert_eq!(weights.len(), stacks.len());
        sum += weights.iter().map(|weight| weight.as_f64().expect("a weight")).sum::<f64>();
    }
    assert!((sum - fixture::SAMPLES as f64).abs() < 1e-6, "{sum}");
}

/// Every sample is a block of an event line and of frames.
pub fn assert_perf_script(text: &str) {
    let blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.trim().is_empty()).collect();
    assert_eq!(blocks.len() as u64, fixture::SAMPLES);
    for block in blocks {
        let mut lines = block.lines();
        assert!(lines.next().is_some_and(|line| line.ends_with(" cpu-clock: ")), "{block:?}");
        assert!(lines.all(|line| line.starts_with('\t') && line.ends_with(')')), "{block:?}");
    }
    // Inferno 0.12 cannot split a name in the middle of a character.
    if text.is_ascii() {
        collapsed(text);
    }
}

/// Returns the stacks of inferno's reader of `perf script`.
fn collapsed(text: &str) -> BTreeMap<String, u64> {
    let mut options = Options::default();
    options.include_pid = true;
    let mut folded = Vec::new();
    Folder::from(options).collapse(text.as_bytes(), &mut folded).expect("what perf writes");
    let folded = String::from_utf8(folded).expect("UTF-8");
    let stack = |line: &str| {
        let (stack, number) = line.rsplit_once(' ').expect("a number");
        (stack.to_owned(), number.parse().expect("a number"))
    };
    let stacks: BTreeMap<String, u64> = folded.lines().map(stack).collect();
    assert!(!stacks.is_empty());
    stacks
}

/// Python's reader of CSV finds the same columns in every line, and no formula.
pub fn assert_csv(text: &str, name: &str) {
    let program = "import csv, sys\n\
                   rows = list(csv.DictReader(sys.stdin, strict=True))\n\
                   assert all(None not in row and None not in row.values() for row in rows)\n\
                   assert not any(text[:1] in tuple('=+-@') for row in rows for text in row.values())\n\
                   print(len(rows), sum(int(row['weight_ns']) for row in rows))";
    let Some(output) = asked("python3", &["-c", program], text.as_bytes()) else { return };
    assert!(output.status.success(), "{name:?}: {}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    let (rows, ns) = said.trim().split_once(' ').expect("two numbers");
    assert_eq!(rows, fixture::SAMPLES.to_string());
    assert!(ns.parse::<u64>().expect("a number").abs_diff(fixture::GUEST_NS) <= fixture::SAMPLES);
}

/// Returns a program's output for an input; `None` if it is not installed and not required.
fn asked(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut child = testkit::tool(program)?
        .args(arguments)
        .env("PYTHONIOENCODING", "utf-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A program that fails early reports the reason itself.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    Some(child.wait_with_output().expect("an end"))
}

#[test]
fn inferno_reads_perf_script_as_the_folded_stacks_are() {
    let made = fixture::plain();
    let stacks = collapsed(&text(&made, &Request::new(Format::PerfScript)));
    let sum: u64 = stacks.values().sum();
    assert!(sum.abs_diff(fixture::GUEST_NS) <= fixture::SAMPLES, "{stacks:#?}");
    let has = |end: &str| assert!(stacks.keys().any(|key| key.ends_with(end)), "{end}: {stacks:#?}");
    has("main;work;ksys_read;vfs_read");
    has("main;work;hash;mix");
    has("[no frame: page not present];work");
}

#[test]
fn go_reads_pprof() {
    let made = fixture::plain();
    let file = made.path.with_extension("pb.gz");
    std::fs::write(&file, written(&made, &Request::new(Format::Pprof))).expect("room");
    let file = file.to_str().expect("a name");
    let raw = ["tool", "pprof", "-raw", "-sample_index=samples", file];
    let Some(output) = asked("go", &raw, b"") else { return };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    for wanted in [
        "samples/count time/nanoseconds",
        "/usr/bin/prog abcd0123",
        "[kernel.kallsyms]",
        "mix mix.h:7",
        "hash mix.h:7",
        "work prog.c:20",
        "[no frame: page not present]",
        "thread:[worker]",
        "syscall:[read]",
        "interrupt:[virtio0-req.0]",
    ] {
        assert!(said.contains(wanted), "{wanted} is not in {said}");
    }
    let top = ["tool", "pprof", "-top", "-sample_index=samples", "-nodecount=3", file];
    let output = asked("go", &top, b"").expect("it was there before");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = said.lines().find(|line| line.ends_with(" mix (inline)")).unwrap_or(&said);
    assert_eq!(first.split_whitespace().next(), Some("40"), "{said}");
}

#[test]
fn firefox_gets_tracks_categories_and_markers() {
    let made = fixture::plain();
    let profile = assert_firefox(&text(&made, &Request::new(Format::Firefox)));
    let threads = profile["threads"].as_array().expect("threads");
    let named = |name: &str| threads.iter().find(|thread| thread["name"] == name).expect("a thread");
    let (vcpu, worker) = (named("vCPU 0"), named("worker"));
    assert_eq!(vcpu["samples"]["length"], fixture::SAMPLES + fixture::IDLE);
    assert_eq!(worker["samples"]["length"], 75);
    assert_eq!(worker["processName"], "prog#0");
    assert_eq!(vcpu["markers"]["length"], 1);
    let categories = profile["meta"]["categories"].as_array().expect("categories");
    let names: Vec<&str> = categories.iter().filter_map(|category| category["name"].as_str()).collect();
    assert_eq!(names, ["Other", "User", "Kernel", "Hard interrupt", "Soft interrupt", "Host", "Idle"]);
    let texts = worker["stringArray"].as_array().expect("texts");
    assert!(texts.iter().any(|text| text == "work [prog]"), "{texts:?}");
}

#[test]
fn folded_stacks_have_the_marks_of_a_flame_graph() {
    let made = fixture::plain();
    let request = Request { root: Root::None, count: Count::Samples, ..Request::new(Format::Flamegraph) };
    let svg = text(&made, &request);
    for wanted in ["<title>mix (40 samples, 47.06%)</title>", "<title>vfs_read (26 samples, 30.59%)</title>"]
    {
        assert!(svg.contains(wanted), "{wanted}");
    }
    assert_eq!(svg, text(&made, &request), "the same profile gives the same picture");
}
