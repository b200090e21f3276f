//! Console output as lines of text.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use profile::Profile;
use profile::store::{QueryError, Value};

use super::clean::{cut, name};

/// Limit of lines from the beginning of the console, and from its end.
const LINES: usize = 2_000;
/// Length at which a line is cut, characters.
const LONGEST: usize = 400;

/// Lines with their times, s since the run's start.
#[derive(Debug, Default)]
pub(super) struct Console {
    /// The first and the last lines.
    pub lines: Vec<(f64, String)>,
    /// Number of lines between them that are left out.
    pub left_out: u64,
}

/// Reads the console.
pub(super) fn read(profile: &Profile) -> Result<Console, QueryError> {
    let mut lines = Lines::default();
    profile.query_each("SELECT time_ns / 1e9, bytes FROM console ORDER BY id", |_, row| {
        if let [Value::Real(s), Value::Blob(bytes)] = row.as_slice() {
            lines.add(*s, bytes);
        }
        ControlFlow::Continue(())
    })?;
    Ok(lines.finish())
}

/// Lines as they arrive.
#[derive(Debug, Default)]
struct Lines {
    first: Vec<(f64, String)>,
    last: VecDeque<(f64, String)>,
    left_out: u64,
    /// The beginning of a line without its end: the time when it was written, and its bytes.
    open: Option<(f64, Vec<u8>)>,
}

impl Lines {
    /// Adds the next row: a line or a part of one.
    fn add(&mut self, s: f64, bytes: &[u8]) {
        let (_, open) = self.open.get_or_insert_with(|| (s, Vec::new()));
        // The part beyond is not shown.
        let room = (4 * LONGEST).saturating_sub(open.len());
        open.extend(bytes.iter().take(room));
        if bytes.ends_with(b"\n") {
            self.end();
        }
    }

    fn end(&mut self) {
        let Some((s, bytes)) = self.open.take() else { return };
        let line = (s, line(&bytes));
        if self.first.len() < LINES {
            self.first.push(line);
        } else {
            self.last.push_back(line);
        }
        if self.last.len() > LINES {
            self.last.pop_front();
            self.left_out += 1;
        }
    }

    fn finish(mut self) -> Console {
        self.end();
        self.first.extend(self.last);
        Console { lines: self.first, left_out: self.left_out }
    }
}

/// Returns one line without the sequences that colour it or move the cursor (ECMA-48, 5.4: CSI, parameters, a
/// final byte).
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
    fn parts_of_a_line_are_one_and_of_many_lines_the_ends_stay() {
        let mut lines = Lines::default();
        for (s, part) in [(1.0, "mix"), (2.0, "ed\n"), (3.0, "\r\n"), (4.0, "open")] {
            lines.add(s, part.as_bytes());
        }
        let lines = lines.finish();
        let expected = [(1.0, "mixed"), (3.0, ""), (4.0, "open")].map(|(s, text)| (s, text.to_owned()));
        assert_eq!((lines.lines, lines.left_out), (expected.to_vec(), 0));
        let mut lines = Lines::default();
        (0..5_000).for_each(|n| lines.add(f64::from(n), b"x\n"));
        let lines = lines.finish();
        assert_eq!((lines.lines.len(), lines.left_out), (2 * LINES, 1_000));
        assert_eq!((lines.lines[1_999].0, lines.lines[2_000].0), (1_999.0, 3_000.0));
    }

    #[test]
    fn colours_go_and_other_controls_become_escapes() {
        assert_eq!(line(b"\x1b[0;32m  OK  \x1b[0m done\x07\r\n"), "  OK   done\\x07");
        assert_eq!(line(b"\xffa\tb\x1b["), "\u{fffd}a    b");
        assert_eq!(line("x".repeat(500).as_bytes()).chars().count(), LONGEST);
    }
}
