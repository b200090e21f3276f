//! A text for people, through a pager where it is longer than the terminal, as `git log` and `journalctl` do.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::errors::Error;
use crate::output::write_text;
use crate::render::terminal_size;

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
    let fits = text.lines().count() < rows;
    if fits || DISABLED.get().is_some() || !std::io::stdout().is_terminal() {
        return write_text(text);
    }
    let variable = |name: &str| std::env::var(name).ok();
    match pager(variable).and_then(start) {
        Some(mut pager) => {
            feed(&mut pager, text);
            Ok(())
        }
        None => write_text(text),
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
fn feed(pager: &mut Child, text: &str) {
    // Ctrl-C is a key of the pager, which must not be left alone with the terminal.
    // SAFETY: ignoring a signal installs no handler.
    let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    if let Some(mut input) = pager.stdin.take() {
        // The user may leave before the text's end.
        let _ = input.write_all(text.as_bytes());
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
