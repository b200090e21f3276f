//! Engines: programs that answer SQL.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;

use display::clean::{cut, escaped};
use display::units;
use serde_json::{Map, Value};

use super::sql::Dialect;
use crate::errors::{Error, FleetError};

/// Row of an answer, by column; null values may be missing.
pub(super) type AnswerRow = Map<String, Value>;

/// Rows that are read of an answer: 50 for most questions, a window or a stack each for the others.
const MOST_ROWS: usize = 1_000_000;
/// No tables but the lake's, times in UTC.
const SPARK_SETTINGS: [&str; 3] =
    ["spark.sql.catalogImplementation=in-memory", "spark.sql.session.timeZone=UTC", "spark.ui.enabled=false"];
/// Longest text of an engine's last words that is shown, characters.
const WORDS: usize = 4 << 10;

/// Program that answers, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    /// DuckDB's command line.
    DuckDb,
    /// Spark's `spark-sql`, with this master.
    Spark(String),
    /// The SQL is printed.
    Print(Dialect),
}

impl FromStr for Engine {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "duckdb" => Self::DuckDb,
            // On this machine, with all its CPUs.
            "spark" => Self::Spark("local[*]".to_owned()),
            "print" | "print=duckdb" => Self::Print(Dialect::DuckDb),
            "print=spark" => Self::Print(Dialect::Spark),
            _ if text.starts_with("spark://") => Self::Spark(text.to_owned()),
            _ => return Err("not duckdb, spark, spark://HOST:PORT, print or print=spark"),
        })
    }
}

impl Engine {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::DuckDb => Dialect::DuckDb,
            Self::Spark(_) => Dialect::Spark,
            Self::Print(dialect) => *dialect,
        }
    }

    /// Has the engine run the statements in `views` and then answer `question`.
    ///
    /// # Errors
    /// The program is not there, fails, or its answer is not one.
    pub(super) fn run(&self, views: &str, question: &str) -> Result<Vec<AnswerRow>, Error> {
        let question = question.trim_end();
        match self {
            Self::DuckDb => {
                let mut command = Command::new("duckdb");
                command.args(["-bail", "-jsonlines", ":memory:"]);
                answer(command, "duckdb", format!("SET TimeZone = 'UTC';\n{views}{question};\n"))
            }
            Self::Spark(master) => {
                let failed = |source| Error::System { action: "write a file for the engine", source };
                // Spark leaves files where it is started.
                let place = tempfile::tempdir().map_err(failed)?;
                let script = place.path().join("question.sql");
                // JSON has the quotes that texts need.
                let asked = format!("{views}SELECT to_json(struct(*)) FROM (\n{question}\n);\n");
                fs::write(&script, asked).map_err(failed)?;
                let mut command = Command::new("spark-sql");
                command.current_dir(place.path()).args(["--silent", "--master", master]);
                for setting in SPARK_SETTINGS {
                    command.args(["--conf", setting]);
                }
                command.arg("-f").arg(script);
                answer(command, "spark-sql", String::new())
            }
            Self::Print(_) => Ok(Vec::new()),
        }
    }
}

/// Runs a program with this input, and reads its output: an object of JSON in each line.
fn answer(mut command: Command, program: &'static str, input: String) -> Result<Vec<AnswerRow>, Error> {
    let failed = |source| Error::System { action: "talk with the engine", source };
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FleetError::NoEngine(program).into(),
        _ => failed(source),
    })?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (rows, words) = thread::scope(|scope| {
        scope.spawn(move || {
            // An engine that ends before has said why.
            let _ = stdin.map(|mut stdin| stdin.write_all(input.as_bytes()));
        });
        let words = scope.spawn(move || last_words(stderr));
        (rows(stdout), words.join().unwrap_or_default())
    });
    if !child.wait().map_err(failed)?.success() {
        return Err(FleetError::EngineFailed(program, words).into());
    }
    Ok(rows.map_err(failed)?.ok_or(FleetError::EngineAnswer(program))?)
}

/// Reads rows; `None` if a line is not a row. What is beyond [`MOST_ROWS`] is left out, with a message.
fn rows(output: Option<impl Read>) -> io::Result<Option<Vec<AnswerRow>>> {
    let mut rows = Vec::new();
    let mut left_out = 0;
    let Some(output) = output else { return Ok(Some(rows)) };
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line.is_empty() {
            continue;
        }
        match serde_json::from_str(&line) {
            Ok(Value::Object(row)) if rows.len() < MOST_ROWS => rows.push(row),
            Ok(Value::Object(_)) => left_out += 1,
            _ => return Ok(None),
        }
    }
    if left_out > 0 {
        let [left_out, most] = [left_out, MOST_ROWS as u64].map(units::count);
        display::stderr_line!(
            "vprof: {left_out} rows of the answer are left out, beyond the first {most}: ask for a part"
        );
    }
    Ok(Some(rows))
}

/// Returns the end of what a program says, without control characters: of many lines those with an error.
fn last_words(output: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // What was read before a failure counts.
    let _ = output.map(|output| output.take(1 << 20).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let error = text.find("Error").or_else(|| text.find("Exception")).unwrap_or(0);
    let lines: Vec<&str> =
        text.get(error..).unwrap_or_default().trim().lines().take(3).map(str::trim).collect();
    cut(&escaped(&lines.join(" ")), WORDS)
}
