//! Apache Parquet: one row per sample with the columns of [`crate::csv`], for data tools.

pub(crate) mod table;

use std::borrow::Cow;
use std::io::Write;

use display::clean::escaped;
use profile::report::Recording;
use profile::rows::FrameKind;

use crate::folded::Names;
use crate::rows::Row;
use crate::{ExportError, Request};
use table::{TableFacts, TableWriter, table_row};

table_row! {
    /// A sample.
    struct SampleRow<'a> {
        time_ns: u64,
        weight_ns: f64,
        vcpu: i64,
        mode: &'a str,
        process: Cow<'a, str>,
        instance: Option<i64>,
        pid: Option<i64>,
        tid: Option<i64>,
        thread: Cow<'a, str>,
        function: Cow<'a, str>,
        module: Cow<'a, str>,
        kind: &'a str,
        address: Option<i64>,
        source: Cow<'a, str>,
        line: Option<i64>,
        syscall: Cow<'a, str>,
        interrupt: Cow<'a, str>,
        vm: Cow<'a, str>,
        host: Cow<'a, str>,
        stack: &'a str,
    }
}

impl<'a> SampleRow<'a> {
    fn new(row: &Row<'a>, stack: &'a str) -> Self {
        Self {
            time_ns: row.time_ns,
            weight_ns: row.weight_ns,
            vcpu: row.vcpu.into(),
            mode: row.mode,
            process: escaped(row.process),
            instance: row.instance,
            pid: row.pid,
            tid: row.tid,
            thread: escaped(row.thread),
            function: escaped(row.function),
            module: escaped(row.module),
            kind: row.kind.map_or("", FrameKind::name),
            address: row.address.map(u64::cast_signed),
            source: escaped(row.source),
            line: row.line,
            syscall: escaped(row.syscall),
            interrupt: escaped(row.interrupt),
            vm: escaped(row.vm),
            host: escaped(row.host),
            stack,
        }
    }
}

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    _request: &Request,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    let facts = TableFacts { name: "samples", ..TableFacts::default() };
    let mut table = TableWriter::new::<SampleRow<'_>>(out, facts)?;
    let names = Names::new(recording, false);
    // Text of the previous sample's stack: neighbours often share it.
    let mut stack = (u32::MAX, String::new());
    for sample in &recording.samples {
        if stack.0 != sample.stack {
            stack = (sample.stack, String::new());
            names.append(sample.stack, &mut stack.1);
        }
        table.push(&SampleRow::new(&Row::new(recording, sample), &stack.1))?;
    }
    table.finish()?;
    Ok(())
}
