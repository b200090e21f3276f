//! Setting and taking away in memory, with threads that stand for vCPUs. The machine's own are in tests/tripwires.rs.

use std::sync::Mutex;

use super::*;
use crate::vcpu::kick;

/// Memory of no-ops, and tripwires of a machine whose vCPUs have all ended.
fn still() -> (Tripwires, GuestMemoryMmap) {
    kick::install_handler().unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x3000)]).unwrap();
    for at in 0..0x300 {
        memory.write_slice(&TRIP_NOP, GuestAddress(at * 16)).unwrap();
    }
    let control = Arc::new(Control::new(1).unwrap());
    drop(control.attend(0));
    (Tripwires::new(control, memory.clone()), memory)
}

fn site(phys: u64, kind: u8) -> Site {
    Site { virt: 0xffff_ffff_8000_0000 + phys, phys, kind, loads_rdi: None }
}

fn all(memory: &GuestMemoryMmap) -> Vec<u8> {
    let mut bytes = vec![0; 0x3000];
    memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

fn nothing() -> AtWithdrawal {
    Box::new(|_| ())
}

#[test]
fn memory_is_byte_for_byte_what_it_was() {
    let (wires, memory) = still();
    let before = all(&memory);
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    let mut called = false;
    let set = wires.set(
        &[site(0x100, 0), site(0x2000, 15)],
        || called = true,
        Box::new(move |withdrawn| *tell.lock().unwrap() = Some(withdrawn.clone())),
    );
    assert_eq!((set, called), (Ok(()), true));
    let changed = all(&memory);
    assert_eq!(changed[0x100..0x105], [0x3e, 0x3e, 0x3e, 0xe6, 0xe0]);
    assert_eq!(changed[0x2000..0x2005], [0x3e, 0x3e, 0x3e, 0xe6, 0xe7]);
    assert_eq!(changed.iter().zip(&before).filter(|(a, b)| a != b).count(), 10);
    assert!(wires.are_set() && wires.foreign().is_empty());
    assert!(told.lock().unwrap().is_none());
    let withdrawn = Withdrawn { reason: WithdrawReason::Asked, foreign: Vec::new() };
    assert_eq!(wires.withdraw(), Ok(Some(withdrawn.clone())));
    assert_eq!(told.lock().unwrap().take(), Some(withdrawn));
    assert_eq!(all(&memory), before);
    assert_eq!(wires.withdraw(), Ok(None));
}

#[test]
fn a_load_of_rdi_is_as_good_a_place() {
    let (wires, memory) = still();
    let load = |phys, value| Site { loads_rdi: Some(value), ..site(phys, 3) };
    for (at, code) in [(0x100, [0x48, 0xc7, 0xc7, 1, 2, 3, 4]), (0xff9, [0x48, 0x8d, 0x3d, 1, 2, 3, 4])] {
        memory.write_slice(&code, GuestAddress(at)).unwrap();
    }
    let before = all(&memory);
    wires.set(&[load(0x100, 5), load(0xff9, 6), site(0x200, 0)], || (), nothing()).unwrap();
    let changed = all(&memory);
    for at in [0x100, 0xff9] {
        assert_eq!(changed[at..at + 7], [0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0xe6, 0xe3]);
    }
    assert_eq!(changed.iter().zip(&before).filter(|(a, b)| a != b).count(), 19);
    wires.withdraw().unwrap();
    assert_eq!(all(&memory), before);
    let refused = wires.set(&[load(0x200, 5)], || (), nothing()).unwrap_err();
    assert_eq!(refused.to_string(), "at 0xffffffff80000200 there is no load of RDI but 0f 1f 44 00 00 00 00");
    let crosses = wires.set(&[load(0xffa, 5)], || (), nothing());
    assert_eq!(crosses, Err(TripwireError::Sites { count: 1 }));
}

#[test]
fn either_all_are_set_or_none() {
    let (wires, memory) = still();
    memory.write_slice(&[0xe8], GuestAddress(0x200)).unwrap();
    let before = all(&memory);
    let error = wires.set(&[site(0x100, 0), site(0x200, 0)], || (), nothing()).unwrap_err();
    assert_eq!(error.to_string(), "at 0xffffffff80000200 there is no 5-byte no-op but e8 1f 44 00 00");
    let outside = wires.set(&[site(0x100, 0), site(0x10_0000, 0)], || (), nothing()).unwrap_err();
    assert!(outside.to_string().ends_with("but no memory"), "{outside}");
    assert_eq!(all(&memory), before);
    assert!(!wires.are_set());
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let (wires, _) = still();
    let many: Vec<Site> = (0..33).map(|n| site(n * 16, 0)).collect();
    for sites in [&[][..], &many, &[site(0, TRIP_KINDS)], &[site(0x10, 0), site(0x10, 1)], &[site(0xffc, 0)]]
    {
        let refused = wires.set(sites, || (), nothing());
        assert_eq!(refused, Err(TripwireError::Sites { count: sites.len() }));
    }
    wires.set(&many[..32], || (), nothing()).unwrap();
    assert_eq!(wires.set(&many[32..], || (), nothing()), Err(TripwireError::Set));
}

#[test]
fn what_the_guest_wrote_is_left_alone_and_told() {
    let (wires, memory) = still();
    wires.set(&[site(0x100, 0), site(0x200, 1)], || (), nothing()).unwrap();
    memory.write_slice(&[0xe8, 1, 2, 3, 4], GuestAddress(0x100)).unwrap();
    assert_eq!(wires.foreign(), [site(0x100, 0)]);
    let withdrawn = wires.withdraw().unwrap().unwrap();
    assert_eq!(withdrawn.foreign, [site(0x100, 0)]);
    assert_eq!(all(&memory)[0x100..0x105], [0xe8, 1, 2, 3, 4]);
    assert_eq!(all(&memory)[0x200..0x205], TRIP_NOP);
}

#[test]
fn a_closed_machine_has_none_and_takes_none() {
    let (wires, memory) = still();
    let before = all(&memory);
    wires.set(&[site(0x100, 0)], || (), nothing()).unwrap();
    wires.close();
    assert_eq!(all(&memory), before);
    assert_eq!(wires.set(&[site(0x100, 0)], || (), nothing()), Err(TripwireError::Ended));
}

#[test]
fn a_vcpu_that_does_not_stand_still_keeps_memory_as_it_is() {
    kick::install_handler().unwrap();
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x3000)]).unwrap();
    memory.write_slice(&TRIP_NOP, GuestAddress(0)).unwrap();
    let control = Arc::new(Control::new(1).unwrap());
    let wires = Tripwires::new(control, memory.clone());
    let refused = wires.set(&[site(0, 0)], || (), nothing());
    assert_eq!(refused, Err(TripwireError::NotStill { missing: 1 }));
    assert_eq!(all(&memory)[..5], TRIP_NOP);
}
