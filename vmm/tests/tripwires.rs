//! Tripwires on this host's KVM, with a few bytes of code at CPL 3 as the guest, which every KVM runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};
use vmm::config::FLAT_ENTRY;
use vmm::{
    Machine, Observer, Site, TRIP_NOP, Tick, Trip, TripwireError, Verdict, VmConfig, WithdrawReason, probe,
};

/// `1: nopl 0(%rax,%rax); inc %rax; jmp 1b`: the no-op is executed once for each value of RAX.
const LOOP: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0xff, 0xc0, 0xeb, 0xf6];
/// `1: out %al, $0xe0; jmp 1b`: the guest's own use of a tripwire's port.
const OWN_OUT: &[u8] = &[0xe6, 0xe0, 0xeb, 0xfc];
const SITE: Site = Site { virt: FLAT_ENTRY, phys: FLAT_ENTRY, kind: 11, loads_rdi: None };
const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// `1: xor %edi,%edi; mov $0x12345,%rdi; add %rdi,%rax; jmp 1b`: RAX grows by what RDI is loaded with.
const LOADS: &[u8] = &[0x31, 0xff, 0x48, 0xc7, 0xc7, 0x45, 0x23, 0x01, 0x00, 0x48, 0x01, 0xf8, 0xeb, 0xf2];
const LOAD: Site = Site { virt: FLAT_ENTRY + 2, phys: FLAT_ENTRY + 2, kind: 12, loads_rdi: Some(0x12345) };

/// Of one vCPU: RAX at each trip, and how often it stood still.
#[derive(Debug, Default)]
struct Seen {
    trips: Vec<u64>,
    stood: usize,
    ticks: usize,
}

#[derive(Debug)]
struct Counter {
    seen: Arc<Mutex<Seen>>,
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
    fn tripped(&mut self, trip: &Trip<'_>) -> Verdict {
        let at = match trip.kind {
            11 => [0, 5],
            12 => [2, 9],
            kind => panic!("a trip of kind {kind}"),
        };
        assert!(at.contains(&(trip.regs.rip - FLAT_ENTRY)), "{:#x}", trip.regs.rip);
        let mut seen = self.seen.lock().unwrap();
        seen.trips.push(trip.regs.rax);
        if self.withdraw_at == Some(seen.trips.len()) { Verdict::Withdraw } else { Verdict::Keep }
    }
    fn stood_still(&mut self, from_ns: u64, to_ns: u64) {
        assert!(from_ns <= to_ns);
        self.seen.lock().unwrap().stood += 1;
    }
}

type Running = (Machine<Counter>, Arc<Mutex<Seen>>);

/// A machine with four vCPUs, of which three wait for INIT. `None` where there is no KVM, and need not be.
fn machine(code: &[u8], withdraw_at: Option<usize>, interval: Option<Duration>) -> Option<Running> {
    if let Err(error) = probe::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return None;
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let config = VmConfig { vcpus: 4, ..VmConfig::flat(code) };
    let shared = Arc::clone(&seen);
    let start = Machine::start(config, |_| Counter { seen: Arc::clone(&shared), withdraw_at, interval });
    Some((start.unwrap(), seen))
}

fn wait_for(seen: &Mutex<Seen>, done: impl Fn(&Seen) -> bool) {
    testkit::eventually("trip", Duration::from_secs(10), || done(&seen.lock().unwrap()).then_some(()));
}

fn text<O: Observer>(machine: &Machine<O>) -> [u8; 5] {
    machine.memory().read_obj(GuestAddress(FLAT_ENTRY)).unwrap()
}

#[test]
fn each_call_trips_once_until_the_tripwire_is_taken_away() {
    for interval in [None, Some(Duration::from_micros(200))] {
        let Some((machine, seen)) = machine(LOOP, None, interval) else { return };
        let wires = machine.tripwires();
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(5));
            let before = seen.lock().unwrap().trips.len();
            wires.set(&[SITE], || (), Box::new(|_| ())).unwrap();
            assert_ne!(text(&machine), TRIP_NOP);
            wait_for(&seen, |seen| seen.trips.len() > before + 200);
            let withdrawn = wires.withdraw().unwrap().unwrap();
            assert!(withdrawn.foreign.is_empty() && withdrawn.reason == WithdrawReason::Asked);
            assert_eq!(text(&machine), TRIP_NOP);
            let mut seen = seen.lock().unwrap();
            let trips = seen.trips.split_off(before);
            assert!(trips.windows(2).all(|pair| pair[1] == pair[0] + 1), "round {round}");
            assert!(seen.stood >= 2 * round, "{} of {round}", seen.stood);
        }
        let after = seen.lock().unwrap().trips.len();
        std::thread::sleep(Duration::from_millis(20));
        machine.stop();
        machine.wait(SOON).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.trips.len(), after);
        assert!(interval.is_none() || seen.ticks > 10, "{} ticks", seen.ticks);
    }
}

