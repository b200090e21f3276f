//! The machine on this host's KVM, with a few bytes of code as its guest. They run at CPL 3,
//! which every KVM executes natively, kvm_pvm included.

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use vmm::config::FLAT_ENTRY;
use vmm::{
    Activity, Console, Disk, DiskMode, Exit, Machine, MachineEnd, Observer, Payload, StartError, Tick,
    Unobserved, VmConfig, kvm_check,
};

/// `1: inc %rax; jmp 1b`
const COUNT: &[u8] = &[0x48, 0xff, 0xc0, 0xeb, 0xfb];
/// Time limit of what must happen.
const LIMIT: Duration = Duration::from_secs(20);
const SOON: Option<Duration> = Some(LIMIT);
/// Time limit of a stop: without its kick the guest runs on until [`LIMIT`].
const PROMPT: Duration = Duration::from_secs(5);

/// One test at a time, since some of them look at the threads of the process. `None` where there is no KVM,
/// and need not be.
fn kvm() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return None;
    }
    Some(ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn flat(code: &[u8], cpl: u8) -> VmConfig {
    VmConfig { payload: Payload::Flat { code: code.to_vec(), cpl }, ..VmConfig::flat(code) }
}

/// `mov $VALUE, %eax; mov $0xf4, %edx; out %eax, (%dx); 1: jmp 1b`
fn exit_with(value: u32) -> Vec<u8> {
    let mut code = vec![0xb8];
    code.extend(value.to_le_bytes());
    code.extend([0xba, 0xf4, 0, 0, 0, 0xef, 0xeb, 0xfe]);
    code
}

/// Names of this process' threads that belong to a machine.
fn machine_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let ours = |name: &String| ["vcpu ", "disk ", "rng"].iter().any(|part| name.starts_with(part));
    names.map(|name| name.trim().to_owned()).filter(ours).collect()
}

/// Number of ticks so far, which a test waits for.
type TickCount = Arc<AtomicUsize>;

fn wait_for(ticks: &TickCount, number: usize) {
    testkit::eventually("ticks", LIMIT, || (ticks.load(Ordering::Relaxed) >= number).then_some(()));
}

#[derive(Default)]
struct Recorder {
    ticked: TickCount,
    interval: Option<Duration>,
    /// When it was due and served, an interval after that, and the entry that followed; CLOCK_MONOTONIC ns.
    ticks: Vec<(u64, u64, u64, u64)>,
    rips: HashSet<u64>,
    cpls: HashSet<u8>,
    counts: Vec<u64>,
    entered: usize,
    interrupted: usize,
    started: usize,
    stopped: usize,
    activity: Option<Activity>,
}

impl Observer for Recorder {
    fn started(&mut self) -> Option<Duration> {
        self.started += 1;
        self.interval
    }
    fn entering(&mut self, now_ns: u64) {
        self.entered += 1;
        if let Some((_, _, _, entered_ns @ 0)) = self.ticks.last_mut() {
            *entered_ns = now_ns;
        }
    }
    fn exited(&mut self, exit: Exit, _: u64) {
        self.interrupted += usize::from(exit == Exit::Interrupted);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.ticked.fetch_add(1, Ordering::Relaxed);
        let interval = self.interval?;
        let next = tick.now_ns + u64::try_from(interval.as_nanos()).unwrap();
        self.ticks.push((tick.due_ns, tick.now_ns, next, 0));
        self.rips.insert(tick.regs.rip);
        self.cpls.insert(tick.cpl());
        self.counts.push(tick.regs.rax);
        self.activity = tick.activity();
        self.interval
    }
    fn stopped(&mut self) {
        self.stopped += 1;
    }
}

#[test]
fn ticks_arrive_when_due_with_the_guests_registers() {
    let Some(_one) = kvm() else { return };
    let (interval, ticked) = (Some(Duration::from_millis(1)), TickCount::default());
    let recorder = |_| Recorder { interval, ticked: Arc::clone(&ticked), ..Default::default() };
    let machine = Machine::start(flat(COUNT, 3), recorder).unwrap();
    wait_for(&ticked, 200);
    machine.stop();
    let ended = machine.wait(SOON).unwrap();
    assert_eq!(ended.end, MachineEnd::Stopped);
    let seen = &ended.observers[0];
    for pair in seen.ticks.windows(2) {
        // The sampling clock is stopped from the exit to the next entry.
        let (earliest, latest) = (pair[0].2, pair[0].3 + 1_000_000);
        assert!((earliest..=latest).contains(&pair[1].0), "due an interval after the entry: {pair:?}");
        assert!(pair[1].1 >= pair[1].0, "no tick comes early");
    }
    assert!(seen.rips.iter().all(|rip| (FLAT_ENTRY..FLAT_ENTRY + 5).contains(rip)), "{:x?}", seen.rips);
    assert_eq!(seen.cpls, HashSet::from([3]));
    // A busy host may not let the guest run between two ticks, but never for long.
    assert!(seen.counts.windows(2).all(|pair| pair[0] <= pair[1]), "{:?}", seen.counts);
    let distinct: HashSet<u64> = seen.counts.iter().copied().collect();
    assert!(distinct.len() * 2 > seen.counts.len(), "{:?}", seen.counts);
    assert_eq!(seen.activity, Some(Activity::Running));
    assert_eq!((seen.started, seen.stopped), (1, 1));
    assert!(seen.interrupted >= seen.ticks.len() && seen.entered >= seen.interrupted);
}

