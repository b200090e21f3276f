//! The kernel context of a CPU, from its preempt count.
//!
//! ```text
//! bits  until 7.1 or later   7.3                        (include/linux/preempt.h)
//!       0 -  7  preemption   0 -  7  preemption off
//!       8 - 15  softirq      8 - 15  softirq            bit 8: one is served; the others: bottom halves off
//!      16 - 19  hardirq     16 - 23  interrupts off     local_interrupt_disable()
//!      20 - 23  NMI         24 - 27  hardirq
//!                           28 -     NMI                of 64 bits, where bit 63 is "need resched"
//! ```
//!
//! The bits are C macros: neither kallsyms nor BTF has them. But `irq_enter_rcu` (kernel/softirq.c) adds one
//! hardirq to the count, so its code shows which bit that is.

use crate::kallsyms::table::SymbolTable;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::view::View;

/// Bytes of a function in which the addition is looked for: it comes first, but for a word about idle CPUs
/// until 5.11 (0x22 bytes in Debian's 5.10, 0x12 in its 7.3).
const SEARCHED_BYTES: usize = 128;
/// `HARDIRQ_BITS`.
const HARDIRQ_BITS: u32 = 4;
/// The first bit that can be a hardirq's: those below are preemption's and soft interrupts'.
const LOWEST: u32 = 1 << 16;
/// The highest that leaves room for all bits of the hardirq field and one for NMIs below bit 31, "need
/// resched".
const HIGHEST: u32 = 1 << 26;
/// `SOFTIRQ_OFFSET`. `local_bh_disable` counts in steps of two of it, so the bit says that a soft interrupt
/// is served.
const SERVING_SOFTIRQ: u32 = 1 << 8;

/// Kernel context of a CPU, innermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IrqContext {
    /// No interrupt: what its current task wants.
    #[default]
    Task,
    /// A soft interrupt.
    SoftIrq,
    /// A hard interrupt.
    HardIrq,
    /// A non-maskable interrupt, or an exception that is handled like one.
    Nmi,
}

/// Bits of hard interrupts and NMIs in the preempt count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PreemptBits {
    hardirq: u32,
    nmi: u32,
}

impl PreemptBits {
    /// Finds the bits in the kernel's code. `variable` is the per-CPU symbol of the preempt count.
    pub(crate) fn find<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: &SymbolTable,
        variable: u64,
    ) -> Result<Self, Missing> {
        let at = symbols.address_of("irq_enter_rcu").ok_or(Missing::NoHardIrqBits)?;
        let mut code = [0; SEARCHED_BYTES];
        view.read(at, &mut code).ok_or(Missing::NoHardIrqBits)?;
        let adder = symbols.address_of("preempt_count_add");
        let added =
            (0..SEARCHED_BYTES).find_map(|skip| added(code.get(skip..)?, at + skip as u64, variable, adder));
        added.and_then(Self::from_step).ok_or(Missing::NoHardIrqBits)
    }

    /// Returns the bits, by what one hard interrupt adds.
    fn from_step(offset: u32) -> Option<Self> {
        let valid = offset.is_power_of_two() && (LOWEST..=HIGHEST).contains(&offset);
        valid.then(|| {
            let above = offset << HARDIRQ_BITS;
            Self { hardirq: above - offset, nmi: (1 << 31) - above }
        })
    }

    /// Returns the bits that count hard interrupts.
    pub(crate) fn hardirq(self) -> u32 {
        self.hardirq
    }

    /// Returns the context of a CPU with this count.
    #[inline]
    pub(crate) fn serving(self, count: u32) -> IrqContext {
        match count {
            _ if count & self.nmi != 0 => IrqContext::Nmi,
            _ if count & self.hardirq != 0 => IrqContext::HardIrq,
            _ if count & SERVING_SOFTIRQ != 0 => IrqContext::SoftIrq,
            _ => IrqContext::Task,
        }
    }
}

