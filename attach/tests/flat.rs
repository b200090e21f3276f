//! Tests of attaching by stops to a VMM on this host's KVM.

mod roles;

use std::sync::Arc;
use std::time::Duration;

use attach::{
    AttachError, AttachEvent, Attachment, AttachmentEnd, EngineChoice, HELD_LIMIT_MS, PauseCause, Target,
};
use roles::{
    CHECKSUM, Found, LONG_CHECKSUM, MOST, Progress, Recorder, Role, SOON, checksum, checksum_code,
    guest_continues, has_ended, interruptions, is_held, killed_profilers_leave_nothing, kvm, loops_are_seen,
    play, profile, state, stopped_profilers_hold_nothing, thread_named, traced, try_to_hold, within_ticks,
};
use testkit::{eventually, repetitions};
use vmm::{Machine, MachineEnd, Unobserved, VmConfig};

#[test]
fn ticks_find_the_guest_where_it_is() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("ticks_find_the_guest_where_it_is", "vmm loops");
    let [_, second] = loops_are_seen(EngineChoice::Ptrace, &vm);
    // The second vCPU waits for an INIT that nobody sends: it is observed without a stop, except one a
    // second, and for those that come before its thread has blocked again.
    assert_eq!(second.ticks(), 0, "{second:?}");
    assert!(second.suspended_ns.len() < 20, "{} stops", second.suspended_ns.len());
}

#[test]
fn a_guest_computes_the_checksum() {
    const FEW: u64 = 1_000_000;
    play();
    let Some(_one) = kvm() else { return };
    let config = VmConfig { memory_bytes: 64 << 20, ..VmConfig::flat(checksum_code(FEW)) };
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    let ended = machine.wait(Some(SOON)).unwrap();
    assert_eq!(ended.end, MachineEnd::Exited(checksum(FEW)));
}

#[test]
#[ignore = "a minute of one CPU: --all"]
fn the_constants_are_checksums() {
    play();
    for (iterations, sum) in [CHECKSUM, LONG_CHECKSUM] {
        assert_eq!(checksum(iterations), sum, "{iterations} iterations");
    }
}

#[test]
fn a_profiler_that_is_killed_leaves_the_guest_as_it_was() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_killed_leaves_the_guest_as_it_was";
    killed_profilers_leave_nothing(EngineChoice::Ptrace, test);
}

#[test]
fn a_profiler_that_is_stopped_holds_no_vcpu_for_long() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_stopped_holds_no_vcpu_for_long";
    stopped_profilers_hold_nothing(EngineChoice::Ptrace, test);
}

#[test]
fn a_profiler_that_a_guest_has_taken_over_holds_no_vcpu_for_long() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_a_guest_has_taken_over_holds_no_vcpu_for_long";
    let vm = Role::start(test, "vmm loops");
    let mut liar = Role::start(test, &format!("liar {test} {}", vm.pid()));
    eventually("end of the profiler", SOON, || has_ended(&mut liar).then_some(()));
    assert!(!traced(vm.pid()), "the VM runs");
}

#[test]
fn a_vcpu_that_a_debugger_holds_is_not_the_profilers() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_vcpu_that_a_debugger_holds_is_not_the_profilers";
    let vm = Role::start(test, "vmm loops");
    let mut profiler = Role::start(test, &format!("guarded {test} {} ", vm.pid()));
    let thread = thread_named(vm.pid(), "vcpu 0");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Between two stops of the profiler.
            eventually("the debugger's turn", SOON, || try_to_hold(thread).then_some(()));
            // The debugger holds the vCPU for longer than the guard lets a profiler hold it.
            std::thread::sleep(Duration::from_millis(2 * u64::from(HELD_LIMIT_MS)));
        });
    });
    assert!(!has_ended(&mut profiler));
    eventually("next tick", SOON, || traced(vm.pid()).then_some(()));
}

