//! Offsets of the members that are read from the guest's structures.
//!
//! Found by name in the kernel's BTF, so no kernel version is assumed; where a member's name or
//! place differs between kernels, each variant is tried in turn.

use crate::books::AccountingLayout;
use crate::btf::Btf;
use crate::clock::ClockLayout;
use crate::gather::Gather;
use crate::generated::GeneratedLayout;
use crate::interrupt::InterruptLayouts;
use crate::iomem::ResourceLayout;
use crate::missing::Missing;
use crate::pagecache::PageCacheLayout;
use crate::process::{MmLayout, ProcessLayouts};
use crate::task_scan::ObservationLayout;
use crate::tripwire::{StateLayout, TraceLayout};

/// `TASK_COMM_LEN` (include/linux/sched.h).
pub(crate) const COMM: usize = 16;

/// `enum mod_mem_type` (include/linux/module.h, since 6.4).
const MOD_INIT_TEXT: usize = 4;

/// What the structures of one kernel look like.
#[derive(Debug, Clone)]
pub(crate) struct Layouts {
    pub(crate) task: Result<TaskLayout, Missing>,
    pub(crate) threads: Result<ThreadLayout, Missing>,
    pub(crate) module: Result<ModuleLayout, Missing>,
    /// Members of `struct pcpu_hot` (6.2 to 6.14), where there is one.
    pub(crate) hot: Option<HotLayout>,
    /// Size of an element of the per-CPU `x86_cpu_to_apicid`: u16 until 6.6, u32 since.
    pub(crate) apic_id_size: Option<usize>,
    pub(crate) stack: Result<StackLayout, Missing>,
    /// The scheduler's state of a task.
    pub(crate) state: Result<StateLayout, Missing>,
    pub(crate) trace: Result<TraceLayout, Missing>,
    /// What else a scan reads of a task.
    pub(crate) sight: Result<ObservationLayout, Missing>,
    /// How an entry of the ORC tables is laid out; an error in a kernel without them.
    pub(crate) orc: Result<OrcLayout, Missing>,
    pub(crate) process: ProcessLayouts,
    pub(crate) books: AccountingLayout,
    pub(crate) page_cache: Result<PageCacheLayout, Missing>,
    pub(crate) interrupts: InterruptLayouts,
    pub(crate) generated: GeneratedLayout,
    pub(crate) resource: Result<ResourceLayout, Missing>,
    pub(crate) clock: Result<ClockLayout, Missing>,
}

/// `struct task_struct` (include/linux/sched.h): what a snapshot needs, and how to read it in few reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskLayout {
    /// What is read of every task.
    pub(crate) gather: Gather<FIELDS>,
    pub(crate) comm: usize,
    /// `start_boottime` (since 5.5), `real_start_time` before.
    pub(crate) start: usize,
}

/// Members that are read of every task, in the order of [`Field`].
const FIELDS: usize = 5;

/// Which of the gathered members.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    Flags,
    Pid,
    Tgid,
    GroupLeader,
    Comm,
}

/// The lists of processes and of their threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadLayout {
    /// `task_struct.tasks`: links the leaders of all processes.
    pub(crate) tasks: usize,
    /// `task_struct.signal`.
    pub(crate) signal: usize,
    /// `task_struct.thread_node`: links the threads of a process.
    pub(crate) thread_node: usize,
    /// `signal_struct.thread_head`: the head of that list.
    pub(crate) thread_head: usize,
}

/// `struct module` (include/linux/module.h) and what it points to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleLayout {
    pub(crate) list: usize,
    pub(crate) state: usize,
    pub(crate) name: usize,
    pub(crate) name_len: usize,
    /// `core_layout.base` until 6.3, `mem[MOD_TEXT].base` since.
    pub(crate) text_base: usize,
    /// `core_layout.text_size`, `mem[MOD_TEXT].size`.
    pub(crate) text_size: usize,
    /// Base and size of the text that is freed once the module has started: `init_layout.base` and `.text_size` until
    /// 6.3, `mem[MOD_INIT_TEXT]` since.
    pub(crate) init_text: Option<(usize, usize)>,
    /// Where the symbols are described; `None` in a kernel without them.
    pub(crate) kallsyms: Option<ModuleKallsymsLayout>,
    /// Where the ORC tables are described; `None` in a kernel without them.
    pub(crate) orc: Option<ModuleOrcLayout>,
}

/// `struct mod_arch_specific` (arch/x86/include/asm/module.h), in `module.arch`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleOrcLayout {
    /// `orc_unwind_ip`: pointer to the addresses.
    pub(crate) addresses: usize,
    /// `orc_unwind`: pointer to the entries.
    pub(crate) entries: usize,
    /// `num_orcs`.
    pub(crate) count: usize,
}

