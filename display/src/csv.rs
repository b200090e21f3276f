//! Comma-separated values by RFC 4180: lines end with CR LF, quotes are doubled.
//!
//! A row is anything that serializes to fields in sequence: a struct, a tuple or a slice. `None` is an empty
//! field, a boolean is 1 or 0. Text that a terminal could take for a command is escaped as in
//! [`crate::clean::escaped`]; [`Formulas`] is about text that a spreadsheet could take for one.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};
use std::io::{self, ErrorKind, Write};

use serde::ser::{Error, Impossible, Serialize, SerializeSeq, SerializeStruct, SerializeTuple, Serializer};

use crate::clean::escaped;

/// A value that cannot be written as a row or field.
#[derive(Debug)]
struct CsvError(String);

impl Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CsvError {}

impl Error for CsvError {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// First characters of a formula in spreadsheets, also at full width (U+FF1D, U+FF0B, U+FF0D, U+FF20).
/// OWASP's "CSV Injection" also names TAB and CR, which [`escaped`] replaces.
const FORMULA: [char; 8] = ['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];

/// Treatment of text that a spreadsheet takes for a formula, which can run a program or send the table away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Formulas {
    /// A `'` goes before the text, as people type it to enter text.
    #[default]
    Quoted,
    /// The text stays as it is, for readers that know no formulas.
    Raw,
}

impl Formulas {
    /// [`Self::Raw`] if `raw`.
    pub fn raw_if(raw: bool) -> Self {
        if raw { Self::Raw } else { Self::Quoted }
    }
}

/// Returns `text` with a `'` before each formula. Where the decimal sign is a comma, spreadsheets divide
/// lines at `;`, so that a formula can also follow one.
fn without_formulas(text: &str) -> Cow<'_, str> {
    if !text.split(';').any(begins_formula) {
        return Cow::Borrowed(text);
    }
    let part = |part| if begins_formula(part) { format!("'{part}") } else { part.to_owned() };
    Cow::Owned(text.split(';').map(part).collect::<Vec<_>>().join(";"))
}

/// Returns true for text with the first character of a formula that is not a number.
fn begins_formula(text: &str) -> bool {
    let is_number = || {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
        digits && text.parse::<f64>().is_ok()
    };
    text.starts_with(FORMULA) && !is_number()
}

/// Writer of rows.
#[derive(Debug)]
pub struct CsvWriter<W> {
    out: W,
    formulas: Formulas,
    /// The line in progress; kept for its memory.
    line: String,
}

impl<W: Write> CsvWriter<W> {
    /// Creates a writer to `out`.
    pub fn new(out: W, formulas: Formulas) -> Self {
        Self { out, formulas, line: String::new() }
    }

    /// Writes the names of a struct's fields.
    ///
    /// # Errors
    /// `out` fails; [`ErrorKind::InvalidInput`] if `row` is not a struct.
    pub fn heading(&mut self, row: &impl Serialize) -> io::Result<()> {
        self.write(row, Part::Names)
    }

    /// Writes a row.
    ///
    /// # Errors
    /// `out` fails; [`ErrorKind::InvalidInput`] if `row` has a map, an enum with data or bytes.
    pub fn row(&mut self, row: &(impl Serialize + ?Sized)) -> io::Result<()> {
        self.write(row, Part::Values)
    }

    fn write(&mut self, row: &(impl Serialize + ?Sized), part: Part) -> io::Result<()> {
        self.line.clear();
        row.serialize(&mut Fields { line: &mut self.line, formulas: self.formulas, part, is_first: true })
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        self.line.push_str("\r\n");
        self.out.write_all(self.line.as_bytes())
    }
}

/// The part of a struct that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Names,
    Values,
}

/// The fields of one line.
struct Fields<'a> {
    line: &'a mut String,
    formulas: Formulas,
    part: Part,
    is_first: bool,
}

impl Fields<'_> {
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_first, false) {
            self.line.push(',');
        }
    }

    fn number(&mut self, number: impl Display) -> Result<(), CsvError> {
        self.begin();
        write!(self.line, "{number}").map_err(Error::custom)
    }

    /// Appends text, in quotes if it has a character with a meaning (RFC 4180, 2.6 and 2.7).
    fn text(&mut self, text: &str) {
        self.begin();
        let text = escaped(text);
        let text = match self.formulas {
            Formulas::Quoted => without_formulas(&text),
            Formulas::Raw => text,
        };
        if text.contains(['"', ',']) {
            self.line.push('"');
            self.line.push_str(&text.replace('"', "\"\""));
            self.line.push('"');
        } else {
            self.line.push_str(&text);
        }
    }
}

fn unsupported<T>(kind: &str) -> Result<T, CsvError> {
    Err(CsvError(format!("a CSV row cannot have {kind}")))
}

macro_rules! numbers {
    ($($function:ident: $number:ty),*) => {$(
        fn $function(self, number: $number) -> Result<(), CsvError> {
            self.number(number)
        }
    )*};
}

