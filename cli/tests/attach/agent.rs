//! `vprof agent` on machines of this test, which it knows by their names.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parquet::record::Field;

use super::support::parquet_rows;
use super::*;

/// Time limit for an agent that waits for the begin of a window of ten minutes: half a minute, if too little
/// is left of the present one.
const BEGIN: Duration = Duration::from_secs(60);

/// An agent that is killed when it is dropped; its recorders end with it.
struct TestAgent(OwnProcess);

impl TestAgent {
    fn start(mut command: Command) -> Self {
        Self(OwnProcess(command.spawn().unwrap()))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).unwrap();
    }

    /// Returns the exit code and the messages, once it has ended.
    fn end(mut self) -> (Option<i32>, String) {
        let status = eventually("the agent's end", BEGIN, || self.0.try_wait().unwrap());
        let mut messages = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        (status.code(), messages)
    }
}

/// Makes an agent of machines with this name. The directory has its lock, its spool and its lake.
fn agent(directory: &Path, name: &str, arguments: &[&str]) -> Command {
    let mut agent = vprof(["agent", "--name", name, "--rate", "500"]);
    agent.args(arguments).arg("--to").arg(directory.join("lake")).arg("--spool").arg(directory.join("spool"));
    agent.env("XDG_RUNTIME_DIR", directory).stdin(Stdio::null()).stderr(Stdio::piped());
    agent
}

/// Starts a machine whose guest rests most of the time, of a test with this path; returns it with its name,
/// which begins with `name`, and a directory for agents.
fn resting(name: &str, test: &str) -> Option<(TestVm, String, tempfile::TempDir)> {
    run_as_vmm();
    let name = format!("{name}-{}", std::process::id());
    let vm = TestVm::start_named(test, "rest", &name)?;
    Some((vm, name, tempfile::tempdir().unwrap()))
}

/// Returns all files below a directory with this ending.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .flat_map(|entry| match entry.path() {
            path if path.is_dir() => files(&path, ending),
            path => vec![path],
        })
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    found.sort();
    found
}

/// Returns the rows of the only file of a table.
fn table(directory: &Path, name: &str) -> Vec<BTreeMap<String, Field>> {
    let found = files(&directory.join("lake/v1").join(name), "");
    let [path] = found.as_slice() else { panic!("{name}: {found:?}") };
    parquet_rows(path)
}

/// Returns the begin and the end of a recording, µs since 1970.
fn span(vm: &BTreeMap<String, Field>) -> (i64, i64) {
    match (&vm["begin"], &vm["covered_ns"]) {
        (Field::TimestampMicros(begin), Field::Long(ns)) => (*begin, begin + ns / 1_000),
        other => panic!("{other:?}"),
    }
}

fn sum(rows: &[BTreeMap<String, Field>], column: &str) -> i64 {
    let value = |row: &BTreeMap<String, Field>| match row[column] {
        Field::Long(value) => value,
        ref other => panic!("{column}: {other:?}"),
    };
    rows.iter().map(value).sum()
}

/// Waits for a recording with samples; returns its path.
fn recording(directory: &Path) -> PathBuf {
    eventually("a recording", BEGIN, || {
        let found = files(&directory.join("spool"), ".vprof");
        let query =
            vprof(["query"]).arg(found.first()?).args(["SELECT count(*) FROM v_charged", "--csv"]).output();
        let samples: u64 = stdout(&query.unwrap()).lines().nth(1)?.parse().ok()?;
        found.first().cloned().filter(|_| samples > 50)
    })
}

/// Waits until a recording follows the first one.
fn await_second_recording(directory: &Path, first: &Path) {
    eventually("a second recording", BEGIN, || {
        // Between two windows of ten minutes the first is written and removed.
        (files(&directory.join("spool"), ".vprof").len() > 1 || !first.exists()).then_some(())
    });
}

