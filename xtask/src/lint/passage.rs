//! Running text of a file with the line of each of its characters.

/// Origin of a passage, which decides the rules that apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassageKind {
    /// A documentation comment: `///`, `//!`, `/** */` or `/*! */`.
    Documentation,
    /// Any other comment.
    Comment,
    /// A string literal that reads as a message.
    Message,
    /// Text of a Markdown document.
    Prose,
}

/// Lines that belong together, joined by blanks so that a turn is found across a line break.
#[derive(Debug)]
pub struct TextPassage {
    pub kind: PassageKind,
    pub text: String,
    /// Offset into `text` at which a line starts, and the number of that line, in rising order.
    lines: Vec<(usize, usize)>,
    /// True for the first passage of a comment.
    pub opens_comment: bool,
}

impl TextPassage {
    pub fn new(kind: PassageKind) -> Self {
        Self { kind, text: String::new(), lines: Vec::new(), opens_comment: false }
    }

    /// Appends a line of the file.
    pub fn push(&mut self, number: usize, line: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), number));
        self.text.push_str(line.trim());
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the number of the line that the character at `offset` comes from.
    pub fn line_at(&self, offset: usize) -> usize {
        let after = self.lines.partition_point(|(start, _)| *start <= offset);
        self.lines.get(after.saturating_sub(1)).map_or(0, |(_, number)| *number)
    }

    /// Replaces code between backticks, so that only words of the language are left. All offsets stay.
    pub fn blank_code(&mut self) {
        self.text = without_code(&self.text);
    }
}

/// Returns `text` with each byte between two equal runs of backticks replaced by an underscore.
pub fn without_code(text: &str) -> String {
    let bytes = text.as_bytes();
    let run_at = |start: usize| bytes[start..].iter().take_while(|byte| **byte == b'`').count();
    let mut blanked = bytes.to_vec();
    let mut position = 0;
    while position < bytes.len() {
        let opening = run_at(position);
        if opening == 0 {
            position += 1;
            continue;
        }
        let inside = position + opening;
        // The first run of the same length closes the code; a run without a partner is text.
        let mut end = inside;
        let mut closing = None;
        while end < bytes.len() {
            match run_at(end) {
                0 => end += 1,
                length if length == opening => {
                    closing = Some(end);
                    break;
                }
                length => end += length,
            }
        }
        match closing {
            Some(end) => {
                blanked[inside..end].fill(b'_');
                position = end + opening;
            }
            None => position = inside,
        }
    }
    // Backticks are ASCII, so whole characters were replaced and the rest is as it was.
    String::from_utf8_lossy(&blanked).into_owned()
}

/// True for a line that begins a list item, heading, table row or quotation, which no paragraph runs into.
pub fn starts_block(line: &str) -> bool {
    let line = line.trim_start();
    let bullet = ["- ", "* ", "+ ", "|", "#", ">"].iter().any(|mark| line.starts_with(mark));
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    bullet || (digits > 0 && line[digits..].starts_with(". "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_offset() {
        let mut passage = TextPassage::new(PassageKind::Comment);
        passage.push(7, " one ");
        passage.push(9, "two three");
        assert_eq!(passage.text, "one two three");
        assert_eq!([0, 3, 4, 12].map(|offset| passage.line_at(offset)), [7, 7, 9, 9]);
    }

    #[test]
    fn code_is_blanked() {
        for (text, blanked) in [
            ("a `b c` d", "a `___` d"),
            ("``x ` y`` z", "``_____`` z"),
            ("no ` partner", "no ` partner"),
            ("`é` é", "`__` é"),
        ] {
            assert_eq!(without_code(text), blanked);
        }
    }

    #[test]
    fn blocks_start_at_marks() {
        assert!(["- a", "  * a", "12. a", "| a", "## a", "> a"].iter().all(|line| starts_block(line)));
        assert!(!["a - b", "12 a", "-a", ""].iter().any(|line| starts_block(line)));
    }
}
