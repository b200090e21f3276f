//! Changes of a finished profile.

use super::*;

fn profile() -> (TempDir, PathBuf) {
    let directory = tempdir().unwrap();
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).unwrap();
    writer.write(&batch(3)).unwrap();
    writer.finish().unwrap();
    (directory, path)
}

#[test]
fn a_profile_that_is_written_or_read_only_is_left_alone() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).unwrap();
    writer.write(&batch(3)).unwrap();
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
    writer.write(&batch(3)).unwrap();
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