#[test]
fn a_window_is_in_the_lake_and_the_next_agent_continues() {
    let test = "agent::a_window_is_in_the_lake_and_the_next_agent_continues";
    let Some((_vm, name, directory)) = resting("lake", test) else { return };
    let own = directory.path();
    let first =
        TestAgent::start(agent(own, &name, &["--window", "10m", "--label", "team=db", "--one-of", "1"]));
    let profile = recording(own);
    // One agent on a host.
    let second = agent(own, &name, &["--window", "10m"]).output().unwrap();
    refused(&second, 1, &["another `vprof agent` runs on this host", "agent.lock"]);
    first.signal(Signal::SIGTERM);
    let (code, messages) = first.end();
    assert_eq!(code, Some(0), "{messages}");
    assert!(messages.contains(" of 1 recording in "), "{messages}");
    // The sums are those of the recording, which stays until the window is over.
    let query = |sql: &str| {
        let output = vprof(["query"]).arg(&profile).args([sql, "--csv"]).output().unwrap();
        stdout(&output).lines().nth(1).map(str::to_owned).unwrap_or_else(|| panic!("{}", stderr(&output)))
    };
    let samples = table(own, "samples");
    let counted: i64 = query("SELECT count(*) FROM v_charged").parse().unwrap();
    assert_eq!(sum(&samples, "samples"), counted);
    assert!(samples.iter().all(|row| row["group_"] == Field::Str("team=db".to_owned())));
    let vcpus = table(own, "vcpus");
    assert_eq!(vcpus.len(), 2);
    assert_eq!(sum(&vcpus, "guest_ns").to_string(), query("SELECT sum(guest_ns) FROM vcpu"));
    let vms = table(own, "vms");
    assert_eq!((vms.len(), sum(&vms, "samples")), (1, counted));
    assert_eq!(vms[0]["vm_name"], Field::Str(name.clone()));
    assert!(sum(&vms, "agent_cpu_ns") > 0 && sum(&vms, "agent_memory_bytes") > 1 << 20, "{vms:?}");
    let file = &files(&own.join("lake"), "")[0];
    assert!(!file.file_name().unwrap().to_string_lossy().starts_with('.'), "{file:?}");

    // Another agent in the same window replaces its files by those of both recordings.
    let next = TestAgent::start(agent(own, &name, &["--window", "10m"]));
    await_second_recording(own, &profile);
    next.signal(Signal::SIGINT);
    let (code, messages) = next.end();
    assert_eq!(code, Some(0), "{messages}");
    let all: i64 = files(&own.join("lake/v1/vms"), "").len().try_into().unwrap();
    assert!(all == 1 && sum(&table(own, "samples"), "samples") >= counted || all > 1, "{messages}");
}

