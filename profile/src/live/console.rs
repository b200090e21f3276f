//! The console's last lines as plain text.

use display::clean;

/// Returns the lines of a guest's output, at most the last `most`: without escape sequences, and of a line
/// that was overwritten only its last text.
pub(super) fn lines(bytes: &[u8], most: usize) -> Vec<String> {
    let plain = clean::without_escape_sequences(&String::from_utf8_lossy(bytes));
    let shown = |line: &str| {
        let line = line.trim_end_matches('\r');
        clean::printable(&line.rsplit('\r').next().unwrap_or(line).replace('\t', "    "))
    };
    let lines: Vec<_> = plain.lines().map(shown).collect();
    lines[lines.len().saturating_sub(most)..].to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_text_is_left() {
        let bytes = b"\x1b[0;32mOK\x1b[0m\r\nload 1%\rload 99%\r\n\x1b]0;title\x07# \xff\x1b(Bx\tend";
        assert_eq!(lines(bytes, 9), ["OK", "load 99%", "# \u{fffd}x    end"]);
        assert_eq!(lines(bytes, 1), ["# \u{fffd}x    end"]);
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
