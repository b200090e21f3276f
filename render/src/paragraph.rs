//! Headings, and lines that are wrapped at the width of the page.

use unicode_width::UnicodeWidthStr;

use super::PageLayout;

/// Columns of a line, unless the terminal is wider.
pub const WIDTH: usize = 80;

/// Adds a heading after a blank line. Its note is wrapped.
pub fn heading(text: &mut String, page: PageLayout, title: &str, note: &str) {
    text.push('\n');
    wrapped(text, &format!("{}{note}", page.style.bold(title)), "", page.width);
}

/// Units that stay on the line of their number.
const UNITS: [&str; 12] = ["%", "Hz", "kHz", "ns", "us", "ms", "s", "min", "h", "KiB", "MiB", "GiB"];

/// True if a line may end between two words: not between a number and its unit.
fn may_break(before: &str, word: &str) -> bool {
    let unit = word.trim_end_matches(|c: char| ",.;:)".contains(c));
    !(before.ends_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&unit))
}

/// Returns the columns of a text that may have escape sequences for graphic renditions.
fn visible_width(text: &str) -> usize {
    let mut width = 0;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        width += before.width();
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    width + rest.width()
}

/// Adds a line; a long one is wrapped, with an indent of two more spaces.
pub fn wrapped(text: &mut String, line: &str, indent: &str, columns: usize) {
    let mut used = 0;
    let words: Vec<&str> = line.split(' ').collect();
    for glued in words.chunk_by(|before, word| !may_break(before, word)) {
        let word = glued.join(" ");
        let width = visible_width(&word);
        if used > 0 && used + 1 + width > columns {
            text.push('\n');
            text.push_str(indent);
            text.push_str("  ");
            used = indent.len() + 2;
        } else if used > 0 {
            text.push(' ');
            used += 1;
        } else {
            text.push_str(indent);
            used = indent.len();
        }
        text.push_str(&word);
        used += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_unit_share_a_line() {
        let mut text = String::new();
        wrapped(&mut text, "it took 0.2 % of the time, in 12 ms.", "", 11);
        assert_eq!(text, "it took\n  0.2 % of\n  the time,\n  in 12 ms.\n");
    }
}
