//! Offsets in the structures of the host's kernel.

use std::fs;
use std::path::Path;

use guest_linux::HostLayouts;

use super::refusal::BpfRefusal;
use super::shared::{ABSENT, RawOptions, VENDOR_PVM, VENDOR_SVM, VENDOR_VMX};

/// Module of KVM that runs the vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    Svm,
    Pvm,
    Vmx,
}

impl Vendor {
    /// Returns true if entries and exits are counted by its trace points.
    pub(crate) fn shows_exits(self) -> bool {
        self == Self::Svm
    }

    /// Returns the reason why exits that KVM serves itself are not counted.
    pub(crate) fn uncounted(self) -> &'static str {
        match self {
            Self::Svm => "",
            Self::Pvm => "exits that KVM serves itself (kvm_pvm has no trace points for them), ",
            Self::Vmx => {
                "exits that KVM serves itself, and the guest's code at exits (not available with kvm_intel), "
            }
        }
    }
}

/// Offsets that only this process uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinderOffsets {
    pub file_private: u32,
    pub file_dentry: u32,
    pub dentry_name: u32,
    pub vcpu_kvm: u32,
    pub vcpu_number: u32,
    pub vcpu_pid: u32,
    pub vcpu_protected: Option<u32>,
    /// Of AMD's machines: their memory is encrypted.
    pub kvm_encrypted: Option<u32>,
    pub pid_tasks: u32,
    pub task_pid_links: u32,
    pub kvm_slots: u32,
    pub slots: SlotOffsets,
    pub slot_gfn: u32,
    pub slot_pages: u32,
    pub slot_host: u32,
    /// List of a machine's vCPUs; `None` if this kernel has another one.
    pub vcpu_list: Option<VcpuListOffsets>,
    /// Time that a task has run, ns.
    pub task_ran: u32,
}

/// Layout of the list of a machine's vCPUs, in the order in which they were made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VcpuListOffsets {
    /// A tree (`struct xarray`, since 5.17): its head; shift and slots of a node, and their number.
    Tree { head: u32, shift: u32, slots: u32, count: u32 },
    /// An array, and the number of its elements.
    Array { vcpus: u32, count: u32 },
}

/// Layout of the list of memory slots.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SlotOffsets {
    /// A hash table by id (since 5.17): generation, table, number of its heads, index of the active nodes;
    /// offset of the nodes in a slot.
    Hashed { generation: u32, table: u32, heads: u32, active: u32, nodes: u32 },
    /// An array: generation, number of slots, the slots, size of one.
    Listed { generation: u32, used: u32, slots: u32, bytes: u32 },
}

/// Offsets in the host's kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostOffsets {
    pub options: RawOptions,
    pub finder: FinderOffsets,
    pub(super) partial: Result<PartialOffsets, MissingMember>,
}

/// Offsets at which the kernel shows which registers it has in its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialOffsets {
    /// Offset of the bits in a vCPU, and the bit of the instruction pointer.
    available: u32,
    rip_available: u32,
}

/// Member of a structure that the host's kernel lacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MissingMember(pub(super) &'static str);

impl From<MissingMember> for BpfRefusal {
    fn from(missing: MissingMember) -> Self {
        Self::NoMember(missing.0)
    }
}

/// Returns the vendors' modules that the host has, the ones that are more probable first.
///
/// # Errors
/// It has another one only.
pub(crate) fn vendors() -> Result<Vec<Vendor>, BpfRefusal> {
    let has = |module: &str| Path::new("/sys/module").join(module).exists();
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has_flag = |name: &str| flags.split_ascii_whitespace().any(|flag| flag == name);
    let mut vendors = Vec::new();
    if has("kvm_amd") && has_flag("svm") {
        vendors.push(Vendor::Svm);
    }
    if has("kvm_intel") && has_flag("vmx") {
        vendors.push(Vendor::Vmx);
    }
    if has("kvm_pvm") {
        vendors.push(Vendor::Pvm);
    }
    if vendors.is_empty() { Err(BpfRefusal::Vendor) } else { Ok(vendors) }
}

/// Lookups that report the first name of a member that is missing.
struct Lookup<'a>(&'a HostLayouts<'a>);

