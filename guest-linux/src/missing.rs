//! Reasons why something could not be read.

/// Reason why something could not be read from the guest; its `Display` is what a report shows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum Missing {
    /// The page tables at this CR3 hold no kernel image.
    #[error("no kernel image is mapped yet")]
    NoKernelImage,
    /// The image holds no kallsyms tables of a known layout (CONFIG_KALLSYMS off, or overwritten).
    #[error("no kallsyms in this kernel: no function and no process names")]
    NoKallsyms,
    /// Kallsyms lacks `__start_BTF` (CONFIG_DEBUG_INFO_BTF or CONFIG_KALLSYMS_ALL off).
    #[error("no BTF in this kernel: no process names")]
    NoBtf,
    /// The bytes between `__start_BTF` and `__stop_BTF` are not BTF.
    #[error("the BTF of this kernel cannot be read: no process names")]
    BadBtf,
    /// The tables that the kernel unwinds itself by are not what they should be.
    #[error("the kernel's unwind tables (ORC) are of an unknown form")]
    BadOrc,
    /// A symbol that is needed is not in kallsyms.
    #[error("this kernel has no symbol {0}")]
    NoSymbol(String),
    /// A structure or a member that is needed is not in BTF.
    #[error("the BTF of this kernel has no {0}")]
    NoField(String),
    /// A function does not start with the no-op of function tracing (CONFIG_DYNAMIC_FTRACE), or is traced by
    /// the guest.
    #[error("the kernel's {0} does not start with a no-op: not traceable, or traced by the guest")]
    NoNoOp(String),
    /// A function is not of a form that is known.
    #[error("the kernel's {0} is of an unknown form")]
    UnknownCode(String),
    /// The kernel has not set up its per-CPU areas yet: ask again later.
    #[error("the kernel has not set up its per-CPU areas yet")]
    PerCpuNotReady,
    /// The code that counts hard interrupts is not of a known form.
    #[error("how this kernel counts interrupts is unknown: what they hit gets their time")]
    NoHardIrqBits,
    /// No mapping of physical memory was found in the kernel's page tables.
    #[error("the kernel's direct map was not found")]
    NoDirectMap,
    /// The head of the task list could not be read.
    #[error("the task list could not be read")]
    TaskList,
    /// The head of the module list could not be read.
    #[error("the module list could not be read")]
    ModuleList,
    /// The task has no user memory: it is a kernel thread, or its process is ending.
    #[error("the task has no user memory")]
    NoUserMemory,
    /// No name on the way to a file is kept in memory: there is no such file, or nobody has used it lately.
    #[error("the guest keeps no file of this name in memory")]
    NotCached,
    /// A structure of the guest could not be read: it is changing, or it is not what it should be.
    #[error("{0} could not be read")]
    Unreadable(String),
}

impl Missing {
    /// True when asking again a moment later may succeed, because the guest is still booting.
    pub fn may_come(&self) -> bool {
        matches!(
            self,
            Missing::NoKernelImage
                | Missing::PerCpuNotReady
                | Missing::NoDirectMap
                | Missing::TaskList
                | Missing::ModuleList
                | Missing::Unreadable(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Missing;

    #[test]
    fn reasons_are_one_line_and_survive_a_file() {
        for missing in [
            Missing::NoKernelImage,
            Missing::NoSymbol("init_task".into()),
            Missing::NoField("task_struct.comm".into()),
            Missing::Unreadable("the cgroup".into()),
            Missing::NotCached,
            Missing::NoHardIrqBits,
        ] {
            let text = missing.to_string();
            assert!(!text.contains('\n') && text.len() < 80, "{text}");
            let stored = serde_json::to_string(&missing).unwrap();
            assert_eq!(serde_json::from_str::<Missing>(&stored).unwrap(), missing);
        }
    }
}
