//! Against the real server, and against answers that no server should give.

mod server;

use std::collections::HashMap;
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use symbols::elf::ElfFile;
use symbols::names::{DebugFileOrigin, DebugFiles, DebugQuery};
use testkit::{eventually, tool};

use super::*;
use crate::http::HttpLimits;
use server::{Answer, TestCertificate, answer, serve, serve_tls};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
const MISSING: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// An environment with its own cache.
struct TestClient {
    directory: tempfile::TempDir,
    variables: HashMap<&'static str, OsString>,
}

impl TestClient {
    fn new(urls: impl Into<OsString>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut client = Self { directory, variables: HashMap::new() };
        let cache = client.cache().into_os_string();
        client.set("DEBUGINFOD_URLS", urls).set("DEBUGINFOD_CACHE_PATH", cache);
        client.set("DEBUGINFOD_RETRY_LIMIT", "0").set("DEBUGINFOD_TIMEOUT", "5");
        client
    }

    fn set(&mut self, name: &'static str, value: impl Into<OsString>) -> &mut Self {
        self.variables.insert(name, value.into());
        self
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    fn config(&self) -> Result<Option<DebuginfodConfig>, String> {
        DebuginfodConfig::from_environment(&|name: &str| self.variables.get(name).cloned())
            .map_err(|error| error.to_string())
    }

    fn client(&self) -> Debuginfod {
        Debuginfod::from_environment(|name| self.variables.get(name).cloned()).unwrap().unwrap()
    }

    /// Asks for a file, and checks that no partial file is left.
    fn find(&self) -> Result<Option<Vec<u8>>, String> {
        let found = self.client().find(&id()).map_err(|error| error.to_string());
        let left = fs::read_dir(self.cache().join(id().to_string())).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "debuginfo"), "{left:?}");
        assert_eq!(left.len(), usize::from(found.is_ok()));
        Ok(found?.map(|file| {
            let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
            file.read_at(0, &mut bytes).unwrap();
            bytes
        }))
    }

    fn error(&self) -> String {
        self.find().unwrap_err()
    }
}

fn id() -> BuildId {
    "00112233445566778899aabbccddeeff00112233".parse().unwrap()
}

#[test]
fn it_is_off_unless_urls_are_set() {
    let mut client = TestClient::new("  ");
    assert_eq!(client.config().unwrap(), None);
    client.variables.remove("DEBUGINFOD_URLS");
    assert_eq!(client.config().unwrap(), None);
    client.set("DEBUGINFOD_URLS", "http://a").variables.remove("DEBUGINFOD_CACHE_PATH");
    assert_eq!(client.config().unwrap(), None, "no place for the cache");
}

#[test]
fn variables_are_those_of_elfutils() {
    let mut client = TestClient::new("http://a ima:enforcing https://b/\n");
    client.variables.retain(|name, _| *name == "DEBUGINFOD_URLS");
    let home = client.directory.path().to_owned();
    let config = client.set("HOME", &home).config().unwrap().unwrap();
    let limits = HttpLimits {
        timeout: Some(Duration::from_secs(90)),
        max_time: Some(Duration::from_secs(3600)),
        max_bytes: Some(1 << 30),
    };
    let cache = home.join(".cache/debuginfod_client");
    let urls = vec!["http://a".to_owned(), "https://b/".to_owned()];
    assert_eq!(config, DebuginfodConfig { urls, cache, retries: 2, limits, headers: Vec::new() });

    let config = client.set("XDG_CACHE_HOME", "/x").config().unwrap().unwrap();
    assert_eq!(config.cache, Path::new("/x/debuginfod_client"));
    fs::create_dir(home.join(".debuginfod_client_cache")).unwrap();
    assert_eq!(client.config().unwrap().unwrap().cache, home.join(".debuginfod_client_cache"));

    client.set("DEBUGINFOD_TIMEOUT", "-1").set("DEBUGINFOD_MAXTIME", "7").set("DEBUGINFOD_MAXSIZE", "0");
    let limits = client.set("DEBUGINFOD_RETRY_LIMIT", "").config().unwrap().unwrap().limits;
    assert_eq!(limits, HttpLimits { timeout: None, max_time: Some(Duration::from_secs(7)), max_bytes: None });

    let bad = client.set("DEBUGINFOD_TIMEOUT", "soon").config().unwrap_err();
    assert_eq!(bad, "DEBUGINFOD_TIMEOUT is not a whole number: soon");
    let bad = client.set("DEBUGINFOD_URLS", "http://a file:///b").config().unwrap_err();
    assert_eq!(bad, "DEBUGINFOD_URLS: file:///b: only http:// and https:// are supported");
}