impl Lookup<'_> {
    fn get(&self, path: &'static str) -> Result<u32, MissingMember> {
        self.0.offset(path).ok_or(MissingMember(path))
    }

    fn either(&self, path: &'static str, other: &str) -> Result<u32, MissingMember> {
        self.0.offset(path).or_else(|| self.0.offset(other)).ok_or(MissingMember(path))
    }
}

impl HostOffsets {
    /// Looks up all offsets.
    ///
    /// # Errors
    /// A member is missing.
    pub(crate) fn new(layouts: &HostLayouts<'_>, vendor: Vendor) -> Result<Self, MissingMember> {
        let of = Lookup(layouts);
        let slots = match layouts.offset("kvm_memslots.id_hash") {
            Some(table) => SlotOffsets::Hashed {
                generation: of.get("kvm_memslots.generation")?,
                table,
                heads: layouts.elements("kvm_memslots.id_hash").unwrap_or(0).min(4096),
                active: of.get("kvm_memslots.node_idx")?,
                nodes: of.get("kvm_memory_slot.id_node")?,
            },
            None => SlotOffsets::Listed {
                generation: of.get("kvm_memslots.generation")?,
                used: of.get("kvm_memslots.used_slots")?,
                slots: of.get("kvm_memslots.memslots")?,
                bytes: layouts.size_of("kvm_memory_slot").ok_or(MissingMember("kvm_memory_slot"))?,
            },
        };
        let finder = FinderOffsets {
            file_private: of.get("file.private_data")?,
            file_dentry: of.get("file.f_path.dentry")?,
            dentry_name: of.either("dentry.d_name.name", "dentry.__d_name.name")?,
            vcpu_kvm: of.get("kvm_vcpu.kvm")?,
            vcpu_number: of.get("kvm_vcpu.vcpu_id")?,
            vcpu_pid: of.get("kvm_vcpu.pid")?,
            vcpu_protected: layouts.offset("kvm_vcpu.arch.guest_state_protected"),
            kvm_encrypted: match vendor {
                // Its first member is the kvm.
                Vendor::Svm => layouts.offset("kvm_svm.sev_info.active"),
                Vendor::Pvm | Vendor::Vmx => None,
            },
            pid_tasks: of.get("pid.tasks")?,
            task_pid_links: of.get("task_struct.pid_links")?,
            kvm_slots: of.get("kvm.memslots")?,
            slots,
            slot_gfn: of.get("kvm_memory_slot.base_gfn")?,
            slot_pages: of.get("kvm_memory_slot.npages")?,
            slot_host: of.get("kvm_memory_slot.userspace_addr")?,
            vcpu_list: vcpu_list(layouts),
            task_ran: of.get("task_struct.se.sum_exec_runtime")?,
        };
        let mut offsets = Self { options: options(&of, vendor)?, finder, partial: partial(&of) };
        if vendor == Vendor::Vmx {
            offsets.make_partial()?;
        }
        Ok(offsets)
    }

    /// Lets the program, which this process uses, sample the machine of another process.
    pub(crate) fn set_process(&mut self, process: i32) {
        self.options.process = process.cast_unsigned();
        self.options.asker = std::process::id();
    }

    /// Lets the program use only the registers that KVM has in its memory also on Intel's processors: the
    /// others are in the VMCS, which a program cannot read.
    ///
    /// # Errors
    /// The kernel does not show which of them are valid.
    pub(crate) fn make_partial(&mut self) -> Result<(), MissingMember> {
        let PartialOffsets { available, rip_available } = self.partial?;
        self.options.partial = 1;
        (self.options.vcpu_available, self.options.rip_available) = (available, rip_available);
        Ok(())
    }
}

fn vcpu_list(layouts: &HostLayouts<'_>) -> Option<VcpuListOffsets> {
    if let Some(head) = layouts.offset("kvm.vcpu_array.xa_head") {
        let (shift, slots) = (layouts.offset("xa_node.shift")?, layouts.offset("xa_node.slots")?);
        return Some(VcpuListOffsets::Tree { head, shift, slots, count: layouts.elements("xa_node.slots")? });
    }
    let vcpus = layouts.offset("kvm.vcpus")?;
    Some(VcpuListOffsets::Array { vcpus, count: layouts.elements("kvm.vcpus")? })
}

