//! Frames of real Java virtual machines, compared with what their threads say of themselves.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use runtimes::ManagedFrame;
use runtimes::hotspot::{HotspotBinary, JavaProcess, may_be_hotspot};
use symbols::cfi::UserEnd;
use testkit::OwnProcess;

mod process;
use process::generated::{LiveRuntime, Walker};
use process::{LiveMapping, LiveMemory, MappingReader, thread};

/// Threads of tests/Live.java that stay as they are, besides the idle ones.
const STILL: usize = 8;
/// Threads that have done nothing but stop.
const IDLE: usize = 50;
/// Samples of the busy thread.
const SAMPLES: usize = 400;

/// Returns the virtual machines to test: those of `VPROF_TESTS_JAVA`, separated by colons, or this machine's.
fn machines() -> Vec<PathBuf> {
    match std::env::var("VPROF_TESTS_JAVA") {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => testkit::tool("java").into_iter().map(|java| java.get_program().into()).collect(),
    }
}

impl LiveRuntime for JavaProcess {
    fn start(reader: &MappingReader, mappings: &[LiveMapping], memory: &LiveMemory) -> Self {
        let (elf, _, bias) = reader.named(mappings, may_be_hotspot).expect("libjvm.so");
        let binary = HotspotBinary::read(elf).expect("HotSpot");
        Self::new(&binary, memory, bias).expect("a layout")
    }

    fn describe(&mut self, memory: &LiveMemory, frame: &ManagedFrame) -> String {
        let Some(method) = self.method(memory, frame) else { return "unknown".to_owned() };
        let file = method.file.as_deref().unwrap_or("-");
        normal(&format!("{}|{file}|{}", method.name, method.line(frame).unwrap_or(0)))
    }
}

/// Removes the number of a hidden class, which JDK 11 does not have in the class's name.
fn normal(frame: &str) -> String {
    match frame.split_once('/') {
        Some((class, rest)) => format!("{class}{}", &rest[rest.find('.').unwrap_or(0)..]),
        None => frame.to_owned(),
    }
}

fn check(java: &Path, options: &[&str], warm: &str) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/Live.java");
    let mut command = Command::new(java);
    command.args(options).arg("-Dfile.encoding=UTF-8").args([source, warm, &IDLE.to_string()]);
    let mut process = OwnProcess(command.stdout(Stdio::piped()).spawn().expect("java"));
    let out = BufReader::new(process.stdout.take().expect("a pipe"));
    let lines: Vec<String> = out.lines().take(STILL + IDLE).map(|line| line.expect("a line")).collect();
    assert_eq!(lines.len(), STILL + IDLE, "{java:?} {options:?}: threads");
    let mut walker = Walker::<JavaProcess>::new(process.id());
    let by_jstack = jstack(java, process.id());
    for line in &lines {
        let mut parts = line.split('\t').map(normal);
        let name = parts.next().expect("a name");
        // Without the frames of the report.
        let wanted: Vec<String> = parts.skip_while(|frame| !frame.starts_with("Live.stop|")).collect();
        assert!(wanted.len() > 5, "{line}");
        let found = walker.walk(thread(process.id(), &name));
        let place = format!("{java:?} {options:?} {name}");
        let from = found.frames.iter().position(|frame| frame.starts_with("Live.stop|"));
        let from = from.unwrap_or_else(|| panic!("{place}: {:?} {:?}", found.frames, found.end));
        assert_eq!(found.frames[from..], wanted, "{place}");
        assert_eq!((found.end, found.doubts), (UserEnd::Complete, 0), "{place}");
        if let Some(threads) = &by_jstack {
            let dumped = threads.get(name.as_str()).unwrap_or_else(|| panic!("{place}: no such thread"));
            let found: Vec<String> = found.frames.iter().map(|frame| method_and_line(frame)).collect();
            assert_eq!(written(&found), written(dumped), "{place}: by jstack");
        }
        let parked = found.frames.iter().any(|frame| frame.contains("LockSupport.park|"));
        assert!(parked, "{place}: {:?}", found.frames);
    }
    busy(&mut walker, &format!("{java:?} {options:?}"));
}

/// Returns the frames of each thread, by its name, as the JDK's `jstack` prints them.
fn jstack(java: &Path, pid: u32) -> Option<HashMap<String, Vec<String>>> {
    let own = java.canonicalize().map(|java| java.with_file_name("jstack")).ok();
    let mut command = match own.filter(|jstack| jstack.exists()) {
        Some(jstack) => Command::new(jstack),
        None => testkit::tool("jstack")?,
    };
    let output = command.arg(pid.to_string()).output().expect("jstack");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut threads: HashMap<String, Vec<String>> = HashMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some((thread, _)) = line.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            thread.clone_into(&mut name);
        } else if let Some((method, place)) =
            line.trim().strip_prefix("at ").and_then(|frame| frame.split_once('('))
        {
            let line = place.trim_end_matches(')').rsplit_once(':').map_or("0", |(_, line)| line);
            threads.entry(name.clone()).or_default().push(normal(&format!("{method}|{line}")));
        }
    }
    Some(threads)
}

/// Returns the frames without those that the machine makes for lambdas, some of which `jstack` leaves out.
fn written(frames: &[String]) -> Vec<&String> {
    let is_made = |frame: &&String| frame.contains("Lambda") || frame.starts_with("java.lang.invoke.");
    frames.iter().filter(|frame| !is_made(frame)).collect()
}

/// Returns a frame without its file, which `jstack` does not print of native methods.
fn method_and_line(frame: &str) -> String {
    let mut parts = frame.split('|');
    format!("{}|{}", parts.next().unwrap_or(""), parts.next_back().unwrap_or("0"))
}

/// Samples the thread that is busy: all but a few stacks must be whole, and none may have another order.
fn busy(walker: &mut Walker<JavaProcess>, place: &str) {
    let tid = thread(walker.pid, "busy");
    let (mut bad, mut kinds, mut doubtful) = (Vec::new(), HashMap::new(), 0);
    for _ in 0..SAMPLES {
        // Samples are that far apart, because the thread then is in another function.
        std::thread::sleep(std::time::Duration::from_millis(2));
        let walked = walker.walk(tid);
        let names: Vec<&str> =
            walked.frames.iter().map(|frame| frame.split('|').next().unwrap_or("")).collect();
        let whole = names.ends_with(&["Live.busy", "Live.lambda$main$0", "java.lang.Thread.run"])
            || names.windows(2).any(|pair| pair[0] == "Live.busy" && pair[1].contains("Lambda"));
        let first = names.first().copied().unwrap_or("nothing").to_owned();
        *kinds.entry(first).or_insert(0) += 1;
        // Stubs without a fixed frame are unwound by their instructions.
        doubtful += usize::from(walked.doubts > 0);
        if walked.end != UserEnd::Complete || !whole || names.contains(&"unknown") {
            bad.push(format!("{:#x} {:?} {} {names:?}", walked.top, walked.end, walked.doubts));
        }
    }
    println!(
        "{place}: of {SAMPLES} stacks {} not whole, {doubtful} doubtful; innermost: {kinds:?}",
        bad.len()
    );
    let few = bad.len() * 50 <= SAMPLES;
    bad.truncate(20);
    println!("{}", bad.join("\n"));
    assert!(few, "{place}");
}

#[test]
fn threads_have_the_frames_that_their_program_sees() {
    for java in machines() {
        check(&java, &["-XX:TieredStopAtLevel=4"], "20000");
        check(&java, &["-Xint"], "10");
        check(&java, &["-XX:TieredStopAtLevel=1"], "3000");
    }
}
