//! A network card, at whose other end sits the test.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::config::Network;
use crate::net::Stream;
use crate::virtio::net::Net;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Size of a driver's buffer for a frame (virtio 1.2, 5.1.6.3.1).
const BUFFER: u32 = 1526;

/// Starts a card; returns it and the other end of its cable.
fn card() -> (Rig, UnixStream) {
    let (ours, other) = UnixStream::pair().unwrap();
    other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let backend = Box::new(Stream::new(ours).unwrap());
    let mut rig = Rig::new(Box::new(Net::new(Network { mac: [2, 1, 2, 3, 4, 5], backend })));
    rig.start();
    (rig, other)
}

fn frame(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| index.to_le_bytes()[0].wrapping_mul(3).wrapping_add(seed)).collect()
}

fn put(other: &mut UnixStream, frame: &[u8]) {
    other.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).unwrap();
    other.write_all(frame).unwrap();
}

fn get(other: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    other.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    other.read_exact(&mut frame).unwrap();
    frame
}

impl Rig {
    /// Posts a separate receive buffer for each head.
    fn post(&mut self, heads: std::ops::Range<u16>) {
        self.on(RECEIVE);
        for head in heads {
            self.descriptor(head, BUFFERS + u64::from(head) * 0x1000, BUFFER, WRITE, 0);
            self.submit(head);
        }
    }

    /// Returns the contents of a receive buffer after the header.
    fn received(&self, head: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; 12 + length];
        self.memory.read_slice(&mut bytes, GuestAddress(BUFFERS + u64::from(head) * 0x1000)).unwrap();
        assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "one buffer, nothing to be done");
        bytes.split_off(12)
    }

    /// Sends a frame in two pieces after its header.
    fn transmit(&mut self, frame: &[u8]) {
        let at = BUFFERS + 0x8_0000;
        self.on(TRANSMIT);
        self.memory.write_slice(&[0; 12], GuestAddress(at)).unwrap();
        self.memory.write_slice(frame, GuestAddress(at + 12)).unwrap();
        let cut = frame.len() / 3;
        self.descriptor(0, at, 12 + u32::try_from(cut).unwrap(), NEXT, 1);
        self.descriptor(1, at + 12 + cut as u64, u32::try_from(frame.len() - cut).unwrap(), 0, 0);
        self.submit(0);
        assert_eq!(self.answer(), 0, "nothing is written into it");
    }
}

#[test]
fn frames_pass_in_both_directions() {
    let (mut rig, mut other) = card();
    assert_eq!(rig.read::<8>(0x2000), [2, 1, 2, 3, 4, 5, 1, 0], "address, and the link is up");
    for (length, seed) in [(60, 1), (1514, 2), (1518, 3)] {
        rig.transmit(&frame(length, seed));
        assert_eq!(get(&mut other), frame(length, seed));
    }
    // Before there is a buffer, and after.
    put(&mut other, &frame(1514, 4));
    rig.post(0..1);
    assert_eq!(rig.answer(), 12 + 1514);
    assert_eq!(rig.received(0, 1514), frame(1514, 4));
    rig.post(1..3);
    for (head, length) in [(1, 42), (2, 1000)] {
        put(&mut other, &frame(length, 5));
        until(|| rig.used() == head + 1);
        assert_eq!(rig.received(head, length), frame(length, 5));
    }
}

#[test]
fn more_frames_than_a_turn_takes_all_arrive() {
    let (mut rig, mut other) = card();
    let writer = std::thread::spawn(move || {
        (0..500u16).for_each(|number| put(&mut other, &frame(64, number.to_le_bytes()[0])));
        other
    });
    rig.post(0..SIZE);
    for number in 0..500 {
        until(|| rig.used() > number);
        let head = number % SIZE;
        assert_eq!(rig.received(head, 64), frame(64, number.to_le_bytes()[0]), "{number}");
        rig.submit(head);
    }
    let mut other = writer.join().unwrap();
    rig.transmit(&frame(60, 9));
    assert_eq!(get(&mut other), frame(60, 9));
}

