//! Recognition of CPython: a program or library with its symbols.

use std::ops::Range;

use symbols::LinkAddr;
use symbols::elf::ElfFile;
use symbols::names::exported;

use super::layout::PythonLayout;
use super::names::PythonNames;
use super::walk::PythonPlan;
use crate::{LayoutError, ProcessMemory};

/// Symbols of each CPython: its state, its version (3.11 and later), the type of code objects, and the
/// interpreter.
const SYMBOLS: [&str; 4] = ["_PyRuntime", "Py_Version", "PyCode_Type", "_PyEval_EvalFrameDefault"];

/// Returns true if a file of this name may be CPython: `python3.11`, `libpython3.11.so.1.0`. Only such files
/// are opened.
pub fn may_be_python(name: &str) -> bool {
    name.contains("python")
}

/// A program or library that is CPython.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonBinary {
    runtime: LinkAddr,
    code_type: LinkAddr,
    /// Address and size.
    interpreter: Option<(LinkAddr, u64)>,
    /// Major and minor version.
    version: (u8, u8),
}

impl PythonBinary {
    /// Returns a binary of this version with `_PyRuntime` and `PyCode_Type` at these addresses.
    pub fn new(version: (u8, u8), runtime: LinkAddr, code_type: LinkAddr) -> Self {
        Self { runtime, code_type, interpreter: None, version }
    }

    /// Returns the binary in `elf`, the file `name`; `None` if it is not CPython.
    pub fn read(elf: &ElfFile, name: &str) -> Option<Self> {
        let [runtime, number, code_type, interpreter] = exported(elf, &SYMBOLS).ok()?;
        let number = number.and_then(|(at, _)| elf.bytes_at(at.0, 8).ok());
        let number = number.and_then(|bytes| symbols::bytes::u64_at(&bytes, 0));
        let version = number.map(version).or_else(|| version_of_name(name))?;
        Some(Self { interpreter, ..Self::new(version, runtime?.0, code_type?.0) })
    }

    /// Returns the addresses of the function that interprets bytecode, in the file.
    pub fn interpreter(&self) -> Option<Range<u64>> {
        let (LinkAddr(start), size) = self.interpreter?;
        Some(start..start.checked_add(size)?)
    }

    /// Returns major and minor version.
    pub fn version(&self) -> (u8, u8) {
        self.version
    }

    /// Returns the plan for walks of a process that has mapped this file at `bias`, and its reader of names.
    pub fn plan(
        &self,
        memory: &impl ProcessMemory,
        bias: u64,
    ) -> Result<(PythonPlan, PythonNames), LayoutError> {
        let runtime = self.runtime.loaded(bias);
        let layout = PythonLayout::new(self.version, memory, runtime)?;
        Ok((
            PythonPlan::new(runtime, layout.walk)?,
            PythonNames::new(layout.names, self.code_type.loaded(bias)),
        ))
    }
}

/// Returns major and minor version of `PY_VERSION_HEX` (Include/patchlevel.h): one byte each, from bit 24
/// down.
fn version(number: u64) -> (u8, u8) {
    let [_, _, minor, major, ..] = number.to_le_bytes();
    (major, minor)
}

/// Returns major and minor version in the name of a program or library: `python3.9`, `libpython3.10.so.1.0`.
fn version_of_name(name: &str) -> Option<(u8, u8)> {
    let (_, version) = name.split_once("python")?;
    let (major, rest) = version.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_and_numbers() {
        for (name, wanted) in [
            ("python3.9", Some((3, 9))),
            ("libpython3.10.so.1.0", Some((3, 10))),
            ("python3", None),
            ("python3.x", None),
            ("libpython300.1.so", None),
            ("perl5.36", None),
        ] {
            assert_eq!(version_of_name(name), wanted, "{name}");
        }
        assert_eq!(version(0x030b_02f0), (3, 11));
        assert_eq!(version(0x030e_00a1), (3, 14));
    }
}
