//! A reader of DWARF that ends work and memory without bounds.
//!
//! addr2line and gimli follow whatever the sections say: each is safe, but inlined functions may nest as deep
//! as the file is long (addr2line parses them by recursion), and units may share what is parsed for each
//! again. So each byte that is read is paid for, and a read fails deep in the stack or when what was built
//! takes too much memory: each ends the parsing with an error, as the end of a section would.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};

use gimli::{Error, LittleEndian, Reader, ReaderOffsetId, Result};

use crate::counted::allocated;

/// Bytes of stack that one look-up may take: some hundred levels of inlined functions. Threads have 2 MiB.
const MAX_STACK: usize = 512 << 10;

/// Bytes that may be built of the DWARF of one file.
pub(super) const MAX_BUILT: u64 = 256 << 20;

/// Limit at which parsing of debug information ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DebugInfoLimit {
    /// It took more work than such a file can be worth.
    #[error("its debug information takes too long to read")]
    Work,
    /// The tables that are built from the debug information exceed the memory limit.
    #[error("its debug information takes more than 256 MiB")]
    Memory,
}

/// Remaining budget of reading and building, and where the stack was.
#[derive(Debug, Default)]
pub(super) struct ReadMeter {
    left: AtomicU64,
    base: AtomicUsize,
    /// Bytes that finished pieces of work have built.
    built: AtomicI64,
    /// Bytes that the thread had allocated when the present work began.
    since: AtomicI64,
    /// Memory has run out.
    full: AtomicBool,
    /// Work had run out once; a look-up has its own small budget.
    spent: AtomicBool,
}

impl ReadMeter {
    /// Starts a look-up: from this place on the stack, with `more` bytes to read in addition.
    pub fn start(&self, more: u64) {
        self.base.store(stack_address(), Relaxed);
        self.left.store(self.left().saturating_add(more), Relaxed);
        self.since.store(allocated(), Relaxed);
    }

    /// Ends a look-up, of whose memory `given` bytes are not kept.
    pub fn finish(&self, given: usize) {
        let given = i64::try_from(given).unwrap_or(i64::MAX);
        let built = self.built_by_now().saturating_sub(given);
        self.built.store(built, Relaxed);
    }

    fn built_by_now(&self) -> i64 {
        let present = allocated().saturating_sub(self.since.load(Relaxed));
        self.built.load(Relaxed).saturating_add(present)
    }

    /// Returns the limit that ended reading, if one did.
    pub fn stopped(&self) -> Option<DebugInfoLimit> {
        if self.full.load(Relaxed) {
            Some(DebugInfoLimit::Memory)
        } else if self.spent.load(Relaxed) {
            Some(DebugInfoLimit::Work)
        } else {
            None
        }
    }

    /// Returns the bytes that may still be read.
    pub fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }

    fn spend(&self, bytes: usize, price: u64) -> bool {
        let Some(left) = self.left().checked_sub((bytes as u64).saturating_mul(price)) else {
            self.left.store(0, Relaxed);
            self.spent.store(true, Relaxed);
            return false;
        };
        self.left.store(left, Relaxed);
        if self.built_by_now() > MAX_BUILT.cast_signed() {
            self.full.store(true, Relaxed);
            return false;
        }
        self.base.load(Relaxed).abs_diff(stack_address()) < MAX_STACK
    }
}

/// About where the stack ends now. An estimate is enough: the bound is far from the end.
#[inline(always)]
fn stack_address() -> usize {
    let local = 0u8;
    std::ptr::from_ref(std::hint::black_box(&local)).addr()
}

/// A section that is paid for by the byte.
pub(super) struct MeteredSection {
    pub bytes: Arc<[u8]>,
    /// Price of a byte: more where a byte makes many in memory.
    pub price: u64,
    pub meter: Arc<ReadMeter>,
}

/// A part of a [`MeteredSection`].
#[derive(Clone)]
pub(super) struct MeteredReader {
    source: Arc<MeteredSection>,
    start: usize,
    /// Never before `start`, never after the source's end.
    end: usize,
}

impl MeteredReader {
    /// Returns all of `source`.
    pub fn new(source: MeteredSection) -> Self {
        Self { start: 0, end: source.bytes.len(), source: Arc::new(source) }
    }

    fn bytes(&self) -> &[u8] {
        self.source.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn eof(&self) -> Error {
        Error::UnexpectedEof(self.offset_id())
    }

    fn pay(&self, bytes: usize) -> Result<()> {
        if self.source.meter.spend(bytes, self.source.price) { Ok(()) } else { Err(self.eof()) }
    }

    /// Returns the start of `self` after `size` more bytes.
    fn after(&self, size: usize) -> Result<usize> {
        if size > self.end - self.start { Err(self.eof()) } else { Ok(self.start + size) }
    }
}

impl fmt::Debug for MeteredReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metered({}..{})", self.start, self.end)
    }
}

impl Reader for MeteredReader {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    fn empty(&mut self) {
        self.end = self.start;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.end = self.after(len)?;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        self.start.saturating_sub(base.start)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId((self.source.bytes.as_ptr().addr() + self.start) as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = id.0.checked_sub(self.offset_id().0)?;
        usize::try_from(offset).ok().filter(|offset| *offset <= self.len())
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.bytes().iter().position(|b| *b == byte);
        self.pay(found.unwrap_or(self.len()) / FIND_SPEED)?;
        found.ok_or_else(|| self.eof())
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.start = self.after(len)?;
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let end = self.after(len)?;
        let part = Self { source: Arc::clone(&self.source), start: self.start, end };
        self.start = end;
        Ok(part)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.pay(self.len() / FIND_SPEED)?;
        Ok(self.bytes().into())
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.pay(self.len() / FIND_SPEED)?;
        std::str::from_utf8(self.bytes()).map(Cow::Borrowed).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.pay(self.len() / FIND_SPEED)?;
        Ok(String::from_utf8_lossy(self.bytes()))
    }

    fn read_slice(&mut self, into: &mut [u8]) -> Result<()> {
        let end = self.after(into.len())?;
        self.pay(into.len())?;
        into.copy_from_slice(self.source.bytes.get(self.start..end).ok_or_else(|| self.eof())?);
        self.start = end;
        Ok(())
    }
}

/// Bytes that a search passes in the time that reading one takes.
const FIND_SPEED: usize = 8;
