//! Output of QEMU and of the inner host's console, kept for error messages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::task::JoinSet;

/// Size of the kept output, bytes.
const TAIL: usize = 4 << 10;
/// Number of lines that an error shows.
const LINES: usize = 8;
/// Time limit for reading the last of the log.
const LIMIT: Duration = Duration::from_millis(500);

/// The end of QEMU's output.
#[derive(Debug)]
pub struct Log {
    tail: Arc<Mutex<Vec<u8>>>,
    readers: JoinSet<()>,
}

impl Log {
    /// Reads both streams of QEMU from now on.
    pub fn keep(child: &mut Child) -> Self {
        let mut log = Self { tail: Arc::default(), readers: JoinSet::new() };
        if let Some(stdout) = child.stdout.take() {
            log.readers.spawn(read(stdout, Arc::clone(&log.tail)));
        }
        if let Some(stderr) = child.stderr.take() {
            log.readers.spawn(read(stderr, Arc::clone(&log.tail)));
        }
        log
    }

    /// Reads streams of a process from now on.
    pub(crate) fn follow(streams: impl IntoIterator<Item = impl AsyncRead + Unpin + Send + 'static>) -> Self {
        let mut log = Self { tail: Arc::default(), readers: JoinSet::new() };
        for stream in streams {
            log.readers.spawn(read(stream, Arc::clone(&log.tail)));
        }
        log
    }

    /// The last lines of a QEMU that has ended.
    pub async fn last_words(&mut self) -> String {
        // Another process may hold the pipes open.
        let all = async { while self.readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LIMIT, all).await;
        last_lines(&self.tail.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn read(mut from: impl AsyncRead + Unpin, tail: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&buffer[..count]);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

/// The last lines that say something.
fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    // SeaBIOS clears the screen and prints its name, which explains nothing.
    let says =
        |line: &&str| !line.is_empty() && !line.contains("SeaBIOS") && !line.starts_with("Booting from");
    let lines: Vec<&str> = text.lines().map(without_escapes).filter(says).collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Returns the line without the terminal sequences at its start, which SeaBIOS writes before the kernel's
/// first line.
fn without_escapes(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some(sequence) = rest.strip_prefix('\x1b') {
        // ESC c, or ESC [ parameters letter (ECMA-48, 5.4).
        let end = match sequence.strip_prefix('[') {
            Some(parameters) => parameters.find(|c: char| c.is_ascii_alphabetic()).map(|at| at + 2),
            None => Some(1),
        };
        match end.and_then(|end| sequence.get(end..)) {
            Some(behind) => rest = behind.trim_start(),
            None => break,
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_last_lines() {
        let log: String = (0..20).map(|i| format!("line {i}\r\n\r\n")).collect();
        assert!(last_lines(log.as_bytes()).starts_with("line 12\nline 13"));
        assert_eq!(last_lines(b""), "");
    }

    #[test]
    fn the_firmwares_greeting_is_left_out() {
        let log = "\x1bc\x1b[?7l\x1b[2J\x1b[0mSeaBIOS (version 1.16.2)\r\nBooting from ROM...\r\n\
                   \x1bc\x1b[?7l\x1b[2Jvprof: can't mount /proc\r\n\x1b";
        assert_eq!(last_lines(log.as_bytes()), "vprof: can't mount /proc\n\x1b");
    }
}
