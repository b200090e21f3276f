//! A driver that keeps to the specification.

use std::os::unix::fs::FileExt;

use vm_memory::{Bytes, GuestAddress};

use super::*;

#[test]
fn the_function_presents_itself_as_a_modern_block_device() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadOnly, 64);
    let mut id = [0; 4];
    rig.pci.read_config(0, &mut id);
    assert_eq!(id, [0xf4, 0x1a, 0x42, 0x10]);
    // Capabilities: MSI-X and the five structures of virtio, each inside the window.
    let mut kinds = Vec::new();
    let mut at = [0];
    rig.pci.read_config(0x34, &mut at);
    while at[0] != 0 {
        let mut head = [0; 4];
        rig.pci.read_config(at[0], &mut head);
        kinds.push((head[0], head[3]));
        at[0] = head[1];
    }
    let virtio: Vec<u8> = kinds.iter().filter(|(id, _)| *id == 9).map(|(_, kind)| *kind).collect();
    assert_eq!((kinds[0].0, virtio), (0x11, vec![1, 2, 3, 4, 5]));
    rig.write(0, &0u32.to_le_bytes());
    let features = u32::from_le_bytes(rig.read::<4>(4));
    assert_ne!(features & (1 << 5), 0, "read-only");
    assert_eq!(u64::from_le_bytes(rig.read::<8>(0x2000)), 64, "capacity");
    assert_eq!(u16::from_le_bytes(rig.read::<2>(0x12)), 1, "queues");
}

#[test]
fn reads_and_writes_move_whole_sectors_and_interrupt() {
    let (mut rig, file) = Rig::disk(DiskMode::ReadWrite, 64);
    file.write_all_at(&[0x5a; 1024], 512).unwrap();
    rig.start();
    assert_eq!(rig.request(0, 1, 1024, true), 0);
    let read: [u8; 4] = rig.memory.read_obj(GuestAddress(BUFFERS + 0x1000 + 1020)).unwrap();
    assert_eq!(read, [0x5a; 4]);
    until(|| rig.messages.0.lock().unwrap().contains(&(0xfee0_0000, 0x41)));

    rig.memory.write_slice(&[0xa5; 512], GuestAddress(BUFFERS + 0x1000)).unwrap();
    assert_eq!(rig.request(1, 63, 512, false), 0);
    assert_eq!(rig.request(4, 0, 0, false), 0, "flush");
    let mut written = [0; 512];
    file.read_exact_at(&mut written, 63 * 512).unwrap();
    assert_eq!(written, [0xa5; 512]);
}

#[test]
fn a_read_only_disk_refuses_writes() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadOnly, 64);
    rig.start();
    assert_eq!(rig.request(1, 0, 512, false), 1);
    assert_eq!(rig.request(0, 0, 512, true), 0);
}

#[test]
fn the_serial_number_names_the_disk() {
    let (mut rig, _) = Rig::disk(DiskMode::Snapshot, 64);
    rig.start();
    assert_eq!(rig.request(8, 0, 20, true), 0);
    let mut serial = [0; 20];
    rig.memory.read_slice(&mut serial, GuestAddress(BUFFERS + 0x1000)).unwrap();
    assert_eq!(&serial, b"vprof-disk-3\0\0\0\0\0\0\0\0");
}

#[test]
fn an_indirect_table_cut_into_odd_pieces_is_the_same_request() {
    let (mut rig, file) = Rig::disk(DiskMode::ReadOnly, 64);
    file.write_all_at(&[0x77; 512], 0).unwrap();
    rig.start();
    rig.header(0, 0);
    let table = BUFFERS + 0x3000;
    rig.put_descriptor(table, BUFFERS, 7, NEXT, 1);
    rig.put_descriptor(table + 16, BUFFERS + 7, 9, NEXT, 2);
    rig.put_descriptor(table + 32, BUFFERS + 0x1000, 500, NEXT | WRITE, 3);
    rig.put_descriptor(table + 48, BUFFERS + 0x2000, 12, NEXT | WRITE, 4);
    rig.put_descriptor(table + 64, BUFFERS + 0x800, 1, WRITE, 0);
    rig.descriptor(5, table, 80, INDIRECT, 0);
    rig.submit(5);
    assert_eq!(rig.answer(), 513);
    let tail: [u8; 12] = rig.memory.read_obj(GuestAddress(BUFFERS + 0x2000)).unwrap();
    assert_eq!(tail, [0x77; 12]);
}

#[test]
fn a_reset_forgets_queues_vectors_and_features() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
    rig.start();
    assert_eq!(rig.request(0, 0, 512, true), 0);
    rig.reset();
    rig.write(0x16, &0u16.to_le_bytes());
    assert_eq!(rig.read::<2>(0x1a), [0xff, 0xff]);
    assert_eq!(rig.read::<2>(0x1c), [0, 0]);
    assert_eq!(rig.read::<8>(0x20), [0; 8]);
    // A kick of a device that is not started does nothing.
    rig.write(0x3000, &[0, 0]);
    rig.start();
    assert_eq!(rig.request(0, 0, 512, true), 0);
}

#[test]
fn doorbells_follow_the_window() {
    let (mut rig, _) = Rig::disk(DiskMode::ReadWrite, 64);
    let bells = |rig: &Rig| rig.bells.0.lock().unwrap().clone();
    assert!(bells(&rig).is_empty());
    rig.pci.write_config(COMMAND, &2u16.to_le_bytes());
    assert_eq!(bells(&rig), [PCI_WINDOW_START + 0x3000]);
    rig.pci.write_config(BAR0, &0xd000_0000u32.to_le_bytes());
    assert_eq!(bells(&rig), [0xd000_3000]);
    // A window outside of what the host bridge decodes answers nothing.
    rig.pci.write_config(BAR0, &0xfee0_0000u32.to_le_bytes());
    assert_eq!((bells(&rig), rig.pci.window()), (vec![], None));
    rig.pci.write_config(BAR0, &0xd000_0000u32.to_le_bytes());
    rig.pci.write_config(COMMAND, &0u16.to_le_bytes());
    assert!(bells(&rig).is_empty());
}

#[test]
fn random_numbers_fill_what_was_asked_for() {
    let mut rig = Rig::new(Box::new(Rng));
    rig.start();
    rig.descriptor(0, BUFFERS, 64, WRITE, 0);
    rig.submit(0);
    assert_eq!(rig.answer(), 64);
    let bytes: [u8; 32] = rig.memory.read_obj(GuestAddress(BUFFERS + 32)).unwrap();
    assert_ne!(bytes, [0; 32]);
    // 4 MiB are answered in part.
    rig.descriptor(0, BUFFERS, 4 << 20, WRITE, 0);
    rig.submit(0);
    assert_eq!(rig.answer(), 4096);
}
