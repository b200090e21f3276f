//! Recognizes calls and signal returns by few bytes of code.

/// Bytes of the longest call instruction that [`ends_with_call`] knows.
pub(super) const LONGEST_CALL: usize = 7;

/// Returns true if `code` ends with a call instruction: E8, or FF /2 with any operand (Intel SDM volume 2,
/// CALL).
pub(super) fn ends_with_call(code: &[u8; LONGEST_CALL]) -> bool {
    code[LONGEST_CALL - 5] == 0xe8
        || (2..=LONGEST_CALL).any(|length| {
            let call = &code[LONGEST_CALL - length..];
            call[0] == 0xff && indirect_call_length(call[1], call.get(2).copied()) == Some(length)
        })
}

/// Returns the bytes of the instruction FF with this ModR/M and SIB byte, if it is a near call (volume 2,
/// table 2-2 and 2-3).
fn indirect_call_length(modrm: u8, sib: Option<u8>) -> Option<usize> {
    if modrm >> 3 & 7 != 2 {
        return None;
    }
    let has_sib = modrm & 7 == 4;
    Some(match modrm >> 6 {
        3 => 2,
        0 if has_sib => 3 + if sib? & 7 == 5 { 4 } else { 0 },
        0 if modrm & 7 == 5 => 6,
        0 => 2,
        1 => 3 + usize::from(has_sib),
        _ => 6 + usize::from(has_sib),
    })
}

/// Bytes of the longest trampoline that [`signal_return`] knows.
pub(super) const TRAMPOLINE: usize = 9;

/// Bytes of a trampoline that may have been executed.
pub(super) const RETURN_STEPS: [u64; 4] = [0, 5, 7, 9];

/// If `code` is a C library's return from a signal handler, where its instructions begin and where the last
/// one ends: system call 15, rt_sigreturn (Linux, arch/x86/entry/syscalls/syscall_64.tbl).
pub(super) fn signal_return(code: &[u8; TRAMPOLINE]) -> Option<[u64; 3]> {
    if *code == [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05] {
        // mov $15, %rax; syscall
        return Some([0, 7, 9]);
    }
    // mov $15, %eax; syscall
    (code[..7] == [0xb8, 15, 0, 0, 0, 0x0f, 0x05]).then_some([0, 5, 7])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(tail: &[u8]) -> bool {
        let mut code = [0x90; LONGEST_CALL];
        code[LONGEST_CALL - tail.len()..].copy_from_slice(tail);
        ends_with_call(&code)
    }

    #[test]
    fn calls_are_told_by_their_bytes() {
        assert!(ends(&[0xe8, 1, 2, 3, 4]));
        assert!(ends(&[0xff, 0xd0])); // call *%rax
        assert!(ends(&[0x41, 0xff, 0xd4])); // call *%r12
        assert!(ends(&[0xff, 0x13])); // call *(%rbx)
        assert!(ends(&[0xff, 0x15, 1, 2, 3, 4])); // call *x(%rip)
        assert!(ends(&[0xff, 0x50, 0x18])); // call *24(%rax)
        assert!(ends(&[0xff, 0x54, 0x24, 8])); // call *8(%rsp)
        assert!(ends(&[0xff, 0x14, 0xc7])); // call *(%rdi,%rax,8)
        assert!(ends(&[0xff, 0x14, 0xc5, 1, 2, 3, 4])); // call *x(,%rax,8)
        assert!(ends(&[0xff, 0x90, 1, 2, 0, 0])); // call *x(%rax)
        assert!(ends(&[0xff, 0x94, 0xc7, 1, 2, 0, 0])); // call *x(%rdi,%rax,8)
        assert!(!ends(&[0xff, 0xe0])); // jmp *%rax
        assert!(!ends(&[0xff, 0x50])); // cut short
        assert!(!ends(&[]));
    }

    #[test]
    fn signal_trampolines_are_told_by_their_bytes() {
        assert_eq!(signal_return(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5]), Some([0, 7, 9]));
        assert_eq!(signal_return(&[0xb8, 15, 0, 0, 0, 0x0f, 5, 0x90, 0x90]), Some([0, 5, 7]));
        assert_eq!(signal_return(&[0xb8, 16, 0, 0, 0, 0x0f, 5, 0x90, 0x90]), None);
    }
}
