//! A program in a terminal, as a user sees it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};

use crate::eventually;

/// Time for the last output of a program that has ended to be read.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Time for the program to draw, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program in its own terminal; killed when dropped.
#[allow(missing_debug_implementations, reason = "a screen has none")]
pub struct Terminal {
    child: Child,
    keys: File,
    /// Held open, so that the terminal outlives the program.
    slave: OwnedFd,
    before: Termios,
    output: Arc<Mutex<TerminalOutput>>,
}

/// Everything that was written to the terminal, and the screen that it makes.
struct TerminalOutput {
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts a program in a terminal of this size.
    ///
    /// # Panics
    /// There is no terminal, or the program does not start.
    pub fn start(mut command: Command, rows: u16, cols: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let before = tcgetattr(&pty.slave).expect("a terminal");
        let slave = || pty.slave.try_clone().expect("a descriptor");
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        if command.get_envs().all(|(name, _)| name != "LC_ALL") {
            command.env("LC_ALL", "C.UTF-8");
        }
        command.stdin(slave()).stdout(slave()).stderr(slave());
        // SAFETY: setsid and ioctl are async-signal-safe; the child makes its standard input its terminal.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let screen = vt100::Parser::new(rows, cols, 0);
        let output = Arc::new(Mutex::new(TerminalOutput { bytes: Vec::new(), screen }));
        let keys = File::from(pty.master);
        let mut master = keys.try_clone().expect("a descriptor");
        let shared = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with EIO when no process has the other end open.
            while let Ok(count @ 1..) = master.read(&mut bytes) {
                let mut output = shared.lock().unwrap_or_else(PoisonError::into_inner);
                output.bytes.extend_from_slice(&bytes[..count]);
                output.screen.process(&bytes[..count]);
            }
        });
        Self { child: command.spawn().expect("the program starts"), keys, slave: pty.slave, before, output }
    }

    fn output(&self) -> MutexGuard<'_, TerminalOutput> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the screen, one line for each row.
    pub fn text(&self) -> String {
        let output = self.output();
        let screen = output.screen.screen();
        screen.rows(0, screen.size().1).fold(String::new(), |mut text, row| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{row}");
            text
        })
    }

    /// Returns the screen as the content of a `pre` of HTML, with its colours and weights.
    pub fn html(&self) -> String {
        html(self.output().screen.screen())
    }

    /// Returns everything written so far, control sequences included.
    pub fn transcript(&self) -> String {
        String::from_utf8_lossy(&self.output().bytes).into_owned()
    }

    /// True if keys reach the program unchanged and without an echo.
    ///
    /// # Panics
    /// The terminal is gone.
    pub fn is_raw(&self) -> bool {
        let flags = tcgetattr(&self.slave).expect("a terminal").local_flags;
        !flags.intersects(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG)
    }

    /// Waits until the screen is as wanted, and returns its text.
    ///
    /// # Panics
    /// The screen is not as wanted within half a minute, or the program has ended.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut ended_at = None;
        eventually(&format!("{what} on the screen"), PATIENCE, || {
            let ended = self.child.try_wait().expect("our child");
            let text = self.text();
            if wanted(&text) {
                return Some(text);
            }
            // What it wrote last may not have been read yet.
            let is_late =
                ended.is_some() && ended_at.get_or_insert_with(Instant::now).elapsed() > LAST_OUTPUT;
            assert!(!is_late, "no {what} ({ended:?}) on:\n{text}");
            None
        })
    }

    /// Presses keys.
    ///
    /// # Panics
    /// The terminal is gone.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits for the program's end, and returns its status and everything that it wrote. Asserts that it
    /// leaves the terminal's modes as they were, and the first screen shown.
    ///
    /// # Panics
    /// The modes or the screen differ, or the program does not end.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = eventually("end of the program", PATIENCE, || self.child.try_wait().expect("our child"));
        assert!(
            tcgetattr(&self.slave).expect("a terminal") == self.before,
            "the terminal's modes are changed"
        );
        // The reader has everything when it has what is written last.
        let mark = "\u{1b}[0m[the program has ended]";
        let mut slave = File::from(self.slave.try_clone().expect("a descriptor"));
        slave.write_all(mark.as_bytes()).expect("the terminal takes output");
        eventually("the last output", PATIENCE, || self.transcript().ends_with(mark).then_some(()));
        assert!(!self.output().screen.screen().alternate_screen(), "the alternate screen is left on");
        let mut transcript = self.transcript();
        transcript.truncate(transcript.len() - mark.len());
        (status, transcript)
    }
}

