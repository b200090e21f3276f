//! Connection of a running guest with its watcher: a person at a terminal, or the outer `vprof`.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use control::{Phase, SessionChange};

/// Numbers of bytes of a command's streams that their readers have taken, by
/// [`OutputStream`](crate::protocol::OutputStream).
pub type BytesRead = [u64; 2];

/// The guest's side of the connection.
#[derive(Debug)]
pub struct Link {
    /// Becomes true when the run is to end.
    pub stop: watch::Receiver<bool>,
    /// Bytes for the guest's console.
    pub input: mpsc::Receiver<Vec<u8>>,
    /// Changes to make while it runs.
    pub control: mpsc::Receiver<SessionChange>,
    /// Takes the guest's console output.
    pub console: ConsoleWriter,
    /// Take the output of a command that does not go to the console, by
    /// [`OutputStream`](crate::protocol::OutputStream).
    pub output: [ConsoleWriter; 2],
    /// Progress of the readers of that output.
    pub read: watch::Receiver<BytesRead>,
    /// Takes news of the run.
    pub phase: watch::Sender<Phase>,
    /// Takes sentences for a person, at once.
    pub notes: mpsc::UnboundedSender<String>,
}

/// The watcher's side of the connection.
#[derive(Debug)]
pub struct Watcher {
    /// Ends the run.
    pub stop: watch::Sender<bool>,
    /// Bytes for the guest's console.
    pub input: mpsc::Sender<Vec<u8>>,
    /// Changes something.
    pub control: mpsc::Sender<SessionChange>,
    /// Gives the guest's console output.
    pub console: ConsoleReader,
    /// Give the output of a command that does not go to the console, by
    /// [`OutputStream`](crate::protocol::OutputStream).
    pub output: [ConsoleReader; 2],
    /// Reports progress of the readers of that output.
    pub read: watch::Sender<BytesRead>,
    /// News of the run.
    pub phase: watch::Receiver<Phase>,
    /// Sentences for a person.
    pub notes: mpsc::UnboundedReceiver<String>,
}

/// Makes both sides.
pub fn link() -> (Link, Watcher) {
    let (stop, stop_receiver) = watch::channel(false);
    // A few keystrokes or pasted blocks; a faster typist waits.
    let (input, input_receiver) = mpsc::channel(8);
    let (phase, phase_receiver) = watch::channel(Phase::Preparing("starting".to_owned()));
    let (control, control_receiver) = mpsc::channel(64);
    // A few in a run.
    let (notes, notes_receiver) = mpsc::unbounded_channel();
    let (console, console_reader) = console_pipe();
    let (output, output_reader) = console_pipe();
    let (errors, errors_reader) = console_pipe();
    let (read, read_receiver) = watch::channel([0; 2]);
    (
        Link {
            stop: stop_receiver,
            input: input_receiver,
            control: control_receiver,
            console,
            output: [output, errors],
            read: read_receiver,
            phase,
            notes,
        },
        Watcher {
            stop,
            input,
            control,
            console: console_reader,
            output: [output_reader, errors_reader],
            read,
            phase: phase_receiver,
            notes: notes_receiver,
        },
    )
}

/// Maximum size of console output that waits to be written, bytes. Output beyond it is dropped and counted: a
/// terminal that is stopped must not stop the guest's clock.
const CONSOLE_BUFFER: usize = 4 << 20;
/// Size of a piece that is passed on at once, bytes.
const CONSOLE_PIECE: usize = 256 << 10;
/// Part of a command's output that the guest may write before its reader has taken it, bytes; beyond it the
/// guest waits. What the guest has in its queue at its end, up to 2 MiB, has room besides.
const OUTPUT_WINDOW: usize = 1 << 20;
/// Size of the console's end that is kept for messages, bytes.
const CONSOLE_TAIL: usize = 4 << 10;

#[derive(Debug, Default)]
struct ConsoleState {
    waiting: VecDeque<u8>,
    tail: VecDeque<u8>,
    /// All bytes that were accepted.
    written: u64,
    dropped: u64,
    /// Number of writers.
    writers: usize,
}

#[derive(Debug, Default)]
struct ConsoleShared {
    state: Mutex<ConsoleState>,
    changed: Condvar,
}

