//! A vCPU's run page (`struct kvm_run`), shared by KVM, the VMM and vprof.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_regs, kvm_run, kvm_sregs};

use crate::process::Process;

/// Number of bytes that are mapped: `kvm_run` is the first page of a vCPU's descriptor
/// (Documentation/virt/kvm/api.rst, 5).
const BYTES: usize = 4096;
/// Request to KVM to put general, segment and control registers into the page when KVM_RUN returns.
const REQUESTED: u64 = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) as u64;

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
        let before = self.valid_regs().load(Ordering::Relaxed);
        if before & REQUESTED != REQUESTED {
            self.valid_regs().store(before | REQUESTED, Ordering::SeqCst);
        }
        RegisterRequest { page: self, before }
    }

    /// Returns the reason for the last return of KVM_RUN (`KVM_EXIT_*`).
    pub(crate) fn exit_reason(&self) -> u32 {
        // SAFETY: the field is in the mapping and is aligned.
        unsafe { (&raw const (*self.0.as_ptr()).exit_reason).read_volatile() }
    }

    /// Returns the registers that KVM has put into the page.
    pub(crate) fn registers(&self) -> (kvm_regs, kvm_sregs) {
        // SAFETY: the fields are in the mapping, are aligned, and are valid for all bit patterns. The vCPU's
        // thread is stopped, so nothing writes them.
        unsafe {
            let registers = &raw const (*self.0.as_ptr()).s.regs;
            ((&raw const (*registers).regs).read_volatile(), (&raw const (*registers).sregs).read_volatile())
        }
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
}

impl Drop for RegisterRequest<'_> {
    fn drop(&mut self) {
        if self.before & REQUESTED != REQUESTED {
            // A VMM that has changed the field meanwhile keeps its own value.
            let _changed = self.page.valid_regs().compare_exchange(
                self.before | REQUESTED,
                self.before,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
        }
    }
}
