//! Scopes of compiled code: the method that an instruction is from, and those that it is inlined into.

use symbols::VirtAddr;
use symbols::bytes::u32_at;

use super::ahead::{follows_call, places_ahead};
use super::blob::{AddressRange, Nmethod};
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

/// Returns the methods at the instruction `offset` bytes after the start of `code`, innermost first; `None`
/// if the tables contradict themselves.
///
/// Tables only have return addresses of calls and some other places. Another instruction is in the methods
/// that the place before it and all places share that execution reaches next: by addresses alone, code of the
/// caller that is between two calls of the same inlined method would be that method's.
pub(super) fn read_scopes(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    nmethod: &Nmethod,
    code: &AddressRange,
    offset: u64,
) -> Option<Vec<MethodPoint>> {
    let whole = vec![MethodPoint { method: nmethod.method, bytecode: None }];
    let descriptors = Descriptors::new(memory, layout, nmethod)?;
    let scopes = |number: u64| chain(memory, layout, nmethod, descriptors.get(number)?.1);
    let (number, is_exact) = descriptors.search(offset)?;
    if is_exact {
        let found = scopes(number)?;
        return Some(if found.is_empty() { whole } else { found });
    }
    let Some(number) = number.checked_sub(1) else { return Some(whole) };
    let before = scopes(number)?;
    let at = u64::try_from(descriptors.get(number)?.0).ok().and_then(|at| code.start.checked_add(at));
    let is_called = at.is_some_and(|at| follows_call(memory, code, at));
    let place = |at: VirtAddr| {
        let (number, is_exact) = descriptors.search(at.offset_from(code.start)?)?;
        is_exact.then_some(number)
    };
    let from = code.start.checked_add(offset)?;
    let Some(ahead) = places_ahead(memory, code, from, |at| place(at).is_some()) else {
        return Some(whole);
    };
    let mut found: Option<Vec<MethodPoint>> = None;
    for at in ahead {
        let next = between(&before, &scopes(place(at)?)?, is_called);
        found = Some(found.map_or_else(|| next.clone(), |found| shared(&found, &next)));
    }
    Some(found.filter(|found| !found.is_empty()).unwrap_or(whole))
}

/// Descriptors of a compiled method.
struct Descriptors<'a, M> {
    memory: &'a M,
    layout: &'a HotspotLayout,
    start: VirtAddr,
    count: u64,
}

impl<'a, M: ProcessMemory> Descriptors<'a, M> {
    fn new(memory: &'a M, layout: &'a HotspotLayout, nmethod: &Nmethod) -> Option<Self> {
        let size = u64::from(layout.nmethod.pc_size);
        let count = nmethod.pcs.end.offset_from(nmethod.pcs.start)?.checked_div(size)?.min(MAX_PCS);
        Some(Self { memory, layout, start: nmethod.pcs.start, count })
    }

    /// Reads a descriptor: bytes from the start of the code, and offset of its scope.
    fn get(&self, number: u64) -> Option<(i64, u32)> {
        let layout = &self.layout.nmethod;
        let mut bytes = [0; PC_SIZE];
        let bytes = bytes.get_mut(..layout.pc_size.into())?;
        let at = self.start.checked_add(number.checked_mul(layout.pc_size.into())?)?;
        self.memory.read(at, bytes)?;
        let at = u32_at(bytes, layout.pc_offset.offset.into())?.cast_signed();
        Some((at.into(), u32_at(bytes, layout.scope_offset.offset.into())?))
    }

    /// Returns the number of the first descriptor at `offset` or after it, and whether it is at `offset`. The
    /// first one of all is at -1.
    fn search(&self, offset: u64) -> Option<(u64, bool)> {
        let (mut low, mut high, mut is_exact) = (0, self.count, false);
        while low < high {
            let middle = low.midpoint(high);
            let (at, _) = self.get(middle)?;
            if at < 0 || at.unsigned_abs() < offset {
                low = middle + 1;
            } else {
                high = middle;
                is_exact |= at.unsigned_abs() == offset;
            }
        }
        Some((low, is_exact))
    }
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

/// Returns the methods, innermost first, that an instruction after the place `before` is in if `after` is
/// reached next; `is_called` if a call returns to `before`. Nothing if execution may have left an inlined
/// method and come back to it meanwhile: after a call no bytecode up to that of the call is the next one,
/// unless there is a loop, whose method is not known.
fn between(before: &[MethodPoint], after: &[MethodPoint], is_called: bool) -> Vec<MethodPoint> {
    let found = shared(before, after);
    let places = |points: &[MethodPoint]| points.iter().rev().nth(found.len().saturating_sub(1)).copied();
    let comes_back = match (places(before), places(after)) {
        (Some(before), Some(after)) if before.method == after.method => after.bytecode <= before.bytecode,
        _ => false,
    };
    let goes_deeper = before.len() != after.len() && found.len() == before.len().min(after.len());
    if is_called && comes_back && !(goes_deeper && places(before) == places(after)) {
        return Vec::new();
    }
    found
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

    #[test]
    fn code_after_a_call_is_not_of_a_method_that_execution_may_have_left() {
        let clock = points(&[(3, 10), (2, 3), (1, 4)]);
        let outermost = vec![MethodPoint { method: VirtAddr(1), bytecode: None }];
        for (after, wanted, what) in [
            (points(&[(1, 20)]), outermost.clone(), "the caller's loop"),
            (clock.clone(), Vec::new(), "the same call again"),
            (points(&[(3, 2), (2, 3), (1, 4)]), Vec::new(), "an earlier place of the same method"),
            (points(&[(4, 0), (2, 3), (1, 4)]), Vec::new(), "another method at the same place"),
            (
                points(&[(3, 12), (2, 3), (1, 4)]),
                [&[MethodPoint { method: VirtAddr(3), bytecode: None }][..], &points(&[(2, 3), (1, 4)])]
                    .concat(),
                "a later place of the same method",
            ),
        ] {
            assert_eq!(between(&clock, &after, true), wanted, "{what}");
        }
        assert_eq!(between(&clock, &clock, false), clock, "a place in a loop");
        let deeper = points(&[(2, 0), (1, 4)]);
        assert_eq!(between(&points(&[(1, 4)]), &deeper, true), points(&[(1, 4)]));
    }
}
