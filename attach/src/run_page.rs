//! A vCPU's run page (`struct kvm_run`), shared by KVM, the VMM and vprof.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{KVM_SYNC_X86_REGS, KVM_SYNC_X86_SREGS, kvm_regs, kvm_run, kvm_sregs};

use crate::process::Process;

/// Bytes that are mapped: `kvm_run` is the first page of a vCPU's descriptor (Documentation/virt/kvm/api.rst,
/// 5).
const BYTES: usize = 4096;
/// What KVM is asked to put into the page when KVM_RUN ends: general, segment and control registers.
const REQUESTED: u64 = (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS) as u64;

const _: () = assert!(size_of::<kvm_run>() <= BYTES);

/// The mapped page. It keeps the virtual machine alive, and so must not outlive its VMM for long.
#[derive(Debug)]
pub(crate) struct RunPage(NonNull<kvm_run>);

// SAFETY: the mapping belongs to no thread; all access goes through volatile or atomic operations.
unsafe impl Send for RunPage {}

impl RunPage {
    /// Maps the page of the vCPU behind the process' descriptor `fd`.
    pub(crate) fn map(process: &Process, fd: i32) -> io::Result<Self> {
        let copy = process.descriptor(fd)?;
        // SAFETY: a new mapping wherever the kernel likes; it lives on when the descriptor is closed.
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
        // SAFETY: the field lies in the mapping, is aligned, and lives as long as `self`; whoever else writes
        // it is another process or the kernel.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.0.as_ptr()).kvm_valid_regs) }
    }

    /// Asks KVM for the registers at the next return of KVM_RUN, for as long as the value lives.
    pub(crate) fn request_registers(&self) -> RegisterRequest<'_> {
        let before = self.valid_regs().load(Ordering::Relaxed);
        if before & REQUESTED != REQUESTED {
            self.valid_regs().store(before | REQUESTED, Ordering::SeqCst);
        }
        RegisterRequest { page: self, before }
    }

    /// Why KVM_RUN has returned last (`KVM_EXIT_*`).
    pub(crate) fn exit_reason(&self) -> u32 {
        // SAFETY: the field lies in the mapping and is aligned.
        unsafe { (&raw const (*self.0.as_ptr()).exit_reason).read_volatile() }
    }

    /// The registers as KVM has put them here.
    pub(crate) fn registers(&self) -> (kvm_regs, kvm_sregs) {
        // SAFETY: the fields lie in the mapping, are aligned, and are valid for all bit patterns. The vCPU's
        // thread stands still, so that nobody writes them.
        unsafe {
            let registers = &raw const (*self.0.as_ptr()).s.regs;
            ((&raw const (*registers).regs).read_volatile(), (&raw const (*registers).sregs).read_volatile())
        }
    }
}

impl Drop for RunPage {
    fn drop(&mut self) {
        // SAFETY: `map` has made exactly this mapping, and nobody borrows it any more.
        unsafe {
            libc::munmap(self.0.as_ptr().cast(), BYTES);
        }
    }
}

/// Registers are wanted; the page's word for it is what it was again when this is dropped.
#[derive(Debug)]
pub(crate) struct RegisterRequest<'a> {
    page: &'a RunPage,
    before: u64,
}

impl Drop for RegisterRequest<'_> {
    fn drop(&mut self) {
        if self.before & REQUESTED != REQUESTED {
            // A VMM that has changed the word meanwhile has the last one.
            let _changed = self.page.valid_regs().compare_exchange(
                self.before | REQUESTED,
                self.before,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
        }
    }
}
