//! A few bytes of machine code, for self-tests and measurements.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::cpu::{self, EntryState};
use crate::config::FLAT_ENTRY;
use crate::error::StartError;
use crate::memory::low_ram;

/// Puts the code at [`FLAT_ENTRY`], with a stack that grows down from there.
pub(super) fn load(memory: &GuestMemoryMmap, code: &[u8], cpl: u8) -> Result<EntryState, StartError> {
    let length = code.len();
    if code.is_empty() || !matches!(cpl, 0 | 3) {
        return Err(StartError::Flat { length, cpl });
    }
    let too_small = || StartError::MemoryTooSmall {
        what: "the flat code",
        have: low_ram(memory.last_addr().0 + 1),
        need: FLAT_ENTRY + length as u64,
    };
    memory.write_slice(code, GuestAddress(FLAT_ENTRY)).map_err(|_| too_small())?;
    cpu::write_tables(memory).map_err(|_| too_small())?;
    Ok(EntryState { rip: FLAT_ENTRY, rsp: FLAT_ENTRY, rsi: 0, cpl })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_placed_and_entered_at_the_documented_address() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
        let entry = load(&memory, &[0xeb, 0xfe], 3).unwrap();
        assert_eq!((entry.rip, entry.cpl), (FLAT_ENTRY, 3));
        let code: u16 = memory.read_obj(GuestAddress(FLAT_ENTRY)).unwrap();
        assert_eq!(code, 0xfeeb);
    }

    #[test]
    fn unusable_requests_are_refused() {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 << 20)]).unwrap();
        assert!(matches!(load(&memory, &[], 3), Err(StartError::Flat { .. })));
        assert!(matches!(load(&memory, &[0x90], 1), Err(StartError::Flat { cpl: 1, .. })));
        assert!(matches!(load(&memory, &[0x90], 0), Err(StartError::MemoryTooSmall { .. })));
    }
}
