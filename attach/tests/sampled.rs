//! Tests of samples that the host's kernel takes of a VMM on this host's KVM.

mod roles;

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use attach::{
    AttachError, AttachEvent, Attachment, AttachmentEnd, EngineChoice, ExitDetail, HostFrameKind, HostState,
    PluggedVcpu, StopMemory, Target, TargetChoice, VcpuRoom,
};
use roles::plug::NUMBER;
use roles::{
    Found, MOST, Recorder, Role, SECOND, SOON, exits_code, killed_profilers_leave_nothing, kvm,
    loops_are_seen, play, profile, state, stopped_profilers_hold_nothing, thread_named, within_ticks,
};
use testkit::{OwnProcess, eventually, repetitions};
use vmm::config::FLAT_ENTRY;
use vmm::{Activity, MissReason, Observer, Tick};

/// Returns the number of samples whose registers have to be right.
fn samples() -> u32 {
    repetitions(20_000, 100_000)
}

#[test]
fn samples_find_the_guest_where_it_is() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("samples_find_the_guest_where_it_is", "vmm loops");
    let [first, second] = loops_are_seen(EngineChoice::Bpf, &vm);
    // The second vCPU waits for an INIT that nobody sends.
    assert_eq!(second.ticks(), 0, "{second:?}");
    assert!(first.suspended_ns.is_empty() && second.suspended_ns.is_empty(), "{first:?} {second:?}");
}

/// Number of samples, once there are enough.
static CHECKED: AtomicU32 = AtomicU32::new(0);

/// Observer that checks every sample's registers.
#[derive(Debug, Default)]
struct Checker {
    samples: u32,
    /// The test waits for this number of samples.
    enough: u32,
    /// Instruction, counter, privilege level and state of the samples that are not the guest's.
    wrong: Vec<(u64, u64, u8, Option<Activity>)>,
    tables: HashSet<u64>,
    missed: u32,
}

impl Observer<StopMemory> for Checker {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_micros(10))
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        // The second vCPU is not started. Its samples are taken as often, and the interrupts of the first
        // one's meet them on their CPU.
        if matches!(tick.activity(), Some(Activity::NotStarted)) {
            return Some(Duration::from_micros(10));
        }
        self.samples += 1;
        self.tables.insert(tick.sregs.cr3);
        // The guest counts down in RCX, from 3,000 at most.
        if !(FLAT_ENTRY..FLAT_ENTRY + 20).contains(&tick.regs.rip) || tick.regs.rcx > 3_000 || tick.cpl() != 3
        {
            self.wrong.push((tick.regs.rip, tick.regs.rcx, tick.cpl(), tick.activity()));
        }
        if self.samples >= self.enough {
            CHECKED.store(self.samples, Ordering::Relaxed);
        }
        Some(Duration::from_micros(10))
    }

    fn missed(&mut self, _: MissReason, _: u64, _: u64) -> Option<Duration> {
        self.missed += 1;
        Some(Duration::from_micros(10))
    }
}

/// Returns true once no thread of the process runs, because a signal has stopped it.
fn is_stopped(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    threads.map(state).all(|state| state == 'T')
}

/// Returns how often a thread has left its CPU because it waits for something: a stop is such a wait.
fn waits(pid: i32, thread: i32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap();
    let waits = status.split_once("\nvoluntary_ctxt_switches:").unwrap().1;
    waits.lines().next().unwrap().trim().parse().unwrap()
}

#[test]
fn registers_are_right_in_every_sample_and_the_vmm_sees_none() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("registers_are_right_in_every_sample_and_the_vmm_sees_none", "vmm loops");
    let thread = thread_named(vm.pid(), "vcpu 0");
    let before = waits(vm.pid(), thread);
    let target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
    let enough = samples();
    let attached = Attachment::start(target, |_| Checker { enough, ..Checker::default() }).unwrap();
    eventually("samples", Duration::from_secs(100), || {
        (CHECKED.load(Ordering::Relaxed) >= enough).then_some(())
    });
    let seen = attached.wait().unwrap().observers;
    let first = &seen[0];
    assert!(first.samples >= enough, "{first:?}");
    assert!(seen.iter().all(|checker| checker.wrong.is_empty()), "{seen:x?}");
    assert_eq!(first.tables.len(), 1, "{first:x?}");
    assert_eq!(waits(vm.pid(), thread), before, "{} samples", first.samples);
}

