//! Walks of stacks that are made by hand.

mod generated;

use std::sync::Arc;

use proptest::prelude::*;

use super::rule::{RegisterBase, RegisterNumbers, RuleFormat, RuleKind, UnwindRule};
use super::table::{RuleBudget, RuleTable};
use super::{KernelUnwinder, MAX_RULES, RETURN_HOOKS};
use crate::frame::{KernelWalkError, WalkEnd};
use crate::layout::{BitRange, OrcLayout};
use crate::missing::Missing;
use crate::stack::StackCopy;
use crate::stack::tests::{ENTRY as ENTRY_CODE, Guest};
use symbols::{AddressKind, CodeAddr, Registers, StackMemory};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const END: u64 = TEXT + 0x10_0000;
const ENTRY: u64 = TEXT + 0x8_0000;
const MODULE: u64 = 0xffff_ffff_c030_0000;
const STACK: u64 = 0xffff_c900_0000_0000;

/// `ORC_REG_*`, as [`RegisterNumbers::StackPointerIs5`] has them.
const SP: u16 = 5;
const BP: u16 = 4;
const PREV_SP: u16 = 1;
/// Number of each of them in [`RegisterNumbers::StackPointerIs3`].
const RENUMBERED: [u16; 11] = [0, 8, 2, 5, 4, 3, 6, 7, 10, 9, 1];

/// Until 6.2, 6.3, since 6.4, and 7.3.
fn formats() -> [RuleFormat; 4] {
    let old = OrcLayout {
        size: 6,
        sp_offset: (0, 16),
        bp_offset: (16, 16),
        sp_reg: (32, 4),
        bp_reg: (36, 4),
        kind: (40, 2),
        signal: None,
        end: Some((42, 1)),
    };
    let middle = OrcLayout { signal: Some((42, 1)), end: Some((43, 1)), ..old };
    let new = OrcLayout { kind: (40, 3), signal: Some((43, 1)), end: None, ..old };
    let five = |fields| RuleFormat { fields, numbers: RegisterNumbers::StackPointerIs5 };
    [
        five(old),
        five(middle),
        five(new),
        RuleFormat { fields: new, numbers: RegisterNumbers::StackPointerIs3 },
    ]
}

/// A rule as a test writes it: offset in the text, what is at SP or BP, offsets.
#[derive(Debug, Clone, Copy)]
struct Written {
    at: u64,
    sp: (u16, i16),
    bp: (u16, i16),
    kind: RuleKind,
}

fn rule(at: u64, kind: RuleKind, sp: (u16, i16)) -> Written {
    Written { at, sp, bp: (0, 0), kind }
}

fn bytes(format: &RuleFormat, written: &Written) -> Vec<u8> {
    let layout = &format.fields;
    let number = |number: u16| match format.numbers {
        RegisterNumbers::StackPointerIs5 => number,
        RegisterNumbers::StackPointerIs3 => RENUMBERED[usize::from(number)],
    };
    let three = layout.kind.1 == 3;
    let kind = match written.kind {
        RuleKind::Undefined => 0,
        RuleKind::Bottom => u64::from(three),
        RuleKind::Call => {
            if three {
                2
            } else {
                0
            }
        }
        RuleKind::Regs => {
            if three {
                3
            } else {
                1
            }
        }
        RuleKind::Partial => {
            if three {
                4
            } else {
                2
            }
        }
    };
    let exact = matches!(written.kind, RuleKind::Regs | RuleKind::Partial);
    let mut word = 0u64;
    let mut put = |bits: BitRange, value: u64| word |= (value & ((1 << bits.1) - 1)) << bits.0;
    put(layout.sp_offset, u64::from(written.sp.1.cast_unsigned()));
    put(layout.bp_offset, u64::from(written.bp.1.cast_unsigned()));
    put(layout.sp_reg, u64::from(number(written.sp.0)));
    put(layout.bp_reg, u64::from(number(written.bp.0)));
    put(layout.kind, kind);
    if let Some(signal) = layout.signal {
        put(signal, u64::from(exact));
    }
    if let Some(end) = layout.end {
        put(end, u64::from(written.kind == RuleKind::Bottom));
    }
    word.to_le_bytes()[..layout.size].to_vec()
}