fn options(of: &Lookup<'_>, vendor: Vendor) -> Result<RawOptions, MissingMember> {
    let regs = of.get("kvm_vcpu.arch.regs")?;
    let mut options = RawOptions {
        vcpu_notifier: of.get("kvm_vcpu.preempt_notifier.link")?,
        vcpu_regs: regs,
        // The 17th register, in kernels that have it there (VCPU_REGS_RIP, arch/x86/include/asm/kvm_host.h).
        vcpu_rip: of.0.offset("kvm_vcpu.arch.rip").unwrap_or(regs + 16 * 8),
        vcpu_cr0: of.get("kvm_vcpu.arch.cr0")?,
        vcpu_cr2: of.get("kvm_vcpu.arch.cr2")?,
        vcpu_cr3: of.get("kvm_vcpu.arch.cr3")?,
        vcpu_cr4: of.get("kvm_vcpu.arch.cr4")?,
        vcpu_efer: of.get("kvm_vcpu.arch.efer")?,
        vcpu_mp_state: of.get("kvm_vcpu.arch.mp_state")?,
        vcpu_nested: of.0.offset("kvm_vcpu.stat.guest_mode").unwrap_or(ABSENT),
        task_flags: of.get("task_struct.flags")?,
        task_state: of.either("task_struct.__state", "task_struct.state")?,
        task_on_cpu: of.get("task_struct.on_cpu")?,
        task_cpu: of.either("task_struct.thread_info.cpu", "task_struct.cpu")?,
        task_pid: of.get("task_struct.pid")?,
        task_tgid: of.get("task_struct.tgid")?,
        task_start: of.either("task_struct.start_boottime", "task_struct.start_time")?,
        task_exit: of.get("task_struct.exit_state")?,
        task_notifiers: of.get("task_struct.preempt_notifiers")?,
        task_queued: of.get("task_struct.sched_info.last_queued")?,
        task_arrived: of.get("task_struct.sched_info.last_arrival")?,
        task_delay: of.get("task_struct.sched_info.run_delay")?,
        task_comm: of.get("task_struct.comm")?,
        vcpu_run: of.get("kvm_vcpu.run")?,
        ..RawOptions::default()
    };
    match vendor {
        Vendor::Svm => {
            let (control, save) = (of.get("vmcb.control")?, of.get("vmcb.save")?);
            options.vendor = VENDOR_SVM;
            options.svm_vmcb = of.get("vcpu_svm.vmcb")?;
            let nested = of.either("vmcb_control_area.nested_ctl", "vmcb_control_area.misc_ctl")?;
            options.vmcb_nested_paging = control + nested;
            options.vmcb_cs = save + of.get("vmcb_save_area.cs")?;
            options.vmcb_cpl = save + of.get("vmcb_save_area.cpl")?;
            options.vmcb_cr0 = save + of.get("vmcb_save_area.cr0")?;
            options.vmcb_cr3 = save + of.get("vmcb_save_area.cr3")?;
            options.vmcb_intercepts = control + of.get("vmcb_control_area.intercepts")?;
            options.vmcb_exit_code = control + of.get("vmcb_control_area.exit_code")?;
            options.vmcb_fs_base = save + of.get("vmcb_save_area.fs.base")?;
            options.vmcb_rflags = save + of.get("vmcb_save_area.rflags")?;
        }
        Vendor::Pvm => {
            options.vendor = VENDOR_PVM;
            options.pvm_segments = of.either("vcpu_pvm.seg", "vcpu_pvm.segments")?;
            options.pvm_cpl = of.get("vcpu_pvm.cpl")?;
            options.pvm_rflags = of.get("vcpu_pvm.rflags")?;
        }
        Vendor::Vmx => {
            options.vendor = VENDOR_VMX;
            // Nothing else shows that the registers are those of a guest of the guest.
            options.vcpu_nested = of.get("kvm_vcpu.stat.guest_mode")?;
        }
    }
    Ok(options)
}

/// Looks up where the kernel shows which registers it has in its memory.
fn partial(of: &Lookup<'_>) -> Result<PartialOffsets, MissingMember> {
    let missing = MissingMember("kvm_reg.VCPU_REGS_RIP");
    let bit = of.0.enumerator("kvm_reg", "VCPU_REGS_RIP").filter(|bit| *bit < u32::BITS).ok_or(missing)?;
    Ok(PartialOffsets { available: of.get("kvm_vcpu.arch.regs_avail")?, rip_available: 1 << bit })
}
