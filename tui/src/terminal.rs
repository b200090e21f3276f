//! The terminal as the guest's console: raw mode that is left on every exit path, and keys that go to the
//! guest.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{self, InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use tokio::sync::{mpsc, watch};

/// Key that ends the run: Ctrl-], as in telnet and virsh.
pub const ESCAPE: u8 = 0x1d;

/// Settings to restore while the terminal is raw. A static, so that the panic hook finds them.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);

/// Settings to restore.
struct SavedTerminal {
    settings: Termios,
    /// Text to write to the terminal first.
    leave: &'static str,
}

/// Returns true if standard input and output are terminals and this process may read.
pub fn is_interactive() -> bool {
    let stdin = io::stdin();
    stdin.is_terminal() && io::stdout().is_terminal() && is_foreground()
}

/// Returns true for a foreground process. A background process that reads its terminal is stopped by it.
pub fn is_foreground() -> bool {
    nix::unistd::tcgetpgrp(io::stdin()).is_ok_and(|group| group == nix::unistd::getpgrp())
}

/// Guard of raw mode; dropping it restores the terminal.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Gives all keys to the guest. Output processing stays on, so that this program's own lines need no
    /// carriage returns.
    pub fn enter() -> io::Result<Self> {
        Self::enter_screen("", "")
    }

    /// Enters raw mode, and writes `enter` to the terminal; `leave` is written when the terminal is
    /// restored.
    pub fn enter_screen(enter: &str, leave: &'static str) -> io::Result<Self> {
        make_raw(enter, leave)?;
        Ok(Self(()))
    }

    /// Makes the terminal raw again: another process had it while this one was stopped.
    pub fn again(&self, enter: &str) -> io::Result<()> {
        make_raw(enter, "")
    }
}

fn make_raw(enter: &str, leave: &'static str) -> io::Result<()> {
    let stdin = io::stdin();
    let before = termios::tcgetattr(&stdin)?;
    let mut raw = before.clone();
    let output = raw.output_flags;
    termios::cfmakeraw(&mut raw);
    raw.output_flags = output;
    raw.input_flags |= InputFlags::IGNBRK;
    raw.local_flags &= !LocalFlags::ISIG;
    raw.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
    raw.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
    if let Ok(mut saved) = SAVED.lock() {
        saved.get_or_insert(SavedTerminal { settings: before, leave });
    }
    restore_on_panic();
    termios::tcsetattr(&stdin, SetArg::TCSADRAIN, &raw)?;
    write_to_terminal(enter)
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the settings before raw mode; does nothing outside of it.
pub fn restore() {
    // Waiting for the lock could hang a panic inside of it; in this case no setting has changed yet.
    if let Ok(mut saved) = SAVED.try_lock()
        && let Some(before) = saved.take()
    {
        // If the terminal is gone, a failure can't be reported anywhere.
        let _ = write_to_terminal(before.leave);
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSANOW, &before.settings);
    }
}

/// Writes to the terminal without std's lock, which another thread may hold.
fn write_to_terminal(text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match nix::unistd::write(io::stdout(), rest) {
            Ok(count) => rest = &rest[count.min(rest.len())..],
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn restore_on_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            earlier(info);
        }));
    });
}

/// Thread that passes standard input to the guest; dropping it ends the thread.
#[derive(Debug)]
pub struct KeyReader {
    wake: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl KeyReader {
    /// Starts the thread. With `escape`, the key of that value ends the run and is not given to the
    /// guest.
    pub fn start(
        input: mpsc::Sender<Vec<u8>>,
        stop: watch::Sender<bool>,
        escape: Option<u8>,
    ) -> io::Result<Self> {
        // Closing the writing end wakes the thread up from poll.
        let (reader, wake) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let thread = std::thread::Builder::new()
            .name("vprof-keys".to_owned())
            .spawn(move || read_keys(&reader, &input, &stop, escape))?;
        Ok(Self { wake: Some(wake), thread: Some(thread) })
    }
}

impl Drop for KeyReader {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn read_keys(wake: &OwnedFd, input: &mpsc::Sender<Vec<u8>>, stop: &watch::Sender<bool>, escape: Option<u8>) {
    // std's buffer is not used: poll does not see its contents.
    let stdin = io::stdin();
    let mut buffer = [0; 256];
    loop {
        let mut fds =
            [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        if fds[1].revents().is_some_and(|r| !r.is_empty()) {
            return;
        }
        let keys = match nix::unistd::read(&stdin, &mut buffer) {
            Ok(0) => return,
            Ok(n) => &buffer[..n],
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        };
        let (keys, ends) = match escape.and_then(|e| keys.iter().position(|k| *k == e)) {
            Some(at) => (&keys[..at], true),
            None => (keys, false),
        };
        if !keys.is_empty() && !send(wake, input, keys.to_vec()) {
            return;
        }
        if ends {
            stop.send_replace(true);
            return;
        }
    }
}

/// Gives keys to the run, and waits while its queue is full. Returns false once the run has ended.
fn send(wake: &OwnedFd, input: &mpsc::Sender<Vec<u8>>, keys: Vec<u8>) -> bool {
    let mut keys = keys;
    loop {
        keys = match input.try_send(keys) {
            Ok(()) => return true,
            Err(mpsc::error::TrySendError::Closed(_)) => return false,
            Err(mpsc::error::TrySendError::Full(keys)) => keys,
        };
        let mut fds = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut fds, 10_u8), Ok(0) | Err(Errno::EINTR)) {
            return false;
        }
    }
}
