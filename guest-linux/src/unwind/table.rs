//! The rules of the image, or of one module, by address.

use std::collections::HashMap;

use super::rule::{RegisterNumbers, RuleFormat, UnwindRule};
use crate::layout::OrcLayout;
use crate::memory::PhysicalMemory;
use crate::module::ModuleOrc;
use crate::view::View;
use symbols::shared_table::SharedTable;

/// Bits of an address within a block of the index: 256 bytes of code, as the kernel's own
/// (`LOOKUP_BLOCK_ORDER`, arch/x86/include/asm/orc_lookup.h).
const BLOCK: u32 = 8;
/// Blocks of all tables together, at most: 1 GiB of code.
const MAX_BLOCKS: usize = 1 << 22;
/// Bytes of a rule's address.
const ADDRESS: usize = 4;

/// Budget of rules that may still be kept.
#[derive(Debug)]
pub(super) struct RuleBudget {
    rules: usize,
    blocks: usize,
}

impl RuleBudget {
    pub(super) fn new(rules: usize) -> Self {
        Self { rules, blocks: MAX_BLOCKS }
    }

    /// Reserves `rules`, before any of them is read; `None` if fewer are left.
    pub(super) fn take(&mut self, rules: usize) -> Option<()> {
        self.rules = self.rules.checked_sub(rules)?;
        Some(())
    }
}

/// Rules by address. A kernel has some 400,000, of which a few hundred differ.
#[derive(Debug, Default)]
pub(super) struct RuleTable {
    start: u64,
    end: u64,
    /// Address from which each rule applies, relative to the start of its block; ascending within a block.
    addresses: SharedTable<u8>,
    /// The rule at each address, in `distinct`.
    numbers: SharedTable<u16>,
    distinct: Vec<UnwindRule>,
    /// For each block the number of rules that start before it, and one more.
    blocks: SharedTable<u32>,
}

impl RuleTable {
    /// Returns a table without rules.
    pub(super) fn empty((start, end): (u64, u64)) -> Self {
        Self { start, end, ..Self::default() }
    }

    /// Returns the image's table, whose arrays are at `addresses` and `rules`, start and end; and the format
    /// of all rules of this kernel, which they show.
    pub(super) fn from_image<M: PhysicalMemory>(
        view: &View<'_, M>,
        fields: OrcLayout,
        addresses: (u64, u64),
        rules: (u64, u64),
        budget: &mut RuleBudget,
    ) -> Option<(Self, RuleFormat)> {
        // What is allocated is bounded by what is mapped.
        budget.take(symbols::bytes::index(addresses.1.checked_sub(addresses.0)?) / ADDRESS)?;
        let address_bytes = view.image.bytes(view.memory, addresses)?;
        let rule_bytes = view.image.bytes(view.memory, rules)?;
        let format = RuleFormat { fields, numbers: RegisterNumbers::infer(&fields, &rule_bytes)? };
        let table =
            Self::new(&format, view.image.range(), (addresses.0, &address_bytes), &rule_bytes, budget)?;
        Some((table, format))
    }

