//! Text that comes from the guest, made safe to store and to print.

/// The longest name that is kept, bytes. Linux has at most 512 for a symbol (`KSYM_NAME_LEN`, 6.1) and 16 for a task.
const LONGEST: usize = 512;

/// `text` without control characters (a name must not move a terminal's cursor), at most 512 bytes.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LONGEST));
    for c in text.chars() {
        let c = if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        if out.len() + c.len_utf8() > LONGEST {
            break;
        }
        out.push(c);
    }
    out
}

/// A NUL-padded `comm` of `task_struct` as text.
pub(crate) fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

/// `text` without escape sequences (ECMA-48, section 5.4: CSI up to a final byte; 8.3.89: OSC up to BEL or ST).
pub(crate) fn plain(text: &str) -> String {
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
            // Which set of characters is meant, takes one more.
            Some('(' | ')' | '#' | '%') => drop(chars.next()),
            _ => {}
        }
    }
    plain
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
}
