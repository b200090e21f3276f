//! Tests of probes on this host's KVM, with a few bytes of code at CPL 3 as the guest, which every KVM runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};
use vmm::config::FLAT_ENTRY;
use vmm::{
    Exit, Machine, Observer, PROBE_NOP, ProbeError, ProbeHit, ProbePoint, ProbeVerdict, Tick, VmConfig,
    WithdrawReason, kvm_check,
};

/// `1: nopl 0(%rax,%rax); inc %rax; jmp 1b`: the no-op is executed once for each value of RAX.
const LOOP: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0xff, 0xc0, 0xeb, 0xf6];
/// `1: out %al, $0xe0; jmp 1b`: the guest's own use of a probe's port.
const OWN_OUT: &[u8] = &[0xe6, 0xe0, 0xeb, 0xfc];
const SITE: ProbePoint =
    ProbePoint { virt: FLAT_ENTRY, phys: GuestAddress(FLAT_ENTRY), kind: 11, loads_rdi: None };
/// Time limit of what must happen.
const LIMIT: Duration = Duration::from_secs(20);
const SOON: Option<Duration> = Some(LIMIT);

/// `1: xor %edi,%edi; mov $0x12345,%rdi; add %rdi,%rax; jmp 1b`: RAX grows by the value that RDI is loaded
/// with.
const LOADS: &[u8] = &[0x31, 0xff, 0x48, 0xc7, 0xc7, 0x45, 0x23, 0x01, 0x00, 0x48, 0x01, 0xf8, 0xeb, 0xf2];
const LOAD: ProbePoint = ProbePoint {
    virt: FLAT_ENTRY + 2,
    phys: GuestAddress(FLAT_ENTRY + 2),
    kind: 12,
    loads_rdi: Some(0x12345),
};

/// Observations of one vCPU: RAX at each hit, and the numbers of all else.
#[derive(Debug, Default)]
struct Observations {
    hits: Vec<u64>,
    suspensions: usize,
    ticks: usize,
    /// Exits by a port, which are the guest's own or a probe's.
    outs: usize,
}

#[derive(Debug)]
struct Counter {
    seen: Arc<Mutex<Observations>>,
    withdraw_at: Option<usize>,
    interval: Option<Duration>,
}

impl Observer for Counter {
    fn started(&mut self) -> Option<Duration> {
        self.interval
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        self.seen.lock().unwrap().ticks += 1;
        self.interval
    }
    fn exited(&mut self, exit: Exit, _: u64) {
        self.seen.lock().unwrap().outs += usize::from(matches!(exit, Exit::Io { .. }));
    }
    fn probe_hit(&mut self, hit: &ProbeHit<'_>) -> ProbeVerdict {
        let at = match hit.kind {
            11 => [0, 5],
            12 => [2, 9],
            kind => panic!("a hit of kind {kind}"),
        };
        assert!(at.contains(&(hit.regs.rip - FLAT_ENTRY)), "{:#x}", hit.regs.rip);
        let mut seen = self.seen.lock().unwrap();
        seen.hits.push(hit.regs.rax);
        if self.withdraw_at == Some(seen.hits.len()) { ProbeVerdict::Withdraw } else { ProbeVerdict::Keep }
    }
    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        assert!(from_ns <= to_ns);
        self.seen.lock().unwrap().suspensions += 1;
    }
}

type Running = (Machine<Counter>, Arc<Mutex<Observations>>);

/// Starts a machine with four vCPUs, of which three wait for INIT. Returns `None` where KVM is missing and
/// optional.
fn machine(code: &[u8], withdraw_at: Option<usize>, interval: Option<Duration>) -> Option<Running> {
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return None;
    }
    let seen = Arc::new(Mutex::new(Observations::default()));
    let config = VmConfig { vcpus: 4, ..VmConfig::flat(code) };
    let shared = Arc::clone(&seen);
    let start = Machine::start(config, |_| Counter { seen: Arc::clone(&shared), withdraw_at, interval });
    Some((start.unwrap(), seen))
}

fn wait_for(seen: &Mutex<Observations>, done: impl Fn(&Observations) -> bool) {
    testkit::eventually("hit", LIMIT, || done(&seen.lock().unwrap()).then_some(()));
}

fn text<O: Observer>(machine: &Machine<O>) -> [u8; 5] {
    machine.memory().read_obj(GuestAddress(FLAT_ENTRY)).unwrap()
}

#[test]
fn each_call_is_one_hit_until_the_probe_is_removed() {
    for interval in [None, Some(Duration::from_micros(200))] {
        let Some((machine, seen)) = machine(LOOP, None, interval) else { return };
        let probes = machine.probes();
        for round in 1..=5 {
            let before = seen.lock().unwrap().hits.len();
            probes.set(&[SITE], || (), Box::new(|_| ())).unwrap();
            assert_ne!(text(&machine), PROBE_NOP);
            wait_for(&seen, |seen| seen.hits.len() > before + 200);
            let withdrawn = probes.withdraw().unwrap().unwrap();
            assert!(withdrawn.foreign.is_empty() && withdrawn.reason == WithdrawReason::Requested);
            assert_eq!(text(&machine), PROBE_NOP);
            let mut seen = seen.lock().unwrap();
            let hits = seen.hits.split_off(before);
            assert!(hits.windows(2).all(|pair| pair[1] == pair[0] + 1), "round {round}");
            assert!(seen.suspensions >= 2 * round, "{} of {round}", seen.suspensions);
        }
        let after = seen.lock().unwrap().hits.len();
        wait_for(&seen, |seen| interval.is_none() || seen.ticks > 10);
        // The guest executes the no-op for a while, because a probe that is left would be hit.
        std::thread::sleep(Duration::from_millis(20));
        machine.stop();
        machine.wait(SOON).unwrap();
        assert_eq!(seen.lock().unwrap().hits.len(), after);
    }
}