/// The 16 colours of a terminal, in their order, on a dark background.
const PALETTE: [&str; 16] = [
    "#16181d", "#e06c75", "#8cc265", "#d5a55a", "#5ba4e6", "#c678dd", "#42b3c2", "#d5d8de", "#7a8190",
    "#ff7b86", "#a5e075", "#f0c674", "#7cc0ff", "#de9bf0", "#5fd0de", "#ffffff",
];

fn html(screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    let mut html = String::new();
    for row in 0..rows {
        let mut style = String::new();
        for column in 0..columns {
            let Some(cell) = screen.cell(row, column).filter(|cell| !cell.is_wide_continuation()) else {
                continue;
            };
            let own = style_of(cell);
            if own != style {
                html.push_str(if style.is_empty() { "" } else { "</span>" });
                if !own.is_empty() {
                    html.push_str("<span style=\"");
                    html.push_str(&own);
                    html.push_str("\">");
                }
                style = own;
            }
            match cell.contents() {
                "" => html.push(' '),
                "&" => html.push_str("&amp;"),
                "<" => html.push_str("&lt;"),
                text => html.push_str(text),
            }
        }
        html.push_str(if style.is_empty() { "\n" } else { "</span>\n" });
    }
    html
}

/// Returns the declarations of CSS for a cell; none for plain text.
fn style_of(cell: &vt100::Cell) -> String {
    let (mut text, mut background) = (colour(cell.fgcolor()), colour(cell.bgcolor()));
    if cell.inverse() {
        let plain = |index: usize| PALETTE[index].to_owned();
        (text, background) =
            (Some(background.unwrap_or_else(|| plain(0))), Some(text.unwrap_or_else(|| plain(7))));
    }
    let mut style = String::new();
    for (property, value) in [("color", text), ("background", background)] {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(style, "{property}:{value};");
        }
    }
    for (is_set, declaration) in [
        (cell.bold(), "font-weight:bold;"),
        (cell.dim(), "opacity:.65;"),
        (cell.underline(), "text-decoration:underline;"),
    ] {
        style.push_str(if is_set { declaration } else { "" });
    }
    style
}

/// Returns a colour of CSS; `None` for the default, and for indices outside of [`PALETTE`].
fn colour(colour: vt100::Color) -> Option<String> {
    match colour {
        vt100::Color::Default => None,
        vt100::Color::Idx(index) => PALETTE.get(usize::from(index)).map(|name| (*name).to_owned()),
        vt100::Color::Rgb(red, green, blue) => Some(format!("#{red:02x}{green:02x}{blue:02x}")),
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both fail only where the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_arrive_and_output_is_shown() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read line; echo got $line; exit 3"]);
        let mut terminal = Terminal::start(command, 24, 80);
        terminal.until("prompt", |text| text.starts_with("ready"));
        assert!(!terminal.is_raw());
        terminal.press("a key\n");
        let (status, transcript) = terminal.end();
        assert_eq!(status.code(), Some(3));
        assert!(transcript.contains("got a key\r\n"), "{transcript:?}");
    }

    #[test]
    fn a_screen_as_html_has_its_colours_and_no_markup_of_the_program() {
        let mut parser = vt100::Parser::new(2, 12, 0);
        parser.process(b"a\x1b[1;31mb<\x1b[0m&\x1b[7mc");
        let expected = "a<span style=\"color:#e06c75;font-weight:bold;\">b&lt;</span>&amp;\
                        <span style=\"color:#16181d;background:#d5d8de;\">c</span>       \n            \n";
        assert_eq!(html(parser.screen()), expected);
    }
}