fn table(format: &RuleFormat, range: (u64, u64), rules: &[Written]) -> Option<RuleTable> {
    let base = END + 0x1000;
    let addresses: Vec<u8> = (0u64..)
        .zip(rules)
        .flat_map(|(i, written)| {
            let distance = (range.0 + written.at).wrapping_sub(base + i * 4).cast_signed();
            i32::try_from(distance).unwrap_or(0).to_le_bytes()
        })
        .collect();
    let entries: Vec<u8> = rules.iter().flat_map(|written| bytes(format, written)).collect();
    RuleTable::new(format, range, (base, &addresses), &entries, &mut RuleBudget::new(MAX_RULES))
}

fn with_table(orc: Result<RuleTable, Missing>) -> KernelUnwinder {
    KernelUnwinder {
        image: (TEXT, END),
        orc: orc.map(|table| (Arc::new(table), formats()[0])),
        modules: Arc::default(),
        generated: Arc::default(),
        entry: (ENTRY, ENTRY + 0x1000),
        hooks: [0; RETURN_HOOKS.len()],
        switch: TEXT + 0x9_0000,
        thunks: TEXT + 0xa_0000,
    }
}

fn unwinder(format: &RuleFormat, rules: &[Written]) -> KernelUnwinder {
    with_table(Ok(table(format, (TEXT, END), rules).expect("rules")))
}

fn by_frame_pointer() -> KernelUnwinder {
    with_table(Err(Missing::NoSymbol("__start_orc_unwind".into())))
}

/// Words from an address up.
struct Words(u64, Vec<u64>);

impl StackMemory for Words {
    fn read_u64(&self, at: u64) -> Option<u64> {
        let offset = at.checked_sub(self.0)?;
        self.1.get(symbols::bytes::index(offset / 8)).copied().filter(|_| offset % 8 == 0)
    }
}

fn registers_at(rip: u64, sp: u64, bp: u64) -> Registers {
    let mut registers = Registers { gpr: std::array::from_fn(|i| 0x1000 + i as u64), rip };
    registers.gpr[Registers::RSP] = sp;
    registers.gpr[Registers::RBP] = bp;
    registers
}

/// Returns a `pt_regs` in which every register has its offset, but for these.
fn pt_regs(ip: u64, cs: u64, sp: u64) -> Vec<u64> {
    let mut words: Vec<u64> = (0..21u64).map(|i| i * 8).collect();
    (words[16], words[17], words[19]) = (ip, cs, sp);
    words
}

fn walk(unwinder: &KernelUnwinder, registers: Registers, stack: Vec<u64>) -> (Vec<(u64, bool)>, WalkEnd) {
    let mut frames = Vec::new();
    let end = unwinder.walk(&registers, &Words(STACK, stack), 64, |CodeAddr { address, kind }| {
        frames.push((address.0, kind == AddressKind::Exact));
    });
    (frames, end)
}

fn reason(end: WalkEnd) -> Option<KernelWalkError> {
    if let WalkEnd::Broken(reason) = end { Some(reason) } else { None }
}

#[test]
fn a_system_call_ends_at_the_users_registers() {
    for format in formats() {
        let unwinder = unwinder(
            &format,
            &[
                rule(0x100, RuleKind::Call, (SP, 16)),
                Written { bp: (PREV_SP, -16), ..rule(0x200, RuleKind::Call, (BP, 16)) },
                rule(0x8_0000, RuleKind::Regs, (SP, 0)),
            ],
        );
        let mut stack = vec![7, TEXT + 0x208, 0, 0, 0xbeef, ENTRY + 9];
        stack.extend(pt_regs(0x40_1000, 0x33, 0x7fff_0000));
        let (frames, end) = walk(&unwinder, registers_at(TEXT + 0x104, STACK, STACK + 32), stack);
        assert_eq!(frames, [(TEXT + 0x104, true), (TEXT + 0x208, false), (ENTRY + 9, false)]);
        let WalkEnd::User(user) = end else { panic!("{end:?}") };
        // RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8 to R15.
        let expected = [80, 96, 88, 40, 104, 112, 32, 0x7fff_0000, 72, 64, 56, 48, 24, 16, 8, 0];
        assert_eq!(user.registers, Registers { gpr: expected, rip: 0x40_1000 });
        assert_eq!(user.system_call(), Some(120));
    }
}