#[test]
fn a_load_that_a_probe_replaces_is_done() {
    // The third time the observer removes the probe, and the instruction itself loads the register.
    let Some((machine, seen)) = machine(LOADS, Some(1000), Some(Duration::from_micros(200))) else { return };
    let probes = machine.probes();
    for _ in 0..2 {
        probes.set(&[LOAD], || (), Box::new(|_| ())).unwrap();
        let before = seen.lock().unwrap().hits.len();
        wait_for(&seen, |seen| seen.hits.len() > before + 200 || seen.hits.len() >= 1000);
        probes.withdraw().unwrap();
    }
    if seen.lock().unwrap().hits.len() < 1000 {
        probes.set(&[LOAD], || (), Box::new(|_| ())).unwrap();
        wait_for(&seen, |seen| seen.hits.len() >= 1000);
    }
    testkit::eventually("removal", LIMIT, || (!probes.are_set()).then_some(()));
    assert_eq!(machine.memory().read_obj::<[u8; 14]>(GuestAddress(FLAT_ENTRY)).unwrap(), *LOADS);
    machine.stop();
    machine.wait(SOON).unwrap();
    let seen = seen.lock().unwrap();
    let steps: Vec<u64> = seen.hits.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(seen.hits.len() >= 1000 && steps.iter().all(|step| step % 0x12345 == 0 && *step > 0));
    assert!(
        steps.iter().filter(|step| **step == 0x12345).count() >= 990,
        "one hit a round while the probe is set"
    );
}

#[test]
fn an_observer_removes_probes_before_the_guest_continues() {
    let Some((machine, seen)) = machine(LOOP, Some(17), None) else { return };
    let reason = Arc::new(Mutex::new(None));
    let reported = Arc::clone(&reason);
    let probes = machine.probes();
    let handler =
        Box::new(move |withdrawn: &vmm::Withdrawal| *reported.lock().unwrap() = Some(withdrawn.reason));
    probes.set(&[SITE], || (), handler).unwrap();
    let removed = testkit::eventually("removal", LIMIT, || *reason.lock().unwrap());
    assert_eq!((removed, text(&machine)), (WithdrawReason::Observer, PROBE_NOP));
    assert!(!probes.are_set());
    // The guest executes the no-op for a while, because a probe that is left would be hit.
    std::thread::sleep(Duration::from_millis(20));
    machine.stop();
    machine.wait(SOON).unwrap();
    assert_eq!(seen.lock().unwrap().hits.len(), 17);
}

#[test]
fn the_end_of_a_machine_restores_its_memory() {
    let Some((machine, seen)) = machine(LOOP, None, None) else { return };
    let reason = Arc::new(Mutex::new(None));
    let reported = Arc::clone(&reason);
    let (memory, probes) = (machine.memory(), machine.probes());
    let handler =
        Box::new(move |withdrawn: &vmm::Withdrawal| *reported.lock().unwrap() = Some(withdrawn.reason));
    probes.set(&[SITE], || (), handler).unwrap();
    wait_for(&seen, |seen| seen.hits.len() > 10);
    machine.stop();
    machine.wait(SOON).unwrap();
    assert_eq!(memory.read_obj::<[u8; 5]>(GuestAddress(FLAT_ENTRY)).unwrap(), PROBE_NOP);
    assert_eq!(*reason.lock().unwrap(), Some(WithdrawReason::Ended));
    assert_eq!(probes.set(&[SITE], || (), Box::new(|_| ())), Err(ProbeError::Ended));
}

#[test]
fn setting_and_stopping_at_once_does_not_hang() {
    for round in 0..30_u64 {
        let Some((machine, _)) = machine(LOOP, Some(3), None) else { return };
        let (memory, probes) = (machine.memory(), machine.probes());
        let setter = std::thread::spawn(move || {
            for _ in 0..5 {
                // Either works, or the machine has ended meanwhile.
                let _ended = probes.set(&[SITE], || (), Box::new(|_| ()));
                let _gone = probes.withdraw();
            }
        });
        // Each round stops the machine at another moment of the setter's work.
        std::thread::sleep(Duration::from_micros(round * 100));
        machine.stop();
        let start = Instant::now();
        machine.wait(SOON).unwrap();
        setter.join().unwrap();
        assert!(start.elapsed() < LIMIT / 2, "round {round}: {:?}", start.elapsed());
        assert_eq!(memory.read_obj::<[u8; 5]>(GuestAddress(FLAT_ENTRY)).unwrap(), PROBE_NOP);
    }
}

#[test]
fn the_guests_own_use_of_the_ports_is_not_a_hit() {
    let Some((machine, seen)) = machine(OWN_OUT, None, None) else { return };
    wait_for(&seen, |seen| seen.outs > 1_000);
    machine.stop();
    machine.wait(SOON).unwrap();
    assert!(seen.lock().unwrap().hits.is_empty());
}