    /// Returns a module's, whose code is `text`.
    pub(super) fn from_module<M: PhysicalMemory>(
        view: &View<'_, M>,
        format: &RuleFormat,
        text: (u64, u64),
        orc: ModuleOrc,
        budget: &mut RuleBudget,
    ) -> Option<Self> {
        let count = orc.count as usize;
        budget.take(count)?;
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            view.read(at, &mut bytes)?;
            Some(bytes)
        };
        let addresses = read(orc.addresses, count * ADDRESS)?;
        let rules = read(orc.entries, count * format.fields.size)?;
        Self::new(format, text, (orc.addresses, &addresses), &rules, budget)
    }

    /// Decodes both arrays. Addresses are relative to their own place. Rules outside of `range` are left out,
    /// and so is a table without rules, with more than `budget` allows, or with more than 65,536 different
    /// ones.
    pub(super) fn new(
        format: &RuleFormat,
        range: (u64, u64),
        (base, addresses): (u64, &[u8]),
        rules: &[u8],
        budget: &mut RuleBudget,
    ) -> Option<Self> {
        let mut table = Self::empty(range);
        let count = (addresses.len() / ADDRESS).min(rules.len() / format.fields.size.max(1));
        let mut places: Vec<(u32, u16)> = Vec::with_capacity(count);
        let mut known: HashMap<UnwindRule, u16> = HashMap::new();
        let mut place = base;
        for (address, rule) in
            addresses.chunks_exact(ADDRESS).zip(rules.chunks_exact(format.fields.size.max(1)))
        {
            let distance = i32::from_le_bytes(address.try_into().ok()?);
            let at = place.wrapping_add_signed(i64::from(distance));
            place = place.wrapping_add(ADDRESS as u64);
            if let Some(offset) = table.offset(at) {
                let rule = UnwindRule::decode(format, rule);
                let number = match known.get(&rule) {
                    Some(number) => *number,
                    None => {
                        let number = u16::try_from(table.distinct.len()).ok()?;
                        table.distinct.push(rule);
                        known.insert(rule, number);
                        number
                    }
                };
                places.push((offset, number));
            }
        }
        if !places.is_sorted_by_key(|(offset, _)| *offset) {
            // Weak rules before real ones, as the kernel sorts while it boots.
            let is_real = |number: u16| table.distinct.get(usize::from(number)).is_some_and(|r| !r.is_weak());
            places.sort_by_key(|(offset, number)| (*offset, is_real(*number)));
        }
        table.set(&places, budget)?;
        Some(table)
    }

    /// Sets the rules, in the order of their addresses. `None` without any, or if there is no room.
    fn set(&mut self, places: &[(u32, u16)], budget: &mut RuleBudget) -> Option<()> {
        let (last, _) = places.last()?;
        let count = (last >> BLOCK) as usize + 2;
        budget.blocks = budget.blocks.checked_sub(count)?;
        // The low bits.
        let addresses: Vec<u8> = places.iter().map(|(offset, _)| offset.to_le_bytes()[0]).collect();
        self.addresses = SharedTable::from(addresses).shared();
        let numbers: Vec<u16> = places.iter().map(|(_, number)| *number).collect();
        self.numbers = SharedTable::from(numbers).shared();
        self.distinct.shrink_to_fit();
        let mut blocks = Vec::with_capacity(count);
        let mut before = 0u32;
        let mut rest = places.iter();
        let mut next = rest.next();
        for block in 0..count as u64 {
            while next.is_some_and(|(offset, _)| u64::from(*offset) < block << BLOCK) {
                before += 1;
                next = rest.next();
            }
            blocks.push(before);
        }
        self.blocks = SharedTable::from(blocks).shared();
        Some(())
    }

    /// Distance of `at` from the start, if it is in the range.
    fn offset(&self, at: u64) -> Option<u32> {
        u32::try_from(at.checked_sub(self.start)?).ok().filter(|_| at < self.end)
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        (self.start..self.end).contains(&at)
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the rule that holds at `at`: the last that starts there or before.
    #[inline]
    pub(super) fn find(&self, at: u64) -> Option<UnwindRule> {
        let offset = self.offset(at)?;
        let block = (offset >> BLOCK) as usize;
        let (low, high) = match self.blocks.get(block..block.saturating_add(2)) {
            Some(&[low, high]) => (low as usize, high as usize),
            // After the last block.
            _ => (self.numbers.len(), self.numbers.len()),
        };
        let low_bits = offset.to_le_bytes()[0];
        let within = self.addresses.get(low..high)?.partition_point(|&address| address <= low_bits);
        let number = self.numbers.get((low + within).checked_sub(1)?)?;
        self.distinct.get(usize::from(*number)).copied()
    }
}