#[test]
fn a_profiler_that_is_killed_leaves_nothing() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_killed_leaves_nothing";
    killed_profilers_leave_nothing(EngineChoice::Bpf, test);
}

#[test]
fn a_profiler_that_is_stopped_holds_nothing() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_stopped_holds_nothing";
    stopped_profilers_hold_nothing(EngineChoice::Bpf, test);
}

#[test]
fn a_host_whose_kernel_has_no_types_is_profiled_by_stops() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_host_whose_kernel_has_no_types_is_profiled_by_stops";
    let vm = Role::start(test, "vmm loops");
    let mut blind = Role::start(test, &format!("blind {}", vm.pid()));
    let mut text = String::new();
    blind.output.read_to_string(&mut text).unwrap();
    if text.is_empty() {
        return testkit::missing("root, to mount a file system");
    }
    let sentence = |engine: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(engine));
        found.unwrap_or_else(|| panic!("no {engine}: {text}"))
    };
    let reason = "the host's kernel has no readable type information";
    let auto = sentence("auto: ");
    assert!(auto.starts_with(&format!("vCPUs are stopped for samples (ptrace): {reason}")), "{auto}");
    assert!(sentence("bpf: ").contains(reason), "{text}");
}

#[test]
fn a_vmm_that_ends_within_a_sample_is_the_end() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_vmm_that_ends_within_a_sample_is_the_end";
    for end in 0..10_u64 {
        let vm = Role::start(test, "vmm loops");
        let target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
        let progress = Arc::default();
        let recorder = |_| Recorder::watched(Duration::from_micros(50), &progress);
        let attached = Attachment::start(target, recorder).unwrap();
        progress.wait_for(Found::Code, 1);
        within_ticks(end);
        drop(vm);
        eventually("end", SOON, || attached.has_ended().then_some(()));
        let ended = attached.wait().unwrap();
        assert_eq!((ended.end, ended.observers.len()), (AttachmentEnd::ProcessEnded, 2));
    }
}

#[test]
fn a_vcpu_that_waits_for_a_page_is_blocked_and_not_halted() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_vcpu_that_waits_for_a_page_is_blocked_and_not_halted", "vmm page");
    let seen = profile(EngineChoice::Bpf, vm.pid(), [(Found::BlockedInVmm, 100), (Found::Halt, 100)]);
    assert_eq!(seen[0].halted, 0, "{seen:?}");
}

#[test]
fn the_kernel_is_chosen_where_it_shows_the_registers_that_kvm_reports() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "the_kernel_is_chosen_where_it_shows_the_registers_that_kvm_reports";
    let vm = Role::start(test, "vmm loops");
    let find = |engine| Target::find_by(engine, vm.pid(), MOST, None);
    let target = find(EngineChoice::Auto).unwrap();
    assert!(target.is_sampled(), "{}", target.engine_sentence());
    assert_eq!(target.rate_limit(), None);
    for engine in [EngineChoice::Bpf, EngineChoice::Ptrace] {
        assert!(matches!(find(engine), Err(AttachError::InUse { .. })), "two engines at once");
    }
    drop(target);
    let target = find(EngineChoice::Ptrace).unwrap();
    assert!(!target.is_sampled() && target.rate_limit().is_some());
}

