//! Console output as lines of text.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use sampler::Profile;
use sampler::profile::{QueryError, Value};

use super::clean::{cut, name};

/// Lines that a page has from the beginning of the console, and as many from its end.
const LINES: usize = 2_000;
/// No line is longer, characters.
const LONGEST: usize = 400;

/// Lines with their times, s since the run's start.
#[derive(Debug, Default)]
pub(super) struct Console {
    /// The first and the last lines.
    pub lines: Vec<(f64, String)>,
    /// How many between them are left out.
    pub left_out: u64,
}

/// Reads the console.
pub(super) fn read(profile: &Profile) -> Result<Console, QueryError> {
    let mut first = Vec::new();
    let mut last: VecDeque<(f64, String)> = VecDeque::new();
    let mut left_out = 0;
    profile.query_each("SELECT time_ns / 1e9, bytes FROM console ORDER BY id", |_, row| {
        if let [Value::Real(s), Value::Blob(bytes)] = row.as_slice() {
            let line = (*s, line(bytes));
            if first.len() < LINES {
                first.push(line);
            } else {
                last.push_back(line);
            }
            if last.len() > LINES {
                last.pop_front();
                left_out += 1;
            }
        }
        ControlFlow::Continue(())
    })?;
    first.extend(last);
    Ok(Console { lines: first, left_out })
}

/// One line without the sequences that colour it or move the cursor (ECMA-48, 5.4: CSI, parameters, a final byte).
fn line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.trim_end_matches(['\r', '\n']);
    while let Some((before, sequence)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = sequence.trim_start_matches(|c| matches!(c, '\x20'..='\x3f'));
        rest = rest.strip_prefix(|c| matches!(c, '\x40'..='\x7e')).unwrap_or(rest);
    }
    plain.push_str(rest);
    let tabs = plain.replace('\t', "    ");
    cut(&name(&tabs), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_other_controls_become_escapes() {
        assert_eq!(line(b"\x1b[0;32m  OK  \x1b[0m done\x07\r\n"), "  OK   done\\x07");
        assert_eq!(line(b"\xffa\tb\x1b["), "\u{fffd}a    b");
        assert_eq!(line("x".repeat(500).as_bytes()).chars().count(), LONGEST);
    }
}
