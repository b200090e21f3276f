//! Answers as tables and flame graphs.

use display::clean::escaped_with;
use display::units;
use serde_json::Value;

use super::engine::AnswerRow;
use super::has_end;
use super::question::{AnswerColumn, ColumnKind, FleetQuestion};
use crate::args::FleetArgs;
use crate::errors::{Error, ExitCode};
use crate::output::OutputTarget;
use render::table::{ColumnAlign, TextTable};
use render::{PageLayout, visible};

/// An answer without rows.
pub(super) const NOTHING: &str = "No window of the lake has what was asked for.";

/// Returns the table of an answer.
pub(super) fn table(question: FleetQuestion, rows: &[AnswerRow]) -> String {
    if rows.is_empty() {
        return format!("{NOTHING}\n");
    }
    let columns = question.columns();
    let heads: Vec<(&str, ColumnAlign)> =
        columns.iter().map(|column| (column.heading, align(column))).collect();
    let mut table = TextTable::new(&heads).flexible(columns.len().saturating_sub(1));
    for row in rows {
        table.row(columns.iter().map(|column| cell(column, row)).collect());
    }
    table.render(PageLayout::stdout().width)
}

pub(super) fn align(column: &AnswerColumn) -> ColumnAlign {
    match column.kind {
        ColumnKind::Text | ColumnKind::Time => ColumnAlign::Left,
        _ => ColumnAlign::Right,
    }
}

pub(super) fn number(row: &AnswerRow, key: &str) -> Option<f64> {
    row.get(key).and_then(Value::as_f64)
}

fn text<'a>(row: &'a AnswerRow, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Formats a value; `-` for none.
pub(super) fn cell(column: &AnswerColumn, row: &AnswerRow) -> String {
    let none = || "-".to_owned();
    let key = column.key;
    let number = |format: fn(f64) -> String| number(row, key).map_or_else(none, format);
    match column.kind {
        ColumnKind::Text => match text(row, key) {
            "" => String::new(),
            name => visible(name).into_owned(),
        },
        ColumnKind::Time => text(row, key).get(..16).map_or_else(none, |time| time.replace('T', " ")),
        ColumnKind::Count => number(|count| units::count(units::rounded(count))),
        ColumnKind::Share => number(units::percent),
        ColumnKind::Seconds => number(units::seconds),
        ColumnKind::Hours => number(|hours| format!("{hours:.1} h")),
        ColumnKind::Cpus => number(|cpus| format!("{cpus:.5}")),
        ColumnKind::Change => number(|cpus| format!("{cpus:+.5}")),
        ColumnKind::Interval => match (self::number(row, key), self::number(row, "high")) {
            (Some(low), Some(high)) => format!("{:.1} - {:.1} %", low * 100.0, high * 100.0),
            _ => none(),
        },
    }
}

/// Writes the answer to [`FleetQuestion::Flame`].
pub(super) fn write_flame(rows: &[AnswerRow], args: &FleetArgs) -> Result<ExitCode, Error> {
    let stacks: Vec<(String, u64)> = rows.iter().map(folded).collect();
    let mut target = OutputTarget::open(&args.output, args.force)?;
    if has_end(&args.output, "svg") {
        let title = format!("vprof fleet: {}", args.lake);
        export::write_graph(stacks.into_iter(), &title, target.writer())?;
    } else {
        for (stack, us) in stacks {
            let written = writeln!(target.writer(), "{stack} {us}");
            written.map_err(|error| target.error(error))?;
        }
    }
    target.finish()?;
    Ok(ExitCode::Done)
}

/// Returns a row as a folded stack, outermost frame first, with its time, us.
fn folded(row: &AnswerRow) -> (String, u64) {
    let program = match text(row, "process_name") {
        "" => "[no program]",
        name => name,
    };
    let mut stack = escaped_with(program, &[';']).into_owned();
    // The innermost first in the lake.
    for frame in text(row, "frames").rsplit(';').filter(|frame| !frame.is_empty()) {
        stack.push(';');
        stack.push_str(&escaped_with(frame, &[';']));
    }
    (stack, units::rounded(number(row, "us").unwrap_or(0.0)).max(1))
}
