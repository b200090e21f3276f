//! Text for people: numbers in human units, escaped names, aligned tables, and the summary of a profile.

pub mod boot;
pub mod by;
pub mod coverage;
pub mod diff;
pub mod exact;
pub mod live;
pub mod rusage;
pub mod simulate;
pub mod stat;
pub mod states;
pub mod summary;
pub mod table;
pub mod tree;

use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::Path;

use text::clean::escaped;

/// Escapes a name of the guest; a blank name gets quotes.
pub fn visible(name: &str) -> Cow<'_, str> {
    if name.trim().is_empty() { Cow::Owned(format!("'{}'", escaped(name))) } else { escaped(name) }
}

/// Style of text: bold if the stream is a terminal and NO_COLOR (no-color.org) is unset or empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    /// No escape sequences.
    Plain,
    /// Bold headings, dim notes.
    Terminal,
}

impl TextStyle {
    /// Returns the style for a stream that is a terminal or not.
    pub fn for_stream(is_terminal: bool) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        if is_terminal && !no_color && !dumb { Self::Terminal } else { Self::Plain }
    }

    /// Makes a heading bold.
    pub fn bold(self, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[1m{text}\x1b[0m"),
        }
    }
}

/// Width and style of a text.
#[derive(Debug, Clone, Copy)]
pub struct PageLayout {
    /// Columns of a line.
    pub width: usize,
    /// Style of headings.
    pub style: TextStyle,
}

impl PageLayout {
    /// Returns the layout for a stream: a terminal has 80 to 160 columns; elsewhere nothing is cut.
    pub fn for_stream(is_terminal: bool) -> Self {
        let width = match is_terminal {
            true => terminal_columns().unwrap_or(summary::WIDTH).clamp(summary::WIDTH, 160),
            false => usize::MAX,
        };
        Self { width, style: TextStyle::for_stream(is_terminal) }
    }

    /// Returns the layout for standard output.
    pub fn stdout() -> Self {
        Self::for_stream(std::io::stdout().is_terminal())
    }

    /// Returns the layout of a text that is as wide in a file as on the usual terminal.
    pub fn for_summary(self) -> Self {
        Self { width: if self.width == usize::MAX { summary::WIDTH } else { self.width }, ..self }
    }
}

/// Returns the columns of the terminal at standard output or standard error.
pub fn terminal_columns() -> Option<usize> {
    let streams = [libc::STDOUT_FILENO, libc::STDERR_FILENO];
    streams.into_iter().find_map(terminal_size).map(|(columns, _)| usize::from(columns))
}

/// Returns the columns and rows of the terminal at a stream, if they are known.
pub fn terminal_size(stream: libc::c_int) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize (ioctl_tty(2)), and `size` outlives the call.
    let done = unsafe { libc::ioctl(stream, libc::TIOCGWINSZ, &raw mut size) } == 0;
    (done && size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Returns the number of rows to show: `-n 0` means all.
pub fn all_for_zero(rows: usize) -> usize {
    if rows == 0 { usize::MAX } else { rows }
}

/// Formats `name [module]`, both escaped.
pub fn with_module(name: &str, module: Option<&str>) -> String {
    match module {
        // Code without a name has the name of its module.
        Some(module) if name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) == Some(module) => {
            escaped(name).into_owned()
        }
        // A module that is not a file has brackets already: `[vdso]`, `[jit]`.
        Some(module) if module.starts_with('[') => format!("{} {}", escaped(name), escaped(module)),
        Some(module) => format!("{} [{}]", escaped(name), escaped(module)),
        None => escaped(name).into_owned(),
    }
}

/// Returns the command that names the user code of a profile by the debug files that the host has installed.
pub fn symbolize_command(profile: &Path) -> String {
    let path = profile.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    let word =
        if path.chars().all(plain) { path } else { Cow::Owned(format!("'{}'", path.replace('\'', r"'\''"))) };
    format!("vprof symbolize {} --debug-dir /usr/lib/debug", escaped(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes() {
        assert_eq!(escaped("kworker/0:1-events"), "kworker/0:1-events");
        assert_eq!(escaped("a\x1b[2Jb\n\u{9b}"), "a\\x1b[2Jb\\x0a\\x9b");
        assert_eq!(escaped("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(escaped("\u{61c}x"), "\\u{61c}x");
        assert_eq!(escaped("größe"), "größe");
    }

    #[test]
    fn names_without_ink_are_quoted() {
        assert_eq!((visible("sh"), visible(""), visible(" ")), ("sh".into(), "''".into(), "' '".into()));
    }

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!(TextStyle::Plain.bold("x"), "x");
        assert_eq!(TextStyle::for_stream(false), TextStyle::Plain);
    }
}
