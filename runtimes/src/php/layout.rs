//! Offsets of the members of PHP's structures, in bytes.
//!
//! `offsetof` by a compiler on the headers of 8.2.32, 8.4.27 and 8.5.7 without thread safety
//! (Zend/zend_globals.h, zend_compile.h, zend_string.h, zend.h). Releases of one minor version have the same
//! layout.

use crate::{LayoutError, RuntimeLanguage};

/// Major and minor version.
pub type PhpVersion = (u8, u8);

/// Offsets of one version. Those that all versions share are constants where they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhpLayout {
    /// `zend_executor_globals.current_execute_data`.
    pub current: u16,
    /// `zend_op_array.last`, the number of instructions; `opcodes` follows at 8, `filename` at 72.
    pub instructions: u16,
}

const V8_2: PhpLayout = PhpLayout { current: 488, instructions: 80 };
const V8_4: PhpLayout = PhpLayout { instructions: 96, ..V8_2 };
const V8_5: PhpLayout = PhpLayout { current: 512, ..V8_4 };

impl PhpLayout {
    /// Returns the layout of `version`.
    pub fn new(version: PhpVersion) -> Result<Self, LayoutError> {
        match version {
            (8, 2) => Ok(V8_2),
            (8, 4) => Ok(V8_4),
            (8, 5) => Ok(V8_5),
            (major, minor) => Err(LayoutError::Version(RuntimeLanguage::Php, major, minor)),
        }
    }
}
