//! The console's last lines as plain text.

use crate::text;

/// The lines of what a guest wrote, at most `most` of the last: without escape sequences (ECMA-48, section 5.4: CSI up to
/// a final byte; 8.3.89: OSC up to BEL or ST), and of a line that was written over only what stands there last.
pub(super) fn lines(bytes: &[u8], most: usize) -> Vec<String> {
    let plain = strip(&String::from_utf8_lossy(bytes));
    let shown = |line: &str| {
        let line = line.trim_end_matches('\r');
        text::printable(&line.rsplit('\r').next().unwrap_or(line).replace('\t', "    "))
    };
    let lines: Vec<_> = plain.lines().map(shown).collect();
    lines[lines.len().saturating_sub(most)..].to_vec()
}

fn strip(text: &str) -> String {
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_text_is_left() {
        let told = b"\x1b[0;32mOK\x1b[0m\r\nload 1%\rload 99%\r\n\x1b]0;title\x07# \xff\x1b(Bx\tend";
        assert_eq!(lines(told, 9), ["OK", "load 99%", "# \u{fffd}x    end"]);
        assert_eq!(lines(told, 1), ["# \u{fffd}x    end"]);
        assert_eq!(lines(b"\x1b[1;2", 9), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_line_steers_a_terminal(bytes in prop::collection::vec(any::<u8>(), 0..300), most in 0_usize..9) {
            let lines = lines(&bytes, most);
            prop_assert!(lines.len() <= most && lines.iter().all(|line| !line.contains(char::is_control)));
        }
    }
}
