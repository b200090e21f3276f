//! Which kind of page fault a task is in, by the stack of the kernel: Solaris' microstates LMS_TFAULT, LMS_DFAULT and
//! LMS_KFAULT (sys/msacct.h).

use serde::{Deserialize, Serialize};

/// Functions by which the kernel is entered for a page fault, outermost last (arch/x86/include/asm/idtentry.h, since 5.8;
/// arch/x86/entry/entry_fred.c, since 6.9). A name that ends in `*` stands for all that begin so.
const ENTRIES: [&str; 4] = ["exc_page_fault", "asm_exc_page_fault", "fred_*", "asm_fred_*"];
/// The first of them is called for page faults alone.
const HANDLERS: [&str; 2] = ["exc_page_fault", "asm_exc_page_fault"];

/// A kind of page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PageFaultKind {
    /// A program's next instruction.
    Text,
    /// What an instruction of a program reads or writes.
    Data,
    /// Memory of a program that the kernel reads or writes: a system call's buffer, say.
    Kernel,
}

impl PageFaultKind {
    /// As in column `sample.fault`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Data => "data",
            Self::Kernel => "kernel",
        }
    }

    /// The kind of the innermost page fault that the processor has raised on a stack: `kernel` are the functions of the kernel on it, innermost first,
    /// `from_user` that they end where the kernel was entered from user mode, and `fetching` whether the page of the program's
    /// next instruction is what is missing. `None` without a fault, and where the kind is not known.
    pub fn of<'a>(
        mut kernel: impl Iterator<Item = &'a str>,
        from_user: bool,
        fetching: Option<bool>,
    ) -> Option<Self> {
        kernel.find(|function| HANDLERS.contains(function))?;
        let interrupted = kernel.find(|function| !ENTRIES.iter().any(|entry| is_called(function, entry)));
        match (interrupted, fetching.filter(|_| from_user)) {
            (Some(_), _) => Some(Self::Kernel),
            (None, Some(true)) => Some(Self::Text),
            (None, Some(false)) => Some(Self::Data),
            (None, None) => None,
        }
    }
}

/// Whether a function, or the one that the compiler has made it a variant of, has this name.
pub(super) fn is_called(function: &str, name: &str) -> bool {
    let base = function.split('.').next().unwrap_or(function);
    match name.strip_suffix('*') {
        Some(start) => base.starts_with(start),
        None => base == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stack: &str, from_user: bool, fetching: Option<bool>) -> Option<PageFaultKind> {
        PageFaultKind::of(stack.split(' '), from_user, fetching)
    }

    #[test]
    fn faults_of_programs_are_of_text_or_of_data() {
        let stack =
            "io_schedule filemap_fault handle_mm_fault do_user_addr_fault exc_page_fault asm_exc_page_fault";
        assert_eq!(of(stack, true, Some(true)), Some(PageFaultKind::Text));
        assert_eq!(of(stack, true, Some(false)), Some(PageFaultKind::Data));
        assert_eq!(of(stack, true, None), None, "the page tables were not read");
        assert_eq!(of(stack, false, Some(false)), None, "a broken stack");
        let fred = "handle_mm_fault exc_page_fault fred_entry_from_user asm_fred_entrypoint_user";
        assert_eq!(of(fred, true, Some(true)), Some(PageFaultKind::Text));
    }

    #[test]
    fn faults_of_the_kernel_have_its_code_below_them() {
        let stack =
            "handle_mm_fault exc_page_fault asm_exc_page_fault copy_user_generic vfs_write do_syscall_64";
        assert_eq!(of(stack, true, Some(false)), Some(PageFaultKind::Kernel));
        assert_eq!(
            of(stack, true, None),
            Some(PageFaultKind::Kernel),
            "whatever the program would execute next"
        );
    }

    #[test]
    fn other_exceptions_and_calls_are_no_page_faults() {
        assert_eq!(of("exc_invalid_op asm_exc_invalid_op", true, Some(false)), None);
        assert_eq!(of("handle_mm_fault __get_user_pages io_submit", true, Some(false)), None);
    }
}