#[test]
fn an_interrupt_leads_from_its_stack_to_what_it_interrupted() {
    for format in formats() {
        let unwinder = unwinder(
            &format,
            &[
                rule(0x100, RuleKind::Call, (SP, 8)),
                // The word at SP is the RSP that was left.
                rule(0x200, RuleKind::Call, (9, 8)),
                rule(0x8_0000, RuleKind::Regs, (SP, 0)),
                // R10, without an offset.
                rule(0x300, RuleKind::Call, (6, 0)),
                rule(0x400, RuleKind::Bottom, (0, 0)),
            ],
        );
        // The task's stack is below the interrupt stack.
        let mut stack = vec![ENTRY + 0x11];
        stack.extend(pt_regs(TEXT + 0x300, 0x10, STACK + 23 * 8));
        stack.extend([0, TEXT + 0x401, 0, 0, 0, 0, 0, 0]);
        let interrupt_stack = stack.len() as u64 * 8 + STACK;
        stack.extend([TEXT + 0x201, STACK]);
        // R10 points after the return address.
        stack[1 + 7] = STACK + 24 * 8;
        let (frames, end) = walk(&unwinder, registers_at(TEXT + 0x100, interrupt_stack, 0), stack);
        let expected = [
            (TEXT + 0x100, true),
            (TEXT + 0x201, false),
            (ENTRY + 0x11, false),
            (TEXT + 0x300, true),
            (TEXT + 0x401, false),
        ];
        assert_eq!((frames.as_slice(), end), (&expected[..], WalkEnd::Complete));
    }
}

#[test]
fn an_iret_frame_keeps_all_registers() {
    for format in formats() {
        let unwinder = unwinder(&format, &[rule(0x8_0000, RuleKind::Partial, (SP, 8))]);
        let stack = vec![u64::MAX, 0x40_1000, 0x33, 0x246, 0x7fff_0000, 0x2b];
        let (frames, end) = walk(&unwinder, registers_at(ENTRY, STACK, 0x77), stack);
        assert_eq!(frames, [(ENTRY, true)]);
        let WalkEnd::User(user) = end else { panic!("{end:?}") };
        assert_eq!(user.registers, registers_at(0x40_1000, 0x7fff_0000, 0x77));
        assert_eq!(user.system_call(), None);
    }
}

#[test]
fn registers_that_are_popped_already_are_still_had() {
    let [_, _, format, _] = formats();
    // All of the pt_regs is below the stack pointer, but for the words from R8 on.
    let unwinder = unwinder(&format, &[rule(0x8_0000, RuleKind::Regs, (SP, -72))]);
    let mut stack = vec![0xdead; 9];
    stack.extend(&pt_regs(0x40_1000, 0x33, 0x7fff_0000)[9..]);
    let registers = registers_at(ENTRY, STACK + 72, 0x77);
    let (_, end) = walk(&unwinder, registers, stack);
    let WalkEnd::User(user) = end else { panic!("{end:?}") };
    assert_eq!(user.registers.gpr[12], registers.gpr[12]);
    assert_eq!((user.registers.rbp(), user.registers.gpr[8]), (0x77, 72));
    assert_eq!((user.registers.rip, user.registers.rsp()), (0x40_1000, 0x7fff_0000));
}

