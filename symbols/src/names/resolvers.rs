//! Implementations of a function among which its resolver chooses at run time (STT_GNU_IFUNC), as libc has
//! of `memcpy`. A stripped file has no names of them, but the resolver's code loads their addresses.

use iced_x86::{Code, Decoder, DecoderOptions};

use crate::elf::ElfFile;

/// Bytes of a resolver that are read, at most.
const MAX_CODE: u64 = 4096;

/// Returns the addresses of code that the resolver of `size` bytes at `start` loads.
pub(super) fn implementations(elf: &ElfFile, start: u64, size: u64) -> Vec<u64> {
    let Ok(code) = elf.bytes_at(start, size.min(MAX_CODE)) else { return Vec::new() };
    let mut decoder = Decoder::with_ip(64, &code, start, DecoderOptions::NONE);
    let loads = decoder.iter().filter(|instruction| {
        instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand()
    });
    let addresses = loads.map(|instruction| instruction.ip_rel_memory_address());
    addresses.filter(|&address| elf.is_executable(address)).collect()
}
