//! The guest half of a run: the process that runs and reads the guest, inside a sandbox.
//!
//! ```text
//!  vprof run                                        vprof guest-half
//!  terminal, profile,    <-- frames: FromHost --    KVM, vCPUs, devices, sampler
//!  control socket        --- frames: ToHost  -->    descriptors, and nothing else
//! ```
//!
//! The guest half gets open descriptors: `/dev/kvm`, disks, its card's cable, kernel and initrd. It enters
//! the sandbox (crate `sandbox`) before it reads a byte of a disk or executes an instruction of the guest. A
//! guest that takes it over has its own disks and its profile's rows. The portable host starts the same
//! process from its init, with a virtio-serial port in place of the socket. Without KVM the half starts a
//! QEMU that runs the guest (`tcg.rs`), and is attached to it.

mod child;
mod process;
mod run;

pub use child::main;
pub use process::HalfProcess;
pub use run::{HalfError, Wishes, run};

use std::os::fd::RawFd;

use serde::{Deserialize, Serialize};

use crate::portable::qemu::Qemu;
use crate::spec::RunSpec;

/// Name of the hidden command that starts a guest half. Its argument is the number of a descriptor with a
/// [`HalfJob`].
pub const COMMAND: &str = "guest-half";

/// Job of a guest half, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HalfJob {
    /// The run.
    pub run: RunSpec,
    /// The hypervisor.
    pub hypervisor: Hypervisor,
    /// Its descriptors.
    pub descriptors: Descriptors,
    /// True if all that the guest has written must be on its disks before the outcome is sent.
    pub sync_disks: bool,
}

/// Hypervisor of a guest half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hypervisor {
    /// KVM, by the descriptor of `/dev/kvm`.
    Kvm(RawFd),
    /// QEMU's software emulation.
    Qemu(Qemu),
}

/// Descriptors that a guest half inherits, by number. Its standard input is the connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptors {
    /// The guest's kernel.
    pub kernel: RawFd,
    /// The guest's initrd.
    pub initrd: Option<RawFd>,
    /// The disks of the run, in order.
    pub disks: Vec<RawFd>,
    /// The cable of the guest's card.
    pub cable: Option<CableFd>,
    /// The pipe for the report of a refused system call.
    pub report: RawFd,
}

/// A cable of a network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CableFd {
    /// A tap.
    Tap(RawFd),
    /// A stream socket on which each frame follows its length.
    Stream(RawFd),
    /// A packet socket that is bound to an interface.
    Interface(RawFd),
}

impl HalfJob {
    /// Returns the numbers of all descriptors.
    fn inherited(&self) -> Vec<RawFd> {
        let Descriptors { kernel, initrd, disks, cable, report } = &self.descriptors;
        let cable = cable.map(|cable| match cable {
            CableFd::Tap(fd) | CableFd::Stream(fd) | CableFd::Interface(fd) => fd,
        });
        let kvm = match self.hypervisor {
            Hypervisor::Kvm(kvm) => Some(kvm),
            Hypervisor::Qemu(_) => None,
        };
        let optional = [kvm, *initrd, cable].into_iter().flatten();
        [*kernel, *report].into_iter().chain(optional).chain(disks.iter().copied()).collect()
    }
}
