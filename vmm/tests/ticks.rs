//! When ticks stop the guest, on this host's KVM, with a few bytes of code at CPL 3 as the guest.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use vmm::{Machine, Observer, Tick, VmConfig, kvm_check};

/// ```text
/// 1: rdtsc; shl $32, %rdx; or %rdx, %rax     RAX: the TSC
///    mov %rax, %rcx; sub %rbx, %rcx          RCX: how much of it has gone by since it was read last
///    mov %rax, %rbx                          RBX: when it was read
///    cmp $1500, %rcx; jb 1b
///    add %rcx, %rsi; inc %rdi; jmp 1b        RSI, RDI: sum and number of the times without the CPU
/// ```
const STOPWATCH: &[u8] = &[
    0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x48, 0x89, 0xc1, 0x48, 0x29, 0xd9, 0x48, 0x89,
    0xc3, 0x48, 0x81, 0xf9, 0xdc, 0x05, 0x00, 0x00, 0x72, 0xe5, 0x48, 0x01, 0xce, 0x48, 0xff, 0xc7, 0xeb,
    0xdd,
];

/// Number of ticks, two seconds of them where nothing else has the CPU.
const STOPS: usize = 1_300;

/// A tick, and the entry after it.
#[derive(Debug, Clone, Copy)]
struct Stop {
    due_ns: u64,
    exited_ns: u64,
    entered_ns: u64,
    read: u64,
    gone: u64,
    gaps: u64,
}

#[derive(Debug)]
struct Stops(Arc<Mutex<Vec<Stop>>>);

impl Observer for Stops {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        let (regs, entered_ns) = (tick.regs, 0);
        let stop = Stop {
            due_ns: tick.due_ns,
            exited_ns: tick.now_ns,
            entered_ns,
            read: regs.rbx,
            gone: regs.rsi,
            gaps: regs.rdi,
        };
        self.0.lock().unwrap().push(stop);
        Some(Duration::from_nanos(1_000_000 + tick.now_ns % 1_000_000))
    }
    fn entering(&mut self, now_ns: u64) {
        if let Some(stop) = self.0.lock().unwrap().last_mut().filter(|stop| stop.entered_ns == 0) {
            stop.entered_ns = now_ns;
        }
    }
}

/// The clock of samples relies on this: however late the thread is out of KVM, the guest has executed nothing
/// since the tick was due.
#[test]
fn a_tick_stops_the_guest_when_it_is_due() {
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return;
    }
    // The host may interrupt the guest so often for a while that no time without a CPU is a stop's alone.
    let beyond_ns = (0..10).find_map(|_| missed_beyond_the_stop_ns());
    let beyond_ns = beyond_ns.expect("stops that nothing else follows");
    // Entering and leaving take time, too; the clock's readings are good for a microsecond.
    assert!(beyond_ns > -1_000.0, "{beyond_ns:?} ns");
}

/// Runs the guest for [`STOPS`]. Returns the median, over stops after which the guest missed nothing else
/// until the next one, of the time that it missed beyond what the thread reports, in nanoseconds; `None` if
/// there are too few of these.
fn missed_beyond_the_stop_ns() -> Option<f64> {
    let stops = Arc::new(Mutex::new(Vec::new()));
    let config = VmConfig::flat(STOPWATCH);
    let shared = Arc::clone(&stops);
    let machine = Machine::start(config, |_| Stops(Arc::clone(&shared))).unwrap();
    testkit::eventually("stops", Duration::from_secs(20), || {
        (stops.lock().unwrap().len() >= STOPS).then_some(())
    });
    machine.stop();
    machine.wait(Some(Duration::from_secs(20))).unwrap();
    let stops = stops.lock().unwrap();
    let (first, last) = (stops[10], stops[stops.len() - 2]);
    let per_ns = (last.read - first.read) as f64 / (last.exited_ns - first.exited_ns) as f64;
    let pairs = || stops[10..stops.len() - 1].windows(2);
    let with = |gaps| pairs().filter(move |pair| pair[1].gaps - pair[0].gaps == gaps);
    // One, unless an interrupt of the host follows each stop: what it takes hides as much of a late stop.
    let gaps = (1..=2).find(|gaps| with(*gaps).count() > 50)?;
    let mut beyond_ns: Vec<f64> = with(gaps)
        .map(|pair| {
            let missed_ns = (pair[1].gone - pair[0].gone) as f64 / per_ns;
            missed_ns - (pair[0].entered_ns - pair[0].due_ns) as f64
        })
        .collect();
    beyond_ns.sort_by(f64::total_cmp);
    Some(beyond_ns[beyond_ns.len() / 2])
}
