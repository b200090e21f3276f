//! ECMA-48 terminal for ratatui: one write for each frame, and no bytes for unchanged cells.

use std::io::{self, Write};

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

use render::terminal_size;

/// Size of a terminal that reports none.
const USUAL: Size = Size { width: 80, height: 24 };
/// Selects no colours and no emphasis (ECMA-48: SGR).
const PLAIN: &str = "\x1b[0m";

/// Colours and emphasis of a cell.
type CellStyle = (Color, Color, Modifier);

const PLAIN_STYLE: CellStyle = (Color::Reset, Color::Reset, Modifier::empty());

/// Backend that writes to the terminal `W`.
#[derive(Debug)]
pub struct AnsiBackend<W> {
    out: W,
    frame: Vec<u8>,
    cursor_shown: bool,
}

impl<W: Write> AnsiBackend<W> {
    /// Makes a backend for a terminal whose cursor is hidden.
    pub fn new(out: W) -> Self {
        Self { out, frame: Vec::new(), cursor_shown: false }
    }

    fn add(&mut self, text: &str) {
        self.frame.extend_from_slice(text.as_bytes());
    }

    fn go_to(&mut self, x: u16, y: u16) {
        // CUP counts from 1.
        self.add(&format!("\x1b[{};{}H", u32::from(y) + 1, u32::from(x) + 1));
    }

    fn show_as(&mut self, (fg, bg, modifier): CellStyle) {
        self.add("\x1b[0");
        for (flag, code) in EMPHASES {
            if modifier.contains(flag) {
                self.add(&format!(";{code}"));
            }
        }
        for (color, base) in [(fg, 30), (bg, 40)] {
            if let Some(code) = code(color) {
                self.add(&format!(";{}", base + code));
            }
        }
        self.add("m");
    }
}

/// Emphases and their SGR parameters.
const EMPHASES: [(Modifier, u8); 4] =
    [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::UNDERLINED, 4), (Modifier::REVERSED, 7)];

/// Returns the code of one of the 16 colours, relative to SGR 30 and 40; bright ones are aixterm's 90 and
/// 100.
fn code(color: Color) -> Option<u8> {
    use Color::{
        Black, Blue, Cyan, DarkGray, Gray, Green, LightBlue, LightCyan, LightGreen, LightMagenta, LightRed,
        LightYellow, Magenta, Red, White, Yellow,
    };
    let dark = [Black, Red, Green, Yellow, Blue, Magenta, Cyan, Gray];
    let bright = [DarkGray, LightRed, LightGreen, LightYellow, LightBlue, LightMagenta, LightCyan, White];
    (0..).zip(dark).chain((60..).zip(bright)).find(|(_, known)| *known == color).map(|(code, _)| code)
}

impl<W: Write> Backend for AnsiBackend<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next = None;
        let mut current = PLAIN_STYLE;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.go_to(x, y);
            }
            // Terminals differ in the width of characters that are not one column wide, so the cursor is set
            // after them.
            next = (cell.symbol().width() == 1).then(|| (x.saturating_add(1), y));
            let wanted = (cell.fg, cell.bg, cell.modifier);
            if wanted != current {
                self.show_as(wanted);
                current = wanted;
            }
            self.add(cell.symbol());
        }
        if current != PLAIN_STYLE {
            self.add(PLAIN);
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.cursor_shown) {
            self.add("\x1b[?25l");
        }
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.cursor_shown, true) {
            self.add("\x1b[?25h");
        }
        Ok(())
    }

    /// Returns the upper left corner: only screens that begin at the cursor need its position.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.go_to(x, y);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.add(match region {
            ClearType::All => "\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        let size = terminal_size(libc::STDOUT_FILENO);
        Ok(size.map_or(USUAL, |(width, height)| Size { width, height }))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.frame).and_then(|()| self.out.flush());
        self.frame.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;

    use super::*;

    fn cell(symbol: &'static str, style: Style) -> Cell {
        let mut cell = Cell::new(symbol);
        cell.set_style(style);
        cell
    }

    #[test]
    fn only_what_changes_is_written() {
        let plain = Style::new();
        let loud = plain.fg(Color::Yellow).add_modifier(Modifier::BOLD);
        let cells =
            [cell("a", plain), cell("漢", loud), cell("b", loud), cell("c", plain.fg(Color::DarkGray))];
        let mut ansi = AnsiBackend::new(Vec::new());
        let places = [(0, 0), (1, 0), (3, 0), (4, 0)];
        ansi.draw(places.iter().zip(&cells).map(|((x, y), cell)| (*x, *y, cell))).unwrap();
        ansi.flush().unwrap();
        let written = String::from_utf8(std::mem::take(&mut ansi.out)).unwrap();
        assert_eq!(written, "\x1b[1;1Ha\x1b[0;1;33m漢\x1b[1;4Hb\x1b[0;90mc\x1b[0m");
        ansi.hide_cursor().unwrap();
        ansi.show_cursor().unwrap();
        ansi.show_cursor().unwrap();
        ansi.set_cursor_position((9, 4)).unwrap();
        ansi.flush().unwrap();
        assert_eq!(String::from_utf8(ansi.out).unwrap(), "\x1b[?25h\x1b[5;10H");
    }

    #[test]
    fn colours_are_those_of_any_terminal() {
        let codes =
            [Color::Black, Color::Gray, Color::DarkGray, Color::White, Color::Reset, Color::Rgb(1, 2, 3)];
        assert_eq!(codes.map(code), [Some(0), Some(7), Some(60), Some(67), None, None]);
    }
}
