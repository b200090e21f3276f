//! Bytes from a GDB stub: packets, and the description of its target.

use attach::gdb::{DescriptionError, PacketDecoder, TargetDescription};

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let packets: &[u8] = b"+$T02thread:01;#04+$OK#9a+$0* #7a$}]#da%Stop#00$#00";
    let target: &[u8] = b"<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>\
        <architecture>i386:x86-64</architecture><feature name=\"org.gnu.gdb.i386.core\">\
        <reg name=\"rax\" bitsize=\"64\" type=\"int64\" regnum=\"0\"/><reg name=\"cr3\" bitsize=\"64\"/>\
        </feature><xi:include href=\"target.xml\"/></target>";
    [packets, target].map(<[u8]>::to_vec).into()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let mut decoder = PacketDecoder::default();
    // In parts, as they come from a socket.
    'packets: for part in bytes.chunks(7) {
        decoder.feed(part);
        loop {
            match decoder.next_packet() {
                Ok(Some(body)) => assert!(body.len() <= 256 << 10, "a body is bounded"),
                Ok(None) => break,
                Err(_) => break 'packets,
            }
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _description = TargetDescription::read(|name| {
        if name == "target.xml" { Ok(text.to_owned()) } else { Err(DescriptionError) }
    });
}
