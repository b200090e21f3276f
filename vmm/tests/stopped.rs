//! Removal of probes while vprof itself is stopped, on this host's KVM. It is alone in its process, which it
//! stops.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress};
use vmm::config::FLAT_ENTRY;
use vmm::{
    Exit, Machine, Observer, PROBE_NOP, ProbeHit, ProbePoint, ProbeVerdict, Tick, VmConfig, WithdrawReason,
    Withdrawal, kvm_check,
};

/// `1: nopl 0(%rax,%rax); inc %rax; jmp 1b`
const LOOP: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0xff, 0xc0, 0xeb, 0xf6];
const SITE: ProbePoint =
    ProbePoint { virt: FLAT_ENTRY, phys: GuestAddress(FLAT_ENTRY), kind: 1, loads_rdi: None };
/// Hits before vCPU 0 has the probes removed, at least.
const HITS: usize = 17;

/// State that the vCPUs share.
#[derive(Debug, Default)]
struct Shared {
    hits: AtomicUsize,
    /// Hits when the removal was requested; 0 before.
    requested_at: AtomicUsize,
    /// The probe is set, while all vCPUs are paused.
    set: AtomicBool,
    /// vCPU 1 is past the pause in which the probe was set: it leaves KVM_RUN for the next one.
    entered: AtomicBool,
    withdrawing: AtomicBool,
    stopper: Mutex<Option<Child>>,
}

/// Observer of vCPU 0, which hits the probe, or of vCPU 1, which stops the process before it parks.
#[derive(Debug)]
struct Stopping {
    id: u8,
    shared: Arc<Shared>,
}

impl Observer for Stopping {
    fn started(&mut self) -> Option<Duration> {
        None
    }
    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        None
    }
    fn probe_hit(&mut self, _: &ProbeHit<'_>) -> ProbeVerdict {
        let hits = self.shared.hits.fetch_add(1, Ordering::SeqCst) + 1;
        if hits < HITS || !self.shared.entered.load(Ordering::SeqCst) {
            return ProbeVerdict::Keep;
        }
        self.shared.requested_at.store(hits, Ordering::SeqCst);
        self.shared.withdrawing.store(true, Ordering::SeqCst);
        ProbeVerdict::Withdraw
    }
    fn entering(&mut self, _: u64) {
        if self.id == 1 && self.shared.set.load(Ordering::SeqCst) {
            self.shared.entered.store(true, Ordering::SeqCst);
        }
    }
    fn exited(&mut self, _: Exit, _: u64) {
        if self.id == 1 && self.shared.withdrawing.swap(false, Ordering::SeqCst) {
            let mut stop = Command::new("sh");
            stop.args([
                "-c",
                "kill -STOP $1; sleep 1.5; kill -CONT $1",
                "sh",
                &std::process::id().to_string(),
            ]);
            *self.shared.stopper.lock().unwrap() = Some(stop.spawn().unwrap());
            // The process is stopped within this time. After it, this vCPU is not the first to run, because
            // it still sleeps.
            std::thread::sleep(Duration::from_millis(1_600));
        }
    }
}

#[test]
fn no_vcpu_enters_the_guest_before_its_probes_are_removed() {
    if let Err(error) = kvm_check::open() {
        testkit::missing(&format!("/dev/kvm ({error})"));
        return;
    }
    let shared = Arc::new(Shared::default());
    let config = VmConfig { vcpus: 2, ..VmConfig::flat(LOOP) };
    let given = Arc::clone(&shared);
    let machine = Machine::start(config, |id| Stopping { id, shared: Arc::clone(&given) }).unwrap();
    let reason = Arc::new(Mutex::new(None));
    let reported = Arc::clone(&reason);
    let handler = Box::new(move |withdrawn: &Withdrawal| *reported.lock().unwrap() = Some(withdrawn.reason));
    machine.probes().set(&[SITE], || shared.set.store(true, Ordering::SeqCst), handler).unwrap();
    testkit::eventually("removal of the probes", Duration::from_secs(20), || {
        reason.lock().unwrap().is_some().then_some(())
    });
    assert_eq!(*reason.lock().unwrap(), Some(WithdrawReason::Observer));
    // A vCPU that had given up would have hit the probe again.
    assert_eq!(shared.hits.load(Ordering::SeqCst), shared.requested_at.load(Ordering::SeqCst));
    assert_eq!(machine.memory().read_obj::<[u8; 5]>(GuestAddress(FLAT_ENTRY)).unwrap(), PROBE_NOP);
    let stopper = shared.stopper.lock().unwrap().take();
    assert!(stopper.unwrap().wait().unwrap().success(), "the process was not stopped");
    machine.stop();
    machine.wait(Some(Duration::from_secs(20))).unwrap();
}
