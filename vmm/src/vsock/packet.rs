//! Packets as they are in the queues (VIRTIO 1.2, 5.10.6): a header, then data.

/// Bytes of `struct virtio_vsock_hdr`.
pub const HEADER: usize = 44;
/// Bytes of a connection that this side has room for: its `buf_alloc` (5.10.6.3).
pub(crate) const ROOM: u32 = 64 << 10;
/// Most bytes of data in a packet, which have to fit into that.
pub const MOST_DATA: usize = ROOM as usize;
/// The host's context id (5.10.4).
pub(crate) const HOST_CID: u64 = 2;
/// `VIRTIO_VSOCK_TYPE_STREAM` (5.10.6.1).
pub(crate) const STREAM: u16 = 1;

/// `enum virtio_vsock_op` (5.10.6).
pub(crate) mod op {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const RESPONSE: u16 = 2;
    pub(crate) const RST: u16 = 3;
    pub(crate) const SHUTDOWN: u16 = 4;
    pub(crate) const RW: u16 = 5;
    pub(crate) const CREDIT_UPDATE: u16 = 6;
    pub(crate) const CREDIT_REQUEST: u16 = 7;
}

/// Flag of a SHUTDOWN: its sender receives no more (5.10.6.6).
pub(crate) const NO_RECEIVE: u32 = 1;
/// Flag of a SHUTDOWN: its sender will not send any longer.
pub(crate) const NO_SEND: u32 = 2;

/// `struct virtio_vsock_hdr` (5.10.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Context id of the sender.
    pub src_cid: u64,
    /// Context id of the receiver.
    pub dst_cid: u64,
    /// Port of the sender.
    pub src_port: u32,
    /// Port of the receiver.
    pub dst_port: u32,
    /// Size of the data after the header, bytes.
    pub len: u32,
    /// Kind of socket: `type`.
    pub kind: u16,
    /// Operation of the packet.
    pub op: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// Bytes that the sender has room for, in all.
    pub buf_alloc: u32,
    /// Bytes that the sender's program has taken so far, modulo 2^32.
    pub fwd_cnt: u32,
}

impl Header {
    /// Reads one.
    pub fn from_bytes(bytes: &[u8; HEADER]) -> Self {
        let mut rest = &bytes[..];
        Self {
            src_cid: u64::from_le_bytes(next(&mut rest)),
            dst_cid: u64::from_le_bytes(next(&mut rest)),
            src_port: u32::from_le_bytes(next(&mut rest)),
            dst_port: u32::from_le_bytes(next(&mut rest)),
            len: u32::from_le_bytes(next(&mut rest)),
            kind: u16::from_le_bytes(next(&mut rest)),
            op: u16::from_le_bytes(next(&mut rest)),
            flags: u32::from_le_bytes(next(&mut rest)),
            buf_alloc: u32::from_le_bytes(next(&mut rest)),
            fwd_cnt: u32::from_le_bytes(next(&mut rest)),
        }
    }

    /// Writes it.
    pub fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let fields = [self.src_cid.to_le_bytes(), self.dst_cid.to_le_bytes()];
        let words = [self.src_port, self.dst_port, self.len].map(u32::to_le_bytes);
        let halves = [self.kind, self.op].map(u16::to_le_bytes);
        let more = [self.flags, self.buf_alloc, self.fwd_cnt].map(u32::to_le_bytes);
        let all = fields.as_flattened().iter().chain(words.as_flattened());
        let all = all.chain(halves.as_flattened()).chain(more.as_flattened());
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Returns the size of the data after the header, bytes; more than [`MOST_DATA`] if that is not a valid
    /// size.
    pub fn data(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// Returns the RST that answers the packet (5.10.6.5); `None` for an RST.
    pub(crate) fn refusal(&self) -> Option<Self> {
        (self.op != op::RST).then(|| Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: op::RST,
            ..Self::default()
        })
    }
}

fn next<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((first, behind)) = rest.split_first_chunk::<N>() else { return [0; N] };
    *rest = behind;
    *first
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_read_as_they_are_written(low in any::<[u8; 32]>(), high in any::<[u8; 12]>()) {
            let bytes: [u8; HEADER] = [&low[..], &high[..]].concat().try_into().unwrap();
            prop_assert_eq!(Header::from_bytes(&bytes).to_bytes(), bytes);
        }
    }

    #[test]
    fn fields_lie_where_the_standard_has_them() {
        let bytes: [u8; HEADER] = std::array::from_fn(|index| index.to_le_bytes()[0]);
        let header = Header::from_bytes(&bytes);
        assert_eq!(header.dst_cid, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!((header.src_port, header.dst_port), (0x1312_1110, 0x1716_1514));
        assert_eq!((header.len, header.kind, header.op), (0x1b1a_1918, 0x1d1c, 0x1f1e));
        assert_eq!((header.flags, header.buf_alloc, header.fwd_cnt), (0x2322_2120, 0x2726_2524, 0x2b2a_2928));
    }
}
