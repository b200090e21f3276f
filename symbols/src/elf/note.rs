//! Notes and links that identify the build of a file.

use display::clean::ascii;

use super::{BuildId, DebugLink};
use crate::bytes::{index, u32_at, until_nul};

/// `NT_GNU_BUILD_ID` (elf.h).
const BUILD_ID: u32 = 3;
/// Notes that are read, at most.
const MAX_NOTES: usize = 256;

/// Returns the build-id among the notes in `bytes`, whose parts are padded to `align` bytes (4 or 8).
///
/// A note is name size, description size, type (4 bytes each), name, padding, description, padding
/// (System V ABI, note section).
pub(super) fn build_id(bytes: &[u8], align: u64) -> Option<BuildId> {
    let align = if align == 8 { 8 } else { 4 };
    let mut at = 0usize;
    for _ in 0..MAX_NOTES {
        let name_size = index(u32_at(bytes, at)?.into());
        let size = index(u32_at(bytes, at.checked_add(4)?)?.into());
        let kind = u32_at(bytes, at.checked_add(8)?)?;
        let name = at.checked_add(12)?;
        let description = name.checked_add(name_size)?.checked_next_multiple_of(align)?;
        let end = description.checked_add(size)?;
        if kind == BUILD_ID && bytes.get(name..name.checked_add(name_size)?)? == b"GNU\0" {
            return BuildId::new(bytes.get(description..end)?);
        }
        at = end.checked_next_multiple_of(align)?;
    }
    None
}

/// `.gnu_debuglink`: a file name, padding to 4 bytes, the CRC-32 of that file's bytes.
pub(super) fn debug_link(bytes: &[u8]) -> Option<DebugLink> {
    let name = until_nul(bytes);
    let crc32 = u32_at(bytes, name.len().checked_add(1)?.checked_next_multiple_of(4)?)?;
    let name = file_name(name)?;
    Some(DebugLink { name, crc32 })
}

/// `.gnu_debugaltlink`: a path and the build-id of the file there.
pub(super) fn alt_link(bytes: &[u8]) -> Option<(String, BuildId)> {
    let path = until_nul(bytes);
    let id = BuildId::new(bytes.get(path.len().checked_add(1)?..)?)?;
    Some((ascii(path), id))
}

/// Returns a plain file name; `None` for a name that leaves its directory.
fn file_name(name: &[u8]) -> Option<String> {
    let plain = !name.is_empty() && name.len() <= 255 && name != b"." && name != b"..";
    (plain && name.iter().all(|b| matches!(b, b' '..=b'~') && *b != b'/')).then(|| ascii(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        let size = |part: &[u8]| u32::try_from(part.len()).unwrap();
        for word in [size(name), size(description), kind] {
            note.extend(word.to_le_bytes());
        }
        for part in [name, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let mut notes = note(b"GNU\0", 1, &[1; 16]);
        notes.extend(note(b"FreeBSD\0", 3, &[2; 5]));
        notes.extend(note(b"GNU\0", 3, &[7; 20]));
        assert_eq!(build_id(&notes, 4), BuildId::new(&[7; 20]));
        assert_eq!(build_id(&notes[..notes.len() - 1], 4), None);
        assert_eq!(build_id(&note(b"GNU\0", 3, &[7; 65]), 4), None, "too long");
        assert_eq!(build_id(&[0xff; 64], 4), None);
    }

    #[test]
    fn links_name_a_file() {
        let link = debug_link(b"a.debug\0\x01\x02\x03\x04").unwrap();
        assert_eq!((link.name.as_str(), link.crc32), ("a.debug", 0x0403_0201));
        assert_eq!(debug_link(b"../x\0\0\0\0\x01\x02\x03\x04"), None, "leaves its directory");
        assert_eq!(debug_link(b"a.debug\0\x01\x02\x03"), None);
        assert_eq!(alt_link(b"/x\0\xab\xcd"), Some(("/x".into(), BuildId::new(&[0xab, 0xcd]).unwrap())));
    }
}
