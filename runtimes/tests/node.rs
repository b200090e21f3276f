//! Frames of real processes of Node.js, compared with what they say of themselves.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use runtimes::ManagedFrame;
use runtimes::v8::{V8Binary, V8Process, may_be_v8};
use symbols::cfi::UserEnd;
use testkit::OwnProcess;

mod process;
use process::generated::{LiveRuntime, Walked, Walker};
use process::{LiveMapping, LiveMemory, MappingReader};

/// Samples of a busy process.
const SAMPLES: usize = 400;

/// Returns the programs to test: those of `VPROF_TESTS_NODE`, separated by colons, or this machine's.
fn programs() -> Vec<PathBuf> {
    match std::env::var("VPROF_TESTS_NODE") {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => testkit::tool("node").into_iter().map(|node| node.get_program().into()).collect(),
    }
}

impl LiveRuntime for V8Process {
    fn start(reader: &MappingReader, mappings: &[LiveMapping], memory: &LiveMemory) -> Self {
        // Debian's program is a small one with a library.
        let library = reader.named(mappings, |name| name.starts_with("libnode"));
        let (elf, file, bias) = library.or_else(|| reader.named(mappings, may_be_v8)).expect("Node.js");
        let binary = V8Binary::read(elf).expect("a supported build").expect("V8");
        Self::new(Arc::new(binary), memory, (file, bias))
    }

    fn describe(&mut self, memory: &LiveMemory, frame: &ManagedFrame) -> String {
        let Some(function) = self.function(memory, frame) else { return format!("unknown {frame:x?}") };
        format!("{}|{}|{}", function.name, function.file().unwrap_or("-"), function.line(frame).unwrap_or(0))
    }
}

/// Walks the first thread.
fn walk(walker: &mut Walker<V8Process>) -> Walked {
    walker.walk(i32::try_from(walker.pid).expect("a pid"))
}

/// Starts tests/Live.js and returns the process with its first line.
fn start(node: &Path, options: &[&str], arguments: &[&str]) -> (OwnProcess, String) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/Live.js");
    let mut command = Command::new(node);
    command.args(options).arg(source).args(arguments).stdout(Stdio::piped());
    let mut process = OwnProcess(command.spawn().expect("node"));
    let mut out = BufReader::new(process.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    (process, line.trim_end().to_owned())
}

/// Kind of the code that a chain of calls runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChainCode {
    /// Of one kind for each function: all frames are known.
    Plain,
    /// Optimised, with tables of what is inlined.
    Optimized,
    /// Optimised by Maglev, which has such tables only for debuggers.
    WithoutTables,
}

fn check(node: &Path, options: &[&str], warm: &str, code: ChainCode) {
    let (process, line) = start(node, options, &["chain", warm]);
    // V8 has no name for the code of eval, of which it says so in another way.
    let line = line.replace("\teval|-|", "\t(anonymous)|-|");
    // Optimised code may do a builtin's work itself: then only V8 knows of it.
    let is_shown = |frame: &&str| code == ChainCode::Plain || !frame.ends_with("|-|0");
    let wanted: Vec<&str> = line.split('\t').skip_while(|frame| !frame.starts_with("stop|")).collect();
    assert!(wanted.len() > 20, "{line}");
    let wanted: Vec<&str> = wanted.into_iter().filter(is_shown).collect();
    // It reports, then blocks, which it cannot report.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let walked = walk(&mut Walker::new(process.id()));
    let place = format!("{node:?} {options:?} {warm}");
    let (reports, frames): (Vec<_>, Vec<_>) =
        walked.frames.iter().partition(|frame| frame.starts_with("report|") || frame.starts_with("wait|"));
    assert_eq!(reports.len(), 2, "{place}: {:#?} {:?}", walked.frames, walked.end);
    let found: Vec<&str> = frames.into_iter().map(String::as_str).filter(is_shown).collect();
    if code == ChainCode::WithoutTables {
        // What is inlined is missing, and no frame is another one.
        let mut rest = wanted.iter();
        for frame in &found {
            let function = frame.trim_end_matches("|0");
            let is_it = |other: &&str| other.strip_prefix(function).is_some_and(|line| line.starts_with('|'));
            assert!(rest.any(|other| other == frame || is_it(other)), "{place}: {frame} in {found:#?}");
        }
        println!("{place}: {} of {} frames", found.len(), wanted.len());
    } else {
        assert_eq!(found, wanted, "{place}");
    }
    assert_eq!((walked.end, walked.doubts), (UserEnd::Complete, 0), "{place}");
}

/// Returns the major version of a program.
fn version(node: &Path) -> u32 {
    let out = Command::new(node).arg("--version").output().expect("a version");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let major = text.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    major.unwrap_or_else(|| panic!("{node:?}: {text}"))
}

/// Samples a busy process; returns the number of stacks that are not whole.
fn busy(node: &Path, options: &[&str]) -> usize {
    let place = format!("{node:?} {options:?}");
    let (process, _) = start(node, options, &["busy"]);
    let mut walker = Walker::new(process.id());
    let (mut bad, mut kinds, mut doubtful, mut lines) = (Vec::new(), HashMap::new(), 0, 0);
    for _ in 0..SAMPLES {
        // Samples are that far apart, because the thread then is in another function.
        std::thread::sleep(std::time::Duration::from_millis(2));
        let walked = walk(&mut walker);
        let names: Vec<&str> =
            walked.frames.iter().map(|frame| frame.split('|').next().unwrap_or("")).collect();
        let whole =
            names.contains(&"busy") && names.iter().any(|&name| name.ends_with("executeUserEntryPoint"));
        *kinds.entry(names.first().copied().unwrap_or("nothing").to_owned()).or_insert(0) += 1;
        lines += usize::from(walked.frames.first().is_some_and(|frame| !frame.ends_with("|0")));
        doubtful += usize::from(walked.doubts > 0);
        let known = !names.iter().any(|name| name.starts_with("unknown"));
        if walked.end != UserEnd::Complete || !whole || !known {
            bad.push(format!("{:#x} {:?} {} {names:?}", walked.top, walked.end, walked.doubts));
        }
    }
    println!(
        "{place}: of {SAMPLES} stacks {} not whole, {doubtful} doubtful; innermost: {lines} with a line, \
         {kinds:?}",
        bad.len()
    );
    println!("{}", bad.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n"));
    bad.len()
}

#[test]
fn a_process_has_the_frames_that_it_sees() {
    for node in programs() {
        let version = version(&node);
        let baseline: &[&str] = if version < 20 { &["--no-opt"] } else { &["--no-opt", "--no-maglev"] };
        let optimized = if version < 24 { ChainCode::Optimized } else { ChainCode::WithoutTables };
        check(&node, &[], "0", ChainCode::Plain);
        check(&node, &["--always-sparkplug"], "100", ChainCode::Plain);
        check(&node, baseline, "2000", ChainCode::Plain);
        check(&node, &[], "20000", optimized);
    }
}

#[test]
fn stacks_of_a_busy_process_are_whole() {
    for node in programs() {
        let bad = busy(&node, &[]) + busy(&node, &["--no-opt"]);
        assert!(bad * 50 <= 2 * SAMPLES, "{node:?}: {bad} of {}", 2 * SAMPLES);
    }
}