/// `struct mod_kallsyms` (include/linux/module.h), behind `module.kallsyms`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModuleKallsymsLayout {
    pub(crate) pointer: usize,
    pub(crate) symtab: usize,
    pub(crate) num_symtab: usize,
    pub(crate) strtab: usize,
    pub(crate) typetab: usize,
}

/// `struct pcpu_hot` (arch/x86/include/asm/current.h, 6.2 to 6.14).
#[derive(Debug, Clone, Copy)]
pub(crate) struct HotLayout {
    pub(crate) current_task: usize,
    pub(crate) preempt_count: usize,
    /// `hardirq_stack_ptr`.
    pub(crate) irq_stack: Option<usize>,
}

/// Kernel stacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StackLayout {
    /// `task_struct.stack`: the lowest address of a task's stack.
    pub(crate) stack: usize,
    /// `task_struct.thread.sp`: the stack pointer of a task that does not run.
    pub(crate) saved_sp: usize,
    /// Bytes of a task's stack (`THREAD_SIZE`).
    pub(crate) size: u64,
    /// Bytes of a CPU's interrupt stack (`IRQ_STACK_SIZE`).
    pub(crate) irq_size: u64,
    /// `inactive_task_frame.bp` (arch/x86/include/asm/switch_to.h): from the saved stack pointer.
    pub(crate) saved_bp: usize,
    /// `inactive_task_frame.ret_addr`.
    pub(crate) return_address: usize,
    /// From a task to its page tables; `None` where a kernel does not say.
    pub(crate) mm: Option<MmLayout>,
}

/// A field of an ORC entry: first bit and number of bits.
pub(crate) type Bits = (u32, u32);

/// `struct orc_entry` (arch/x86/include/asm/orc_types.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrcLayout {
    /// Bytes of an entry, at most 8.
    pub(crate) size: usize,
    pub(crate) sp_offset: Bits,
    pub(crate) bp_offset: Bits,
    pub(crate) sp_reg: Bits,
    pub(crate) bp_reg: Bits,
    pub(crate) kind: Bits,
    /// Since 6.3.
    pub(crate) signal: Option<Bits>,
    /// Until 6.3.
    pub(crate) end: Option<Bits>,
}

pub(crate) fn offset(btf: &Btf, structure: &str, path: &str) -> Result<usize, Missing> {
    btf.member(structure, path)
        .map(|m| m.offset)
        .ok_or_else(|| Missing::NoField(format!("{structure}.{path}")))
}

/// The offset of the first of several names of one member; the reason names the first.
pub(crate) fn first_offset(btf: &Btf, structure: &str, paths: &[&str]) -> Result<usize, Missing> {
    let found = paths.iter().find_map(|path| btf.member(structure, path));
    found
        .map(|m| m.offset)
        .ok_or_else(|| Missing::NoField(format!("{structure}.{}", paths.first().unwrap_or(&""))))
}

/// A member that is a small number, whose size is not the same in all kernels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number {
    pub(crate) offset: usize,
    /// 1, 2 or 4 bytes.
    pub(crate) bytes: usize,
}

impl Number {
    pub(crate) fn new(btf: &Btf, structure: &str, path: &str) -> Result<Self, Missing> {
        let offset = offset(btf, structure, path)?;
        let size = btf.member(structure, path).and_then(|member| btf.number_size(member));
        Ok(Self { offset, bytes: size.filter(|size| [1, 2].contains(size)).unwrap_or(4) })
    }
}

impl Layouts {
    /// Looks up everything.
    pub(crate) fn new(btf: &Btf) -> Self {
        Self {
            task: TaskLayout::new(btf),
            threads: ThreadLayout::new(btf),
            module: ModuleLayout::new(btf),
            hot: HotLayout::new(btf),
            apic_id_size: btf.variable_size("x86_cpu_to_apicid"),
            stack: StackLayout::new(btf),
            state: StateLayout::new(btf),
            trace: TraceLayout::new(btf),
            sight: ObservationLayout::new(btf),
            orc: OrcLayout::new(btf),
            process: ProcessLayouts::new(btf),
            books: AccountingLayout::new(btf),
            page_cache: PageCacheLayout::new(btf),
            interrupts: InterruptLayouts::new(btf),
            generated: GeneratedLayout::new(btf),
            resource: ResourceLayout::new(btf),
            clock: ClockLayout::new(btf),
        }
    }
}

