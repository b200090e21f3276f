//! Competing load on the CPU of a vCPU: ticks come late, or find the vCPU's thread without a CPU, and the
//! shares stay right. The guest runs at privilege level 3, which every KVM executes natively.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use profile::store::Value;
use profile::{Profile, ProfileWriter};
use sampler::{RecordingConfig, Session, SessionConfig, VcpuSampler};
use vmm::config::FLAT_ENTRY;
use vmm::{Exit, Machine, Observer, Tick, VmConfig};

/// Offsets of the two loops: at the same place of a cache line, so that their rounds take the same time.
const LONG: usize = 0x40;
const SHORT: usize = 0x80;
/// Rounds of the short loop, a few hundredths of a millisecond; the long one has three times as many.
const ROUNDS: u32 = 100_000;
/// The long loop's share by construction.
const TRUTH: f64 = 0.75;
const RUN: Duration = Duration::from_secs(3);

/// Two loops that take turns: `mov $rounds, %ecx; 1: dec %ecx; jnz 1b`.
fn loops() -> Vec<u8> {
    let mut code = vec![0x90; 0xc0];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    let counted = |rounds: u32| [&[0xb9][..], &rounds.to_le_bytes(), &[0xff, 0xc9, 0x75, 0xfc]].concat();
    put(0, &[0xeb, 0x3e]);
    put(LONG, &counted(3 * ROUNDS));
    // Back to the long loop.
    put(SHORT, &[&counted(ROUNDS)[..], &[0xeb, 0xb5]].concat());
    code
}

/// Keeps the calling thread on CPU 0.
fn pin() {
    // SAFETY: the set is plain data, zeroes are a valid empty one, and the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0, "CPU 0 is there");
    }
}

/// A vCPU that stays on CPU 0.
struct Pinned(VcpuSampler);

impl Observer for Pinned {
    fn started(&mut self) -> Option<Duration> {
        pin();
        self.0.started()
    }
    fn entering(&mut self, now_ns: u64) {
        self.0.entering(now_ns);
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.0.exited(exit, now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.0.ticked(tick)
    }
    fn stopped(&mut self) {
        self.0.stopped();
    }
}

/// Results of a run: ticks in the long loop, all ticks in the guest, ticks without a CPU, and the part of the
/// time without a CPU.
#[derive(Debug)]
struct Seen {
    long: f64,
    all: f64,
    fell_waiting: f64,
    waiting: f64,
}

fn profiled(path: &Path, spinners: usize) -> Seen {
    let config = SessionConfig {
        vcpus: 1,
        recording: RecordingConfig { rate_hz: 2_000.0, seed: 5, ..RecordingConfig::default() },
        meta: Vec::new(),
    };
    let writer = ProfileWriter::create(path, false).expect("a new profile");
    let (mut session, samplers) = Session::new(config, Box::new(writer), symbols::names::no_files());
    let machine = VmConfig::flat(loops());
    let mut samplers = samplers.into_iter();
    let mut machine =
        Machine::start(machine, |_| Pinned(samplers.next().expect("one vCPU"))).expect("a machine");
    session.bind(&mut machine);
    session.start(machine.memory()).expect("room");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..spinners {
            scope.spawn(|| {
                pin();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        std::thread::sleep(RUN);
        over.store(true, Ordering::Relaxed);
    });
    machine.stop();
    machine.wait(Some(Duration::from_secs(20))).expect("the machine ends");
    let totals = session.finish(Vec::new());
    assert_eq!((totals.sink_error, totals.lost), (None, 0));
    seen_in(&Profile::open(path).expect("a profile"))
}

#[expect(clippy::cast_precision_loss, reason = "counts of samples")]
fn seen_in(profile: &Profile) -> Seen {
    let number = |sql: String| match profile.query(&sql).expect("an answer").rows[0][0] {
        Value::Integer(count) => count as f64,
        Value::Real(number) => number,
        ref other => panic!("{other:?} of {sql}"),
    };
    let samples = "FROM sample s JOIN frame f ON f.id = s.frame WHERE s.vcpu_state";
    let short = FLAT_ENTRY + SHORT as u64;
    Seen {
        long: number(format!("SELECT count(*) {samples} = 'guest' AND f.address < {short}")),
        all: number(format!("SELECT count(*) {samples} = 'guest'")),
        fell_waiting: number(format!("SELECT count(*) {samples} = 'waiting'")),
        waiting: number(
            "SELECT waiting_ns * 1.0 / (guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns) FROM vcpu"
                .to_owned(),
        ),
    }
}

impl Seen {
    fn share(&self) -> f64 {
        self.long / self.all
    }

    /// Returns the variance of the share; the loops take turns many times an interval, so samples are
    /// independent.
    fn variance(&self) -> f64 {
        TRUTH * (1.0 - TRUTH) / self.all
    }
}

#[test]
fn load_on_the_cpu_changes_no_share() {
    if let Err(error) = vmm::kvm_check::open() {
        // What a test prints is shown only when it fails, unless it goes around the harness.
        testkit::missing(&format!("/dev/kvm ({error})"));
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let quiet = profiled(&directory.path().join("quiet.vprof"), 0);
    let loaded = profiled(&directory.path().join("loaded.vprof"), 2);
    assert!(quiet.all > 1_000.0 && loaded.all > 300.0, "{quiet:?} {loaded:?}");
    // Two spinning threads leave a third of the CPU.
    assert!(loaded.waiting > 0.3 && loaded.waiting > quiet.waiting + 0.1, "{quiet:?} {loaded:?}");
    assert!(loaded.fell_waiting > 20.0, "ticks while the thread had no CPU: {loaded:?}");
    for seen in [&quiet, &loaded] {
        let errors = (seen.share() - TRUTH) / seen.variance().sqrt();
        assert!(errors.abs() < 4.0, "{errors:.1} standard errors from the true share: {seen:?}");
    }
    let apart = (loaded.share() - quiet.share()) / (loaded.variance() + quiet.variance()).sqrt();
    assert!(apart.abs() < 3.3, "{apart:.1} standard errors apart: {quiet:?} {loaded:?}");
}
