//! Packets of GDB's remote serial protocol ("Debugging with GDB", appendix E.1 Overview): `$body#checksum`.
//!
//! A stub is trusted as little as a guest: lengths are bounded, and anything unexpected is a [`PacketError`].

/// Maximum length of a body, bytes, after run-length decoding: registers and memory come in packets of a few
/// KiB.
const LONGEST: usize = 256 << 10;
/// Value with which an escaped byte is combined by XOR.
const ESCAPE: u8 = 0x20;
/// Difference between the count after `*` and the number of repetitions.
const REPEATED: u8 = 29;

/// Error of bytes that are not a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketError;

/// Appends `$body#checksum`.
pub(crate) fn frame(body: &[u8], into: &mut Vec<u8>) {
    into.push(b'$');
    let start = into.len();
    for &byte in body {
        match byte {
            b'#' | b'$' | b'}' | b'*' => into.extend([b'}', byte ^ ESCAPE]),
            byte => into.push(byte),
        }
    }
    let sum = checksum(into.get(start..).unwrap_or_default());
    into.push(b'#');
    into.extend(format!("{sum:02x}").bytes());
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// Decoder of packets in a stream of bytes.
#[derive(Debug, Default)]
pub struct PacketDecoder {
    waiting: Vec<u8>,
    /// Number of bytes of `waiting` that were used.
    used: usize,
}

impl PacketDecoder {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.waiting.drain(..self.used);
        self.used = 0;
        self.waiting.extend_from_slice(bytes);
    }

    /// Returns the body of the next packet; `None` until more bytes are fed. Skips acknowledgements and
    /// notifications.
    ///
    /// # Errors
    /// The next bytes are not a packet, or a damaged one. The stream cannot be decoded any further then.
    pub fn next_packet(&mut self) -> Result<Option<Vec<u8>>, PacketError> {
        loop {
            let rest = self.waiting.get(self.used..).unwrap_or_default();
            match rest.first() {
                None => return Ok(None),
                Some(b'+' | b'-') => self.used += 1,
                Some(kind @ (b'$' | b'%')) => {
                    let Some(end) = rest.iter().position(|byte| *byte == b'#') else {
                        return if rest.len() > 2 * LONGEST { Err(PacketError) } else { Ok(None) };
                    };
                    let (Some(body), Some(sum)) = (rest.get(1..end), rest.get(end + 1..end + 3)) else {
                        return Ok(None);
                    };
                    if hex(sum) != Some(u64::from(checksum(body))) {
                        return Err(PacketError);
                    }
                    let body = (*kind == b'$').then(|| decode_body(body).ok_or(PacketError)).transpose()?;
                    self.used += end + 3;
                    if body.is_some() {
                        return Ok(body);
                    }
                }
                Some(_) => return Err(PacketError),
            }
        }
    }
}

/// Decodes escapes and repetitions of a body; `None` if the body is damaged or too long.
fn decode_body(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len());
    let mut bytes = body.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'}' => out.push(bytes.next()? ^ ESCAPE),
            b'*' => {
                let count = usize::from(bytes.next()?.checked_sub(REPEATED)?);
                let last = *out.last()?;
                out.resize(out.len() + count, last);
            }
            byte => out.push(byte),
        }
        if out.len() > LONGEST {
            return None;
        }
    }
    Some(out)
}

/// Parses a number in hexadecimal digits, most significant first.
pub(crate) fn hex(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Fills `into` with the bytes that the digits represent, two each.
pub(crate) fn unhex(digits: &[u8], into: &mut [u8]) -> Option<()> {
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    if pairs.len() != into.len() {
        return None;
    }
    for (byte, pair) in into.iter_mut().zip(pairs) {
        *byte = u8::try_from(hex(pair)?).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut decoder = PacketDecoder::default();
        decoder.feed(bytes);
        std::iter::from_fn(|| decoder.next_packet().ok()?).collect()
    }

    #[test]
    fn packets_are_cut_out_of_what_a_stub_sends() {
        assert_eq!(decode(b"+$OK#9a+$T02thread:01;#04"), [&b"OK"[..], b"T02thread:01;"]);
        assert_eq!(decode(b"$0* #7a"), [b"0000"], "the manual's own example");
        assert_eq!(decode(b"%Stop:T02#00$#00"), Vec::<Vec<u8>>::new(), "a damaged notification");
        assert_eq!(decode(b"%x#78$#00"), [b""], "a notification, and an empty answer");
        assert_eq!(decode(b"$O"), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_is_no_packet_is_said() {
        for bytes in
            [&b"SSH-2.0-OpenSSH\r\n"[..], b"HTTP/1.1 400", b"$OK#00", b"$*!#4b", b"$}#7d", b"$a* \x01#00"]
        {
            let mut decoder = PacketDecoder::default();
            decoder.feed(bytes);
            assert_eq!(decoder.next_packet(), Err(PacketError), "{}", String::from_utf8_lossy(bytes));
        }
        let mut endless = PacketDecoder::default();
        endless.feed(&vec![b'$'; 2 * LONGEST + 2]);
        assert_eq!(endless.next_packet(), Err(PacketError));
        // A short packet that stands for a long one.
        let mut body = b"$0".to_vec();
        body.extend(b"*~".repeat(LONGEST / 97 + 1));
        let sum = checksum(&body[1..]);
        body.extend(format!("#{sum:02x}").bytes());
        assert_eq!(decode(&body), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn digits_are_numbers_and_bytes() {
        assert_eq!(
            (hex(b"1f"), hex(b""), hex(b"xx"), hex(b"+1"), hex(&[b'f'; 17])),
            (Some(31), None, None, None, None)
        );
        let mut two = [0; 2];
        assert_eq!((unhex(b"01Ff", &mut two), two), (Some(()), [1, 255]));
        assert_eq!(
            (unhex(b"01f", &mut two), unhex(b"01ffff", &mut two), unhex(b"x1ff", &mut two)),
            (None, None, None)
        );
    }

    proptest! {
        /// However it is cut up on the way, a body arrives as it was sent.
        #[test]
        fn bodies_arrive(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), cut in 1_usize..9) {
            let mut sent = Vec::new();
            bodies.iter().for_each(|body| frame(body, &mut sent));
            let (mut decoder, mut heard) = (PacketDecoder::default(), Vec::new());
            for part in sent.chunks(cut) {
                decoder.feed(part);
                while let Some(body) = decoder.next_packet().unwrap() {
                    heard.push(body);
                }
            }
            prop_assert_eq!(heard, bodies);
        }

        /// Whatever comes, no more is kept than has come, and no body is longer than it may be.
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(prop::sample::select(b"$#+-%*}~09afTx".to_vec()), 0..400)) {
            let mut decoder = PacketDecoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(body)) = decoder.next_packet() {
                prop_assert!(body.len() <= LONGEST);
            }
        }
    }
}
