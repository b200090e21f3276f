//! A driver that does not.

use std::io::Write;

use proptest::prelude::*;

use super::*;

#[test]
fn requests_outside_of_the_disk_fail_and_the_device_goes_on() {
    let (mut rig, file) = Rig::disk(DiskMode::ReadWrite, 64);
    rig.start();
    for (kind, sector, length) in [
        (0, 64, 512),
        (0, 63, 1024),
        (1, 64, 512),
        (1, u64::MAX, 512),
        (1, u64::MAX / 512, 512),
        (0, 0, 100),
        (1, 0, 513),
    ] {
        assert_eq!(rig.request(kind, sector, length, kind == 0), 1, "{kind} {sector} {length}");
    }
    assert_eq!(rig.request(99, 0, 512, true), 2, "unsupported");
    assert_eq!(rig.request(0, 0, 512, true), 0);
    assert_eq!(file.metadata().unwrap().len(), 64 * 512);
}

#[test]
fn requests_without_a_place_for_the_answer_break_the_device_until_reset() {
    type Spoil = fn(&mut Rig);
    let spoils: [(&str, Spoil); 9] = [
        ("no status", |rig| {
            rig.descriptor(0, BUFFERS, 16, 0, 0);
            rig.submit(0);
        }),
        ("a short header", |rig| {
            rig.descriptor(0, BUFFERS, 15, NEXT, 1);
            rig.descriptor(1, BUFFERS + 0x800, 1, WRITE, 0);
            rig.submit(0);
        }),
        ("a buffer outside of memory", |rig| {
            rig.descriptor(0, BUFFERS, 16, NEXT, 1);
            rig.descriptor(1, MEMORY - 8, 513, WRITE, 0);
            rig.submit(0);
        }),
        ("a buffer that wraps around", |rig| {
            rig.descriptor(0, u64::MAX - 8, 16, NEXT, 1);
            rig.descriptor(1, BUFFERS + 0x800, 1, WRITE, 0);
            rig.submit(0);
        }),
        ("a head beyond the table", |rig| rig.submit(SIZE)),
        ("an index far ahead", |rig| rig.announce(SIZE + 1)),
        ("a table outside of memory", |rig| {
            rig.descriptor(0, u64::MAX - 15, 64, INDIRECT, 0);
            rig.submit(0);
        }),
        ("a table of a broken size", |rig| {
            rig.descriptor(0, BUFFERS, 17, INDIRECT, 0);
            rig.submit(0);
        }),
        ("a table inside of a table", |rig| {
            rig.put_descriptor(BUFFERS, BUFFERS, 16, INDIRECT, 0);
            rig.descriptor(0, BUFFERS, 16, INDIRECT, 0);
            rig.submit(0);
        }),
    ];
    for (name, spoil) in spoils {
        let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
        rig.start();
        let _ = writeln!(std::io::stderr(), "{name}");
        spoil(&mut rig);
        rig.expect_broken_then_recover();
    }
}

#[test]
fn a_chain_that_never_ends_is_cut_at_the_rings_size() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
    rig.start();
    rig.header(0, 0);
    rig.descriptor(0, BUFFERS, 16, NEXT, 1);
    rig.descriptor(1, BUFFERS + 0x1000, 64, NEXT | WRITE, 1);
    rig.submit(0);
    rig.answer();
    assert_eq!(rig.request(0, 0, 512, true), 0);
}

#[test]
fn queues_outside_of_memory_break_the_device() {
    for ring in [0x20, 0x28, 0x30] {
        for address in [MEMORY - 16, 1 << 40, !0xfff, 0x1001] {
            let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
            rig.start();
            rig.reset();
            rig.write(0x14, &[3]);
            rig.write(0x08, &1u32.to_le_bytes());
            rig.write(0x0c, &1u32.to_le_bytes());
            rig.write(0x14, &[0x0b]);
            rig.address(0x20, DESCRIPTORS);
            rig.address(0x28, AVAILABLE);
            rig.address(0x30, USED);
            rig.address(ring, address);
            rig.write(0x1c, &1u16.to_le_bytes());
            rig.write(0x14, &[0x0f]);
            assert_ne!(rig.status() & 0x40, 0, "{ring:#x} {address:#x}");
        }
    }
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
    for (low, high) in [(0u32, 0u32), (1 << 31, 1), (0, 0xffff_ffff)] {
        rig.reset();
        rig.write(0x14, &[3]);
        rig.write(0x08, &0u32.to_le_bytes());
        rig.write(0x0c, &low.to_le_bytes());
        rig.write(0x08, &1u32.to_le_bytes());
        rig.write(0x0c, &high.to_le_bytes());
        rig.write(0x14, &[0x0b]);
        assert_eq!(rig.status(), 3, "{low:#x} {high:#x}");
        rig.write(0x14, &[0x0f]);
        assert_eq!(rig.status(), 3, "and so is continuing without them");
    }
}

