//! The identity of a build.

use std::fmt;
use std::str::FromStr;

/// The identity that the linker gave a build (`--build-id`): equal in a program and in its debug file.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Box<[u8]>);

impl BuildId {
    /// Bytes of the longest: linkers write 8 to 32, and any that the user gives.
    pub const MAX: usize = 64;

    /// Returns the build-id of these bytes; `None` for less than two or more than [`BuildId::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (2..=Self::MAX).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Lower-case hexadecimal digits, two for each byte.
impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a build-id: an even number of hexadecimal digits, 4 to 128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a build-id: 4 to 128 hexadecimal digits are expected")]
pub struct NotABuildId;

impl FromStr for BuildId {
    type Err = NotABuildId;

    fn from_str(text: &str) -> Result<Self, NotABuildId> {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) || digits.len() > 2 * Self::MAX {
            return Err(NotABuildId);
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|n| u8::try_from(n).ok());
        let bytes: Option<Vec<u8>> =
            digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect();
        bytes.and_then(|bytes| Self::new(&bytes)).ok_or(NotABuildId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_one() {
        let id = BuildId::new(&[0x01, 0xab, 0xff]).unwrap();
        assert_eq!(id.to_string(), "01abff");
        assert_eq!("01ABff".parse::<BuildId>(), Ok(id));
        for bad in ["", "01", "01a", "01ag", &"00".repeat(65), "é0é0"] {
            assert_eq!(bad.parse::<BuildId>(), Err(NotABuildId), "{bad}");
        }
    }
}
