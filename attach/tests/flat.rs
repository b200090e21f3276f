//! Attaches to a VMM on this host's KVM whose guest is a few bytes of code at CPL 3, which every KVM runs.
//!
//! The VMM, and the profilers that are killed, are this test's own binary, started again with a role.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use attach::{AttachError, Attached, End, Missed, News, Observer, Standing, Target, ThreadId, Tick};
use linux::PhysicalMemory;
use testkit::eventually;
use vmm::config::FLAT_ENTRY;
use vmm::{Activity, Machine, Unobserved, VmConfig, probe};

const SOON: Duration = Duration::from_secs(20);
/// What the child is to be.
const ROLE: &str = "VPROF_TEST_ROLE";
/// Iterations of the guest's checksum: longer than 100 profilers take to start.
const ITERATIONS: u64 = 3_000_000_000;
const MOST: usize = 64;

/// One test at a time: each measures a process of its own. `None` where there is no KVM, and need not be.
fn kvm() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if let Err(error) = probe::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return None;
    }
    Some(ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Two loops, the second three times as long:
/// `0: mov $1000, %ecx; 5: dec %ecx; jnz 5b; 9: mov $3000, %ecx; 14: dec %ecx; jnz 14b; jmp 0b`
const LOOPS: &[u8] = &[
    0xb9, 0xe8, 0x03, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xb9, 0xb8, 0x0b, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xeb,
    0xec,
];

/// A checksum in registers and memory, written to the exit port:
/// `mov $1, %rax; mov $N, %rcx; mov $0x400000, %ebx; 1: imul $0x41c64e6d, %rax; add %rcx, %rax; mov %rax, (%rbx);
/// xor (%rbx), %rdx; dec %rcx; jnz 1b; xor %rdx, %rax; mov $0xf4, %edx; out %eax, (%dx); 2: jmp 2b`
fn checksum_code() -> Vec<u8> {
    let mut code = vec![0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0x48, 0xb9];
    code.extend(ITERATIONS.to_le_bytes());
    code.extend([0xbb, 0, 0, 0x40, 0, 0x31, 0xd2]);
    let begin = code.len();
    code.extend([0x48, 0x69, 0xc0, 0x6d, 0x4e, 0xc6, 0x41, 0x48, 0x01, 0xc8]);
    code.extend([0x48, 0x89, 0x03, 0x48, 0x33, 0x13, 0x48, 0xff, 0xc9, 0x75]);
    let back = i8::try_from(begin).unwrap() - i8::try_from(code.len() + 1).unwrap();
    code.push(back.cast_unsigned());
    code.extend([0x48, 0x31, 0xd0, 0xba, 0xf4, 0, 0, 0, 0xef, 0xeb, 0xfe]);
    code
}

/// What the code gives.
fn checksum() -> u32 {
    let (mut a, mut d) = (1_u64, 0_u64);
    for c in (1..=ITERATIONS).rev() {
        a = a.wrapping_mul(0x41c6_4e6d).wrapping_add(c);
        d ^= a;
    }
    u32::try_from((a ^ d) & 0xffff_ffff).unwrap()
}

/// The child: a VMM that says how its guest ended. One becomes another program after a second.
fn vmm(role: &str) -> ! {
    let code = if role == "checksum" { checksum_code() } else { LOOPS.to_vec() };
    let config = VmConfig { vcpus: 2, memory_bytes: 64 << 20, ..VmConfig::flat(code) };
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    println!("it runs");
    if role == "exec" {
        std::thread::sleep(Duration::from_secs(1));
        panic!("{}", Command::new("sleep").arg("100").exec());
    }
    let ended = machine.wait(Some(Duration::from_secs(100))).unwrap();
    println!("{:?}", ended.end);
    std::process::exit(0)
}

/// The other child: attaches and ticks until it is killed.
fn profiler(pid: &str) -> ! {
    let target = Target::look(pid.parse().unwrap(), MOST).unwrap();
    let _attached = Attached::start(target, |_| Recorder::new(Duration::from_micros(200))).unwrap();
    println!("it runs");
    std::thread::sleep(Duration::from_secs(100));
    std::process::exit(0)
}

/// Plays the role that this process was started for, if it was for one.
fn play() {
    match std::env::var(ROLE).unwrap_or_default().split_once(' ') {
        Some(("vmm", guest)) => vmm(guest),
        Some(("profiler", pid)) => profiler(pid),
        _ => {}
    }
}

/// A child that is killed at the end.
struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts this binary for the test `test` in a role; returns when it says that it runs.
    fn start(test: &str, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("it runs") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "{role} ended early");
        }
        Self { child, output }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers; the child was not waited for, so that its id is its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[derive(Debug)]
