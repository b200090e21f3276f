//! The name of a frame of user code.

use symbols::names::{FunctionStarts, Symbolizer, unnamed};

use crate::batch::{FrameRow, InlinedRow};
use crate::text;

/// Names `row`, an address of a file called `module`: by `symbols`, else by the start of its function.
pub(crate) fn name_frame(
    mut row: FrameRow,
    module: &str,
    symbols: Option<&Symbolizer>,
    starts: &dyn FunctionStarts,
) -> (FrameRow, Vec<InlinedRow>) {
    let clean = |path: Option<String>| path.map(|path| text::printable(&path));
    let at = row.lookup();
    let start = match symbols.and_then(|symbols| symbols.find(at, starts)) {
        Some(function) => Some(function.start),
        None => starts.function_start(at),
    };
    row.offset = row.address.wrapping_sub(start.unwrap_or(row.address));
    let mut frames = symbols.map(|symbols| symbols.frames_at(at, starts)).unwrap_or_default();
    let own = frames.pop();
    let symbol = own.as_ref().and_then(|own| own.function.clone()).unwrap_or_else(|| unnamed(module, start));
    row.symbol = Some(text::printable(&symbol));
    (row.source, row.line) = own.map_or((None, None), |own| (clean(own.file), own.line));
    let inlined = frames
        .into_iter()
        .zip(0..)
        .map(|(frame, depth)| InlinedRow {
            frame: row.id,
            depth,
            symbol: text::printable(frame.function.as_deref().unwrap_or("[inlined]")),
            source: clean(frame.file),
            line: frame.line,
        })
        .collect();
    (row, inlined)
}
