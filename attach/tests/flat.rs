//! Tests of attaching to a VMM on this host's KVM whose guest is a few bytes of code at CPL 3, which every
//! KVM runs.
//!
//! The VMM, and the profilers that are killed, are this test's own binary, started again with a role.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use attach::{
    AttachError, AttachEvent, Attachment, AttachmentEnd, PauseCause, StopMemory, Target, keep_guard,
};
use testkit::eventually;
use vmm::config::FLAT_ENTRY;
use vmm::{Activity, Machine, MissReason, Observer, ThreadId, Tick, Unobserved, VmConfig, kvm_check};

/// Time limit of what must happen.
const SOON: Duration = Duration::from_secs(20);
/// Variable with the role of the child.
const ROLE: &str = "VPROF_TEST_ROLE";
/// Iterations of the guest's checksum: longer than 100 profilers take to start.
const ITERATIONS: u64 = 3_000_000_000;
const MOST: usize = 64;

/// Serializes the tests: each measures a separate process. Returns `None` where KVM is missing and optional.
fn kvm() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if let Err(error) = kvm_check::open() {
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

/// A checksum in registers and memory, written to the exit port: `mov $1, %rax; mov $N, %rcx; mov $0x400000,
/// %ebx; 1: imul $0x41c64e6d, %rax; add %rcx, %rax; mov %rax, (%rbx); xor (%rbx), %rdx; dec %rcx; jnz 1b; xor
/// %rdx, %rax; mov $0xf4, %edx; out %eax, (%dx); 2: jmp 2b`
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

/// Returns the checksum that the code computes.
fn checksum() -> u32 {
    let (mut a, mut d) = (1_u64, 0_u64);
    for c in (1..=ITERATIONS).rev() {
        a = a.wrapping_mul(0x41c6_4e6d).wrapping_add(c);
        d ^= a;
    }
    u32::try_from((a ^ d) & 0xffff_ffff).unwrap()
}

/// Runs the child: a VMM that prints the end of its guest. In one role it executes another program after a
/// second.
fn vmm(role: &str) -> ! {
    let code = if role == "checksum" || role == "page" { checksum_code() } else { LOOPS.to_vec() };
    let config = VmConfig { vcpus: 2, memory_bytes: 64 << 20, ..VmConfig::flat(code) };
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    match role {
        "spinner" => spin(),
        "page" => take_page(),
        _ => {}
    }
    println!("it runs");
    if role == "exec" {
        std::thread::sleep(Duration::from_secs(1));
        panic!("{}", Command::new("sleep").arg("100").exec());
    }
    let ended = machine.wait(Some(Duration::from_secs(100))).unwrap();
    println!("{:?}", ended.end);
    std::process::exit(0)
}

/// Starts a thread that runs all the time, and not for a vCPU.
fn spin() {
    let spinner = std::thread::Builder::new().name("spinner".to_owned());
    spinner.spawn(|| while std::hint::black_box(true) {}).unwrap();
}

/// Takes the page from the guest that it writes to, and gives it back to nobody (userfaultfd(2)): the vCPU's
/// thread waits for it in KVM_RUN.
fn take_page() {
    #[repr(C)]
    struct Range([u64; 4]);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = maps.lines().find_map(|line| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        (to - from >= 64 << 20 && line.contains("rw-p")).then_some(from)
    });
    let page = memory.expect("the guest's memory") + 0x40_0000;
    // SAFETY: each call has valid arguments (include/uapi/linux/userfaultfd.h: UFFDIO_API, UFFDIO_REGISTER
    // for missing pages), and the page belongs to the guest alone.
    unsafe {
        let fd = i32::try_from(libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC)).unwrap();
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let mut api = Range([0xaa, 0, 0, 0]);
        assert_eq!(libc::ioctl(fd, 0xc018_aa3f, &raw mut api), 0);
        let mut range = Range([page, 4096, 1, 0]);
        assert_eq!(libc::ioctl(fd, 0xc020_aa00, &raw mut range), 0, "{}", std::io::Error::last_os_error());
        let page = std::ptr::without_provenance_mut(usize::try_from(page).unwrap());
        assert_eq!(libc::madvise(page, 4096, libc::MADV_DONTNEED), 0);
    }
}

/// Runs the other child: attaches and ticks until it is killed.
fn profiler(pid: &str) -> ! {
    let target = Target::find(pid.parse().unwrap(), MOST, None).unwrap();
    let _attached = Attachment::start(target, |_| Recorder::new(Duration::from_micros(200))).unwrap();
    println!("it runs");
    std::thread::sleep(Duration::from_secs(100));
    std::process::exit(0)
}