#[test]
fn a_load_in_whose_place_a_tripwire_stands_is_done() {
    // The third time it is taken away, and the instruction itself loads the register.
    let Some((machine, seen)) = machine(LOADS, Some(1000), Some(Duration::from_micros(200))) else { return };
    let wires = machine.tripwires();
    for _ in 0..2 {
        wires.set(&[LOAD], || (), Box::new(|_| ())).unwrap();
        let before = seen.lock().unwrap().trips.len();
        wait_for(&seen, |seen| seen.trips.len() > before + 200 || seen.trips.len() >= 1000);
        wires.withdraw().unwrap();
    }
    if seen.lock().unwrap().trips.len() < 1000 {
        wires.set(&[LOAD], || (), Box::new(|_| ())).unwrap();
        wait_for(&seen, |seen| seen.trips.len() >= 1000);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(machine.memory().read_obj::<[u8; 14]>(GuestAddress(FLAT_ENTRY)).unwrap(), *LOADS);
    machine.stop();
    machine.wait(SOON).unwrap();
    let seen = seen.lock().unwrap();
    let steps: Vec<u64> = seen.trips.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(seen.trips.len() >= 1000 && steps.iter().all(|step| step % 0x12345 == 0 && *step > 0));
    assert!(steps.iter().filter(|step| **step == 0x12345).count() >= 990, "one trip a round while it is set");
}

#[test]
fn an_observer_takes_them_away_before_the_guest_goes_on() {
    let Some((machine, seen)) = machine(LOOP, Some(17), None) else { return };
    let why = Arc::new(Mutex::new(None));
    let told = Arc::clone(&why);
    let wires = machine.tripwires();
    let tell = Box::new(move |withdrawn: &vmm::Withdrawn| *told.lock().unwrap() = Some(withdrawn.reason));
    wires.set(&[SITE], || (), tell).unwrap();
    wait_for(&seen, |seen| seen.trips.len() >= 17);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!wires.are_set());
    assert_eq!((text(&machine), *why.lock().unwrap()), (TRIP_NOP, Some(WithdrawReason::Observer)));
    machine.stop();
    machine.wait(SOON).unwrap();
    assert_eq!(seen.lock().unwrap().trips.len(), 17);
}

#[test]
fn the_end_of_a_machine_restores_its_memory() {
    let Some((machine, seen)) = machine(LOOP, None, None) else { return };
    let why = Arc::new(Mutex::new(None));
    let told = Arc::clone(&why);
    let (memory, wires) = (machine.memory(), machine.tripwires());
    let tell = Box::new(move |withdrawn: &vmm::Withdrawn| *told.lock().unwrap() = Some(withdrawn.reason));
    wires.set(&[SITE], || (), tell).unwrap();
    wait_for(&seen, |seen| seen.trips.len() > 10);
    machine.stop();
    machine.wait(SOON).unwrap();
    assert_eq!(memory.read_obj::<[u8; 5]>(GuestAddress(FLAT_ENTRY)).unwrap(), TRIP_NOP);
    assert_eq!(*why.lock().unwrap(), Some(WithdrawReason::Ended));
    assert_eq!(wires.set(&[SITE], || (), Box::new(|_| ())), Err(TripwireError::Ended));
}

#[test]
fn setting_and_stopping_at_once_hangs_nobody() {
    for round in 0..30_u64 {
        let Some((machine, _)) = machine(LOOP, Some(3), None) else { return };
        let (memory, wires) = (machine.memory(), machine.tripwires());
        let setter = std::thread::spawn(move || {
            for _ in 0..5 {
                // Either works, or the machine has ended meanwhile.
                let _ended = wires.set(&[SITE], || (), Box::new(|_| ()));
                let _gone = wires.withdraw();
            }
        });
        std::thread::sleep(Duration::from_micros(round * 100));
        machine.stop();
        let start = Instant::now();
        machine.wait(SOON).unwrap();
        setter.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(1), "round {round}: {:?}", start.elapsed());
        assert_eq!(memory.read_obj::<[u8; 5]>(GuestAddress(FLAT_ENTRY)).unwrap(), TRIP_NOP);
    }
}

#[test]
fn the_guests_own_use_of_the_ports_goes_to_nobody() {
    let Some((machine, seen)) = machine(OWN_OUT, None, None) else { return };
    std::thread::sleep(Duration::from_millis(30));
    machine.stop();
    machine.wait(SOON).unwrap();
    assert!(seen.lock().unwrap().trips.is_empty());
}