#[test]
fn one_of_several_machines_of_a_process_is_sampled_alone() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("one_of_several_machines_of_a_process_is_sampled_alone", "vmm two");
    let find = |engine: EngineChoice, vm_number| {
        Target::find_by(TargetChoice { vm: vm_number, ..engine.into() }, vm.pid(), MOST, None)
    };
    for engine in [EngineChoice::Auto, EngineChoice::Bpf] {
        let error = find(engine, None).unwrap_err();
        assert!(
            matches!(&error, AttachError::SeveralVms { machines, .. } if machines.0.len() == 2),
            "{error}"
        );
        assert!(error.to_string().contains("2 vCPUs, 64 MiB"), "{error}");
        assert!(matches!(find(engine, Some(3)), Err(AttachError::NoSuchVm { number: 3, .. })));
    }
    let stops = find(EngineChoice::Ptrace, Some(1)).unwrap_err();
    assert!(matches!(stops, AttachError::SeveralByStops { .. }), "{stops}");
    let mut places = Vec::new();
    for number in [1, 2] {
        let target = find(EngineChoice::Auto, Some(number)).unwrap();
        assert!(target.is_sampled(), "{}", target.engine_sentence());
        let progress = Arc::default();
        let recorder = |_| Recorder::watched(Duration::from_millis(1), &progress);
        let attached = Attachment::start(target, recorder).unwrap();
        progress.wait_for(Found::Code, 100);
        let seen = attached.wait().unwrap().observers;
        let rips: HashSet<u64> = seen.iter().flat_map(|vcpu| vcpu.rips.keys().copied()).collect();
        places.push((seen.len(), rips.contains(&(FLAT_ENTRY + SECOND as u64)), rips.len()));
    }
    places.sort_unstable();
    assert!(matches!(places[..], [(1, true, 1), (2, false, 2..)]), "{places:?}");
}

/// Returns the vCPU that was plugged in, or KVM's number of one that cannot be profiled.
fn plugged<O: Observer<StopMemory>>(attached: &Attachment<O>) -> Result<PluggedVcpu, u32> {
    eventually("a vCPU that is plugged in", SOON, || {
        attached.take_events().into_iter().find_map(|event| match event {
            AttachEvent::Plugged(plugged) => Some(Ok(plugged)),
            AttachEvent::NotAdopted(number) => Some(Err(number)),
            _ => None,
        })
    })
}

#[test]
fn an_attachment_without_room_ends_when_a_vcpu_is_plugged_in() {
    play();
    let Some(_one) = kvm() else { return };
    let mut vm = Role::start("an_attachment_without_room_ends_when_a_vcpu_is_plugged_in", "vmm plug");
    let choice = TargetChoice { room: VcpuRoom::Present, ..EngineChoice::Bpf.into() };
    let target = Target::find_by(choice, vm.pid(), MOST, None).unwrap();
    assert_eq!(target.vcpus(), 2);
    let recorder = |_| Recorder::new(Duration::from_millis(1));
    let attached = Attachment::start(target, recorder).unwrap();
    vm.say_word();
    eventually("the end", SOON, || attached.has_ended().then_some(()));
    let ended = attached.wait().unwrap();
    assert_eq!((ended.end, ended.observers.len()), (AttachmentEnd::Outgrown, 2));
    // Another one has room for all three.
    let again = Target::find_by(choice, vm.pid(), MOST, None).unwrap();
    assert_eq!(again.vcpus() + again.unseen(), 3);
    let ended = Attachment::start(again, recorder).unwrap().wait().unwrap();
    assert_eq!(ended.end, AttachmentEnd::Detached);
}

