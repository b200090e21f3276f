//! Files that a new profile replaces, and those that it leaves.

use super::*;

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
    assert!(error.starts_with(&format!("can't create {}: no such file", nowhere.display())), "{error}");
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
fn the_replaced_profile_stays_under_another_name() {
    let (directory, path) = finished(3);
    let old = directory.path().join("p.old");
    let keeping = || ProfileWriter::create(&path, true).expect("beside").keeping_older(old.clone());
    let mut failed = keeping();
    failed.write(&preamble()).expect("room");
    drop(failed);
    assert_eq!((samples(&path), old.exists()), (3, false), "nothing was recorded: nothing moves");
    for (recorded, kept) in [(5, 3), (7, 5)] {
        let mut writer = keeping();
        writer.write(&batch(recorded)).expect("room");
        writer.finish().expect("room");
        drop(writer);
        assert_eq!((samples(&path), samples(&old)), (recorded, kept));
    }
    assert_eq!(files(&directory).len(), 2);
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
