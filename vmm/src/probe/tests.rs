//! Setting and taking away in memory, with threads that stand for vCPUs. The machine's own are in
//! tests/probes.rs.

use std::sync::Mutex;

use super::*;
use crate::vcpu::kick;

/// Returns memory of no-ops, and the probes of a machine whose vCPUs have all ended.
fn ended_machine() -> (ProbeSet, GuestMemoryMmap) {
    kick::install_handler().unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x3000)]).unwrap();
    for at in 0..0x300 {
        memory.write_slice(&PROBE_NOP, GuestAddress(at * 16)).unwrap();
    }
    let control = Arc::new(Control::new(1).unwrap());
    drop(control.register(0));
    (ProbeSet::new(control, memory.clone()), memory)
}

fn site(phys: u64, kind: u8) -> ProbePoint {
    ProbePoint { virt: 0xffff_ffff_8000_0000 + phys, phys: GuestAddress(phys), kind, loads_rdi: None }
}

fn all(memory: &GuestMemoryMmap) -> Vec<u8> {
    let mut bytes = vec![0; 0x3000];
    memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

fn nothing() -> WithdrawalHandler {
    Box::new(|_| ())
}

#[test]
fn memory_is_byte_for_byte_what_it_was() {
    let (probes, memory) = ended_machine();
    let before = all(&memory);
    let reported = Arc::new(Mutex::new(None));
    let report = Arc::clone(&reported);
    let mut called = false;
    let set = probes.set(
        &[site(0x100, 0), site(0x2000, 15)],
        || called = true,
        Box::new(move |withdrawn| *report.lock().unwrap() = Some(withdrawn.clone())),
    );
    assert_eq!((set, called), (Ok(()), true));
    let changed = all(&memory);
    assert_eq!(changed[0x100..0x105], [0x3e, 0x3e, 0x3e, 0xe6, 0xe0]);
    assert_eq!(changed[0x2000..0x2005], [0x3e, 0x3e, 0x3e, 0xe6, 0xe7]);
    assert_eq!(changed.iter().zip(&before).filter(|(a, b)| a != b).count(), 10);
    assert!(probes.are_set() && probes.foreign().is_empty());
    assert!(reported.lock().unwrap().is_none());
    let withdrawn = Withdrawal { reason: WithdrawReason::Requested, foreign: Vec::new() };
    assert_eq!(probes.withdraw(), Ok(Some(withdrawn.clone())));
    assert_eq!(reported.lock().unwrap().take(), Some(withdrawn));
    assert_eq!(all(&memory), before);
    assert_eq!(probes.withdraw(), Ok(None));
}

#[test]
fn a_load_of_rdi_is_as_good_a_place() {
    let (probes, memory) = ended_machine();
    let load = |phys, value| ProbePoint { loads_rdi: Some(value), ..site(phys, 3) };
    for (at, code) in [(0x100, [0x48, 0xc7, 0xc7, 1, 2, 3, 4]), (0xff9, [0x48, 0x8d, 0x3d, 1, 2, 3, 4])] {
        memory.write_slice(&code, GuestAddress(at)).unwrap();
    }
    let before = all(&memory);
    probes.set(&[load(0x100, 5), load(0xff9, 6), site(0x200, 0)], || (), nothing()).unwrap();
    let changed = all(&memory);
    for at in [0x100, 0xff9] {
        assert_eq!(changed[at..at + 7], [0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0xe6, 0xe3]);
    }
    assert_eq!(changed.iter().zip(&before).filter(|(a, b)| a != b).count(), 19);
    probes.withdraw().unwrap();
    assert_eq!(all(&memory), before);
    let refused = probes.set(&[load(0x200, 5)], || (), nothing()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "expected a load of RDI at 0xffffffff80000200, found 0f 1f 44 00 00 00 00"
    );
    let crosses = probes.set(&[load(0xffa, 5)], || (), nothing());
    assert_eq!(crosses, Err(ProbeError::Points { count: 1 }));
}

#[test]
fn either_all_are_set_or_none() {
    let (probes, memory) = ended_machine();
    memory.write_slice(&[0xe8], GuestAddress(0x200)).unwrap();
    let before = all(&memory);
    let error = probes.set(&[site(0x100, 0), site(0x200, 0)], || (), nothing()).unwrap_err();
    assert_eq!(error.to_string(), "expected a 5-byte no-op at 0xffffffff80000200, found e8 1f 44 00 00");
    let outside = probes.set(&[site(0x100, 0), site(0x10_0000, 0)], || (), nothing()).unwrap_err();
    assert!(outside.to_string().ends_with("found no memory"), "{outside}");
    assert_eq!(all(&memory), before);
    assert!(!probes.are_set());
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let (probes, _) = ended_machine();
    let many: Vec<ProbePoint> = (0..33).map(|n| site(n * 16, 0)).collect();
    for sites in [&[][..], &many, &[site(0, PROBE_KINDS)], &[site(0x10, 0), site(0x10, 1)], &[site(0xffc, 0)]]
    {
        let refused = probes.set(sites, || (), nothing());
        assert_eq!(refused, Err(ProbeError::Points { count: sites.len() }));
    }
    probes.set(&many[..32], || (), nothing()).unwrap();
    assert_eq!(probes.set(&many[32..], || (), nothing()), Err(ProbeError::AlreadySet));
}

#[test]
fn what_the_guest_wrote_is_not_restored_but_reported() {
    let (probes, memory) = ended_machine();
    probes.set(&[site(0x100, 0), site(0x200, 1)], || (), nothing()).unwrap();
    memory.write_slice(&[0xe8, 1, 2, 3, 4], GuestAddress(0x100)).unwrap();
    assert_eq!(probes.foreign(), [site(0x100, 0)]);
    let withdrawn = probes.withdraw().unwrap().unwrap();
    assert_eq!(withdrawn.foreign, [site(0x100, 0)]);
    assert_eq!(all(&memory)[0x100..0x105], [0xe8, 1, 2, 3, 4]);
    assert_eq!(all(&memory)[0x200..0x205], PROBE_NOP);
}

#[test]
fn a_closed_machine_has_no_probes_and_accepts_none() {
    let (probes, memory) = ended_machine();
    let before = all(&memory);
    probes.set(&[site(0x100, 0)], || (), nothing()).unwrap();
    probes.close();
    assert_eq!(all(&memory), before);
    assert_eq!(probes.set(&[site(0x100, 0)], || (), nothing()), Err(ProbeError::Ended));
}

#[test]
fn memory_is_unchanged_if_a_vcpu_does_not_pause() {
    kick::install_handler().unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x3000)]).unwrap();
    memory.write_slice(&PROBE_NOP, GuestAddress(0)).unwrap();
    let control = Arc::new(Control::new(1).unwrap());
    let probes = ProbeSet::new(control, memory.clone());
    let refused = probes.set(&[site(0, 0)], || (), nothing());
    assert_eq!(refused, Err(ProbeError::NotPaused { missing: 1 }));
    assert_eq!(all(&memory)[..5], PROBE_NOP);
}