#[test]
fn frames_that_are_too_long_are_lost_and_no_other() {
    let (mut rig, mut other) = card();
    rig.post(0..1);
    put(&mut other, &frame(1515, 1));
    put(&mut other, &frame(60_000, 2));
    put(&mut other, &frame(1514, 3));
    assert_eq!(rig.answer(), 12 + 1514);
    assert_eq!(rig.received(0, 1514), frame(1514, 3));
    rig.transmit(&frame(1519, 4));
    rig.transmit(&frame(9000, 5));
    rig.transmit(&frame(60, 6));
    assert_eq!(get(&mut other), frame(60, 6));
}

#[test]
fn a_cable_that_is_cut_leaves_a_card_that_works_for_nobody() {
    let (mut rig, other) = card();
    rig.post(0..4);
    drop(other);
    for _ in 0..3 {
        rig.transmit(&frame(60, 1));
    }
    assert_eq!(rig.on(RECEIVE).used(), 0);
    rig.reset();
    rig.start();
    rig.transmit(&frame(60, 1));
    assert_eq!(rig.status(), 0x0f);
}

#[test]
fn a_reset_while_buffers_wait_forgets_them() {
    let (mut rig, mut other) = card();
    rig.post(0..4);
    rig.reset();
    put(&mut other, &frame(60, 1));
    rig.start();
    rig.post(7..8);
    assert_eq!(rig.answer(), 72);
    assert_eq!(rig.received(7, 60), frame(60, 1));
}

#[test]
fn buffers_that_hold_no_frame_break_the_card_until_reset() {
    type Spoil = fn(&mut Rig);
    let spoils: [(&str, Spoil); 7] = [
        ("a receive buffer of one byte too little", |rig| {
            rig.on(RECEIVE).descriptor(0, BUFFERS, BUFFER - 1, WRITE, 0);
            rig.submit(0);
        }),
        ("a receive buffer to be read", |rig| {
            rig.on(RECEIVE).descriptor(0, BUFFERS, BUFFER, 0, 0);
            rig.submit(0);
        }),
        ("a receive buffer outside of memory", |rig| {
            rig.on(RECEIVE).descriptor(0, MEMORY - 100, BUFFER, WRITE, 0);
            rig.submit(0);
        }),
        ("a frame shorter than its header", |rig| {
            rig.on(TRANSMIT).descriptor(0, BUFFERS, 11, 0, 0);
            rig.submit(0);
        }),
        ("a frame to be written", |rig| {
            rig.on(TRANSMIT).descriptor(0, BUFFERS, 100, WRITE, 0);
            rig.submit(0);
        }),
        ("lengths that wrap around", |rig| {
            rig.on(TRANSMIT).descriptor(0, BUFFERS, u32::MAX, NEXT, 1);
            rig.descriptor(1, BUFFERS, u32::MAX, 0, 0);
            rig.submit(0);
        }),
        ("an index far ahead", |rig| rig.on(TRANSMIT).announce(SIZE + 1)),
    ];
    for (name, spoil) in spoils {
        let (mut rig, mut other) = card();
        let _ = writeln!(std::io::stderr(), "{name}");
        spoil(&mut rig);
        rig.expect_broken();
        rig.transmit(&frame(60, 1));
        assert_eq!(get(&mut other), frame(60, 1));
    }
}

proptest! {
    #[test]
    fn any_rings_leave_a_card_that_a_reset_repairs(
        descriptors in proptest::collection::vec(super::hostile::descriptor(), 2 * usize::from(SIZE)),
        heads in proptest::collection::vec(0..SIZE + 2, 2 * usize::from(SIZE)),
        filled in proptest::collection::vec(prop_oneof![1..=SIZE, any::<u16>()], 2),
        frames in proptest::collection::vec(0..3000usize, 0..20),
    ) {
        let (mut rig, mut other) = card();
        for queue in [RECEIVE, TRANSMIT] {
            let part = usize::from(queue * SIZE)..usize::from((queue + 1) * SIZE);
            rig.on(queue).scribble(&descriptors[part.clone()], &heads[part]);
        }
        frames.iter().for_each(|length| put(&mut other, &frame(*length, 1)));
        for (queue, filled) in (0..).zip(&filled) {
            rig.on(queue).announce(*filled);
        }
        // The device gets some way into the rings before the reset, because it finds the damage there.
        std::thread::sleep(Duration::from_micros(200));
        rig.reset();
        rig.start();
        rig.transmit(&frame(61, 0xa5));
        // What the rings sent before comes first.
        while get(&mut other) != frame(61, 0xa5) {}
    }
}