/// Runs a third child: attaches with a guard and with job control, and ticks until it is killed. It enters
/// the control group `group` first, if that is not empty.
fn guarded(test: &str, pid: &str, group: &str) -> ! {
    if !group.is_empty() {
        std::fs::write(format!("{group}/cgroup.procs"), "0").unwrap();
    }
    let mut guard = Command::new(std::env::current_exe().unwrap());
    guard.args(["--exact", test, "--nocapture"]).env(ROLE, "guard -").stderr(Stdio::null());
    let target = Target::find(pid.parse().unwrap(), MOST, Some(guard)).unwrap();
    target.job_control().install(&[libc::SIGTSTP]).unwrap();
    let _attached = Attachment::start(target, |_| Recorder::new(Duration::from_micros(500))).unwrap();
    println!("it runs");
    std::thread::sleep(Duration::from_secs(1000));
    std::process::exit(0)
}

/// Runs the guard of that child.
fn guard() -> ! {
    let stops = std::env::args().next_back().unwrap().parse().unwrap();
    keep_guard(stops, &mut std::io::stdin().lock(), &mut std::io::sink(), |_| ()).unwrap();
    std::process::exit(0)
}

/// Plays the role that this process was started for, if any.
fn play() {
    match std::env::var(ROLE).unwrap_or_default().split_once(' ') {
        Some(("guarded", words)) => {
            let [test, pid, group] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
            guarded(test, pid, group)
        }
        Some(("guard", _)) => guard(),
        Some(("vmm", guest)) => vmm(guest),
        Some(("profiler", pid)) => profiler(pid),
        _ => {}
    }
}

/// Child process that is killed at the end.
struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts this binary for the test `test` in a role; returns when the child prints that it runs.
    fn start(test: &str, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
        // A group with a parent outside of it, as a shell makes it for Ctrl-Z.
        command.process_group(0);
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
    suspended_ns: Vec<u64>,
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
            suspended_ns: Vec::new(),
            thread: None,
            stopped: 0,
        }
    }

    fn ticks(&self) -> u32 {
        self.rips.values().sum()
    }
}

impl Observer<StopMemory> for Recorder {
    fn attached(&mut self, thread: Option<ThreadId>) {
        self.thread = thread;
    }

    fn started(&mut self) -> Option<Duration> {
        Some(self.interval)
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        assert!(tick.now_ns >= tick.due_ns);
        match tick.activity() {
            Some(Activity::Halted | Activity::NotStarted) => self.halted += 1,
            _ => *self.rips.entry(tick.regs.rip).or_default() += 1,
        }
        Some(self.interval)
    }

    fn missed(&mut self, why: MissReason, _: u64, _: u64) -> Option<Duration> {
        let name = match why {
            MissReason::InVmm => "in the VMM",
            MissReason::BlockedInVmm => "blocked in the VMM",
            MissReason::Paused => "paused",
            MissReason::NotRun => "not run",
            MissReason::Traced => "traced",
        };
        *self.missed.entry(name).or_default() += 1;
        Some(self.interval)
    }

    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        self.suspended_ns.push(to_ns - from_ns);
    }

    fn stopped(&mut self) {
        self.stopped += 1;
    }
}

/// Profiles the process for `time`.
fn profile(pid: i32, time: Duration) -> Vec<Recorder> {
    let target = Target::find(pid, MOST, None).unwrap();
    assert_eq!((target.vcpus(), target.unseen()), (2, 0));
    let attached = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap();
    std::thread::sleep(time);
    let ended = attached.wait().unwrap();
    assert_eq!(ended.end, AttachmentEnd::Detached);
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
    // The second vCPU waits for an INIT that nobody sends: it is observed without a stop, except one a
    // second, and for those that come before its thread has blocked again.
    assert!(second.halted > 200 && second.ticks() == 0, "{second:?}");
    assert!(second.suspended_ns.len() < 20, "{} stops", second.suspended_ns.len());
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

/// Returns true if the child has ended.
fn has_ended(role: &mut Role) -> bool {
    role.child.try_wait().unwrap().is_some()
}

/// Returns the state of a process, by its status.
fn state(pid: i32) -> char {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.split_once("State:\t").unwrap().1.chars().next().unwrap()
}

/// Returns true if some thread of the process is in a tracer's stop.
fn is_held(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.any(|status| status.contains("State:\tt"))
}

#[test]
fn a_profiler_that_is_stopped_holds_no_vcpu_for_long() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_is_stopped_holds_no_vcpu_for_long";
    let vm = Role::start(test, "vmm loops");
    let start = || Role::start(test, &format!("guarded {test} {} ", vm.pid()));
    let (mut profiler, mut held) = (start(), 0);
    for stop in 0..100_u64 {
        // Somewhere in a tick or between two.
        std::thread::sleep(Duration::from_micros(1_000 + stop * 37));
        profiler.signal(libc::SIGSTOP);
        eventually("stop", SOON, || (state(profiler.pid()) != 'R').then_some(()));
        if is_held(vm.pid()) {
            held += 1;
            // Six checks, 50 ms apart.
            eventually("end of the stop", SOON, || (!is_held(vm.pid())).then_some(()));
            eventually("end of the profiler", SOON, || has_ended(&mut profiler).then_some(()));
            profiler = start();
        } else {
            profiler.signal(libc::SIGCONT);
        }
    }
    assert!(held > 0, "no SIGSTOP came within a stop: nothing was tested");
    drop(profiler);
    assert!(profile(vm.pid(), Duration::from_secs(1))[0].ticks() > 100, "the guest continues");
}

