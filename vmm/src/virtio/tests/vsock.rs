//! Sockets between the test as a guest and the test as programs of its host, each time directly and through a
//! relay.

mod driver;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use self::driver::*;
use super::*;
use crate::config;
use crate::virtio::vsock::Vsock;
use crate::vsock::{Header, Relay, Sockets, serve};

#[test]
fn the_guest_connects_and_bytes_flow_both_ways() {
    each(|guest, host| {
        assert_eq!(guest.rig.read::<8>(0x2000), [42, 0, 0, 0, 0, 0, 0, 0]);
        let mut program = guest.connect(&host.listen(1234), 5000, 1234);
        guest.send(packet(RW, 5000, 1234), b"hello");
        assert_eq!(read(&mut program, 5), b"hello");
        let sent = bytes(100_000, 0);
        program.write_all(&sent).unwrap();
        assert_eq!(guest.collect(100_000), sent);
        guest.send(packet(CREDIT_REQUEST, 5000, 1234), b"");
        let update = guest.expect(CREDIT_UPDATE, 5000, 1234);
        assert_eq!(update.fwd_cnt, 5);
        guest.send(Header { flags: 3, ..packet(SHUTDOWN, 5000, 1234) }, b"");
        guest.expect(RST, 5000, 1234);
        assert_eq!(rest(&mut program), b"");
        // It is not known any more.
        guest.send(packet(RW, 5000, 1234), b"more");
        guest.expect(RST, 5000, 1234);
    });
}

#[test]
fn a_program_connects_and_what_follows_its_first_line_is_the_guests() {
    each(|guest, host| {
        let mut program = host.connect(b"CONNECT 7\nearly");
        let (request, _) = guest.receive();
        assert_eq!((request.op, request.dst_port, request.buf_alloc), (REQUEST, 7, ROOM));
        guest.send(packet(RESPONSE, 7, request.src_port), b"");
        let line = format!("OK {}\n", request.src_port);
        assert_eq!(read(&mut program, line.len()), line.as_bytes());
        assert_eq!(guest.collect(5), b"early");
        let sent = bytes(1 << 20, 1);
        let expected = sent.clone();
        let reader = std::thread::spawn(move || rest(&mut program));
        let (mut acknowledged, mut done) = (0, 0);
        for part in sent.chunks(4096) {
            while done - acknowledged + 4096 > ROOM {
                acknowledged = guest.expect(CREDIT_UPDATE, 7, request.src_port).fwd_cnt;
            }
            guest.send(packet(RW, 7, request.src_port), part);
            done += 4096;
        }
        guest.send(Header { flags: 2, ..packet(SHUTDOWN, 7, request.src_port) }, b"");
        assert_eq!(reader.join().unwrap(), expected);
    });
}

#[test]
fn programs_that_do_not_say_what_they_want_are_let_go() {
    each(|guest, host| {
        for greeting in
            [&b"GET / HTTP/1.1\n"[..], b"CONNECT x\n", b"CONNECT 00000000000000000000000000007\n", b"\n"]
        {
            assert_eq!(rest(&mut host.connect(greeting)), b"");
        }
        let silent = host.connect(b"CONN");
        // One that is gone before the guest has answered.
        drop(host.connect(b"CONNECT 9\n"));
        let (request, _) = guest.receive();
        if request.op == REQUEST {
            guest.expect(RST, 9, request.src_port);
        }
        let mut refused = host.connect(b"CONNECT 8\n");
        let (request, _) = guest.receive();
        assert_eq!((request.op, request.dst_port), (REQUEST, 8));
        guest.send(packet(RST, 8, request.src_port), b"");
        assert_eq!(rest(&mut refused), b"");
        drop(silent);
    });
}

#[test]
fn what_nobody_is_there_for_is_refused() {
    each(|guest, _| {
        guest.send(packet(REQUEST, 5000, 1234), b"");
        guest.expect(RST, 5000, 1234);
        for op in [0, RESPONSE, SHUTDOWN, RW, CREDIT_UPDATE, CREDIT_REQUEST, 8, u16::MAX] {
            guest.send(packet(op, 1, op.into()), b"x");
            guest.expect(RST, 1, op.into());
        }
        guest.send(Header { kind: 2, ..packet(REQUEST, 1, 100) }, b"");
        assert_eq!(guest.expect(RST, 1, 100).kind, 2);
        for dst_cid in [0, 1, 3, CID.into(), u64::MAX] {
            guest.send(Header { dst_cid, ..packet(REQUEST, 1, 101) }, b"");
            assert_eq!(guest.expect(RST, 1, 101).src_cid, dst_cid);
        }
        // Neither of these has an answer.
        guest.send(packet(RST, 1, 102), b"");
        guest.send(Header { src_cid: 43, ..packet(REQUEST, 1, 103) }, b"");
        guest.send(Header::default(), b"");
        guest.send(packet(RW, 1, 104), b"");
        guest.expect(RST, 1, 104);
    });
}

