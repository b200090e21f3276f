//! Registers of an x86-64, from the answer to `g`.

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};

use super::description::{RegisterPlace, TargetDescription};
use crate::rsp::packet::unhex;
use vmm::x86::{CR0_PE, EFER_LMA};

/// Selector of 32-bit user code, without its privilege level (`__USER32_CS`, arch/x86/include/asm/segment.h,
/// Linux 6.12).
const USER32: u64 = 0x20;
/// Privilege level in a selector (Intel SDM vol. 3, 3.4.2).
const PRIVILEGE: u64 = 3;

/// General registers, the instruction pointer and flags by GDB's names, in the order of [`general`].
const GENERAL: [&str; 18] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "eflags",
];
/// Other registers that a sample needs, in the order of [`special`].
const SPECIAL: [&str; 6] = ["cs", "ss", "cr0", "cr3", "cr4", "efer"];

/// Places of the registers in the answer to `g`.
#[derive(Debug, Clone)]
pub(crate) struct RegisterLayout {
    general: [RegisterPlace; GENERAL.len()],
    special: [RegisterPlace; SPECIAL.len()],
}

impl RegisterLayout {
    /// Takes the places from the target's description.
    ///
    /// # Errors
    /// The first register that the description lacks.
    pub(crate) fn new(description: &TargetDescription) -> Result<Self, &'static str> {
        let nowhere = RegisterPlace { offset: 0, bytes: 0 };
        let mut places = Self { general: [nowhere; GENERAL.len()], special: [nowhere; SPECIAL.len()] };
        let names = GENERAL.iter().chain(&SPECIAL);
        for (name, place) in names.zip(places.general.iter_mut().chain(&mut places.special)) {
            *place = description.place(name).filter(|place| (1..=8).contains(&place.bytes)).ok_or(*name)?;
        }
        Ok(places)
    }

    /// Returns true if an answer of so many digits contains all registers.
    pub(crate) fn fit(&self, digits: usize) -> bool {
        let mut all = self.general.iter().chain(&self.special);
        all.all(|place| (place.offset + place.bytes).saturating_mul(2) <= digits)
    }

    /// Returns the registers of an answer; `None` if one is missing or unknown to the stub.
    pub(crate) fn registers(&self, answer: &[u8]) -> Option<(kvm_regs, kvm_sregs)> {
        let mut failed = false;
        let mut read = |place: &RegisterPlace| {
            value(answer, place).unwrap_or_else(|| {
                failed = true;
                0
            })
        };
        let (general_values, special_values) =
            (self.general.map(|p| read(&p)), self.special.map(|p| read(&p)));
        (!failed).then(|| (general(general_values), special(special_values)))
    }
}

/// Returns a register's value; its least significant byte comes first.
fn value(answer: &[u8], place: &RegisterPlace) -> Option<u64> {
    let digits =
        answer.get(place.offset.checked_mul(2)?..place.offset.checked_add(place.bytes)?.checked_mul(2)?)?;
    let mut bytes = [0; 8];
    unhex(digits, bytes.get_mut(..place.bytes)?)?;
    Some(u64::from_le_bytes(bytes))
}

fn general(values: [u64; GENERAL.len()]) -> kvm_regs {
    let [rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags] = values;
    kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
}

/// Makes the segment and control registers. GDB knows selectors only: other properties of a segment follow
/// from the selectors and the mode.
fn special([cs, ss, cr0, cr3, cr4, efer]: [u64; SPECIAL.len()]) -> kvm_sregs {
    let long = efer & EFER_LMA != 0;
    // CS and SS have the same privilege level, and SS may be null in the kernel.
    let dpl = u8::try_from(cs & PRIVILEGE).unwrap_or(0);
    let selector = |value: u64| u16::try_from(value & 0xffff).unwrap_or(0);
    // Without protected mode there is real mode, whose bases are sixteen times the selectors.
    let base = if cr0 & CR0_PE == 0 { (cs & 0xffff) << 4 } else { 0 };
    let code = kvm_segment {
        base,
        selector: selector(cs),
        dpl,
        l: u8::from(long && cs & !PRIVILEGE != USER32),
        ..kvm_segment::default()
    };
    let stack = kvm_segment { selector: selector(ss), dpl, ..kvm_segment::default() };
    kvm_sregs { cs: code, ss: stack, cr0, cr3, cr4, efer, ..kvm_sregs::default() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::gdb::description::tests::{TARGET, feature};

    /// Returns a description of all needed registers, with others between them.
    pub(crate) fn core() -> String {
        let mut registers: Vec<(&str, usize)> = GENERAL.iter().map(|name| (*name, 64)).collect();
        registers.extend([
            ("cs", 32),
            ("ss", 32),
            ("fs_base", 64),
            ("cr0", 64),
            ("cr3", 64),
            ("cr4", 64),
            ("efer", 64),
        ]);
        feature(&registers)
    }

    pub(crate) fn description() -> TargetDescription {
        let core = core();
        TargetDescription::read(|name| {
            Ok::<_, super::super::description::DescriptionError>(if name == "core.xml" {
                core.clone()
            } else {
                TARGET.to_owned()
            })
        })
        .unwrap()
    }

    /// Makes an answer to `g` with these values.
    pub(crate) fn answer(rip: u64, cs: u32, cr3: u64) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut text: String = (1..=16_u64).map(|value| hex(&value.to_le_bytes())).collect();
        text += &hex(&rip.to_le_bytes());
        text += &hex(&0x202_u64.to_le_bytes());
        text += &hex(&cs.to_le_bytes());
        text += &hex(&0_u32.to_le_bytes());
        for value in [0, 0x8000_0001, cr3, 0x1020, EFER_LMA] {
            text += &hex(&value.to_le_bytes());
        }
        text
    }

    #[test]
    fn registers_come_from_their_places() {
        let places = RegisterLayout::new(&description()).unwrap();
        let text = answer(0xffff_ffff_8100_0000, 0x10, 0x5000);
        let (regs, sregs) = places.registers(text.as_bytes()).unwrap();
        assert_eq!((regs.rax, regs.rdx, regs.rsp, regs.rbp, regs.r15), (1, 4, 8, 7, 16));
        assert_eq!((regs.rip, regs.rflags), (0xffff_ffff_8100_0000, 0x202));
        assert_eq!((sregs.cr3, sregs.cr4, sregs.ss.dpl, sregs.cs.l), (0x5000, 0x1020, 0, 1));
        let (_, user) = places.registers(answer(0, 0x33, 1).as_bytes()).unwrap();
        assert_eq!((user.ss.dpl, user.cs.l), (3, 1));
        let (_, compat) = places.registers(answer(0, 0x23, 1).as_bytes()).unwrap();
        assert_eq!((compat.ss.dpl, compat.cs.l), (3, 0));
    }

    #[test]
    fn a_short_or_unknown_answer_is_rejected() {
        let places = RegisterLayout::new(&description()).unwrap();
        let text = answer(0, 0x10, 1);
        assert!(places.fit(text.len()) && !places.fit(text.len() - 1));
        assert!(places.registers(&text.as_bytes()[..text.len() - 2]).is_none());
        assert!(places.registers(text.replacen('0', "x", 1).as_bytes()).is_none());
        let bare = TargetDescription::read(|_| {
            Ok::<_, super::super::description::DescriptionError>(feature(&[("rax", 64)]))
        });
        assert_eq!(RegisterLayout::new(&bare.unwrap()).unwrap_err(), "rbx");
    }
}