/// Ticks at irregular intervals, and the times in and out of KVM_RUN by its entries and exits.
#[derive(Default)]
struct Places {
    ticked: TickCount,
    since_ns: u64,
    serving: bool,
    in_run_ns: u64,
    serving_ns: u64,
    ticks_in_run: u32,
    ticks: u32,
}

impl Observer for Places {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
    fn entering(&mut self, now_ns: u64) {
        // IrqContext a tick is neither: none comes meanwhile.
        self.serving_ns += if self.serving { now_ns - self.since_ns } else { 0 };
        self.since_ns = now_ns;
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.in_run_ns += now_ns - self.since_ns;
        self.since_ns = now_ns;
        self.serving = exit != Exit::Interrupted;
        let begun = Instant::now();
        while self.serving && begun.elapsed() < Duration::from_micros(20) {}
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.ticks += 1;
        self.ticked.fetch_add(1, Ordering::Relaxed);
        self.ticks_in_run += u32::from(tick.in_run);
        // Multiples of the golden ratio modulo 1 are spread evenly.
        let part = (f64::from(self.ticks) * 0.618_033_988_749_895).fract();
        Some(Duration::from_secs_f64((0.5 + part) * 500e-6))
    }
}

/// A guest that exits every few dozen microseconds: most ticks are served a few exits after they were due.
#[test]
fn ticks_come_in_kvm_run_as_often_as_the_vcpu_is_there() {
    let Some(_one) = kvm() else { return };
    // `mov $0x80, %edx; 1: mov $20000, %ecx; 2: dec %ecx; jnz 2b; out %al, (%dx); jmp 1b`
    let code = [0xba, 0x80, 0, 0, 0, 0xb9, 0x20, 0x4e, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xee, 0xeb, 0xf4];
    let ticked = TickCount::default();
    let places = |_| Places { ticked: Arc::clone(&ticked), ..Places::default() };
    let machine = Machine::start(flat(&code, 3), places).unwrap();
    wait_for(&ticked, 2_000);
    machine.stop();
    let seen = &machine.wait(SOON).unwrap().observers[0];
    let ticks = f64::from(seen.ticks);
    let time = seen.in_run_ns as f64 / (seen.in_run_ns + seen.serving_ns) as f64;
    assert!((0.1..0.9).contains(&time), "{time} of the time in KVM_RUN");
    let sampled = f64::from(seen.ticks_in_run) / ticks;
    // Five standard deviations.
    assert!((sampled - time).abs() < 2.5 / ticks.sqrt(), "{sampled} of {ticks} ticks, {time} of the time");
}

#[test]
fn a_machine_without_ticks_leaves_the_guest_alone() {
    let Some(_one) = kvm() else { return };
    let machine = Machine::start(flat(COUNT, 3), |_| Recorder::default()).unwrap();
    // The guest runs for a while, because every entry meanwhile would be one too many.
    std::thread::sleep(Duration::from_millis(100));
    let ended = {
        machine.stop();
        machine.wait(SOON).unwrap()
    };
    let seen = &ended.observers[0];
    assert!(seen.ticks.is_empty());
    assert!(seen.entered <= 3, "{} entries", seen.entered);
}

#[test]
fn a_stop_is_prompt_at_both_levels_and_no_thread_is_left() {
    let Some(_one) = kvm() else { return };
    for cpl in [3, 0] {
        let machine = Machine::start(flat(COUNT, cpl), |_| Unobserved).unwrap();
        testkit::eventually("thread", LIMIT, || {
            machine_threads().contains(&"vcpu 0".to_owned()).then_some(())
        });
        assert!(!machine.has_ended());
        let start = Instant::now();
        machine.stop();
        let ended = machine.wait(SOON).unwrap();
        assert_eq!(ended.end, MachineEnd::Stopped);
        assert!(start.elapsed() < PROMPT, "CPL {cpl}: {:?}", start.elapsed());
        assert_eq!(machine_threads(), Vec::<String>::new());
    }
}

