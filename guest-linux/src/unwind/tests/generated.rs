//! Walks through code that the kernel has generated.

use super::*;
use crate::fixture::generated::{CALLERS, DISPATCHER, PACK, PROBES, PROGRAM, SLOT, TRACERS, TRAMPOLINE};
use crate::fixture::{Config, Guest, Style};

/// A function of the image that is traced, another one's caller, and its caller, which is the bottom.
const TRACED: u64 = TEXT + 0x200;
const CALLER: u64 = TEXT + 0x311;
const BOTTOM: u64 = TEXT + 0x401;

/// Returns a guest whose image is where these tests have theirs, and an unwinder that knows the code it has
/// generated.
fn generating(change: impl FnOnce(&mut Guest)) -> (Guest, KernelUnwinder) {
    let mut config = Config::new(Style::V6_1);
    config.slide = 0;
    let mut guest = config.build();
    change(&mut guest);
    let kernel = crate::Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    assert_eq!(guest.text(0).0, TEXT);
    let [_, _, format, _] = formats();
    let [plain, regs] = CALLERS.map(|(at, _)| at);
    let unwinder = unwinder(
        &format,
        &[
            rule(0x100, RuleKind::Call, (SP, 8)),
            rule(0x200, RuleKind::Call, (SP, 8)),
            rule(0x205, RuleKind::Call, (SP, 32)),
            rule(0x300, RuleKind::Call, (SP, 16)),
            rule(0x400, RuleKind::Bottom, (0, 0)),
            rule(plain, RuleKind::Call, (SP, 8)),
            rule(plain + 8, RuleKind::Call, (SP, 24)),
            rule(regs, RuleKind::Call, (SP, 8)),
            rule(regs + 8, RuleKind::Call, (SP, 40)),
        ],
    );
    let unwinder = unwinder.with_generated(Arc::new(kernel.generated_code(&guest.memory)));
    (guest, unwinder)
}

fn frames(unwinder: &KernelUnwinder, rip: u64, bp: u64, stack: &[u64]) -> (Vec<u64>, WalkEnd) {
    let (frames, end) = walk(unwinder, registers_at(rip, STACK, bp), stack.to_vec());
    (frames.into_iter().map(|(address, _)| address).collect(), end)
}

#[test]
fn a_tracers_trampoline_leads_to_the_traced_function_and_its_caller() {
    let (guest, unwinder) = generating(|_| ());
    // What the tracer calls, the trampoline, the traced function after its call at the start, its caller.
    let callback = TEXT + 0x108;
    for ((start, _), words) in TRACERS.into_iter().zip([2, 4]) {
        let trampoline = guest.generated(start);
        let behind_call = [TRACED + 5, CALLER, 7, BOTTOM];
        let stack = [&[trampoline + 0x40][..], &[1; 4][..words], &behind_call].concat();
        let expected = [callback, trampoline + 0x40, TRACED + 5, CALLER, BOTTOM];
        assert_eq!(frames(&unwinder, callback, 0, &stack), (expected.to_vec(), WalkEnd::Complete));
        // Interrupted at its first instruction, within, and at its return, which is not in the copy.
        let len = CALLERS.into_iter().zip(TRACERS).find(|(_, tracer)| tracer.0 == start).unwrap().0.1;
        for (offset, words) in [(0, 0), (8, words), (len - 1, words), (len, 0), (len + 4, 0)] {
            let stack = [&[1; 4][..words], &behind_call].concat();
            let expected = [trampoline + offset, TRACED + 5, CALLER, BOTTOM];
            let found = frames(&unwinder, trampoline + offset, 0, &stack);
            assert_eq!(found, (expected.to_vec(), WalkEnd::Complete), "{offset:#x}");
        }
    }
}

#[test]
fn a_copy_of_no_known_code_has_no_rule() {
    let (guest, unwinder) = generating(|guest| guest.set_tracer_size(0x99));
    let rip = guest.generated(TRACERS[0].0 + 8);
    assert_eq!(reason(frames(&unwinder, rip, STACK + 8, &[CALLER; 8]).1), Some(KernelWalkError::NoRule));
}

