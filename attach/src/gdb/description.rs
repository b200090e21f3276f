//! Description of a stub's target: the architecture, and the place of each register in the answer to `g`
//! ("Debugging with GDB", appendix G Target Descriptions).

use std::collections::HashSet;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// Maximum number of files that a description includes.
const FILES: usize = 32;
/// Maximum number of registers; QEMU's x86-64 has some 60.
const REGISTERS: usize = 4_096;
/// Maximum size of a register, bits.
const WIDEST: usize = 1 << 16;
/// Name of the description's first file.
const FIRST: &str = "target.xml";

/// Error of a description that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptionError;

/// Place of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegisterPlace {
    /// Offset of its first byte in the answer to `g`.
    pub(crate) offset: usize,
    /// Size, bytes.
    pub(crate) bytes: usize,
}

/// Description of a target by its stub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetDescription {
    architecture: Option<String>,
    /// Number, name and size in bits of each register, in the order of numbers.
    registers: Vec<(usize, String, usize)>,
}

impl TargetDescription {
    /// Reads the description. `fetch` returns the text of one of its files.
    ///
    /// # Errors
    /// The error of `fetch`, and a text that is not a description.
    pub fn read<E: From<DescriptionError>>(
        mut fetch: impl FnMut(&str) -> Result<String, E>,
    ) -> Result<Self, E> {
        let mut description = Self::default();
        let mut seen = HashSet::new();
        // The last file is the next to read, and the files that it includes take its place.
        let mut files = vec![FIRST.to_owned()];
        while let Some(file) = files.pop() {
            if seen.len() >= FILES || !seen.insert(file.clone()) {
                return Err(DescriptionError.into());
            }
            let included = description.take(&fetch(&file)?)?;
            files.extend(included.into_iter().rev());
        }
        description.registers.sort_by_key(|(number, ..)| *number);
        Ok(description)
    }

    /// Returns the architecture by GDB's name, like `i386:x86-64`.
    pub fn architecture(&self) -> Option<&str> {
        self.architecture.as_deref()
    }

    /// Returns the place of the register; `None` if there is no register of this name.
    pub(crate) fn place(&self, name: &str) -> Option<RegisterPlace> {
        let mut offset: usize = 0;
        for (_, known, bits) in &self.registers {
            let bytes = bits.div_ceil(8);
            if known == name {
                return Some(RegisterPlace { offset, bytes });
            }
            offset = offset.checked_add(bytes)?;
        }
        None
    }

    /// Parses one file; returns the names of the files that it includes.
    fn take(&mut self, text: &str) -> Result<Vec<String>, DescriptionError> {
        let mut reader = Reader::from_str(text);
        let (mut included, mut in_architecture) = (Vec::new(), false);
        loop {
            match reader.read_event().map_err(|_| DescriptionError)? {
                Event::Start(tag) => {
                    in_architecture = tag.local_name().as_ref() == b"architecture";
                    self.tag(&tag, &mut included)?;
                }
                Event::Empty(tag) => self.tag(&tag, &mut included)?,
                Event::Text(text) if in_architecture => {
                    let name = String::from_utf8_lossy(&text).trim().replace(char::is_control, "?");
                    self.architecture.get_or_insert(name);
                }
                Event::End(_) => in_architecture = false,
                Event::Eof => return Ok(included),
                _ => {}
            }
        }
    }

    fn tag(&mut self, tag: &BytesStart<'_>, included: &mut Vec<String>) -> Result<(), DescriptionError> {
        let attribute = |name: &[u8]| {
            let found = tag.attributes().flatten().find(|one| one.key.local_name().as_ref() == name)?;
            String::from_utf8(found.value.into_owned()).ok()
        };
        let number = |name: &[u8]| attribute(name).and_then(|text| text.parse::<usize>().ok());
        match tag.local_name().as_ref() {
            b"include" => included.push(attribute(b"href").ok_or(DescriptionError)?),
            b"reg" => {
                let bits = number(b"bitsize").filter(|bits| *bits <= WIDEST).ok_or(DescriptionError)?;
                // Without a number, it is one more than the previous register's.
                let next = self.registers.last().map_or(0, |(number, ..)| number.saturating_add(1));
                let at = number(b"regnum").unwrap_or(next);
                self.registers.push((at, attribute(b"name").ok_or(DescriptionError)?, bits));
            }
            _ => {}
        }
        if self.registers.len() > REGISTERS || included.len() > FILES {
            Err(DescriptionError)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The file as QEMU 7.2 sends it.
    pub(crate) const TARGET: &str = r#"<?xml version="1.0"?><!DOCTYPE target SYSTEM "gdb-target.dtd"><target><architecture>i386:x86-64</architecture><xi:include href="core.xml"/></target>"#;

    /// Registers of the names and bits, as a feature's file.
    pub(crate) fn feature(registers: &[(&str, usize)]) -> String {
        let one = |(name, bits): &(&str, usize)| format!("<reg name=\"{name}\" bitsize=\"{bits}\"/>\n");
        let list: String = registers.iter().map(one).collect();
        format!("<?xml version=\"1.0\"?>\n<feature name=\"org.gnu.gdb.i386.core\">\n{list}</feature>")
    }

    fn read(files: &[(&str, &str)]) -> Result<TargetDescription, DescriptionError> {
        TargetDescription::read(|name| {
            files
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, text)| (*text).to_owned())
                .ok_or(DescriptionError)
        })
    }

    #[test]
    fn registers_lie_one_behind_the_other_by_their_numbers() {
        let core = feature(&[("rax", 64), ("eflags", 32), ("st0", 80), ("cr3", 64)]);
        let found = read(&[(FIRST, TARGET), ("core.xml", &core)]).unwrap();
        assert_eq!(found.architecture(), Some("i386:x86-64"));
        assert_eq!(found.place("cr3"), Some(RegisterPlace { offset: 22, bytes: 8 }));
        assert_eq!(found.place("cr4"), None);
        let numbered = "<target><feature><reg name='b' bitsize='32' regnum='7'/><reg name='c' bitsize='8'/>\
                        <reg name='a' bitsize='64' regnum='1'></reg></feature></target>";
        let found = read(&[(FIRST, numbered)]).unwrap();
        assert_eq!(found.architecture(), None);
        assert_eq!(found.place("b"), Some(RegisterPlace { offset: 8, bytes: 4 }));
        assert_eq!(found.place("c"), Some(RegisterPlace { offset: 12, bytes: 1 }));
    }

    #[test]
    fn hostile_descriptions_are_unusable() {
        let itself = "<target><xi:include href='target.xml'/></target>";
        let wide = "<target><reg name='a' bitsize='99999999999'/></target>";
        let nameless = "<target><reg bitsize='8'/></target>";
        let many = format!("<target>{}</target>", "<reg name='a' bitsize='8'/>".repeat(REGISTERS + 1));
        let lost = "<target><xi:include href='nowhere.xml'/></target>";
        for text in [itself, wide, nameless, &many, lost, "<target><reg name='a'", "<a></b>"] {
            assert_eq!(read(&[(FIRST, text)]), Err(DescriptionError), "{}", &text[..text.len().min(80)]);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[<>/a-z='\" !&;\\[\\]-]{0,200}") {
            if let Ok(found) = read(&[(FIRST, &text)]) {
                prop_assert!(found.registers.len() <= REGISTERS);
            }
        }
    }
}
