//! The caller of code that no CFI covers: assembly, programs without tables, code made at run time.

use super::code::{LONGEST_CALL, RETURN_STEPS, TRAMPOLINE, ends_with_call, signal_return};
use super::code_exit::{CodeAfterJump, CodeExit, SearchContext, find_exit};
use super::frame::{FrameDoubt, FrameState};
use super::images::{CodeMapping, CodeMappings, ImageCode};
use super::row::RA;
use crate::address::{AddressKind, CodeAddr, VirtAddr};
use crate::registers::{Registers, StackMemory};

/// Result of a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerGuess {
    /// `state` is the caller's now.
    Caller(FrameDoubt),
    /// `state` is now what a signal interrupted.
    Interrupted,
    /// `state` continues in the same frame, in other code.
    Jumped,
    /// There is no caller.
    Outermost,
    /// No caller is plausible.
    Nothing,
}

/// Moves `state` from code without CFI to its caller, if one is plausible.
pub(super) fn caller(
    state: &mut FrameState,
    place: AddressKind,
    stack: &impl StackMemory,
    images: &impl CodeMappings,
    context: &mut SearchContext<'_>,
) -> CallerGuess {
    if is_signal_return(state.rip(), images) {
        return interrupted(state, stack).map_or(CallerGuess::Nothing, |()| CallerGuess::Interrupted);
    }
    let apply = |state: &mut FrameState, (left, next)| {
        *state = next;
        match left {
            CodeExit::Return => CallerGuess::Caller(FrameDoubt::Code),
            CodeExit::Jump => CallerGuess::Jumped,
        }
    };
    // What the code itself does until it returns is the best evidence.
    let found = find_exit(state, place, CodeAfterJump::Nothing, stack, images, context);
    let at = CodeAddr { address: state.rip(), kind: place };
    let made = images.find(at.lookup()).is_some_and(|image| matches!(image.code, ImageCode::Anonymous));
    let rbp = state.get(Registers::RBP).ok();
    // Code made at run time may use RBP for anything.
    let backed = rbp.is_some_and(|rbp| is_backed(rbp, stack));
    match found {
        // What is jumped to may have another frame by its tables than at its start.
        Some((CodeExit::Jump, _)) if made && backed => {}
        Some(found) => return apply(state, found),
        // A leaf has just been called if its first word is a return address: assembly seldom pushes anything.
        None if place == AddressKind::Exact && by_return_address(state, stack, images).is_some() => {
            return CallerGuess::Caller(FrameDoubt::ReturnAddress);
        }
        None => {}
    }
    // Compilers of code made at run time seldom keep frame pointers, so RBP is believed only where it leads
    // to another frame; assembly and programs without tables often keep them.
    if !made || backed {
        let guess = by_rbp(state, rbp, place, stack, images);
        if guess != CallerGuess::Nothing || !made {
            return guess;
        }
    }
    // The last resort takes the code after an unknown jump for the same function.
    match found.or_else(|| find_exit(state, place, CodeAfterJump::Code, stack, images, context)) {
        Some(found) => apply(state, found),
        None => by_rbp(state, rbp, place, stack, images),
    }
}

fn by_rbp(
    state: &mut FrameState,
    rbp: Option<u64>,
    place: AddressKind,
    stack: &impl StackMemory,
    images: &impl CodeMappings,
) -> CallerGuess {
    match rbp {
        // The mark of the outermost frame (System V ABI, AMD64 supplement 1.0, section 3.4.1). In a leaf RBP
        // may be anything.
        Some(0) if place == AddressKind::Return => CallerGuess::Outermost,
        Some(rbp) if by_frame_pointer(state, rbp, stack, images).is_some() => match state.rip() {
            VirtAddr(0) => CallerGuess::Outermost,
            _ => CallerGuess::Caller(FrameDoubt::FramePointer),
        },
        _ => CallerGuess::Nothing,
    }
}

/// Returns true if the frame pointer that was saved at `rbp` is zero or that of a frame further up the stack.
fn is_backed(rbp: u64, stack: &impl StackMemory) -> bool {
    stack.read_u64(rbp).is_some_and(|saved| {
        saved == 0 || saved > rbp && saved.is_multiple_of(8) && stack.read_u64(saved).is_some()
    })
}

