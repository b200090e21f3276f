//! Scopes of compiled code: the method that an instruction is from, and those that it is inlined into.

use symbols::VirtAddr;
use symbols::bytes::u32_at;

use super::blob::Nmethod;
use super::compressed::CompressedReader;
use super::layout::HotspotLayout;
use crate::ProcessMemory;

/// Methods inlined into each other, at most.
const MAX_INLINED: usize = 256;
/// Descriptors of one method, at most.
const MAX_PCS: u64 = 1 << 24;
/// Bytes of a descriptor, at most (JDK 11 to 25: 16).
const PC_SIZE: usize = 64;
/// Bytes of the three numbers of a scope: sender, method, bytecode.
const SCOPE: u64 = 15;
/// The bytecode index before the first one (`InvocationEntryBci`), which bytecode indices are counted from
/// (src/hotspot/share/code/debugInfo.hpp: `read_bci`).
const INVOCATION: u32 = 1;

/// A method and its bytecode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MethodPoint {
    pub method: VirtAddr,
    /// Bytes from the start of its bytecode; `None` if not known.
    pub bytecode: Option<u32>,
}

/// Returns the methods at the instruction `offset` bytes after the start of the code, innermost first; `None`
/// if the tables contradict themselves.
///
/// Tables only have return addresses of calls and some other places. Another instruction is in the methods
/// that the places before and after it share: what is inlined between them is not known.
pub(super) fn read_scopes(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    nmethod: &Nmethod,
    offset: u64,
) -> Option<Vec<MethodPoint>> {
    let whole = || vec![MethodPoint { method: nmethod.method, bytecode: None }];
    let size = u64::from(layout.nmethod.pc_size);
    let count = (nmethod.pcs.end.offset_from(nmethod.pcs.start)? / size).min(MAX_PCS);
    let (mut low, mut high) = (0, count);
    let mut is_exact = false;
    while low < high {
        let middle = low.midpoint(high);
        let (at, _) = descriptor(memory, layout, nmethod, middle)?;
        // The first one is at -1.
        if at < 0 || at.unsigned_abs() < offset {
            low = middle + 1
        } else {
            high = middle
        }
        is_exact |= at >= 0 && at.unsigned_abs() == offset;
    }
    let scopes = |number: u64| -> Option<Vec<MethodPoint>> {
        let (_, scope) = descriptor(memory, layout, nmethod, number)?;
        chain(memory, layout, nmethod, scope)
    };
    if low >= count {
        return Some(whole());
    }
    let mut found = scopes(low)?;
    if !is_exact {
        let before = low.checked_sub(1).map_or(Some(Vec::new()), scopes)?;
        found = shared(&before, &found);
    }
    Some(if found.is_empty() { whole() } else { found })
}

/// Returns the scope at `scope` and those that it is inlined into; nothing for the scope of the first and the
/// last descriptor.
fn chain(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    nmethod: &Nmethod,
    mut scope: u32,
) -> Option<Vec<MethodPoint>> {
    let mut found = Vec::new();
    while scope != 0 && found.len() < MAX_INLINED {
        let at = nmethod.scopes.start.checked_add(scope.into())?;
        let len = nmethod.scopes.end.offset_from(at)?.min(SCOPE);
        let bytes = memory.read_bytes(at, len)?;
        let mut reader = CompressedReader::new(&bytes, layout.no_zero_bytes);
        let (sender, method) = (reader.unsigned()?, reader.unsigned()?);
        let bytecode = reader.unsigned()?.checked_sub(INVOCATION);
        let slot = nmethod.metadata.start.checked_add(u64::from(method.checked_sub(1)?) * 8)?;
        if slot >= nmethod.metadata.end {
            return None;
        }
        found.push(MethodPoint { method: VirtAddr(memory.read_u64(slot)?), bytecode });
        // A caller is written before what is inlined into it.
        if sender >= scope {
            return None;
        }
        scope = sender;
    }
    Some(found)
}

/// Returns the methods that two places share, innermost first; the innermost one has no bytecode unless that
/// is shared, too.
fn shared(one: &[MethodPoint], other: &[MethodPoint]) -> Vec<MethodPoint> {
    let mut found = Vec::new();
    for (one, other) in one.iter().rev().zip(other.iter().rev()) {
        if one.method != other.method {
            break;
        }
        let bytecode = one.bytecode.filter(|_| one.bytecode == other.bytecode);
        found.push(MethodPoint { method: one.method, bytecode });
        if bytecode.is_none() {
            break;
        }
    }
    found.reverse();
    found
}

/// Reads a descriptor: bytes from the start of the code, and offset of its scope.
fn descriptor(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    nmethod: &Nmethod,
    number: u64,
) -> Option<(i64, u32)> {
    let size = layout.nmethod.pc_size;
    let mut bytes = [0; PC_SIZE];
    let bytes = bytes.get_mut(..size.into())?;
    memory.read(nmethod.pcs.start.checked_add(number * u64::from(size))?, bytes)?;
    let at = u32_at(bytes, layout.nmethod.pc_offset.offset.into())?.cast_signed();
    Some((at.into(), u32_at(bytes, layout.nmethod.scope_offset.offset.into())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(pairs: &[(u64, u32)]) -> Vec<MethodPoint> {
        let point = |&(method, index)| MethodPoint { method: VirtAddr(method), bytecode: Some(index) };
        pairs.iter().map(point).collect()
    }

    #[test]
    fn places_share_the_methods_of_the_same_calls() {
        let one = points(&[(3, 7), (2, 5), (1, 9)]);
        assert_eq!(shared(&one, &one), one);
        let outermost = vec![MethodPoint { method: VirtAddr(1), bytecode: None }];
        assert_eq!(shared(&one, &points(&[(3, 7), (2, 5), (1, 8)])), outermost, "another call of it");
        assert_eq!(
            shared(&one, &points(&[(4, 7), (1, 9)])),
            points(&[(1, 9)]),
            "another method inlined there"
        );
        let middle = MethodPoint { method: VirtAddr(2), bytecode: None };
        let wanted = [&[middle][..], &points(&[(1, 9)])].concat();
        assert_eq!(shared(&one, &points(&[(2, 6), (1, 9)])), wanted, "another place in it");
        assert_eq!(shared(&one, &[]), []);
    }
}
