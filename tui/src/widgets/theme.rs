//! Colours and characters that a terminal can show.

use std::borrow::Cow;
use std::env;

use ratatui::style::{Color, Modifier, Style};

use render::{is_utf8_locale, table};

/// States of a vCPU, by their names in [`profile::rows::Microstates`].
pub const STATES: [&str; 7] = ["guest", "halted", "waiting", "kvm", "vmm", "sampler", "paused"];

/// Parts of a time by state, in the order of [`STATES`]; all 0 if they are not known.
pub type StateParts = [f32; STATES.len()];

/// Colours and characters that the terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScreenTheme {
    /// The terminal's 16 colours may be used.
    pub color: bool,
    /// The terminal shows Unicode.
    pub unicode: bool,
}

/// Smallest part of a column at which a state other than `guest` and `halted` has its letter.
const NOTABLE: f32 = 0.25;
/// Heights of a column from nothing to all.
const HEIGHTS: [&str; 9] = ["·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const HEIGHTS_ASCII: [&str; 9] = ["_", ".", ":", "-", "=", "+", "*", "%", "#"];
/// Lengths of a bar's last character.
const LENGTHS: [&str; 9] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
/// Letters of states, in the order of [`STATES`]; heights show the first two.
const LETTERS: [&str; 7] = ["", "", "w", "k", "v", "s", "p"];
/// Colours of states. They differ in lightness or in blue against yellow, which nearly everybody can
/// distinguish.
const COLORS: [Color; 7] =
    [Color::Cyan, Color::Reset, Color::Yellow, Color::Blue, Color::Magenta, Color::White, Color::DarkGray];

impl ScreenTheme {
    /// Reads the environment: `NO_COLOR` (no-color.org), and the locale's character set as in POSIX.
    pub fn from_environment() -> Self {
        let has_no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { color: !has_no_color, unicode: is_utf8_locale(|name| env::var(name).ok()) }
    }

    /// Cuts a text to at most this many columns.
    pub fn cut(self, text: &str, width: u16) -> String {
        let cut = table::cut(&self.plain(text), usize::from(width));
        match self.unicode {
            true => cut,
            false => cut.replace('…', "~"),
        }
    }

    /// Converts a text to ASCII, if the terminal shows only that.
    fn plain(self, text: &str) -> Cow<'_, str> {
        if self.unicode || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let ascii = |c: char| match c {
            '±' => Cow::Borrowed("+-"),
            c if c.is_ascii() => Cow::Owned(c.to_string()),
            _ => Cow::Borrowed("?"),
        };
        Cow::Owned(text.chars().map(ascii).collect())
    }

    /// Returns a colour, if the terminal has colours.
    pub fn fg(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// Returns the style of names.
    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of notices.
    pub fn notice(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the colour of a state, by its number.
    pub fn state(self, place: usize) -> Style {
        self.fg(COLORS.get(place).copied().unwrap_or(Color::Reset))
    }

    /// Returns one column of a vCPU over time.
    pub fn column(self, parts: &StateParts) -> (&'static str, Style) {
        let guest = parts[0];
        if parts.iter().all(|part| *part <= 0.0) {
            return (" ", Style::new());
        }
        let others = parts.iter().zip(LETTERS).enumerate().skip(2);
        let largest = others.max_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
        match largest {
            Some((place, (part, letter))) if *part >= NOTABLE => (letter, self.state(place)),
            _ => {
                let heights = if self.unicode { HEIGHTS } else { HEIGHTS_ASCII };
                // A small part differs from none.
                let height = eighths(guest, 1).max(usize::from(guest >= 0.005));
                (heights[height.min(8)], self.state(0))
            }
        }
    }

    /// Draws a bar over at most this many columns.
    pub fn bar(self, part: f64, width: u16) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "a part of the whole")]
        let part = if part.is_finite() { part.clamp(0.0, 1.0) as f32 } else { 0.0 };
        let length = eighths(part, width);
        match self.unicode {
            true => "█".repeat(length / 8) + LENGTHS[length % 8],
            false => "#".repeat((length + 4) / 8),
        }
    }
}

/// Rounds a part of this many columns to eighths of a column.
fn eighths(part: f32, columns: u16) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 8 * columns")]
    let eighths = (part * 8.0 * f32::from(columns)).round() as usize;
    eighths
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: ScreenTheme = ScreenTheme { color: true, unicode: true };
    const LEAST: ScreenTheme = ScreenTheme { color: false, unicode: false };

    #[test]
    fn columns_differ_without_colours() {
        let columns = [
            [0.0; 7],
            [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.01, 0.99, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.9, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0],
            [0.7, 0.0, 0.3, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.4, 0.6, 0.0],
        ];
        let shown = |theme: ScreenTheme| columns.map(|parts| theme.column(&parts).0).concat();
        assert_eq!(shown(FULL), " ·▁▄▇ws");
        assert_eq!(shown(LEAST), " _.=%ws");
        assert!(columns.iter().all(|parts| LEAST.column(parts).1 == Style::new()));
        assert_eq!(FULL.column(&columns[5]).1.fg, Some(Color::Yellow));
    }

    #[test]
    fn bars_have_the_length_of_their_part() {
        let bars = [0.0, 0.05, 0.5, 1.0, 7.0, f64::NAN].map(|part| FULL.bar(part, 4));
        assert_eq!(bars, ["", "▎", "██", "████", "████", ""]);
        assert_eq!(LEAST.bar(0.6, 4), "##");
    }

    #[test]
    fn text_is_ascii_where_there_is_nothing_else() {
        assert_eq!(LEAST.cut("größe ± 漢字", 99), "gr??e +- ??");
        assert_eq!(LEAST.cut("abcdef", 4), "abc~");
        assert_eq!(FULL.cut("größer", 4), "grö…");
    }
}
