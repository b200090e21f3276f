//! Files that a killed run left, and files in places that cannot be written to.

use super::*;

#[test]
fn what_a_killed_run_left_is_found() {
    let (_directory, path) = interrupted();
    for _ in 0..2 {
        let profile = Profile::open(&path).expect("a profile with its log");
        assert_eq!(first(&profile, "SELECT count(*) FROM sample"), [Value::Integer(500)]);
    }
    // A log that breaks off loses its last transactions, not the file.
    let log = writer::companion(&path, "-wal");
    let bytes = fs::read(&log).expect("a log");
    fs::write(&log, &bytes[..bytes.len() - 10_000]).expect("room");
    let profile = Profile::open(&path).expect("a profile with a part of its log");
    assert_eq!(first(&profile, "SELECT count(*) FROM sample"), [Value::Integer(0)]);
}

const READER: &str = "VPROF_TEST_READER";

/// Root may write anywhere, so another user reads, in a separate process.
#[test]
fn a_directory_that_cannot_be_written_to() {
    if let Some(path) = std::env::var_os(READER) {
        let profile = Profile::open(Path::new(&path)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(first(&profile, "SELECT count(*) FROM sample"), [Value::Integer(500)]);
        return;
    }
    let read = |directory: &Path, path: &Path| {
        let mode = |mode| fs::Permissions::from_mode(mode);
        for entry in fs::read_dir(directory).expect("a directory") {
            fs::set_permissions(entry.expect("an entry").path(), mode(0o444)).expect("ours");
        }
        fs::set_permissions(directory, mode(0o555)).expect("ours");
        // The binary may be where the other user has no access; an open file is executable all the same.
        let binary = fs::File::open(std::env::current_exe().expect("this binary")).expect("readable");
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&binary);
        let mut command = std::process::Command::new(format!("/proc/self/fd/{descriptor}"));
        // libtest's names are without the crate's.
        let module = module_path!().split_once("::").expect("a module of the crate").1;
        let test = format!("{module}::a_directory_that_cannot_be_written_to");
        command.args(["--exact", &test]).env(READER, path);
        // SAFETY: fcntl is async-signal-safe; the descriptor stays open in the child until it is executed.
        unsafe {
            command.pre_exec(move || {
                libc::fcntl(descriptor, libc::F_SETFD, 0);
                // SAFETY: geteuid and setuid are async-signal-safe.
                if libc::geteuid() == 0 && libc::setuid(65_534) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let done = command.output().expect("this binary starts again");
        fs::set_permissions(directory, mode(0o755)).expect("ours");
        let printed = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && printed.contains("1 passed"), "{printed}");
    };
    let (directory, path) = finished(500);
    read(directory.path(), &path);
    let (directory, path) = interrupted();
    read(directory.path(), &path);
    // A killed run leaves the log's index as well.
    fs::write(writer::companion(&path, "-shm"), vec![0; 32_768]).expect("room");
    read(directory.path(), &path);
    // Only the file of a run that continues elsewhere: in WAL mode, but without a log.
    let (directory, path, mut writer) = written(500);
    writer.finish().expect("room");
    let connection = rusqlite::Connection::open(&path).expect("a database");
    connection.pragma_update(None, "journal_mode", "WAL").expect("WAL");
    drop(connection);
    read(directory.path(), &path);
}
