//! Source lines and inlined functions, from DWARF.

use std::sync::Arc;

use addr2line::{Context, LookupResult};
use gimli::{Dwarf, SectionId};

use super::demangle::Names;
pub use super::meter::DebugInfoLimit;
use super::meter::{MAX_BUILT, MeteredReader, MeteredSection, ReadMeter};
use crate::elf::{ElfError, ElfFile};
use display::clean::ascii;

/// Bytes of all sections of DWARF of one file, at most.
const MAX_SECTIONS: u64 = 1 << 30;
/// Frames of one address, at most.
const MAX_FRAMES: usize = 256;
/// Bytes of a path that are kept.
const MAX_PATH: usize = 4096;
/// Times that every byte of DWARF may be read on average. Units are parsed when they are first needed, then
/// kept; reading all of a file once for all its functions takes two to three.
const MAX_PASSES: u64 = 8;
/// Additional bytes that one look-up may read.
const EACH_LOOKUP: u64 = 4 << 10;
/// Price of a byte of `.debug_line`: each may become a row of 32 bytes.
const LINE_PRICE: u64 = 8;

/// One frame of an address: the function itself or one that it was inlined into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFrame {
    /// The function, demangled.
    pub function: Option<String>,
    /// Path of the source file: of the place in the innermost function, of the call in the others.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}

impl SourceFrame {
    /// Returns the bytes that it takes, about.
    fn memory(&self) -> usize {
        let strings = [&self.function, &self.file].into_iter().flatten().map(String::capacity);
        strings.sum::<usize>() + size_of::<Self>()
    }
}

/// The source lines of one file. What an address needs is parsed when it is first asked for, and kept.
pub struct SourceLines {
    context: Context<MeteredReader>,
    meter: Arc<ReadMeter>,
    has_split_units: std::cell::Cell<bool>,
    names: Names,
}

impl std::fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLines").field("meter", &self.meter).finish_non_exhaustive()
    }
}

impl SourceLines {
    /// From `elf`, a file with `.debug_info`: the program itself or its debug file. `shared` is the file that
    /// [`ElfFile::alt_link`] names; without it names that are there are missing.
    pub fn open(elf: &ElfFile, shared: Option<&ElfFile>) -> Result<Self, ElfError> {
        if !elf.has_section(".debug_info") {
            return Err(ElfError::NoSection(".debug_info".into()));
        }
        let meter = Arc::new(ReadMeter::default());
        let mut total = 0;
        let mut dwarf = load(elf, &meter, &mut total)?;
        if let Some(shared) = shared {
            dwarf.set_sup(load(shared, &meter, &mut total)?);
        }
        meter.start(total.saturating_mul(MAX_PASSES).saturating_add(1 << 20));
        let damaged = |_| match meter.stopped() {
            Some(DebugInfoLimit::Memory) => {
                ElfError::TooLarge { what: "what is read of the debug information".into(), bytes: MAX_BUILT }
            }
            _ => ElfError::Malformed(".debug_info".into()),
        };
        let context = Context::from_dwarf(dwarf).map_err(damaged)?;
        meter.finish(0);
        Ok(Self { context, meter, has_split_units: false.into(), names: Names::default() })
    }

    /// Returns the frames at `address`, an address of the file, innermost first; none where DWARF knows
    /// nothing or is damaged.
    pub fn frames_at(&self, address: u64) -> Vec<SourceFrame> {
        // addr2line computes the address after it.
        if address == u64::MAX {
            return Vec::new();
        }
        self.meter.start(EACH_LOOKUP);
        let found = self.find(address);
        self.meter.finish(found.iter().map(SourceFrame::memory).sum());
        found
    }

    fn find(&self, address: u64) -> Vec<SourceFrame> {
        let mut lookup = self.context.find_frames(address);
        let mut frames = loop {
            match lookup {
                LookupResult::Output(Ok(frames)) => break frames,
                LookupResult::Output(Err(_)) => return Vec::new(),
                // A split unit: its functions are in a .dwo file. Its lines are here.
                LookupResult::Load { continuation, .. } => {
                    self.has_split_units.set(true);
                    lookup = addr2line::LookupContinuation::resume(continuation, None);
                }
            }
        };
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let location = frame.location.as_ref();
            let file = location.and_then(|location| location.file).map(str::as_bytes);
            found.push(SourceFrame {
                function: name.map(|name| self.names.readable(name.as_bytes())),
                file: file.map(|file| ascii(file.get(..MAX_PATH).unwrap_or(file))),
                line: location.and_then(|location| location.line),
            });
            if found.len() == MAX_FRAMES {
                break;
            }
        }
        found.retain(|frame| frame.function.is_some() || frame.file.is_some() || frame.line.is_some());
        found
    }

    /// True when an address was asked for whose functions are in a `.dwo` file, which is not read.
    pub fn has_split_units(&self) -> bool {
        self.has_split_units.get()
    }

    /// Returns the reason why parsing has ended; what was not parsed by then is missing.
    pub fn stopped(&self) -> Option<DebugInfoLimit> {
        self.meter.stopped()
    }

    /// Returns the bytes that may still be read of the sections before [`DebugInfoLimit::Work`].
    pub fn work_left(&self) -> u64 {
        self.meter.left()
    }
}

fn load(elf: &ElfFile, meter: &Arc<ReadMeter>, total: &mut u64) -> Result<Dwarf<MeteredReader>, ElfError> {
    let too_large = |bytes| ElfError::TooLarge { what: "the debug information".into(), bytes };
    Dwarf::load(|id: SectionId| {
        let bytes = match id {
            // Where variables are is not asked for.
            SectionId::DebugLoc | SectionId::DebugLocLists | SectionId::DebugMacro => Arc::from([]),
            _ => match elf.section(id.name()) {
                Ok(section) => section.bytes,
                Err(ElfError::NoSection(_)) => Arc::from([]),
                Err(error) => return Err(error),
            },
        };
        let price = if id == SectionId::DebugLine { LINE_PRICE } else { 1 };
        *total = total.saturating_add((bytes.len() as u64).saturating_mul(price));
        if *total > MAX_SECTIONS {
            return Err(too_large(*total));
        }
        Ok(MeteredReader::new(MeteredSection { bytes, price, meter: Arc::clone(meter) }))
    })
}