#[test]
fn bodies_come_whole_or_not_at_all() {
    let ask = |bytes: &[u8]| TestClient::new(serve(vec![answer(bytes)])).find();
    assert_eq!(ask(OK).unwrap().unwrap(), b"abc");
    assert_eq!(ask(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc").unwrap().unwrap(), b"abc");
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
    assert_eq!(ask(chunked).unwrap().unwrap(), b"abc");
    assert_eq!(ask(MISSING).unwrap(), None);
    for (bad, reason) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc"[..], "disconnected"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", "disconnected"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", "no length"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", "no length"),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "no length"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nhalf", "disconnected"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: ftp://x/\r\n\r\n", "ftp"),
        (b"", "disconnected"),
    ] {
        let error = ask(bad).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

/// An answer of 5000 bytes that does not announce them.
fn chunks() -> Vec<u8> {
    let head = &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n"[..];
    [head, &[7; 5000], b"\r\n0\r\n\r\n"].concat()
}

#[test]
fn large_files_are_refused() {
    let refused = |bytes: Vec<u8>| {
        let mut client = TestClient::new(serve(vec![answer(bytes)]));
        let error = client.set("DEBUGINFOD_MAXSIZE", "4999").error();
        assert!(error.ends_with("more than 4999 bytes"), "{error}");
    };
    refused(chunks());
    refused(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n".to_vec());
    refused(b"HTTP/1.1 406 Not Acceptable\r\nContent-Length: 0\r\n\r\n".to_vec());
}

#[test]
fn slow_servers_cost_no_more_than_the_timeout() {
    let piece = |millis, bytes: &[u8]| (Duration::from_millis(millis), bytes.to_vec());
    let head = piece(0, b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n");
    let trickle: Answer = std::iter::once(head.clone()).chain((0..60).map(|_| piece(100, b"x"))).collect();
    let silent = vec![head, piece(6000, b"x")];
    let mute = vec![piece(6000, OK)];
    for (answer, variable) in [
        (trickle.clone(), "DEBUGINFOD_TIMEOUT"),
        (silent, "DEBUGINFOD_TIMEOUT"),
        (mute, "DEBUGINFOD_TIMEOUT"),
        (trickle, "DEBUGINFOD_MAXTIME"),
    ] {
        let mut client = TestClient::new(serve(vec![answer]));
        // A timeout is not tried again.
        client.set("DEBUGINFOD_RETRY_LIMIT", "9");
        let start = Instant::now();
        let error = client.set(variable, "1").error();
        assert!(error.contains("timed out"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(4), "{variable}: {error}");
    }
}

#[test]
fn failures_that_may_pass_are_tried_again() {
    let busy = || answer(&b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"[..]);
    let answers = || vec![busy(), answer(&b""[..]), answer(OK)];
    let mut client = TestClient::new(serve(answers()));
    assert!(client.set("DEBUGINFOD_RETRY_LIMIT", "1").error().contains("disconnected"));
    let mut client = TestClient::new(serve(answers()));
    assert_eq!(client.set("DEBUGINFOD_RETRY_LIMIT", "2").find().unwrap().unwrap(), b"abc");
}

#[test]
fn headers_come_from_the_file() {
    let mut client = TestClient::new("http://a");
    let file = client.directory.path().join("headers");
    client.set("DEBUGINFOD_HEADERS_FILE", &file);
    assert!(client.config().unwrap_err().starts_with("cannot read "));
    fs::write(&file, "X-Key: a:b\r\n \nOther:\n").unwrap();
    let headers = client.config().unwrap().unwrap().headers;
    assert_eq!(headers, [("X-Key".to_owned(), "a:b".to_owned()), ("Other".to_owned(), String::new())]);
    for bad in ["no colon", ": x", "a b: c", "A: b\u{7}"] {
        fs::write(&file, format!("A: b\n{bad}\n")).unwrap();
        assert!(client.config().unwrap_err().ends_with("line 2 is not `Name: value`"), "{bad}");
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    client.set("DEBUGINFOD_URLS", format!("http://{}", listener.local_addr().unwrap()));
    fs::write(&file, "X-Key: secret\n").unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let size = stream.read(&mut request).unwrap();
        stream.write_all(OK).unwrap();
        String::from_utf8_lossy(&request[..size]).to_ascii_lowercase()
    });
    client.set("DEBUGINFOD_MAXSIZE", "77").find().unwrap().unwrap();
    let request = server.join().unwrap();
    assert!(request.contains("\r\nx-key: secret\r\n"), "{request}");
    assert!(request.contains("\r\nx-debuginfod-maxsize: 77\r\n"), "{request}");
}

#[test]
fn what_servers_lack_is_remembered_and_failures_are_not() {
    let mut client = TestClient::new("http://127.0.0.1:1");
    assert!(client.error().contains("refused"));
    client.set("DEBUGINFOD_URLS", serve(vec![answer(MISSING)]));
    assert_eq!(client.find().unwrap(), None);
    client.set("DEBUGINFOD_URLS", "http://127.0.0.1:1");
    assert_eq!(client.find().unwrap(), None, "no server is asked again");
    let path = client.cache().join(id().to_string()).join("debuginfo");
    let old = SystemTime::now() - 2 * MISS;
    File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    assert!(client.client().find(&id()).is_err(), "asked again after a while");
    let minutes = client.cache().join("cache_miss_s");
    fs::write(&minutes, "9999\n").unwrap();
    assert_eq!(client.find().unwrap(), None, "the cache's own time");
    fs::remove_file(minutes).unwrap();
    fs::write(&path, b"found by another program").unwrap();
    assert!(client.find().unwrap().is_some());
}

#[test]
fn progress_is_reported() {
    let client = TestClient::new(serve(vec![answer(OK)]));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&seen);
    let found = client
        .client()
        .with_progress(move |progress| report.lock().unwrap().push((progress.bytes, progress.total)))
        .find(&id());
    assert!(found.unwrap().is_some());
    assert_eq!(*seen.lock().unwrap(), [(0, Some(3)), (3, Some(3))]);
}

#[test]
fn tls_servers_are_checked_by_their_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let Some(right) = TestCertificate::new(directory.path(), "IP:127.0.0.1") else { return };
    let Some(other) = TestCertificate::new(directory.path(), "DNS:elsewhere.example") else { return };
    let client = |server: &TestCertificate, authority: &Path| {
        let mut client = TestClient::new(serve_tls(server, vec![answer(OK)], false));
        client.set("SSL_CERT_FILE", authority);
        client
    };
    assert_eq!(client(&right, &right.certificate).find().unwrap().unwrap(), b"abc");
    let error = client(&right, &other.certificate).error();
    assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{error}");
    let error = client(&other, &other.certificate).error();
    assert!(error.contains("certificate not valid for name \"127.0.0.1\""), "{error}");
    let error = client(&right, &directory.path().join("none")).error();
    assert!(error.contains("name them in SSL_CERT_FILE"), "{error}");
    // Not TLS at all.
    let mut plain = TestClient::new(serve(vec![]).replace("http:", "https:"));
    assert!(plain.set("SSL_CERT_FILE", &right.certificate).set("DEBUGINFOD_TIMEOUT", "1").find().is_err());
}

#[test]
fn tls_answers_are_bounded_as_others() {
    let directory = tempfile::tempdir().unwrap();
    let Some(certificate) = TestCertificate::new(directory.path(), "IP:127.0.0.1") else { return };
    let client = |answer: Answer, cut| {
        let mut client = TestClient::new(serve_tls(&certificate, vec![answer], cut));
        client.set("SSL_CERT_FILE", &certificate.certificate).set("DEBUGINFOD_TIMEOUT", "1");
        client
    };
    assert_eq!(client(answer(MISSING), false).find().unwrap(), None);
    assert_eq!(client(answer(chunks()), false).find().unwrap().unwrap().len(), 5000);
    let error = client(answer(chunks()), false).set("DEBUGINFOD_MAXSIZE", "4999").error();
    assert!(error.ends_with("more than 4999 bytes"), "{error}");
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
    for cut in [false, true] {
        let error = client(answer(&half[..]), cut).error();
        assert!(error.contains("disconnected"), "{error}");
    }
    let start = Instant::now();
    let slow = vec![(Duration::ZERO, half.to_vec()), (Duration::from_secs(6), b"defghi".to_vec())];
    assert!(client(slow, false).error().contains("timed out"));
    assert!(start.elapsed() < Duration::from_secs(4));
}

#[test]
fn redirects_never_leave_tls() {
    let directory = tempfile::tempdir().unwrap();
    let Some(certificate) = TestCertificate::new(directory.path(), "IP:127.0.0.1") else { return };
    let redirect = |url: &str| {
        let path = format!("{url}/buildid/{}/debuginfo", id());
        // The server closes each connection: the client must not send its next request over it.
        let headers = "Content-Length: 0\r\nConnection: close";
        answer(format!("HTTP/1.1 302 Found\r\n{headers}\r\nLocation: {path}\r\n\r\n"))
    };
    let tls = |answers| serve_tls(&certificate, answers, false);
    let find = |url: String| TestClient::new(url).set("SSL_CERT_FILE", &certificate.certificate).find();
    let ok = || vec![answer(OK)];
    for url in [serve(ok()), tls(ok())] {
        assert_eq!(find(serve(vec![redirect(&url)])).unwrap().unwrap(), b"abc");
    }
    assert_eq!(find(tls(vec![redirect(&tls(ok()))])).unwrap().unwrap(), b"abc");
    let error = find(tls(vec![redirect(&serve(ok()))])).unwrap_err();
    assert!(error.contains("without TLS"), "{error}");
    let round = serve(vec![redirect(""); 9]);
    let error = find(round).unwrap_err();
    assert!(error.contains("too many redirects"), "{error}");
}

/// Ends the process when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_real_server_has_the_debug_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("served")).unwrap();
    fs::write(at("a.c"), "int main(void) { return 0; }").unwrap();
    let program = at("served/program");
    let (Some(mut cc), Some(mut debuginfod)) = (tool("cc"), tool("debuginfod")) else { return };
    let compiled = cc.args(["-g", "-Wl,--build-id=sha1", "-o"]).arg(&program).arg(at("a.c")).status();
    assert!(compiled.unwrap().success());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let started = debuginfod
        .args(["-F", "-p", &port.to_string(), "-d"])
        .arg(at("database"))
        .arg(at("served"))
        .env_remove("DEBUGINFOD_URLS")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Server(started.unwrap());

    let query =
        DebugQuery::new(&ElfFile::open(Box::new(File::open(&program).unwrap())).unwrap(), "/bin/program");
    let url = format!("http://127.0.0.1:{port}");
    let (found, _client) = eventually("debug file from the server", Duration::from_secs(60), || {
        // A miss is remembered: each try has a separate cache until the server has seen the file.
        let client = TestClient::new(&url);
        let files = DebugFiles::new().with_source(Box::new(client.client()));
        Some((files.find(&query).ok()?, client))
    });
    assert_eq!(found.origin, DebugFileOrigin::Source("debuginfod".into()));
    assert!(found.elf.has_section(".debug_info"));
}
