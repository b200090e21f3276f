//! Ports, on which the test is the guest and the reader of its output.

use std::os::fd::{AsRawFd, BorrowedFd};

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::config::{OUTPUT_PORTS, OutputPorts, PortReader};
use crate::virtio::ports::Ports;

/// Room of a port that only the end has, bytes.
const AT_END: usize = 30_000;
/// Place of buffers for messages to the driver.
const MESSAGES: u64 = BUFFERS + 0x20_0000;

#[derive(Default, Debug)]
struct Taken {
    bytes: [Vec<u8>; OUTPUT_PORTS],
    room: [usize; OUTPUT_PORTS],
    /// Room that only the end has.
    at_end: [usize; OUTPUT_PORTS],
    lost: [u64; OUTPUT_PORTS],
}

#[derive(Debug, Clone)]
struct Reader(Arc<(Mutex<Taken>, EventFd)>);

impl Reader {
    fn with<T>(&self, work: impl FnOnce(&mut Taken) -> T) -> T {
        work(&mut self.0.0.lock().unwrap())
    }

    fn make_room(&self, port: usize, bytes: usize) {
        self.with(|taken| taken.room[port] += bytes);
        self.0.1.write(1).unwrap();
    }

    fn bytes(&self, port: usize) -> Vec<u8> {
        self.with(|taken| taken.bytes[port].clone())
    }
}

impl PortReader for Reader {
    fn room(&self, port: usize, at_end: bool) -> usize {
        self.with(|taken| taken.room[port] + if at_end { taken.at_end[port] } else { 0 })
    }
    fn take(&mut self, port: usize, bytes: &[u8]) {
        self.with(|taken| {
            taken.bytes[port].extend_from_slice(bytes);
            let of_room = bytes.len().min(taken.room[port]);
            taken.room[port] -= of_room;
            taken.at_end[port] -= bytes.len() - of_room;
        });
    }
    fn lose(&mut self, port: usize, bytes: u64) {
        self.with(|taken| taken.lost[port] += bytes);
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the event lives as long as this borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.0.1.as_raw_fd()) }
    }
    fn acknowledge(&mut self) {
        let _nothing = self.0.1.read();
    }
}

/// Makes ports with so much room at each.
fn ports(room: usize) -> (Rig, Reader) {
    let taken = Taken { room: [room; OUTPUT_PORTS], at_end: [AT_END; OUTPUT_PORTS], ..Taken::default() };
    let event = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let reader = Reader(Arc::new((Mutex::new(taken), event)));
    let ports = OutputPorts { names: ["first", "second"], reader: Box::new(reader.clone()) };
    let mut rig = Rig::new(Box::new(Ports::new(ports)));
    rig.start();
    (rig, reader)
}

impl Rig {
    /// Puts the bytes into a buffer of the queue, at descriptor `index`, which is its place as well.
    fn put_output(&mut self, queue: u16, index: u16, bytes: &[u8]) {
        let at = BUFFERS + u64::from(index) * 0x2_0000;
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
        self.on(queue).descriptor(index, at, u32::try_from(bytes.len()).unwrap(), 0, 0);
        self.submit(index);
    }

    /// Sends the device a message.
    fn message(&mut self, id: u32, event: u16, value: u16) {
        let [a, b, c, d] = id.to_le_bytes();
        let ([e, f], [g, h]) = (event.to_le_bytes(), value.to_le_bytes());
        self.put_output(3, 0, &[a, b, c, d, e, f, g, h]);
        assert_eq!(self.answer(), 0);
    }

    /// Makes a buffer for a message of the device available.
    fn expect_message(&mut self, length: u32) {
        self.on(2).descriptor(0, MESSAGES, length, WRITE, 0);
        self.submit(0);
    }

    /// Waits for the message: id, event, value, and the text after them.
    fn read_message(&mut self) -> (u32, u16, u16, Vec<u8>) {
        let length = self.on(2).answer();
        let mut text = vec![0; length as usize - 8];
        self.memory.read_slice(&mut text, GuestAddress(MESSAGES + 8)).unwrap();
        let id = self.memory.read_obj(GuestAddress(MESSAGES)).unwrap();
        let event = self.memory.read_obj(GuestAddress(MESSAGES + 4)).unwrap();
        (id, event, self.memory.read_obj(GuestAddress(MESSAGES + 6)).unwrap(), text)
    }

