//! Text about a failed vCPU: registers, and KVM's report of an internal error.

use std::fmt::Write;

use kvm_bindings::{KVM_EXIT_INTERNAL_ERROR, kvm_regs, kvm_run, kvm_sregs};

/// Returns registers in lines of four.
pub(super) fn registers(regs: &kvm_regs, sregs: &kvm_sregs) -> String {
    let values = [
        ("RIP", regs.rip),
        ("RSP", regs.rsp),
        ("RFLAGS", regs.rflags),
        ("CS", u64::from(sregs.cs.selector)),
        ("CR0", sregs.cr0),
        ("CR2", sregs.cr2),
        ("CR3", sregs.cr3),
        ("CR4", sregs.cr4),
        ("RAX", regs.rax),
        ("RBX", regs.rbx),
        ("RCX", regs.rcx),
        ("RDX", regs.rdx),
        ("RSI", regs.rsi),
        ("RDI", regs.rdi),
        ("RBP", regs.rbp),
        ("EFER", sregs.efer),
        ("R8", regs.r8),
        ("R9", regs.r9),
        ("R10", regs.r10),
        ("R11", regs.r11),
        ("R12", regs.r12),
        ("R13", regs.r13),
        ("R14", regs.r14),
        ("R15", regs.r15),
    ];
    let mut text = String::new();
    for line in values.chunks(4) {
        text.push('\n');
        for (name, value) in line {
            // Writing to a String cannot fail.
            let _infallible = write!(text, "  {name:<6} {value:016x}");
        }
    }
    text
}

/// Returns KVM's detail of an internal error, empty for other exits.
pub(super) fn internal_error(run: &kvm_run) -> String {
    if run.exit_reason != KVM_EXIT_INTERNAL_ERROR {
        return String::new();
    }
    // SAFETY: the exit reason shows that this member of the union was filled.
    let internal = unsafe { run.__bindgen_anon_1.internal };
    // KVM_INTERNAL_ERROR_* of linux/kvm.h.
    let name = match internal.suberror {
        1 => "an instruction that KVM cannot emulate",
        2 => "simultaneous exceptions",
        3 => "an exception during event delivery",
        4 => "an exit of the processor that KVM does not know",
        _ => "of an unknown kind",
    };
    let mut text = format!(" {}: {name}", internal.suberror);
    for word in internal.data.iter().take(usize::try_from(internal.ndata).unwrap_or(0).min(4)) {
        let _infallible = write!(text, " {word:#x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_has_its_value() {
        let regs = kvm_regs { rip: 0x1234, r15: 0xabcd, ..Default::default() };
        let sregs = kvm_sregs { cr2: 0xdead, ..Default::default() };
        let text = registers(&regs, &sregs);
        for part in ["RIP    0000000000001234", "R15    000000000000abcd", "CR2    000000000000dead"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.lines().count(), 7);
    }

    #[test]
    fn an_internal_error_is_named() {
        let mut run = kvm_run { exit_reason: KVM_EXIT_INTERNAL_ERROR, ..Default::default() };
        run.__bindgen_anon_1.internal.suberror = 1;
        run.__bindgen_anon_1.internal.ndata = u32::MAX;
        let text = internal_error(&run);
        assert!(text.starts_with(" 1: an instruction that KVM cannot emulate 0x0"), "{text}");
        assert_eq!(internal_error(&kvm_run::default()), "");
    }
}
