use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::*;
use crate::rows::Microstates;
use crate::rows::{Batch, ConsoleRow, EventRow, FrameRow, InstanceRow, SampleRow, Sink, StackRow, VcpuRow};
use crate::rows::{COMPLETE, Mode};

pub(crate) fn sample(n: u64) -> SampleRow {
    SampleRow {
        vcpu: 0,
        time_ns: n,
        late_ns: 5,
        mode: Mode::Kernel,
        halted: false,
        frame: 1,
        rsp: 0xffff_c900_0000_0000,
        cpl: 0,
        cr3: 0x1000,
        interrupts_on: true,
        preempt_count: Some(0x8000_0000),
        instance: Some(1),
        tid: Some(12),
        ..Default::default()
    }
}

fn batch(samples: u64) -> Batch {
    let text = str::to_owned;
    Batch {
        meta: vec![(text("host"), text("kvm"))],
        vcpus: vec![VcpuRow {
            id: 0,
            samples,
            lost: 1,
            exits: 4,
            states: Microstates { guest: 3, sampler: 2, halted: u64::MAX, ..Microstates::default() },
        }],
        instances: vec![InstanceRow {
            id: 1,
            pid: 12,
            start_ns: 99,
            comm: text("gzip"),
            number: 3,
            ..Default::default()
        }],
        frames: vec![FrameRow {
            id: 1,
            address: 0xffff_ffff_8100_0010,
            symbol: Some(text("schedule")),
            offset: 16,
            ..Default::default()
        }],
        samples: (0..samples).map(sample).collect(),
        console: vec![ConsoleRow { time_ns: 1, bytes: vec![0, 0xff, b'\n'] }],
        events: vec![EventRow { time_ns: 2, kind: text("kernel"), text: text("found") }],
        ..Default::default()
    }
}

