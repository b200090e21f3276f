//! From ticks on a synthetic guest's memory to names in a report: observer, finder, collector, profile and
//! report.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use guest_linux::VirtAddr;
use guest_linux::fixture::{Config, Guest, Style};
use kvm_bindings::{kvm_regs, kvm_sregs};
use profile::store::Value;
use profile::{Batch, Filter, Profile, ProfileWriter, Report, Sink, SinkError};
use sampler::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use vm_memory::{Bytes, GuestAddress};
use vmm::{Activity, GuestMemoryMmap, Observer, TickContext};

struct Run {
    memory: GuestMemoryMmap,
    cr3: u64,
    five_level: bool,
    session: Session,
    samplers: Vec<VcpuSampler>,
}

impl Run {
    /// Returns a session; the made-up guest has no stacks.
    fn start(guest: &Guest, path: &Path) -> Self {
        Self::start_with(guest, path, 0)
    }

    fn start_with(guest: &Guest, path: &Path, stack_depth: usize) -> Self {
        let writer = ProfileWriter::create(path, false).expect("a new profile");
        Self::start_into(guest, Box::new(writer), (2, stack_depth))
    }

    fn start_into(guest: &Guest, sink: Box<dyn Sink>, (vcpus, stack_depth): (u8, usize)) -> Self {
        let memory =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(0), guest.memory.0.len())]).expect("memory");
        memory.write_slice(&guest.memory.0, GuestAddress(0)).expect("inside");
        let config = SessionConfig {
            vcpus,
            recording: RecordingConfig { stack_depth, ..RecordingConfig::default() },
            meta: Vec::new(),
        };
        let (mut session, mut samplers) = Session::new(config, sink, symbols::names::no_files());
        session.start(memory.clone()).expect("a disk with room");
        for sampler in &mut samplers {
            sampler.started();
        }
        Self { memory, cr3: guest.cr3, five_level: guest.five_level, session, samplers }
    }

    fn tick(&mut self, vcpu: usize, cpl: u8, at: VirtAddr, activity: Activity) {
        let cr4 = if self.five_level { 1 << 12 } else { 0 };
        let mut sregs = kvm_sregs { cr0: 0x8000_0001, cr3: self.cr3, cr4, efer: 0x500, ..Default::default() };
        sregs.cs.l = 1;
        sregs.ss.dpl = cpl;
        let regs = kvm_regs { rip: at.0, rflags: 0x202, ..Default::default() };
        let now_ns = vmm::monotonic_ns();
        // Due later: whatever else runs on this machine, the thread did not wait for a CPU when the tick was
        // due.
        let due_ns = now_ns + 1_000_000_000;
        let moment =
            TickContext { due_ns, now_ns, in_run: true, regs: &regs, sregs: &sregs, memory: &self.memory };
        self.samplers[vcpu].serve(&moment, || Some(activity));
    }

    /// Serves ticks in the kernel until `found`.
    fn until(&mut self, at: VirtAddr, found: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !found(self) {
            assert!(begin.elapsed() < Duration::from_secs(30), "the guest was not understood");
            for _ in 0..10 {
                self.tick(0, 0, at, Activity::Running);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Serves ticks until samples with their task arrive in the profile, which is read while it is written.
    fn until_tasks(&mut self, path: &Path, at: VirtAddr) {
        self.until(at, |_| {
            let profile = Profile::open(path).expect("a profile that is being written");
            let named = profile.query("SELECT 1 FROM sample WHERE instance IS NOT NULL LIMIT 1");
            !named.expect("an answer").rows.is_empty()
        });
    }

    fn end(self, path: &Path) -> Report {
        let totals = self.session.finish(Vec::new());
        assert_eq!((totals.sink_error, totals.lost), (None, 0));
        Report::read(&Profile::open(path).expect("a profile"), &Filter::default()).expect("a report")
    }
}

fn samples<'a>(report: &'a Report, symbol: &str, mode: &str) -> (u64, Option<&'a str>) {
    let found = report.functions.iter().find(|f| f.symbol == symbol && f.mode == mode);
    let found = found.unwrap_or_else(|| panic!("no {symbol} in {mode}: {:#?}", report.functions));
    (found.estimate.samples, found.module.as_deref())
}

#[test]
fn names_come_out_of_memory() {
    for style in [Style::V6_1, Style::V6_12, Style::V6_15] {
        // Thread 1 (init) runs on vCPU 0; thread 102 (of process many) on vCPU 1, in a hard interrupt.
        let guest = Config::new(style).build();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("guest.vprof");
        let mut run = Run::start(&guest, &path);
        run.until_tasks(&path, guest.text(0x1404));
        let before = run.session.status().samples;
        for _ in 0..40 {
            run.tick(0, 0, guest.text(0x3010), Activity::Running);
            run.tick(0, 3, VirtAddr(0x40_1000), Activity::Running);
            run.tick(1, 0, guest.text(0x3020), Activity::Running);
            run.tick(1, 3, VirtAddr(0x40_1000), Activity::Running);
            run.tick(1, 0, guest.module_text(1, 0x28), Activity::Running);
            run.tick(0, 0, guest.module_text(0, 0x804), Activity::Running);
        }
        assert_eq!(run.session.status().samples, before + 240);
        let report = run.end(&path);

        assert!(
            report.kernel.as_deref().is_some_and(|kernel| kernel.starts_with(char::is_numeric)),
            "{style:?}"
        );
        assert!(report.complete && report.missing.is_empty(), "{:?}", report.missing);
        let found = report.events.iter().find(|event| event.kind == "kernel").expect("the event");
        assert!(found.text.contains(" after the start, "), "{}", found.text);
        assert_eq!(samples(&report, "vfs_read", "kernel"), (40, None));
        assert_eq!(samples(&report, "vfs_read", "hardirq"), (40, None));
        assert_eq!(samples(&report, "ext4_add", "hardirq"), (40, Some("ext4")));
        assert_eq!(samples(&report, "virtio_ring_kick", "kernel"), (40, Some("virtio_ring")));
        // Sampled before the kernel was found, named afterwards.
        assert!(samples(&report, "schedule", "boot").0 >= 1);
        let process = |comm: &str| report.processes.iter().find(|p| p.comm == comm).expect("a process");
        let (init, many) = (process("init"), process("many"));
        assert_eq!((init.pid, many.pid, many.estimate.samples), (1, 100, 40));
        assert!(init.estimate.samples >= 120, "{init:?}");
        assert_eq!(process("[hard interrupts]").estimate.samples, 80);
        let sum: f64 = report.processes.iter().map(|p| p.estimate.share).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let user = |comm: &str| report.functions.iter().find(|f| f.module.as_deref() == Some(comm));
        assert!(user("init").is_some() && user("many").is_some(), "one address in two processes");
        // Scans list tasks that were never hit.
        let listed =
            Profile::open(&path).expect("a profile").query("SELECT comm, kernel_thread FROM instance");
        let listed = format!("{:?}", listed.expect("an answer").rows);
        assert!(listed.contains("[Text(\"kthreadd\"), Integer(1)]"), "{listed}");
    }
}

#[test]
fn a_kernel_without_known_stacks_still_has_tasks() {
    let guest = Config { stacks: false, ..Config::new(Style::V6_12) }.build();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.vprof");
    let mut run = Run::start_with(&guest, &path, 127);
    run.until_tasks(&path, guest.text(0x1404));
    run.tick(0, 0, guest.text(0x3010), Activity::Running);
    let report = run.end(&path);
    assert_eq!(samples(&report, "vfs_read", "kernel"), (1, None));
    assert!(report.missing.iter().any(|text| text.starts_with("no call stacks: ")), "{:?}", report.missing);
}

/// The guest uses one of the two vCPUs only, as with `nr_cpus=1`.
#[test]
fn a_kernel_may_use_fewer_cpus() {
    let mut config = Config::new(Style::V6_12);
    (config.apic_ids, config.running, config.preempt_counts) = (vec![0], vec![1], vec![0]);
    let guest = config.build();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.vprof");
    let mut run = Run::start(&guest, &path);
    run.until_tasks(&path, guest.text(0x1404));
    for _ in 0..10 {
        run.tick(0, 3, VirtAddr(0x40_1000), Activity::Running);
        run.tick(1, 0, guest.text(0x3010), Activity::Running);
    }
    let report = run.end(&path);
    assert_eq!(samples(&report, "[user]", "user"), (10, Some("init")));
    assert_eq!(samples(&report, "vfs_read", "unknown"), (10, None));
    assert!(report.missing.is_empty(), "{:?}", report.missing);
}

#[test]
fn idleness_is_told_from_work() {
    let mut config = Config::new(Style::V6_12);
    config.running = vec![0, 0];
    config.preempt_counts = vec![0, 0];
    let guest = config.build();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.vprof");
    let mut run = Run::start(&guest, &path);
    run.until_tasks(&path, guest.text(0x1404));
    for _ in 0..10 {
        run.tick(0, 0, guest.text(0x2001), Activity::Running);
        // The address is not mapped, so KVM is asked.
        run.tick(1, 0, VirtAddr(0xffff_ffff_0000_0000), Activity::Halted);
    }
    let report = run.end(&path);
    assert_eq!(report.vcpus[1].idle, 1.0);
    let profile = Profile::open(&path).expect("a profile");
    let sql = "SELECT sum(vcpu = 0 AND NOT halted) >= 10, sum(vcpu = 1 AND halted), sum(vcpu = 0 AND halted) \
               FROM v_samples WHERE mode = 'idle'";
    let row = profile.query(sql).expect("an answer").rows.swap_remove(0);
    assert_eq!(row, [1, 10, 0].map(Value::Integer), "the idle task itself, and what KVM says");
}

#[test]
fn what_a_kernel_lacks_is_told() {
    let mut config = Config::new(Style::V6_1);
    config.btf = false;
    let guest = config.build();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.vprof");
    let mut run = Run::start(&guest, &path);
    run.until(guest.text(0x1404), |run| run.session.status().kernel.is_some());
    run.tick(0, 3, VirtAddr(0x40_1000), Activity::Running);
    for _ in 0..5 {
        run.tick(0, 0, guest.text(0x3010), Activity::Running);
    }
    let report = run.end(&path);
    assert_eq!(report.missing, ["no BTF in this kernel: no process names"]);
    assert_eq!(samples(&report, "vfs_read", "unknown"), (5, None));
    assert_eq!(samples(&report, "[user]", "user"), (1, Some("[unknown]")));
    assert!(report.processes.iter().all(|p| p.pid == 0 && p.comm.starts_with('[')));
}

/// A sink that blocks its writer while the lock is held.
struct TickHold {
    lock: Arc<Mutex<()>>,
    /// A writer is blocked, or was.
    held_up: Arc<AtomicBool>,
    writer: ProfileWriter,
}

impl Sink for TickHold {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.lock.try_lock().is_err() {
            self.held_up.store(true, Ordering::Release);
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.writer.write(batch)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.writer.finish()
    }
}

/// At 1,000 Hz and with 4 vCPUs.
#[test]
fn a_collector_that_is_held_up_for_half_a_second_costs_no_stack() {
    const VCPUS: u8 = 4;
    const TICKS: i64 = 500;
    let mut config = Config::new(Style::V6_12);
    (config.apic_ids, config.running) = (vec![0, 1, 2, 3], vec![1, 102, 1, 102]);
    config.preempt_counts = vec![0; 4];
    let guest = config.build();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.vprof");
    let lock = Arc::new(Mutex::new(()));
    let writer = ProfileWriter::create(&path, false).expect("a new profile");
    let held_up = Arc::new(AtomicBool::new(false));
    let held = TickHold { lock: Arc::clone(&lock), held_up: Arc::clone(&held_up), writer };
    let mut run = Run::start_into(&guest, Box::new(held), (VCPUS, 127));
    let stacks = |profile: &Profile| {
        let row = profile.query("SELECT count(stack) FROM sample").expect("an answer").rows.swap_remove(0);
        if let [Value::Integer(count)] = row[..] { count } else { panic!("{row:?}") }
    };
    run.until(guest.text(0x1404), |_| stacks(&Profile::open(&path).expect("a profile")) > 0);
    let guard = lock.lock().expect("nobody panics");
    while !held_up.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let begin = Instant::now();
    for _ in 0..TICKS {
        for vcpu in 0..usize::from(VCPUS) {
            run.tick(vcpu, 0, guest.text(0x3010), Activity::Running);
        }
    }
    let took = begin.elapsed();
    drop(guard);
    run.end(&path);
    let profile = Profile::open(&path).expect("a profile");
    assert!(stacks(&profile) >= i64::from(VCPUS) * TICKS, "{}", stacks(&profile));
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'samples_without_stack'";
    assert_eq!(profile.query(sql).expect("an answer").rows, [[Value::Integer(0)]]);
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'collector_longest_ns'";
    let longest = &profile.query(sql).expect("an answer").rows[0][0];
    assert!(
        matches!(longest, Value::Integer(ns) if u128::from(ns.cast_unsigned()) >= took.as_nanos()),
        "{longest:?}"
    );
}
