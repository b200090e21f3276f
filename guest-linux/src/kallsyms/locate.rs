//! Finds the kallsyms arrays in the image, without a symbol to start from.
//!
//! The tokens of the ten digits are themselves, so `"0\0" "1\0" ... "9\0"` is in every token table. From
//! there on each array is found by its neighbour and confirmed by walking it: the token table by its index,
//! the names by the markers, the offsets by the addresses they give.
//!
//! Each array starts at a multiple of 8 bytes, or of 4 where offsets are relative to their own place, as
//! seen in Linux 7.2 and 7.3 (`output_label`, scripts/kallsyms.c). Both are looked for everywhere.

use crate::image::KernelImage;
use crate::kallsyms::{MAX_NAMES, MAX_SYMBOLS};
use crate::memory::PhysicalMemory;
use symbols::bytes::{index, u16_at, u32_at};
use symbols::shared_table::SharedTable;

/// The tokens of the digits, as every token table has them.
const DIGITS: &[u8; 20] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// Code of the first of them.
const ZERO: usize = b'0' as usize;
/// A token table is at most as long as its u16 index can address.
const MAX_TOKEN_TABLE: u64 = 1 << 16;
/// Places that look like a token table and are read closely, at most.
const MAX_CANDIDATES: usize = 8;
/// Symbols per marker.
const PER_MARKER: usize = 256;
/// Bytes that 256 names can take: at least a length and a token each, at most as much as a
/// length of two bytes allows for names of `KSYM_NAME_LEN`.
const MARKER_STEP: std::ops::RangeInclusive<u32> = 512..=256 * 514;
/// Names that are walked to find where they start, at most: an honest kernel's are walked once.
const MAX_WALKED: usize = 16 * MAX_SYMBOLS;
/// Places that look like markers and are read closely, at most.
const MAX_MARKER_CANDIDATES: usize = 32;
/// Multiples at which arrays start: that of Linux 7.2, that of those before.
const ALIGNMENTS: [u64; 2] = [4, 8];
/// The smaller of them.
const STEP: u64 = 4;

/// The arrays of kallsyms, copied out of the image and checked.
#[derive(Debug)]
pub(crate) struct KallsymsArrays {
    /// The 256 tokens.
    pub(crate) tokens: TokenTable,
    /// Compressed names of all symbols.
    pub(crate) names: Vec<u8>,
    /// Address of each symbol.
    pub(crate) addresses: SymbolAddresses,
}

/// Addresses of symbols, as kallsyms has them: the offsets do not depend on where KASLR put the kernel.
#[derive(Debug)]
pub(crate) struct SymbolAddresses {
    offsets: SharedTable<u32>,
    base: u64,
    scheme: AddressScheme,
}

impl SymbolAddresses {
    fn new(bytes: &[u8], base: u64, scheme: AddressScheme) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let offsets: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Self { offsets: offsets.into(), base, scheme }
    }

    /// Returns the first `count` addresses, in memory that processes share.
    pub(crate) fn shared(self, count: usize) -> Self {
        let mut offsets = self.offsets.to_vec();
        offsets.truncate(count);
        offsets.shrink_to_fit();
        Self { offsets: SharedTable::from(offsets).shared(), ..self }
    }

    /// Returns the number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns the address of symbol `i`; `None` if there is none.
    pub(crate) fn get(&self, i: u32) -> Option<u64> {
        Some(self.scheme.address(self.base, i, *self.offsets.get(i as usize)?))
    }

    /// Returns all addresses, in the order of kallsyms.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..).zip(self.offsets.iter()).map(|(i, offset)| self.scheme.address(self.base, i, *offset))
    }

    /// Returns addresses that are all 0.
    #[cfg(test)]
    pub(crate) fn of_zeroes(count: usize) -> Self {
        Self::new(&vec![0; count * 4], 0, AddressScheme::Unsigned)
    }
}

/// The token table with its index.
#[derive(Debug)]
pub(crate) struct TokenTable {
    table: Vec<u8>,
    starts: [u16; 256],
    /// Address of the table.
    virt: u64,
    /// End of the index.
    end: u64,
}

impl TokenTable {
    /// Returns the characters of a token.
    pub(crate) fn get(&self, token: u8) -> &[u8] {
        let start = usize::from(self.starts[usize::from(token)]);
        symbols::bytes::until_nul(self.table.get(start..).unwrap_or(&[]))
    }

    /// Returns a table whose tokens `text` gives.
    #[cfg(test)]
    pub(crate) fn for_test(text: impl Fn(u8) -> Vec<u8>) -> Self {
        let mut tokens = Self { table: Vec::new(), starts: [0; 256], virt: 0, end: 0 };
        for code in 0..=255 {
            tokens.starts[usize::from(code)] = tokens.table.len().try_into().unwrap();
            tokens.table.extend(text(code));
            tokens.table.push(0);
        }
        tokens
    }
}