/// Returns the number that the first instruction of `code`, at address `at`, adds to the preempt count: `add`
/// of an immediate to `%gs:variable`, of 32 or 64 bits; or the call of `preempt_count_add` that kernels with
/// a tracer of preemption have (`mov` of an immediate to EDI, `call`). Encodings: Intel SDM, volume 2, ADD,
/// MOV, CALL, and table 2-2.
fn added(code: &[u8], at: u64, variable: u64, adder: Option<u64>) -> Option<u32> {
    const GS: u8 = 0x65;
    const REX_W: u8 = 0x48;
    let word = |at: usize| Some(u32::from_le_bytes(*code.get(at..)?.first_chunk()?));
    let signed = |at: usize| Some(i64::from(word(at)?.cast_signed()).cast_unsigned());
    let relative = |displacement: usize, end: usize| {
        Some(at.wrapping_add(end as u64).wrapping_add(signed(displacement)?))
    };
    let rex = usize::from(code.get(1) == Some(&REX_W));
    match (code, code.get(1 + rex..)?) {
        ([GS, ..], [0x81, 0x05, ..]) => {
            let (displacement, value) = (3 + rex, 7 + rex);
            (relative(displacement, value + 4)? == variable).then(|| word(value)).flatten()
        }
        ([0xbf, ..], _) => {
            let calls = code.get(5) == Some(&0xe8) && relative(6, 10) == adder;
            calls.then(|| word(1)).flatten()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `addl $value, %gs:(%rip)` at `at`, of `variable`; `addq` where it is `wide`.
    fn add(at: u64, variable: u64, value: u32, wide: bool) -> Vec<u8> {
        let mut code = if wide { vec![0x65, 0x48, 0x81, 0x05] } else { vec![0x65, 0x81, 0x05] };
        let end = at + code.len() as u64 + 8;
        let [a, b, c, d, ..] = variable.wrapping_sub(end).to_le_bytes();
        code.extend([a, b, c, d]);
        code.extend(value.to_le_bytes());
        code
    }

    #[test]
    fn an_addition_tells_its_value_where_it_is_to_the_variable() {
        let at = 0xffff_ffff_8109_cfb5;
        for variable in [0x1_fb40, 0xffff_ffff_83cd_c028] {
            for wide in [false, true] {
                let code = add(at, variable, 0x1_0000, wide);
                assert_eq!(added(&code, at, variable, None), Some(0x1_0000));
                assert_eq!(added(&code, at, variable + 4, None), None);
                assert_eq!(added(&code, at + 1, variable, None), None);
                for short in 0..code.len() {
                    assert_eq!(added(&code[..short], at, variable, None), None);
                }
            }
        }
    }

    #[test]
    fn a_call_of_the_adder_tells_its_argument() {
        let (at, adder) = (0xffff_ffff_8100_0000_u64, 0xffff_ffff_8110_0000_u64);
        let mut code = vec![0xbf, 0, 0, 0, 1, 0xe8];
        code.extend(u32::try_from(adder - at - 10).unwrap().to_le_bytes());
        assert_eq!(added(&code, at, 0, Some(adder)), Some(0x100_0000));
        assert_eq!(added(&code, at, 0, Some(adder + 1)), None);
        assert_eq!(added(&code, at, 0, None), None);
    }

    #[test]
    fn counts_tell_what_is_served() {
        let old = PreemptBits::from_step(1 << 16).unwrap();
        let new = PreemptBits::from_step(1 << 24).unwrap();
        for (count, by_old, by_new) in [
            (0x8000_0000, IrqContext::Task, IrqContext::Task),
            (0x8000_0003, IrqContext::Task, IrqContext::Task),
            (0x0000_0200, IrqContext::Task, IrqContext::Task),
            (0x0000_0100, IrqContext::SoftIrq, IrqContext::SoftIrq),
            (0x0000_0301, IrqContext::SoftIrq, IrqContext::SoftIrq),
            (0x0001_0100, IrqContext::HardIrq, IrqContext::SoftIrq),
            (0x0011_0000, IrqContext::Nmi, IrqContext::Task),
            (0x0101_0000, IrqContext::Nmi, IrqContext::HardIrq),
            (0x1100_0000, IrqContext::Nmi, IrqContext::Nmi),
            (0x2200_0001, IrqContext::Nmi, IrqContext::Nmi),
        ] {
            assert_eq!((old.serving(count), new.serving(count)), (by_old, by_new), "{count:#x}");
        }
    }

    #[test]
    fn what_can_be_no_hard_interrupt_is_refused() {
        for offset in [0, 1, 0x100, 0x3_0000, 0xffff_0000, 1 << 15, 1 << 27, 1 << 31] {
            assert_eq!(PreemptBits::from_step(offset), None, "{offset:#x}");
        }
        assert!(PreemptBits::from_step(HIGHEST).is_some());
    }
}