#[test]
fn the_window_can_be_reached_through_configuration_space() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
    let mut at = [0];
    rig.pci.read_config(0x34, &mut at);
    let mut head = [0; 4];
    loop {
        rig.pci.read_config(at[0], &mut head);
        if (head[0], head[3]) == (9, 5) {
            break;
        }
        at[0] = head[1];
    }
    rig.pci.write_config(at[0] + 8, &0x2000u32.to_le_bytes());
    rig.pci.write_config(at[0] + 12, &4u32.to_le_bytes());
    let mut capacity = [0; 4];
    rig.pci.read_config(at[0] + 16, &mut capacity);
    assert_eq!(u32::from_le_bytes(capacity), 64);
    rig.pci.write_config(at[0] + 8, &0x14u32.to_le_bytes());
    rig.pci.write_config(at[0] + 12, &1u32.to_le_bytes());
    rig.pci.write_config(at[0] + 16, &[1, 0, 0, 0]);
    assert_eq!(rig.status(), 1);
    // Offsets and lengths that are not there do nothing.
    for (offset, length) in [(u32::MAX, 4u32), (0x7fff, 4), (0, 3), (0, u32::MAX)] {
        rig.pci.write_config(at[0] + 8, &offset.to_le_bytes());
        rig.pci.write_config(at[0] + 12, &length.to_le_bytes());
        rig.pci.write_config(at[0] + 16, &[0xff; 4]);
        rig.pci.read_config(at[0] + 16, &mut capacity);
    }
    assert_eq!(rig.status(), 1);
}

#[test]
fn registers_survive_any_access() {
    let (mut rig, _) = Rig::disk(DiskMode::Snapshot, 64);
    rig.start();
    // A fixed pseudo-random walk (xorshift) over window and configuration space.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..50_000 {
        let (choice, offset, data) = (random(), random(), random().to_le_bytes());
        let length = usize::try_from(1u64 << (choice % 4)).unwrap();
        let mut buffer = data;
        match choice >> 8 & 3 {
            0 => rig.pci.write_memory(offset % u64::from(BAR_SIZE), &data[..length]),
            1 => rig.pci.read_memory(offset % u64::from(BAR_SIZE + 16), &mut buffer[..length]),
            2 => rig.pci.write_config(offset.to_le_bytes()[0], &data[..length.min(4)]),
            _ => rig.pci.read_config(offset.to_le_bytes()[0], &mut buffer[..length.min(4)]),
        }
    }
    rig.pci.write_config(BAR0, &0xc000_0000u32.to_le_bytes());
    rig.messages.0.lock().unwrap().clear();
    rig.reset();
    rig.start();
    assert_eq!(rig.request(0, 0, 512, true), 0);
}

/// Addresses a hostile driver would try: good ones, edges, overlaps with the rings, nonsense.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(BUFFERS),
        Just(BUFFERS + 0x1000),
        Just(DESCRIPTORS),
        Just(AVAILABLE),
        Just(USED),
        Just(MEMORY - 1),
        Just(MEMORY),
        Just(u64::MAX),
        any::<u64>(),
        0..MEMORY,
    ]
}

pub(super) fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let length =
        prop_oneof![Just(0u32), Just(1), Just(16), Just(512), Just(u32::MAX), any::<u32>(), 0..8192u32];
    let flags = prop_oneof![0..8u16, any::<u16>()];
    let next = prop_oneof![0..SIZE, any::<u16>()];
    (address(), length, flags, next)
}

proptest! {
    #[test]
    fn any_ring_leaves_a_device_that_a_reset_repairs(
        descriptors in proptest::collection::vec(descriptor(), usize::from(SIZE)),
        heads in proptest::collection::vec(0..SIZE + 2, usize::from(SIZE)),
        filled in prop_oneof![1..=SIZE, any::<u16>()],
        header in (0..10u32, prop_oneof![0..64u64, any::<u64>()]),
        rng in any::<bool>(),
    ) {
        let mut rig = if rng { Rig::new(Box::new(Rng)) } else { Rig::disk(DiskMode::Snapshot, 64).0 };
        rig.start();
        rig.header(header.0, header.1);
        rig.scribble(&descriptors, &heads);
        rig.announce(filled);
        // The device gets some way into the rings before the reset, because it finds the damage there.
        std::thread::sleep(Duration::from_micros(200));
        rig.reset();
        rig.start();
        if rng {
            rig.descriptor(0, BUFFERS, 64, WRITE, 0);
            rig.submit(0);
            prop_assert_eq!(rig.answer(), 64);
        } else {
            prop_assert_eq!(rig.request(0, 0, 512, true), 0);
        }
    }
}