#[test]
fn an_attachment_takes_over_from_another_one() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("an_attachment_takes_over_from_another_one", "vmm loops");
    let find = |takes_over| {
        let choice = TargetChoice { takes_over, ..EngineChoice::Bpf.into() };
        Target::find_by(choice, vm.pid(), MOST, None)
    };
    let progress = Arc::default();
    let recorder = |_| Recorder::watched(Duration::from_millis(1), &progress);
    let first = Attachment::start(find(false).unwrap(), recorder).unwrap();
    progress.wait_for(Found::Code, 1);
    assert!(matches!(find(false).unwrap_err(), AttachError::InUse { .. }));
    let refused = Attachment::start(find(true).unwrap(), recorder).unwrap_err();
    assert!(matches!(refused, AttachError::InUse { .. }), "{refused}");
    let stops = TargetChoice { takes_over: true, ..EngineChoice::Ptrace.into() };
    let refused = Target::find_by(stops, vm.pid(), MOST, None).unwrap_err();
    assert!(matches!(refused, AttachError::InUse { .. }), "{refused}");
    let mut next = find(true).unwrap();
    next.prove(Duration::from_millis(50));
    assert!(!next.reserve().unwrap());
    assert_eq!(first.wait().unwrap().end, AttachmentEnd::Detached);
    eventually("the machine", SOON, || next.reserve().unwrap().then_some(()));
    let before = progress.of(Found::Code);
    let next = Attachment::start(next, recorder).unwrap();
    progress.wait_for(Found::Code, before + 10);
    assert_eq!(next.wait().unwrap().end, AttachmentEnd::Detached);
}

#[test]
fn a_vcpu_that_is_plugged_in_is_sampled_from_its_first_entry_on() {
    play();
    let Some(_one) = kvm() else { return };
    let mut vm = Role::start("a_vcpu_that_is_plugged_in_is_sampled_from_its_first_entry_on", "vmm plug");
    let mut target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
    assert_eq!((target.vcpus(), target.unseen(), target.counts().len()), (2, 0, 2));
    let [at_first, later] = [Arc::default(), Arc::default()];
    let recorder = |progress| Recorder::watched(Duration::from_millis(1), progress);
    let attached = Attachment::start(target, |_| recorder(&at_first)).unwrap();
    at_first.wait_for(Found::Code, 500);
    vm.say_word();
    let third = plugged(&attached).unwrap();
    assert_eq!(third.number, NUMBER);
    let course = attached.counts(third).course.unwrap();
    attached.adopt(third, recorder(&later)).unwrap();
    let mut values = Vec::new();
    course.read_counters(&mut values);
    assert!(values.iter().any(|value| *value > 0), "KVM's counters: {values:?}");
    later.wait_for(Found::Code, 100);
    let ended = attached.wait().unwrap();
    assert_eq!((ended.end, ended.observers.len()), (AttachmentEnd::Detached, 3));
    let third = &ended.observers[2];
    assert_eq!(third.stopped, 1, "{third:?}");
    assert!(third.rips.keys().all(|rip| *rip == FLAT_ENTRY + SECOND as u64), "{third:x?}");
    assert!(ended.observers[0].ticks() > third.ticks(), "it is there from the start: {ended:?}");
    // Its times are those of its thread.
    let thread = thread_named(vm.pid(), "vcpu 2");
    assert_eq!(third.thread.map(|id| (id.process, id.thread)), Some((vm.pid(), thread)));
    let now = || third.statistics.as_ref().and_then(|thread| thread.read()).unwrap();
    let (before, by_file, after) = (now(), times(&vm, thread), now());
    let within = |[before, file, after]: [f64; 3]| before <= file && file <= after;
    assert!(
        within([before.run_ns as f64, by_file[0], after.run_ns as f64]),
        "{before:?} {by_file:?} {after:?}"
    );
    assert!(within([before.waited_ns as f64, by_file[1], after.waited_ns as f64]), "{by_file:?} {after:?}");
}

