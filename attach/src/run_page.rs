//! A vCPU's run page (`struct kvm_run`), shared by KVM, the VMM and vprof.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{
    KVM_RUN_X86_GUEST_MODE, KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_regs, kvm_run, kvm_sregs,
};

use crate::process::Process;

/// Number of bytes that are mapped: `kvm_run` is the first page of a vCPU's descriptor
/// (Documentation/virt/kvm/api.rst, 5).
const BYTES: usize = 4096;
/// Request to KVM to put general, segment and control registers into the page when KVM_RUN returns.
pub(crate) const REQUESTED: u64 = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) as u64;

/// Bit of RFLAGS that is always set (Intel SDM vol. 1, 3.4.3).
const RFLAGS_FIXED: u64 = 2;

const _: () = assert!(size_of::<kvm_run>() <= BYTES);

/// Mapped run page. The mapping keeps the virtual machine alive, and so must not outlive its VMM for long.
#[derive(Debug)]
pub(crate) struct RunPage(NonNull<kvm_run>);

// SAFETY: the mapping belongs to no thread; all access goes through volatile or atomic operations.
unsafe impl Send for RunPage {}

impl RunPage {
    /// Maps the page of the vCPU with that number, which has the process's descriptor `fd`.
    pub(crate) fn map(process: &Process, number: u32, fd: i32) -> io::Result<Self> {
        Self::map_descriptor(&process.vcpu_descriptor(number, fd)?)
    }

    fn map_descriptor(copy: &OwnedFd) -> io::Result<Self> {
        // SAFETY: makes a new mapping at an address that the kernel chooses; it stays valid when the
        // descriptor is closed.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                copy.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn valid_regs(&self) -> &AtomicU64 {
        // SAFETY: the field is in the mapping, is aligned, and lives as long as `self`. Its other writers are
        // another process or the kernel.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0.as_ptr()).kvm_valid_regs) }
    }

    /// Requests registers from KVM at the next return of KVM_RUN, for as long as the returned guard lives.
    pub(crate) fn request_registers(&self) -> RegisterRequest<'_> {
        self.request(REQUESTED)
    }

    /// Requests parts of the state, by bits of `kvm_valid_regs`.
    pub(crate) fn request(&self, bits: u64) -> RegisterRequest<'_> {
        let before = self.valid_regs().load(Ordering::Relaxed);
        if before & bits != bits {
            self.valid_regs().store(before | bits, Ordering::SeqCst);
        }
        RegisterRequest { page: self, before, bits }
    }

    /// Marks the registers in the page as old, while the vCPU's thread is stopped: a KVM_RUN that returns
    /// before the next request puts none there. Nothing is written if the VMM uses the registers in the page
    /// itself; all its KVM_RUNs return them.
    pub(crate) fn mark_old(&self) {
        // SAFETY: the field is in the mapping and is aligned.
        let dirty = unsafe { (&raw const (*self.0.as_ptr()).kvm_dirty_regs).read_volatile() };
        let used = self.valid_regs().load(Ordering::Relaxed) | dirty;
        if used & u64::from(KVM_SYNC_X86_REGS) == 0 {
            // SAFETY: as above. KVM and the VMM only write these registers, each before its own use.
            unsafe {
                (&raw mut (*self.0.as_ptr()).s.regs.regs.rflags).write_volatile(0);
            }
        }
    }

    /// Returns the reason for the last return of KVM_RUN (`KVM_EXIT_*`).
    pub(crate) fn exit_reason(&self) -> u32 {
        // SAFETY: the field is in the mapping and is aligned.
        unsafe { (&raw const (*self.0.as_ptr()).exit_reason).read_volatile() }
    }

    /// Returns true if the vCPU executed a guest of the guest when KVM_RUN returned: the registers are that
    /// one's then. KVM before Linux 6.11 does not report it.
    pub(crate) fn in_nested_guest(&self) -> bool {
        // SAFETY: the field is in the mapping and is aligned.
        let flags = unsafe { (&raw const (*self.0.as_ptr()).flags).read_volatile() };
        u32::from(flags) & KVM_RUN_X86_GUEST_MODE != 0
    }

    /// Returns the registers that KVM has put into the page; `None` if it has not since [`Self::mark_old`].
    pub(crate) fn registers(&self) -> Option<(kvm_regs, kvm_sregs)> {
        // SAFETY: the fields are in the mapping, are aligned, and are valid for all bit patterns. The vCPU's
        // thread is stopped, so nothing writes them.
        let (regs, sregs) = unsafe {
            let registers = &raw const (*self.0.as_ptr()).s.regs;
            ((&raw const (*registers).regs).read_volatile(), (&raw const (*registers).sregs).read_volatile())
        };
        (regs.rflags & RFLAGS_FIXED != 0).then_some((regs, sregs))
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: `map` has made exactly this mapping, and nothing borrows it any longer.
        unsafe {
            libc::munmap(self.0.as_ptr().cast(), BYTES);
        }
    }
}

