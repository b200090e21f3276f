//! A text for people, through a pager where it is longer than the terminal, as `git log` and `journalctl` do.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::errors::Error;
use crate::output::{stdout_error, write_text};
use render::terminal_size;

/// Variables with the pager's command, in their order; empty or `cat` for no pager.
const VARIABLES: [&str; 2] = ["VPROF_PAGER", "PAGER"];
/// Pager where no variable names one.
const PAGER: &str = "less";
/// Options of `less` where the user has none: end if the text fits, show colours, leave the text there.
const LESS: &str = "FRX";

static DISABLED: OnceLock<()> = OnceLock::new();

/// Has all texts printed at once.
pub fn disable() {
    let _ = DISABLED.set(());
}

/// Prints a text, page by page if standard output is a terminal with fewer rows.
pub fn page(text: &str) -> Result<(), Error> {
    let rows = terminal_size(libc::STDOUT_FILENO).map_or(usize::MAX, |(_, rows)| rows.into());
    if text.lines().count() < rows {
        write_text(text)
    } else {
        page_long(|out| out.write_all(text.as_bytes()))
    }
}

/// Prints a text that may be too long for memory, page by page if standard output is a terminal.
pub fn page_long(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let variable = |name: &str| std::env::var(name).ok();
    let is_paged = DISABLED.get().is_none() && io::stdout().is_terminal();
    let command = if is_paged { pager(variable) } else { None };
    match command.and_then(start) {
        Some(mut pager) => {
            feed(&mut pager, write);
            Ok(())
        }
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out).and_then(|()| out.flush()).map_err(stdout_error)
        }
    }
}

/// Returns the pager's command; `None` for none.
fn pager(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    if variable("TERM").is_some_and(|term| term == "dumb") {
        return None;
    }
    let named = VARIABLES.iter().find_map(|name| variable(name));
    let command = named.unwrap_or_else(|| PAGER.to_owned());
    (!matches!(command.trim(), "" | "cat")).then_some(command)
}

/// Starts the pager by a shell, as its command may have options. Returns `None` if it cannot be started.
fn start(command: String) -> Option<Child> {
    let mut shell = Command::new("sh");
    // A pager that does not exist is not a reason to print nothing.
    shell.args(["-c", "command -v \"${1%% *}\" > /dev/null || exec cat; eval \"exec $1\"", "sh", &command]);
    if std::env::var_os("LESS").is_none() {
        shell.env("LESS", LESS);
    }
    shell.stdin(Stdio::piped()).spawn().ok()
}

/// Writes the text, and waits until the user has left the pager.
fn feed(pager: &mut Child, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    // Ctrl-C is a key of the pager, which must not be left alone with the terminal.
    // SAFETY: ignoring a signal installs no handler.
    let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    if let Some(input) = pager.stdin.take() {
        let mut input = BufWriter::new(input);
        // The user may leave before the text's end.
        let _ = write(&mut input).and_then(|()| input.flush());
    }
    // Without the pager's state there is nothing to do, either.
    let _ = pager.wait();
    // SAFETY: the handler is the one that this process had before.
    unsafe { libc::signal(libc::SIGINT, before) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_chooses_the_pager() {
        let with = |set: &[(&str, &str)]| {
            pager(|name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(with(&[]).as_deref(), Some("less"));
        assert_eq!(with(&[("PAGER", "more -s")]).as_deref(), Some("more -s"));
        assert_eq!(with(&[("PAGER", "more"), ("VPROF_PAGER", "less -S")]).as_deref(), Some("less -S"));
        assert_eq!(with(&[("PAGER", "more"), ("VPROF_PAGER", "")]), None);
        assert_eq!(with(&[("PAGER", "cat")]), None);
        assert_eq!(with(&[("TERM", "dumb")]), None);
    }
}