#[test]
fn a_profiler_that_its_terminal_stops_holds_no_vcpu() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_profiler_that_its_terminal_stops_holds_no_vcpu";
    let vm = Role::start(test, "vmm loops");
    let mut profiler = Role::start(test, &format!("guarded {test} {} ", vm.pid()));
    for stop in 0..100_u64 {
        std::thread::sleep(Duration::from_micros(1_000 + stop * 37));
        profiler.signal(libc::SIGTSTP);
        eventually("stop", SOON, || (state(profiler.pid()) == 'T').then_some(()));
        assert!(!is_held(vm.pid()), "at stop {stop}");
        profiler.signal(libc::SIGCONT);
        eventually("next tick", SOON, || traced(vm.pid()).then_some(()));
    }
    assert!(!has_ended(&mut profiler));
    drop(profiler);
    assert!(profile(vm.pid(), Duration::from_secs(1))[0].ticks() > 100, "the guest continues");
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

    fn freeze(&self, frozen: bool) {
        std::fs::write(format!("{}/cgroup.freeze", self.0), if frozen { "1" } else { "0" }).unwrap();
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
    for stop in 0..40_u64 {
        std::thread::sleep(Duration::from_micros(1_000 + stop * 97));
        group.freeze(true);
        std::thread::sleep(Duration::from_millis(20));
        if is_held(vm.pid()) {
            held += 1;
            eventually("end of the stop", SOON, || (!is_held(vm.pid())).then_some(()));
            group.freeze(false);
            eventually("end of the profiler", SOON, || has_ended(&mut profiler).then_some(()));
            profiler = start();
        } else {
            group.freeze(false);
        }
    }
    assert!(held > 0, "no freeze came within a stop: nothing was tested");
    drop(profiler);
}

/// Returns the thread of a process with that name, once it has the name.
fn thread_named(pid: i32, name: &str) -> i32 {
    let tasks = format!("/proc/{pid}/task");
    let is_named = |thread: &i32| {
        std::fs::read_to_string(format!("{tasks}/{thread}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    eventually("a thread with that name", SOON, || {
        let threads = std::fs::read_dir(&tasks).ok()?;
        let mut numbers = threads.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        numbers.find(is_named)
    })
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
    let seen = profile(vm.pid(), Duration::from_secs(1));
    let blocked = seen[0].missed.get("blocked in the VMM").copied().unwrap_or(0);
    assert!(blocked > 100 && seen[0].halted == 0, "{seen:?}");
    assert!(seen[1].halted > 100, "the other one is halted: {seen:?}");
}

/// Returns true if some thread of the process has a tracer, or is stopped.
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
    assert_ended(attached, AttachmentEnd::ProcessEnded);
}

#[test]
fn a_vmm_that_executes_another_program_has_no_machine_any_longer() {
    play();
    let Some(_one) = kvm() else { return };
    let test = "a_vmm_that_executes_another_program_has_no_machine_any_longer";
    let (_vm, attached) = attached(test, "vmm exec");
    assert_ended(attached, AttachmentEnd::VcpusEnded);
}

#[test]
fn a_machine_that_ends_before_its_first_tick_is_an_error() {
    play();
    let Some(_one) = kvm() else { return };
    let vm = Role::start("a_machine_that_ends_before_its_first_tick_is_an_error", "vmm exec");
    let target = Target::find(vm.pid(), MOST, None).unwrap();
    let comm = format!("/proc/{}/comm", vm.pid());
    let executes = || std::fs::read_to_string(&comm).unwrap() == "sleep\n";
    eventually("execution of the other program", SOON, || executes().then_some(()));
    let error = Attachment::start(target, |_| Recorder::new(Duration::from_millis(1))).unwrap_err();
    assert!(matches!(&error, AttachError::Ended { name, .. } if name == "sleep"), "{error}");
}

/// A VMM that was started for the test, and its profiler, which ticks every 200 us.
fn attached(test: &str, role: &str) -> (Role, Attachment<Recorder>) {
    let vm = Role::start(test, role);
    let target = Target::find(vm.pid(), MOST, None).unwrap();
    (vm, Attachment::start(target, |_| Recorder::new(Duration::from_micros(200))).unwrap())
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
    let (vm, attached) = attached("a_vmm_that_is_stopped_is_waited_for", "vmm loops");
    let wait_for = |wanted: AttachEvent| {
        eventually(&format!("{wanted:?}"), SOON, || attached.take_events().contains(&wanted).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
    };
    vm.signal(libc::SIGSTOP);
    wait_for(AttachEvent::Paused(PauseCause::Signal));
    vm.signal(libc::SIGCONT);
    wait_for(AttachEvent::Resumed);
    let seen = attached.wait().unwrap().observers;
    for vcpu in &seen {
        assert!(vcpu.missed.get("paused").is_some_and(|ticks| *ticks > 50), "{vcpu:?}");
    }
    assert!(seen[0].ticks() > 50, "it continues: {seen:?}");
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
