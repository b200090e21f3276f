//! Offsets of the members of CRuby's structures, in bytes.
//!
//! `offsetof` by a compiler on the headers of 3.0.0, 3.1.2, 3.2.0, 3.3.8 and 3.4.5 (vm_core.h, iseq.h,
//! method.h, internal/imemo.h, include/ruby/internal/core/rstring.h and rarray.h). Releases of one minor
//! version have the same layout.

use crate::{LayoutError, RuntimeLanguage};

/// Bytes of a control frame, at most.
pub(super) const LARGEST_FRAME: usize = 64;
/// Bytes from the start of `rb_iseq_constant_body` up to the end of the label.
pub(super) const BODY: usize = 88;

/// Major and minor version.
pub type RubyVersion = (u8, u8);

/// Offsets of one version. Those that all versions share are constants where they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RubyLayout {
    /// Bytes of `rb_control_frame_t`.
    pub frame: u8,
    /// `rb_control_frame_t.jit_return`, for versions with YJIT.
    pub jit_return: Option<u8>,
    /// `rb_iseq_constant_body.insns_info`: its members `body`, `size` and `succ_index_table` follow at 0, 16
    /// and 24.
    pub lines: u8,
    /// Characters of a string inside of its object, and whether their number is before them. Otherwise it is
    /// in the object's flags.
    pub embedded: EmbeddedString,
}

/// Place of the characters of a string that is inside of its object (`RString.as.embed`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddedString {
    /// Up to 3.1: at 16, with the length in bits 14 to 18 of the flags.
    LengthInFlags,
    /// Since 3.2: at 24, with the length at 16.
    LengthInObject,
}

const V3_0: RubyLayout =
    RubyLayout { frame: 56, jit_return: None, lines: 120, embedded: EmbeddedString::LengthInFlags };
const V3_1: RubyLayout = RubyLayout { frame: 64, jit_return: Some(56), ..V3_0 };
const V3_2: RubyLayout = RubyLayout { lines: 112, embedded: EmbeddedString::LengthInObject, ..V3_1 };
const V3_3: RubyLayout = RubyLayout { frame: 56, jit_return: Some(48), ..V3_2 };

impl RubyLayout {
    /// Returns the layout of `version`.
    pub fn new(version: RubyVersion) -> Result<Self, LayoutError> {
        match version {
            (3, 0) => Ok(V3_0),
            (3, 1) => Ok(V3_1),
            (3, 2) => Ok(V3_2),
            (3, 3 | 4) => Ok(V3_3),
            (major, minor) => Err(LayoutError::Version(RuntimeLanguage::Ruby, major, minor)),
        }
    }
}