#[test]
fn a_guest_gets_what_it_has_room_for() {
    each(|guest, host| {
        let listener = host.listen(1);
        let header = |op, room, taken| Header { buf_alloc: room, fwd_cnt: taken, ..packet(op, 9, 1) };
        guest.send(header(REQUEST, 5000, 0), b"");
        guest.expect(RESPONSE, 9, 1);
        let (mut program, _) = listener.accept().unwrap();
        let sent = bytes(20_000, 3);
        program.write_all(&sent).unwrap();
        assert_eq!(guest.collect(5000), sent[..5000]);
        guest.expect(CREDIT_REQUEST, 9, 1);
        // Room for less than is in flight, and a count of bytes that were never sent: the result is 0.
        guest.send(header(CREDIT_UPDATE, 100, 0), b"");
        guest.expect(CREDIT_REQUEST, 9, 1);
        guest.send(header(CREDIT_UPDATE, 5000, 1 << 30), b"");
        guest.expect(CREDIT_REQUEST, 9, 1);
        guest.send(header(CREDIT_UPDATE, 5001, 5000), b"");
        assert_eq!(guest.collect(5001), sent[5000..10_001]);
        guest.expect(CREDIT_REQUEST, 9, 1);
        drop(program);
        guest.send(header(CREDIT_UPDATE, u32::MAX, 10_001), b"");
        assert_eq!(guest.collect(9_999), sent[10_001..]);
        assert_eq!(guest.expect(SHUTDOWN, 9, 1).flags, 3);
    });
}

#[test]
fn a_program_that_does_not_read_holds_up_its_own_connection_only() {
    each(|guest, host| {
        let (slow_port, quick_port) = (host.listen(1), host.listen(2));
        let mut slow = guest.connect(&slow_port, 9, 1);
        let mut quick = guest.connect(&quick_port, 9, 2);
        let sent = guest.fill(9, 1);
        assert!(sent.len() > ROOM as usize);
        guest.send(packet(RW, 9, 2), b"quick");
        assert_eq!(read(&mut quick, 5), b"quick");
        // Data that was sent before the end arrives, though the guest gets an RST at once.
        guest.send(Header { flags: 3, ..packet(SHUTDOWN, 9, 1) }, b"");
        guest.expect_end();
        let mut again = guest.connect(&slow_port, 9, 1);
        assert_eq!(rest(&mut slow), sent);
        // More than there is credit for is the end of it.
        let sent = guest.fill(9, 1);
        guest.send(packet(RW, 9, 1), &bytes(ROOM as usize, 0));
        guest.expect_end();
        let arrived = rest(&mut again);
        assert_eq!(arrived, sent[..arrived.len()]);
        guest.send(packet(RW, 9, 2), b"still");
        assert_eq!(read(&mut quick, 5), b"still");
    });
}