#[test]
fn dropping_a_machine_stops_it() {
    let Some(_one) = kvm() else { return };
    let mut config = flat(COUNT, 3);
    config.vcpus = 4;
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    config.disks.push(Disk { file: file.into(), mode: DiskMode::Snapshot });
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    let mut threads = machine_threads();
    threads.sort();
    assert_eq!(threads, ["disk 0", "rng", "vcpu 0", "vcpu 1", "vcpu 2", "vcpu 3"]);
    drop(machine);
    assert_eq!(machine_threads(), Vec::<String>::new());
}

#[test]
fn a_wait_is_bounded_and_then_stops_the_machine() {
    let Some(_one) = kvm() else { return };
    let machine = Machine::start(flat(COUNT, 3), |_| Unobserved).unwrap();
    let start = Instant::now();
    let ended = machine.wait(Some(Duration::from_millis(100))).unwrap();
    assert_eq!(ended.end, MachineEnd::Stopped);
    assert!((Duration::from_millis(100)..Duration::from_secs(2)).contains(&start.elapsed()));
}

#[test]
fn the_exit_port_ends_the_machine_from_ring_3() {
    let Some(_one) = kvm() else { return };
    let mut config = flat(&exit_with(0xdead_beef), 3);
    config.vcpus = 2;
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    let ended = machine.wait(SOON).unwrap();
    assert_eq!(ended.end, MachineEnd::Exited(0xdead_beef));
    assert_eq!(ended.observers.len(), 2);
    assert_eq!(machine_threads(), Vec::<String>::new());
}

#[test]
fn the_exit_port_ends_the_machine_from_ring_0() {
    let Some(_one) = kvm() else { return };
    let machine = Machine::start(flat(&exit_with(7), 0), |_| Unobserved).unwrap();
    assert_eq!(machine.wait(SOON).unwrap().end, MachineEnd::Exited(7));
}

#[test]
fn a_triple_fault_is_reported_with_registers() {
    let Some(_one) = kvm() else { return };
    // ud2, and there is no IDT.
    let machine = Machine::start(flat(&[0x0f, 0x0b], 3), |_| Unobserved).unwrap();
    let ended = machine.wait(SOON).unwrap();
    let MachineEnd::Failed(report) = ended.end else { panic!("{:?}", ended.end) };
    let mut lines = report.lines();
    assert!(lines.next().unwrap().starts_with("vCPU 0: "), "{report}");
    assert!(lines.next().unwrap().contains("RIP"), "{report}");
}

#[test]
fn the_end_can_be_polled() {
    let Some(_one) = kvm() else { return };
    let machine = Machine::start(flat(&exit_with(1), 3), |_| Unobserved).unwrap();
    let mut end = libc::pollfd {
        fd: std::os::fd::AsRawFd::as_raw_fd(&machine.ended_fd()),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is valid for one entry.
    assert_eq!(unsafe { libc::poll(&raw mut end, 1, 20_000) }, 1);
    assert!(machine.has_ended());
}

#[test]
fn the_serial_port_works_in_both_directions() {
    let Some(_one) = kvm() else { return };
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // Writes 'k', waits for a byte, writes it back, and ends with it:
    //   mov $0x3f8, %edx; mov $'k', %al; out %al, (%dx)
    //   mov $0x3fd, %edx; 1: in (%dx), %al; test $1, %al; jz 1b
    //   mov $0x3f8, %edx; in (%dx), %al; out %al, (%dx); movzx %al, %eax
    //   mov $0xf4, %edx; out %eax, (%dx); 2: jmp 2b
    let code = [
        0xba, 0xf8, 0x03, 0, 0, 0xb0, b'k', 0xee, //
        0xba, 0xfd, 0x03, 0, 0, 0xec, 0xa8, 0x01, 0x74, 0xfb, //
        0xba, 0xf8, 0x03, 0, 0, 0xec, 0xee, 0x0f, 0xb6, 0xc0, //
        0xba, 0xf4, 0, 0, 0, 0xef, 0xeb, 0xfe,
    ];
    let sink = Sink::default();
    let mut config = flat(&code, 3);
    config.console = Console(Box::new(sink.clone()));
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    assert_eq!(machine.console_input(b"!"), 1);
    assert_eq!(machine.wait(SOON).unwrap().end, MachineEnd::Exited(u32::from(b'!')));
    assert_eq!(*sink.0.lock().unwrap(), b"k!");
}

#[test]
fn many_machines_at_a_high_rate_lose_no_stop() {
    let Some(_one) = kvm() else { return };
    for round in 0..40u64 {
        let interval = Some(Duration::from_micros(50 + round));
        let machine =
            Machine::start(flat(COUNT, 3), |_| Recorder { interval, ..Default::default() }).unwrap();
        // Each round stops the machine at another moment of its life.
        std::thread::sleep(Duration::from_micros(round * 300));
        let start = Instant::now();
        machine.stop();
        machine.wait(SOON).unwrap();
        assert!(start.elapsed() < PROMPT, "round {round}: {:?}", start.elapsed());
    }
    assert_eq!(machine_threads(), Vec::<String>::new());
}

#[test]
fn a_panic_of_an_observer_reaches_whoever_waits_and_leaves_no_thread() {
    #[derive(Debug)]
    struct Panics;
    impl Observer for Panics {
        fn started(&mut self) -> Option<Duration> {
            Some(Duration::from_millis(1))
        }
        fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
            std::panic::resume_unwind(Box::new("on purpose"))
        }
    }
    let Some(_one) = kvm() else { return };
    let mut config = flat(COUNT, 3);
    config.vcpus = 3;
    let machine = Machine::start(config, |_| Panics).unwrap();
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| machine.wait(SOON)));
    assert_eq!(*waited.unwrap_err().downcast::<&str>().unwrap(), "on purpose");
    assert_eq!(machine_threads(), Vec::<String>::new());
}

