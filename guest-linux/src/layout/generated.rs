//! Offsets in the structures by which the kernel keeps its generated code.

use crate::btf::layout::layout;

/// Bytes of a name, at most (`KSYM_NAME_LEN`: 128 until 6.0, 512 since).
const MAX_NAME: usize = 512;

layout! {
    /// Layouts of the lists of generated code; `None` where a kernel lacks a structure.
    #[derive(Debug, Clone, Copy)]
    GeneratedLayout {
        bpf: Option<BpfLayout>,
        packs: Option<PackLayout>,
        ftrace: Option<FtraceLayout>,
        probes: Option<KprobeLayout>,
    }

    /// `struct bpf_ksym` (include/linux/bpf.h, since 5.8).
    #[derive(Debug, Clone, Copy)]
    BpfLayout {
        link: usize = "bpf_ksym.lnode",
        start: usize = "bpf_ksym.start",
        end: usize = "bpf_ksym.end",
        name: usize = "bpf_ksym.name",
        name_len: usize => |btf| {
            let name = btf.member_by_path("bpf_ksym.name").and_then(|name| btf.elements(name));
            Ok(name.unwrap_or(0).min(MAX_NAME))
        },
    }

    /// `struct bpf_prog_pack` (kernel/bpf/core.c, since 5.18).
    #[derive(Debug, Clone, Copy)]
    PackLayout {
        link: usize = "bpf_prog_pack.list",
        start: usize = "bpf_prog_pack.ptr",
    }

    /// `struct ftrace_ops` (include/linux/ftrace.h, with a list since 5.9).
    #[derive(Debug, Clone, Copy)]
    FtraceLayout {
        link: usize = "ftrace_ops.list",
        start: usize = "ftrace_ops.trampoline",
        size: usize = "ftrace_ops.trampoline_size",
    }

    /// `struct kprobe_insn_cache` (include/linux/kprobes.h) and `struct kprobe_insn_page` (kernel/kprobes.c).
    #[derive(Debug, Clone, Copy)]
    KprobeLayout {
        /// The head of the list of pages.
        pages: usize = "kprobe_insn_cache.pages",
        /// Bytes of a slot, in an optimized probe's cache.
        slot: usize = "kprobe_insn_cache.insn_size",
        link: usize = "kprobe_insn_page.list",
        start: usize = "kprobe_insn_page.insns",
    }
}
