//! The machine of a process in the data of the host's kernel.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use vmm::ThreadId;

use super::by_stops::GuardedStops;
use super::opened::OpenedProcess;
use super::{EngineReason, PAUSE, Target, TargetVcpu, new_heartbeat, stop_in_run};
use crate::bpf::{BpfRefusal, FoundVm, KernelThread, KernelVcpu, SampledVm};
use crate::error::AttachError;
use crate::guard::StopSlot;
use crate::host_names::HostNames;
use crate::memory::ForeignMemory;
use crate::process::step_error;
use crate::thread::{ThreadActivity, ThreadFiles};

/// Number of stops at which the registers in the kernel have to be those that KVM reports.
const COMPARISONS: usize = 3;
/// Time limit of these comparisons.
const COMPARE_LIMIT: Duration = Duration::from_secs(1);

/// Reason why the host's kernel does not sample a machine.
pub(super) enum RefusedVm {
    /// No other means would do.
    Error(AttachError),
    /// Other means may do.
    Engine(BpfRefusal),
}

impl OpenedProcess {
    /// Returns the error that a refusal is for every means.
    pub(super) fn fatal(&self, refusal: BpfRefusal, most: usize) -> RefusedVm {
        let (pid, name) = (self.process.pid(), self.process.name().to_owned());
        RefusedVm::Error(match refusal {
            BpfRefusal::Protected(found) => AttachError::Confidential { pid, name, found: found.to_owned() },
            BpfRefusal::TooMany(vcpus) => AttachError::TooMany { pid, vcpus, most },
            BpfRefusal::SeveralVms(machines) => AttachError::SeveralVms { pid, name, machines },
            BpfRefusal::NoSuchVm(number, machines) => AttachError::NoSuchVm { pid, name, number, machines },
            other => return RefusedVm::Engine(other),
        })
    }

    /// Opens the vCPUs of a machine that was found in the kernel's data.
    pub(super) fn vcpus(&self, found: &FoundVm) -> Result<Vec<TargetVcpu>, AttachError> {
        let pid = self.process.pid();
        let open = |(vcpu, thread): &(KernelVcpu, KernelThread)| {
            let id = ThreadId { process: pid, thread: i32::try_from(thread.tid).unwrap_or(-1) };
            let files =
                ThreadFiles::open(id).map_err(|e| step_error(pid, "read the state of a thread", e))?;
            TargetVcpu::new(&self.process, (vcpu.number, vcpu.fd), id, files)
        };
        found.vcpus.iter().map(open).collect()
    }

    /// Makes the target of a machine that was found in the kernel's data.
    pub(super) fn in_kernel(
        self,
        found: FoundVm,
        vcpus: Vec<TargetVcpu>,
        reason: EngineReason,
        (host_names, stops): (Option<HostNames>, Option<GuardedStops>),
    ) -> Result<Target, AttachError> {
        let Self { process, descriptors, several, lock } = self;
        let pid = process.pid();
        let FoundVm { vm, layout, known, .. } = found;
        let unseen = known.len().saturating_sub(vcpus.len());
        let mut known: Vec<_> = descriptors.iter().map(|(number, _)| *number).collect();
        known.dedup();
        let (heartbeat, guard) = match stops {
            Some(stops) if vm.is_partial() => stops.into_parts(),
            stops => {
                stops.into_iter().for_each(GuardedStops::end);
                (new_heartbeat()?, None)
            }
        };
        Ok(Target {
            process,
            vcpus,
            known,
            lock,
            memory: ForeignMemory::with_layout(pid, layout),
            heartbeat,
            guard,
            sampled: Some(Arc::new(vm)),
            host_names,
            reason,
            unseen,
            others: several,
            uncounted: None,
        })
    }
}

/// Samples in the guest that have to show whether KVM reads the instruction pointer at each exit, and the
/// time limit for them.
const PLACED_SAMPLES: u32 = 200;
const PLACED_LIMIT: Duration = Duration::from_secs(3);
/// Part of them that may be without one.
const UNPLACED_PART: u32 = 100;

/// Checks that KVM reads the instruction pointer at each exit from the guest, by samples of vCPUs that run.
pub(super) fn check_placed(vm: &SampledVm, vcpus: usize) -> Result<(), BpfRefusal> {
    let (begin, mut samples, mut placed) = (Instant::now(), 0, 0);
    for index in (0..vcpus).cycle() {
        if samples >= PLACED_SAMPLES || begin.elapsed() >= PLACED_LIMIT {
            break;
        }
        if let Some(has_rip) = vm.sample(index).and_then(|sample| sample.has_rip()) {
            samples += 1;
            placed += u32::from(has_rip);
        }
        sleep(PAUSE);
    }
    match samples {
        0 => Err(BpfRefusal::NotCompared),
        _ if (samples - placed) * UNPLACED_PART > samples => Err(BpfRefusal::NotPlaced { placed, samples }),
        _ => Ok(()),
    }
}

/// Compares the registers in the kernel with those that KVM reports, while threads are stopped. Returns the
/// number of stops. KVM does not refuse the registers of these machines: the kernel's own flag has shown that
/// they are not protected.
pub(super) fn compare(vm: &SampledVm, vcpus: &[TargetVcpu], slot: &StopSlot) -> Result<usize, BpfRefusal> {
    let (begin, mut equal) = (Instant::now(), 0);
    for (index, vcpu) in vcpus.iter().enumerate().cycle() {
        if equal >= COMPARISONS || begin.elapsed() >= COMPARE_LIMIT {
            break;
        }
        let may_stop = match vcpu.files.activity() {
            Ok(ThreadActivity::Running) => true,
            Ok(ThreadActivity::BlockedInRun(fd)) => fd == vcpu.fd,
            _ => false,
        };
        if may_stop && let Some((_stop, Some(registers))) = stop_in_run(vcpu, slot) {
            if let Some(difference) = vm.compare(index, &registers)? {
                return Err(BpfRefusal::Differs(difference));
            }
            equal += 1;
        }
        sleep(PAUSE);
    }
    if equal == 0 { Err(BpfRefusal::NotCompared) } else { Ok(equal) }
}
