//! Profiles that somebody else made: wrong bytes in the file, and values that the schema does not foresee.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use arbitrary::Arbitrary;
use profile::merge::merge;
use profile::report::{By, HostReport, Recording, RecordingRequest, Request};
use profile::{Filter, Profile, Report};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::input::{self, decode};

/// Samples and stacks of the sound profile.
const SAMPLES: u64 = 60;
const STACKS: u32 = 6;
/// Values that are changed, at most.
const VALUES: usize = 12;

#[derive(Debug, Arbitrary)]
enum ProfileChange {
    /// Wrong bytes: where, what.
    Bytes(Vec<(u16, u16, u8)>),
    /// A file of this length, cut or grown.
    Length(u32, Vec<(u16, u16, u8)>),
    /// Wrong values: table, column, row, value.
    Values(Vec<(u8, u8, u8, CellValue)>),
    /// Rows that are gone: table, row.
    Rows(Vec<(u8, u8)>, Vec<(u8, u8, u8, CellValue)>),
    /// Another schema: what, table; and values.
    Schema(Vec<(u8, u8)>, Vec<(u8, u8, u8, CellValue)>),
}

/// A statement that leaves another schema than vprof's.
fn other_schema(what: u8, table: &str) -> String {
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS key, i AS value, i AS id FROM n";
    match what % 8 {
        0 => format!("DROP TABLE \"{table}\"; CREATE VIEW \"{table}\" AS {endless}"),
        1 => format!("ALTER TABLE \"{table}\" ADD COLUMN more AS (zeroblob(1000000000))"),
        2 => format!("CREATE TRIGGER t{what} AFTER UPDATE ON \"{table}\" BEGIN DELETE FROM sample; END"),
        3 => format!("DROP TABLE \"{table}\""),
        4 => format!("CREATE VIEW more{what} AS {endless}"),
        5 => format!("CREATE INDEX i{what} ON \"{table}\" (1 + 1)"),
        6 => format!("ALTER TABLE \"{table}\" RENAME TO other{what}"),
        _ => format!("CREATE TABLE t{what} (x, y AS (x || x))"),
    }
}

#[derive(Debug, Arbitrary)]
enum CellValue {
    Null,
    Small(i8),
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl CellValue {
    fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Small(number) => Value::Integer(i64::from(*number)),
            Self::Integer(number) => Value::Integer(*number),
            Self::Real(number) => Value::Real(*number),
            Self::Text(text) => Value::Text(text.clone()),
            Self::Blob(bytes) => Value::Blob(bytes.clone()),
        }
    }
}

/// The sound profile's bytes, and its tables with their columns.
struct SoundProfile {
    bytes: Vec<u8>,
    columns: Vec<(String, Vec<String>)>,
}

static SOUND: LazyLock<SoundProfile> = LazyLock::new(|| {
    let directory = input::directory();
    let path = directory.path().join("sound.vprof");
    profile::made_up::write_profile(&path, SAMPLES, STACKS);
    let connection = Connection::open(&path).expect("the profile");
    let _: String = connection
        .query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
        .expect("one file instead of a log");
    let names = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).expect("a query");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("names")
    };
    let columns = names("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .into_iter()
        .map(|table| (table.clone(), names(&format!("SELECT name FROM pragma_table_info('{table}')"))))
        .collect::<Vec<_>>();
    shrink(&connection, &columns);
    drop(connection);
    SoundProfile { bytes: fs::read(&path).expect("the profile"), columns }
});

/// Leaves out the frames that no stack has, and puts a row into each table that has none.
fn shrink(connection: &Connection, columns: &[(String, Vec<String>)]) {
    let unused = "SELECT id FROM frame WHERE id NOT IN (SELECT frame FROM stack)";
    connection
        .execute_batch(&format!(
            "DELETE FROM inlined WHERE frame IN ({unused}); DELETE FROM frame WHERE id IN ({unused})"
        ))
        .expect("the schema's tables");
    for (table, columns) in columns {
        let ones = vec!["1"; columns.len()].join(", ");
        let sql =
            format!("INSERT INTO \"{table}\" SELECT {ones} WHERE NOT EXISTS (SELECT 1 FROM \"{table}\")");
        connection.execute(&sql, []).expect("a row");
    }
    connection.execute_batch("VACUUM").expect("a smaller file");
}