#[test]
fn each_direction_ends_by_itself() {
    each(|guest, host| {
        let listener = host.listen(1);
        let mut program = guest.connect(&listener, 9, 1);
        guest.send(Header { flags: 2, ..packet(SHUTDOWN, 9, 1) }, b"");
        assert_eq!(rest(&mut program), b"");
        program.write_all(b"after").unwrap();
        assert_eq!(guest.collect(5), b"after");
        guest.send(packet(RW, 9, 1), b"x");
        guest.expect(RST, 9, 1);

        let mut program = guest.connect(&listener, 9, 1);
        program.shutdown(Shutdown::Write).unwrap();
        assert_eq!(guest.expect(SHUTDOWN, 9, 1).flags, 2);
        guest.send(packet(RW, 9, 1), b"after");
        assert_eq!(read(&mut program, 5), b"after");
        drop(program);
        assert_eq!(guest.expect(SHUTDOWN, 9, 1).flags, 3);
        guest.send(packet(RST, 9, 1), b"");

        let mut program = guest.connect(&listener, 9, 1);
        guest.send(Header { flags: 1 | 0xffff_fff0, ..packet(SHUTDOWN, 9, 1) }, b"");
        assert_eq!(guest.expect(SHUTDOWN, 9, 1).flags, 2);
        assert_eq!(program.write_all(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        guest.send(packet(RW, 9, 1), b"last");
        assert_eq!(read(&mut program, 4), b"last");
        // A second request for it ends both.
        guest.send(packet(REQUEST, 9, 1), b"");
        guest.expect(RST, 9, 1);
        assert_eq!(rest(&mut program), b"");
    });
}

#[test]
fn connections_beyond_the_limit_are_refused_to_the_guest_and_wait_on_the_host() {
    each(|guest, host| {
        let listener = host.listen(1);
        let programs: Vec<_> = (0..256).map(|port| guest.connect(&listener, port, 1)).collect();
        guest.send(packet(REQUEST, 256, 1), b"");
        guest.expect(RST, 256, 1);
        let mut waiting = host.connect(b"CONNECT 7\n");
        guest.send(packet(RST, 5, 1), b"");
        let (request, _) = guest.receive();
        assert_eq!((request.op, request.dst_port), (REQUEST, 7));
        guest.send(packet(RESPONSE, 7, request.src_port), b"");
        assert_eq!(read(&mut waiting, 3), b"OK ");
        drop(programs);
    });
}

#[test]
fn a_guest_that_takes_no_refusals_is_heard_no_more_until_it_does() {
    for relayed in [false, true] {
        let (rig, _host) = device(relayed);
        let mut guest = Guest { rig, seen: 0 };
        let mut taken = 0u32;
        // The relay's stream has room for some.
        for number in 0..20_000 {
            guest.hand_over(packet(RW, number, 1), b"");
            let start = Instant::now();
            while guest.rig.used() != guest.rig.next() && start.elapsed() < Duration::from_millis(300) {
                std::thread::sleep(Duration::from_micros(20));
            }
            if guest.rig.used() != guest.rig.next() {
                break;
            }
            taken = number + 1;
        }
        assert!((256..20_000).contains(&taken), "{taken}");
        guest.post();
        for number in 0..=taken {
            guest.expect(RST, number, 1);
        }
    }
}

#[test]
fn a_reset_ends_all_connections() {
    each(|guest, host| {
        let listener = host.listen(1);
        let mut program = guest.connect(&listener, 9, 1);
        guest.rig.reset();
        guest.rig.start();
        guest.seen = 0;
        guest.post();
        assert_eq!(rest(&mut program), b"");
        let mut program = guest.connect(&listener, 9, 1);
        guest.send(packet(RW, 9, 1), b"again");
        assert_eq!(read(&mut program, 5), b"again");
    });
}

#[test]
fn buffers_that_hold_no_packet_break_the_device_until_reset() {
    type Spoil = fn(&mut Rig, Header);
    let put = |rig: &mut Rig, header: Header| {
        rig.memory.write_slice(&header.to_bytes(), GuestAddress(OUTGOING)).unwrap();
    };
    let spoils: [(&str, Spoil); 8] = [
        ("a packet shorter than its header", |rig, _| {
            rig.on(TRANSMIT).descriptor(0, OUTGOING, 43, 0, 0);
            rig.submit(0);
        }),
        ("a packet to be written", |rig, _| {
            rig.on(TRANSMIT).descriptor(0, OUTGOING, 44, WRITE, 0);
            rig.submit(0);
        }),
        ("a packet that says that it is longer", |rig, header| {
            let longer = Header { len: 2, ..header };
            rig.memory.write_slice(&longer.to_bytes(), GuestAddress(OUTGOING)).unwrap();
            rig.on(TRANSMIT).descriptor(0, OUTGOING, 45, 0, 0);
            rig.submit(0);
        }),
        ("a packet longer than any credit", |rig, header| {
            let longer = Header { len: ROOM + 1, ..header };
            rig.memory.write_slice(&longer.to_bytes(), GuestAddress(OUTGOING)).unwrap();
            rig.on(TRANSMIT).descriptor(0, OUTGOING, 44 + ROOM + 1, 0, 0);
            rig.submit(0);
        }),
        ("a receive buffer without room for data", |rig, _| {
            rig.on(RECEIVE).descriptor(0, BUFFERS, 44, WRITE, 0);
            rig.submit(0);
        }),
        ("a receive buffer to be read", |rig, _| {
            rig.on(RECEIVE).descriptor(0, BUFFERS, BUFFER, 0, 0);
            rig.submit(0);
        }),
        ("a receive buffer outside of memory", |rig, _| {
            rig.on(RECEIVE).descriptor(0, MEMORY - 100, BUFFER, WRITE, 0);
            rig.submit(0);
        }),
        ("an index far ahead", |rig, _| rig.on(EVENT).announce(SIZE + 1)),
    ];
    for (name, spoil) in spoils {
        let (mut rig, _host) = device(false);
        let _ = writeln!(std::io::stderr(), "{name}");
        put(&mut rig, packet(RW, 1, 1));
        spoil(&mut rig, packet(RW, 1, 1));
        rig.expect_broken();
        let mut guest = Guest { rig, seen: 0 };
        guest.post();
        guest.send(packet(RW, 1, 1), b"");
        guest.expect(RST, 1, 1);
    }
}

#[test]
fn a_relay_whose_other_end_is_gone_leaves_a_device_that_works_for_nobody() {
    let (ours, other) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let backend = Box::new(Relay::new(File::from(OwnedFd::from(ours))).unwrap());
    let mut rig = Rig::new(Box::new(Vsock::new(config::Vsock { cid: CID, backend })));
    rig.start();
    let mut guest = Guest { rig, seen: 0 };
    guest.post();
    drop(other);
    for _ in 0..3 {
        guest.send(packet(REQUEST, 1, 1), b"");
    }
    assert!(guest.try_receive().is_none());
}

#[test]
fn a_stream_that_carries_something_else_ends_the_relay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let sockets = Sockets::new(UnixListener::bind(&path).unwrap(), &path, CID).unwrap();
    let (mut ours, other) = UnixStream::pair().unwrap();
    ours.write_all(&[0xff; 100]).unwrap();
    assert_eq!(serve(other, sockets).unwrap_err().kind(), ErrorKind::InvalidData);
}

/// Headers that a hostile driver would try, of few connections.
fn header() -> impl Strategy<Value = (Header, usize)> {
    let number = |usual: std::ops::Range<u32>| prop_oneof![8 => usual, 1 => any::<u32>()];
    let op = prop_oneof![8 => 0..9u16, 1 => any::<u16>()];
    let cids =
        (prop_oneof![8 => Just(2u64), 1 => any::<u64>()], prop_oneof![8 => Just(1u16), 1 => any::<u16>()]);
    let room = (number(0..5000), number(0..5000));
    (op, number(0..3), number(1..4), number(0..4), room, cids, 0..5000usize).prop_map(
        |(op, guest, host, flags, (buf_alloc, fwd_cnt), (dst_cid, kind), length)| {
            (Header { flags, buf_alloc, fwd_cnt, dst_cid, kind, ..packet(op, guest, host) }, length)
        },
    )
}

proptest! {
    #[test]
    fn any_packets_leave_a_device_that_goes_on(
        relayed in any::<bool>(),
        packets in proptest::collection::vec((header(), 0..6u8), 0..60),
    ) {
        let (rig, host) = device(relayed);
        let mut guest = Guest { rig, seen: 0 };
        guest.post();
        let listeners = [host.listen(1), host.listen(2)];
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        let mut programs = Vec::new();
        for ((header, length), act) in packets {
            guest.send(header, &bytes(length, 0));
            match act {
                0 => programs.push(host.connect(b"CONNECT 1\nabc")),
                1 => drop(programs.pop()),
                2 => programs.extend(listeners.iter().filter_map(|listener| Some(listener.accept().ok()?.0))),
                3 => programs.iter_mut().for_each(|program| {
                    program.set_nonblocking(true).unwrap();
                    let _ = program.write(&[1; 3000]);
                    let _ = program.read(&mut [0; 100]);
                }),
                _ => while guest.try_receive().is_some() {},
            }
        }
        guest.send(packet(RW, 77, 77), b"");
        until(|| guest.try_receive().is_some_and(|(header, _)| (header.op, header.dst_port) == (RST, 77)));
    }

    #[test]
    fn any_rings_leave_a_device_that_a_reset_repairs(
        descriptors in proptest::collection::vec(super::hostile::descriptor(), 3 * usize::from(SIZE)),
        heads in proptest::collection::vec(0..SIZE + 2, 3 * usize::from(SIZE)),
        filled in proptest::collection::vec(prop_oneof![1..=SIZE, any::<u16>()], 3),
        header in header(),
    ) {
        let (mut rig, host) = device(false);
        let _program = host.connect(b"CONNECT 1\nabc");
        rig.memory.write_slice(&header.0.to_bytes(), GuestAddress(BUFFERS)).unwrap();
        for queue in [RECEIVE, TRANSMIT, EVENT] {
            let part = usize::from(queue * SIZE)..usize::from((queue + 1) * SIZE);
            rig.on(queue).scribble(&descriptors[part.clone()], &heads[part]);
        }
        for (queue, filled) in (0..).zip(&filled) {
            rig.on(queue).announce(*filled);
        }
        // The device gets some way into the rings before the reset, because it finds the damage there.
        std::thread::sleep(Duration::from_micros(200));
        rig.reset();
        rig.start();
        let mut guest = Guest { rig, seen: 0 };
        guest.post();
        guest.send(packet(RW, 77, 77), b"");
        until(|| guest.try_receive().is_some_and(|(header, _)| (header.op, header.dst_port) == (RST, 77)));
    }
}