/// Returns the names of a process's threads but the first one, sorted.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap());
    let others = tasks.filter(|task| task.file_name().to_string_lossy() != pid.to_string());
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap();
    let mut names: Vec<_> = others.map(|task| name(task).trim().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_recorder_has_no_threads_that_only_a_terminal_or_a_console_needs() {
    let test = "agent::a_recorder_has_no_threads_that_only_a_terminal_or_a_console_needs";
    let Some((_vm, name, directory)) = resting("threads", test) else { return };
    let agent = TestAgent::start(agent(directory.path(), &name, &["--window", "10m"]));
    recording(directory.path());
    let recorder = child_of(child_of(agent.0.id()));
    assert!(threads(recorder).is_empty());
    let of_half = ["attach", "attached 0", "attached 1", "collector", "finder"];
    assert_eq!(threads(child_of(recorder)), of_half);
}

#[test]
fn a_hangup_starts_the_agent_again_in_the_same_window() {
    let test = "agent::a_hangup_starts_the_agent_again_in_the_same_window";
    let Some((_vm, name, directory)) = resting("hangup", test) else { return };
    let own = directory.path();
    let agent = TestAgent::start(agent(own, &name, &["--window", "10m"]));
    let first = recording(own);
    agent.signal(Signal::SIGHUP);
    await_second_recording(own, &first);
    agent.signal(Signal::SIGTERM);
    let (code, messages) = agent.end();
    assert_eq!(code, Some(0), "{messages}");
    assert!(messages.contains(" of 1 recording in "), "before the second one: {messages}");
}

#[test]
fn a_killed_agent_stops_no_thread_and_the_next_one_writes_its_window() {
    let test = "agent::a_killed_agent_stops_no_thread_and_the_next_one_writes_its_window";
    let Some((vm, name, directory)) = resting("killed", test) else { return };
    let own = directory.path();
    let first = TestAgent::start(agent(own, &name, &["--window", "1m", "--engine", "ptrace"]));
    let profile = recording(own);
    // A copy of the process that the agent has started.
    let recorder = child_of(child_of(first.0.id()));
    first.signal(Signal::SIGKILL);
    drop(first);
    eventually("the recorder's end", SOON, || {
        (!Path::new(&format!("/proc/{recorder}")).exists()).then_some(())
    });
    assert!(!vm.is_held());
    assert!(profile.exists());
    let next = TestAgent::start(agent(own, &name, &["--window", "2s", "--once"]));
    let (code, messages) = next.end();
    assert_eq!(code, Some(0), "{messages}");
    assert!(messages.contains(" of an earlier agent is written now"), "{messages}");
    assert!(messages.matches(" of 1 recording in ").count() >= 2, "{messages}");
    assert!(!profile.exists() && files(&own.join("spool"), ".vprof").is_empty());
    let found = files(&own.join("lake/v1/samples"), ".parquet");
    assert!(found.len() >= 2, "{found:?}");
}

#[test]
fn recorders_begin_again_if_their_process_is_killed() {
    let test = "agent::recorders_begin_again_if_their_process_is_killed";
    let Some((_vm, name, directory)) = resting("again", test) else { return };
    let own = directory.path();
    let agent = TestAgent::start(agent(own, &name, &["--window", "10m"]));
    let begun = Instant::now();
    let first = recording(own);
    // Recorders that end within a second are not started again, because they cannot be started.
    std::thread::sleep(Duration::from_secs(2).saturating_sub(begun.elapsed()));
    kill(Pid::from_raw(child_of(agent.0.id()).cast_signed()), Signal::SIGKILL).unwrap();
    await_second_recording(own, &first);
    agent.signal(Signal::SIGTERM);
    let (code, messages) = agent.end();
    assert_eq!(code, Some(0), "{messages}");
    let sentence = "has ended (signal: 9 (SIGKILL)), and with it 1 recording; they begin again in ";
    assert!(messages.contains(sentence), "{messages}");
}

#[test]
fn the_next_window_begins_where_the_last_one_ends() {
    let test = "agent::the_next_window_begins_where_the_last_one_ends";
    let Some((_vm, name, directory)) = resting("follows", test) else { return };
    let own = directory.path();
    let agent = TestAgent::start(agent(own, &name, &["--window", "2s", "--engine", "bpf"]));
    let written = || files(&own.join("lake/v1/vms"), ".parquet");
    eventually("four windows", 2 * BEGIN, || (written().len() >= 4).then_some(()));
    agent.signal(Signal::SIGTERM);
    let (_, messages) = agent.end();
    let mut spans: Vec<_> =
        written().iter().flat_map(|path| parquet_rows(path)).map(|vm| span(&vm)).collect();
    spans.sort_unstable();
    let gaps: Vec<_> = spans.iter().zip(&spans[1..]).map(|((_, end), (begin, _))| begin - end).collect();
    // Other tests use the CPUs. A recorder that starts after the end of the one before takes far longer. A
    // recording has the time in which its last rows are written.
    let least_us = gaps.iter().min().unwrap();
    assert!((-2_000_000..50_000).contains(least_us), "{gaps:?} µs, {messages}");
}

#[test]
fn a_machine_that_ends_has_its_recording_in_the_window_and_counters_are_served() {
    let test = "agent::a_machine_that_ends_has_its_recording_in_the_window_and_counters_are_served";
    let Some((vm, name, directory)) = resting("ended", test) else { return };
    let own = directory.path();
    let mut agent = TestAgent::start(agent(own, &name, &["--window", "10m", "--metrics", "127.0.0.1:0"]));
    let mut messages = BufReader::new(agent.0.stderr.take().unwrap());
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("vprof: counters are at http://").expect(&line).to_owned();
    recording(own);
    let counters = || {
        let (host, path) = address.split_once('/').unwrap();
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(counters().contains("\nvprof_agent_recorded_vms 1\n"), "{}", counters());
    drop(vm);
    eventually("the recorder's end", BEGIN, || {
        counters().contains("\nvprof_agent_recorded_vms 0\n").then_some(())
    });
    agent.signal(Signal::SIGTERM);
    let mut rest = String::new();
    messages.read_to_string(&mut rest).unwrap();
    assert_eq!(
        eventually("the agent's end", BEGIN, || agent.0.try_wait().unwrap()).code(),
        Some(0),
        "{rest}"
    );
    assert!(sum(&table(own, "samples"), "samples") > 50, "{rest}");
    assert_eq!(sum(&table(own, "vms"), "complete"), 1, "{rest}");
}

#[test]
fn wrong_options_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path();
    for (arguments, word) in [
        (["--window", "7m"], "an hour has to be a multiple"),
        (["--label", "a"], "service=web"),
        (["--budget", "0.1"], "0.1%"),
        (["--one-of", "0"], "0 is not in"),
    ] {
        let output = agent(own, "none", &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
    std::fs::write(own.join("lake"), "a file").unwrap();
    refused(&agent(own, "none", &[]).output().unwrap(), 1, &["lake"]);
}
