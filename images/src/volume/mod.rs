//! File systems and other contents of a disk's parts.

pub mod ext4;
mod fat;
pub mod signature;
#[cfg(any(test, feature = "fuzz"))]
pub mod table;

use std::fmt;

use super::contents::Part;
use signature::Signature;

/// Names of one directory that are looked at, at most.
pub const MOST_NAMES: usize = 4096;

/// What can be read of a file system. Paths begin with `/`. Whatever is wrong with a path, it is no file that could be
/// booted; why bytes can't be read is said.
pub trait Files: fmt::Debug {
    /// The bytes of a file of at most `most`.
    fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, String>;

    /// True if the path leads to a file, through links or not.
    fn is_file(&self, path: &str) -> bool;

    /// Names in a directory, at most [`MOST_NAMES`], sorted; none if there is no such directory.
    fn names(&self, directory: &str) -> Vec<String>;

    /// The path without symbolic links.
    fn resolved(&self, path: String) -> String;
}

/// A part of a disk and what is in it.
#[derive(Debug)]
pub struct Volume {
    /// Where it is.
    pub part: Part,
    /// What its first bytes tell; `None` for nothing known.
    pub signature: Option<Signature>,
    /// Its files; why they can't be read where they should be readable; `None` where they are in a form that is not
    /// read at all.
    pub files: Option<Result<Box<dyn Files>, String>>,
}

impl Volume {
    /// Looks at a part of a disk.
    pub fn open(part: Part) -> Self {
        let signature = Signature::of(&part);
        let files = match signature.as_ref().map(|signature| signature.name) {
            Some("ext2" | "ext3" | "ext4") => Some(ext4::open(&part)),
            Some("vfat") => Some(fat::open(&part)),
            _ => None,
        };
        Self { part, signature, files }
    }

    /// Its files, where they can be read.
    pub fn readable(&self) -> Option<&dyn Files> {
        match &self.files {
            Some(Ok(files)) => Some(files.as_ref()),
            _ => None,
        }
    }

    /// What is in it, like `ext4`.
    pub fn name(&self) -> Option<&'static str> {
        self.signature.as_ref().map(|signature| signature.name)
    }
}

/// A GUID as people write it: the first three groups are little endian (UEFI 2.10, appendix A).
pub fn guid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
    uuid_text(&[d, c, b, a, f, e, h, g], rest)
}

/// A UUID as people write it, all groups big endian.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
    uuid_text(&[a, b, c, d, e, f, g, h], rest)
}

fn uuid_text(first: &[u8; 8], rest: [u8; 8]) -> String {
    let digits: String = first.iter().chain(&rest).map(|byte| format!("{byte:02x}")).collect();
    let group = |from: usize, to: usize| digits.get(from..to).unwrap_or("");
    [group(0, 8), group(8, 12), group(12, 16), group(16, 20), group(20, 32)].join("-")
}

#[cfg(test)]
mod tests;
