//! Parts of the tests of attaching to a VMM whose guest is a few bytes of code at CPL 3, which every KVM
//! runs.
//!
//! The VMM, and the profilers that are killed, are the test's own binary, started again with a role.

// Each of the tests' binaries uses a part of it.
#![allow(dead_code, reason = "see above")]

pub mod plug;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use attach::{Attachment, AttachmentEnd, EngineChoice, StopMemory, Target, keep_guard};
use testkit::{eventually, repetitions};
use vmm::config::FLAT_ENTRY;
use vmm::{
    Activity, AttachedThread, Machine, MissReason, Observer, ThreadId, ThreadStatistics, Tick, Unobserved,
    VmConfig, kvm_check,
};

/// Time limit of what must happen.
pub const SOON: Duration = Duration::from_secs(20);
/// Variable with the role of the child.
pub const ROLE: &str = "VPROF_TEST_ROLE";
/// Checksums of guests: iterations of [`checksum_code`] and the result. The results are constants because
/// [`checksum`] takes a minute for them in a test program, which is not optimized.
pub type Checksum = (u64, u32);
/// Longer than 25 profilers by ptrace take to start.
pub const CHECKSUM: Checksum = (1_000_000_000, 0x9ea6_a301);
/// The same for profilers that load programs into the kernel.
pub const LONG_CHECKSUM: Checksum = (3_000_000_000, 0xda2c_fd01);
pub const MOST: usize = 64;
/// Offset of the loop of a second machine.
pub const SECOND: usize = 64;

