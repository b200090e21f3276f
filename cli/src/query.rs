//! `vprof query`: SQL over a profile.

use std::io::{self, BufWriter, Read, Write};
use std::ops::ControlFlow;

use display::clean::escaped;
use display::csv::{CsvWriter, Formulas};
use display::suggest::suggest;
use profile::Profile;
use profile::store::Value;

use crate::args::QueryArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::{JsonOutput, stdout_error};
use crate::pager::page;
use render::PageLayout;
use render::table::{ColumnAlign, TextTable, cut};

/// Words that stand for a statement, as in the sqlite3 program.
const TABLES: &str = ".tables";
const SCHEMA: &str = ".schema";
/// Longest statement that is read from standard input, bytes.
const LONGEST: u64 = 1 << 20;

/// Runs the command.
pub fn command(args: &QueryArgs) -> Result<ExitCode, Error> {
    let profile = Profile::open(&args.profile)?;
    // The user who has written the query can end it.
    profile.allow_long_queries();
    let sql = match args.sql.as_str() {
        "-" => read_input()?,
        TABLES => {
            "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name".to_owned()
        }
        sql => sql.to_owned(),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let of_one = sql.strip_prefix(SCHEMA).filter(|rest| rest.starts_with(' ')).map(str::trim);
    match (args.csv, args.json) {
        _ if of_one.is_some() => schema(&profile, of_one, &mut out)?,
        _ if sql == SCHEMA => schema(&profile, None, &mut out)?,
        (true, _) => as_csv(&profile, &sql, &mut out, Formulas::raw_if(args.raw))?,
        (_, true) => json(&profile, &sql, &mut out)?,
        _ => {
            drop(out);
            return page(&table(&profile, &sql, PageLayout::stdout())?).map(|()| ExitCode::Done);
        }
    }
    out.flush().map_err(stdout_error)?;
    Ok(ExitCode::Done)
}

/// Reads the statement from standard input.
fn read_input() -> Result<String, Error> {
    let mut sql = String::new();
    let read = io::stdin().take(LONGEST).read_to_string(&mut sql);
    read.map_err(|source| Error::System { action: "read the statement from standard input", source })?;
    Ok(sql)
}

/// Writes the statements that make the tables and views, or the one of this name. They are vprof's own:
/// another file is not a profile.
fn schema(profile: &Profile, name: Option<&str>, out: &mut impl Write) -> Result<(), Error> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'view') AND sql IS NOT NULL ORDER BY name";
    let mut names = Vec::new();
    each_row(profile, sql, |_, row| {
        let [found, sql] = row else { return Ok(()) };
        let found = text(found);
        let is_wanted = name.is_none_or(|name| name == found);
        names.push(found);
        if is_wanted { writeln!(out, "{};", text(sql)) } else { Ok(()) }
    })?;
    match name.filter(|name| !names.iter().any(|found| found == name)) {
        Some(name) => Err(no_table(name, &names).into()),
        None => Ok(()),
    }
}

fn no_table(name: &str, names: &[String]) -> UsageError {
    let near = suggest(name, names.iter().map(String::as_str));
    let advice = if near.is_empty() {
        "`vprof query .tables` lists them".to_owned()
    } else {
        format!("near are {}", near.join(", "))
    };
    UsageError::NoTable { name: escaped(name).into_owned(), advice }
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

/// Formats the rows. On a terminal a cell takes at most half of a line.
fn table(profile: &Profile, sql: &str, layout: PageLayout) -> Result<String, Error> {
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
        table.row(row.iter().map(|value| cut(&escaped(&text(value)), layout.width / 2)).collect());
    }
    let text = table.render(usize::MAX);
    let (heading, rows) = text.split_once('\n').unwrap_or((&text, ""));
    Ok(format!("{}\n{rows}", layout.style.bold(heading)))
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
