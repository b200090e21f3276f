//! Reads several members of a structure with few reads of memory.
//!
//! A read costs the search of a memory region, which outweighs copying some bytes more: members that are near
//! each other are read together. Where they are differs from kernel to kernel (and is shuffled by
//! CONFIG_RANDSTRUCT), so it is planned once, at run time.

/// Bytes between two members that are rather copied than left out: about a cache line.
const MAX_GAP: usize = 64;
/// Bytes that a plan reads, at most; its members have at most 64 together.
pub(crate) const BUFFER: usize = 64 + 5 * MAX_GAP;

/// A run of bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ReadSpan {
    /// From the start of the structure.
    offset: usize,
    /// Offset of its bytes in the buffer.
    at: usize,
    len: usize,
}

/// A plan to read `N` members, six at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatherPlan<const N: usize> {
    /// The first `count` are used.
    spans: [ReadSpan; N],
    count: usize,
    /// Offset of each member in the buffer.
    places: [usize; N],
}

impl<const N: usize> GatherPlan<N> {
    /// Returns a plan for members of (offset, size), in any order; together they have at most 64 bytes.
    pub(crate) fn new(members: [(usize, usize); N]) -> Self {
        let mut order: [usize; N] = std::array::from_fn(|i| i);
        order.sort_by_key(|&i| members[i].0);
        let mut plan = Self { spans: [ReadSpan::default(); N], count: 0, places: [0; N] };
        let mut end = 0;
        for i in order {
            let (offset, size) = members[i];
            let last = plan.count.checked_sub(1).map(|last| &mut plan.spans[last]);
            match last {
                Some(last) if offset - last.offset <= last.len + MAX_GAP => {
                    let grown = last.len.max(offset - last.offset + size);
                    end += grown - last.len;
                    last.len = grown;
                    plan.places[i] = last.at + (offset - last.offset);
                }
                _ => {
                    plan.spans[plan.count] = ReadSpan { offset, at: end, len: size };
                    plan.count += 1;
                    plan.places[i] = end;
                    end += size;
                }
            }
        }
        plan
    }

    /// Returns the offsets and sizes of what is read.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (usize, usize)> {
        self.spans.iter().take(self.count).map(|span| (span.offset, span.len))
    }

    /// Returns the offset of a member in the structure; 0 if there is no such member.
    pub(crate) fn offset_of(&self, member: usize) -> usize {
        let place = self.places.get(member).copied().unwrap_or(0);
        let span =
            self.spans.iter().take(self.count).find(|span| (span.at..span.at + span.len).contains(&place));
        span.map_or(0, |span| span.offset + (place - span.at))
    }

    /// Reads all members by `read`, which gets an offset in the structure and a place to fill.
    #[inline]
    pub(crate) fn read(
        &self,
        mut read: impl FnMut(usize, &mut [u8]) -> Option<()>,
    ) -> Option<GatheredMembers<'_, N>> {
        let mut bytes = [0; BUFFER];
        for span in &self.spans[..self.count] {
            read(span.offset, bytes.get_mut(span.at..span.at + span.len)?)?;
        }
        Some(GatheredMembers { plan: self, bytes })
    }
}

/// The members that were read.
#[derive(Debug)]
pub(crate) struct GatheredMembers<'a, const N: usize> {
    plan: &'a GatherPlan<N>,
    bytes: [u8; BUFFER],
}

impl<const N: usize> GatheredMembers<'_, N> {
    /// Returns the member number `member`, of `S` bytes.
    #[inline]
    pub(crate) fn member<const S: usize>(&self, member: usize) -> Option<[u8; S]> {
        symbols::bytes::array_at(&self.bytes, *self.plan.places.get(member)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn near_members_share_a_read() {
        // As in 6.12: flags, pid, tgid, group_leader, comm.
        let plan = GatherPlan::new([(44, 4), (2432, 4), (2436, 4), (2496, 8), (2976, 16)]);
        let mut reads = Vec::new();
        plan.read(|offset, into| {
            reads.push((offset, into.len()));
            Some(())
        });
        assert_eq!(reads, [(44, 4), (2432, 72), (2976, 16)]);
    }

    proptest! {
        #[test]
        fn every_member_comes_out_wherever_it_lies(
            offsets in prop::array::uniform5(0usize..1500),
            sizes in prop::array::uniform5(prop::sample::select(vec![4usize, 8, 16])),
            memory in prop::collection::vec(any::<u8>(), 1600),
        ) {
            // Two of 16 bytes at most, to stay within 64.
            let members: [_; 5] = std::array::from_fn(|i| (offsets[i], if i < 2 { sizes[i] } else { sizes[i].min(8) }));
            let plan = GatherPlan::new(members);
            let read = plan.read(|offset, into| {
                into.copy_from_slice(&memory[offset..offset + into.len()]);
                Some(())
            }).expect("all is there");
            for (i, (offset, size)) in members.into_iter().enumerate() {
                let want = &memory[offset..offset + size];
                match size {
                    4 => prop_assert_eq!(&read.member::<4>(i).unwrap(), want),
                    8 => prop_assert_eq!(&read.member::<8>(i).unwrap(), want),
                    _ => prop_assert_eq!(&read.member::<16>(i).unwrap(), want),
                }
            }
        }
    }
}
