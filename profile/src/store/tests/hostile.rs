//! Files of other people.

use super::*;

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
