//! Sinks of `vprof agent`: object stores and receivers of OpenTelemetry profiles. The windows are those that
//! an earlier agent has left, so that no virtual machine is needed.

mod otlp;
mod stacks;
mod stores;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use export::lake::{HOUR_NS, LakeVm, LakeWindow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profile::made_up;
use serde_json::Value;
use support::{refused, stderr, stdout, vprof};
use testkit::{OwnProcess, eventually, python_packages};

/// An authority of certificates.
const TLS: [&str; 1] = ["trustme==1.2.1"];
/// First window, hours since 1970.
const FIRST: u64 = 490_000;
const SAMPLES: u64 = 3_000;
/// Time limit for a sink that fails, and is tried again.
const SOON: Duration = Duration::from_secs(120);

/// A spool, and what the agent needs next to it.
struct TestSpool(tempfile::TempDir);

impl TestSpool {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("spool")
    }

    fn lake(&self) -> PathBuf {
        self.0.path().join("lake")
    }

    fn window(hour: u64) -> LakeWindow {
        LakeWindow {
            host: "alpha".to_owned(),
            start_unix_ns: (FIRST + hour) * HOUR_NS,
            length_ns: HOUR_NS,
            inclusion: 0.5,
            dropped_windows: 0,
        }
    }

    /// Adds a window with a machine for each name; returns its directory.
    fn add(&self, hour: u64, machines: &[&str]) -> PathBuf {
        let window = Self::window(hour);
        let directory = self.path().join(window.name());
        fs::create_dir_all(&directory).unwrap();
        serde_json::to_writer(File::create(directory.join("window.json")).unwrap(), &window).unwrap();
        for (number, name) in (0..).zip(machines) {
            let vm = LakeVm {
                id: format!("id{number}"),
                name: (*name).to_owned(),
                vmm: "qemu".to_owned(),
                group: "team=db".to_owned(),
                ..LakeVm::default()
            };
            let profile = directory.join(format!("id{number}-0.vprof"));
            made_up::write_run(&profile, SAMPLES, 60, 100 * hour + number);
            serde_json::to_writer(File::create(profile.with_extension("json")).unwrap(), &vm).unwrap();
        }
        directory
    }

    /// Sends a window to a sink.
    fn send(window: &Path, sink: &str, environment: &[(&str, &str)]) -> Output {
        let mut command = vprof(["agent-window"]);
        without_settings(command.arg(window).args(["--to", sink]));
        command.envs(environment.iter().copied()).output().unwrap()
    }

    /// Starts an agent that records nothing.
    fn agent(&self, arguments: &[&str], environment: &[(&str, String)]) -> TestAgent {
        let mut command = vprof(["agent", "--name", "none-of-this-name", "--spool"]);
        command.arg(self.path()).args(arguments).env("XDG_RUNTIME_DIR", self.0.path());
        without_settings(&mut command).envs(environment.iter().cloned()).stderr(Stdio::piped());
        TestAgent::new(command.spawn().unwrap())
    }
}

/// Removes the settings of this machine for clients.
fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().to_uppercase();
        if name.starts_with("AWS_") || name.starts_with("OTEL_") || name.ends_with("_PROXY") {
            command.env_remove(&name).env_remove(name.to_lowercase());
        }
    }
    command
}

/// An agent, killed when it is dropped.
struct TestAgent {
    process: OwnProcess,
    lines: Receiver<String>,
    seen: String,
}

impl TestAgent {
    fn new(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process: OwnProcess(child), lines, seen: String::new() }
    }

    /// Waits for a message with these words; returns it.
    fn says(&mut self, words: &str) -> String {
        let limit = Instant::now() + SOON;
        while let Ok(line) = self.lines.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            self.seen += &format!("{line}\n");
            if line.contains(words) {
                return line;
            }
        }
        panic!("no message with {words:?}:\n{}", self.seen);
    }

    /// Ends it; returns its exit code.
    fn end(&mut self) -> Option<i32> {
        kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGTERM).unwrap();
        eventually("the agent's end", SOON, || self.process.try_wait().unwrap()).code()
    }
}

/// Returns a port that nobody uses, below those that the kernel gives to clients: until a server has it, none
/// of the other tests' connections takes it.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 200).unwrap() * 100;
    let ports = std::iter::repeat_with(|| 10_240 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 22_000);
    ports.take(22_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Asserts that a window was not sent, with a message that has these words.
fn not_sent(output: Output, words: &[&str]) {
    // It prints what was sent before.
    assert!(stdout(&output).starts_with('{'), "{}", stdout(&output));
    refused(&Output { stdout: Vec::new(), ..output }, 1, words);
}

/// Returns the contents of all files below a directory, by their paths.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.extend(files(&path)),
            path => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    found
}

