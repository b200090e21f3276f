//! A flame graph as SVG, by inferno: kernel code, user code and inlined functions in separate colours.

use std::io::Write;

use inferno::flamegraph::color::{BasicPalette, MultiPalette, Palette};
use inferno::flamegraph::{Options, from_lines};
use profile::report::Recording;
use text::clean::escaped;

use crate::folded::lines;
use crate::{Count, ExportError, Format, Request};

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let lines: Vec<String> = lines(recording, (request.root, request.count), true)
        .into_iter()
        .map(|(line, number)| format!("{line} {number}"))
        .collect();
    if lines.is_empty() {
        return Err(ExportError::Empty(Format::Flamegraph));
    }
    // The palette chooses colours by marks in names: kernel `_[k]`, inlined `_[i]`.
    let mut options = options(&request.title, request.count, Palette::Multi(MultiPalette::Java));
    Ok(from_lines(&mut options, lines.iter().map(String::as_str), out)?)
}

/// Writes a flame graph of two profiles. The widths are those of the second; red has grown, blue has shrunk.
/// `stacks` are folded, with their numbers in the first and in the second, us.
///
/// # Errors
/// See [`ExportError`].
pub fn write_difference(
    stacks: impl Iterator<Item = (String, u64, u64)>,
    title: &str,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let lines: Vec<String> =
        stacks.map(|(stack, before, after)| format!("{stack} {before} {after}")).collect();
    if lines.is_empty() {
        return Err(ExportError::Empty(Format::Flamegraph));
    }
    let mut options = options(title, Count::Time, Palette::Basic(BasicPalette::Hot));
    Ok(from_lines(&mut options, lines.iter().map(String::as_str), out)?)
}

fn options(title: &str, count: Count, colors: Palette) -> Options<'static> {
    let mut options = Options::default();
    options.title = escaped(title).into_owned();
    options.colors = colors;
    options.count_name = match count {
        Count::Time => "us".to_owned(),
        Count::Samples => "samples".to_owned(),
    };
    // The same profile gives the same picture.
    options.deterministic = true;
    options
}
