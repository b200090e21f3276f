//! `vprof symbolize` on profiles of a program that is compiled here.

mod support;

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use profile::rows::{Batch, FileRow, FrameKind, FrameRow, InstanceRow, Mode, SampleRow, Sink, VcpuRow};
use profile::store::{ProfileWriter, SCHEMA_VERSION};
use support::{refused, run, stderr, stdout, vprof, write_profile};
use symbols::elf::ElfFile;
use symbols::names::Symbolizer;
use testkit::{OwnProcess, Terminal, tool};

const SOURCE: &str =
    "int work(int n) { return n * 3; }\nint main(int n, char **a) { return work(n) + !a; }\n";
const OTHER: &str = "00112233445566778899aabbccddeeff00112233";

/// A directory with `root/usr/bin/prog`, which has symbols and DWARF, `dbg`, which is empty, and `p.vprof`,
/// in which ten samples hit the program.
struct TestProgram {
    directory: tempfile::TempDir,
    build_id: String,
    start: u64,
}

impl TestProgram {
    /// Compiles the program. Returns `None` if there is no compiler and none is required.
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("root/usr/bin")).unwrap();
        fs::create_dir(at("dbg")).unwrap();
        fs::write(at("prog.c"), SOURCE).unwrap();
        let program = at("root/usr/bin/prog");
        let compiled = tool("cc")?
            .args(["-g", "-O0", "-Wl,--build-id=sha1", "-o"])
            .args([&program, &at("prog.c")])
            .status();
        assert!(compiled.unwrap().success());
        let elf = ElfFile::open(Box::new(File::open(&program).unwrap())).unwrap();
        let symbols = Symbolizer::new(&elf, None, None);
        let start = symbols.functions().iter().find(|function| function.name == "work").unwrap().start;
        let build_id = elf.build_id().unwrap().to_string();
        let setup = Self { directory, build_id, start };
        setup.write(&setup.build_id);
        Some(setup)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the profile, whose program has this build-id.
    fn write(&self, build_id: &str) {
        let file = FileRow {
            id: 1,
            path: "/usr/bin/prog".to_owned(),
            build_id: Some(build_id.to_owned()),
            read_from: Some("image".to_owned()),
            named_by: Some(".dynsym".to_owned()),
            ..FileRow::default()
        };
        let frame = FrameRow {
            id: 1,
            address: self.start + 4,
            kind: FrameKind::User,
            file: Some(1),
            symbol: Some(format!("prog[{:#x}]", self.start)),
            module: Some("prog".to_owned()),
            offset: 4,
            ..FrameRow::default()
        };
        let sample = |n| SampleRow {
            mode: Mode::User,
            frame: 1,
            time_ns: n,
            cpl: 3,
            instance: Some(1),
            ..SampleRow::default()
        };
        let instance = InstanceRow { id: 1, pid: 7, comm: "prog".to_owned(), ..InstanceRow::default() };
        let vcpu = VcpuRow { id: 0, samples: 10, exits: 10, ..VcpuRow::default() };
        let batch = Batch {
            vcpus: vec![vcpu],
            instances: vec![instance],
            files: vec![file],
            frames: vec![frame],
            samples: (0..10).map(sample).collect(),
            ..Batch::default()
        };
        let mut writer = ProfileWriter::create(&self.file("p.vprof"), true).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }

    fn symbolize(&self, option: &str, directory: &str) -> Output {
        run([
            "symbolize".as_ref(),
            self.file("p.vprof").as_os_str(),
            option.as_ref(),
            self.file(directory).as_ref(),
        ])
    }

    fn names(&self) -> String {
        let sql = "SELECT symbol, offset, line FROM frame";
        stdout(&run(["query".as_ref(), self.file("p.vprof").as_os_str(), sql.as_ref(), "--csv".as_ref()]))
    }

    fn report(&self) -> String {
        stdout(&run(["report".as_ref(), self.file("p.vprof").as_os_str()])).replace("\n  ", " ")
    }
}

