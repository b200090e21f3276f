//! Against the real server, and against answers that no server should give.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Instant;

use crate::elf::ElfFile;
use crate::names::{DebugFileOrigin, DebugFiles, DebugQuery};
use testkit::{eventually, tool};

use super::*;

fn client(urls: &str, cache: &Path, seconds: &str) -> Debuginfod {
    let variables = |name: &str| match name {
        "DEBUGINFOD_URLS" => Some(urls.into()),
        "DEBUGINFOD_CACHE_PATH" => Some(cache.into()),
        "DEBUGINFOD_TIMEOUT" => Some(seconds.into()),
        _ => None,
    };
    Debuginfod::from_environment(variables).unwrap()
}

fn id() -> BuildId {
    "00112233445566778899aabbccddeeff00112233".parse().unwrap()
}

#[test]
fn it_is_off_unless_urls_are_set() {
    let only = |wanted: &'static str, value: &'static str| {
        Debuginfod::from_environment(move |name| (name == wanted || name == "HOME").then(|| value.into()))
    };
    assert!(only("HOME", "/h").is_none());
    assert!(only("DEBUGINFOD_URLS", "  ").is_none());
    let client = only("DEBUGINFOD_URLS", "/h http://b").unwrap();
    assert_eq!(client.urls, ["/h", "http://b"]);
    assert!(client.cache.ends_with(".cache/debuginfod_client"));
    assert_eq!(client.limits.timeout, TIMEOUT);
}

/// A server that answers each connection with the next of `answers`, then hangs up.
fn server(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
            let mut stream: TcpStream = stream.unwrap();
            let mut request = [0; 4096];
            let size = stream.read(&mut request).unwrap();
            assert!(request[..size].starts_with(b"GET /buildid/0011"));
            let _ = stream.write_all(&answer);
        }
    });
    url
}

fn ask(answer: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let cache = tempfile::tempdir().unwrap();
    let client = client(&server(vec![answer.to_vec()]), cache.path(), "2");
    let found = client.find(&id()).map_err(|error| error.to_string())?;
    let left: Vec<_> = fs::read_dir(cache.path().join(id().to_string())).unwrap().collect();
    assert_eq!(left.len(), 1, "no partial file is left: {left:?}");
    Ok(found.map(|file| {
        let mut bytes = vec![0; usize::try_from(file.len()).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }))
}

#[test]
fn bodies_come_whole_or_not_at_all() {
    assert_eq!(ask(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").unwrap().unwrap(), b"abc");
    assert_eq!(ask(b"HTTP/1.0 200 OK\r\n\r\nabc").unwrap().unwrap(), b"abc");
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x\r\nc\r\n0\r\n\r\n";
    assert_eq!(ask(chunked).unwrap().unwrap(), b"abc");
    assert!(ask(b"HTTP/1.1 404 Not Found\r\n\r\n").unwrap().is_none());
    for (bad, reason) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc"[..], "end of file"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", "end of file"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid data"),
        (b"HTTP/1.1 500 No\r\n\r\n", "answered 500"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nhalf", "not HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://x/\r\n\r\n", "only http:// is supported"),
    ] {
        let error = ask(bad).map(|_| ()).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_body_without_end_is_cut() {
    let url = server(vec![[&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[7; 5000]].concat()]);
    let limits = Limits { timeout: Duration::from_secs(2), most: 4999 };
    let error = http::get(&format!("{url}/buildid/0011"), limits, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, HttpError::TooLarge { .. }), "{error}");
}

#[test]
fn a_silent_server_costs_no_more_than_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = tempfile::tempdir().unwrap();
    let client = client(&format!("http://{}", listener.local_addr().unwrap()), cache.path(), "1");
    let start = Instant::now();
    assert!(client.find(&id()).map(|_| ()).unwrap_err().to_string().contains("timed out"));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_servers_lack_is_remembered_and_failures_are_not() {
    let cache = tempfile::tempdir().unwrap();
    let miss = b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec();
    let client_of = |url: &str| client(url, cache.path(), "2");
    assert!(
        client_of("https://127.0.0.1:1")
            .find(&id())
            .map(|_| ())
            .unwrap_err()
            .to_string()
            .contains("only http://")
    );
    assert!(client_of(&server(vec![miss])).find(&id()).unwrap().is_none());
    assert!(client_of("http://127.0.0.1:1").find(&id()).unwrap().is_none(), "no server is asked again");
    let path = cache.path().join(id().to_string()).join("debuginfo");
    let old = SystemTime::now() - 2 * MISS;
    File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    assert!(client_of("http://127.0.0.1:1").find(&id()).is_err(), "asked again after a while");
    fs::write(&path, b"found by another program").unwrap();
    assert!(client_of("http://127.0.0.1:1").find(&id()).unwrap().is_some());
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
    let found = eventually("debug file from the server", Duration::from_secs(60), || {
        // A miss is remembered: each try has a separate cache until the server has seen the file.
        let cache = tempfile::tempdir().unwrap();
        let files = DebugFiles::new().with_source(Box::new(client(&url, cache.path(), "5")));
        files.find(&query).ok()
    });
    assert_eq!(found.origin, DebugFileOrigin::Source("debuginfod".into()));
    assert!(found.elf.has_section(".debug_info"));
}
