//! Naming of user code, on its own thread: reading the symbols of a large program takes long, and stacks must
//! be walked meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use symbols::LinkAddr;
use symbols::counted::allocated;
use symbols::elf::ElfFile;
use symbols::names::{
    DebugFiles, DebugInfoLimit, DebugQuery, FunctionStarts, GuestFiles, SourceLines, Symbolizer,
};

use crate::resolve::hot::MAX_BYTES;
use crate::resolve::resolver::UnnamedFrame;
use crate::resolve::walker::{FileEntry, GuestSource};
use display::clean;
use profile::naming::{name_frame, named_by, shared_with};
use profile::rows::{CodeRow, CodeSource, FileRow, FrameRow, InlinedRow};

/// Files whose symbols are loaded at once, at most.
const LOADED: usize = 32;
/// Bytes of the symbols of all files but the last, at most. Those used longest ago are dropped, and read
/// again on request. Those of the largest libraries of language runtimes take 6 to 12 MB.
const LOADED_BYTES: i64 = 24 << 20;
/// Requests that are sorted by file at once, at most.
const AT_ONCE: usize = 8_192;

/// Requests to the namer.
#[derive(Debug)]
pub(crate) enum NameRequest {
    /// A name.
    Name(UnnamedFrame),
    /// The code of the function that covers an address of a file.
    Code(Arc<FileEntry>, LinkAddr),
}

impl NameRequest {
    /// Returns the file of the request.
    fn file(&self) -> &FileEntry {
        match self {
            Self::Name(nameless) => &nameless.file,
            Self::Code(file, _) => file,
        }
    }
}

/// Results of the namer.
#[derive(Debug)]
pub(crate) enum NameResult {
    /// A frame and the functions that are inlined there.
    Frame(FrameRow, Vec<InlinedRow>),
    /// A file whose symbols were read.
    File(FileRow),
    /// The code of a function.
    Code(CodeRow),
}

/// Symbols of a file.
struct LoadedSymbols {
    symbols: Symbolizer,
    /// Their source, as in `file.named_by`.
    by: String,
    /// Time of the last request, in requests.
    used: u64,
    /// Memory of the symbols, bytes.
    bytes: i64,
    /// The reason why naming has stopped was reported.
    reported: bool,
}

impl LoadedSymbols {
    /// Returns the source of the file's names, and the reason why naming has stopped.
    fn named_by(&self) -> String {
        match self.stopped() {
            Some(why) => format!("{}; {why}", self.by),
            None => self.by.clone(),
        }
    }

    fn stopped(&self) -> Option<DebugInfoLimit> {
        self.symbols.lines().ok().and_then(SourceLines::stopped)
    }
}

/// The namer, on its own thread.
pub(crate) struct CodeNamer {
    source: GuestSource,
    debug: DebugFiles,
    loaded: HashMap<u32, Option<LoadedSymbols>>,
    clock: u64,
}

impl fmt::Debug for CodeNamer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namer").field("loaded", &self.loaded.len()).finish_non_exhaustive()
    }
}

impl CodeNamer {
    /// Creates a namer; `guest` opens debug files in the guest.
    pub(crate) fn new(source: GuestSource, guest: Box<dyn GuestFiles>) -> Self {
        Self { source, debug: DebugFiles::new().with_guest(guest), loaded: HashMap::new(), clock: 0 }
    }

    /// Serves requests until all senders are gone.
    pub(crate) fn run(mut self, wanted: &Receiver<NameRequest>, named: &Sender<NameResult>) {
        self.source.prepare();
        while let Ok(first) = wanted.recv() {
            let mut requests: Vec<NameRequest> =
                std::iter::once(first).chain(wanted.try_iter().take(AT_ONCE)).collect();
            // Sorted so that dropped symbols are read once for all requests that have come meanwhile.
            requests.sort_by_key(|request| request.file().id());
            for request in requests {
                // The receiver is gone only when the session was dropped.
                if self.answer(request, named).is_some_and(|answer| named.send(answer).is_err()) {
                    return;
                }
            }
        }
    }

    fn answer(&mut self, request: NameRequest, named: &Sender<NameResult>) -> Option<NameResult> {
        match request {
            NameRequest::Name(nameless) => {
                let (row, inlined) = self.name(nameless, named);
                Some(NameResult::Frame(row, inlined))
            }
            NameRequest::Code(file, address) => self.code(&file, address, named).map(NameResult::Code),
        }
    }

