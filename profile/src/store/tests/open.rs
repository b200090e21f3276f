//! Files that are not a profile.

use super::*;

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
    for (found, message) in [
        (SCHEMA_VERSION + 1, "use a newer vprof"),
        (SCHEMA_VERSION - 1, "record again, or use the vprof that wrote it"),
    ] {
        other.pragma_update(None, "user_version", found).expect("room");
        let version = format!(
            "has version {found} of the profile format, and this vprof reads version {SCHEMA_VERSION}"
        );
        assert_eq!(open_error(&path), format!("{shown} {version}: {message}"));
    }
}

#[test]
fn what_is_cut_off_or_overwritten_is_told() {
    let (_directory, path) = finished(2_000);
    let bytes = fs::read(&path).expect("a file");
    for keep in [bytes.len() - 1, bytes.len() / 2, 4_096, 101] {
        fs::write(&path, &bytes[..keep]).expect("room");
        let message = format!("{} is cut off: it has {keep} of {} bytes", path.display(), bytes.len());
        assert_eq!(open_error(&path), message);
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