/// Request for registers. Dropping it restores the page's field that held the request.
#[derive(Debug)]
pub(crate) struct RegisterRequest<'a> {
    page: &'a RunPage,
    before: u64,
    bits: u64,
}

impl Drop for RegisterRequest<'_> {
    fn drop(&mut self) {
        if self.before & self.bits != self.bits {
            // A VMM that has changed the field meanwhile keeps its own value.
            let _changed = self.page.valid_regs().compare_exchange(
                self.before | self.bits,
                self.before,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::FromRawFd;

    use super::*;

    /// Returns a page of zeroes that belongs to no KVM.
    fn page() -> RunPage {
        // SAFETY: the name ends in NUL; gives a new descriptor, which is owned by nothing else.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(BYTES as u64).unwrap();
        RunPage::map_descriptor(&file.into()).unwrap()
    }

    /// Puts registers into the page, as KVM does.
    fn store(page: &RunPage, rip: u64) {
        let regs = kvm_regs { rip, rflags: 0x202, ..Default::default() };
        // SAFETY: the field is in the mapping and is aligned.
        unsafe { (&raw mut (*page.0.as_ptr()).s.regs.regs).write_volatile(regs) }
    }

    fn rip(page: &RunPage) -> Option<u64> {
        page.registers().map(|(regs, _)| regs.rip)
    }

    #[test]
    fn registers_of_an_earlier_stop_are_not_those_of_this_one() {
        let page = page();
        assert_eq!(rip(&page), None);
        store(&page, 1);
        assert_eq!(rip(&page), Some(1));
        page.mark_old();
        assert_eq!(rip(&page), None, "KVM_RUN has returned before the request");
        store(&page, 2);
        assert_eq!(rip(&page), Some(2));
    }

    #[test]
    fn registers_that_the_vmm_uses_are_left_alone() {
        let page = page();
        store(&page, 1);
        let used_by_vmm = page.request(KVM_SYNC_X86_REGS.into());
        page.mark_old();
        assert_eq!(rip(&page), Some(1));
        drop(used_by_vmm);
        // SAFETY: the field is in the mapping and is aligned.
        unsafe { (&raw mut (*page.0.as_ptr()).kvm_dirty_regs).write_volatile(KVM_SYNC_X86_REGS.into()) }
        page.mark_old();
        assert_eq!(rip(&page), Some(1));
    }

    #[test]
    fn registers_of_a_guest_of_the_guest_are_known_as_such() {
        let page = page();
        let set = |flags| {
            // SAFETY: the field is in the mapping and is aligned.
            unsafe { (&raw mut (*page.0.as_ptr()).flags).write_volatile(flags) }
            page.in_nested_guest()
        };
        // System management mode and a bus lock have the bits below (linux/kvm.h, KVM_RUN_X86_*).
        assert_eq!([0, 1, 2, 3, 4, 7].map(set), [false, false, false, false, true, true]);
    }

    #[test]
    fn a_request_is_undone_and_leaves_what_was_there() {
        let page = page();
        let own = page.request(1 << 5);
        drop(page.request_registers());
        assert_eq!(page.valid_regs().load(Ordering::Relaxed), 1 << 5);
        drop(own);
        assert_eq!(page.valid_regs().load(Ordering::Relaxed), 0);
    }
}
