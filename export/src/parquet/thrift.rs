//! Thrift's compact protocol, as far as Parquet's footer and page headers need it.
//!
//! Layout: thrift-compact-protocol.md of Apache Thrift (doc/specs): a field has its distance to the last one
//! and its type in one byte, numbers are zigzag varints, a struct ends with a zero byte.

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct that is being written. Fields come in rising order of their numbers, at most 15 apart.
#[derive(Debug, Default)]
pub(super) struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(mut self, number: u8, kind: u8) -> Self {
        self.bytes.push((number - self.last) << 4 | kind);
        self.last = number;
        self
    }

    pub(super) fn i32(self, number: u8, value: i32) -> Self {
        let mut own = self.field(number, I32);
        zigzag(&mut own.bytes, value.into());
        own
    }

    pub(super) fn i64(self, number: u8, value: i64) -> Self {
        let mut own = self.field(number, I64);
        zigzag(&mut own.bytes, value);
        own
    }

    pub(super) fn text(self, number: u8, value: &str) -> Self {
        let mut own = self.field(number, BINARY);
        binary(&mut own.bytes, value);
        own
    }

    pub(super) fn inner(self, number: u8, value: Struct) -> Self {
        let mut own = self.field(number, STRUCT);
        own.bytes.extend(value.end());
        own
    }

    pub(super) fn structs(self, number: u8, values: Vec<Struct>) -> Self {
        let mut own = self.list(number, STRUCT, values.len());
        own.bytes.extend(values.into_iter().flat_map(Struct::end));
        own
    }

    pub(super) fn i32s(self, number: u8, values: &[i32]) -> Self {
        let mut own = self.list(number, I32, values.len());
        values.iter().for_each(|value| zigzag(&mut own.bytes, (*value).into()));
        own
    }

    pub(super) fn texts(self, number: u8, values: &[&str]) -> Self {
        let mut own = self.list(number, BINARY, values.len());
        values.iter().for_each(|value| binary(&mut own.bytes, value));
        own
    }

    fn list(self, number: u8, kind: u8, len: usize) -> Self {
        let mut own = self.field(number, LIST);
        match u8::try_from(len) {
            Ok(short @ 0..15) => own.bytes.push(short << 4 | kind),
            _ => {
                own.bytes.push(0xf0 | kind);
                varint(&mut own.bytes, len as u64);
            }
        }
        own
    }

    /// Returns the whole struct.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// Appends seven bits a byte, the lowest first; all bytes but the last have the top bit set.
pub(super) fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
}

fn zigzag(bytes: &mut Vec<u8>, value: i64) {
    varint(bytes, (value << 1 ^ value >> 63).cast_unsigned());
}

fn binary(bytes: &mut Vec<u8>, text: &str) {
    varint(bytes, text.len() as u64);
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_as_the_specification_shows_them() {
        let bytes =
            Struct::default().i32(1, 1).i64(3, -1).text(4, "ab").structs(5, vec![Struct::default()]).end();
        assert_eq!(bytes, [0x15, 2, 0x26, 1, 0x18, 2, b'a', b'b', 0x19, 0x1c, 0, 0]);
        let mut long = Vec::new();
        varint(&mut long, 300);
        assert_eq!(long, [0xac, 0x02]);
        let list = Struct::default().i32s(1, &[0; 15]).end();
        assert_eq!(list[..3], [0x19, 0xf5, 15]);
    }
}