    fn name(
        &mut self,
        UnnamedFrame { row, file }: UnnamedFrame,
        named: &Sender<NameResult>,
    ) -> (FrameRow, Vec<InlinedRow>) {
        let starts = |address| Some(file.function_start(LinkAddr(address))?.0);
        let module = clean::printable(file.name());
        let before = allocated();
        let (row, inlined) =
            name_frame(row, &module, self.symbols(&file, named), &starts as &dyn FunctionStarts);
        self.account(&file, before, named);
        (row, inlined)
    }

    /// Adds the memory that was parsed of a file since the thread had allocated `before`. Reports a stop of
    /// naming.
    fn account(&mut self, file: &FileEntry, before: i64, named: &Sender<NameResult>) {
        let Some(Some(loaded)) = self.loaded.get_mut(&file.id()) else { return };
        loaded.bytes = loaded.bytes.saturating_add(allocated().saturating_sub(before).max(0));
        if !loaded.reported && loaded.stopped().is_some() {
            loaded.reported = true;
            // See `run` for a receiver that is gone.
            drop(named.send(NameResult::File(file.row(Some(loaded.named_by())))));
        }
    }

    fn code(
        &mut self,
        file: &Arc<FileEntry>,
        address: LinkAddr,
        named: &Sender<NameResult>,
    ) -> Option<CodeRow> {
        let range = file.function_range(address).map(|(LinkAddr(start), LinkAddr(end))| (start, end));
        let starts = |address| Some(file.function_start(LinkAddr(address))?.0);
        let symbol = self.symbols(file, named).and_then(|symbols| symbols.find(address.0, &starts));
        let sized =
            symbol.and_then(|function| Some((function.start, function.start.checked_add(function.size?)?)));
        let (start, end) = sized.or(range)?;
        let size = end.checked_sub(start).filter(|&size| size <= MAX_BYTES)?;
        let elf = file.elf(&self.source)?;
        let bytes = elf.bytes_at(start, size).ok()?.to_vec();
        Some(CodeRow { start, file: Some(file.id()), module: None, bytes, read: CodeSource::File })
    }

    fn symbols(&mut self, file: &Arc<FileEntry>, named: &Sender<NameResult>) -> Option<&Symbolizer> {
        self.clock += 1;
        if !self.loaded.contains_key(&file.id()) {
            self.make_room();
            let before = allocated();
            let loaded = self.read(file).map(|(symbols, by)| {
                let bytes = allocated().saturating_sub(before);
                let mut loaded = LoadedSymbols { symbols, by, used: 0, bytes, reported: false };
                loaded.reported = loaded.stopped().is_some();
                loaded
            });
            // See `run` for a receiver that is gone.
            drop(named.send(NameResult::File(file.row(loaded.as_ref().map(LoadedSymbols::named_by)))));
            self.loaded.insert(file.id(), loaded);
        }
        let loaded = self.loaded.get_mut(&file.id())?.as_mut()?;
        loaded.used = self.clock;
        Some(&loaded.symbols)
    }

    /// Returns the bytes of the symbols of all files.
    fn bytes(&self) -> i64 {
        self.loaded.values().flatten().map(|loaded| loaded.bytes).sum()
    }

    /// Drops the symbols that were requested longest ago, until there is room for another file.
    fn make_room(&mut self) {
        while self.loaded.len() >= LOADED || self.bytes() > LOADED_BYTES {
            let oldest =
                self.loaded.iter().min_by_key(|(_, loaded)| loaded.as_ref().map_or(0, |loaded| loaded.used));
            let Some(oldest) = oldest.map(|(&id, _)| id) else { return };
            self.loaded.remove(&oldest);
        }
    }

    /// Reads the symbols of a file; also returns their source.
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

/// Returns the section that names a file's functions.
fn own_symbols(elf: &ElfFile, symbols: &Symbolizer) -> &'static str {
    if symbols.go().is_some() && !elf.has_section(".symtab") {
        return ".gopclntab";
    }
    let sections = [".symtab", ".gnu_debugdata", ".dynsym"];
    sections.into_iter().find(|name| elf.has_section(name)).unwrap_or("nothing")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use guest_linux::Kernel;
    use guest_linux::fixture::{Config, Style};
    use symbols::counted::CountingAllocator;
    use vm_memory::{Bytes, GuestAddress};
    use vmm::GuestMemoryMmap;