fn by_return_address(
    state: &mut FrameState,
    stack: &impl StackMemory,
    images: &impl CodeMappings,
) -> Option<()> {
    let rsp = state.rsp();
    let rip = VirtAddr(stack.read_u64(rsp)?);
    (follows_call(rip, images)? && rsp.is_multiple_of(8)).then_some(())?;
    state.set(Registers::RSP, Some(rsp.checked_add(8)?));
    state.set(RA, Some(rip.0));
    Some(())
}

/// RBP holds the address of the caller's RBP, above which the return address is.
fn by_frame_pointer(
    state: &mut FrameState,
    rbp: u64,
    stack: &impl StackMemory,
    images: &impl CodeMappings,
) -> Option<()> {
    (rbp >= state.rsp() && rbp.is_multiple_of(8)).then_some(())?;
    let saved = stack.read_u64(rbp)?;
    let rip = VirtAddr(stack.read_u64(rbp.checked_add(8)?)?);
    let plausible = match rip {
        VirtAddr(0) => saved == 0,
        // Code that makes a thread's or coroutine's first frame by hand writes any address: no call is before
        // it.
        _ => images.find(CodeAddr::returning(rip).lookup()).is_some_and(|image| {
            saved == 0
                || follows_call(rip, images) != Some(false)
                || is_pushed(&image, (rbp, saved), stack, images)
        }),
    };
    plausible.then_some(())?;
    let rsp = rbp.checked_add(16)?;
    // Where the other registers were saved is not known.
    state.forget();
    state.set(Registers::RSP, Some(rsp));
    state.set(Registers::RBP, Some(saved));
    state.set(RA, Some(rip.0));
    Some(())
}

/// Returns true if an interpreter has pushed the address in `image` by hand, as HotSpot's does: it is one of
/// code made at run time, and the frame pointer that was saved next to it is that of a frame further up the
/// stack, which returns to code, too.
fn is_pushed(
    image: &CodeMapping<'_>,
    (rbp, saved): (u64, u64),
    stack: &impl StackMemory,
    images: &impl CodeMappings,
) -> bool {
    matches!(image.code, ImageCode::Anonymous)
        && saved > rbp.saturating_add(8)
        && saved.is_multiple_of(8)
        && stack.read_u64(saved).is_some_and(|next| next == 0 || next > saved)
        && saved.checked_add(8).and_then(|at| stack.read_u64(at)).map(VirtAddr).is_some_and(|rip| {
            images.find(CodeAddr::returning(rip).lookup()).is_some_and(|image| {
                matches!(image.code, ImageCode::Anonymous) || follows_call(rip, images) == Some(true)
            })
        })
}

/// Returns true if a call is right before `address`; `None` where the code is not known.
fn follows_call(address: VirtAddr, images: &impl CodeMappings) -> Option<bool> {
    images.find(CodeAddr::returning(address).lookup())?;
    let mut code = [0; LONGEST_CALL];
    images.code(address.checked_sub(LONGEST_CALL as u64)?, &mut code)?;
    Some(ends_with_call(&code))
}

fn is_signal_return(rip: VirtAddr, images: &impl CodeMappings) -> bool {
    // Before its first instruction, between the two, or in the system call, which tables end before.
    RETURN_STEPS.iter().any(|&done| {
        let mut code = [0; TRAMPOLINE];
        let start = rip.checked_sub(done);
        start.and_then(|start| images.code(start, &mut code)).is_some()
            && signal_return(&code).is_some_and(|steps| steps.contains(&done))
    })
}

/// Offset of `uc_mcontext.gregs` in the `ucontext` that RSP points at when a handler has returned
/// (Linux, arch/x86/include/uapi/asm/ucontext.h and include/asm/sigframe.h: uc_flags, uc_link, uc_stack).
const CONTEXT: u64 = 40;

/// DWARF numbers in the order of `struct sigcontext_64` (Linux, arch/x86/include/uapi/asm/sigcontext.h).
const ORDER: [usize; COLUMNS_IN_CONTEXT] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, RA];
const COLUMNS_IN_CONTEXT: usize = 17;

/// Takes the registers out of the kernel's signal frame.
fn interrupted(state: &mut FrameState, stack: &impl StackMemory) -> Option<()> {
    let mut at = state.rsp().checked_add(CONTEXT)?;
    let mut values = [0; COLUMNS_IN_CONTEXT];
    for value in &mut values {
        *value = stack.read_u64(at)?;
        at = at.checked_add(8)?;
    }
    for (column, value) in ORDER.into_iter().zip(values) {
        state.set(column, Some(value));
    }
    Some(())
}
