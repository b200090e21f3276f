//! Names user code, on a thread of its own: reading the symbols of a large program takes long, and stacks must be walked
//! meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use symbols::elf::ElfFile;
use symbols::names::{
    DebugFile, DebugFiles, DebugQuery, FunctionStarts, FunctionTable, GuestFiles, Origin, SourceLines,
    unnamed,
};

use super::walker::{FileEntry, Source};
use crate::batch::{FileRow, FrameRow, InlinedRow};
use crate::text;

/// Files whose symbols are held at once, at most.
const HELD: usize = 32;

/// A frame that wants a name.
#[derive(Debug)]
pub(crate) struct Nameless {
    pub row: FrameRow,
    pub file: Arc<FileEntry>,
}

/// What a name brings.
#[derive(Debug)]
pub(crate) enum Named {
    /// A frame and the functions that are inlined there.
    Frame(FrameRow, Vec<InlinedRow>),
    /// A file whose symbols were read.
    File(FileRow),
}

/// What is known of one file.
struct Symbols {
    functions: FunctionTable,
    lines: Option<SourceLines>,
    used: u64,
}

/// The namer's thread.
pub(crate) struct Namer {
    source: Source,
    debug: DebugFiles,
    held: HashMap<u32, Option<Symbols>>,
    clock: u64,
}

impl fmt::Debug for Namer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namer").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl Namer {
    /// `guest` opens debug files in the guest, `directories` have more of them.
    pub(crate) fn new(source: Source, guest: Box<dyn GuestFiles>, directories: &[PathBuf]) -> Self {
        let debug = DebugFiles::new().with_guest(guest);
        let debug = directories.iter().fold(debug, |debug, path| debug.with_directory(path.clone()));
        Self { source, debug, held: HashMap::new(), clock: 0 }
    }

    /// Names what comes until all senders are gone.
    pub(crate) fn run(mut self, wanted: &Receiver<Nameless>, named: &Sender<Named>) {
        for nameless in wanted {
            // The receiver is gone only when the session was dropped.
            let (row, inlined) = self.name(nameless, named);
            if named.send(Named::Frame(row, inlined)).is_err() {
                return;
            }
        }
    }

    fn name(
        &mut self,
        Nameless { mut row, file }: Nameless,
        named: &Sender<Named>,
    ) -> (FrameRow, Vec<InlinedRow>) {
        let at = if row.call { row.address.wrapping_sub(1) } else { row.address };
        let start = file.function_start(at);
        let id = row.id;
        let module = text::printable(file.name());
        let starts = |address| file.function_start(address);
        let mut inlined = Vec::new();
        let symbols = self.symbols(&file, named);
        let function = symbols.and_then(|symbols| symbols.functions.find(at, &starts as &dyn FunctionStarts));
        let (symbol, offset) = match function {
            Some(function) => (function.name, row.address.wrapping_sub(function.start)),
            None => (unnamed(&module, start), row.address.wrapping_sub(start.unwrap_or(row.address))),
        };
        row.symbol = Some(text::printable(&symbol));
        row.offset = offset;
        if let Some(lines) = self.symbols(&file, named).and_then(|symbols| symbols.lines.as_ref()) {
            let mut frames = lines.frames_at(at);
            // The last is the function itself, which the symbol table names.
            if let Some(own) = frames.pop() {
                (row.source, row.line) = (own.file.map(|file| text::printable(&file)), own.line);
            }
            for (frame, depth) in frames.into_iter().zip(0..) {
                inlined.push(InlinedRow {
                    frame: id,
                    depth,
                    symbol: text::printable(frame.function.as_deref().unwrap_or("[inlined]")),
                    source: frame.file.map(|file| text::printable(&file)),
                    line: frame.line,
                });
            }
        }
        (row, inlined)
    }

    fn symbols(&mut self, file: &Arc<FileEntry>, named: &Sender<Named>) -> Option<&Symbols> {
        self.clock += 1;
        if !self.held.contains_key(&file.id()) {
            if self.held.len() >= HELD {
                let oldest =
                    self.held.iter().min_by_key(|(_, held)| held.as_ref().map_or(0, |held| held.used));
                let oldest = oldest.map(|(&id, _)| id);
                oldest.and_then(|id| self.held.remove(&id));
            }
            let read = self.read(file);
            let named_by = read.as_ref().map(|(_, by)| by.clone());
            // See `run` for a receiver that is gone.
            drop(named.send(Named::File(file.row(named_by))));
            self.held.insert(file.id(), read.map(|(symbols, _)| symbols));
        }
        let held = self.held.get_mut(&file.id())?.as_mut()?;
        held.used = self.clock;
        Some(held)
    }

    /// The symbols of a file, and what they come from.
    fn read(&self, file: &FileEntry) -> Option<(Symbols, String)> {
        let (reader, _) = file.open(&self.source).ok()?;
        let elf = ElfFile::open(reader).ok()?;
        let debug = self.debug.find(&DebugQuery::new(&elf, file.path())).ok();
        let functions = FunctionTable::read(&elf, debug.as_ref().map(|debug| &debug.elf));
        let with_lines = debug.as_ref().map_or(&elf, |debug| &debug.elf);
        let shared = debug.as_ref().and_then(|debug| self.shared(debug));
        let lines = SourceLines::open(with_lines, shared.as_ref().map(|file| &file.elf)).ok();
        let by = match &debug {
            Some(DebugFile { origin: Origin::Guest(path), .. }) => format!("{path} in the guest"),
            Some(DebugFile { origin: Origin::Host(path), .. }) => path.display().to_string(),
            Some(DebugFile { origin: Origin::Source(name), .. }) => name.clone(),
            None => own_symbols(&elf).to_owned(),
        };
        Some((Symbols { functions, lines, used: 0 }, text::printable(&by)))
    }

    fn shared(&self, debug: &DebugFile) -> Option<DebugFile> {
        let (path, build_id) = debug.elf.alt_link()?;
        self.debug.find_shared(&path, &build_id, &debug.origin)
    }
}

/// What of its own names a file's functions.
fn own_symbols(elf: &ElfFile) -> &'static str {
    let sections = [".symtab", ".gnu_debugdata", ".dynsym"];
    sections.into_iter().find(|name| elf.has_section(name)).unwrap_or("nothing")
}