impl ConsoleShared {
    fn lock(&self) -> MutexGuard<'_, ConsoleState> {
        // Every change below leaves the state whole, also where it panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes console output from vCPU threads; never waits. The pipe ends with its last writer.
#[derive(Debug)]
pub struct ConsoleWriter(Arc<ConsoleShared>);

impl ConsoleWriter {
    /// Returns the number of bytes for which there is room, if the reader at the other end has taken `read`
    /// bytes so far. `at_end` includes what is kept for the end.
    pub(crate) fn room(&self, read: u64, at_end: bool) -> usize {
        let size = if at_end { CONSOLE_BUFFER } else { OUTPUT_WINDOW };
        let ahead = self.0.lock().written.saturating_sub(read);
        size.saturating_sub(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    /// Returns the number of bytes that were accepted so far.
    pub(crate) fn written(&self) -> u64 {
        self.0.lock().written
    }

    /// Counts bytes that had no room.
    pub(crate) fn lose(&self, bytes: u64) {
        self.0.lock().dropped += bytes;
    }
}

impl Clone for ConsoleWriter {
    fn clone(&self) -> Self {
        self.0.lock().writers += 1;
        Self(Arc::clone(&self.0))
    }
}

/// Gives console output to one thread.
#[derive(Debug)]
pub struct ConsoleReader(Arc<ConsoleShared>);

fn console_pipe() -> (ConsoleWriter, ConsoleReader) {
    let shared = Arc::new(ConsoleShared::default());
    shared.lock().writers = 1;
    (ConsoleWriter(Arc::clone(&shared)), ConsoleReader(shared))
}

impl Write for ConsoleWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        let room = CONSOLE_BUFFER.saturating_sub(state.waiting.len());
        let taken = &bytes[..bytes.len().min(room)];
        state.waiting.extend(taken);
        state.written += taken.len() as u64;
        state.dropped += (bytes.len() - taken.len()) as u64;
        state.tail.extend(&bytes[bytes.len().saturating_sub(CONSOLE_TAIL)..]);
        let excess = state.tail.len().saturating_sub(CONSOLE_TAIL);
        state.tail.drain(..excess);
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ConsoleWriter {
    fn drop(&mut self) {
        self.0.lock().writers -= 1;
        self.0.changed.notify_all();
    }
}

/// A thread that carries console output to its place.
#[derive(Debug)]
pub struct ConsolePump {
    shared: Arc<ConsoleShared>,
    thread: Option<JoinHandle<()>>,
}

impl ConsoleReader {
    /// Starts a thread that gives all output to `write`, in order.
    pub fn pump(self, mut write: impl FnMut(&[u8]) + Send + 'static) -> io::Result<ConsolePump> {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("vprof-console".to_owned()).spawn(move || {
            while let Some(bytes) = self.next() {
                write(&bytes);
            }
        })?;
        Ok(ConsolePump { shared, thread: Some(thread) })
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        while state.waiting.is_empty() && state.writers > 0 {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let piece = state.waiting.len().min(CONSOLE_PIECE);
        (piece > 0).then(|| state.waiting.drain(..piece).collect())
    }
}

impl ConsolePump {
    /// Returns true once all output is written.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until all output is written, at most `limit`: a terminal that is stopped can't delay the end.
    /// Returns the number of bytes that were dropped.
    pub fn finish(mut self, limit: Duration) -> u64 {
        let deadline = Instant::now() + limit;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                // A panic in it was reported when it happened.
                let _ = thread.join();
            }
        }
        let state = self.shared.lock();
        state.dropped + state.waiting.len() as u64
    }

    /// The last lines of output, at most `count`, as text.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let state = self.shared.lock();
        let bytes: Vec<u8> = state.tail.iter().copied().collect();
        drop(state);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
        lines[lines.len().saturating_sub(count)..]
            .iter()
            .map(|l| display::clean::escaped(l).into_owned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_arrives_in_order_and_whole() {
        let (mut writer, reader) = console_pipe();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let pump = reader.pump(move |bytes| sink.lock().unwrap().extend_from_slice(bytes)).unwrap();
        for i in 0..1000_u32 {
            writeln!(writer, "line {i}").unwrap();
        }
        drop(writer);
        assert_eq!(pump.last_lines(2), ["line 998", "line 999"]);
        assert_eq!(pump.finish(Duration::from_secs(10)), 0);
        let expected: String = (0..1000).map(|i| format!("line {i}\n")).collect();
        assert_eq!(String::from_utf8(seen.lock().unwrap().clone()).unwrap(), expected);
    }

    #[test]
    fn a_reader_that_stands_still_neither_blocks_nor_grows() {
        let (mut writer, reader) = console_pipe();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..6 {
            assert_eq!(writer.write(&block).unwrap(), block.len());
        }
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let pump = reader
            .pump(move |_| {
                let _ = wait.recv();
            })
            .unwrap();
        drop(writer);
        let dropped = pump.finish(Duration::from_millis(50));
        assert!(dropped >= 2 << 20, "{dropped}");
        drop(go);
    }
}