impl TaskLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let task = |member| offset(btf, "task_struct", member);
        let comm = task("comm")?;
        let gather = Gather::new([
            (task("flags")?, 4),
            (task("pid")?, 4),
            (task("tgid")?, 4),
            (task("group_leader")?, 8),
            (comm, COMM),
        ]);
        let start = task("start_boottime").or_else(|missing| task("real_start_time").map_err(|_| missing))?;
        Ok(Self { gather, comm, start })
    }
}

impl ThreadLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        Ok(Self {
            tasks: offset(btf, "task_struct", "tasks")?,
            signal: offset(btf, "task_struct", "signal")?,
            thread_node: offset(btf, "task_struct", "thread_node")?,
            thread_head: offset(btf, "signal_struct", "thread_head")?,
        })
    }
}

impl ModuleLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let module = |member| offset(btf, "module", member);
        let name = btf.member("module", "name").ok_or_else(|| Missing::NoField("module.name".into()))?;
        let (text_base, text_size) = match module("core_layout.base") {
            Ok(base) => (base, module("core_layout.text_size")?),
            // MOD_TEXT is element 0 of the array.
            Err(_) => (module("mem.base")?, module("mem.size")?),
        };
        let init_text = match module("init_layout.base") {
            Ok(base) => module("init_layout.text_size").ok().map(|size| (base, size)),
            Err(_) => btf.size_of("module_memory").filter(|&size| size > 0).and_then(|size| {
                let before = MOD_INIT_TEXT.checked_mul(size)?;
                Some((text_base.checked_add(before)?, text_size.checked_add(before)?))
            }),
        };
        Ok(Self {
            list: module("list")?,
            state: module("state")?,
            name: name.offset,
            name_len: btf.elements(name).unwrap_or(0).min(64),
            text_base,
            text_size,
            init_text,
            kallsyms: ModuleKallsymsLayout::new(btf).ok(),
            orc: ModuleOrcLayout::new(btf).ok(),
        })
    }
}

impl ModuleKallsymsLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let kallsyms = |member| offset(btf, "mod_kallsyms", member);
        Ok(Self {
            pointer: offset(btf, "module", "kallsyms")?,
            symtab: kallsyms("symtab")?,
            num_symtab: kallsyms("num_symtab")?,
            strtab: kallsyms("strtab")?,
            typetab: kallsyms("typetab")?,
        })
    }
}

impl HotLayout {
    fn new(btf: &Btf) -> Option<Self> {
        Some(Self {
            current_task: btf.member("pcpu_hot", "current_task")?.offset,
            preempt_count: btf.member("pcpu_hot", "preempt_count")?.offset,
            irq_stack: btf.member("pcpu_hot", "hardirq_stack_ptr").map(|m| m.offset),
        })
    }
}

impl ModuleOrcLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let module = |member| offset(btf, "module", member);
        Ok(Self {
            addresses: module("arch.orc_unwind_ip")?,
            entries: module("arch.orc_unwind")?,
            count: module("arch.num_orcs")?,
        })
    }
}

impl StackLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let task = |member| offset(btf, "task_struct", member);
        // 16 KiB, twice that with KASAN (arch/x86/include/asm/page_64_types.h).
        let size = |name: &str| {
            let size =
                btf.size_of(name).filter(|size| size.is_power_of_two() && (8192..=65_536).contains(size));
            size.unwrap_or(16_384) as u64
        };
        let frame = |member, else_at| btf.member("inactive_task_frame", member).map_or(else_at, |m| m.offset);
        Ok(Self {
            stack: task("stack")?,
            saved_sp: task("thread.sp")?,
            size: size("thread_union"),
            irq_size: size("irq_stack"),
            saved_bp: frame("bp", 40),
            return_address: frame("ret_addr", 48),
            mm: MmLayout::new(btf).ok(),
        })
    }
}

impl OrcLayout {
    fn new(btf: &Btf) -> Result<Self, Missing> {
        let missing = |member: &str| Missing::NoField(format!("orc_entry.{member}"));
        let size =
            btf.size_of("orc_entry").filter(|size| (1..=8).contains(size)).ok_or_else(|| missing("size"))?;
        let inside =
            |&(first, bits): &Bits| (1..=16).contains(&bits) && first as usize + bits as usize <= size * 8;
        let maybe = |member| btf.bits("orc_entry", member).filter(inside);
        let field = |member| maybe(member).ok_or_else(|| missing(member));
        Ok(Self {
            size,
            sp_offset: field("sp_offset")?,
            bp_offset: field("bp_offset")?,
            sp_reg: field("sp_reg")?,
            bp_reg: field("bp_reg")?,
            kind: field("type")?,
            signal: maybe("signal"),
            end: maybe("end"),
        })
    }
}
