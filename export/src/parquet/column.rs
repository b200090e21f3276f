//! Columns of a Parquet file: values of one row group, and their pages.

use std::collections::HashMap;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::thrift::{Struct, varint};

/// Type of a column's values. Numbers of types: `Type` of parquet.thrift (Apache Parquet format 2.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whole numbers.
    Integer,
    /// Fractions.
    Double,
    /// Texts; empty ones are null.
    Text,
}

impl Kind {
    pub(super) fn physical(self) -> i32 {
        match self {
            Self::Integer => 2,
            Self::Double => 5,
            Self::Text => 6,
        }
    }
}

/// `Encoding` of parquet.thrift.
pub(super) const PLAIN: i32 = 0;
pub(super) const RLE: i32 = 3;
pub(super) const RLE_DICTIONARY: i32 = 8;
/// `CompressionCodec` of parquet.thrift: GZIP.
pub(super) const GZIP: i32 = 2;

/// The values of a column in a row group, nulls left out.
#[derive(Debug)]
pub(super) struct Column {
    kind: Kind,
    /// Levels of values in runs: 1 for a value, 0 for null.
    levels: Runs,
    values: Vec<u8>,
    /// Texts: each once, and indexes of the values.
    texts: Vec<u8>,
    known: HashMap<String, u32>,
    places: Runs,
    rows: i32,
}

/// Pages of a column in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub dictionary: Option<u64>,
    pub data: u64,
    /// Bytes of headers and pages, compressed and not.
    pub stored: u64,
    pub plain: u64,
    pub rows: i32,
}

impl Column {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            levels: Runs::default(),
            values: Vec::new(),
            texts: Vec::new(),
            known: HashMap::new(),
            places: Runs::default(),
            rows: 0,
        }
    }

    pub(super) fn integer(&mut self, value: Option<i64>) {
        self.level(value.is_some());
        if let Some(value) = value {
            self.values.extend(value.to_le_bytes());
        }
    }

    pub(super) fn double(&mut self, value: f64) {
        self.level(true);
        self.values.extend(value.to_le_bytes());
    }

    pub(super) fn text(&mut self, value: &str) {
        self.level(!value.is_empty());
        if value.is_empty() {
            return;
        }
        let place = match self.known.get(value) {
            Some(place) => *place,
            None => {
                let place = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
                self.known.insert(value.to_owned(), place);
                self.texts.extend(length(value.len()));
                self.texts.extend_from_slice(value.as_bytes());
                place
            }
        };
        self.places.push(place);
    }

    fn level(&mut self, there: bool) {
        self.levels.push(there.into());
        self.rows += 1;
    }

    /// Appends the pages to `file`, which begins at `offset`.
    pub(super) fn finish(self, offset: u64, file: &mut Vec<u8>) -> io::Result<Chunk> {
        let start = file.len();
        let at = |file: &Vec<u8>| offset + file.len() as u64;
        let mut plain = 0;
        let levels = self.levels.encoded(1);
        let mut body = length(levels.len()).to_vec();
        body.extend(levels);
        let mut dictionary = None;
        let encoding = if self.kind == Kind::Text {
            dictionary = Some(at(file));
            let texts = i32::try_from(self.known.len()).unwrap_or(i32::MAX);
            let header = Struct::default().i32(1, texts).i32(2, PLAIN);
            plain += page(file, (2, 7), header, &self.texts)?;
            let width = u32::BITS - u32::try_from(self.known.len()).unwrap_or(u32::MAX).leading_zeros();
            body.push(u8::try_from(width).unwrap_or(32));
            body.extend(self.places.encoded(width));
            RLE_DICTIONARY
        } else {
            body.extend(self.values);
            PLAIN
        };
        let data = at(file);
        let header = Struct::default().i32(1, self.rows).i32(2, encoding).i32(3, RLE).i32(4, RLE);
        plain += page(file, (0, 5), header, &body)?;
        Ok(Chunk { dictionary, data, stored: (file.len() - start) as u64, plain, rows: self.rows })
    }
}

/// Appends a page: its header, then its body in gzip. Of `PageHeader` of parquet.thrift, `(kind, field)` are
/// the page's type and the number of the field that has `header`. Returns the number of bytes before
/// compression.
fn page(file: &mut Vec<u8>, (kind, field): (i32, u8), header: Struct, body: &[u8]) -> io::Result<u64> {
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(body)?;
    let zipped = zipped.finish()?;
    let size =
        |bytes: &[u8]| i32::try_from(bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
    let head =
        Struct::default().i32(1, kind).i32(2, size(body)?).i32(3, size(&zipped)?).inner(field, header).end();
    file.extend_from_slice(&head);
    file.extend_from_slice(&zipped);
    Ok((head.len() + body.len()) as u64)
}

/// Returns a length in four bytes.
fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// Numbers as runs of equal ones: the run-length half of Parquet's hybrid encoding (Encodings.md of the
/// format).
#[derive(Debug, Default)]
struct Runs(Vec<(u32, u64)>);

impl Runs {
    fn push(&mut self, number: u32) {
        match self.0.last_mut() {
            Some((last, count)) if *last == number => *count += 1,
            _ => self.0.push((number, 1)),
        }
    }

    /// Returns each run as its length times two, and its number in as many bytes as `width` bits take.
    fn encoded(&self, width: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, count) in &self.0 {
            varint(&mut bytes, count << 1);
            bytes.extend(number.to_le_bytes().into_iter().take(width.div_ceil(8) as usize));
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_the_specification_shows_them() {
        let mut runs = Runs::default();
        [1, 1, 1, 0, 300].into_iter().for_each(|number| runs.push(number));
        assert_eq!(runs.encoded(9), [6, 1, 0, 2, 0, 0, 2, 0x2c, 1]);
        assert!(Runs::default().encoded(1).is_empty());
    }
}