/// Location of the names.
struct NameLocation {
    bytes: Vec<u8>,
    count: usize,
    /// Address of the names.
    virt: u64,
}

fn align8(at: u64) -> Option<u64> {
    at.checked_next_multiple_of(8)
}

/// Finds all arrays; `None` when the image has none that fit together.
pub(crate) fn locate(memory: &impl PhysicalMemory, image: &KernelImage) -> Option<KallsymsArrays> {
    let mut candidates = 0;
    let mut walk = MAX_WALKED;
    let mut result = None;
    image.search(memory, DIGITS, |at| {
        candidates += 1;
        result = token_table(memory, image, at).and_then(|tokens| {
            let names = names(memory, image, tokens.virt, &mut walk)?;
            let addresses = addresses(memory, image, &names, tokens.end)?;
            Some(KallsymsArrays { tokens, names: names.bytes, addresses })
        });
        (result.is_some() || candidates == MAX_CANDIDATES).then_some(())
    });
    result
}

/// Returns the token table around the digits' tokens at `digits`.
fn token_table(memory: &impl PhysicalMemory, image: &KernelImage, digits: u64) -> Option<TokenTable> {
    // Searches forwards to the end of the table, after which the index shows how far back it starts.
    let (_, image_end) = image.range();
    let window_end = digits.checked_add(MAX_TOKEN_TABLE)?.min(image_end);
    let window = mapped_prefix(memory, image, digits, window_end);
    let mut end = 0;
    for _ in ZERO..256 {
        end += window.get(end..)?.iter().position(|&b| b == 0)? + 1;
    }
    let end = digits.checked_add(end as u64)?;
    ALIGNMENTS.into_iter().find_map(|alignment| {
        let index_at = end.checked_next_multiple_of(alignment)?;
        indexed_by(memory, image, (digits, end), index_at)
    })
}

/// Returns the token table that has its digits at `digits`, ends at `end`, and has its index at `index_at`.
fn indexed_by(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    (digits, end): (u64, u64),
    index_at: u64,
) -> Option<TokenTable> {
    let mut raw = [0; 512];
    image.read(memory, index_at, &mut raw)?;
    let mut starts = [0; 256];
    for (i, start) in starts.iter_mut().enumerate() {
        *start = u16_at(&raw, i * 2)?;
    }
    let virt = digits.checked_sub(u64::from(starts[ZERO]))?;
    let table = image.bytes(memory, (virt, end))?;
    let mut at = 0;
    for &start in &starts {
        if usize::from(start) != at {
            return None;
        }
        at += table.get(at..)?.iter().position(|&b| b == 0)? + 1;
    }
    Some(TokenTable { table, starts, virt, end: index_at.checked_add(512)? })
}

/// Returns the bytes from `start` to `end` or to the first that is not mapped.
fn mapped_prefix(memory: &impl PhysicalMemory, image: &KernelImage, start: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(end.saturating_sub(start))];
    let mut done = 0;
    while done < bytes.len() {
        // Up to the end of this 4 KiB page, the smallest that is mapped or not.
        let at = start + done as u64;
        let step = index(4096 - at % 4096).min(bytes.len() - done);
        if image.read(memory, at, &mut bytes[done..done + step]).is_none() {
            break;
        }
        done += step;
    }
    bytes.truncate(done);
    bytes
}

/// Returns the names, by the markers that end at or some way before the token table.
fn names(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    token_table: u64,
    walk: &mut usize,
) -> Option<NameLocation> {
    // Between the markers and the token table: nothing, or 3 bytes a symbol (6.2 to 6.4).
    let back = (MAX_SYMBOLS * 3 + MAX_SYMBOLS / PER_MARKER * 4) as u64;
    let start = token_table.checked_sub(back)?.max(image.range().0) & !(STEP - 1);
    let window = mapped_suffix(memory, image, start, token_table);
    let window_virt = token_table - window.len() as u64;
    let step = index(STEP);
    let aligned = index(window_virt.wrapping_neg() % STEP);
    let mut candidates = 0;
    let mut at = aligned + window.len().saturating_sub(aligned) / step * step;
    while let Some(next) = at.checked_sub(step).filter(|&a| a >= aligned) {
        at = next;
        let markers = ascending(&window[at..]);
        if markers.len() < 2 {
            continue;
        }
        let markers_virt = window_virt + at as u64;
        // What follows the markers may look like one or two more.
        for len in (2..=markers.len()).rev().take(3) {
            if let Some(found) = names_before(memory, image, (markers_virt, &markers[..len]), walk) {
                return Some(found);
            }
        }
        candidates += 1;
        if candidates == MAX_MARKER_CANDIDATES {
            return None;
        }
    }
    None
}