#[test]
fn a_bpf_program_leads_to_its_caller_from_every_instruction() {
    let (guest, unwinder) = generating(|_| ());
    let program = guest.generated(PROGRAM.0);
    // The frame of the program's caller is not one of a frame pointer.
    let (wrong, bp) = (TEXT + 0x777, STACK + 16);
    let not_set_up = [CALLER, 7, 0, wrong, BOTTOM];
    let pushed = [0, CALLER, 7, BOTTOM, wrong];
    let whole = [1, 2, 0, CALLER, 7, BOTTOM];
    for (offset, stack) in [
        (0, &[CALLER, 7, BOTTOM, wrong][..]),
        (5, &[CALLER, 7, BOTTOM, wrong]),
        (7, &[CALLER, 7, BOTTOM, wrong]),
        (8, &pushed),
        (11, &whole),
        (13, &whole),
        (14, &[CALLER, 7, BOTTOM, wrong]),
    ] {
        let found = frames(&unwinder, program + offset, bp, stack);
        assert_eq!(found, (vec![program + offset, CALLER, BOTTOM], WalkEnd::Complete), "{offset}");
    }
    // A function that the program calls, and one that its no-op was replaced by a call of.
    let helper = TEXT + 0x108;
    let stack = [&[program + 13][..], &[1, 2, 3], &[0, CALLER, 7, BOTTOM]].concat();
    let found = frames(&unwinder, helper, STACK + 32, &stack);
    assert_eq!(found, (vec![helper, program + 13, CALLER, BOTTOM], WalkEnd::Complete));
    let stack = [&[program + 5][..], &not_set_up[..2], &[BOTTOM]].concat();
    let found = frames(&unwinder, helper, STACK + 24, &stack);
    assert_eq!(found, (vec![helper, program + 5, CALLER, BOTTOM], WalkEnd::Complete));
}

/// A program that is traced by another one: fentry's trampoline returns into it.
#[test]
fn programs_and_trampolines_follow_each_other() {
    let (guest, unwinder) = generating(|_| ());
    let (program, trampoline) = (guest.generated(PROGRAM.0) + 12, guest.generated(TRAMPOLINE.0) + 0x30);
    let dispatcher = guest.generated(DISPATCHER.0) + 0x20;
    let stack = [9, STACK + 32, trampoline, 8, 0, TRACED + 5, CALLER, 7, BOTTOM];
    let expected = vec![program, trampoline, TRACED + 5, CALLER, BOTTOM];
    assert_eq!(frames(&unwinder, program, STACK + 8, &stack), (expected, WalkEnd::Complete));
    // Compares and jumps; RBP is its caller's.
    let found = frames(&unwinder, dispatcher, STACK + 16, &[CALLER, 7, BOTTOM, 0, 0]);
    assert_eq!(found, (vec![dispatcher, CALLER, BOTTOM], WalkEnd::Complete));
}

#[test]
fn an_optimized_probe_leads_to_the_function_that_it_is_in() {
    let (guest, unwinder) = generating(|_| ());
    let callback = TEXT + 0x108;
    for slot in [0, SLOT.0 * 3] {
        let behind_call = guest.generated(PROBES[1]) + slot + SLOT.1 + 5;
        let mut stack = vec![behind_call];
        stack.extend(pt_regs(TRACED + 1, 0x10, STACK + 22 * 8));
        stack.extend([CALLER, 7, BOTTOM]);
        let expected = vec![callback, behind_call, TRACED + 1, CALLER, BOTTOM];
        assert_eq!(frames(&unwinder, callback, 0, &stack), (expected, WalkEnd::Complete));
    }
    // Another function's instructions have another function's rule.
    for rip in [guest.generated(PROBES[0]) + 8, guest.generated(PROBES[1]) + 8] {
        assert_eq!(reason(frames(&unwinder, rip, STACK + 8, &[CALLER; 8]).1), Some(KernelWalkError::NoRule));
    }
}

#[test]
fn programs_without_a_name_have_a_frame_pointer() {
    let (guest, unwinder) = generating(|_| ());
    let classic = guest.generated(PACK) + 0x123;
    let found = frames(&unwinder, classic, STACK + 8, &[1, 0, CALLER, 7, BOTTOM]);
    assert_eq!(found, (vec![classic, CALLER, BOTTOM], WalkEnd::Complete));
    // From one to another the frame pointer need not rise: it is known code.
    let found =
        frames(&unwinder, classic, STACK + 8, &[1, 0, guest.generated(DISPATCHER.0) + 1, CALLER, 7, BOTTOM]);
    assert_eq!((found.0.len(), found.1), (4, WalkEnd::Complete));
}