/// Serializes the tests: each measures a separate process. Returns `None` where KVM is missing and optional.
pub fn kvm() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return None;
    }
    Some(ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Two loops, the second three times as long:
/// `0: mov $1000, %ecx; 5: dec %ecx; jnz 5b; 9: mov $3000, %ecx; 14: dec %ecx; jnz 14b; jmp 0b`
pub const LOOPS: &[u8] = &[
    0xb9, 0xe8, 0x03, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xb9, 0xb8, 0x0b, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xeb,
    0xec,
];

/// Two loops of exits, the second three times as long:
/// `0: mov $10, %ecx; 5: <pause>; out %al, $0x80; dec %ecx; jnz 5b; mov $30, %ecx; <the same with port 0x81>`
/// Returns the code, and the offset of each `out`.
pub fn exits_code(pause: u32) -> (Vec<u8>, [usize; 2]) {
    let (mut code, mut outs) = (Vec::new(), [0; 2]);
    for (out, (port, turns)) in outs.iter_mut().zip([(0x80, 10_u32), (0x81, 30)]) {
        code.push(0xb9);
        code.extend(turns.to_le_bytes());
        let again = code.len();
        // `mov $pause, %esi; 1: dec %esi; jnz 1b`
        code.push(0xbe);
        code.extend(pause.to_le_bytes());
        code.extend([0xff, 0xce, 0x75, 0xfc]);
        *out = code.len();
        code.extend([0xe6, port, 0xff, 0xc9, 0x75]);
        let back = i8::try_from(again).unwrap() - i8::try_from(code.len() + 1).unwrap();
        code.push(back.cast_unsigned());
    }
    code.push(0xeb);
    let back = -i8::try_from(code.len() + 1).unwrap();
    code.push(back.cast_unsigned());
    (code, outs)
}

/// Turns of the pause between two exits, where they are rare: some 2 ms.
pub const RARE: u32 = 4_000_000;

/// A checksum in registers and memory, written to the exit port: `mov $1, %rax; mov $N, %rcx; mov $0x400000,
/// %ebx; 1: imul $0x41c64e6d, %rax; add %rcx, %rax; mov %rax, (%rbx); xor (%rbx), %rdx; dec %rcx; jnz 1b; xor
/// %rdx, %rax; mov $0xf4, %edx; out %eax, (%dx); 2: jmp 2b`
pub fn checksum_code(iterations: u64) -> Vec<u8> {
    let mut code = vec![0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0x48, 0xb9];
    code.extend(iterations.to_le_bytes());
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
pub fn checksum(iterations: u64) -> u32 {
    let (mut a, mut d) = (1_u64, 0_u64);
    for c in (1..=iterations).rev() {
        a = a.wrapping_mul(0x41c6_4e6d).wrapping_add(c);
        d ^= a;
    }
    u32::try_from((a ^ d) & 0xffff_ffff).unwrap()
}

/// Runs the child: a VMM that prints the end of its guest. In one role it executes another program at the
/// test's word, in another one it plugs in a vCPU then.
pub fn vmm(role: &str) -> ! {
    if let "plug" | "plug again" = role {
        plug::vmm(role == "plug again")
    }
    let code = match role {
        "checksum" | "page" => checksum_code(CHECKSUM.0),
        "long checksum" => checksum_code(LONG_CHECKSUM.0),
        "exits" => exits_code(1).0,
        "rare exits" => exits_code(RARE).0,
        _ => LOOPS.to_vec(),
    };
    // A second machine in the same process, at an address where the other code is not.
    let second = (role == "two").then(|| {
        let code = [vec![0x90; SECOND], vec![0xeb, 0xfe]].concat();
        let config = VmConfig { memory_bytes: 32 << 20, ..VmConfig::flat(code) };
        Machine::start(config, |_| Unobserved).unwrap()
    });
    let config = VmConfig { vcpus: 2, memory_bytes: 64 << 20, ..VmConfig::flat(code) };
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    match role {
        "spinner" => spin(),
        "page" => take_page(),
        _ => {}
    }
    println!("it runs");
    if role == "exec" {
        wait_for_word();
        panic!("{}", Command::new("sleep").arg("100").exec());
    }
    let ended = machine.wait(Some(Duration::from_secs(100))).unwrap();
    drop(second);
    println!("{:?}", ended.end);
    std::process::exit(0)
}

/// Waits in the child for [`Role::say_word`].
pub fn wait_for_word() {
    assert_eq!(std::io::stdin().read_line(&mut String::new()).unwrap(), 1, "the test has ended");
}

/// Starts a thread that runs all the time, and not for a vCPU.
pub fn spin() {
    let spinner = std::thread::Builder::new().name("spinner".to_owned());
    spinner.spawn(|| while std::hint::black_box(true) {}).unwrap();
}

/// Takes the page from the guest that it writes to, and gives it back to nobody (userfaultfd(2)): the vCPU's
/// thread waits for it in KVM_RUN.
pub fn take_page() {
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

/// Keeps a child until the test kills it, or ends.
fn until_killed() -> ! {
    println!("it runs");
    // The test writes nothing: this returns when it closes the pipe.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    std::process::exit(0)
}

/// Runs the other child: attaches and ticks until it is killed.
pub fn profiler(engine: EngineChoice, pid: &str) -> ! {
    let target = Target::find_by(engine, pid.parse().unwrap(), MOST, None).unwrap();
    let _attached = Attachment::start(target, |_| Recorder::new(Duration::from_micros(200))).unwrap();
    until_killed()
}

/// Runs a third child: attaches with a guard and with job control, and ticks until it is killed. It enters
/// the control group `group` first, if that is not empty, and then holds vCPUs for half of the time, so that
/// a freeze comes within a stop.
pub fn guarded(test: &str, pid: &str, group: &str) -> ! {
    if !group.is_empty() {
        std::fs::write(format!("{group}/cgroup.procs"), "0").unwrap();
    }
    let target = Target::find(pid.parse().unwrap(), MOST, Some(guard_of(test))).unwrap();
    target.job_control().install(&[libc::SIGTSTP]).unwrap();
    let busy = if group.is_empty() { Duration::ZERO } else { Duration::from_micros(500) };
    let recorder = |_| Recorder { busy, ..Recorder::new(Duration::from_micros(500)) };
    let _attached = Attachment::start(target, recorder).unwrap();
    until_killed()
}

/// Runs a fourth child: one that a guest has taken over. It holds a vCPU, records no stop of it, and has
/// closed its connection with the guard.
pub fn liar(test: &str, pid: &str) -> ! {
    let pid = pid.parse().unwrap();
    let target = Target::find(pid, MOST, Some(guard_of(test))).unwrap();
    for fd in 3..1_000 {
        // SAFETY: nothing uses a descriptor from here on: the target is never dropped.
        unsafe { libc::close(fd) };
    }
    std::mem::forget(target);
    assert!(try_to_hold(thread_named(pid, "vcpu 0")));
    until_killed()
}

/// Stops a thread until the calling thread ends. Returns false if it has another tracer.
pub fn try_to_hold(thread: i32) -> bool {
    // SAFETY: takes numbers alone.
    unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0, 0) == 0
    }
}

/// Returns the thread of a process with that name, once it has the name.
pub fn thread_named(pid: i32, name: &str) -> i32 {
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

/// Returns the guard's program.
fn guard_of(test: &str) -> Command {
    let mut guard = Command::new(std::env::current_exe().unwrap());
    guard.args(["--exact", test, "--nocapture"]).env(ROLE, "guard -").stderr(Stdio::null());
    guard
}

/// Runs the guard of these children.
pub fn guard() -> ! {
    let stops = std::env::args().next_back().unwrap().parse().unwrap();
    keep_guard(stops, &mut std::io::stdin().lock(), &mut std::io::sink()).unwrap();
    std::process::exit(0)
}

/// Runs a profiler on a host whose kernel has no types: in its own namespace of mounts their directory is
/// empty. Prints what the engines do then.
pub fn blind(pid: &str) -> ! {
    println!("it runs");
    let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
    // SAFETY: all strings end in NUL; the namespace is this thread's own.
    let hidden = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            && libc::mount(c"none".as_ptr(), TYPES.as_ptr(), c"tmpfs".as_ptr(), 0, none.cast()) == 0
    };
    if hidden {
        let find = |engine| Target::find_by(engine, pid.parse().unwrap(), MOST, None);
        println!("auto: {}", find(EngineChoice::Auto).unwrap().engine_sentence());
        println!("bpf: {}", find(EngineChoice::Bpf).unwrap_err());
    }
    std::process::exit(0)
}

/// Directory of the kernel's types.
const TYPES: &std::ffi::CStr = c"/sys/kernel/btf";

/// Plays the role that this process was started for, if any.
pub fn play() {
    match std::env::var(ROLE).unwrap_or_default().split_once(' ') {
        Some(("guarded", words)) => {
            let [test, pid, group] = words.split(' ').collect::<Vec<_>>()[..] else { panic!("{words}") };
            guarded(test, pid, group)
        }
        Some(("liar", words)) => {
            let (test, pid) = words.split_once(' ').unwrap();
            liar(test, pid)
        }
        Some(("guard", _)) => guard(),
        Some(("vmm", guest)) => vmm(guest),
        Some(("profiler", pid)) => profiler(EngineChoice::Ptrace, pid),
        Some(("blind", pid)) => blind(pid),
        Some(("sampler", pid)) => profiler(EngineChoice::Bpf, pid),
        _ => {}
    }
}

/// Child process that is killed at the end.
pub struct Role {
    pub child: Child,
    pub output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts this binary for the test `test` in a role; returns when the child prints that it runs.
    pub fn start(test: &str, role: &str) -> Self {
        Self::try_start(test, role).unwrap_or_else(|| panic!("{role} ended early"))
    }

    /// Starts this binary as [`Self::start`] does; `None` if the child ends before it runs.
    fn try_start(test: &str, role: &str) -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // A group with a parent outside of it, as a shell makes it for Ctrl-Z.
        command.process_group(0);
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("it runs") {
            line.clear();
            if output.read_line(&mut line).unwrap() == 0 {
                child.wait().unwrap();
                return None;
            }
        }
        Some(Self { child, output })
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Lets the child do what its role waits for.
    pub fn say_word(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub fn signal(&self, signal: i32) {
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

/// Finding of a [`Recorder`] that tests wait for.
#[derive(Debug, Clone, Copy)]
pub enum Found {
    Code,
    Halt,
    BlockedInVmm,
    Pause,
}

/// Numbers of ticks so far, by what they have found. A test waits for a number instead of a time, because a
/// busy machine takes longer for the same number.
#[derive(Debug, Default)]
pub struct Progress([AtomicU32; 4]);

impl Progress {
    pub fn of(&self, found: Found) -> u32 {
        self.0[found as usize].load(Ordering::Relaxed)
    }

    pub fn add(&self, found: Found) {
        self.0[found as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for this many ticks.
    pub fn wait_for(&self, found: Found, ticks: u32) {
        eventually(&format!("{ticks} ticks: {found:?}"), SOON, || (self.of(found) >= ticks).then_some(()));
    }
}

#[derive(Debug)]
pub struct Recorder {
    pub progress: Arc<Progress>,
    pub interval: Duration,
    /// Time for which a tick works.
    pub busy: Duration,
    pub rips: HashMap<u64, u32>,
    pub halted: u32,
    /// Ticks at which the thread waited for a CPU.
    pub waiting: u32,
    pub missed: HashMap<&'static str, u32>,
    pub suspended_ns: Vec<u64>,
    pub thread: Option<ThreadId>,
    pub statistics: Option<Arc<dyn ThreadStatistics>>,
    pub stopped: u32,
}

impl Recorder {
    pub fn new(interval: Duration) -> Self {
        Self {
            progress: Arc::default(),
            interval,
            busy: Duration::ZERO,
            rips: HashMap::new(),
            halted: 0,
            waiting: 0,
            missed: HashMap::new(),
            suspended_ns: Vec::new(),
            thread: None,
            statistics: None,
            stopped: 0,
        }
    }

    /// Makes the recorder whose progress a test waits for.
    pub fn watched(interval: Duration, progress: &Arc<Progress>) -> Self {
        Self { progress: Arc::clone(progress), ..Self::new(interval) }
    }

    pub fn ticks(&self) -> u32 {
        self.rips.values().sum()
    }
}

impl Observer<StopMemory> for Recorder {
    fn attached(&mut self, thread: Option<AttachedThread>) {
        self.thread = thread.as_ref().map(|thread| thread.id);
        self.statistics = thread.and_then(|thread| thread.statistics);
    }

    fn started(&mut self) -> Option<Duration> {
        Some(self.interval)
    }

    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        assert!(tick.now_ns >= tick.due_ns);
        let begun = Instant::now();
        while begun.elapsed() < self.busy {
            std::hint::spin_loop();
        }
        self.waiting += u32::from(tick.source.is_waiting() == Some(true));
        match tick.activity() {
            Some(Activity::Halted | Activity::NotStarted) => {
                self.halted += 1;
                self.progress.add(Found::Halt);
            }
            _ => {
                *self.rips.entry(tick.regs.rip).or_default() += 1;
                self.progress.add(Found::Code);
            }
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
        match why {
            MissReason::BlockedInVmm => self.progress.add(Found::BlockedInVmm),
            MissReason::Paused => self.progress.add(Found::Pause),
            _ => {}
        }
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

/// Profiles the process until each of its two vCPUs has had this many ticks of a kind.
pub fn profile(engine: EngineChoice, pid: i32, until: [(Found, u32); 2]) -> Vec<Recorder> {
    let target = Target::find_by(engine, pid, MOST, None).unwrap();
    assert_eq!((target.vcpus(), target.unseen()), (2, 0));
    let progress = [(); 2].map(|()| Arc::default());
    let recorder = |vcpu: usize| Recorder::watched(Duration::from_millis(1), &progress[vcpu]);
    let attached = Attachment::start(target, recorder).unwrap();
    for (progress, (found, ticks)) in progress.iter().zip(until) {
        progress.wait_for(found, ticks);
    }
    let ended = attached.wait().unwrap();
    assert_eq!(ended.end, AttachmentEnd::Detached);
    ended.observers
}

/// Asserts that the first vCPU runs, by 100 samples of it.
pub fn guest_continues(engine: EngineChoice, pid: i32) {
    profile(engine, pid, [(Found::Code, 100), (Found::Halt, 0)]);
}

/// Profiles the VMM whose first vCPU loops, and asserts that the samples are where it loops. Returns what
/// was seen of both vCPUs.
pub fn loops_are_seen(engine: EngineChoice, vm: &Role) -> [Recorder; 2] {
    let seen = profile(engine, vm.pid(), [(Found::Code, 1_200), (Found::Halt, 200)]);
    let [first, second] = <[Recorder; 2]>::try_from(seen).unwrap();
    let threads = [first.thread, second.thread].map(Option::unwrap);
    assert!(threads[0] != threads[1] && threads.iter().all(|id| id.process == vm.pid()));
    let ticks = first.ticks();
    let within = |from, to| -> u32 {
        first.rips.iter().filter(|(rip, _)| (from..to).contains(&(**rip - FLAT_ENTRY))).map(|(_, n)| n).sum()
    };
    assert_eq!(within(0, 20), ticks, "{:x?}", first.rips);
    // Three quarters of the time, known to within 5 %: four standard errors of 1,200 samples.
    let share = f64::from(within(9, 18)) / f64::from(ticks);
    assert!((share - 0.75).abs() < 0.05, "{share} of {ticks}");
    assert_eq!((first.stopped, second.stopped), (1, 1));
    [first, second]
}

/// Kills profilers within ticks, and asserts that the guest's checksum is right and no thread is traced. A
/// guest that has its checksum before the last kill is followed by another one.
pub fn killed_profilers_leave_nothing(engine: EngineChoice, test: &str) {
    let sampled = engine == EngineChoice::Bpf;
    let (vmm, (_, expected), profiler) = if sampled {
        ("vmm long checksum", LONG_CHECKSUM, "sampler")
    } else {
        ("vmm checksum", CHECKSUM, "profiler")
    };
    let (mut kills, all) = (0, interruptions());
    while kills < all {
        let mut vm = Role::start(test, vmm);
        let before = kills;
        while kills < all {
            let Some(profiler) = Role::try_start(test, &format!("{profiler} {}", vm.pid())) else {
                let ended = || vm.child.try_wait().unwrap();
                eventually("end of the guest, without which a profiler starts", SOON, ended);
                break;
            };
            within_ticks(kills);
            assert!(!sampled || !traced(vm.pid()), "before kill {kills}");
            drop(profiler);
            assert!(!traced(vm.pid()), "after kill {kills}");
            kills += 1;
        }
        assert!(kills > before, "{kills} kills");
        let mut rest = String::new();
        vm.output.read_to_string(&mut rest).unwrap();
        assert!(rest.contains(&format!("Exited({expected})")), "{rest} instead of {expected}");
    }
}

/// Returns how often a test kills or stops a profiler.
pub fn interruptions() -> u64 {
    repetitions(25, 100)
}

/// Waits for another part of a tick, or of the pause between two ticks, in each turn of a test. Nothing can
/// signal to a test that a tick has come so far, because the signal would interrupt the tick.
pub fn within_ticks(turn: u64) {
    // A tick takes a good part of the 200 us between two. 37 has no divisor in common with 200.
    std::thread::sleep(Duration::from_micros(1_000 + turn * 37));
}

/// Stops profilers within ticks by SIGSTOP, and asserts that no vCPU is held, or not for long: by ptrace,
/// a profiler that holds one is killed by its guard.
pub fn stopped_profilers_hold_nothing(engine: EngineChoice, test: &str) {
    let sampled = engine == EngineChoice::Bpf;
    let vm = Role::start(test, "vmm loops");
    let role = match sampled {
        true => format!("sampler {}", vm.pid()),
        false => format!("guarded {test} {} ", vm.pid()),
    };
    let (mut profiler, mut held, all) = (Role::start(test, &role), 0, interruptions());
    for stop in 0..all {
        within_ticks(stop);
        profiler.signal(libc::SIGSTOP);
        // Its guard may have ended it by then.
        eventually("stop", SOON, || matches!(state(profiler.pid()), 'T' | 'Z').then_some(()));
        if is_held(vm.pid()) {
            held += 1;
            // Six checks, 50 ms apart.
            eventually("end of the stop", SOON, || (!is_held(vm.pid())).then_some(()));
            eventually("end of the profiler", SOON, || has_ended(&mut profiler).then_some(()));
            profiler = Role::start(test, &role);
        } else {
            assert!(!sampled || !traced(vm.pid()), "at stop {stop}");
            profiler.signal(libc::SIGCONT);
        }
    }
    assert_eq!(held == 0, sampled, "{held} of {all} SIGSTOPs came within a stop of a vCPU");
    assert!(!has_ended(&mut profiler));
    drop(profiler);
    guest_continues(engine, vm.pid());
}

/// Returns true if the child has ended.
pub fn has_ended(role: &mut Role) -> bool {
    role.child.try_wait().unwrap().is_some()
}

/// Returns the state of a process, by its status.
pub fn state(pid: i32) -> char {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.split_once("State:\t").unwrap().1.chars().next().unwrap()
}

/// Returns true if some thread of the process is in a tracer's stop.
pub fn is_held(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.any(|status| status.contains("State:\tt"))
}

/// Returns true if some thread of the process has a tracer, or is stopped.
pub fn traced(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let mut all = statuses.collect::<Vec<_>>().into_iter();
    all.any(|status| !status.contains("TracerPid:\t0\n") || status.contains("State:\tt"))
}
