//! Names user code, on a thread of its own: reading the symbols of a large program takes long, and stacks must be walked
//! meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use symbols::counted::allocated;
use symbols::elf::ElfFile;
use symbols::names::{DebugFiles, DebugQuery, FunctionStarts, GuestFiles, SourceLines, Stopped, Symbolizer};

use super::hot::MAX_BYTES;
use super::walker::{FileEntry, Source};
use crate::batch::{CodeRow, CodeSource, FileRow, FrameRow, InlinedRow};
use crate::naming::{name_frame, named_by, shared_with};
use crate::text;

/// Files whose symbols are held at once, at most.
const HELD: usize = 32;
/// Bytes that the symbols of all files but the last may take together; those used longest ago are given up.
const HELD_BYTES: i64 = 512 << 20;

/// A frame that wants a name.
#[derive(Debug)]
pub(crate) struct Nameless {
    pub row: FrameRow,
    pub file: Arc<FileEntry>,
}

/// What is wanted of the namer.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A name.
    Name(Nameless),
    /// The code of the function that covers an address of a file.
    Code(Arc<FileEntry>, u64),
}

/// What a wish brings.
#[derive(Debug)]
pub(crate) enum Named {
    /// A frame and the functions that are inlined there.
    Frame(FrameRow, Vec<InlinedRow>),
    /// A file whose symbols were read.
    File(FileRow),
    /// The code of a function.
    Code(CodeRow),
}

/// What names a file's code.
struct Held {
    symbols: Symbolizer,
    /// What it is called in `file.named_by`.
    by: String,
    /// When it was asked last.
    used: u64,
    /// Memory that it takes, bytes.
    bytes: i64,
    /// It was told why it does not name all that it could.
    told: bool,
}

impl Held {
    /// What names the file, and why it does so no longer.
    fn named_by(&self) -> String {
        match self.stopped() {
            Some(why) => format!("{}; {why}", self.by),
            None => self.by.clone(),
        }
    }

    fn stopped(&self) -> Option<Stopped> {
        self.symbols.lines().ok().and_then(SourceLines::stopped)
    }
}

/// The namer's thread.
pub(crate) struct Namer {
    source: Source,
    debug: DebugFiles,
    held: HashMap<u32, Option<Held>>,
    clock: u64,
}

impl fmt::Debug for Namer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namer").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

impl Namer {
    /// `guest` opens debug files in the guest.
    pub(crate) fn new(source: Source, guest: Box<dyn GuestFiles>) -> Self {
        Self { source, debug: DebugFiles::new().with_guest(guest), held: HashMap::new(), clock: 0 }
    }

    /// Names what comes until all senders are gone.
    pub(crate) fn run(mut self, wanted: &Receiver<Wish>, named: &Sender<Named>) {
        self.source.prepare();
        for wish in wanted {
            let answer = match wish {
                Wish::Name(nameless) => {
                    let (row, inlined) = self.name(nameless, named);
                    Some(Named::Frame(row, inlined))
                }
                Wish::Code(file, address) => self.code(&file, address, named).map(Named::Code),
            };
            // The receiver is gone only when the session was dropped.
            if answer.is_some_and(|answer| named.send(answer).is_err()) {
                return;
            }
        }
    }

    fn name(
        &mut self,
        Nameless { row, file }: Nameless,
        named: &Sender<Named>,
    ) -> (FrameRow, Vec<InlinedRow>) {
        let starts = |address| file.function_start(address);
        let module = text::printable(file.name());
        let before = allocated();
        let (row, inlined) =
            name_frame(row, &module, self.symbols(&file, named), &starts as &dyn FunctionStarts);
        self.account(&file, before, named);
        (row, inlined)
    }

    /// Takes down what was parsed of a file since the thread had allocated `before`, and tells why no more will be.
    fn account(&mut self, file: &FileEntry, before: i64, named: &Sender<Named>) {
        let Some(Some(held)) = self.held.get_mut(&file.id()) else { return };
        held.bytes = held.bytes.saturating_add(allocated().saturating_sub(before).max(0));
        if !held.told && held.stopped().is_some() {
            held.told = true;
            // See `run` for a receiver that is gone.
            drop(named.send(Named::File(file.row(Some(held.named_by())))));
        }
    }

    fn code(&mut self, file: &Arc<FileEntry>, address: u64, named: &Sender<Named>) -> Option<CodeRow> {
        let range = file.function_range(address);
        let starts = |address| file.function_start(address);
        let symbol = self.symbols(file, named).and_then(|symbols| symbols.find(address, &starts));
        let sized =
            symbol.and_then(|function| Some((function.start, function.start.checked_add(function.size?)?)));
        let (start, end) = sized.or(range)?;
        let size = end.checked_sub(start).filter(|&size| size <= MAX_BYTES)?;
        let elf = ElfFile::open(file.open(&self.source).ok()?.0).ok()?;
        let bytes = elf.bytes_at(start, size).ok()?.to_vec();
        Some(CodeRow { start, file: Some(file.id()), module: None, bytes, read: CodeSource::File })
    }

    fn symbols(&mut self, file: &Arc<FileEntry>, named: &Sender<Named>) -> Option<&Symbolizer> {
        self.clock += 1;
        if !self.held.contains_key(&file.id()) {
            self.make_room();
            let before = allocated();
            let held = self.read(file).map(|(symbols, by)| {
                let bytes = allocated().saturating_sub(before);
                let mut held = Held { symbols, by, used: 0, bytes, told: false };
                held.told = held.stopped().is_some();
                held
            });
            // See `run` for a receiver that is gone.
            drop(named.send(Named::File(file.row(held.as_ref().map(Held::named_by)))));
            self.held.insert(file.id(), held);
        }
        let held = self.held.get_mut(&file.id())?.as_mut()?;
        held.used = self.clock;
        Some(&held.symbols)
    }

    /// Gives up what was asked for longest ago, until there is room for another file.
    fn make_room(&mut self) {
        let bytes =
            |held: &HashMap<u32, Option<Held>>| held.values().flatten().map(|held| held.bytes).sum::<i64>();
        while self.held.len() >= HELD || bytes(&self.held) > HELD_BYTES {
            let oldest = self.held.iter().min_by_key(|(_, held)| held.as_ref().map_or(0, |held| held.used));
            let Some(oldest) = oldest.map(|(&id, _)| id) else { return };
            self.held.remove(&oldest);
        }
    }

    /// The symbols of a file, and what they come from.
    fn read(&self, file: &FileEntry) -> Option<(Symbolizer, String)> {
        let (reader, _) = file.open(&self.source).ok()?;
        let elf = ElfFile::open(reader).ok()?;
        let debug = self.debug.find(&DebugQuery::new(&elf, file.path())).ok();
        let shared = debug.as_ref().and_then(|debug| shared_with(debug, &self.debug));
        let symbols = Symbolizer::new(
            &elf,
            debug.as_ref().map(|debug| &debug.elf),
            shared.as_ref().map(|shared| &shared.elf),
        );
        let by = debug
            .as_ref()
            .map_or_else(|| own_symbols(&elf, &symbols).to_owned(), |debug| named_by(&debug.origin));
        Some((symbols, by))
    }
}

/// What of its own names a file's functions.
fn own_symbols(elf: &ElfFile, symbols: &Symbolizer) -> &'static str {
    if symbols.go().is_some() && !elf.has_section(".symtab") {
        return ".gopclntab";
    }
    let sections = [".symtab", ".gnu_debugdata", ".dynsym"];
    sections.into_iter().find(|name| elf.has_section(name)).unwrap_or("nothing")
}