/// Like [`mapped_prefix`], but what is mapped right before `end`.
fn mapped_suffix(memory: &impl PhysicalMemory, image: &KernelImage, start: u64, end: u64) -> Vec<u8> {
    let mut first = end;
    while first > start {
        let page = ((first - 1) & !4095).max(start);
        if image.translate(page).is_none() {
            break;
        }
        first = page;
    }
    image.bytes(memory, (first, end)).unwrap_or_default()
}

/// Returns the run of numbers at the start of `bytes` that can be markers: 0, then steps of 256 names.
fn ascending(bytes: &[u8]) -> Vec<u32> {
    let mut markers = Vec::new();
    if u32_at(bytes, 0) != Some(0) {
        return markers;
    }
    let mut last = 0u32;
    markers.push(last);
    while let Some(next) = u32_at(bytes, markers.len() * 4) {
        if !MARKER_STEP.contains(&next.wrapping_sub(last)) || markers.len() * PER_MARKER > MAX_SYMBOLS {
            break;
        }
        markers.push(next);
        last = next;
    }
    markers
}

/// Returns the names that end right before `markers_virt` and fit the markers.
fn names_before(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    (markers_virt, markers): (u64, &[u32]),
    walk: &mut usize,
) -> Option<NameLocation> {
    let last = u64::from(*markers.last()?);
    if last > MAX_NAMES {
        return None;
    }
    let block = u64::from(*MARKER_STEP.end());
    let highest = markers_virt.checked_sub(last)? & !(STEP - 1);
    let lowest = highest.saturating_sub(block).max(image.range().0 + 8);
    let bytes = mapped_suffix(memory, image, lowest - 8, markers_virt);
    let bytes_virt = markers_virt - bytes.len() as u64;
    let mut start = highest;
    while start >= lowest && start >= bytes_virt + 8 {
        let at = index(start - bytes_virt);
        for alignment in ALIGNMENTS.into_iter().filter(|alignment| start.is_multiple_of(*alignment)) {
            // num_syms is a u32, padded.
            let count = u32_at(&bytes, at - index(alignment))? as usize;
            if count <= MAX_SYMBOLS
                && count.div_ceil(PER_MARKER) == markers.len()
                && names_fit(&bytes[at..], count, markers, walk)
            {
                return Some(NameLocation { bytes: bytes[at..].to_vec(), count, virt: start });
            }
        }
        start -= STEP;
    }
    None
}

/// Returns the length of the name at the start of `names`: of its length field, and of its tokens.
pub(crate) fn name_length(names: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*names.first()?);
    if first & 0x80 == 0 {
        return Some((1, first));
    }
    // Since 6.1 (kallsyms_expand_symbol, kernel/kallsyms.c).
    Some((2, first & 0x7f | usize::from(*names.get(1)?) << 7))
}

/// Returns true if `count` names fill `names` up to its padding and pass every marker.
fn names_fit(names: &[u8], count: usize, markers: &[u32], walk: &mut usize) -> bool {
    let mut at = 0usize;
    for i in 0..count {
        let Some(left) = walk.checked_sub(1) else {
            return false;
        };
        *walk = left;
        if i % PER_MARKER == 0 && markers[i / PER_MARKER] as usize != at {
            return false;
        }
        match names.get(at..).and_then(name_length) {
            Some((field, tokens)) if tokens > 0 => at += field + tokens,
            _ => return false,
        }
    }
    at <= names.len() && names.len() - at < 8
}

/// Returns the address of every symbol, by the layout that gives plausible ones.
fn addresses(
    memory: &impl PhysicalMemory,
    image: &KernelImage,
    names: &NameLocation,
    tokens_end: u64,
) -> Option<SymbolAddresses> {
    let size = names.count as u64 * 4;
    // Since 6.5: after the token index.
    let after = tokens_end;
    let base_after = align8(after.checked_add(size)?)?;
    // Until 6.4: before num_syms, which then is 8 bytes before the names.
    let base_before = names.virt.checked_sub(16)?;
    let before = base_before.checked_sub(align8(size)?)?;
    let attempt = |scheme: AddressScheme, offsets: u64, base: u64| {
        let bytes = image.bytes(memory, (offsets, offsets.checked_add(size)?))?;
        let found = SymbolAddresses::new(&bytes, base, scheme);
        plausible(image, &found).then_some(found)
    };
    for (offsets, base) in [(after, base_after), (before, base_before)] {
        let Some(base) = image.u64(memory, base).filter(|&b| image.contains(b)) else {
            continue;
        };
        let found = attempt(AddressScheme::AbsolutePerCpu, offsets, base)
            .or_else(|| attempt(AddressScheme::Unsigned, offsets, base));
        if found.is_some() {
            return found;
        }
    }
    attempt(AddressScheme::Relative, after, after)
}