/// Starts a thread that stands for vCPU 1 of two: it serves its exit for `delay`, then parks when it is asked
/// to until the machine is stopped.
fn late_vcpu(control: &Arc<Control>, delay: Duration) -> std::thread::JoinHandle<()> {
    let (control, (ready, started)) = (Arc::clone(control), std::sync::mpsc::channel());
    let thread = std::thread::spawn(move || {
        let _here = control.register(1);
        ready.send(()).unwrap();
        // The exit takes that long, because a vCPU parks only between two exits.
        std::thread::sleep(delay);
        while !control.stopping() {
            control.park();
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    started.recv().unwrap();
    thread
}

/// Returns the probes of a machine with two running vCPUs, of which no thread exists yet, with one probe set.
fn running_machine() -> (ProbeSet, GuestMemoryMmap, Arc<Control>) {
    kick::install_handler().unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x3000)]).unwrap();
    memory.write_slice(&PROBE_NOP, GuestAddress(0)).unwrap();
    let control = Arc::new(Control::new(2).unwrap());
    let probes = ProbeSet::new(Arc::clone(&control), memory.clone());
    probes.write(&site(0, 0), &Instruction::probe(&site(0, 0)));
    probes.lock().sites =
        vec![(site(0, 0), Instruction { bytes: [0x0f, 0x1f, 0x44, 0, 0, DS, DS], length: 5 })];
    (probes, memory, control)
}

#[test]
fn a_vcpu_waits_until_the_probes_are_removed_however_late_another_parks() {
    let (probes, memory, control) = running_machine();
    let late = late_vcpu(&control, PAUSE_LIMIT + Duration::from_millis(500));
    let here = control.register(0);
    let withdrawn = probes.withdraw_on_vcpu().unwrap().unwrap();
    assert_eq!(withdrawn, Withdrawal { reason: WithdrawReason::Observer, foreign: Vec::new() });
    assert_eq!(all(&memory)[..5], PROBE_NOP);
    control.finish(crate::MachineEnd::Stopped);
    drop(here);
    late.join().unwrap();
}

#[test]
fn the_end_of_the_machine_ends_a_vcpus_wait() {
    let (probes, _, control) = running_machine();
    let late = late_vcpu(&control, Duration::from_secs(3));
    let stopper = Arc::clone(&control);
    let stop = std::thread::spawn(move || {
        // The wait has begun by then. If it has not, it does not begin.
        std::thread::sleep(Duration::from_millis(100));
        stopper.finish(crate::MachineEnd::Stopped);
    });
    let here = control.register(0);
    let start = std::time::Instant::now();
    assert_eq!(probes.withdraw_on_vcpu(), Err(ProbeError::NotPaused { missing: 1 }));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(control.stopping());
    drop(here);
    stop.join().unwrap();
    late.join().unwrap();
}
