//! Tests of samples without stacks that the host's kernel takes, as on Intel's processors, mixed with stops.

mod roles;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use attach::{
    AttachError, Attachment, AttachmentEnd, BpfRefusal, EngineChoice, KernelRegisters, StopMemory, Target,
    TargetChoice,
};
use roles::{Found, MOST, Progress, Role, kvm, play, traced};
use vmm::config::FLAT_ENTRY;
use vmm::{Activity, KnownRegisters, MissReason, Observer, Tick};

/// Mean interval of the ticks.
const INTERVAL: Duration = Duration::from_millis(1);
/// Samples of a vCPU, and those with stacks per second (`STACKS_HZ`, attach/src/bpf/mixed.rs).
const SAMPLES: u32 = 3_000;
const STACKS_HZ: f64 = 50.0;

/// Finds the machine of a process. On a busy host the vCPU may have no CPU for as long as its registers are
/// compared: then this is repeated.
fn find(engine: EngineChoice, registers: KernelRegisters, pid: i32) -> Result<Target, AttachError> {
    let choice = TargetChoice { registers, ..engine.into() };
    for _ in 0..20 {
        match Target::find_by(choice, pid, MOST, None) {
            Err(AttachError::Bpf { refusal: BpfRefusal::NotCompared, .. }) => {}
            Ok(target) if target.engine_sentence().contains("could not be compared") => {}
            found => return found,
        }
    }
    panic!("the vCPU never has a CPU")
}

/// Mounts the kernel's trace points, which some hosts have not, for this thread and those that it starts.
fn mount_tracefs() {
    if std::path::Path::new("/sys/kernel/tracing/events").exists() {
        return;
    }
    let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    let (directory, kind) = (c"/sys/kernel/tracing".as_ptr(), c"tracefs".as_ptr());
    // SAFETY: all strings end in NUL; the namespace is this thread's own.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
        assert_eq!(libc::mount(none, c"/".as_ptr(), none, private, none.cast()), 0);
        assert_eq!(libc::mount(c"none".as_ptr(), directory, kind, 0, none.cast()), 0);
    }
}

/// Observer that separates the samples of both means.
#[derive(Debug, Default)]
struct MixedRecorder {
    progress: Arc<Progress>,
    /// Samples by instruction pointer: those with all registers, and the others.
    whole: HashMap<u64, u32>,
    flat: HashMap<u64, u32>,
    /// Stack pointer, page tables and privilege level of flat samples that should have none of the first two.
    wrong: Vec<(u64, u64, u8)>,
    /// Activity, instruction pointer, and whether the thread was blocked, of samples outside of code.
    halted: Vec<(Activity, u64, bool)>,
    suspended: u32,
    missed: u32,
}

impl Observer<StopMemory> for MixedRecorder {
    fn started(&mut self) -> Option<Duration> {
        Some(INTERVAL)
    }

    fn rate_hz(&self) -> Option<f64> {
        Some(1.0 / INTERVAL.as_secs_f64())
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        if let Some(activity @ (Activity::Halted | Activity::NotStarted)) = tick.activity() {
            self.halted.push((activity, tick.regs.rip, tick.blocked));
            self.progress.add(Found::Halt);
            return Some(INTERVAL);
        }
        self.progress.add(Found::Code);
        let counts = match tick.known_registers() {
            KnownRegisters::All => &mut self.whole,
            KnownRegisters::Code | KnownRegisters::Task => {
                // This guest has no kernel that would show page tables.
                if (tick.regs.rsp, tick.sregs.cr3, tick.cpl()) != (0, 0, 3) {
                    self.wrong.push((tick.regs.rsp, tick.sregs.cr3, tick.cpl()));
                }
                &mut self.flat
            }
        };
        *counts.entry(tick.regs.rip).or_default() += 1;
        Some(INTERVAL)
    }

    fn missed(&mut self, _: MissReason, _: u64, _: u64) -> Option<Duration> {
        self.missed += 1;
        Some(INTERVAL)
    }

    fn suspended(&mut self, _: u64, _: u64) {
        self.suspended += 1;
    }
}

