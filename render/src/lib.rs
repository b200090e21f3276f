//! A profile as text for people: aligned tables that fit the terminal, numbers in human units, escaped names.
//!
//! Each view of a report has a module with a function that takes what `profile` computed and a
//! [`PageLayout`], and returns the text. For example, [`tree::render`] turns a call tree into indented lines.
//! Nothing here prints, starts a process or opens a guest, because the same text goes to a terminal, a pager
//! and a file.

pub mod annotate;
pub mod boot;
pub mod boot_test;
pub mod by;
pub mod diff;
pub mod exact;
pub mod host;
pub mod live;
pub mod memory;
pub mod paragraph;
pub mod rusage;
pub mod stat;
pub mod states;
pub mod summary;
pub mod table;
pub mod timehist;
pub mod tree;
pub mod trips;

use std::borrow::Cow;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;

use display::clean::escaped;

/// Escapes a name of the guest; a blank name gets quotes.
pub fn visible(name: &str) -> Cow<'_, str> {
    if name.trim().is_empty() { Cow::Owned(format!("'{}'", escaped(name))) } else { escaped(name) }
}

/// Use of escape sequences in text, as requested on the command line (`--color`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorChoice {
    /// On a terminal.
    #[default]
    Auto,
    /// Also in a pipe or a file.
    Always,
    /// Nowhere.
    Never,
}

static COLOR_CHOICE: OnceLock<ColorChoice> = OnceLock::new();

impl ColorChoice {
    /// Makes this the choice of the whole program. The first call counts.
    pub fn set(self) {
        let _ = COLOR_CHOICE.set(self);
    }
}

/// The terminal's and the pipe's characters are ASCII alone.
static ASCII: OnceLock<()> = OnceLock::new();

/// Has all tables use ASCII from now on, where the locale's character set is not UTF-8.
pub fn use_ascii() {
    let _ = ASCII.set(());
}

/// True if tables may use characters beyond ASCII.
pub fn has_unicode() -> bool {
    ASCII.get().is_none()
}

/// True if the locale's character set is UTF-8 (POSIX: LC_ALL, LC_CTYPE and LANG, the first that is set).
pub fn is_utf8_locale(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default().to_ascii_lowercase();
    ["utf-8", "utf8"].iter().any(|name| locale.contains(name))
}

/// Style of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    /// No escape sequences.
    Plain,
    /// Bold headings, colours for large shares.
    Terminal,
}

/// Share from which a row is hot, and one from which it is warm: the limits of `perf report`.
const HOT: f64 = 0.05;
const WARM: f64 = 0.005;

impl TextStyle {
    /// Returns the style for a stream that is a terminal or not: as `--color` requests, else by NO_COLOR
    /// (no-color.org), CLICOLOR_FORCE (bixense.com/clicolors) and TERM, if set and not empty.
    pub fn for_stream(is_terminal: bool) -> Self {
        Self::chosen(COLOR_CHOICE.get().copied().unwrap_or_default(), is_terminal, |name| {
            std::env::var(name).ok().filter(|value| !value.is_empty())
        })
    }

    fn chosen(choice: ColorChoice, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let wanted = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto if variable("NO_COLOR").is_some() => false,
            ColorChoice::Auto if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            ColorChoice::Auto => is_terminal && variable("TERM").is_none_or(|term| term != "dumb"),
        };
        if wanted { Self::Terminal } else { Self::Plain }
    }

    /// Makes a heading bold.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// Colours a text by a share: red if it is large, green if it is noticeable.
    pub fn hot(self, text: &str, share: f64) -> String {
        match share {
            HOT.. => self.with("1;31", text),
            WARM.. => self.with("32", text),
            _ => text.to_owned(),
        }
    }

    /// Sets graphic renditions (ECMA-48: SGR).
    fn with(self, renditions: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[{renditions}m{text}\x1b[0m"),
        }
    }
}

/// Width and style of a text.
#[derive(Debug, Clone, Copy)]
pub struct PageLayout {
    /// Columns of a line; `usize::MAX` where no table is cut.
    pub width: usize,
    /// Style of headings.
    pub style: TextStyle,
}

/// Bounds of the width of a page on a terminal, columns. Longer lines are hard to read.
const NARROWEST: usize = 40;
const WIDEST: usize = 160;