    use super::*;
    use crate::resolve::walker::FileTable;
    use symbols::names::no_files;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    fn namer() -> CodeNamer {
        let guest = Config::new(Style::V6_12).build();
        let bytes = &guest.memory.0;
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes.len())]).expect("memory");
        memory.write_slice(bytes, GuestAddress(0)).expect("inside");
        let kernel = Kernel::find(&memory, guest.cr3, guest.five_level).expect("a kernel");
        CodeNamer::new(GuestSource::new(Arc::new(kernel), memory.into(), no_files()()), no_files()())
    }

    const FUNCTIONS: u32 = 40_000;
    /// Bytes of each function.
    const SIZE: u64 = 64;

    /// A program of 64 MiB of code with a symbol table and nothing else (ELF specification 1.2, chapter 1).
    fn program() -> Vec<u8> {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let halves = |halves: &[u32]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
        let (mut symbols, mut names) = (vec![0_u8; 24], vec![0_u8]);
        for number in 0..FUNCTIONS {
            // A global function of section 1.
            symbols.extend(halves(&[u32::try_from(names.len()).expect("short"), 0x1_0012]));
            symbols.extend(words(&[u64::from(number) * SIZE + SIZE, SIZE]));
            names.extend(format!("_ZN7library6engine8function{number:06}Ev\0").bytes());
        }
        let sections = b"\0.symtab\0.strtab\0.shstrtab\0";
        let mut file = [&[0x7f, b'E', b'L', b'F', 2, 1, 1][..], &[0; 9], &[3, 0, 62, 0, 1, 0, 0, 0]].concat();
        let start = 64 + 56;
        let (at_names, at_sections) = (start + symbols.len(), start + symbols.len() + names.len());
        let table = at_sections + sections.len();
        file.extend(words(&[SIZE, 64, table as u64]));
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 4, 0, 3, 0]);
        // PT_LOAD, readable and executable.
        file.extend(halves(&[1, 5]));
        file.extend(words(&[0, 0, 0, start as u64, 64 << 20, 4096]));
        for part in [&symbols[..], &names, sections] {
            file.extend(part);
        }
        file.extend([0; 64]);
        let headers = [
            (1, 2, start, symbols.len()),
            (9, 3, at_names, names.len()),
            (17, 3, at_sections, sections.len()),
        ];
        for (name, kind, at, size) in headers {
            file.extend(halves(&[name, kind]));
            file.extend(words(&[0, 0, at as u64, size as u64, 2, 1, 24]));
        }
        file
    }

    #[test]
    fn symbols_of_many_large_programs_take_bounded_memory_and_are_read_once_for_a_row_of_requests() {
        const PROGRAMS: u64 = 24;
        let program = program();
        let (mut files, mut rows) = (FileTable::default(), Vec::new());
        let programs: Vec<_> = (0..PROGRAMS)
            .map(|n| files.vdso([&program[..], &n.to_le_bytes()].concat().into(), &mut rows))
            .collect();
        let mut namer = namer();
        let (to_tell, named) = mpsc::channel();
        let request = |file: &Arc<FileEntry>| {
            let row = FrameRow { address: 5 * SIZE + 1, file: Some(file.id()), ..FrameRow::default() };
            NameRequest::Name(UnnamedFrame { row, file: Arc::clone(file) })
        };
        let mut largest = 0;
        for program in &programs {
            let before = namer.bytes();
            assert!(before <= LOADED_BYTES + largest, "{before} bytes");
            namer.answer(request(program), &to_tell);
            largest = largest.max(namer.loaded[&program.id()].as_ref().expect("symbols").bytes);
        }
        assert!(largest * i64::try_from(PROGRAMS).expect("few") > 2 * LOADED_BYTES, "{largest} bytes each");
        assert!(namer.loaded.len() < programs.len(), "some were given up");

        // All programs in turn, three times: one file row for each that was read again.
        drop(named);
        let (wanted, to_name) = mpsc::channel();
        let (to_tell, named) = mpsc::channel();
        for program in programs.iter().cycle().take(3 * programs.len()) {
            wanted.send(request(program)).expect("a receiver");
        }
        drop(wanted);
        namer.run(&to_name, &to_tell);
        drop(to_tell);
        let (mut frames, mut read) = (0, 0);
        for answer in named {
            match answer {
                NameResult::Frame(row, _) => frames += u64::from(row.symbol.is_some()),
                NameResult::File(_) => read += 1,
                NameResult::Code(_) => {}
            }
        }
        assert_eq!(frames, 3 * PROGRAMS);
        assert!(read <= PROGRAMS, "{read} readings of {PROGRAMS} programs");
    }
}