impl Serializer for &mut Fields<'_> {
    type Ok = ();
    type Error = CsvError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Impossible<(), CsvError>;
    type SerializeTupleVariant = Impossible<(), CsvError>;
    type SerializeMap = Impossible<(), CsvError>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Impossible<(), CsvError>;

    numbers!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    numbers!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64);
    numbers!(serialize_f32: f32, serialize_f64: f64);

    fn serialize_bool(self, value: bool) -> Result<(), CsvError> {
        self.number(u8::from(value))
    }

    fn serialize_char(self, value: char) -> Result<(), CsvError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), CsvError> {
        self.text(value);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), CsvError> {
        unsupported("bytes")
    }

    fn serialize_none(self) -> Result<(), CsvError> {
        self.begin();
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), CsvError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), CsvError> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), CsvError> {
        self.serialize_none()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<(), CsvError> {
        self.serialize_str(name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), CsvError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), CsvError> {
        unsupported("an enum with data")
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, CsvError> {
        if self.part == Part::Names { unsupported("a heading without names") } else { Ok(self) }
    }

    fn serialize_tuple(self, length: usize) -> Result<Self, CsvError> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, CsvError> {
        unsupported("a tuple struct")
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, CsvError> {
        unsupported("an enum with data")
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, CsvError> {
        unsupported("a map")
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, CsvError> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, CsvError> {
        unsupported("an enum with data")
    }
}

impl SerializeSeq for &mut Fields<'_> {
    type Ok = ();
    type Error = CsvError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CsvError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), CsvError> {
        Ok(())
    }
}

impl SerializeTuple for &mut Fields<'_> {
    type Ok = ();
    type Error = CsvError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CsvError> {
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), CsvError> {
        Ok(())
    }
}

impl SerializeStruct for &mut Fields<'_> {
    type Ok = ();
    type Error = CsvError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), CsvError> {
        if self.part == Part::Names {
            self.text(name);
            return Ok(());
        }
        value.serialize(&mut **self)
    }

    fn end(self) -> Result<(), CsvError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(row: &(impl Serialize + ?Sized)) -> io::Result<String> {
        written(row, Formulas::Quoted)
    }

    fn written(row: &(impl Serialize + ?Sized), formulas: Formulas) -> io::Result<String> {
        let mut out = Vec::new();
        CsvWriter::new(&mut out, formulas).row(row)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_formula_is_text_unless_raw_text_is_wanted() {
        for (text, quoted) in [
            ("=1+1", "'=1+1"),
            ("+x", "'+x"),
            ("-bash", "'-bash"),
            ("-inf", "'-inf"),
            ("-", "'-"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\u{ff1d}1", "'\u{ff1d}1"),
            ("a;=1;b", "a;'=1;b"),
            ("\t=1", "\\x09=1"),
            ("\r=1", "\\x0d=1"),
        ] {
            assert_eq!(row(&[text]).unwrap(), format!("{quoted}\r\n"));
            let raw = written(&[text], Formulas::Raw).unwrap();
            assert_eq!(raw, format!("{}\r\n", escaped(text)));
        }
        assert_eq!(row(&["=HYPERLINK(\"x\")"]).unwrap(), "\"'=HYPERLINK(\"\"x\"\")\"\r\n");
        for harmless in ["-1", "+0.5", "-1.5e-3", "a=b", "a-b;c+d", "0x10"] {
            assert_eq!(row(&[harmless]).unwrap(), format!("{harmless}\r\n"));
        }
    }

    #[test]
    fn fields_are_quoted_and_escaped_where_they_have_to_be() {
        assert_eq!(row(&["plain", "a,b"]).unwrap(), "plain,\"a,b\"\r\n");
        assert_eq!(row(&["gzip -k"]).unwrap(), "gzip -k\r\n");
        assert_eq!(row(&["say \"x\"\n"]).unwrap(), "\"say \"\"x\"\"\\x0a\"\r\n");
    }

    #[test]
    fn numbers_and_missing_values_are_fields() {
        assert_eq!(row(&(-1_i64, 0.25, None::<u8>, Some(u64::MAX), true, 'x')).unwrap().trim_end(), {
            "-1,0.25,,18446744073709551615,1,x"
        });
    }

    #[test]
    fn a_heading_has_the_names_of_the_fields() {
        #[derive(serde::Serialize)]
        struct Row {
            name: &'static str,
            size: Option<u8>,
        }
        let mut out = Vec::new();
        let mut csv = CsvWriter::new(&mut out, Formulas::Quoted);
        csv.heading(&Row { name: "", size: None }).unwrap();
        csv.row(&Row { name: "a", size: Some(1) }).unwrap();
        csv.row(&Row { name: "b", size: None }).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "name,size\r\na,1\r\nb,\r\n");
    }

    #[test]
    fn what_is_not_a_list_of_fields_is_an_error() {
        let map = std::collections::BTreeMap::from([(1, 2)]);
        assert_eq!(row(&map).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(
            CsvWriter::new(io::sink(), Formulas::Raw).heading(&[1]).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}