#[test]
fn what_is_wrong_is_told() {
    let [_, _, format, _] = formats();
    let rules = [
        rule(0x100, RuleKind::Call, (SP, 16)),
        rule(0x200, RuleKind::Call, (SP, -8)),
        rule(0x300, RuleKind::Undefined, (0, 0)),
        rule(0x400, RuleKind::Call, (7, 0)),
        rule(0x500, RuleKind::Regs, (SP, 0)),
        rule(0x600, RuleKind::Call, (BP, 0)),
        rule(0x8_0000, RuleKind::Undefined, (0, 0)),
    ];
    let mut unwinder = unwinder(&format, &rules);
    unwinder.hooks[0] = TEXT + 0x177;
    let ends =
        |rip: u64, stack: Vec<u64>| reason(walk(&unwinder, registers_at(rip, STACK, STACK + 8), stack).1);
    assert_eq!(ends(TEXT + 0x100, vec![0]), Some(KernelWalkError::NotCopied));
    assert_eq!(ends(TEXT + 0x200, vec![0; 4]), Some(KernelWalkError::NotCopied));
    assert_eq!(ends(TEXT + 0x300, vec![0; 4]), Some(KernelWalkError::NoRule));
    assert_eq!(ends(TEXT + 0x50, vec![0; 4]), Some(KernelWalkError::NoRule));
    assert_eq!(ends(ENTRY + 1, vec![0; 4]), Some(KernelWalkError::EntryCode));
    assert_eq!(ends(TEXT + 0x500, vec![0; 40]), Some(KernelWalkError::BadRegisters));
    assert_eq!(ends(END + 0x50, vec![0; 4]), Some(KernelWalkError::UnknownCode));
    assert_eq!(ends(TEXT + 0x100, vec![0, TEXT + 0x177]), Some(KernelWalkError::ReturnHook));
    // The hook has its own name, not that of the function before it.
    let (frames, _) = walk(&unwinder, registers_at(TEXT + 0x100, STACK, 0), vec![0, TEXT + 0x177]);
    assert_eq!(frames, [(TEXT + 0x100, true), (TEXT + 0x177, true)]);
    // R13 after a call is not known.
    assert_eq!(ends(TEXT + 0x100, vec![0, TEXT + 0x401]), Some(KernelWalkError::NoRegister));
    // A function that returns to itself without end.
    let mut stack = vec![TEXT + 0x101; 200];
    assert_eq!(ends(TEXT + 0x100, stack.clone()), Some(KernelWalkError::Limit));
    stack[0] = TEXT + 0x601;
    assert_eq!(ends(TEXT + 0x600, stack), Some(KernelWalkError::StackPointer));
    for broken in [KernelWalkError::NoRule, KernelWalkError::EntryCode, KernelWalkError::BadRegisters] {
        let text = broken.to_string();
        assert!(text.len() < 50 && !text.contains('\n'), "{text}");
        let stored = serde_json::to_string(&broken).unwrap();
        assert_eq!(serde_json::from_str::<KernelWalkError>(&stored).unwrap(), broken);
    }
}

#[test]
fn the_stack_pointer_may_not_go_down_by_calls() {
    let [_, _, format, _] = formats();
    let unwinder =
        unwinder(&format, &[rule(0x100, RuleKind::Call, (SP, 0)), rule(0x200, RuleKind::Bottom, (0, 0))]);
    let (_, end) = walk(&unwinder, registers_at(TEXT + 0x100, STACK + 8, 0), vec![TEXT + 0x201, 0]);
    assert_eq!(reason(end), Some(KernelWalkError::StackPointer));
}

#[test]
fn a_call_to_nothing_leads_to_its_caller() {
    let [_, _, format, _] = formats();
    let unwinder = unwinder(&format, &[rule(0x200, RuleKind::Bottom, (0, 0))]);
    let (frames, end) = walk(&unwinder, registers_at(0, STACK, 0), vec![TEXT + 0x201]);
    assert_eq!((frames, end), (vec![(0, true), (TEXT + 0x201, false)], WalkEnd::Complete));
}

#[test]
fn thunks_and_stuffed_return_addresses_are_left() {
    let [_, _, format, _] = formats();
    // The rule of the switch is wrong by a word.
    let rules = [rule(0x200, RuleKind::Bottom, (0, 0)), rule(0x9_0000, RuleKind::Call, (SP, 64))];
    let unwinder = unwinder(&format, &rules);
    let (thunks, switch) = (unwinder.thunks, unwinder.switch);
    let caller = TEXT + 0x201;
    for (rip, stack) in [
        (thunks + 32, vec![caller]),
        (thunks + 32 + 16, vec![TEXT + 0x900, caller]),
        (switch + 60, vec![0, 0, 0, 0, 0, 0, caller, 0]),
        (switch + 60, vec![switch + 50, switch + 56, 0, 0, 0, 0, 0, 0, caller]),
    ] {
        let (frames, end) = walk(&unwinder, registers_at(rip, STACK, 0), stack);
        assert_eq!((frames, end), (vec![(rip, true), (caller, false)], WalkEnd::Complete));
    }
}