/// Changes any of a table's rows, which all have a rowid or are few.
fn change(connection: &Connection, values: &[(u8, u8, u8, CellValue)]) {
    for (table, column, row, cell) in values.iter().take(VALUES) {
        let (table, columns) = &SOUND.columns[usize::from(*table) % SOUND.columns.len()];
        let column = &columns[usize::from(*column) % columns.len()];
        // What SQLite refuses is as sound as before.
        let _ = connection.execute(
            &format!("UPDATE OR REPLACE \"{table}\" SET \"{column}\" = ? WHERE \"{0}\" IN (SELECT \"{0}\" FROM \"{table}\" LIMIT 1 OFFSET {row})", columns[0]),
            [cell.value()],
        );
    }
}

fn write(path: &Path, bytes: &[u8], wrong: &[(u16, u16, u8)]) {
    let mut bytes = bytes.to_vec();
    for (page, offset, byte) in wrong {
        let at = usize::from(*page) * 4096 + usize::from(*offset) % 4096;
        let length = bytes.len();
        if length > 0 {
            bytes[at % length] = *byte;
        }
    }
    fs::write(path, bytes).expect("room for a small file");
}

/// Merges the hostile profile with a sound one. What is accepted is a profile.
fn merge_with_sound(path: &Path) {
    static OTHER: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let directory = input::directory();
        let path = directory.path().join("other.vprof");
        profile::made_up::write_run(&path, SAMPLES, STACKS, 1);
        fs::read(&path).expect("the profile")
    });
    let other = path.with_file_name("other.vprof");
    fs::write(&other, &*OTHER).expect("room for a small file");
    // The row that each table has makes it a merged one. A damaged file may keep it.
    if let Ok(connection) = Connection::open(path) {
        let _ = connection.execute_batch("DELETE FROM vm");
    }
    let output = path.with_file_name("all.vprof");
    if merge(&[path.to_owned(), other], &output, true, &mut |_, _| ()).is_ok() {
        let merged = Profile::open(&output).expect("a merged profile");
        let _ = Report::read_with(&merged, &Filter::default(), &Request::By(vec![By::Vm, By::Function]));
    }
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let Some(input) = decode::<(u8, ProfileChange)>(bytes) else { return };
    let (question, input) = input;
    let directory = input::directory();
    let path = &directory.path().join("fuzz.vprof");
    let mut is_other = false;
    match &input {
        ProfileChange::Bytes(wrong) => write(path, &SOUND.bytes, wrong),
        ProfileChange::Length(length, wrong) => {
            let mut bytes = SOUND.bytes.clone();
            bytes.resize(*length as usize % (2 * bytes.len()), 0);
            write(path, &bytes, wrong);
        }
        ProfileChange::Values(..) | ProfileChange::Rows(..) | ProfileChange::Schema(..) => {
            write(path, &SOUND.bytes, &[]);
            let connection = Connection::open(path).expect("the sound profile");
            connection
                .execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON; BEGIN")
                .expect("settings");
            match &input {
                ProfileChange::Values(values) => change(&connection, values),
                ProfileChange::Rows(gone, values) => {
                    for (table, row) in gone.iter().take(VALUES) {
                        let (table, columns) = &SOUND.columns[usize::from(*table) % SOUND.columns.len()];
                        let _ = connection.execute(
                            &format!("DELETE FROM \"{table}\" WHERE \"{0}\" IN (SELECT \"{0}\" FROM \"{table}\" LIMIT 1 OFFSET {row})", columns[0]),
                            [],
                        );
                    }
                    change(&connection, values);
                }
                ProfileChange::Schema(other, values) => {
                    change(&connection, values);
                    for (what, table) in other.iter().take(4) {
                        let table = &SOUND.columns[usize::from(*table) % SOUND.columns.len()].0;
                        // Each leaves something that vprof does not write, so that no other one repairs it.
                        is_other |= connection.execute_batch(&other_schema(*what, table)).is_ok();
                    }
                }
                _ => {}
            }
            connection.execute_batch("COMMIT").expect("a commit");
        }
    }
    if question % 16 == 9 {
        merge_with_sound(path);
    }
    let Ok(profile) = Profile::open(path) else { return };
    assert!(!is_other, "another schema was taken for a profile's");
    let mut filter = Filter::default();
    let request = match question % 8 {
        0 => Request::By(vec![By::Function]),
        1 => Request::By(vec![By::Thread]),
        2 => Request::By(vec![By::Module]),
        3 => Request::By(vec![By::Irq]),
        4 => {
            (filter.process, filter.symbol) =
                (vec!["hog".to_owned(), "h*g".to_owned()], Some("a".to_owned()));
            Request::Summary
        }
        _ => Request::Summary,
    };
    let _ = Report::read_with(&profile, &filter, &request);
    let _ = HostReport::read(&profile, &filter);
    let host = question % 2 == 1;
    let _ =
        Recording::read(&profile, &RecordingRequest { filter, host, ..Default::default() }, &mut |_, _| {});
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    input::decoded_seeds()
}
