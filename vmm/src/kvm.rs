//! Opening `/dev/kvm` and asking what it can do.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use kvm_bindings::{
    KVM_API_VERSION, KVM_CAP_PMU_CAPABILITY, KVM_CAP_X86_GUEST_MODE, KVM_PMU_CAP_DISABLE, KVM_SYNC_X86_REGS,
    KVM_SYNC_X86_SREGS, kvm_enable_cap,
};
use kvm_ioctls::{Cap, Kvm, VmFd};

use crate::error::{KvmError, StartError};
use crate::host_kernel;

/// `KVM_CAP_BINARY_STATS_FD` of `linux/kvm.h` (Linux 5.14), which kvm-ioctls does not name.
const KVM_CAP_BINARY_STATS_FD: libc::c_ulong = 203;
/// `KVM_CAP_X86_GUEST_MODE` as kvm-ioctls takes it.
const GUEST_MODE: libc::c_ulong = KVM_CAP_X86_GUEST_MODE as libc::c_ulong;
/// `KVM_CAP_PMU_CAPABILITY` as kvm-ioctls takes it.
const PMU_CAPABILITY: libc::c_ulong = KVM_CAP_PMU_CAPABILITY as libc::c_ulong;

/// Capabilities of this host's KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// `KVM_GET_API_VERSION`; 12 on every Linux since 2.6.22.
    pub api_version: i32,
    /// The fields of `KVM_CAP_SYNC_REGS` as a mask of `KVM_SYNC_X86_*`; 0 without it.
    pub sync_regs: u32,
    /// `KVM_CAP_BINARY_STATS_FD`: statistics through a file descriptor (Linux 5.14).
    pub stats_fd: bool,
    /// The most vCPUs of one machine (`KVM_CAP_MAX_VCPUS`).
    pub max_vcpus: usize,
    /// The number of vCPUs that KVM recommends (`KVM_CAP_NR_VCPUS`), usually the host's CPUs.
    pub recommended_vcpus: usize,
    /// `KVM_CAP_TSC_DEADLINE_TIMER`: the guest's APIC timer needs no calibration.
    pub tsc_deadline: bool,
    /// `KVM_CAP_PMU_CAPABILITY` with `KVM_PMU_CAP_DISABLE`: a VM may be without counters (Linux 5.18).
    pub pmu_can_be_off: bool,
    /// `KVM_CAP_X86_GUEST_MODE`: the run page reports that a vCPU runs a guest of the guest (Linux 6.11).
    pub nested_in_run_page: bool,
    /// `KVM_CAP_NESTED_STATE`: KVM reports on request that a vCPU runs a guest of the guest (Linux 4.20).
    pub nested_state: bool,
}

impl Capabilities {
    /// Returns true if general and control registers come through the shared run page.
    pub fn registers_in_run_page(&self) -> bool {
        let both = KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS;
        self.sync_regs & both == both
    }
}

/// Opens `/dev/kvm`.
pub fn open() -> Result<Kvm, KvmError> {
    let kvm = Kvm::new().map_err(|error| match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => KvmError::Missing,
        libc::EACCES | libc::EPERM => KvmError::Denied,
        other => KvmError::Open(io::Error::from_raw_os_error(other)),
    })?;
    let version = kvm.get_api_version();
    if u32::try_from(version) != Ok(KVM_API_VERSION) {
        return Err(KvmError::Api(version));
    }
    Ok(kvm)
}

/// Opens `/dev/kvm` for another process, which passes the descriptor to a machine.
///
/// # Errors
/// As of [`open`].
pub fn open_descriptor() -> Result<OwnedFd, KvmError> {
    let kvm = open()?;
    // SAFETY: the descriptor is open as long as `kvm`, which outlives the borrow.
    let borrowed = unsafe { BorrowedFd::borrow_raw(kvm.as_raw_fd()) };
    borrowed.try_clone_to_owned().map_err(KvmError::Open)
}

/// Takes a descriptor of [`open_descriptor`] over.
pub(crate) fn from_descriptor(fd: OwnedFd) -> Kvm {
    // SAFETY: the descriptor is that of /dev/kvm, and nobody else's from here on.
    unsafe { Kvm::from_raw_fd(fd.into_raw_fd()) }
}

/// Asks an open KVM what it can do.
pub fn capabilities(kvm: &Kvm) -> Capabilities {
    Capabilities {
        api_version: kvm.get_api_version(),
        sync_regs: u32::try_from(kvm.check_extension_int(Cap::SyncRegs)).unwrap_or(0),
        stats_fd: kvm.check_extension_raw(KVM_CAP_BINARY_STATS_FD) > 0,
        max_vcpus: kvm.get_max_vcpus(),
        recommended_vcpus: kvm.get_nr_vcpus(),
        tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer),
        pmu_can_be_off: u32::try_from(kvm.check_extension_raw(PMU_CAPABILITY))
            .is_ok_and(|flags| flags & KVM_PMU_CAP_DISABLE != 0),
        nested_in_run_page: kvm.check_extension_raw(GUEST_MODE) > 0,
        nested_state: kvm.check_extension(Cap::NestedState),
    }
}

/// Takes the performance counters from a VM that has no vCPUs yet. Without this KVM makes them and saves and
/// restores them at entries, even if CPUID hides them.
pub(crate) fn disable_pmu(vm: &VmFd) -> Result<(), StartError> {
    let mut request = kvm_enable_cap { cap: KVM_CAP_PMU_CAPABILITY, ..Default::default() };
    request.args[0] = u64::from(KVM_PMU_CAP_DISABLE);
    vm.enable_cap(&request).map_err(StartError::kvm("make a VM without performance counters"))
}

/// Returns the error of a capability that is lacking. Linux 4.12 has all that a machine needs.
fn lacking(name: &'static str) -> KvmError {
    KvmError::Capability { name, needed: host_kernel::IMMEDIATE_EXIT }
}

/// Fails with the name of the first capability that a machine cannot do without.
pub(crate) fn require(kvm: &Kvm) -> Result<(), KvmError> {
    const NEEDED: [(Cap, &str); 8] = [
        (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
        (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
        (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
        (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
        (Cap::Irqfd, "KVM_CAP_IRQFD"),
        (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
        (Cap::SignalMsi, "KVM_CAP_SIGNAL_MSI"),
        (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    ];
    match NEEDED.iter().find(|(cap, _)| !kvm.check_extension(*cap)) {
        Some((_, name)) => Err(lacking(name)),
        None => Ok(()),
    }
}
