//! Offsets in the structures by which the kernel keeps its generated code.

use crate::btf::Btf;
use crate::layout::offset;
use crate::missing::Missing;

/// Bytes of a name, at most (`KSYM_NAME_LEN`: 128 until 6.0, 512 since).
const MAX_NAME: usize = 512;

/// Layouts of the lists of generated code; `None` where a kernel lacks a structure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GeneratedLayout {
    pub(super) bpf: Option<BpfLayout>,
    pub(super) packs: Option<PackLayout>,
    pub(super) ftrace: Option<FtraceLayout>,
    pub(super) probes: Option<ProbeLayout>,
}

/// `struct bpf_ksym` (include/linux/bpf.h, since 5.8).
#[derive(Debug, Clone, Copy)]
pub(super) struct BpfLayout {
    pub(super) link: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) name: usize,
    pub(super) name_len: usize,
}

/// `struct bpf_prog_pack` (kernel/bpf/core.c, since 5.18).
#[derive(Debug, Clone, Copy)]
pub(super) struct PackLayout {
    pub(super) link: usize,
    pub(super) start: usize,
}

/// `struct ftrace_ops` (include/linux/ftrace.h, with a list since 5.9).
#[derive(Debug, Clone, Copy)]
pub(super) struct FtraceLayout {
    pub(super) link: usize,
    pub(super) start: usize,
    pub(super) size: usize,
}

/// `struct kprobe_insn_cache` (include/linux/kprobes.h) and `struct kprobe_insn_page` (kernel/kprobes.c).
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeLayout {
    /// `kprobe_insn_cache.pages`: the head of the list of pages.
    pub(super) pages: usize,
    /// `kprobe_insn_cache.insn_size`: bytes of a slot, in an optimized probe's cache.
    pub(super) slot: usize,
    pub(super) link: usize,
    pub(super) start: usize,
}

impl GeneratedLayout {
    pub(crate) fn new(btf: &Btf) -> Self {
        Self {
            bpf: BpfLayout::new(btf).ok(),
            packs: PackLayout::new(btf).ok(),
            ftrace: FtraceLayout::new(btf).ok(),
            probes: ProbeLayout::new(btf).ok(),
        }
    }
}

impl BpfLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let ksym = |member| offset(btf, "bpf_ksym", member);
        let name = btf.member("bpf_ksym", "name").and_then(|name| btf.elements(name)).unwrap_or(0);
        Ok(Self {
            link: ksym("lnode")?,
            start: ksym("start")?,
            end: ksym("end")?,
            name: ksym("name")?,
            name_len: name.min(MAX_NAME),
        })
    }
}

impl PackLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let pack = |member| offset(btf, "bpf_prog_pack", member);
        Ok(Self { link: pack("list")?, start: pack("ptr")? })
    }
}

impl FtraceLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let ops = |member| offset(btf, "ftrace_ops", member);
        Ok(Self { link: ops("list")?, start: ops("trampoline")?, size: ops("trampoline_size")? })
    }
}

impl ProbeLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let cache = |member| offset(btf, "kprobe_insn_cache", member);
        let page = |member| offset(btf, "kprobe_insn_page", member);
        Ok(Self {
            pages: cache("pages")?,
            slot: cache("insn_size")?,
            link: page("list")?,
            start: page("insns")?,
        })
    }
}
