//! Text for people: numbers in human units, names made harmless, aligned tables, and the summary of a profile.

pub mod summary;
pub mod table;
pub mod units;

use std::borrow::Cow;
use std::fmt::Write as _;

/// Makes a text of the guest safe to print: control characters and line ends become escapes, so that a process name
/// can neither move the cursor nor fake a line.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            // Writing to a String can't fail.
            let _ = match u32::from(c) {
                code @ 0..=0xff => write!(safe, "\\x{code:02x}"),
                code => write!(safe, "\\u{{{code:x}}}"),
            };
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Control characters, and the format characters that reorder or hide text (Unicode "Bidi_Control", zero widths,
/// line and paragraph separators).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Whether to use bold text: standard output is a terminal and NO_COLOR (no-color.org) is unset or empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// No escape sequences at all.
    Plain,
    /// Bold headings, dim notes.
    Terminal,
}

impl Style {
    /// The style for a stream that is a terminal or not.
    pub fn for_stream(is_terminal: bool) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        if is_terminal && !no_color && !dumb { Self::Terminal } else { Self::Plain }
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[1m{text}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes() {
        assert_eq!(escape("kworker/0:1-events"), "kworker/0:1-events");
        assert_eq!(escape("a\x1b[2Jb\n\u{9b}"), "a\\x1b[2Jb\\x0a\\x9b");
        assert_eq!(escape("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(escape("größe"), "größe");
    }

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!(Style::Plain.bold("x"), "x");
        assert_eq!(Style::for_stream(false), Style::Plain);
    }
}