    fn next_message(&mut self) -> (u32, u16, u16, Vec<u8>) {
        self.expect_message(64);
        self.read_message()
    }
}

#[test]
fn the_driver_learns_of_named_open_ports() {
    let (mut rig, _) = ports(0);
    rig.write(0, &0u32.to_le_bytes());
    assert_ne!(u32::from_le_bytes(rig.read::<4>(4)) & 2, 0, "VIRTIO_CONSOLE_F_MULTIPORT");
    assert_eq!(u32::from_le_bytes(rig.read::<4>(0x2004)), 2, "max_nr_ports");
    assert_eq!(u16::from_le_bytes(rig.read::<2>(0x12)), 6, "queues");
    // The buffer is there first, as a driver has it.
    rig.expect_message(64);
    rig.message(0xffff_ffff, 0, 1);
    assert_eq!(rig.read_message(), (0, 1, 0, vec![]));
    assert_eq!(rig.next_message(), (1, 1, 0, vec![]));
    rig.message(1, 3, 1);
    assert_eq!(rig.next_message(), (1, 7, 1, b"second".to_vec()));
    assert_eq!(rig.next_message(), (1, 6, 1, vec![]));
    rig.message(0, 3, 1);
    assert_eq!(rig.next_message(), (0, 7, 1, b"first".to_vec()));
    assert_eq!(rig.next_message(), (0, 6, 1, vec![]));
}

#[test]
fn messages_about_nothing_have_no_answer_and_repeated_ones_a_single_one() {
    let (mut rig, _) = ports(0);
    for (id, event, value) in
        [(2, 3, 1), (u32::MAX, 3, 1), (0, 3, 0), (0, 0, 0), (0, 6, 1), (0, 0xffff, 1), (1, 4, 1)]
    {
        rig.message(id, event, value);
    }
    (0..1000).for_each(|_| rig.message(1, 3, 1));
    assert_eq!(rig.next_message(), (1, 7, 1, b"second".to_vec()));
    assert_eq!(rig.next_message(), (1, 6, 1, vec![]));
    rig.expect_message(64);
    rig.message(0, 3, 1);
    assert_eq!(rig.read_message(), (0, 7, 1, b"first".to_vec()), "nothing was left of the thousand");
}

#[test]
fn output_arrives_whole_and_apart() {
    let (mut rig, reader) = ports(1 << 20);
    let text: Vec<u8> = (0..100_000u32).map(|index| index.to_le_bytes()[0]).collect();
    rig.put_output(1, 0, &text);
    assert_eq!(rig.answer(), 0);
    rig.put_output(5, 1, b"error");
    assert_eq!(rig.answer(), 0);
    rig.put_output(1, 2, b"");
    assert_eq!(rig.answer(), 0);
    rig.put_output(1, 3, b"\n");
    assert_eq!(rig.answer(), 0);
    assert!(reader.bytes(0) == [&text[..], b"\n"].concat());
    assert_eq!(reader.bytes(1), b"error");
}

#[test]
fn output_is_taken_at_more_than_a_megabyte_a_second() {
    // A page is what most programs write at once.
    const PAGE: [u8; 4096] = [b'x'; 4096];
    let (mut rig, reader) = ports(32 << 20);
    let begun = Instant::now();
    for _ in 0..512 {
        (0..8).for_each(|index| rig.put_output(1, index, &PAGE));
        assert_eq!(rig.answer(), 0);
    }
    let (bytes, took) = (reader.bytes(0).len(), begun.elapsed());
    let rate = 512.0 * 8.0 * 4096.0 / took.as_secs_f64();
    println!("{bytes} bytes in {took:?}: {:.0} MB/s", rate / 1e6);
    assert_eq!(bytes, 512 * 8 * 4096);
    assert!(rate > 1e6, "{rate:.0} bytes a second");
}

