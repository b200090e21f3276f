//! Search for a machine in the kernel's data.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{OnceLock, PoisonError};

use super::{KernelRegisters, SampledVcpu, SampledVm};
use crate::bpf::finder::{KernelReader, KernelThread, KernelVcpu};
use crate::bpf::host_kernel::HostKernel;
use crate::bpf::offsets::{self, HostOffsets, Vendor};
use crate::bpf::program::KernelPrograms;
use crate::bpf::refusal::{BpfRefusal, host_refusal};
use crate::bpf::shared::RawTarget;
use crate::bpf::target::set_slots;
use crate::memory::MemoryLayout;
use crate::target::{ExitDetail, VcpuRoom};

/// Link of the initial namespace of processes (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const HOST_NAMESPACE: &str = "pid:[4026531836]";
/// Machine that was found in the kernel's data.
#[derive(Debug)]
pub(crate) struct FoundVm {
    pub vm: SampledVm,
    pub layout: MemoryLayout,
    /// vCPUs that have a thread, in the order of their indices in the machine.
    pub vcpus: Vec<(KernelVcpu, KernelThread)>,
    /// KVM's numbers of all vCPUs.
    pub known: Vec<u32>,
}

/// Machine to search for among those of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VmSearch<'a> {
    pub pid: i32,
    /// KVM's numbers of all vCPUs of the process, and the VMM's descriptors.
    pub descriptors: &'a [(u32, i32)],
    /// Number of the machine, from 1 on; `None` for the only one.
    pub number: Option<usize>,
    /// Maximum number of its vCPUs.
    pub most: usize,
    /// Room for later vCPUs.
    pub room: VcpuRoom,
    /// Copy the stacks of vCPUs' threads.
    pub host_stacks: bool,
    /// Detail in which exits are counted.
    pub exits: ExitDetail,
    /// Registers that the programs are to use.
    pub registers: KernelRegisters,
}

impl SampledVm {
    /// Finds the machine in the kernel's data, for each vendor's module that the host has.
    ///
    /// # Errors
    /// The reason of the last vendor.
    pub(crate) fn find(search: VmSearch<'_>) -> Result<FoundVm, BpfRefusal> {
        let namespace = fs::read_link("/proc/self/ns/pid").map_err(host_refusal("read this namespace"))?;
        if namespace.as_os_str() != HOST_NAMESPACE {
            return Err(BpfRefusal::Namespace);
        }
        let kernel = HostKernel::known()?;
        let mut refusal = BpfRefusal::NoThreads;
        for vendor in offsets::vendors()? {
            let offsets = kernel.offsets(vendor).and_then(|mut offsets| {
                offsets.set_process(search.pid);
                offsets.options.host_stacks = search.host_stacks.into();
                offsets.options.exits = (search.exits == ExitDetail::Reasons).into();
                if search.registers != KernelRegisters::Available {
                    offsets.make_partial()?;
                }
                if search.registers == KernelRegisters::NoRip {
                    offsets.options.rip_available = 0;
                }
                if search.host_stacks && offsets.options.partial != 0 {
                    return Err(BpfRefusal::Partial);
                }
                Ok(offsets)
            });
            match offsets.and_then(|offsets| Self::find_with(offsets, vendor, &kernel, search)) {
                Ok(found) => return Ok(found),
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }

    fn find_with(
        offsets: HostOffsets,
        vendor: Vendor,
        kernel: &HostKernel,
        search: VmSearch<'_>,
    ) -> Result<FoundVm, BpfRefusal> {
        let VmSearch { descriptors, number, most, .. } = search;
        let room = match search.room {
            VcpuRoom::Most => most,
            // A process with several machines has the vCPUs of all of them.
            VcpuRoom::Present => descriptors.len().clamp(1, most),
        };
        let mut programs = KernelPrograms::load(&offsets.options, room)?;
        if offsets.options.partial != 0 {
            programs.cache_rip()?;
        }
        let files = programs.files(kernel.files()?)?;
        let reader = KernelReader { memory: &programs, offsets: &offsets };
        let machine = reader.choose(reader.machines(&files, descriptors)?, number)?;
        if machine.vcpus.len() > room {
            return Err(BpfRefusal::TooMany(machine.vcpus.len()));
        }
        let changes = BpfRefusal::Unknown(0, "its memory changes");
        let slots = reader.slots(machine.kvm).ok_or(changes)?;
        let layout = slots.layout.ok_or(BpfRefusal::NoThreads)?;
        let known = machine.vcpus.iter().map(|vcpu| vcpu.number).collect();
        let seen = machine.vcpus.into_iter().filter_map(|vcpu| Some((vcpu, vcpu.thread?)));
        let vcpus: Vec<_> = seen.collect();
        if vcpus.is_empty() {
            return Err(BpfRefusal::NoThreads);
        }
        let sampled: Box<[_]> = (0..room).map(|_| OnceLock::new()).collect();
        for (place, (vcpu, thread)) in sampled.iter().zip(&vcpus) {
            let target = RawTarget { vcpu: vcpu.vcpu, ..RawTarget::default() };
            let mut vcpu = SampledVcpu::new(vcpu.number, *thread, target, false);
            set_slots(vcpu.target.get_mut().unwrap_or_else(PoisonError::into_inner), &layout);
            place.set(vcpu).map_err(|_| BpfRefusal::NoThreads)?;
        }
        let vm = Self {
            programs,
            offsets,
            vcpus: sampled,
            kvm: machine.kvm,
            generation: AtomicU64::new(slots.generation),
            planned: AtomicBool::new(false),
            counters: kernel.counters().to_vec(),
            vendor,
            follows: false,
            counts: false,
            registers: search.registers,
            room: search.room,
        };
        // Here, so that a kernel that is too old is known before the first tick.
        let state = vm.programs.sample(0, None).map_err(host_refusal("run a program in the kernel"))?;
        state.ok_or(BpfRefusal::Unknown(0, "it cannot be sampled"))?;
        Ok(FoundVm { vm, layout, vcpus, known })
    }
}
