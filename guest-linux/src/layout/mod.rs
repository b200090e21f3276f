//! Offsets of the members that are read from the guest's structures.
//!
//! Found by name in the kernel's BTF, so no kernel version is assumed. Where a member's name or place differs
//! between kernels, each variant is tried in turn. A file holds the tables of one question or several; the
//! code that reads the structures is elsewhere and is not used here.

mod accounting;
mod clock;
mod generated;
mod interrupt;
mod memory_use;
mod module;
mod orc;
mod page_cache;
mod process;
mod progress;
mod resource;
mod stack;
mod task;
mod trace;

pub(crate) use accounting::{AccountingLayout, EndedTimesLayout, TaskTimesLayout};
pub(crate) use clock::ClockLayout;
pub(crate) use generated::GeneratedLayout;
pub(crate) use interrupt::{DescLayout, InterruptLayouts, LineTreeLayout};
pub(crate) use memory_use::{
    CounterLayout, EnumValue, EventLayout, GROUP_ITEMS, GroupItem, GroupStatLayout, HugeLayout,
    MemoryGroupLayout, MemoryLayouts, MmUseLayout, RssLayout, SlabLayout, StatItem, StatTable,
    SuperBlockLayout,
};
pub(crate) use module::{ModuleKallsymsLayout, ModuleLayout};
pub(crate) use orc::{BitRange, OrcLayout};
pub(crate) use page_cache::PageCacheLayout;
pub(crate) use process::{
    ArgvLayout, CgroupLayout, DentryLayout, ExeLayout, FileLayout, InodeLayout, LookupLayout, MmLayout,
    ParentLayout, ProcessLayouts, RbLayout, RootLayout, UidLayout, VmaField, VmaLayout, VmaTree,
    WorkerLayout,
};
pub(crate) use progress::ProgressLayout;
pub(crate) use resource::ResourceLayout;
pub(crate) use stack::StackLayout;
pub(crate) use task::{COMM, HotLayout, ObservationLayout, StateLayout, TaskField, TaskLayout, ThreadLayout};
pub(crate) use trace::TraceLayout;

use crate::btf::layout::layout;
use crate::missing::Missing;

layout! {
    /// Layouts of the structures of one kernel.
    #[derive(Debug, Clone)]
    Layouts {
        task: Result<TaskLayout, Missing>,
        threads: Result<ThreadLayout, Missing>,
        module: Result<ModuleLayout, Missing>,
        /// Members of `struct pcpu_hot` (6.2 to 6.14), where there is one.
        hot: Option<HotLayout>,
        /// Size of an element of the per-CPU `x86_cpu_to_apicid`: u16 until 6.6, u32 since.
        apic_id_size: Option<usize> => |btf| Ok(btf.variable_size("x86_cpu_to_apicid")),
        stack: Result<StackLayout, Missing>,
        /// The scheduler's state of a task.
        state: Result<StateLayout, Missing>,
        trace: Result<TraceLayout, Missing>,
        /// Members that a scan of all tasks reads besides the state.
        observation: Result<ObservationLayout, Missing>,
        /// Layout of an entry of the ORC tables; an error in a kernel without them.
        orc: Result<OrcLayout, Missing>,
        process: ProcessLayouts,
        accounting: AccountingLayout,
        page_cache: Result<PageCacheLayout, Missing>,
        interrupts: InterruptLayouts,
        generated: GeneratedLayout,
        resource: Result<ResourceLayout, Missing>,
        clock: Result<ClockLayout, Missing>,
        progress: ProgressLayout,
    }
}