/// Encoding of an address as an offset (`kallsyms_sym_address`, kernel/kallsyms.c).
#[derive(Debug, Clone, Copy)]
enum AddressScheme {
    /// CONFIG_KALLSYMS_ABSOLUTE_PERCPU, until 6.14: positive ones are absolute values.
    AbsolutePerCpu,
    /// Without it, as since 6.15: unsigned, from `relative_base`.
    Unsigned,
    /// From the offset's own place, without a `relative_base`, as in 7.2.
    Relative,
}

impl AddressScheme {
    /// Returns the address of symbol `i`.
    fn address(self, base: u64, i: u32, raw: u32) -> u64 {
        let signed = i64::from(raw.cast_signed());
        match self {
            AddressScheme::AbsolutePerCpu if signed >= 0 => u64::from(raw),
            AddressScheme::AbsolutePerCpu => base.wrapping_add_signed(-1 - signed),
            AddressScheme::Unsigned => base.wrapping_add(u64::from(raw)),
            AddressScheme::Relative => base.wrapping_add(u64::from(i) * 4).wrapping_add_signed(signed),
        }
    }
}

/// Returns true if the addresses are those of a kernel: sorted as kallsyms is, most of them in the image and
/// spread over it. (Zeros as place-relative offsets would be 4 bytes apart, symbols do 200 or more.)
fn plausible(image: &KernelImage, addresses: &SymbolAddresses) -> bool {
    let inside = || addresses.iter().filter(|a| image.contains(*a));
    let count = inside().count();
    let spread = inside().max().zip(inside().min()).map_or(0, |(a, b)| a - b);
    let descents = addresses.iter().zip(addresses.iter().skip(1)).filter(|(a, b)| b < a).count();
    count * 2 > addresses.len() && spread / 16 >= count as u64 && descents * 100 <= addresses.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_one_or_two_bytes() {
        assert_eq!(name_length(&[0x7f]), Some((1, 127)));
        assert_eq!(name_length(&[0x80, 1]), Some((2, 128)));
        assert_eq!(name_length(&[0x85, 2]), Some((2, 261)));
        assert_eq!(name_length(&[0x85]), None);
        assert_eq!(name_length(&[]), None);
    }

    #[test]
    fn markers_start_with_zero_and_take_steps_of_256_names() {
        let bytes = |n: &[u32]| n.iter().flat_map(|m| m.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(ascending(&bytes(&[0, 600, 1200, 0])), [0, 600, 1200]);
        assert_eq!(ascending(&bytes(&[0, 511])), [0]);
        assert_eq!(ascending(&bytes(&[0, 600, 500_000])), [0, 600]);
        assert!(ascending(&bytes(&[1, 600])).is_empty());
        assert!(ascending(&[0, 0]).is_empty());
    }

    #[test]
    fn names_that_never_end_are_not_walked_for_ever() {
        // Names of one token each, which fit the markers from any place but do not end.
        let names = [1, 0].repeat(4096);
        let markers: Vec<u32> = (0..8).map(|i| i * 512).collect();
        let mut walk = 10_000;
        assert!(names_fit(&names[..4096], 2048, &markers, &mut walk));
        assert_eq!(walk, 10_000 - 2048);
        assert!(!names_fit(&names, 2048, &markers, &mut walk));
        assert_eq!(walk, 10_000 - 2 * 2048);
        walk = 7;
        assert!(!names_fit(&names[..4096], 2048, &markers, &mut walk));
        assert_eq!(walk, 0);
    }

    #[test]
    fn offsets_become_addresses() {
        let base = 0xffff_ffff_8100_0000;
        let offsets: Vec<u8> = [0x1000i32, -1, -17].iter().flat_map(|o| o.to_le_bytes()).collect();
        let apply =
            |scheme, bytes: &[u8]| SymbolAddresses::new(bytes, base, scheme).iter().collect::<Vec<_>>();
        assert_eq!(apply(AddressScheme::AbsolutePerCpu, &offsets), [0x1000, base, base + 16]);
        assert_eq!(apply(AddressScheme::Unsigned, &offsets[..4]), [base + 0x1000]);
        assert_eq!(apply(AddressScheme::Relative, &offsets), [base + 0x1000, base + 3, base + 8 - 17]);
        let first = SymbolAddresses::new(&offsets, base, AddressScheme::Relative).shared(2);
        assert_eq!((first.len(), first.get(1), first.get(2)), (2, Some(base + 3), None));
    }
}