#[test]
fn a_vcpu_that_is_plugged_in_again_is_another_one() {
    play();
    let Some(_one) = kvm() else { return };
    let mut vm = Role::start("a_vcpu_that_is_plugged_in_again_is_another_one", "vmm plug again");
    let target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
    let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    for _ in 0..2 {
        vm.say_word();
        let next = plugged(&attached).unwrap();
        assert_eq!(next.number, NUMBER);
        let progress = Arc::default();
        attached.adopt(next, Recorder::watched(Duration::from_millis(1), &progress)).unwrap();
        progress.wait_for(Found::Code, 100);
    }
    let seen = attached.wait().unwrap().observers;
    let [_, _, third, fourth] = &seen[..] else { panic!("{} vCPUs", seen.len()) };
    for vcpu in [third, fourth] {
        assert_eq!(vcpu.stopped, 1, "{vcpu:?}");
        assert!(vcpu.rips.keys().all(|rip| *rip == FLAT_ENTRY + SECOND as u64), "{vcpu:x?}");
    }
    assert_ne!(third.thread, fourth.thread);
}

#[test]
fn a_vcpu_for_which_there_is_no_room_is_reported() {
    play();
    let Some(_one) = kvm() else { return };
    for (engine, most) in [(EngineChoice::Bpf, 2), (EngineChoice::Ptrace, MOST)] {
        let mut vm = Role::start("a_vcpu_for_which_there_is_no_room_is_reported", "vmm plug");
        let target = Target::find_by(engine, vm.pid(), most, None).unwrap();
        assert_eq!(target.vcpus(), 2);
        let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
        vm.say_word();
        assert_eq!(plugged(&attached), Err(NUMBER));
        assert_eq!(attached.wait().unwrap().observers.len(), 2);
    }
}

/// Process that takes a CPU from others; killed at the end.
struct Rival(OwnProcess);

impl Rival {
    fn start(cpu: usize) -> Self {
        let spin = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let rival = Self(OwnProcess(spin.unwrap()));
        pin(i32::try_from(rival.0.id()).unwrap(), cpu);
        rival
    }
}

/// Lets a thread run on one CPU only.
fn pin(thread: i32, cpu: usize) {
    // SAFETY: a set of CPUs is plain data for which all zeroes is a valid value; the pointer is valid for the
    // call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(thread, size_of_val(&set), &raw const set), 0);
    }
}

#[test]
fn waits_for_a_cpu_count_for_the_process_that_has_it() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("waits_for_a_cpu_count_for_the_process_that_has_it", "vmm loops");
    let mut target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
    let counts = target.counts();
    assert!(!target.uncounted().contains("waits"), "{}", target.uncounted());
    let course = counts[0].course.as_ref().unwrap();
    let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    let exits = course.counters().iter().position(|counter| counter.name == "exits").unwrap();
    let mut values = Vec::new();
    course.read_counters(&mut values);
    let before = values[exits];
    pin(course_thread(&vm), 0);
    let rival = Rival::start(0);
    let pid = rival.0.id();
    let waited = || {
        let takers = course.takers();
        // Before it becomes the shell it has the name of this test, and may have taken the CPU, too.
        let waited = takers.iter().find(|taker| taker.pid == Some(pid) && taker.name == "sh").cloned();
        waited.filter(|taker| taker.total_ns > 100_000_000)
    };
    let waited = eventually("waits for the rival", SOON, waited);
    assert!(waited.count > 0, "{waited:?}");
    course.read_counters(&mut values);
    assert!(values[exits] > before, "{} after {before} exits", values[exits]);
    // All of the thread's waits, as the scheduler counts them, are some process's.
    let all: u64 = course.takers().iter().map(|taker| taker.total_ns).sum();
    assert!(waited.total_ns <= all, "{:?}", course.takers());
    drop(rival);
    drop(attached.wait().unwrap());
}

/// Codes of the reasons of exits (attach/bpf/record.c).
const PORT_WRITE: u64 = 2;
const OTHER: u64 = 8;

/// Exits of a vCPU by the port that the guest writes to: count and time of all, and of those that were noted;
/// the number of notes.
#[derive(Debug, Default, Clone, Copy)]
struct PortExits {
    count: u64,
    total_ns: u64,
    unnoted: u64,
    weight: u64,
    weighed_ns: u64,
    notes: u64,
}