/// Returns the number of samples, and the part of them in the second of the two loops of the guest.
fn second_loop(rips: &HashMap<u64, u32>) -> (f64, f64) {
    let all: u32 = rips.values().sum();
    let within = rips.iter().filter(|(rip, _)| (9..18).contains(&(**rip - FLAT_ENTRY)));
    let within: u32 = within.map(|(_, count)| count).sum();
    (all.into(), f64::from(within) / f64::from(all))
}

#[test]
fn both_kinds_of_samples_find_the_guest_where_it_is() {
    play();
    let Some(_one) = kvm() else { return };
    mount_tracefs();
    let vm = Role::start("both_kinds_of_samples_find_the_guest_where_it_is", "vmm loops");
    let target = find(EngineChoice::Bpf, KernelRegisters::Partial, vm.pid()).unwrap();
    assert!(target.is_sampled() && target.has_mixed_stacks(), "{}", target.engine_sentence());
    assert!(target.engine_sentence().contains("50 times a second"), "{}", target.engine_sentence());
    assert!(matches!(target.reach(), sandbox::Reach::Kernel { threads, .. } if threads.len() == 2));
    let progress: Arc<Progress> = Arc::default();
    let recorder = |_| MixedRecorder { progress: Arc::clone(&progress), ..MixedRecorder::default() };
    let attached = Attachment::start(target, recorder).unwrap();
    progress.wait_for(Found::Code, SAMPLES);
    progress.wait_for(Found::Halt, 200);
    let ended = attached.wait().unwrap();
    assert_eq!(ended.end, AttachmentEnd::Detached);
    assert!(!traced(vm.pid()));
    let [first, second] = <[MixedRecorder; 2]>::try_from(ended.observers).unwrap();
    // The second vCPU waits for an INIT that nobody sends.
    assert!(second.flat.is_empty() && second.whole.is_empty(), "{second:?}");
    assert!(first.wrong.is_empty() && first.halted.is_empty(), "{first:x?}");
    let inside = |rips: &HashMap<u64, u32>| rips.keys().all(|rip| (0..20).contains(&(rip - FLAT_ENTRY)));
    assert!(inside(&first.flat) && inside(&first.whole), "{first:x?}");
    let [flat, whole] = [second_loop(&first.flat), second_loop(&first.whole)];
    // As many as drawn: 50 Hz of the ticks, within five standard deviations.
    let expected = STACKS_HZ * INTERVAL.as_secs_f64() * (flat.0 + whole.0);
    assert!((whole.0 - expected).abs() < 5.0 * expected.sqrt(), "{whole:?} of {flat:?}");
    assert!(first.suspended >= first.whole.values().sum(), "{first:?}");
    for (samples, share) in [flat, whole] {
        let error = (0.75 * 0.25 / samples).sqrt();
        assert!((share - 0.75).abs() < 4.5 * error + 0.005, "{share} of {samples}");
    }
}

#[test]
fn a_kernel_that_shows_no_instruction_pointer_takes_no_samples() {
    play();
    let Some(_one) = kvm() else { return };
    mount_tracefs();
    let vm = Role::start("a_kernel_that_shows_no_instruction_pointer_takes_no_samples", "vmm loops");
    let refused = find(EngineChoice::Bpf, KernelRegisters::NoRip, vm.pid());
    let AttachError::Bpf { refusal: BpfRefusal::NotPlaced { placed: 0, samples }, .. } = refused.unwrap_err()
    else {
        panic!("another refusal");
    };
    assert!(samples > 0, "{samples}");
    let target = find(EngineChoice::Auto, KernelRegisters::NoRip, vm.pid()).unwrap();
    assert!(!target.is_sampled(), "{}", target.engine_sentence());
    assert!(target.engine_sentence().contains("the instruction pointer at only 0 of"), "{target:?}");
    drop(target);
    let target = find(EngineChoice::Auto, KernelRegisters::Partial, vm.pid()).unwrap();
    assert!(target.is_sampled() && target.has_mixed_stacks(), "{}", target.engine_sentence());
}
