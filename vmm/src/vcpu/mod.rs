//! vCPUs: [`build`] makes one, [`run`] is its thread, [`kick`] gets it out of KVM_RUN, [`exit`]
//! serves its exits.

mod dump;
mod exit;
pub(crate) mod kick;
pub(crate) mod nested;
pub(crate) mod run;

use kvm_bindings::{CpuId, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, Msrs, kvm_msr_entry};
use kvm_ioctls::{VcpuFd, VmFd};

use crate::boot::EntryState;
use crate::cpuid;
use crate::error::StartError;
use crate::kvm::Capabilities;

/// IA32_MTRR_DEF_TYPE: MTRRs on, memory is write-back unless said otherwise. Without it Linux
/// takes the MTRRs for switched off and does without PAT too.
const MTRR_DEF_TYPE: (u32, u64) = (0x2ff, 1 << 11 | 6);
/// IA32_MISC_ENABLE. Its other bits are KVM's: they report, for example, that branch traces and precise
/// events are unavailable (Intel SDM vol. 4, table 2-2).
const MISC_ENABLE: u32 = 0x1a0;
/// Fast strings. Without it Linux on Intel avoids `rep movsb`.
const FAST_STRINGS: u64 = 1;

/// Makes a vCPU that is ready for its first KVM_RUN. `entry` is for vCPU 0 alone; the others
/// wait for INIT and SIPI.
pub(crate) fn build(
    vm: &VmFd,
    id: u8,
    cpuid: &CpuId,
    entry: Option<&EntryState>,
    capabilities: &Capabilities,
) -> Result<VcpuFd, StartError> {
    let mut fd = vm.create_vcpu(u64::from(id)).map_err(StartError::kvm("make a vCPU"))?;
    fd.set_cpuid2(cpuid).map_err(StartError::kvm("set a vCPU's CPUID"))?;
    set_msr(&fd, MTRR_DEF_TYPE);
    if cpuid::is_intel(cpuid) {
        set_msr_bits(&fd, MISC_ENABLE, FAST_STRINGS);
    }
    enable_extended_state(&fd, cpuid);
    if let Some(entry) = entry {
        let reset = fd.get_sregs().map_err(StartError::kvm("read a vCPU's registers"))?;
        let set = StartError::kvm("set a vCPU's control registers");
        fd.set_sregs(&entry.sregs(&reset)).map_err(set)?;
        fd.set_regs(&entry.regs()).map_err(StartError::kvm("set a vCPU's registers"))?;
    }
    // At all exits, since a tick's exit is not known as one before its registers are stored: KVM stores them
    // before the signal's handler runs. Asking at the tick alone takes a second KVM_RUN. Measured in turns on
    // one machine (kvm_pvm), that made a tick 1.9 times as long, and other exits no shorter (0.95 and 1.01
    // times).
    if capabilities.registers_in_run_page() {
        fd.get_kvm_run().kvm_valid_regs = u64::from(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS);
    }
    Ok(fd)
}

/// Sets a register that makes the guest faster. A KVM that refuses leaves it correct.
fn set_msr(fd: &VcpuFd, (index, data): (u32, u64)) {
    let entry = kvm_msr_entry { index, data, ..Default::default() };
    if let Ok(msrs) = Msrs::from_entries(&[entry]) {
        let _slower = fd.set_msrs(&msrs);
    }
}

/// Sets bits of a register, and keeps all others. A KVM that refuses leaves it as it was.
fn set_msr_bits(fd: &VcpuFd, index: u32, bits: u64) {
    if let Some(data) = msr(fd, index) {
        set_msr(fd, (index, data | bits));
    }
}

/// Returns a register; `None` if KVM does not have it.
fn msr(fd: &VcpuFd, index: u32) -> Option<u64> {
    let mut msrs = Msrs::from_entries(&[kvm_msr_entry { index, ..Default::default() }]).ok()?;
    let read = fd.get_msrs(&mut msrs).ok()?;
    (read == 1).then(|| msrs.as_slice().first().map(|entry| entry.data))?
}

/// Enables every extended state (AVX, ...) that the guest may use in XCR0, as firmware might. Linux does so
/// itself, but a KVM that does not intercept its XSETBV (nested in QEMU 7.2's SVM) keeps XCR0 at its reset
/// value. CPUID would report the size of that, and Linux would not use XSAVE. A KVM that refuses leaves the
/// guest at reset.
fn enable_extended_state(fd: &VcpuFd, cpuid: &CpuId) {
    let xsave = cpuid.as_slice().iter().find(|leaf| (leaf.function, leaf.index) == (0xd, 0));
    let supported = xsave.map_or(0, |leaf| u64::from(leaf.eax) | u64::from(leaf.edx) << 32);
    let Ok(mut registers) = fd.get_xcrs() else { return };
    let count = usize::try_from(registers.nr_xcrs).unwrap_or(0);
    let xcr0 = registers.xcrs.iter_mut().take(count).find(|register| register.xcr == 0);
    if let Some(xcr0) = xcr0
        && supported != 0
    {
        xcr0.value = supported;
        let _at_reset = fd.set_xcrs(&registers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_kvm_has_set_stay() {
        let kvm = match crate::kvm::open() {
            Ok(kvm) => kvm,
            Err(error) => return testkit::missing(&format!("/dev/kvm ({error})")),
        };
        let vm = kvm.create_vm().unwrap();
        let fd = vm.create_vcpu(0).unwrap();
        let before = msr(&fd, MISC_ENABLE).expect("every KVM has IA32_MISC_ENABLE");
        // As KVM does at a vCPU's reset (`kvm_vcpu_reset`, arch/x86/kvm/x86.c, Linux 6.1).
        let unavailable = 1 << 11 | 1 << 12;
        set_msr(&fd, (MISC_ENABLE, before | unavailable));
        let with_kvms = msr(&fd, MISC_ENABLE).unwrap();
        assert_ne!(with_kvms & !FAST_STRINGS, 0, "KVM has kept them");
        set_msr_bits(&fd, MISC_ENABLE, FAST_STRINGS);
        assert_eq!(msr(&fd, MISC_ENABLE), Some(with_kvms | FAST_STRINGS));
    }
}
