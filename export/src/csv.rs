//! One line per sample, by RFC 4180, for spreadsheets and data tools.

use std::borrow::Cow;
use std::io::Write;

use profile::report::Recording;
use profile::rows::FrameKind;
use text::clean::escaped;

use crate::folded::Names;
use crate::rows::{COLUMNS, Row};
use crate::{ExportError, Request};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    _request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    writeln!(out, "{}\r", COLUMNS.join(","))?;
    let names = Names::new(recording, false);
    // The text of a stack, the last one's: neighbours often share it.
    let mut stack = (u32::MAX, String::new());
    for sample in &recording.samples {
        let row = Row::new(recording, sample);
        if stack.0 != sample.stack {
            stack = (sample.stack, String::new());
            names.append(sample.stack, &mut stack.1);
        }
        let kind = row.kind.map_or("", FrameKind::name);
        let number = |number: Option<i64>| number.map_or_else(String::new, |number| number.to_string());
        write!(out, "{},{:.0},{},{}", row.time_ns, row.weight_ns, row.vcpu, row.mode)?;
        write!(out, ",{},{}", quoted(row.process), number(row.instance))?;
        write!(out, ",{},{},{}", number(row.pid), number(row.tid), quoted(row.thread))?;
        write!(out, ",{},{},{kind}", quoted(row.function), quoted(row.module))?;
        let address = row.address.map_or_else(String::new, |address| format!("{address:#x}"));
        write!(out, ",{address},{},{}", quoted(row.source), number(row.line))?;
        write!(out, ",{},{},{}\r\n", quoted(row.syscall), quoted(row.interrupt), quoted(&stack.1))?;
    }
    Ok(())
}

/// A field: in quotes where it has a character that means something (RFC 4180, 2.6 and 2.7).
fn quoted(text: &str) -> Cow<'_, str> {
    let text = escaped(text);
    if text.contains(['"', ',']) { format!("\"{}\"", text.replace('"', "\"\"")).into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_have_to_be() {
        assert_eq!(quoted("gzip -k"), "gzip -k");
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\\x0a\"");
    }
}