#[test]
fn blocked_signals_of_the_starter_do_not_block_kicks() {
    let Some(_one) = kvm() else { return };
    let starter = std::thread::spawn(|| {
        // SAFETY: the set is initialized before it is used, for this thread only.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        }
        let (interval, ticked) = (Some(Duration::from_millis(1)), TickCount::default());
        let recorder = |_| Recorder { interval, ticked: Arc::clone(&ticked), ..Default::default() };
        let machine = Machine::start(flat(COUNT, 3), recorder).unwrap();
        wait_for(&ticked, 10);
        machine.stop();
        machine.wait(SOON).unwrap()
    });
    assert_eq!(starter.join().unwrap().end, MachineEnd::Stopped);
}

#[test]
fn the_most_vcpus_start_and_stop() {
    let Some(_one) = kvm() else { return };
    let mut config = flat(&exit_with(64), 3);
    config.vcpus = 64;
    let most = kvm_check::capabilities(&kvm_check::open().unwrap()).max_vcpus;
    if most < 64 {
        config.vcpus = u8::try_from(most).unwrap();
    }
    let vcpus = usize::from(config.vcpus);
    let mut ids = Vec::new();
    let machine = Machine::start(config, |id| {
        ids.push(id);
        Recorder { interval: Some(Duration::from_millis(5)), ..Default::default() }
    })
    .unwrap();
    let ended = machine.wait(SOON).unwrap();
    assert_eq!(ended.end, MachineEnd::Exited(64));
    assert_eq!(ids.len(), vcpus);
    assert!(ids.is_sorted());
    assert!(ended.observers.iter().all(|seen| (seen.started, seen.stopped) == (1, 1)));
}

#[test]
fn requests_beyond_the_limits_are_refused_before_anything_starts() {
    let Some(_one) = kvm() else { return };
    let start = |change: &dyn Fn(&mut VmConfig)| {
        let mut config = flat(COUNT, 3);
        change(&mut config);
        Machine::start(config, |_| Unobserved).map(|_| ()).unwrap_err()
    };
    assert!(matches!(start(&|config| config.vcpus = 0), StartError::Vcpus { asked: 0 }));
    assert!(matches!(start(&|config| config.vcpus = 65), StartError::Vcpus { asked: 65 }));
    assert!(matches!(start(&|config| config.memory_bytes = 0), StartError::MemorySize { .. }));
    let too_many = |config: &mut VmConfig| {
        for _ in 0..40 {
            let file = tempfile::tempfile().unwrap();
            config.disks.push(Disk { file: file.into(), mode: DiskMode::ReadOnly });
        }
    };
    assert!(matches!(start(&too_many), StartError::Disks { asked: 40, .. }));
    let directory = |config: &mut VmConfig| {
        let file = std::fs::File::open("/").unwrap();
        config.disks.push(Disk { file: file.into(), mode: DiskMode::ReadOnly });
    };
    let message = start(&directory).to_string();
    assert!(message.starts_with("disk 0") && message.contains("regular file"), "{message}");
    assert_eq!(machine_threads(), Vec::<String>::new());
}

#[test]
fn the_speed_of_both_privilege_levels_is_measured() {
    let Some(_one) = kvm() else { return };
    let speeds = kvm_check::native_ring0().unwrap();
    assert!(speeds.ring3_per_s > 0.0 && speeds.ring0_per_s > 0.0, "{speeds:?}");
    // KVM by paravirtualization has no native kernel code on any machine.
    assert!(!speeds.native() || !std::path::Path::new("/sys/module/kvm_pvm").exists(), "{speeds:?}");
    let capabilities = kvm_check::capabilities(&kvm_check::open().unwrap());
    assert_eq!(capabilities.api_version, 12);
    assert!(capabilities.max_vcpus >= 1);
}
