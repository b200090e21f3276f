//! `vprof query`: SQL over a profile.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;

use profile::Profile;
use profile::store::Value;
use text::clean::escaped;
use text::csv::{CsvWriter, Formulas};

use crate::args::QueryArgs;
use crate::errors::{Error, ExitCode};
use crate::output::{JsonOutput, stdout_error};
use crate::render::TextStyle;
use crate::render::table::{ColumnAlign, TextTable};

/// Runs the command.
pub fn command(args: &QueryArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    // The user who has written the query can end it.
    profile.allow_long_queries();
    let stdout = io::stdout();
    let style = TextStyle::for_stream(stdout.is_terminal());
    let mut out = BufWriter::new(stdout.lock());
    match (args.csv, args.json) {
        (true, _) => as_csv(&profile, &args.sql, &mut out, Formulas::raw_if(args.raw))?,
        (_, true) => json(&profile, &args.sql, &mut out)?,
        _ => table(&profile, &args.sql, &mut out, style)?,
    }
    out.flush().map_err(stdout_error)?;
    Ok(ExitCode::Done)
}

/// Passes each row to `write`. A failed write, as when the reader has gone, ends the query.
fn each_row(
    profile: &Profile,
    sql: &str,
    mut write: impl FnMut(&[String], &[Value]) -> io::Result<()>,
) -> Result<Vec<String>, Error> {
    let mut failed = None;
    let columns = profile.query_each(sql, |columns, row| match write(columns, &row) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    match failed {
        Some(error) => Err(stdout_error(error)),
        None => Ok(columns),
    }
}

fn as_csv(profile: &Profile, sql: &str, out: &mut impl Write, formulas: Formulas) -> Result<(), Error> {
    let (mut csv, mut headed) = (CsvWriter::new(out, formulas), false);
    let columns = each_row(profile, sql, |columns, row| {
        if !std::mem::replace(&mut headed, true) {
            csv.row(columns)?;
        }
        csv.row(&row.iter().map(text).collect::<Vec<_>>())
    })?;
    if !headed {
        csv.row(&columns).map_err(stdout_error)?;
    }
    Ok(())
}

/// Writes one object per row, with members in the order of the columns.
fn json(profile: &Profile, sql: &str, out: &mut impl Write) -> Result<(), Error> {
    let (mut rows, mut out) = (0_u64, JsonOutput::new(out));
    each_row(profile, sql, |columns, row| {
        out.write_all(if rows == 0 { b"[\n  {" } else { b",\n  {" })?;
        rows += 1;
        for (i, (column, value)) in columns.iter().zip(row).enumerate() {
            if i > 0 {
                out.write_all(b", ")?;
            }
            serde_json::to_writer(&mut out, column)?;
            out.write_all(b": ")?;
            match value {
                // SQLite has infinite numbers; JSON does not.
                Value::Real(number) if !number.is_finite() => out.write_all(b"null")?,
                other => serde_json::to_writer(&mut out, other)?,
            }
        }
        out.write_all(b"}")
    })?;
    out.write_all(if rows == 0 { b"[]\n" } else { b"\n]\n" }).map_err(stdout_error)
}

fn table(profile: &Profile, sql: &str, out: &mut impl Write, style: TextStyle) -> Result<(), Error> {
    let answer = profile.query(sql)?;
    let numeric = |column: usize| {
        answer
            .rows
            .iter()
            .all(|row| matches!(row.get(column), Some(Value::Integer(_) | Value::Real(_) | Value::Null)))
    };
    let names: Vec<String> = answer.columns.iter().map(|name| escaped(name).into_owned()).collect();
    let columns: Vec<(&str, ColumnAlign)> = names
        .iter()
        .enumerate()
        .map(|(i, name)| (name.as_str(), if numeric(i) { ColumnAlign::Right } else { ColumnAlign::Left }))
        .collect();
    let mut table = TextTable::new(&columns);
    for row in &answer.rows {
        table.row(row.iter().map(|value| escaped(&text(value)).into_owned()).collect());
    }
    let text = table.render(usize::MAX);
    let (heading, rows) = text.split_once('\n').unwrap_or((&text, ""));
    writeln!(out, "{}", style.bold(heading)).and_then(|()| write!(out, "{rows}")).map_err(stdout_error)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::Blob(bytes) => bytes.iter().fold(String::new(), |mut text, byte| {
            use std::fmt::Write as _;
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text() {
        assert_eq!(text(&Value::Blob(vec![0, 255])), "00ff");
        assert_eq!(text(&Value::Null), "");
        assert_eq!(text(&Value::Real(0.5)), "0.5");
    }
}
