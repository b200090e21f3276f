//! Names of system calls: what the functions in the kernel's own table are called.

use crate::kernel::Kernel;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use symbols::VirtAddr;

/// Entries of the table that are read, at most: x86-64 has 470 numbers in 6.15, and gaps.
const MAX_CALLS: usize = 600;
/// Prefixes of the functions in the table (arch/x86/include/asm/syscall_wrapper.h).
const PREFIXES: [&str; 4] = ["__x64_sys_", "__x64_compat_sys_", "__x32_compat_sys_", "__do_sys_"];
/// The function of numbers without a call.
const NOT_IMPLEMENTED: &str = "ni_syscall";
/// Functions that are called otherwise than the call (arch/x86/entry/syscalls/syscall_64.tbl).
const RENAMED: [(&str, &str); 6] = [
    ("newstat", "stat"),
    ("newfstat", "fstat"),
    ("newlstat", "lstat"),
    ("newuname", "uname"),
    ("sendfile64", "sendfile"),
    ("umount", "umount2"),
];

impl Kernel {
    /// Returns the names of the system calls of 64-bit programs by number, such as `read` at 0; `None` at
    /// numbers that this kernel does not implement. At most 600.
    ///
    /// # Errors
    /// What is missing to read the table.
    pub fn system_calls(&self, memory: &impl PhysicalMemory) -> Result<Vec<Option<String>>, Missing> {
        let view = self.view(memory);
        let table = self.symbol("sys_call_table")?;
        let mut calls = Vec::new();
        for number in 0..MAX_CALLS {
            // The memory after the table's end holds other things than system calls.
            let function = view.u64(table, number * 8).and_then(|at| self.symbol_at(VirtAddr(at)));
            let Some(call) = function.filter(|f| f.offset == 0).and_then(|f| call_name(f.name)) else {
                break;
            };
            calls.push((call != NOT_IMPLEMENTED).then(|| call.to_owned()));
        }
        if calls.is_empty() {
            return Err(Missing::Unreadable("the table of system calls".into()));
        }
        Ok(calls)
    }
}

/// Returns the call's name from its function's; `None` for another function.
fn call_name(function: &str) -> Option<&str> {
    if function == "sys_ni_syscall" {
        return Some(NOT_IMPLEMENTED);
    }
    let call = PREFIXES.iter().find_map(|prefix| function.strip_prefix(prefix))?;
    Some(RENAMED.iter().find(|(name, _)| *name == call).map_or(call, |(_, renamed)| renamed))
}

#[cfg(test)]
mod tests {
    use super::call_name;

    #[test]
    fn names_of_calls_from_names_of_functions() {
        for (function, call) in [
            ("__x64_sys_read", Some("read")),
            ("__x64_sys_newfstatat", Some("newfstatat")),
            ("__x64_sys_newfstat", Some("fstat")),
            ("__x64_sys_ni_syscall", Some("ni_syscall")),
            ("sys_ni_syscall", Some("ni_syscall")),
            ("__ia32_sys_read", None),
            ("vfs_read", None),
        ] {
            assert_eq!(call_name(function), call, "{function}");
        }
    }
}