struct Recorder {
    interval: Duration,
    rips: HashMap<u64, u32>,
    halted: u32,
    missed: HashMap<&'static str, u32>,
    held_ns: Vec<u64>,
    thread: Option<ThreadId>,
    stopped: u32,
}

impl Recorder {
    fn new(interval: Duration) -> Self {
        Self {
            interval,
            rips: HashMap::new(),
            halted: 0,
            missed: HashMap::new(),
            held_ns: Vec::new(),
            thread: None,
            stopped: 0,
        }
    }

    fn ticks(&self) -> u32 {
        self.rips.values().sum()
    }
}

impl Observer for Recorder {
    fn started(&mut self, thread: Option<ThreadId>) -> Option<Duration> {
        self.thread = thread;
        Some(self.interval)
    }

    fn ticked<M: PhysicalMemory>(&mut self, tick: &Tick<'_, M>) -> Option<Duration> {
        assert!(tick.now_ns >= tick.due_ns);
        match tick.activity() {
            Some(Activity::Halted | Activity::NotStarted) => self.halted += 1,
            _ => *self.rips.entry(tick.regs.rip).or_default() += 1,
        }
        Some(self.interval)
    }

    fn missed(&mut self, why: Missed, _: u64, _: u64) -> Option<Duration> {
        let name = match why {
            Missed::InVmm => "in the VMM",
            Missed::BlockedInVmm => "blocked in the VMM",
            Missed::Paused => "paused",
            Missed::NotRun => "not run",
            Missed::Traced => "traced",
        };
        *self.missed.entry(name).or_default() += 1;
        Some(self.interval)
    }

    fn held(&mut self, from_ns: u64, to_ns: u64) {
        self.held_ns.push(to_ns - from_ns);
    }

    fn stopped(&mut self) {
        self.stopped += 1;
    }
}

/// Profiles the process for that long.
fn profile(pid: i32, time: Duration) -> Vec<Recorder> {
    let target = Target::look(pid, MOST).unwrap();
    assert_eq!((target.vcpus(), target.unseen()), (2, 0));
    let attached = Attached::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    std::thread::sleep(time);
    let ended = attached.wait().unwrap();
    assert_eq!(ended.end, End::Detached);
    ended.observers
}

#[test]
fn ticks_find_the_guest_where_it_is() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("ticks_find_the_guest_where_it_is", "vmm loops");
    let seen = profile(vm.pid(), Duration::from_secs(2));
    let [first, second] = &seen[..] else { panic!("two vCPUs") };
    let threads = [first.thread, second.thread].map(Option::unwrap);
    assert!(threads[0] != threads[1] && threads.iter().all(|id| id.process == vm.pid()));
    let ticks = first.ticks();
    assert!(ticks > 200, "{first:?}");
    let within = |from, to| -> u32 {
        first.rips.iter().filter(|(rip, _)| (from..to).contains(&(**rip - FLAT_ENTRY))).map(|(_, n)| n).sum()
    };
    assert_eq!(within(0, 20), ticks, "{:x?}", first.rips);
    // Three quarters of the time, known to within 5 % (four standard errors of 1,200 samples).
    let share = f64::from(within(9, 18)) / f64::from(ticks);
    assert!((share - 0.75).abs() < 0.05 * (1200.0 / f64::from(ticks)).sqrt().max(1.0), "{share} of {ticks}");
    // The second vCPU waits for an INIT that nobody sends: it is looked at without a stop, but for one a second, and for
    // those that come before its thread has blocked again.
    assert!(second.halted > 200 && second.ticks() == 0, "{second:?}");
    assert!(second.held_ns.len() < 20, "{} stops", second.held_ns.len());
    assert_eq!((first.stopped, second.stopped), (1, 1));
}

#[test]
fn a_profiler_that_is_killed_leaves_the_guest_as_it_was() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_killed_leaves_the_guest_as_it_was";
    let mut vm = Role::start(test, "vmm checksum");
    let expected = std::thread::spawn(checksum);
    for kill in 0..100_u64 {
        let profiler = Role::start(test, &format!("profiler {}", vm.pid()));
        // Somewhere in a tick, which takes a good part of the 200 us between two.
        std::thread::sleep(Duration::from_micros(1_000 + kill * 37));
        drop(profiler);
        assert!(!traced(vm.pid()), "after kill {kill}");
    }
    let expected = expected.join().unwrap();
    let mut rest = String::new();
    vm.output.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(&format!("Exited({expected})")), "{rest} instead of {expected}");
}

