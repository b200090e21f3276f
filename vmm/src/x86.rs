//! Constants of the x86-64 architecture that several crates use.

/// CR0.PE, protected mode (Intel SDM vol. 3, 2.5).
pub const CR0_PE: u64 = 1;
/// CR0.PG, paging (Intel SDM vol. 3, 2.5).
pub const CR0_PG: u64 = 1 << 31;
/// CR4.LA57, 5-level paging (Intel SDM vol. 3, 2.5).
pub const CR4_LA57: u64 = 1 << 12;
/// EFER.LMA, long mode active (Intel SDM vol. 3, 2.2.1).
pub const EFER_LMA: u64 = 1 << 10;
/// RFLAGS.IF, interrupts enabled (Intel SDM vol. 3, 2.3).
pub const RFLAGS_IF: u64 = 1 << 9;
/// Opcode of HLT (Intel SDM vol. 2).
pub const OPCODE_HLT: u8 = 0xf4;
/// Size of a page, bytes.
pub const PAGE: u64 = 4096;
