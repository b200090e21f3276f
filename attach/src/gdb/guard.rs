//! Guard that resumes a machine whose profiler was killed.
//!
//! A stub keeps its machine stopped if the connection ends within a stop, as it does when a process is
//! killed. A second process also holds the connection, and detects the end of the first one by a pipe:
//!
//! ```text
//! vprof ── pipe: bytes for the stub, then the state ──▶ guard ── at the end, if RESCUE is set ──▶ stub
//! ```

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::rsp::client::{MachineState, StubClient};

/// Maximum number of bytes for the stub; their number comes first.
const MOST: usize = 255;
/// State in which the guard has to resume the machine at the end.
const RESCUE: u8 = b'r';
/// State in which the guard does nothing at the end.
const LEAVE: u8 = b'l';

/// Process of the guard, which runs as long as this lives.
#[derive(Debug)]
pub(crate) struct ResumeGuard {
    child: Child,
    pipe: Option<ChildStdin>,
    /// State that was sent last.
    last: u8,
}

impl ResumeGuard {
    /// Starts `program`, which has to call [`keep_guard`].
    pub(crate) fn start(mut program: Command, client: &StubClient) -> io::Result<Self> {
        let connection = client.handle()?;
        // Its own process group: Ctrl-C is for vprof alone.
        program.stdin(Stdio::piped()).stdout(connection).stderr(Stdio::null()).process_group(0);
        let mut child = program.spawn()?;
        let mut pipe = child.stdin.take();
        let words = client.detach_bytes();
        let mut bytes = vec![u8::try_from(words.len()).unwrap_or(0)];
        bytes.extend(words);
        bytes.push(RESCUE);
        if let Some(pipe) = &mut pipe {
            pipe.write_all(&bytes)?;
        }
        Ok(Self { child, pipe, last: RESCUE })
    }

    /// Sends the state of the machine, if the guard's task has changed.
    pub(crate) fn set_state(&mut self, state: MachineState) {
        self.send(if state == MachineState::Paused { LEAVE } else { RESCUE });
    }

    fn send(&mut self, what: u8) {
        if std::mem::replace(&mut self.last, what) != what
            && let Some(pipe) = &mut self.pipe
        {
            // A guard that has ended cannot receive it.
            let _gone = pipe.write_all(&[what]);
        }
    }
}

impl ResumeGuard {
    /// Ends the guard, which has nothing to do any longer.
    pub(crate) fn dismiss(mut self) {
        self.send(LEAVE);
    }
}

impl Drop for ResumeGuard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // The guard ends at the end of the pipe.
        let _gone = self.child.wait();
    }
}

/// Runs the guard: reads standard input to its end, and writes the received bytes to standard output, unless
/// the last state requires nothing.
///
/// # Errors
/// The input cannot be read, or the output cannot be written.
pub fn keep_guard(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut length = [0];
    input.read_exact(&mut length)?;
    let mut words = [0; MOST];
    let words = words.get_mut(..usize::from(length[0])).unwrap_or_default();
    input.read_exact(words)?;
    let (mut last, mut some) = (LEAVE, [0; 64]);
    loop {
        match input.read(&mut some) {
            Ok(0) => break,
            Ok(count) => last = some.get(..count).and_then(<[u8]>::last).copied().unwrap_or(last),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if last == RESCUE { output.write_all(words).and_then(|()| output.flush()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(input: &[u8]) -> Option<Vec<u8>> {
        let mut output = Vec::new();
        keep_guard(&mut &input[..], &mut output).ok().map(|()| output)
    }

    #[test]
    fn the_last_word_counts() {
        assert_eq!(guarded(b"\x02$Dr").as_deref(), Some(&b"$D"[..]));
        assert_eq!(guarded(b"\x02$Drlr").as_deref(), Some(&b"$D"[..]));
        assert_eq!(guarded(b"\x02$Drl").as_deref(), Some(&b""[..]));
        assert_eq!(guarded(b"\x02$D").as_deref(), Some(&b""[..]), "killed before it began");
        assert_eq!(guarded(b"\x02$"), None);
    }
}