#[test]
fn generated_code_is_left_by_its_frame_pointer() {
    let [_, _, format, _] = formats();
    let unwinder = unwinder(&format, &[rule(0x200, RuleKind::Bottom, (0, 0))]);
    let (frames, end) =
        walk(&unwinder, registers_at(MODULE, STACK, STACK + 16), vec![1, 2, STACK + 64, TEXT + 0x201, 0]);
    assert_eq!((frames, end), (vec![(MODULE, true), (TEXT + 0x201, false)], WalkEnd::Complete));
    let (_, end) = walk(&unwinder, registers_at(MODULE, STACK, STACK + 16), vec![1, 2, 0, 3, 0]);
    assert_eq!(reason(end), Some(KernelWalkError::UnknownCode));
}

#[test]
fn modules_have_tables_of_their_own() {
    let [_, _, format, _] = formats();
    let mut unwinder = unwinder(&format, &[rule(0x200, RuleKind::Bottom, (0, 0))]);
    let modules = (0..3).filter_map(|i| {
        let range = (MODULE + i * 0x4000, MODULE + i * 0x4000 + 0x2000);
        table(&format, range, &[rule(0, RuleKind::Call, (SP, 8 + 8 * i16::try_from(i).unwrap()))])
    });
    unwinder.modules = Arc::new(modules.collect());
    assert_eq!((unwinder.modules.len(), unwinder.rules()), (3, 4));
    let (frames, end) = walk(&unwinder, registers_at(MODULE + 0x5fff, STACK, 0), vec![0, TEXT + 0x201]);
    assert_eq!((frames.len(), end), (2, WalkEnd::Complete));
    let (_, end) = walk(&unwinder, registers_at(MODULE + 0x6000, STACK, 0), vec![0, TEXT + 0x201]);
    assert_eq!(reason(end), Some(KernelWalkError::UnknownCode));
}

#[test]
fn a_kernel_with_frame_pointers_needs_no_table() {
    let unwinder = by_frame_pointer();
    assert!(unwinder.missing().is_some());
    // An interrupt in a system call: RBP with bit 0 points to its pt_regs.
    let regs = STACK + 8 * 4;
    let mut stack = vec![regs | 1, TEXT + 0x11, 0, 0];
    stack.extend(pt_regs(TEXT + 0x300, 0x10, STACK + 25 * 8));
    stack[4 + 4] = STACK + 25 * 8;
    stack.extend([0, ENTRY + 5]);
    stack.extend(pt_regs(0x40_1000, 0x33, 0x7fff_0000));
    let (frames, end) = walk(&unwinder, registers_at(TEXT + 0x100, STACK, STACK), stack);
    let expected = [(TEXT + 0x100, true), (TEXT + 0x11, false), (TEXT + 0x300, true), (ENTRY + 5, false)];
    assert_eq!(frames, expected);
    assert!(matches!(end, WalkEnd::User(user) if user.registers.rip == 0x40_1000), "{end:?}");
    // A kernel thread: zeros in place of registers.
    let mut stack = vec![(STACK + 16) | 1, TEXT + 0x11];
    stack.extend([0; 21]);
    assert_eq!(walk(&unwinder, registers_at(TEXT + 0x100, STACK, STACK), stack).1, WalkEnd::Complete);
}

#[test]
fn most_rules_tell_which_number_is_which_register() {
    for format in formats() {
        let numbers = |written: &[Written]| {
            let bytes: Vec<u8> = written.iter().flat_map(|written| bytes(&format, written)).collect();
            RegisterNumbers::infer(&format.fields, &bytes)
        };
        let by_sp = rule(0, RuleKind::Call, (SP, 8));
        let others = [
            rule(0, RuleKind::Call, (BP, 16)),
            rule(0, RuleKind::Call, (6, 0)),
            rule(0, RuleKind::Regs, (3, 0)),
        ];
        assert_eq!(numbers(&[&[by_sp; 3], &others[..]].concat()), Some(format.numbers));
        assert_eq!(numbers(&[&[by_sp; 2], &others[..]].concat()), None, "half of all calls");
        assert_eq!(numbers(&[]), None);
        assert_eq!(numbers(&[rule(0, RuleKind::Undefined, (0, 0)), rule(0, RuleKind::Bottom, (0, 0))]), None);
    }
}