/// Attaches to a VMM whose guest exits to it at two places, and returns what is counted there once the guest
/// has written this often to its ports.
fn exits(role: &str, test: &str, writes: u64) -> [PortExits; 2] {
    let vm = Role::start(test, &format!("vmm {role}"));
    let mut target = Target::find_by(EngineChoice::Bpf, vm.pid(), MOST, None).unwrap();
    let counts = target.counts();
    let course = counts[0].course.clone().unwrap();
    let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    let before = course.exits().unwrap();
    assert_eq!(course.take_notes(), [], "none before they are taken");
    let mut notes = Vec::new();
    eventually("exits", SOON, || {
        notes.extend(course.take_notes());
        let exits = course.exits()?.into_iter().filter(|row| row.key >> 56 == PORT_WRITE);
        (exits.map(|row| row.count).sum::<u64>() >= writes).then_some(())
    });
    // The guest is stopped: what is counted is what is noted.
    vm.signal(libc::SIGSTOP);
    eventually("stop", SOON, || is_stopped(vm.pid()).then_some(()));
    notes.extend(course.take_notes());
    let counted = course.exits().unwrap();
    vm.signal(libc::SIGCONT);
    drop(attached.wait().unwrap());
    assert!(
        counted.iter().all(|row| row.key >> 56 != OTHER),
        "the first ones have reasons, too: {counted:x?}"
    );
    let (_, outs) = exits_code(1);
    let mut ports = [PortExits::default(); 2];
    for (port, (number, exits)) in (0x80..).zip(&mut ports).enumerate() {
        let key = PORT_WRITE << 56 | number;
        let row = counted.iter().find(|row| row.key == key).unwrap();
        let earlier =
            before.iter().find(|row| row.key == key).map_or((0, 0), |row| (row.count, row.total_ns));
        (exits.count, exits.total_ns) = (row.count - earlier.0, row.total_ns - earlier.1);
        exits.unnoted = row.unnoted.0;
        for note in notes.iter().filter(|note| note.key() == key) {
            // KVM is at the instruction, or has skipped it.
            let at = note.rip() - FLAT_ENTRY - outs[port] as u64;
            assert!(at == 0 || at == 2, "{note:x?} at {at}");
            assert!(note.cpl() == 3 && note.is_long_mode() && !note.is_nested(), "{note:x?}");
            exits.weight += note.weight();
            exits.weighed_ns += note.weight() * note.ns();
            exits.notes += 1;
        }
    }
    ports
}

#[test]
fn rare_exits_are_all_noted_with_the_code_that_they_come_from() {
    play();
    let Some(_one) = kvm() else { return };
    let ports = exits("rare exits", "rare_exits_are_all_noted_with_the_code_that_they_come_from", 200);
    for port in ports {
        // The first ones may have begun before.
        assert!(port.count - port.weight <= 2 && port.unnoted == 0, "{ports:?}");
        let same = port.count == port.weight;
        assert!(
            if same { port.weighed_ns == port.total_ns } else { port.weighed_ns < port.total_ns },
            "{ports:?}"
        );
        assert_eq!(port.notes, port.weight);
    }
}

#[test]
fn of_frequent_exits_some_are_noted_that_count_for_all() {
    play();
    let Some(_one) = kvm() else { return };
    let ports = exits("exits", "of_frequent_exits_some_are_noted_that_count_for_all", 20_000);
    for port in ports {
        assert!(port.count > 1_000 && port.notes > 100 && port.notes < port.count / 2, "{ports:?}");
        let weight = port.weight + port.unnoted;
        // The largest weights are some hundred, of notes that are for a few per cent each.
        let error = (weight as f64 / port.count as f64 - 1.0).abs();
        assert!(error < 5.0 / (port.notes as f64).sqrt(), "{error}: {ports:?}");
    }
    let share = |of: fn(&PortExits) -> u64| of(&ports[1]) as f64 / (of(&ports[0]) + of(&ports[1])) as f64;
    let (exact, noted) = (share(|port| port.count), share(|port| port.weight));
    assert!((exact - 0.75).abs() < 0.02 && (noted - exact).abs() < 0.06, "{noted} of {exact}: {ports:?}");
}