#[test]
fn reports_suggest_symbolize_and_then_have_names() {
    let Some(setup) = TestProgram::new() else { return };
    let nameless = format!("prog[{:#x}]", setup.start);
    let before = setup.report();
    assert!(before.contains("Unnamed code: 100.0 % of user samples"), "{before}");
    // No hint at what would not help: nobody has a debug file of this build.
    let hint =
        format!("the debug file of build-id {} would name it: install it on this machine", setup.build_id);
    assert!(before.contains(&hint) && !before.contains("--debug-dir"), "{before}");
    let annotate =
        |function: &str| run(["annotate".as_ref(), function.as_ref(), setup.file("p.vprof").as_os_str()]);
    let note = stdout(&annotate(&nameless));
    assert!(note.contains("a debug file of its build would name it"), "{note}");

    let output = setup.symbolize("--symfs", "root");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let program = setup.file("root/usr/bin/prog");
    assert_eq!(
        stdout(&output),
        format!(
            "1 of 1 frame named (0 before), 1 of 1 file with a debug file.\n  \
             /usr/bin/prog: 1 of 1 frame named (0 before), by {}\n",
            program.display()
        )
    );
    assert_eq!(setup.names(), "symbol,offset,line\r\nwork,4,1\r\n");
    // A second time, as JSON: no frame is left to name.
    let again = run(["symbolize".as_ref(), "--json".as_ref(), setup.file("p.vprof").as_os_str()]
        .into_iter()
        .chain(["--symfs".as_ref(), setup.file("root").as_os_str()]));
    let json: serde_json::Value = serde_json::from_str(&stdout(&again)).unwrap();
    let frames = serde_json::json!({ "all": 1, "before": 1, "after": 1 });
    let found = serde_json::json!([{
        "path": "/usr/bin/prog", "build_id": setup.build_id, "debug_file": program, "frames": frames,
    }]);
    assert_eq!(
        json,
        serde_json::json!({ "found": found, "not_found": [], "frames": frames, "unanswered": 0 })
    );
    let after = setup.report();
    assert!(after.contains("work [prog]") && !after.contains("Unnamed"), "{after}");
    let named = stdout(&annotate("work"));
    assert!(named.contains("prog.c:1") && !named.contains("symbolize"), "{named}");
}

#[test]
fn reports_add_names_themselves() {
    let Some(setup) = TestProgram::new() else { return };
    let report = |option: &str, directory: &str| {
        run([
            "report".as_ref(),
            setup.file("p.vprof").as_os_str(),
            option.as_ref(),
            setup.file(directory).as_os_str(),
        ])
    };
    refused(&report("--symfs", "gone"), 1, &["can't read the directory", "gone"]);
    assert!(stdout(&report("--debug-dir", "dbg")).contains("Unnamed"), "nothing is there");
    // A profile that can't be changed is shown as it is.
    fs::set_permissions(setup.file("p.vprof"), fs::Permissions::from_mode(0o444)).unwrap();
    let output = report("--symfs", "root");
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("Unnamed"), "{}", stdout(&output));
    let message = stderr(&output);
    assert!(
        message.starts_with("vprof: no names were added: ") && message.contains("read-only"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
    fs::set_permissions(setup.file("p.vprof"), fs::Permissions::from_mode(0o644)).unwrap();
    let output = report("--symfs", "root");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let text = stdout(&output);
    assert!(text.contains("work [prog]") && !text.contains("Unnamed"), "{text}");
    assert_eq!(setup.names(), "symbol,offset,line\r\nwork,4,1\r\n", "the names are in the profile");
}

#[test]
fn debug_files_of_another_build_are_not_used() {
    let Some(setup) = TestProgram::new() else { return };
    setup.write(OTHER);
    let before = setup.names();
    // By path, by name, and in the directory of the other build-id: the file has another build-id.
    let place = setup.file("dbg/.build-id/00");
    fs::create_dir_all(&place).unwrap();
    let program = setup.file("root/usr/bin/prog");
    fs::copy(&program, place.join(format!("{}.debug", &OTHER[2..]))).unwrap();
    fs::copy(&program, setup.file("dbg/prog")).unwrap();
    for (option, directory) in [("--symfs", "root"), ("--debug-dir", "dbg"), ("--debug-dir", "root/usr/bin")]
    {
        let output = setup.symbolize(option, directory);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(
            stdout(&output),
            format!(
                "0 of 1 frame named (0 before), 0 of 1 file with a debug file.\n\n\
                 Unnamed: no debug file found\n  \
                 1 frame: build-id {OTHER} (/usr/bin/prog): no debug file of this build\n"
            )
        );
        assert_eq!(setup.names(), before);
    }
}

#[test]
fn wrong_places_of_debug_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    write_profile(&at("p.vprof"));
    let symbolize = |more: &[&Path]| {
        let profile = at("p.vprof");
        run([Path::new("symbolize"), &profile].iter().chain(more))
    };
    refused(&symbolize(&[]), 2, &["no place of debug files is given", "--debug-dir", "DEBUGINFOD_URLS"]);
    for option in ["--debug-dir", "--symfs"] {
        let option = Path::new(option);
        refused(&symbolize(&[option, &at("gone")]), 1, &["can't read the directory", "gone", "no such file"]);
        refused(
            &symbolize(&[option, &at("p.vprof")]),
            1,
            &["can't read the directory", "p.vprof", "not a directory"],
        );
    }
    // All user code of this profile is of memory without a file.
    let output = symbolize(&[Path::new("--debug-dir"), directory.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "Nothing to name: the profile has no user code of files.\n");
}

#[test]
fn profiles_that_can_not_be_changed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let symbolize = |name: &str| {
        run([
            "symbolize".as_ref(),
            at(name).as_os_str(),
            "--debug-dir".as_ref(),
            directory.path().as_os_str(),
        ])
    };
    refused(&symbolize("gone"), 1, &["gone does not exist"]);
    fs::write(at("text"), b"hello").unwrap();
    refused(&symbolize("text"), 1, &["text is not a vprof profile"]);
    refused(&symbolize("."), 1, &["is not a vprof profile"]);
    write_profile(&at("p.vprof"));
    // PRAGMA user_version: 4 bytes, big endian, at 60 of the header.
    let mut newer = fs::read(at("p.vprof")).unwrap();
    newer[60..64].copy_from_slice(&(SCHEMA_VERSION + 1).to_be_bytes());
    fs::write(at("newer"), newer).unwrap();
    refused(&symbolize("newer"), 1, &[&format!("version {}", SCHEMA_VERSION + 1), "use a newer vprof"]);
    fs::set_permissions(at("p.vprof"), fs::Permissions::from_mode(0o444)).unwrap();
    refused(&symbolize("p.vprof"), 1, &["p.vprof is read-only", "copy"]);
    let mut writer = ProfileWriter::create(&at("in-progress"), false).unwrap();
    let meta = vec![("host".to_owned(), "kvm".to_owned())];
    writer.write(&Batch { meta, ..Batch::default() }).unwrap();
    refused(&symbolize("in-progress"), 1, &["in-progress is in use", "try again after the run"]);
}