#[test]
fn a_reader_without_room_stops_its_port_alone_and_loses_nothing() {
    let (mut rig, reader) = ports(0);
    reader.make_room(0, 10_000);
    reader.make_room(1, 10);
    let text: Vec<u8> = (0..50_000u32).map(|index| index.to_le_bytes()[1]).collect();
    rig.put_output(1, 0, &text);
    rig.put_output(1, 1, b"end");
    until(|| reader.bytes(0).len() == 10_000);
    rig.put_output(5, 2, b"error");
    assert_eq!(rig.answer(), 0);
    assert_eq!(
        (reader.bytes(1), rig.on(1).used()),
        (b"error".to_vec(), 0),
        "the buffer is still the device's"
    );
    for _ in 0..5 {
        reader.make_room(0, 8_001);
    }
    assert_eq!(rig.on(1).answer(), 0);
    assert!(reader.bytes(0) == [&text[..], b"end"].concat());
}

#[test]
fn a_reset_and_the_end_take_what_was_written_before() {
    let (mut rig, reader) = ports(5_000);
    for (queue, port) in [(1, 0), (5, 1)] {
        rig.put_output(queue, 0, &[b'x'; 20_000]);
        rig.put_output(queue, 1, &[b'y'; 7_000]);
        until(|| reader.bytes(port).len() == 5_000);
    }
    let whole = [vec![b'x'; 20_000], vec![b'y'; 7_000]].concat();
    // One by a reset, the next by the end.
    rig.reset();
    assert!(reader.bytes(0) == whole && reader.bytes(1) == whole);
    rig.start();
    // The end replaces a start that has not begun; an answer shows that it has.
    rig.message(0, 0, 1);
    rig.put_output(1, 0, &[b'z'; 40_000]);
    drop(rig);
    assert!(
        reader.bytes(0) == [whole, vec![b'z'; AT_END - 22_000]].concat(),
        "no more than there is room for"
    );
    assert_eq!(
        reader.with(|taken| taken.lost),
        [40_000 - (AT_END - 22_000) as u64, 0],
        "the rest is counted"
    );
}

#[test]
fn buffers_that_cannot_be_break_the_device_until_reset() {
    // For output: outside of memory. For messages: too short, to be read, outside of memory.
    for (queue, address, length, flags) in [
        (1, MEMORY - 1, 64, 0),
        (5, u64::MAX - 3, 64, 0),
        (2, MESSAGES, 7, WRITE),
        (2, MESSAGES, 64, 0),
        (3, BUFFERS, 7, 0),
        (3, MEMORY, 8, 0),
    ] {
        let (mut rig, reader) = ports(100);
        rig.message(0, 0, 1);
        rig.on(queue).descriptor(1, address, length, flags, 0);
        rig.submit(1);
        rig.expect_broken();
        rig.put_output(1, 0, b"again");
        rig.answer();
        assert_eq!(reader.bytes(0), b"again");
    }
}

#[test]
fn a_buffer_that_shrinks_while_it_waits_breaks_the_device() {
    let (mut rig, reader) = ports(100);
    rig.put_output(1, 0, &[b'x'; 200]);
    until(|| reader.bytes(0).len() == 100);
    rig.descriptor(0, BUFFERS, 50, 0, 0);
    reader.make_room(0, 1000);
    rig.expect_broken();
    rig.put_output(1, 0, b"again");
    assert_eq!(rig.answer(), 0);
    assert!(reader.bytes(0).ends_with(b"xagain"));
}

#[test]
fn input_waits_for_ever_without_work() {
    let (mut rig, reader) = ports(100);
    for queue in [0, 4] {
        rig.on(queue).descriptor(0, BUFFERS + 0x10_0000, 64, WRITE, 0);
        rig.submit(0);
    }
    (0..3).for_each(|_| reader.make_room(0, 1));
    rig.put_output(1, 0, b"output");
    assert_eq!(rig.answer(), 0);
    assert_eq!((rig.on(0).used(), rig.on(4).used()), (0, 0));
    // The event was taken back: the thread sleeps.
    until(|| reader.0.1.read().is_err());
}
