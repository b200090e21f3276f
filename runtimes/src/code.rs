//! Functions of managed languages: names, files and lines.

use crate::ManagedFrame;

/// Function of a managed language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedCode {
    /// Name of the function, with its class where the language's own stack traces have it.
    pub name: String,
    /// Source file; `None` for functions without one.
    pub file: Option<String>,
    /// Bytes from the code object to the code that the line table describes.
    pub(crate) start: u32,
    pub(crate) lines: LineTable,
}

impl ManagedCode {
    /// Returns the line that `frame` of this code executes; `None` for instructions without a line.
    pub fn line(&self, frame: &ManagedFrame) -> Option<u32> {
        // In front of the first instruction the frame is about to begin.
        self.lines.find(frame.instruction?.saturating_sub(self.start))
    }
}

/// Lines of one code object by position in its code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LineTable {
    /// Start of a range in bytes, and its line; `None` for instructions without a line. Ranges are in order.
    ranges: Vec<(u32, Option<u32>)>,
}

impl LineTable {
    /// Adds the line of the code from `at` on, which must not be before that of the last call. Line 0 means
    /// that there is no line.
    pub(crate) fn push(&mut self, at: u32, line: Option<u32>) {
        let line = line.filter(|&line| line > 0);
        match self.ranges.last_mut() {
            Some(last) if last.0 == at => last.1 = line,
            Some(last) if last.1 == line => {}
            _ => self.ranges.push((at, line)),
        }
    }

    /// Returns the line of the instruction `offset` bytes after the code's start.
    pub(crate) fn find(&self, offset: u32) -> Option<u32> {
        let after = self.ranges.partition_point(|&(start, _)| start <= offset);
        self.ranges.get(after.checked_sub(1)?)?.1
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> &[(u32, Option<u32>)] {
        &self.ranges
    }
}
