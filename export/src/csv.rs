//! One line per sample, by RFC 4180, for spreadsheets and data tools.

use std::io::Write;

use display::csv::CsvWriter;
use profile::report::Recording;
use profile::rows::FrameKind;

use crate::folded::Names;
use crate::rows::{COLUMNS, Row};
use crate::{ExportError, Request};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut csv = CsvWriter::new(out, request.formulas);
    csv.row(&COLUMNS[..])?;
    let names = Names::new(recording, false);
    // Text of the previous sample's stack: neighbours often share it.
    let mut stack = (u32::MAX, String::new());
    for sample in &recording.samples {
        let row = Row::new(recording, sample);
        if stack.0 != sample.stack {
            stack = (sample.stack, String::new());
            names.append(sample.stack, &mut stack.1);
        }
        let when = (row.time_ns, row.weight_ns.round_ties_even(), row.vcpu, row.mode);
        let who = (row.process, row.instance, row.pid, row.tid, row.thread);
        let address = row.address.map(|address| format!("{address:#x}"));
        let code = (row.function, row.module, row.kind.map(FrameKind::name), address, row.source, row.line);
        csv.row(&(when, who, code, row.syscall, row.interrupt, (row.vm, row.host), &stack.1))?;
    }
    Ok(())
}