#[test]
fn exits_whose_reasons_are_not_wanted_count_for_the_times_alone() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("exits_whose_reasons_are_not_wanted_count_for_the_times_alone", "vmm exits");
    let choice = TargetChoice { exits: ExitDetail::Number, ..EngineChoice::Bpf.into() };
    let mut target = Target::find_by(choice, vm.pid(), MOST, None).unwrap();
    let courses: Vec<_> = target.counts().into_iter().map(|counts| counts.course.unwrap()).collect();
    assert!(target.uncounted().starts_with("exits by reason"), "{}", target.uncounted());
    let shown = target.counts_vmm_times();
    let progress = Arc::default();
    let recorder = |_| Recorder::watched(Duration::from_millis(1), &progress);
    let attached = Attachment::start(target, recorder).unwrap();
    let course = &courses[0];
    for returns in [1_000, 2_000] {
        eventually("exits", SOON, || (course.returns()? > returns).then_some(()));
        assert!(course.take_notes().is_empty() && course.exits().is_none());
    }
    progress.wait_for(Found::Code, 10);
    assert_eq!(course.vmm_times().is_some_and(|times| times.on_cpu_ns > 0), shown);
    assert_eq!(attached.wait().unwrap().end, AttachmentEnd::Detached);
}

#[test]
fn stacks_of_the_host_have_the_functions_of_kvm_and_of_the_vmm() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("stacks_of_the_host_have_the_functions_of_kvm_and_of_the_vmm", "vmm exits");
    let choice = TargetChoice { host_stacks: true, ..EngineChoice::Bpf.into() };
    let mut target = Target::find_by(choice, vm.pid(), MOST, None).unwrap();
    let mut names = target.take_host_names().unwrap();
    let courses: Vec<_> = target.counts().into_iter().map(|counts| counts.course.unwrap()).collect();
    let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    let mut ticks = [Vec::new(), Vec::new()];
    eventually("ticks", SOON, || {
        for (ticks, course) in ticks.iter_mut().zip(&courses) {
            let (more, lost) = course.take_host_ticks();
            assert_eq!(lost, 0);
            ticks.extend(more);
        }
        (ticks[0].len() >= 2_000).then_some(())
    });
    let seen = attached.wait().unwrap().observers;
    for (ticks, course) in ticks.iter_mut().zip(&courses) {
        ticks.extend(course.take_host_ticks().0);
    }
    let [first, second] = &ticks;
    let count = |state| first.iter().filter(|tick| tick.state == state).count();
    let missed = |name| seen[0].missed.get(name).copied().unwrap_or(0) as usize;
    // A tick without a sample of the guest is in the VMM.
    let counts = [HostState::Vmm, HostState::Kvm, HostState::Waiting, HostState::Halted].map(count);
    let [in_vmm, in_kvm, in_wait, _] = counts;
    // Some of these wait for a CPU.
    let missed = missed("in the VMM") + missed("blocked in the VMM");
    assert!(in_vmm <= missed && missed <= in_vmm + in_wait, "{missed}: {counts:?}");
    let in_guest = count(HostState::Guest);
    assert!(in_vmm > 0 && in_kvm > 0 && in_guest > 0, "{counts:?}, {in_guest}");
    let mut found: HashMap<HostState, HashSet<String>> = HashMap::new();
    for tick in first.iter().filter(|tick| tick.on_cpu) {
        let frames = names.frames(tick);
        let symbols = frames.iter().filter_map(|frame| names.name(frame).symbol);
        found.entry(tick.state).or_default().extend(symbols);
    }
    let has = |state: HostState, wanted: &str| found[&state].iter().any(|name| name.contains(wanted));
    assert!(
        has(HostState::Kvm, "kvm_vcpu_ioctl") && has(HostState::Kvm, "kvm_arch_vcpu_ioctl_run"),
        "{found:?}"
    );
    assert!(has(HostState::Vmm, "ioctl"), "{found:?}");
    // In the guest, the stack is that of KVM_RUN.
    for tick in first.iter().filter(|tick| tick.state == HostState::Guest) {
        let frames = names.frames(tick);
        let functions: Vec<_> = frames.iter().filter_map(|frame| names.name(frame).symbol).collect();
        let calls = |wanted: &str| functions.iter().any(|name| name == wanted);
        assert!(tick.on_cpu && calls("kvm_arch_vcpu_ioctl_run") && calls("ioctl"), "{functions:?}");
    }
    // The code of the VMM has no frame pointers, and its stacks begin where the thread began.
    let outermost = |tick| names.frames(tick).first().map(|frame| frame.kind);
    let ends: Vec<_> = first.iter().filter(|tick| tick.on_cpu).map(outermost).collect();
    let whole = ends.iter().filter(|kind| **kind == Some(HostFrameKind::User)).count();
    assert!(whole * 100 >= ends.len() * 99, "{whole} of {}", ends.len());
    // A thread that waits for a CPU is in the scheduler.
    let off = first.iter().filter(|tick| !tick.on_cpu && tick.stack.is_some());
    let off: Vec<_> = off.map(|tick| names.frames(tick)).collect();
    let innermost = off.iter().filter_map(|frames| names.name(frames.last()?).symbol);
    assert!(innermost.into_iter().all(|name| name == "__schedule"), "{} waits", off.len());
    for taking in
        ["bpf_get_stack", "bpf_get_task_stack", "bpf_prog_test_run", "asm_sysvec_call_function_single"]
    {
        assert!(found.keys().all(|state| !has(*state, taking)), "{taking}: {found:?}");
    }
    // The second vCPU waits for an INIT: its thread has left its CPU before vprof came.
    assert!(second.iter().all(|tick| tick.state == HostState::Halted));
    let error = Target::find_by(
        TargetChoice { host_stacks: true, ..EngineChoice::Ptrace.into() },
        vm.pid(),
        MOST,
        None,
    );
    assert!(matches!(error, Err(AttachError::HostStacks { .. })), "{error:?}");
}

