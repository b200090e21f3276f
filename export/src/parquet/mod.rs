//! Apache Parquet: one row per sample with the columns of [`crate::csv`], for data tools.
//!
//! ```text
//! "PAR1" | row group: column | column ... | row group ... | footer | length of the footer | "PAR1"
//! ```
//!
//! Layout: README.md and parquet.thrift of the Apache Parquet format, version 2.10. Every column may be null,
//! texts are stored once per row group (a dictionary), and pages are compressed by gzip, which every reader
//! knows.

mod column;
mod thrift;

use std::io::Write;

use profile::report::{RecordedSample, Recording};
use profile::rows::FrameKind;

use crate::folded::Names;
use crate::rows::{COLUMNS, Row};
use crate::{ExportError, Request};
use column::{Chunk, Column, GZIP, Kind, PLAIN, RLE, RLE_DICTIONARY};
use text::clean::escaped;
use thrift::Struct;

const MAGIC: &[u8; 4] = b"PAR1";
/// Rows of a row group.
const GROUP: usize = 1 << 17;

/// Type of each of [`COLUMNS`].
const KINDS: [Kind; COLUMNS.len()] = {
    use Kind::{Double, Integer, Text};
    [
        Integer, Double, Integer, Text, Text, Integer, Integer, Integer, Text, Text, Text, Text, Integer,
        Text, Integer, Text, Text, Text, Text, Text,
    ]
};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    _request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    out.write_all(MAGIC)?;
    let mut offset = MAGIC.len() as u64;
    let names = Names::new(recording, false);
    let mut groups = Vec::new();
    for samples in recording.samples.chunks(GROUP) {
        let mut bytes = Vec::new();
        let mut chunks = Vec::new();
        for column in columns(recording, &names, samples) {
            chunks.push(column.finish(offset, &mut bytes)?);
        }
        out.write_all(&bytes)?;
        offset += bytes.len() as u64;
        groups.push(group(&chunks, samples.len()));
    }
    let footer = footer(groups, recording.samples.len());
    out.write_all(&footer)?;
    out.write_all(&u32::try_from(footer.len()).unwrap_or(u32::MAX).to_le_bytes())?;
    Ok(out.write_all(MAGIC)?)
}

fn columns(recording: &Recording, names: &Names<'_>, samples: &[RecordedSample]) -> Vec<Column> {
    let mut columns: Vec<Column> = KINDS.iter().map(|kind| Column::new(*kind)).collect();
    let mut stack = (u32::MAX, String::new());
    for sample in samples {
        let row = Row::new(recording, sample);
        if stack.0 != sample.stack {
            stack = (sample.stack, String::new());
            names.append(sample.stack, &mut stack.1);
        }
        let [
            time,
            weight,
            vcpu,
            mode,
            process,
            instance,
            pid,
            tid,
            thread,
            function,
            module,
            kind,
            address,
            source,
            line,
            syscall,
            interrupt,
            vm,
            host,
            text,
        ] = columns.as_mut_slice()
        else {
            return columns;
        };
        time.integer(Some(i64::try_from(row.time_ns).unwrap_or(i64::MAX)));
        weight.double(row.weight_ns);
        vcpu.integer(Some(row.vcpu.into()));
        mode.text(row.mode);
        process.text(&escaped(row.process));
        instance.integer(row.instance);
        pid.integer(row.pid);
        tid.integer(row.tid);
        thread.text(&escaped(row.thread));
        function.text(&escaped(row.function));
        module.text(&escaped(row.module));
        kind.text(row.kind.map_or("", FrameKind::name));
        address.integer(row.address.map(u64::cast_signed));
        source.text(&escaped(row.source));
        line.integer(row.line);
        syscall.text(&escaped(row.syscall));
        interrupt.text(&escaped(row.interrupt));
        vm.text(&escaped(row.vm));
        host.text(&escaped(row.host));
        text.text(&stack.1);
    }
    columns
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// `RowGroup` of parquet.thrift.
fn group(chunks: &[Chunk], rows: usize) -> Struct {
    let column = |((chunk, kind), name): ((&Chunk, Kind), &str)| {
        let encodings: &[i32] =
            if kind == Kind::Text { &[PLAIN, RLE, RLE_DICTIONARY] } else { &[PLAIN, RLE] };
        let meta = Struct::default()
            .i32(1, kind.physical())
            .i32s(2, encodings)
            .texts(3, &[name])
            .i32(4, GZIP)
            .i64(5, chunk.rows.into())
            .i64(6, signed(chunk.plain))
            .i64(7, signed(chunk.stored))
            .i64(9, signed(chunk.data));
        let meta = match chunk.dictionary {
            Some(dictionary) => meta.i64(11, signed(dictionary)),
            None => meta,
        };
        Struct::default().i64(2, signed(chunk.dictionary.unwrap_or(chunk.data))).inner(3, meta)
    };
    let columns = chunks.iter().zip(KINDS).zip(COLUMNS).map(column).collect();
    let bytes = chunks.iter().map(|chunk| chunk.plain).sum();
    Struct::default().structs(1, columns).i64(2, signed(bytes)).i64(3, signed(rows as u64))
}

/// `FileMetaData` of parquet.thrift.
fn footer(groups: Vec<Struct>, rows: usize) -> Vec<u8> {
    let root = Struct::default().text(4, "samples").i32(5, i32::try_from(COLUMNS.len()).unwrap_or(0));
    // Repetition type 1 is OPTIONAL, converted type 0 is UTF8.
    let column = |(name, kind): (&str, Kind)| {
        let own = Struct::default().i32(1, kind.physical()).i32(3, 1).text(4, name);
        if kind == Kind::Text { own.i32(6, 0) } else { own }
    };
    let schema = std::iter::once(root).chain(COLUMNS.into_iter().zip(KINDS).map(column)).collect();
    Struct::default()
        .i32(1, 1)
        .structs(2, schema)
        .i64(3, signed(rows as u64))
        .structs(4, groups)
        .text(6, concat!("vprof ", env!("CARGO_PKG_VERSION")))
        .end()
}
