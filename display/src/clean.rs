//! Cleaning of text that comes from a guest or a file. One policy for each place the text goes to:
//!
//! | goes to | policy |
//! |---|---|
//! | a name read from guest memory or a file's tables | [`ascii`] |
//! | a row of the profile | [`printable`], [`comm`] |
//! | a line of a console, matched or shown | [`without_escape_sequences`] |
//! | a terminal, an error message, a line-based format | [`escaped`], [`escaped_with`] |
//! | XML | [`xml`] |
//! | a table in Markdown | [`markdown`], [`markdown_code`] |

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest name that is kept, bytes. Linux has at most 512 for a symbol (`KSYM_NAME_LEN`, 6.1) and 16 for a
/// task.
const MAX_NAME_BYTES: usize = 512;

/// Returns `bytes` as printable ASCII; every other byte becomes `?`.
pub fn ascii(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|&b| match b {
            b' '..=b'~' => char::from(b),
            _ => '?',
        })
        .collect()
}

/// Returns `bytes` as UTF-8 without control characters, each of which becomes `?`; invalid UTF-8 becomes
/// U+FFFD.
pub fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns `text` with control characters replaced by U+FFFD, cut to 512 bytes.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MAX_NAME_BYTES));
    for c in text.chars() {
        let c = if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        if out.len() + c.len_utf8() > MAX_NAME_BYTES {
            break;
        }
        out.push(c);
    }
    out
}

/// Returns the NUL-padded `comm` of a `task_struct` as [`printable`] text.
pub fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

/// Returns `text` without escape sequences (ECMA-48, section 5.4: CSI up to a final byte; 8.3.89: OSC up to
/// BEL or ST).
pub fn without_escape_sequences(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('[') => drop(chars.by_ref().find(|c| ('\u{40}'..='\u{7e}').contains(c))),
            Some(']') => drop(chars.by_ref().find(|c| matches!(c, '\u{7}' | '\u{9c}' | '\\'))),
            // The designation of a character set has one more character.
            Some('(' | ')' | '#' | '%') => drop(chars.next()),
            _ => {}
        }
    }
    plain
}

/// Returns `text` on one line, with control characters and characters that reorder or hide text as `\x` and
/// `\u` escapes.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_where(text, |_| false)
}

/// Returns `text` like [`escaped`], with all of `separators` escaped, too.
pub fn escaped_with<'a>(text: &'a str, separators: &[char]) -> Cow<'a, str> {
    escaped_where(text, |c| separators.contains(&c))
}

fn escaped_where(text: &str, is_separator: impl Fn(char) -> bool) -> Cow<'_, str> {
    let needs_escape = |c: char| is_unsafe(c) || is_separator(c);
    if !text.chars().any(needs_escape) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if needs_escape(c) {
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

/// True for a control character, or a format character that reorders or hides text (Unicode "Bidi_Control",
/// zero widths, line and paragraph separators).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Returns at most `longest` characters, the last of them an ellipsis if the text is longer.
pub fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some(_) => text.chars().take(longest.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Returns [`escaped`] text for XML; noncharacters (XML 1.0, section 2.2) become U+FFFD.
pub fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escaped(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Returns [`escaped`] text for a cell of a Markdown table, with all markup escaped.
pub fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in escaped(text).chars() {
        if matches!(c, '|' | '`' | '*' | '_' | '<' | '>' | '[' | ']' | '\\' | '#' | '&' | '@') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns [`escaped`] text for a code span in a cell of a Markdown table; a backquote becomes `'`.
pub fn markdown_code(text: &str) -> String {
    escaped(text).replace('`', "'").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(comm(b"gzip\0old-rest\0\0\0"), "gzip");
        assert_eq!(comm(b"0123456789abcdef"), "0123456789abcdef");
        assert_eq!(comm(b"a\x1b[2Jb\0\0\0\0\0\0\0\0\0\0"), "a\u{fffd}[2Jb");
        assert_eq!(comm(b"\xff\xfe\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), "\u{fffd}\u{fffd}");
        assert_eq!(printable(&"é".repeat(400)).len(), 512);
    }

    #[test]
    fn bytes_become_printable_text() {
        assert_eq!(ascii(b"a\x1b[31m b\xff"), "a?[31m b?");
        assert_eq!(utf8("gr\u{f6}\u{df}er\t\u{1b}[2J\u{9b}".as_bytes()), "gr\u{f6}\u{df}er??[2J?");
        assert_eq!(utf8(b"a\xff"), "a\u{fffd}");
    }

    #[test]
    fn escape_sequences_are_removed() {
        assert_eq!(without_escape_sequences("\u{1b}[1;31mred\u{1b}[0m"), "red");
        assert_eq!(without_escape_sequences("\u{1b}]0;title\u{7}text"), "text");
        assert_eq!(without_escape_sequences("\u{1b}(Ba\u{1b}"), "a");
    }

    #[test]
    fn characters_that_move_or_hide_text_are_escaped() {
        assert_eq!(escaped("std::vec<int> größe"), "std::vec<int> größe");
        assert_eq!(escaped("a\x1b[2J\nb\u{202e}"), "a\\x1b[2J\\x0ab\\u{202e}");
        assert_eq!(escaped_with("a;b", &[';']), "a\\x3bb");
        assert_eq!(xml("a<b>&\"\u{ffff}"), "a&lt;b&gt;&amp;&quot;\u{fffd}");
    }

    #[test]
    fn guest_text_is_not_markup() {
        assert_eq!(markdown("a|b `c` <img> @all\x1b"), "a\\|b \\`c\\` \\<img\\> \\@all\\\\x1b");
        assert_eq!(markdown_code("a`b|c"), "a'b\\|c");
    }
}