/// Some thread of the process has a tracer, or stands still.
fn traced(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let mut all = statuses.collect::<Vec<_>>().into_iter();
    all.any(|status| !status.contains("TracerPid:\t0\n") || status.contains("State:\tt"))
}

#[test]
fn the_end_of_the_vmm_is_the_end() {
    play();
    let Some(_one) = kvm() else { return };
    let (vm, attached) = attached("the_end_of_the_vmm_is_the_end", "vmm loops");
    std::thread::sleep(Duration::from_millis(300));
    drop(vm);
    assert_ended(attached, End::ProcessEnded);
}

#[test]
fn a_vmm_that_executes_another_program_has_no_machine_any_more() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_vmm_that_executes_another_program_has_no_machine_any_more";
    let (_vm, attached) = attached(test, "vmm exec");
    assert_ended(attached, End::VcpusEnded);
}

#[test]
fn a_machine_that_ends_before_its_first_tick_is_told() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_machine_that_ends_before_its_first_tick_is_told", "vmm exec");
    let target = Target::look(vm.pid(), MOST).unwrap();
    let comm = format!("/proc/{}/comm", vm.pid());
    let executes = || std::fs::read_to_string(&comm).unwrap() == "sleep\n";
    eventually("execution of the other program", SOON, || executes().then_some(()));
    let error = Attached::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap_err();
    assert!(matches!(&error, AttachError::Ended { name, .. } if name == "sleep"), "{error}");
}

/// A VMM that was started for the test, and its profiler, which ticks every 200 us.
fn attached(test: &str, role: &str) -> (Role, Attached<Recorder>) {
    let vm = Role::start(test, role);
    let target = Target::look(vm.pid(), MOST).unwrap();
    (vm, Attached::start(target, |_| Recorder::new(Duration::from_micros(200))).unwrap())
}

/// It comes to that end by itself.
fn assert_ended(attached: Attached<Recorder>, end: End) {
    eventually("end", SOON, || attached.has_ended().then_some(()));
    let ended = attached.wait().unwrap();
    assert_eq!((ended.end, ended.observers.len()), (end, 2));
}

#[test]
fn a_vmm_that_is_stopped_is_waited_for() {
    play();
    let Some(_one) = kvm() else { return };
    let (vm, attached) = attached("a_vmm_that_is_stopped_is_waited_for", "vmm loops");
    let told = |wanted: News| {
        eventually(&format!("{wanted:?}"), SOON, || attached.news().contains(&wanted).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
    };
    vm.signal(libc::SIGSTOP);
    told(News::Stands(Standing::Stopped));
    vm.signal(libc::SIGCONT);
    told(News::Moves);
    let seen = attached.wait().unwrap().observers;
    for vcpu in &seen {
        assert!(vcpu.missed.get("paused").is_some_and(|ticks| *ticks > 50), "{vcpu:?}");
    }
    assert!(seen[0].ticks() > 50, "it runs on: {seen:?}");
}

#[test]
fn what_cannot_be_attached_to_is_told() {
    play();
    let own = i32::try_from(std::process::id()).unwrap();
    let refused = |pid| Target::look(pid, MOST).unwrap_err();
    assert!(matches!(refused(own), AttachError::NoVm { .. }));
    assert!(matches!(refused(i32::MAX), AttachError::NoProcess { .. }));
    let Some(_one) = kvm() else { return };
    let vm = Role::start("what_cannot_be_attached_to_is_told", "vmm loops");
    assert!(matches!(Target::look(vm.pid(), 1), Err(AttachError::TooMany { vcpus: 2, most: 1, .. })));
    let first = Target::look(vm.pid(), MOST).unwrap();
    assert!(matches!(refused(vm.pid()), AttachError::InUse { by: Some(by), .. } if by == own));
    drop(first);
    vm.signal(libc::SIGSTOP);
    let is_stopped = || matches!(Target::look(vm.pid(), MOST), Err(AttachError::Stopped { .. }));
    eventually("refusal of a stopped VMM", SOON, || is_stopped().then_some(()));
    vm.signal(libc::SIGCONT);
    eventually("VMM that continues", SOON, || Target::look(vm.pid(), MOST).ok().map(drop));
}
