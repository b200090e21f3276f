//! Names of PLT entries: stubs that jump to a function of another file through a slot of the GOT.
//!
//! The slot that a stub jumps through is read out of its code, so that every layout works (lazy, `-z now`,
//! with and without IBT); the relocation of the slot names the function.

use std::collections::HashMap;

use crate::bytes::{array_at, u32_at, u64_at};
use crate::elf::ElfFile;

/// Bytes of an `Elf64_Rela`: offset (u64), type (u32), symbol (u32), addend (u64).
const RELOCATION: usize = 24;
/// Relocations that are read, at most.
const MAX_RELOCATIONS: usize = 1 << 20;
/// Stubs of one section, at most.
const MAX_STUBS: usize = 1 << 18;
/// `R_X86_64_GLOB_DAT`, `R_X86_64_JUMP_SLOT` and `R_X86_64_IRELATIVE` (x86-64 psABI, relocation types).
const GLOB_DAT: u32 = 6;
const JUMP_SLOT: u32 = 7;
const IRELATIVE: u32 = 37;
/// `endbr64`.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// A PLT entry.
pub(super) struct PltStub {
    pub start: u64,
    pub size: u64,
    pub target: StubTarget,
}

/// Target of a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StubTarget {
    /// The symbol with this number in `.dynsym`.
    Symbol(u32),
    /// Function that the resolver at this address chose.
    Resolver(u64),
    /// The dynamic linker: the first entry, which the others fall back to.
    Linker,
}

/// Returns the stubs of `elf`.
pub(super) fn stubs(elf: &ElfFile) -> Vec<PltStub> {
    let calls = relocations(elf, ".rela.plt");
    let mut slots: HashMap<u64, StubTarget> = calls.iter().copied().collect();
    let mut found = Vec::new();
    for name in [".plt", ".plt.sec", ".plt.bnd", ".plt.got", ".iplt"] {
        let Ok(section) = elf.section(name) else { continue };
        if name == ".plt.got" {
            slots.extend(relocations(elf, ".rela.dyn"));
        }
        found.extend(section_stubs(&section.bytes, section.address, &slots, &calls));
    }
    found
}

/// Slots with what they are filled with, in file order.
fn relocations(elf: &ElfFile, name: &str) -> Vec<(u64, StubTarget)> {
    let Ok(section) = elf.section(name) else { return Vec::new() };
    let parse = |entry: &[u8]| {
        let target = match u32_at(entry, 8)? {
            GLOB_DAT | JUMP_SLOT => StubTarget::Symbol(u32_at(entry, 12)?),
            IRELATIVE => StubTarget::Resolver(u64_at(entry, 16)?),
            _ => return None,
        };
        Some((u64_at(entry, 0)?, target))
    };
    section.bytes.chunks_exact(RELOCATION).take(MAX_RELOCATIONS).filter_map(parse).collect()
}

fn section_stubs(
    code: &[u8],
    address: u64,
    slots: &HashMap<u64, StubTarget>,
    calls: &[(u64, StubTarget)],
) -> Vec<PltStub> {
    let mut stubs = Vec::new();
    let mut at = 0;
    while at < code.len() && stubs.len() < MAX_STUBS {
        let stub = code.get(at..code.len().min(at + 16)).unwrap_or_default();
        let Some(start) = address.checked_add(at as u64) else { break };
        // A stub that is a jump alone takes 8 bytes in .plt.got, and 16 with its lazy part in .plt.
        let is_short = stub.starts_with(&[0xff, 0x25]) && stub.get(6..8) == Some(&[0x66, 0x90]);
        let size: u8 = if is_short { 8 } else { 16 };
        if let Some(target) = target(stub, start, slots, calls) {
            stubs.push(PltStub { start, size: size.into(), target });
        }
        at += usize::from(size);
    }
    stubs
}

/// Returns the target of the stub `code` at `start`: `jmp *slot(%rip)`, or `push $number` for a lazy one.
fn target(
    code: &[u8],
    start: u64,
    slots: &HashMap<u64, StubTarget>,
    calls: &[(u64, StubTarget)],
) -> Option<StubTarget> {
    let body = if code.starts_with(&ENDBR64) { 4 } else { 0 };
    // `push slot(%rip)`: the entry that all others share.
    if code.starts_with(&[0xff, 0x35]) {
        return Some(StubTarget::Linker);
    }
    // `bnd` may precede the jump.
    for at in [body, body + 1] {
        if array_at(code, at) == Some([0xff, 0x25]) {
            let displacement = i32::from_le_bytes(array_at(code, at + 2)?);
            let next = start.checked_add(at as u64 + 6)?;
            return slots.get(&next.checked_add_signed(displacement.into())?).copied();
        }
    }
    if code.get(body) == Some(&0x68) {
        let number = u32_at(code, body + 1)?;
        return calls.get(usize::try_from(number).ok()?).map(|(_, target)| *target);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layout_of_a_stub_names_its_slot() {
        let slots = HashMap::from([(0x4018, StubTarget::Symbol(5))]);
        let calls = [(0x4018, StubTarget::Symbol(5)), (0x4020, StubTarget::Resolver(0x1234))];
        let at = |code: &[u8]| target(code, 0x1000, &slots, &calls);
        assert_eq!(at(&[0xff, 0x25, 0x12, 0x30, 0, 0]), Some(StubTarget::Symbol(5)));
        assert_eq!(at(&[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x0e, 0x30, 0, 0]), Some(StubTarget::Symbol(5)));
        assert_eq!(
            at(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x0d, 0x30, 0, 0]),
            Some(StubTarget::Symbol(5))
        );
        assert_eq!(at(&[0xf3, 0x0f, 0x1e, 0xfa, 0x68, 1, 0, 0, 0]), Some(StubTarget::Resolver(0x1234)));
        assert_eq!(at(&[0xff, 0x35, 0, 0, 0, 0]), Some(StubTarget::Linker));
        assert_eq!(at(&[0xff, 0x25, 0x13, 0x30, 0, 0]), None, "no such slot");
        assert_eq!(at(&[0xff, 0x25, 0x12]), None, "cut short");
        assert_eq!(at(&[0x68, 2, 0, 0, 0]), None, "no such relocation");
    }
}
