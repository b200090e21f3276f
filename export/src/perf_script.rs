//! Text as `perf script` writes it, one block per sample, which FlameGraph, speedscope and perf users'
//! scripts read.
//!
//! ```text
//! gzip   812/812   [001]     3.104217:     998700 cpu-clock:
//!         55d0c0a01010 deflate+0x10 (/usr/bin/gzip)
//!         55d0c0a02004 main+0x4 (/usr/bin/gzip)
//!
//! ```
//!
//! The period is the time that the sample stands for, ns. Layout: `perf script` of Linux 6.1 with its default
//! fields (tools/perf/builtin-script.c, `perf_sample__fprintf_start`; tools/perf/util/evsel_fprintf.c,
//! `sample__fprintf_callchain`).

use std::fmt::Write as _;
use std::io::Write;

use display::clean::{escaped, escaped_with};
use profile::report::{Owner, RecordedFrame, Recording};
use profile::rows::FrameKind;

use crate::names::symbol;
use crate::{ExportError, Request};

/// Name of the event.
const EVENT: &str = "cpu-clock";

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    _request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let owners: Vec<String> = recording.owners.iter().map(|owner| task(recording, owner)).collect();
    let frames: Vec<String> =
        (0..).zip(&recording.frames).map(|(place, frame)| lines(recording, place, frame)).collect();
    for sample in &recording.samples {
        let owner = owners.get(sample.owner as usize).map_or("[unknown]     0/0", String::as_str);
        let (s, us) = (sample.time_ns / 1_000_000_000, sample.time_ns / 1_000 % 1_000_000);
        writeln!(
            out,
            "{owner} [{:03}] {s:5}.{us:06}: {:>10.0} {EVENT}: ",
            sample.vcpu,
            sample.weight_ns.max(1.0)
        )?;
        for frame in recording.frames_of(sample.stack) {
            out.write_all(frames.get(frame as usize).map_or(&b""[..], |lines| lines.as_bytes()))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns `comm pid/tid`. Readers find the end of the name by the blank and the digit after it, so the name
/// neither begins with a blank nor has one before a digit.
fn task(recording: &Recording, owner: &Owner) -> String {
    let process = recording.process_of(owner);
    let pid = process.map_or(0, |process| process.pid);
    let name = match process.and_then(|process| process.vm.as_deref()) {
        Some(vm) => format!("{}/{}", escaped(vm), escaped(&owner.name)).into(),
        None => escaped(&owner.name),
    };
    let mut safe = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let ends = c.is_whitespace() && (safe.is_empty() || chars.peek().is_none_or(|c| c.is_ascii_digit()));
        safe.push(if ends { '_' } else { c });
    }
    if safe.is_empty() {
        safe.push_str("[unknown]");
    }
    format!("{safe:<16} {pid:>7}/{:<7}", owner.tid.unwrap_or(pid))
}

/// Returns the lines of a frame: inlined functions first, then its own.
fn lines(recording: &Recording, place: u32, frame: &RecordedFrame) -> String {
    let mut text = String::new();
    let entries = recording.entries_of(place);
    for (depth, entry) in entries.iter().enumerate() {
        let Some(function) = recording.functions.get(entry.function as usize) else { continue };
        let own = depth + 1 == entries.len();
        let module = match (own, function.kind) {
            (false, _) => "inlined".to_owned(),
            (_, FrameKind::Reason) => "[unknown]".to_owned(),
            (_, FrameKind::Kernel) => match &function.module {
                Some(module) => format!("[{module}]"),
                None => "[kernel.kallsyms]".to_owned(),
            },
            (_, FrameKind::User | FrameKind::Managed) => {
                let file = frame.file.and_then(|file| recording.files.get(file as usize));
                let name = file.map(|file| file.path.as_str()).or(function.module.as_deref());
                name.unwrap_or("[unknown]").to_owned()
            }
        };
        // Readers take the last parentheses as the module.
        let module = escaped_with(&module, &['(', ')']);
        let name = escaped(symbol(function));
        let offset = match (own, function.kind, name.starts_with('[')) {
            (true, FrameKind::Kernel | FrameKind::User | FrameKind::Managed, false) => {
                format!("+{:#x}", frame.offset)
            }
            _ => String::new(),
        };
        // Writing to a String can't fail.
        let _ = writeln!(text, "\t{:16x} {name}{offset} ({module})", frame.address);
    }
    text
}