impl PageLayout {
    /// Returns the layout for a stream: a terminal has 40 to 160 columns; elsewhere nothing is cut.
    pub fn for_stream(is_terminal: bool) -> Self {
        let width = match is_terminal {
            true => terminal_columns().unwrap_or(paragraph::WIDTH).clamp(NARROWEST, WIDEST),
            false => usize::MAX,
        };
        Self { width, style: TextStyle::for_stream(is_terminal) }
    }

    /// Returns the layout for standard output.
    pub fn stdout() -> Self {
        Self::for_stream(std::io::stdout().is_terminal())
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

/// Directory of the debug files that the packages of a distribution install.
const INSTALLED: &str = "/usr/lib/debug";

/// True if the debug file of this build is installed on the host. The build-id is the guest's.
fn is_installed(build_id: &str) -> bool {
    let is_hex = build_id.len() > 2 && build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex && {
        let (first, rest) = build_id.split_at(2);
        Path::new(INSTALLED).join(".build-id").join(first).join(format!("{rest}.debug")).exists()
    }
}

/// Returns the clause on what would name the user code of a file: only what would help.
pub fn naming_advice(profile: &Path, build_id: &str) -> String {
    let id = escaped(build_id);
    if is_installed(build_id) {
        return format!("`{}` can name it by the debug file of build-id {id}", symbolize_command(profile));
    }
    format!(
        "the debug file of build-id {id} would name it: install it on this machine, or name servers that have it in \
         DEBUGINFOD_URLS (`vprof docs symbols`)"
    )
}

/// Returns the command that names the user code of a profile by the debug files that the host has installed.
fn symbolize_command(profile: &Path) -> String {
    let path = profile.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    let word =
        if path.chars().all(plain) { path } else { Cow::Owned(format!("'{}'", path.replace('\'', r"'\''"))) };
    format!("vprof symbolize {} --debug-dir {INSTALLED}", escaped(&word))
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
    fn the_first_variable_that_is_set_has_the_character_set() {
        let is_utf8 = |set: &[(&str, &str)]| {
            is_utf8_locale(|name| {
                set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(is_utf8(&[("LANG", "en_US.UTF-8")]) && is_utf8(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(!is_utf8(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]) && !is_utf8(&[]));
    }

    #[test]
    fn a_debug_file_is_looked_for_by_a_build_id_only() {
        for id in ["", "ab", "../../etc/passwd", "ab/../cd", "0123456789abcdef0123456789abcdef01234567"] {
            assert!(!is_installed(id), "{id}");
        }
        let advice = naming_advice(Path::new("p.vprof"), "0123\x1b[2J");
        assert!(
            advice.contains("build-id 0123\\x1b[2J would name it") && advice.contains("DEBUGINFOD_URLS"),
            "{advice}"
        );
    }

    #[test]
    fn names_without_ink_are_quoted() {
        assert_eq!((visible("sh"), visible(""), visible(" ")), ("sh".into(), "''".into(), "' '".into()));
    }

    #[test]
    fn plain_style_adds_nothing() {
        assert_eq!((TextStyle::Plain.bold("x"), TextStyle::Plain.hot("x", 1.0)), ("x".into(), "x".into()));
        assert_eq!(TextStyle::Terminal.bold("x"), "\x1b[1mx\x1b[0m");
    }

    #[test]
    fn the_command_line_then_the_environment_then_the_stream_choose_the_style() {
        use ColorChoice::{Always, Auto, Never};
        let is_styled = |choice, is_terminal, set: &[(&str, &str)]| {
            let variable =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            TextStyle::chosen(choice, is_terminal, variable) == TextStyle::Terminal
        };
        assert!(is_styled(Auto, true, &[]) && !is_styled(Auto, false, &[]));
        assert!(is_styled(Always, false, &[("NO_COLOR", "1")]) && !is_styled(Never, true, &[]));
        assert!(!is_styled(Auto, true, &[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]));
        assert!(is_styled(Auto, false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!is_styled(Auto, false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!is_styled(Auto, true, &[("TERM", "dumb")]) && is_styled(Auto, true, &[("TERM", "vt100")]));
    }
}