fn written(samples: u64) -> (TempDir, PathBuf, ProfileWriter) {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("a ?#%strange name.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(&batch(samples)).expect("room");
    (directory, path, writer)
}

fn finished(samples: u64) -> (TempDir, PathBuf) {
    let (directory, path, mut writer) = written(samples);
    writer.finish().expect("room");
    (directory, path)
}

fn first(profile: &Profile, sql: &str) -> Vec<Value> {
    profile.query(sql).expect("an answer").rows.swap_remove(0)
}

#[test]
fn one_file_with_everything_remains() {
    let (directory, path) = finished(3);
    let names: Vec<_> = fs::read_dir(&directory).expect("a directory").collect();
    assert_eq!(names.len(), 1);
    let profile = Profile::open(&path).expect("a profile");
    let text = |text: &str| Value::Text(text.to_owned());
    assert_eq!(
        first(&profile, "SELECT id, pid, start_ns, comm, number, kernel_thread FROM instance"),
        [
            Value::Integer(1),
            Value::Integer(12),
            Value::Integer(99),
            text("gzip"),
            Value::Integer(3),
            Value::Integer(0)
        ]
    );
    assert_eq!(
        first(&profile, "SELECT symbol, module, address, kind, instance, offset FROM frame"),
        [
            text("schedule"),
            Value::Null,
            Value::Integer(0xffff_ffff_8100_0010_u64.cast_signed()),
            text("kernel"),
            Value::Null,
            Value::Integer(16)
        ]
    );
    assert_eq!(first(&profile, "SELECT bytes FROM console"), [Value::Blob(vec![0, 255, 10])]);
    assert_eq!(first(&profile, "SELECT halted_ns FROM vcpu"), [Value::Integer(i64::MAX)]);
    let row = "SELECT comm, pid, instance, tid, symbol, address, mode, time_s FROM v_samples WHERE id = 3";
    assert_eq!(
        first(&profile, row),
        [
            text("gzip"),
            Value::Integer(12),
            Value::Integer(3),
            Value::Integer(12),
            text("schedule"),
            text("0xffffffff81000010"),
            text("kernel"),
            Value::Real(2e-9)
        ]
    );
    assert_eq!(
        first(&profile, "SELECT preempt_count, rsp, cr3 FROM sample"),
        [
            Value::Integer(0x8000_0000),
            Value::Integer(0xffff_c900_0000_0000_u64.cast_signed()),
            Value::Integer(0x1000)
        ]
    );
    let pragmas = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version";
    assert_eq!(
        first(&profile, pragmas),
        [Value::Integer(APPLICATION_ID.into()), Value::Integer(SCHEMA_VERSION.into())]
    );
}

#[test]
fn later_rows_replace_earlier_ones() {
    let (_directory, path, mut writer) = written(1);
    let mut second = batch(0);
    second.instances[0].comm = "xz".to_owned();
    second.frames[0].symbol = None;
    second.meta[0].1 = "portable".to_owned();
    second.vcpus[0].samples = 77;
    writer.write(&second).expect("room");
    let profile = Profile::open(&path).expect("a profile that is being written");
    let sql = "SELECT (SELECT comm FROM instance), (SELECT symbol FROM frame), (SELECT value FROM meta), \
               (SELECT samples FROM vcpu)";
    let text = |text: &str| Value::Text(text.to_owned());
    assert_eq!(first(&profile, sql), [text("xz"), Value::Null, text("portable"), Value::Integer(77)]);
}

#[test]
fn a_reader_beside_the_writer_does_not_stop_it() {
    let (_directory, path, mut writer) = written(10);
    let profile = Profile::open(&path).expect("a profile that is being written");
    let count = "SELECT count(*) FROM sample";
    assert_eq!(first(&profile, count), [Value::Integer(10)]);
    writer.write(&batch(5)).expect("room");
    assert_eq!(first(&profile, count), [Value::Integer(15)]);
    // The log cannot be folded back while it has a reader; that is not a failure.
    writer.finish().expect("room");
    drop(writer);
    assert_eq!(first(&profile, count), [Value::Integer(15)]);
    drop(profile);
    assert_eq!(first(&Profile::open(&path).expect("a profile"), count), [Value::Integer(15)]);
}

#[test]
fn an_existing_file_is_replaced_only_when_asked() {
    let (directory, path) = finished(3);
    let error = ProfileWriter::create(&path, false).expect_err("it exists");
    assert_eq!(
        error.to_string(),
        format!("{} exists already: choose another name or pass --force", path.display())
    );
    assert_eq!(samples(&path), 3);
    for not_a_file in [directory.path(), Path::new("/dev/null")] {
        let error = ProfileWriter::create(not_a_file, true).expect_err("never replaced");
        assert_eq!(error.to_string(), format!("{} is not a regular file", not_a_file.display()));
    }
    let nowhere = directory.path().join("no/such/place.vprof");
    let error = ProfileWriter::create(&nowhere, false).expect_err("no directory").to_string();
    assert!(error.starts_with(&format!("cannot create {}: No such file", nowhere.display())), "{error}");
}

fn samples(path: &Path) -> u64 {
    let profile = Profile::open(path).expect("a profile");
    match first(&profile, "SELECT count(*) FROM sample")[..] {
        [Value::Integer(count)] => count.cast_unsigned(),
        ref other => panic!("a count: {other:?}"),
    }
}

fn files(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> =
        names.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

/// Rows of a run before its guest.
fn preamble() -> Batch {
    Batch { meta: vec![("host".to_owned(), "kvm".to_owned())], ..Batch::default() }
}

#[test]
fn an_older_profile_is_replaced_when_the_new_one_has_begun() {
    let (directory, path) = finished(3);
    let mut failed = ProfileWriter::create(&path, true).expect("beside");
    failed.write(&preamble()).expect("room");
    failed.finish().expect("room");
    drop(failed);
    assert_eq!((samples(&path), files(&directory).len()), (3, 1));

    // The log of a killed run, next to the old file, must not get into the new one.
    fs::write(writer::companion(&path, "-wal"), b"left over").expect("room");
    let mut writer = ProfileWriter::create(&path, true).expect("beside");
    writer.write(&preamble()).expect("room");
    assert_eq!(samples(&path), 3, "nothing was recorded yet");
    writer.write(&batch(5)).expect("room");
    assert_eq!(samples(&path), 5, "the first rows are there at once");
    writer.write(&batch(2)).expect("room");
    let killed = samples(&path);
    // No end was written, as after a failure.
    drop(writer);
    assert_eq!((killed, samples(&path), files(&directory).len()), (7, 7, 1));
    let host = first(&Profile::open(&path).expect("a profile"), "SELECT value FROM meta WHERE key = 'host'");
    assert_eq!(host, [Value::Text("kvm".to_owned())]);
}

#[test]
fn only_a_file_without_anything_recorded_goes_with_its_writer() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(&preamble()).expect("room");
    writer.finish().expect("room");
    drop(writer);
    assert!(files(&directory).is_empty());

    // A run that sampled nothing, and came to its end.
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer
        .write(&Batch { meta: vec![(COMPLETE.to_owned(), "1".to_owned())], ..Batch::default() })
        .expect("room");
    drop(writer);
    assert_eq!(samples(&path), 0);

    // Another run has replaced the file meanwhile: it is not this writer's any more.
    fs::remove_file(&path).expect("a file");
    let idle = ProfileWriter::create(&path, false).expect("a new profile");
    let other = directory.path().join("other");
    fs::write(&other, b"somebody else's").expect("room");
    fs::rename(&other, &path).expect("the same directory");
    drop(idle);
    assert_eq!(fs::read(&path).expect("a file"), b"somebody else's");
}

#[test]
fn a_profile_in_progress_is_never_replaced() {
    let (directory, path, mut running) = written(4);
    let error = ProfileWriter::create(&path, true).expect_err("it has a writer");
    assert!(matches!(error, CreateError::InUse(_)), "{error}");
    // It came into its place after the other run had begun.
    running.finish().expect("room");
    drop(running);
    let mut late = ProfileWriter::create(&path, true).expect("beside");
    let mut second = ProfileWriter::create(&path, true).expect("beside");
    second.write(&batch(6)).expect("room");
    let error = late.write(&batch(8)).expect_err("in use").to_string();
    assert!(error.contains("in use") && error.contains("what was recorded is in"), "{error}");
    drop(late);
    assert_eq!(samples(&path), 6);
    let kept = files(&directory).into_iter().find(|name| name.starts_with(".vprof-")).expect("a file");
    assert_eq!(samples(&directory.path().join(kept)), 8);
}

#[test]
fn what_a_killed_run_left_in_its_log_survives_a_run_that_fails() {
    let (_directory, path) = interrupted();
    drop(ProfileWriter::create(&path, true).expect("beside"));
    assert_eq!(samples(&path), 500);
}

#[test]
fn a_profile_is_private_and_no_link_is_followed() {
    let (directory, path, mut writer) = written(1);
    writer.write(&batch(1)).expect("room");
    for suffix in ["", "-wal", "-shm"] {
        let file = if suffix.is_empty() { path.clone() } else { writer::companion(&path, suffix) };
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let mut next = ProfileWriter::create(&directory.path().join("x"), false).expect("a profile");
    next.write(&batch(1)).expect("room");
    drop(next);
    let mut next = ProfileWriter::create(&directory.path().join("x"), true).expect("beside");
    next.write(&batch(1)).expect("room");
    let mode = fs::metadata(directory.path().join("x")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A directory by another name is not refused.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).expect("a link");
    drop(ProfileWriter::create(&link.join("y"), false).expect("a profile"));
}

/// A finished profile after this SQL, with the file's own checks off.
fn crafted(sql: &str) -> (TempDir, PathBuf) {
    let (directory, path) = finished(3);
    let connection = rusqlite::Connection::open(&path).expect("a database");
    connection.execute_batch(&format!("PRAGMA writable_schema = ON; {sql}")).expect("it is done");
    drop(connection);
    (directory, path)
}

#[test]
fn a_profile_with_anything_but_its_tables_is_refused() {
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT";
    let crafted_files = [
        format!("DROP TABLE meta; CREATE VIEW meta AS {endless} i AS key, i AS value FROM n"),
        format!("DROP VIEW v_exits; CREATE VIEW v_exits AS {endless} i FROM n"),
        "CREATE TRIGGER t AFTER UPDATE ON frame BEGIN DELETE FROM sample; END".to_owned(),
        "ALTER TABLE event ADD COLUMN more AS (randomblob(1000000000))".to_owned(),
        "CREATE INDEX slow ON sample (abs(frame))".to_owned(),
        "CREATE TABLE more (x)".to_owned(),
        "DROP TABLE inlined".to_owned(),
        "CREATE VIRTUAL TABLE v USING fts5(x)".to_owned(),
        "UPDATE sqlite_schema SET sql = replace(sql, 'pid', 'dip') WHERE name = 'instance'".to_owned(),
    ];
    for sql in crafted_files {
        let (_directory, path) = crafted(&sql);
        let error = Profile::open(&path).expect_err(&sql);
        assert!(matches!(error, ProfileError::Damaged { .. }), "{sql}: {error}");
        assert!(Editor::open(&path).is_err(), "{sql}");
    }
}

#[test]
fn comments_and_spaces_of_the_schema_may_differ() {
    let sql = "UPDATE sqlite_schema SET sql = replace(replace(sql, '0 and up', 'from 0 on'), '    id', ' id') \
               WHERE name = 'vcpu'";
    let (_directory, path) = crafted(sql);
    assert_eq!(samples(&path), 3);
}

#[test]
fn values_that_are_too_long_are_told() {
    let (_directory, path) = crafted("UPDATE console SET bytes = zeroblob(20000000)");
    let profile = Profile::open(&path).expect("its tables are sound");
    let error =
        profile.connection().query_row("SELECT bytes FROM console", [], |row| row.get::<_, Vec<u8>>(0));
    let error = profile.error(&error.expect_err("too long"));
    assert!(matches!(error, ProfileError::Damaged { .. }), "{error}");
    // A query of a user's own gets a sentence.
    assert!(matches!(profile.query("SELECT bytes FROM console"), Err(QueryError::Sql(_))));
}

#[test]
fn reading_ends_whatever_the_pages_say() {
    let (_directory, path) = finished(3);
    let profile = Profile::open(&path).expect("a profile");
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let error = profile.connection().query_row(endless, [], |_| Ok(())).expect_err("it has no end");
    assert!(profile.error(&error).to_string().contains("has no end"), "{error}");
    // A user's own query is as long as it is, also afterwards.
    profile.allow_long_queries();
    let long = endless.replace("FROM n)", "FROM n WHERE i < 10000000)");
    assert_eq!(first(&profile, &long), [Value::Integer(10_000_000)]);
}

#[test]
fn stacks_that_lead_to_each_other_end() {
    let cycle = "DELETE FROM stack; INSERT INTO stack (id, parent, frame) \
                 SELECT 1, NULL, f.id FROM frame f LIMIT 1; \
                 INSERT INTO stack (id, parent, frame) SELECT v.id, v.parent, f.id FROM (SELECT 2 AS id, 1 AS parent \
                 UNION SELECT 3, 4 UNION SELECT 4, 3 UNION SELECT 5, 5) v, (SELECT id FROM frame LIMIT 1) f; \
                 UPDATE sample SET stack = 2; UPDATE sample SET stack = 3 WHERE id = 2; \
                 UPDATE sample SET stack = 5 WHERE id = 3";
    let (_directory, path) = crafted(cycle);
    let profile = Profile::open(&path).expect("its tables are sound");
    // A user's own query has no other bound.
    profile.allow_long_queries();
    let stacks = profile.query("SELECT id, depth FROM v_stacks").expect("an end");
    assert_eq!(stacks.rows, [[Value::Integer(2), Value::Integer(2)]]);
}

#[test]
fn a_journal_that_names_another_file_is_refused() {
    let (directory, path) = finished(3);
    let precious = directory.path().join("precious");
    fs::write(&precious, b"mine").expect("room");
    // As SQLite writes it: the journal's head, and at its end the name, its length, its sum and the mark.
    let name = precious.to_str().expect("a name").as_bytes();
    let mut journal = vec![0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    journal.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0x10, 0]);
    journal.resize(512, 0);
    journal.extend(0x4000_0001_u32.to_be_bytes());
    journal.extend(name);
    journal.extend(u32::try_from(name.len()).expect("short").to_be_bytes());
    journal.extend(name.iter().map(|&byte| u32::from(byte)).sum::<u32>().to_be_bytes());
    journal.extend([0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    fs::write(writer::companion(&path, "-journal"), journal).expect("room");
    assert!(matches!(Profile::open(&path), Err(ProfileError::Damaged { .. })));
    assert!(Editor::open(&path).is_err());
    assert_eq!(fs::read(&precious).expect("it is there"), b"mine");
}

#[test]
fn a_reader_can_neither_write_nor_attach() {
    let (directory, path) = finished(1);
    let profile = Profile::open(&path).expect("a profile");
    let other = directory.path().join("other");
    let attach = format!("ATTACH '{}' AS other", other.display());
    assert!(profile.query(&attach).is_err());
    assert!(profile.connection().execute("DELETE FROM sample", []).is_err());
    assert!(!other.exists());
}

/// Rows of a hostile guest in a fifth of a second: each sample has another process and another stack.
fn flood(n: u32) -> Batch {
    const SAMPLES: u32 = 50;
    const DEPTH: u32 = 127;
    let mut batch = batch(0);
    (batch.instances, batch.frames, batch.console) = (Vec::new(), Vec::new(), Vec::new());
    for n in n * SAMPLES..(n + 1) * SAMPLES {
        let first = 10 + n * DEPTH;
        let process = |id| InstanceRow { id, comm: format!("p{id}"), ..InstanceRow::default() };
        batch.instances.extend((0..20).map(|k| process(10 + n * 20 + k)));
        for id in first..first + DEPTH {
            batch.frames.push(FrameRow { id, address: id.into(), ..FrameRow::default() });
            batch.stacks.push(StackRow { id, parent: (id > first).then(|| id - 1), frame: id });
        }
        let last = first + DEPTH - 1;
        let row = SampleRow { frame: last, stack: Some(last), instance: Some(10 + n * 20), ..sample(1) };
        batch.samples.push(row);
    }
    batch
}

#[test]
fn beyond_its_size_a_profile_has_every_sample_and_no_new_stack() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile").limited_to(8 << 20);
    writer.write(&batch(3)).expect("room");
    for n in 0..400 {
        writer.write(&flood(n)).expect("room");
    }
    // A stack from before stays whole.
    let again = SampleRow { stack: Some(12), frame: 12, ..sample(1) };
    writer.write(&Batch { samples: vec![again], ..Batch::default() }).expect("room");
    writer.finish().expect("room");
    let size = fs::metadata(&path).expect("a file").len();
    // Without the limit: 20,000 samples with 127 frames, 127 stacks and 20 processes each, some 200 MB.
    assert!(size > 8 << 20 && size < 20 << 20, "{size} bytes");
    let profile = Profile::open(&path).expect("a profile");
    let number = |sql: &str| match first(&profile, sql)[..] {
        [Value::Integer(number)] => number,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(number("SELECT count(*) FROM sample"), 20_004);
    assert_eq!(number("SELECT count(*) FROM sample WHERE frame NOT IN (SELECT id FROM frame)"), 0);
    assert_eq!(number("SELECT count(*) FROM sample WHERE instance NOT IN (SELECT id FROM instance)"), 0);
    assert_eq!(number("SELECT count(*) FROM sample WHERE stack NOT IN (SELECT id FROM stack)"), 0);
    assert!(number("SELECT count(*) FROM sample WHERE stack IS NULL") > 15_000);
    assert_eq!(number("SELECT stack FROM sample ORDER BY id DESC LIMIT 1"), 12);
    assert_eq!(number("SELECT count(*) FROM event WHERE text LIKE '%limit of 8 MiB%'"), 1);
}

/// Returns file and log in the middle of a run.
fn interrupted() -> (TempDir, PathBuf) {
    let (source, path, writer) = written(500);
    let directory = tempdir().expect("a directory");
    let copy = directory.path().join("killed.vprof");
    fs::copy(&path, &copy).expect("room");
    fs::copy(writer::companion(&path, "-wal"), writer::companion(&copy, "-wal")).expect("a log");
    drop((writer, source));
    (directory, copy)
}

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
        command.args(["--exact", "profile::tests::a_directory_that_cannot_be_written_to"]).env(READER, path);
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
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
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

fn open_error(path: &Path) -> String {
    Profile::open(path).expect_err("no profile").to_string()
}

#[test]
fn what_is_no_profile_is_told() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("x.vprof");
    let shown = path.display();
    assert_eq!(open_error(&path), format!("{shown} does not exist"));
    assert_eq!(
        open_error(directory.path()),
        format!("{} is not a vprof profile", directory.path().display())
    );
    assert_eq!(open_error(Path::new("/dev/null")), "/dev/null is not a vprof profile");
    for content in [&b"short"[..], &[7; 5_000], b"SQLite format 3\0 and then nothing"] {
        fs::write(&path, content).expect("room");
        assert_eq!(open_error(&path), format!("{shown} is not a vprof profile"));
    }
    fs::write(&path, b"").expect("room");
    assert_eq!(open_error(&path), format!("{shown} is empty: its run did not start"));
    fs::remove_file(&path).expect("ours");
    let other = rusqlite::Connection::open(&path).expect("a database");
    other.execute_batch("CREATE TABLE sample (x)").expect("room");
    assert_eq!(open_error(&path), format!("{shown} is not a vprof profile"));
    other.pragma_update(None, "application_id", APPLICATION_ID).expect("room");
    for (found, told) in [
        (SCHEMA_VERSION + 1, "use a newer vprof"),
        (SCHEMA_VERSION - 1, "record again, or use the vprof that wrote it"),
    ] {
        other.pragma_update(None, "user_version", found).expect("room");
        let version = format!(
            "has version {found} of the profile format, and this vprof reads version {SCHEMA_VERSION}"
        );
        assert_eq!(open_error(&path), format!("{shown} {version}: {told}"));
    }
}

#[test]
fn what_is_cut_off_or_overwritten_is_told() {
    let (_directory, path) = finished(2_000);
    let bytes = fs::read(&path).expect("a file");
    for keep in [bytes.len() - 1, bytes.len() / 2, 4_096, 101] {
        fs::write(&path, &bytes[..keep]).expect("room");
        let told = format!("{} is cut off: it has {keep} of {} bytes", path.display(), bytes.len());
        assert_eq!(open_error(&path), told);
    }
    // Overwritten pages: the answer is an error with a sentence, or rows, and never a panic.
    let mut damaged = 0;
    for page in 1..bytes.len() / 4_096 {
        let mut broken = bytes.clone();
        broken[page * 4_096..(page + 1) * 4_096].fill(0xa5);
        fs::write(&path, &broken).expect("room");
        let result = Profile::open(&path).and_then(|profile| {
            crate::Report::read(&profile, &crate::Filter::default()).map_err(|error| match error {
                crate::report::ReportError::Profile(error) => error,
                other => panic!("{other}"),
            })
        });
        if let Err(error) = result {
            assert!(error.to_string().contains("is damaged"), "{error}");
            damaged += 1;
        }
    }
    assert!(damaged > 5, "{damaged} of {} pages", bytes.len() / 4_096);
}

#[test]
fn queries_only_read() {
    let (directory, path) = finished(3);
    let profile = Profile::open(&path).expect("a profile");
    let before = fs::read(&path).expect("a file");
    let elsewhere = directory.path().join("elsewhere");
    let vacuum = format!("VACUUM INTO '{}'", elsewhere.display());
    for sql in [
        "DELETE FROM sample",
        "INSERT INTO meta VALUES ('a', 'b')",
        "DROP TABLE sample",
        "CREATE TABLE t (x)",
        "PRAGMA user_version = 9",
        "PRAGMA journal_mode = WAL",
        vacuum.as_str(),
    ] {
        let error = profile.query(sql).expect_err(sql).to_string();
        assert_eq!(error, "this statement would change the profile: use one that only reads", "{sql}");
    }
    let attach = format!("ATTACH '{}' AS other", elsewhere.display());
    assert!(profile.query(&attach).is_err());
    assert!(!elsewhere.exists());
    assert_eq!(fs::read(&path).expect("a file"), before);
    for sql in ["SELECT 1; SELECT 2", "", "  -- nothing"] {
        assert_eq!(profile.query(sql).expect_err(sql).to_string(), "give exactly one SQL statement", "{sql}");
    }
    for (sql, told) in [
        ("SELEC 1", "the query is wrong: near \"SELEC\": syntax error"),
        ("SELECT nosuch FROM sample", "the query is wrong: no such column: nosuch"),
        ("SELECT * FROM nowhere", "the query is wrong: no such table: nowhere"),
    ] {
        assert_eq!(profile.query(sql).expect_err(sql).to_string(), told);
    }
    let parameter = profile.query("SELECT ?").expect_err("no value for the parameter").to_string();
    assert!(parameter.starts_with("the query is wrong"), "{parameter}");
}

#[test]
fn answers_keep_their_types() {
    let (_directory, path) = finished(3);
    let profile = Profile::open(&path).expect("a profile");
    let table =
        profile.query("SELECT 1 AS i, 0.5 AS r, 'x' AS t, x'00ff' AS b, NULL AS n").expect("an answer");
    assert_eq!(table.columns, ["i", "r", "t", "b", "n"]);
    let json = serde_json::to_string(&table).expect("JSON");
    assert_eq!(json, r#"{"columns":["i","r","t","b","n"],"rows":[[1,0.5,"x","00ff",null]]}"#);
    let mut seen = 0;
    let columns = profile.query_each("SELECT id FROM sample", |columns, row| {
        assert_eq!((columns.len(), row.len()), (1, 1));
        seen += 1;
        if seen == 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    });
    assert_eq!((columns.expect("columns"), seen), (vec!["id".to_owned()], 2));
}

mod edit {
    use super::*;

    fn profile() -> (TempDir, PathBuf) {
        let directory = tempdir().unwrap();
        let path = directory.path().join("p.vprof");
        let mut writer = ProfileWriter::create(&path, false).unwrap();
        writer.write(&super::batch(3)).unwrap();
        writer.finish().unwrap();
        (directory, path)
    }

    #[test]
    fn a_profile_that_is_written_or_read_only_is_left_alone() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("p.vprof");
        let mut writer = ProfileWriter::create(&path, false).unwrap();
        writer.write(&super::batch(3)).unwrap();
        assert!(matches!(Editor::open(&path), Err(EditError::InUse(_))));
        writer.finish().unwrap();
        drop(writer);
        assert!(Editor::open(&path).unwrap().files().unwrap().is_empty());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(Editor::open(&path), Err(EditError::ReadOnly(_))));
    }

    #[test]
    fn what_a_killed_run_left_is_folded_in() {
        let directory = tempdir().unwrap();
        let (path, copy) = (directory.path().join("p.vprof"), directory.path().join("copy.vprof"));
        let mut writer = ProfileWriter::create(&path, false).unwrap();
        writer.write(&super::batch(3)).unwrap();
        // As a kill leaves them: the file and its log, with nobody who has them open.
        for suffix in ["", "-wal"] {
            let with = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
            fs::copy(with(&path), with(&copy)).unwrap();
        }
        drop(Editor::open(&copy).unwrap());
        assert!(!directory.path().join("copy.vprof-wal").exists());
        let table = Profile::open(&copy).unwrap().query("SELECT count(*) FROM sample").unwrap();
        assert_eq!(table.rows, [[Value::Integer(3)]]);
    }

    #[test]
    fn a_table_that_is_missing_is_damage() {
        let (_directory, path) = profile();
        rusqlite::Connection::open(&path).unwrap().execute("DROP TABLE inlined", []).unwrap();
        let error = Editor::open(&path).unwrap_err();
        assert!(matches!(error, EditError::Profile(ProfileError::Damaged { .. })), "{error}");
    }
}
