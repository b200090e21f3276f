//! Symbols and DWARF of one file together.

use super::functions::{Function, FunctionKind, FunctionStarts, FunctionTable};
use super::lines::{SourceFrame, SourceLines};
use crate::elf::{ElfError, ElfFile};
use crate::go::GoTable;

/// Names of the code of one file: its symbols and, where there is DWARF, source lines and inlined functions;
/// of a Go program the table that Go itself uses.
#[derive(Debug)]
pub struct Symbolizer {
    functions: FunctionTable,
    lines: Result<SourceLines, ElfError>,
    go: Option<GoTable>,
}

impl Symbolizer {
    /// For `elf`, with its separate debug file and the file that that one shares with others
    /// ([`ElfFile::alt_link`]), where there are such.
    pub fn new(elf: &ElfFile, debug: Option<&ElfFile>, shared: Option<&ElfFile>) -> Self {
        let with_lines = debug.filter(|debug| debug.has_section(".debug_info")).unwrap_or(elf);
        Self {
            functions: FunctionTable::read(elf, debug),
            lines: SourceLines::open(with_lines, shared),
            go: GoTable::read(elf),
        }
    }

    /// Returns the functions.
    pub fn functions(&self) -> &FunctionTable {
        &self.functions
    }

    /// Go's own table, of a Go program.
    pub fn go(&self) -> Option<&GoTable> {
        self.go.as_ref()
    }

    /// Returns the source lines, or why there are none.
    pub fn lines(&self) -> Result<&SourceLines, &ElfError> {
        self.lines.as_ref()
    }

    /// Returns the symbol that covers `address` (see [`FunctionTable::find`]).
    pub fn find(&self, address: u64, starts: &dyn FunctionStarts) -> Option<Function> {
        // Go's table covers its functions exactly; of C in the same program it knows nothing.
        let go = self.go.as_ref().and_then(|go| go.function(address)).map(|function| Function {
            name: function.name,
            start: function.start,
            size: Some(function.end - function.start),
            kind: FunctionKind::Function,
        });
        go.or_else(|| self.functions.find(address, starts))
    }

    /// Returns the frames at `address`, innermost first; none where neither symbols nor DWARF cover it.
    ///
    /// The outermost has the symbol's name: it is qualified, which names in DWARF need not be
    /// (`-C debuginfo=line-tables-only`).
    pub fn frames_at(&self, address: u64, starts: &dyn FunctionStarts) -> Vec<SourceFrame> {
        let mut frames = self.lines.as_ref().map_or_else(|_| Vec::new(), |lines| lines.frames_at(address));
        if let Some(symbol) = self.find(address, starts) {
            match frames.last_mut() {
                None => {
                    let (file, line) = self.go.as_ref().and_then(|go| go.line(address)).unzip();
                    frames.push(SourceFrame { function: Some(symbol.name), file, line });
                }
                Some(outermost) if symbol.kind == FunctionKind::Function || outermost.function.is_none() => {
                    outermost.function = Some(symbol.name);
                }
                Some(_) => {}
            }
        }
        frames
    }
}
