//! An answer as a page.

use std::fmt::Write as _;

use display::clean::xml;

use super::answer::{NOTHING, align, cell, number};
use super::engine::AnswerRow;
use super::question::{AnswerColumn, ColumnKind};
use crate::args::FleetArgs;
use crate::errors::Error;
use crate::output::OutputTarget;
use render::table::ColumnAlign;

/// Writes the page of an answer into the file that was asked for.
pub(super) fn write(rows: &[AnswerRow], args: &FleetArgs) -> Result<(), Error> {
    let mut target = OutputTarget::open(&args.output, args.force)?;
    let title = format!("vprof fleet {}", args.question.name());
    let written = export::write_document(&title, &body(rows, args), target.writer());
    written.map_err(|error| target.error(error))?;
    target.finish()
}

fn body(rows: &[AnswerRow], args: &FleetArgs) -> String {
    let mut body = format!("<section>\n<p>{}.</p>\n<dl class=\"facts\">\n", xml(&args.question.sentence()));
    for (name, value) in args.conditions() {
        let (name, value) = (xml(name), xml(&value));
        // Writing to a String cannot fail.
        let _ = writeln!(body, "<dt>{name}</dt><dd>{value}</dd>");
    }
    body.push_str("</dl>\n");
    match rows.is_empty() {
        true => {
            let _ = writeln!(body, "<p>{NOTHING}</p>");
        }
        false => table(&mut body, &args.question.columns(), rows),
    }
    body.push_str(
        "<p class=\"note\">Intervals (95 %) are by the differences between hosts: with one host there is none.</p>\n\
         </section>\n",
    );
    body
}

fn table(body: &mut String, columns: &[AnswerColumn], rows: &[AnswerRow]) {
    // As wide as the largest share.
    let largest = rows.iter().filter_map(|row| number(row, "high").or_else(|| number(row, "share")));
    let largest = largest.fold(0.0, f64::max);
    let class = |column: &AnswerColumn| match align(column) {
        ColumnAlign::Right => " class=\"number\"",
        ColumnAlign::Left => "",
    };
    body.push_str("<div class=\"scroll\"><table class=\"data\">\n<thead><tr>");
    for column in columns {
        let _ = write!(body, "<th scope=\"col\"{}>{}</th>", class(column), xml(column.heading));
        if is_drawn(column) {
            body.push_str("<td></td>");
        }
    }
    body.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        body.push_str("<tr>");
        for column in columns {
            let _ = write!(body, "<td{}>{}</td>", class(column), xml(&cell(column, row)));
            if is_drawn(column) {
                bar(body, row, largest);
            }
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

/// True if the next column has the share, and its interval, as a bar.
fn is_drawn(column: &AnswerColumn) -> bool {
    column.kind == ColumnKind::Interval
}

/// Adds a bar as long as the share, with its interval as a line, in units of the largest one.
fn bar(body: &mut String, row: &AnswerRow, largest: f64) {
    let at = |key: &str| number(row, key).map(|share| share / largest.max(f64::MIN_POSITIVE) * 100.0);
    body.push_str("<td class=\"bar-cell\"><svg class=\"share\" viewBox=\"0 0 100 10\" width=\"100%\" ");
    body.push_str("preserveAspectRatio=\"none\" aria-hidden=\"true\">");
    let _ = write!(body, "<rect width=\"{:.2}\" height=\"10\"/>", at("share").unwrap_or(0.0));
    if let (Some(low), Some(high)) = (at("low"), at("high")) {
        let _ = write!(body, "<line x1=\"{low:.2}\" x2=\"{high:.2}\" y1=\"5\" y2=\"5\"/>");
    }
    body.push_str("</svg></td>");
}
