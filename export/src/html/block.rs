//! The block of data in a page.
//!
//! ```text
//! base64( zlib( u32 length of the JSON, little endian | JSON | sections, one after the other ) )
//! ```
//!
//! The JSON has all small data; its member `sections` gives start and length of each section, counted from
//! the end of the JSON. Sections are lists of numbers in LEB128 (DWARF 5, 7.6): seven bits a byte, the least
//! first.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Map, Value, json};

/// Numbers in LEB128.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Numbers(Vec<u8>);

impl Numbers {
    /// Appends a number.
    pub(super) fn push(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push((number & 0x7f | 0x80).to_le_bytes()[0]);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }
}

/// Sections by name.
#[derive(Debug, Default)]
pub(super) struct Block {
    sections: Vec<(&'static str, Vec<u8>)>,
}

impl Block {
    /// Adds a section.
    pub(super) fn section(&mut self, name: &'static str, numbers: Numbers) {
        self.sections.push((name, numbers.0));
    }

    /// Returns the compressed block with these facts.
    ///
    /// # Errors
    /// The JSON has more than 4 GiB.
    pub(super) fn packed(self, mut facts: Map<String, Value>) -> io::Result<Vec<u8>> {
        let mut places = Map::new();
        let mut offset = 0;
        for (name, bytes) in &self.sections {
            places.insert((*name).to_owned(), json!([offset, bytes.len()]));
            offset += bytes.len();
        }
        facts.insert("sections".to_owned(), Value::Object(places));
        let json = serde_json::to_vec(&facts)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(&length.to_le_bytes())?;
        encoder.write_all(&json)?;
        for (_, bytes) in &self.sections {
            encoder.write_all(bytes)?;
        }
        encoder.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn numbers_take_seven_bits_a_byte() {
        let mut numbers = Numbers::default();
        for number in [0, 127, 128, 624_485, u64::MAX] {
            numbers.push(number);
        }
        assert_eq!(numbers.0[..7], [0, 127, 0x80, 1, 0xe5, 0x8e, 0x26]);
        assert_eq!(numbers.0.len(), 17);
    }

    #[test]
    fn a_block_unpacks_to_what_it_was_made_of() {
        let mut block = Block::default();
        for (name, number) in [("one", 1), ("two", 300)] {
            let mut numbers = Numbers::default();
            numbers.push(number);
            block.section(name, numbers);
        }
        let packed = block.packed(Map::new()).expect("a small block");
        let mut plain = Vec::new();
        flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut plain).expect("zlib");
        let json = br#"{"sections":{"one":[0,1],"two":[1,2]}}"#;
        assert_eq!(plain[..4], u32::try_from(json.len()).expect("short").to_le_bytes());
        assert_eq!(plain[4..][..json.len()], json[..]);
        assert_eq!(plain[4 + json.len()..], [1, 0xac, 2]);
    }
}
