//! Recognition of PHP: a program or library with its functions and variables.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions};
use symbols::elf::ElfFile;
use symbols::names::exported;
use symbols::{LinkAddr, VirtAddr};

use super::layout::{PhpLayout, PhpVersion};
use super::names::PhpNames;
use super::walk::PhpPlan;
use crate::{LayoutError, ProcessMemory};

/// Symbols of each PHP: a function that returns the version, the interpreter, and the interpreter's
/// variables, which builds with thread safety have for each thread.
const SYMBOLS: [&str; 4] = ["get_zend_version", "execute_ex", "executor_globals", "executor_globals_offset"];
/// Bytes of the function that returns the version, at most, and instructions of it that are searched.
const FUNCTION: u64 = 32;
const INSTRUCTIONS: usize = 3;
/// Text before the version of the engine (`ZEND_CORE_VERSION_INFO`, Zend/zend.c of 8.2 to 8.5).
const ENGINE: &str = "Zend Engine v";
/// Bytes of the text that are read.
const TEXT: u64 = 24;
/// Difference of the major versions of PHP and of its engine: PHP 7 has engine 3, PHP 8 has engine 4.
const ENGINE_MAJOR: u8 = 4;

/// Returns true if a file of this name may be PHP: `php8.2`, `php-fpm8.2`, `libphp8.2.so`. Only such files
/// are opened.
pub fn may_be_php(name: &str) -> bool {
    name.contains("php")
}

/// A program or library that is PHP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhpBinary {
    /// Address of the pointer to the text with the version.
    version: LinkAddr,
    /// Address of `executor_globals`; `None` with thread safety.
    globals: Option<LinkAddr>,
    /// Address and size of `execute_ex`.
    interpreter: Option<(LinkAddr, u64)>,
}

impl PhpBinary {
    /// Returns the binary in `elf`; `None` if it is not PHP.
    pub fn read(elf: &ElfFile) -> Option<Self> {
        let [version, interpreter, globals, offset] = exported(elf, &SYMBOLS).ok()?;
        globals.or(offset)?;
        let (at, size) = version?;
        let code = elf.bytes_at(at.0, size.min(FUNCTION)).ok()?;
        let mut code = Decoder::with_ip(64, &code, at.0, DecoderOptions::NONE);
        let load = code.iter().take(INSTRUCTIONS).find(|instruction| {
            instruction.code() == Code::Mov_r64_rm64 && instruction.is_ip_rel_memory_operand()
        })?;
        let version = LinkAddr(load.ip_rel_memory_address());
        Some(Self { interpreter, ..Self::new(version, globals.map(|(at, _)| at)) })
    }

    /// Returns a binary with the pointer to its version, and `executor_globals`, at these addresses.
    pub fn new(version: LinkAddr, globals: Option<LinkAddr>) -> Self {
        Self { version, globals, interpreter: None }
    }

    /// Returns the addresses of the function that interprets instructions, in the file.
    pub fn interpreter(&self) -> Option<Range<u64>> {
        let (LinkAddr(start), size) = self.interpreter?;
        Some(start..start.checked_add(size)?)
    }

    /// Returns the plan for walks of a process that has mapped this file at `bias`, and its reader of names.
    pub fn plan(&self, memory: &impl ProcessMemory, bias: u64) -> Result<(PhpPlan, PhpNames), LayoutError> {
        let globals = self.globals.ok_or(LayoutError::ThreadSafe)?;
        let text = memory.read_u64(self.version.loaded(bias)).ok_or(LayoutError::NotPresent)?;
        let text = memory.read_bytes(VirtAddr(text), TEXT).ok_or(LayoutError::NotPresent)?;
        let version = version_in(&text).ok_or(LayoutError::Invalid)?;
        let layout = PhpLayout::new(version)?;
        Ok((PhpPlan::new(globals.loaded(bias), layout), PhpNames::new(layout)))
    }
}

/// Returns major and minor version of PHP in the text about its engine: `Zend Engine v4.2.32, Copyright`.
fn version_in(text: &[u8]) -> Option<PhpVersion> {
    let text = String::from_utf8_lossy(text);
    let mut parts = text.strip_prefix(ENGINE)?.split('.').map(|part| part.parse::<u8>().ok());
    Some((parts.next()??.checked_add(ENGINE_MAJOR)?, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_engine() {
        for (text, wanted) in [
            (&b"Zend Engine v4.2.32, Cop"[..], Some((8, 2))),
            (b"Zend Engine v4.10.0-dev", Some((8, 10))),
            (b"Zend Engine v3.4.0", Some((7, 4))),
            (b"Zend Engine v255.1.0", None),
            (b"Zend Engine v4", None),
            (b"Zend", None),
        ] {
            assert_eq!(version_in(text), wanted, "{text:?}");
        }
    }
}
