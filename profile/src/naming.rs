//! Names of frames of user code.

use symbols::names::{DebugFile, DebugFileOrigin, DebugFiles, FunctionStarts, Symbolizer, unnamed};

use crate::rows::{FrameRow, InlinedRow};
use display::clean;

/// Names `row`, an address in a file called `module`: by `symbols`, or else by the start of its function.
pub fn name_frame(
    mut row: FrameRow,
    module: &str,
    symbols: Option<&Symbolizer>,
    starts: &dyn FunctionStarts,
) -> (FrameRow, Vec<InlinedRow>) {
    let clean = |path: Option<String>| path.map(|path| clean::printable(&path));
    let at = row.lookup();
    let start = match symbols.and_then(|symbols| symbols.find(at, starts)) {
        Some(function) => Some(function.start),
        None => starts.function_start(at),
    };
    row.offset = row.address.wrapping_sub(start.unwrap_or(row.address));
    let mut frames = symbols.map(|symbols| symbols.frames_at(at, starts)).unwrap_or_default();
    let own = frames.pop();
    let symbol = own.as_ref().and_then(|own| own.function.clone()).unwrap_or_else(|| unnamed(module, start));
    row.symbol = Some(clean::printable(&symbol));
    (row.source, row.line) = own.map_or((None, None), |own| (clean(own.file), own.line));
    let inlined = frames
        .into_iter()
        .zip(0..)
        .map(|(frame, depth)| InlinedRow {
            frame: row.id,
            depth,
            symbol: clean::printable(frame.function.as_deref().unwrap_or("[inlined]")),
            source: clean(frame.file),
            line: frame.line,
        })
        .collect();
    (row, inlined)
}

/// True for code without a name, or with a name that only gives the start of its function. `address` and
/// `offset` are those of the frame.
pub fn is_nameless(symbol: Option<&str>, module: Option<&str>, address: u64, offset: u64) -> bool {
    let Some(symbol) = symbol else { return true };
    let Some(module) = module.filter(|_| symbol.ends_with(']')) else { return false };
    let tells = |start| clean::printable(&unnamed(module, start)) == symbol;
    tells(None) || tells(Some(address.wrapping_sub(offset)))
}

/// Returns the start of the function according to a frame's present name.
pub fn present_start(row: &FrameRow) -> Option<u64> {
    let (symbol, module) = (row.symbol.as_deref()?, row.module.as_deref().unwrap_or_default());
    let known = symbol != clean::printable(&unnamed(module, None));
    known.then(|| row.address.wrapping_sub(row.offset))
}

/// Returns the name of a debug file for `file.named_by`.
pub fn named_by(origin: &DebugFileOrigin) -> String {
    clean::printable(&match origin {
        DebugFileOrigin::Guest(path) => format!("{path} in the guest"),
        DebugFileOrigin::Host(path) => path.display().to_string(),
        DebugFileOrigin::Source(name) => name.clone(),
    })
}

/// Returns the file that a debug file shares with others.
pub fn shared_with(debug: &DebugFile, places: &DebugFiles) -> Option<DebugFile> {
    let (path, build_id) = debug.elf.alt_link()?;
    places.find_shared(&path, &build_id, &debug.origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_only_tells_the_place_is_none() {
        let nameless = |symbol, offset| is_nameless(symbol, Some("libz.so.1"), 0x24b0, offset);
        assert!(nameless(None, 0));
        assert!(nameless(Some("libz.so.1[?]"), 0));
        assert!(nameless(Some("libz.so.1[0x24a0]"), 0x10));
        assert!(!nameless(Some("libz.so.1[0x24a0]"), 0x20));
        assert!(!nameless(Some("operator[]"), 0x10));
        assert!(!nameless(Some("deflate"), 0x10));
        assert!(!is_nameless(Some("f[?]"), None, 0, 0));
    }

    #[test]
    fn the_present_name_tells_the_start() {
        let row = |symbol: Option<&str>, offset| FrameRow {
            address: 0x24b0,
            module: Some("libz.so.1".to_owned()),
            symbol: symbol.map(str::to_owned),
            offset,
            ..FrameRow::default()
        };
        assert_eq!(present_start(&row(Some("libz.so.1[0x24a0]"), 0x10)), Some(0x24a0));
        assert_eq!(present_start(&row(Some("deflate"), 0xb0)), Some(0x2400));
        assert_eq!(present_start(&row(Some("libz.so.1[?]"), 0)), None);
        assert_eq!(present_start(&row(None, 0)), None);
    }
}