#[test]
fn a_vcpu_whose_cpu_another_program_has_waits() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_vcpu_whose_cpu_another_program_has_waits", "vmm loops");
    let thread = thread_named(vm.pid(), "vcpu 0");
    pin(thread, 0);
    let rival = Rival::start(0);
    let before = times(&vm, thread);
    let seen = profile(EngineChoice::Bpf, vm.pid(), [(Found::Code, 2_000), (Found::Halt, 0)]);
    let after = times(&vm, thread);
    drop(rival);
    let [ran, waited] = [0, 1].map(|which| after[which] - before[which]);
    let by_scheduler = waited / (ran + waited);
    let by_ticks = f64::from(seen[0].waiting) / f64::from(seen[0].ticks());
    // The rival has half of the time, in turns of milliseconds: some hundred turns.
    assert!(by_scheduler > 0.35, "it has a rival: {by_scheduler}");
    assert!((by_ticks - by_scheduler).abs() < 0.12, "{by_ticks} instead of {by_scheduler}: {seen:?}");
}

/// Returns the times that a thread has run and waited for a CPU, ns.
fn times(vm: &Role, thread: i32) -> [f64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{}/task/{thread}/schedstat", vm.pid())).unwrap();
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().unwrap());
    [words.next().unwrap(), words.next().unwrap()]
}

/// Returns the thread of the first vCPU: the one with most CPU time.
fn course_thread(vm: &Role) -> i32 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", vm.pid())).unwrap();
    let threads = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse::<i32>().unwrap());
    threads.max_by(|one, other| times(vm, *one)[0].total_cmp(&times(vm, *other)[0])).unwrap()
}