#[test]
fn certificates_are_those_of_the_systems_authorities() {
    let Some(programs) = python_packages(&TLS) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_sinks/tls.py");
    let mut command = Command::new(programs.join("python3"));
    let mut server =
        OwnProcess(command.arg(script).arg(spool.0.path()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let port = lines.next().unwrap();
    let store = format!("https://localhost:{port}");
    let authority = spool.0.path().join("ca.pem");
    let keys =
        [("AWS_ENDPOINT_URL", store.as_str()), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let sinks = [
        (format!("otlp+https://localhost:{port}"), "/v1development/profiles "),
        ("s3://profiles".to_owned(), "/profiles/v1/samples/"),
    ];
    for (sink, served) in sinks {
        // The system's own authorities know nothing of this one. The client of S3 would repeat that for a
        // minute.
        if sink.starts_with("otlp") {
            not_sent(TestSpool::send(&window, &sink, &keys), &["certificate", "SSL_CERT_FILE"]);
        }
        let trusted = [keys.as_slice(), &[("SSL_CERT_FILE", authority.to_str().unwrap())]].concat();
        let sent = TestSpool::send(&window, &sink, &trusted);
        assert!(sent.status.success(), "{sink}: {}", stderr(&sent));
        let totals: Value = serde_json::from_str(&stdout(&sent)).unwrap();
        let count = totals["sent"].as_u64().unwrap();
        let requests: Vec<String> = lines.by_ref().take(count.try_into().unwrap()).collect();
        assert!(requests.iter().any(|request| request.starts_with(served)), "{requests:?}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    let spool = TestSpool::new();
    for (sink, words) in [
        ("gs://a", "gs:// is not a scheme"),
        ("s3://", "names no bucket"),
        ("otlp+http://", "names no host"),
        ("otlp+https://a:b:c", "names no host"),
    ] {
        let output = vprof(["agent", "--to", sink]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{sink}");
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    for (sink, environment, words) in [
        ("s3://a", ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), vec!["cannot use s3://a", "AWS_ALLOW_HTTP"]),
        ("s3://a", ("AWS_ACCESS_KEY_ID", "a"), vec!["cannot use s3://a", "SecretAccessKey"]),
        ("otlp+http://a", ("OTEL_EXPORTER_OTLP_HEADERS", "a"), vec!["otlp+http://a:4318", "name=value"]),
    ] {
        let mut command = vprof(["agent", "--to", sink, "--spool"]);
        without_settings(command.arg(spool.path())).env(environment.0, environment.1);
        refused(&command.env("XDG_RUNTIME_DIR", spool.0.path()).output().unwrap(), 1, &words);
    }
}

#[test]
fn the_oldest_windows_are_dropped_while_a_sink_is_away_and_counted() {
    let spool = TestSpool::new();
    let hour = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3_600;
    let begun = hour();
    let windows: Vec<PathBuf> = (0..4).map(|hour| spool.add(hour, &["web"])).collect();
    let (lake, away) = (spool.lake(), "s3://profiles");
    let settings = [
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", free_port())),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "a".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "b".to_owned()),
        ("AWS_MAX_ATTEMPTS", "1".to_owned()),
    ];
    let size: usize = files(&windows[0]).values().map(Vec::len).sum();
    let limit = format!("{}K", 5 * size / 2 / 1_024);
    let (to, limits) = (["--to", lake.to_str().unwrap(), "--to", away], ["--spool-limit", &limit]);
    let arguments = [&to[..], &limits, &["--metrics", "127.0.0.1:0"]].concat();
    let mut agent = spool.agent(&arguments, &settings);
    let address = agent.says("counters are at http://").rsplit_once("http://").unwrap().1.to_owned();
    let metrics = || {
        let mut text = String::new();
        let (host, _) = address.split_once('/').unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    agent.says(" is dropped: the spool is larger than ");
    eventually("dropped windows", SOON, || {
        metrics()
            .contains(&format!("\nvprof_agent_sink_dropped_windows_total{{sink=\"{away}\"}} "))
            .then_some(())
    });
    let of = |text: &str, name: &str, sink: &str| -> Option<u64> {
        let begin = format!("vprof_agent_sink_{name}{{sink=\"{sink}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
    };
    eventually("a failed attempt", SOON, || (of(&metrics(), "failures_total", away)? > 0).then_some(()));
    let text = metrics();
    let left = windows.iter().filter(|window| window.exists()).count() as u64;
    assert_eq!(of(&text, "dropped_windows_total", away), Some(4 - left), "{text}");
    assert!((1..4).contains(&left), "{text}");
    assert!(windows[3].exists(), "the newest stays");
    let oldest = windows.iter().position(|window| window.exists()).unwrap() as u64;
    assert_eq!(of(&text, "oldest_window_timestamp_seconds", away), Some((FIRST + oldest) * 3_600), "{text}");
    assert_eq!(agent.end(), Some(1), "a window is left: {}", agent.seen);
    let state: Value = serde_json::from_slice(&fs::read(spool.path().join("state.json")).unwrap()).unwrap();
    // A window that has ended meanwhile has the number.
    let kept = if hour() == begun { 4 - left } else { 0 };
    assert_eq!(state["dropped_windows"].as_u64(), Some(kept), "for the next window");
}