#[test]
fn a_profiler_that_its_terminal_stops_holds_no_vcpu() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_its_terminal_stops_holds_no_vcpu";
    let vm = Role::start(test, "vmm loops");
    let mut profiler = Role::start(test, &format!("guarded {test} {} ", vm.pid()));
    for stop in 0..interruptions() {
        within_ticks(stop);
        profiler.signal(libc::SIGTSTP);
        eventually("stop", SOON, || (state(profiler.pid()) == 'T').then_some(()));
        assert!(!is_held(vm.pid()), "at stop {stop}");
        profiler.signal(libc::SIGCONT);
        eventually("next tick", SOON, || traced(vm.pid()).then_some(()));
    }
    assert!(!has_ended(&mut profiler));
    drop(profiler);
    guest_continues(EngineChoice::Ptrace, vm.pid());
}

/// Control group that is removed at the end.
struct Group(String);

impl Group {
    /// Makes a group, where root and control groups of version 2 allow it.
    fn make(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let at = mounts.lines().find_map(|mount| {
            let mut fields = mount.split(' ');
            let at = fields.nth(1)?;
            (fields.next()? == "cgroup2").then(|| format!("{at}/{name}-{}", std::process::id()))
        })?;
        std::fs::create_dir(&at).ok()?;
        Some(Self(at))
    }

    /// Freezes its processes; returns once none of them runs.
    fn freeze(&self) {
        std::fs::write(format!("{}/cgroup.freeze", self.0), "1").unwrap();
        let events = format!("{}/cgroup.events", self.0);
        eventually("frozen processes", SOON, || {
            std::fs::read_to_string(&events).unwrap().contains("frozen 1").then_some(())
        });
    }

    fn thaw(&self) {
        std::fs::write(format!("{}/cgroup.freeze", self.0), "0").unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _busy = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_profiler_in_a_frozen_group_holds_no_vcpu_for_long() {
    play();
    let Some(_one) = kvm() else { return };
    let Some(group) = Group::make("vprof-frozen") else {
        return testkit::missing("a control group of version 2, as root");
    };
    let test = "a_profiler_in_a_frozen_group_holds_no_vcpu_for_long";
    let vm = Role::start(test, "vmm loops");
    let start = || Role::start(test, &format!("guarded {test} {} {}", vm.pid(), group.0));
    let (mut profiler, mut held) = (start(), 0);
    for stop in 0..repetitions(15, 40) {
        within_ticks(stop);
        group.freeze();
        if is_held(vm.pid()) {
            held += 1;
            eventually("end of the stop", SOON, || (!is_held(vm.pid())).then_some(()));
            group.thaw();
            eventually("end of the profiler", SOON, || has_ended(&mut profiler).then_some(()));
            profiler = start();
        } else {
            group.thaw();
        }
    }
    assert!(held > 0, "no freeze came within a stop: nothing was tested");
    drop(profiler);
}

#[test]
fn threads_that_are_no_vcpus_are_not_stopped() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("threads_that_are_no_vcpus_are_not_stopped", "vmm spinner");
    let status = format!("/proc/{}/task/{}/status", vm.pid(), thread_named(vm.pid(), "spinner"));
    // A stop is a switch to another thread that the thread itself makes.
    let stops = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let stops = status.split_once("\nvoluntary_ctxt_switches:").unwrap().1;
        stops.lines().next().unwrap().trim().parse::<u32>().unwrap()
    };
    let before = stops();
    for _ in 0..20 {
        let target = Target::find(vm.pid(), MOST, None).unwrap();
        assert_eq!((target.vcpus(), target.unseen()), (2, 0));
    }
    assert_eq!(stops(), before);
}

#[test]
fn a_vcpu_that_waits_for_a_page_is_blocked_and_not_halted() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_vcpu_that_waits_for_a_page_is_blocked_and_not_halted", "vmm page");
    let seen = profile(EngineChoice::Ptrace, vm.pid(), [(Found::BlockedInVmm, 100), (Found::Halt, 100)]);
    assert_eq!(seen[0].halted, 0, "{seen:?}");
}

#[test]
fn the_end_of_the_vmm_is_the_end() {
    play();
    let Some(_one) = kvm() else { return };
    let (vm, attached, progress) = attached("the_end_of_the_vmm_is_the_end", "vmm loops");
    progress[0].wait_for(Found::Code, 100);
    drop(vm);
    assert_ended(attached, AttachmentEnd::ProcessEnded);
}