#[test]
fn of_two_rules_at_one_address_the_real_one_holds() {
    for format in formats() {
        let both = [
            rule(0x100, RuleKind::Call, (SP, 8)),
            rule(0x100, RuleKind::Undefined, (0, 0)),
            rule(0x80, RuleKind::Bottom, (0, 0)),
        ];
        let table = table(&format, (TEXT, END), &both).unwrap();
        let found = table.find(TEXT + 0x123).unwrap();
        assert_eq!((found.kind, found.sp, found.sp_offset), (RuleKind::Call, RegisterBase::Sp, 8));
        assert_eq!(table.find(TEXT + 0x7f), None);
        assert_eq!(table.find(END), None);
    }
}

proptest! {
    #[test]
    fn the_index_finds_what_a_plain_search_finds(
        mut starts in prop::collection::vec(0u64..0x3000, 1..60),
        asked in prop::collection::vec(0u64..0x4000, 40),
    ) {
        starts.sort_unstable();
        starts.dedup();
        let [_, _, format, _] = formats();
        let rules: Vec<Written> = starts.iter().map(|&at| rule(at, RuleKind::Call, (SP, i16::try_from(at).unwrap()))).collect();
        let table = table(&format, (TEXT, END), &rules).unwrap();
        for at in asked {
            let plain = starts.iter().rev().find(|&&start| start <= at);
            let found = table.find(TEXT + at).map(|rule| u64::from(rule.sp_offset.cast_unsigned()));
            prop_assert_eq!(found, plain.copied());
        }
    }

    #[test]
    fn arbitrary_tables_and_stacks_end(
        which in 0usize..4,
        entries in prop::collection::vec(any::<[u8; 6]>(), 1..40),
        distances in prop::collection::vec(-0x10_2000i32..0, 40),
        words in prop::collection::vec(prop_oneof![
            any::<u64>(), 0u64..0x40, (0u64..0x10_0000).prop_map(|o| TEXT + o),
            (0u64..0x800).prop_map(|o| STACK + o), Just(0x10), Just(0x33),
        ], 0..200),
        gpr in prop::array::uniform16(prop_oneof![any::<u64>(), (0u64..0x400).prop_map(|o| STACK + o)]),
        rip in prop_oneof![any::<u64>(), (0u64..0x10_0000).prop_map(|o| TEXT + o)],
        pointers: bool,
        limit in 0usize..200,
    ) {
        let format = formats()[which];
        let addresses: Vec<u8> = distances.iter().flat_map(|d| d.to_le_bytes()).collect();
        let rules: Vec<u8> = entries.concat();
        let table = RuleTable::new(&format, (TEXT, END), (END + 0x1000, &addresses), &rules, &mut RuleBudget::new(MAX_RULES));
        let mut unwinder = with_table(table.ok_or(Missing::NoKallsyms));
        if pointers {
            unwinder.orc = Err(Missing::NoKallsyms);
        }
        let mut frames = 0;
        let stack = Words(STACK, words);
        let end = unwinder.walk(&Registers { gpr, rip }, &stack, limit, |_| frames += 1);
        prop_assert!(frames <= limit);
        prop_assert!(limit > 0 || reason(end) == Some(KernelWalkError::Limit));
    }

    #[test]
    fn a_rule_of_any_bytes_is_taken_apart(which in 0usize..4, bytes in prop::collection::vec(any::<u8>(), 0..8)) {
        let decoded = UnwindRule::decode(&formats()[which], &bytes);
        prop_assert!(decoded.sp != RegisterBase::Undefined || decoded.kind != RuleKind::Call || which >= 2);
    }
}

#[test]
fn a_budget_ends() {
    let mut budget = RuleBudget::new(3);
    assert_eq!([2, 2, 1, 1].map(|rules| budget.take(rules).is_some()), [true, false, true, false]);
}

