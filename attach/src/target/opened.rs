//! A process whose vCPUs are to be found.

use crate::error::AttachError;
use crate::lock::ProcessLock;
use crate::process::{Process, step_error};

/// A process with vCPUs, reserved for this vprof.
pub(super) struct OpenedProcess {
    pub(super) process: Process,
    /// KVM's numbers of the vCPUs of all machines, and the VMM's descriptors.
    pub(super) descriptors: Vec<(u32, i32)>,
    /// Two descriptors have the same number and not the same vCPU.
    pub(super) several: bool,
    pub(super) lock: ProcessLock,
}

impl OpenedProcess {
    /// Opens the process. If it `takes_over`, the lock may be another vprof's still.
    pub(super) fn open(pid: i32, takes_over: bool) -> Result<Self, AttachError> {
        let process = Process::open(pid)?;
        let name = || process.name().to_owned();
        let descriptors = process.all_vcpus().map_err(|e| step_error(pid, "list its descriptors", e))?;
        if descriptors.is_empty() {
            let name = name();
            return Err(if process.is_qemu() {
                AttachError::NoKvm { pid, name }
            } else {
                AttachError::NoVm { pid, name }
            });
        }
        if process.is_stopped() {
            return Err(AttachError::Stopped { pid, name: name() });
        }
        let several = process.has_several_vms(&descriptors);
        let take = if takes_over { ProcessLock::try_take } else { ProcessLock::take };
        let lock = take(&process)?;
        Ok(Self { process, descriptors, several, lock })
    }
}