#[test]
fn a_vmm_that_executes_another_program_has_no_machine_any_longer() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_vmm_that_executes_another_program_has_no_machine_any_longer";
    let (mut vm, attached, _) = attached(test, "vmm exec");
    vm.say_word();
    assert_ended(attached, AttachmentEnd::VcpusEnded);
}

#[test]
fn a_machine_that_ends_before_its_first_tick_is_an_error() {
    play();
    let Some(_one) = kvm() else { return };
    let mut vm = Role::start("a_machine_that_ends_before_its_first_tick_is_an_error", "vmm exec");
    let target = Target::find(vm.pid(), MOST, None).unwrap();
    vm.say_word();
    let comm = format!("/proc/{}/comm", vm.pid());
    let executes = || std::fs::read_to_string(&comm).unwrap() == "sleep\n";
    eventually("execution of the other program", SOON, || executes().then_some(()));
    let error = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap_err();
    assert!(matches!(&error, AttachError::Ended { pid, .. } if *pid == vm.pid()), "{error}");
}

/// Starts a VMM for the test, and its profiler, which ticks every 200 us and shows its progress on both
/// vCPUs.
fn attached(test: &str, role: &str) -> (Role, Attachment<Recorder>, [Arc<Progress>; 2]) {
    let vm = Role::start(test, role);
    let target = Target::find(vm.pid(), MOST, None).unwrap();
    let progress = [(); 2].map(|()| Arc::default());
    let recorder = |vcpu: usize| Recorder::watched(Duration::from_micros(200), &progress[vcpu]);
    (vm, Attachment::start(target, recorder).unwrap(), progress)
}

/// Waits for the end, which happens without a request.
fn assert_ended(attached: Attachment<Recorder>, end: AttachmentEnd) {
    eventually("end", SOON, || attached.has_ended().then_some(()));
    let ended = attached.wait().unwrap();
    assert_eq!((ended.end, ended.observers.len()), (end, 2));
}

#[test]
fn a_vmm_that_is_stopped_is_waited_for() {
    play();
    let Some(_one) = kvm() else { return };
    let (vm, attached, progress) = attached("a_vmm_that_is_stopped_is_waited_for", "vmm loops");
    let wait_for = |wanted: AttachEvent| {
        eventually(&format!("{wanted:?}"), SOON, || attached.take_events().contains(&wanted).then_some(()));
    };
    vm.signal(libc::SIGSTOP);
    wait_for(AttachEvent::Paused(PauseCause::Signal));
    for vcpu in &progress {
        vcpu.wait_for(Found::Pause, 50);
    }
    vm.signal(libc::SIGCONT);
    wait_for(AttachEvent::Resumed);
    // It continues.
    let before = progress[0].of(Found::Code);
    progress[0].wait_for(Found::Code, before + 50);
    assert_eq!(attached.wait().unwrap().observers.len(), 2);
}

#[test]
fn a_process_that_cannot_be_attached_to_is_an_error() {
    play();
    let own = i32::try_from(std::process::id()).unwrap();
    let refused = |pid| Target::find(pid, MOST, None).unwrap_err();
    assert!(matches!(refused(own), AttachError::NoVm { .. }));
    assert!(matches!(refused(i32::MAX), AttachError::NoProcess { .. }));
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_process_that_cannot_be_attached_to_is_an_error", "vmm loops");
    assert!(matches!(Target::find(vm.pid(), 1, None), Err(AttachError::TooMany { vcpus: 2, most: 1, .. })));
    let first = Target::find(vm.pid(), MOST, None).unwrap();
    assert!(matches!(refused(vm.pid()), AttachError::InUse { by: Some(by), .. } if by == own));
    drop(first);
    vm.signal(libc::SIGSTOP);
    let is_stopped = || matches!(Target::find(vm.pid(), MOST, None), Err(AttachError::Stopped { .. }));
    eventually("refusal of a stopped VMM", SOON, || is_stopped().then_some(()));
    vm.signal(libc::SIGCONT);
    eventually("VMM that continues", SOON, || Target::find(vm.pid(), MOST, None).ok().map(drop));
}