/// A system call whose registers were just popped, and one whose stack ends in the code after a fork:
/// both are known by their place on the task's stack.
#[test]
fn a_copy_tells_the_users_registers_where_rules_do_not() {
    let [_, _, format, _] = formats();
    let rules = [rule(0x200, RuleKind::Bottom, (0, 0)), rule(0x8_0000, RuleKind::Undefined, (0, 0))];
    let unwinder = unwinder(&format, &rules);
    let mut guest = crate::stack::tests::Guest::new();
    guest.enter_kernel();
    for (rip, depth) in [(ENTRY + 1, 48), (ENTRY + 1, 0x200), (TEXT + 0x200, 0x200)] {
        let mut copy = crate::StackCopy::new();
        guest.copy_at(rip, 0, depth, &mut copy);
        let WalkEnd::User(user) = unwinder.walk_copy(&copy, 10, |_| ()) else { panic!("{rip:#x}") };
        assert_eq!(user.registers.rip, 0x40_1000);
    }
    let mut copy = crate::StackCopy::new();
    guest.copy_at(TEXT, 0, 0x200, &mut copy);
    assert_eq!(reason(unwinder.walk_copy(&copy, 10, |_| ())), Some(KernelWalkError::NoRule));
    // In user mode there is nothing to walk.
    guest.copy_at(0x1234, 3, 0x200, &mut copy);
    let end = unwinder.walk_copy(&copy, 10, |frame| panic!("{frame:?}"));
    assert!(matches!(end, WalkEnd::User(user) if user.registers.rip == 0x1234));
}

/// Registers are taken off the stack by code that is the same for system calls, exceptions and interrupts.
#[test]
fn the_way_out_shows_what_has_returned_to_it() {
    assert_eq!(ENTRY, ENTRY_CODE);
    for format in formats() {
        let unwinder = unwinder(
            &format,
            &[
                rule(0x8_0000, RuleKind::Regs, (SP, 0)),
                // Five registers have been popped, all but the iret frame, and that one has another stack.
                rule(0x8_0100, RuleKind::Regs, (SP, -40)),
                rule(0x8_0200, RuleKind::Partial, (SP, 0)),
                rule(0x8_0300, RuleKind::Undefined, (0, 0)),
            ],
        );
        let mut copy = StackCopy::new();
        let mut guest = Guest::new();
        // Of a program: on top of the task's stack.
        guest.enter_kernel();
        guest.put_below_top(168 + 8, ENTRY + 0x77);
        for (offset, depth) in [(0, 168), (0x100, 168 - 40), (0x200, 168 - 128), (0x2ff, 168 - 128)] {
            guest.copy_at(ENTRY + offset, 0, depth, &mut copy);
            assert_eq!(unwinder.returned_to(&copy).map(|at| at.address.0), Some(ENTRY + 0x77), "{offset:#x}");
        }
        for offset in [0x200, 0x300] {
            guest.copy_on_entry_stack(ENTRY + offset, 40, &mut copy);
            assert_eq!(unwinder.returned_to(&copy).map(|at| at.address.0), Some(ENTRY + 0x77), "{offset:#x}");
        }
        // Of the kernel: wherever it was.
        let depth = 0x600;
        guest.put_below_top(depth - 136, 0x10);
        guest.put_below_top(depth + 8, ENTRY + 0x99);
        for (offset, depth) in [(0, depth), (0x100, depth - 40), (0x200, depth - 128)] {
            guest.copy_at(ENTRY + offset, 0, depth, &mut copy);
            assert_eq!(unwinder.returned_to(&copy).map(|at| at.address.0), Some(ENTRY + 0x99), "{offset:#x}");
        }
        // Not in entry code, and where the word is in another page, which may not be there.
        guest.copy_at(TEXT + 0x100, 0, 168, &mut copy);
        assert_eq!(unwinder.returned_to(&copy), None);
        guest.put_below_top(0x1000 - 136, 0x10);
        guest.copy_at(ENTRY, 0, 0x1000, &mut copy);
        assert_eq!(unwinder.returned_to(&copy), None);
        assert!(!copy.gaps().kernel_not_present);
    }
}
