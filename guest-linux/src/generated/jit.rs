//! Instructions of JIT-compiled BPF code that have no frame.
//!
//! The compiler keeps RBP as a frame pointer everywhere but at a function's first and last instructions
//! (arch/x86/net/bpf_jit_comp.c, Linux 5.10 to 6.12):
//!
//! ```text
//! [endbr64] [nop or call] [xor eax,eax]   the return address is at RSP
//! push rbp                                 the same
//! mov rbp,rsp                              the return address is at RSP + 8
//! ...                                      the return address is at RBP + 8
//! leave
//! [add rsp,8]                              the return address is at RSP
//! ret, or jmp to a return thunk            the same
//! ```

/// `push rbp; mov rbp,rsp`.
const SET_UP: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
/// Bytes before it at a function's start, at most: landing pad, no-op, tail call counter, call depth
/// accounting.
const MAX_BEFORE: usize = 64;
/// `leave`.
const LEAVE: u8 = 0xc9;
/// `add rsp,8`: a trampoline that called its function itself returns to that one's caller.
const SKIP: [u8; 4] = [0x48, 0x83, 0xc4, 8];
/// `ret` and `jmp rel32`.
const RETURNS: [u8; 2] = [0xc3, 0xe9];

/// Offsets in JIT-compiled code at which RBP is not this frame's. Patterns may also be found within
/// instructions; that does not matter, as no instruction pointer is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Frameless {
    /// Offset of the first `push rbp; mov rbp,rsp`, if it belongs to the function's start.
    entry: Option<u32>,
    /// Offsets of `push rbp; mov rbp,rsp`; ascending.
    set_up: Box<[u32]>,
    /// Offsets of instructions after `leave`; ascending.
    returns: Box<[u32]>,
}

impl Frameless {
    /// Finds such instructions in a function's code.
    pub(super) fn new(code: &[u8]) -> Self {
        let offsets = |is: &dyn Fn(&[u8]) -> bool| -> Box<[u32]> {
            (0u32..).zip(0..code.len()).filter(|&(_, at)| is(&code[at..])).map(|(offset, _)| offset).collect()
        };
        let set_up = offsets(&|rest| rest.starts_with(&SET_UP));
        let ends = |rest: &[u8]| rest.first().is_some_and(|byte| RETURNS.contains(byte));
        let leaves = offsets(&|rest| {
            let Some((&LEAVE, rest)) = rest.split_first() else { return false };
            ends(rest.strip_prefix(&SKIP).unwrap_or(rest))
        });
        let mut returns = Vec::with_capacity(leaves.len());
        for leave in leaves {
            returns.push(leave + 1);
            if code.get(leave as usize + 1..).is_some_and(|rest| rest.starts_with(&SKIP)) {
                returns.push(leave + 1 + 4);
            }
        }
        Self {
            entry: set_up.first().copied().filter(|&offset| offset as usize <= MAX_BEFORE),
            set_up,
            returns: returns.into(),
        }
    }

    /// Distance of the return address from RSP in bytes at `offset`, which for a return address (not `exact`)
    /// is that of the call's last byte; `None` where RBP is a frame pointer.
    pub(super) fn return_address(&self, offset: u32, exact: bool) -> Option<u8> {
        let has = |offsets: &[u32], offset| offsets.binary_search(&offset).is_ok();
        if self.entry.is_some_and(|push| offset <= push) {
            return Some(0);
        }
        if !exact {
            return None;
        }
        if has(&self.set_up, offset) || has(&self.returns, offset) {
            return Some(0);
        }
        // The mov is one byte after the push.
        offset.checked_sub(1).is_some_and(|push| has(&self.set_up, push)).then_some(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program as Linux 6.12 compiles it, with a return thunk and then with a plain `ret`.
    const PROGRAM: [u8; 30] = [
        0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0, 0x31, 0xc0, 0x55, 0x48, 0x89, 0xe5, 0x53, 0x5b, 0xc9,
        0xe9, 1, 2, 3, 4, 0x5b, 0xc9, 0x48, 0x83, 0xc4, 8, 0xc3,
    ];

    #[test]
    fn a_programs_first_and_last_instructions_have_no_frame() {
        let frameless = Frameless::new(&PROGRAM);
        let found = |exact| {
            (0..30).filter_map(|at| Some((at, frameless.return_address(at, exact)?))).collect::<Vec<_>>()
        };
        let before: Vec<_> = (0..=11).map(|at| (at, 0)).collect();
        assert_eq!(found(true), [&before[..], &[(12, 8), (18, 0), (25, 0), (29, 0)]].concat());
        // A call by the program's own no-op returns before the frame is set up.
        assert_eq!(found(false), before);
    }

    #[test]
    fn a_start_that_is_not_known_has_a_frame() {
        let mut late = vec![0x90; 80];
        late.extend(SET_UP);
        let frameless = Frameless::new(&late);
        assert_eq!(
            [0, 79, 80, 81, 82].map(|at| frameless.return_address(at, true)),
            [None, None, Some(0), Some(8), None]
        );
        assert_eq!(Frameless::new(&[]), Frameless::default());
        assert_eq!(Frameless::new(&[0xc9]).return_address(1, true), None);
    }
}