#[test]
fn a_terminal_shows_the_progress() {
    let Some(setup) = TestProgram::new() else { return };
    let mut command = vprof(["symbolize"]);
    command.arg(setup.file("p.vprof")).arg("--symfs").arg(setup.file("root"));
    let (status, shown) = Terminal::start(command, 24, 80).end();
    assert!(status.success());
    assert!(shown.starts_with("\r\x1b[Kfile 1 of 1: /usr/bin/prog\r\x1b[K"), "{shown:?}");
}

#[test]
fn servers_need_a_configuration_with_a_meaning() {
    let Some(setup) = TestProgram::new() else { return };
    let symbolize = |name: &str, value: &str| {
        let output = vprof(["symbolize".as_ref(), setup.file("p.vprof").as_os_str()])
            .env("DEBUGINFOD_URLS", "https://127.0.0.1:1")
            .env("DEBUGINFOD_CACHE_PATH", setup.file("cache"))
            .env_remove("SSL_CERT_DIR")
            .env(name, value)
            .output()
            .unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let (code, text) = symbolize("DEBUGINFOD_URLS", "ftp://127.0.0.1");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("ftp://127.0.0.1: only http:// and https:// are supported"), "{text}");
    let (code, text) = symbolize("SSL_CERT_FILE", "/no/such/file");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("name them in SSL_CERT_FILE"), "{text}");
    assert!(text.contains("the servers of DEBUGINFOD_URLS could not answer for 1 file"), "{text}");
}

#[test]
fn servers_are_queried() {
    let Some(setup) = TestProgram::new() else { return };
    fs::copy(setup.file("p.vprof"), setup.file("q.vprof")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(mut debuginfod) = tool("debuginfod") else { return };
    let started = debuginfod
        .args(["-F", "-p", &port.to_string(), "-d"])
        .args([setup.file("database"), setup.file("root")])
        .env_remove("DEBUGINFOD_URLS")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = OwnProcess(started.unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    for attempt in 0.. {
        // debuginfod clients cache a miss, so each try has another cache until the server has seen the file.
        let output = vprof(["symbolize".as_ref(), setup.file("p.vprof").as_os_str()])
            .env("DEBUGINFOD_URLS", format!("http://127.0.0.1:{port}"))
            .env("DEBUGINFOD_CACHE_PATH", setup.file(&format!("cache-{attempt}")))
            .output()
            .unwrap();
        let text = stdout(&output);
        if output.status.success() {
            if text.contains("(0 before), by debuginfod\n") {
                break;
            }
            assert!(text.contains(&setup.build_id), "{text}");
        } else {
            // It does not listen yet.
            assert!(stderr(&output).contains("could not answer"), "{}", stderr(&output));
            assert!(text.contains(": connection refused") && !text.contains("os error"), "{text}");
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(setup.names(), "symbol,offset,line\r\nwork,4,1\r\n");
    // A report asks the servers by itself, where the user has set some and code has no name.
    let report = |urls: &str| {
        vprof(["report".as_ref(), setup.file("q.vprof").as_os_str()])
            .env("DEBUGINFOD_URLS", urls)
            .env("DEBUGINFOD_CACHE_PATH", setup.file("cache-of-report"))
            .output()
            .unwrap()
    };
    let unanswered = report("http://127.0.0.1:1");
    assert!(
        unanswered.status.success()
            && stdout(&unanswered).contains("servers that have it in DEBUGINFOD_URLS"),
        "{}",
        stderr(&unanswered)
    );
    let wrong = report("ftp://127.0.0.1");
    assert!(wrong.status.success() && stderr(&wrong).contains("only http:// and https:// are supported"));
    let named = stdout(&report(&format!("http://127.0.0.1:{port}")));
    assert!(named.contains("work [prog]") && !named.contains("Unnamed"), "{named}");
}
