//! `sleeps`: threads that wait for one thing each, a known part of the time: a futex, a pipe, poll, a socket,
//! a disk. The rest of the time each sleeps by a timer.

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, set_name, since_boot};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const USAGE: &str = "sleeps [--seconds N] [--period-millis N] [--disk DEVICE]
for N seconds (10), once in N ms (330) each thread is woken from what it waits for and sleeps 2/5 of that time; one
reads DEVICE (/dev/vda) instead, past the page cache; prints the time that each has waited for its thing";

/// Bytes of a read, and of the part of the device that is read again and again.
const BLOCK: usize = 128 << 10;
const PART: u64 = 64 << 20;
/// Alignment of memory for reads that bypass the page cache: the largest usual block of a device.
const ALIGNMENT: usize = 4096;

/// Object that a thread waits for.
enum WaitObject {
    Futex,
    Pipe(PipeReader),
    Poll(PipeReader),
    Socket(UnixStream),
    Disk(File, Duration),
}

/// State shared by all waiting threads.
#[derive(Default)]
struct SharedState {
    rounds: Mutex<u64>,
    changed: Condvar,
    over: AtomicBool,
}

impl SharedState {
    fn wait(&self) {
        let round = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *round;
        let woken = self.changed.wait_while(round, |round| *round == before);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }

    fn wake(&self) {
        *self.rounds.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }
}

impl WaitObject {
    fn name(&self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Pipe(_) => "pipe",
            Self::Poll(_) => "poll",
            Self::Socket(_) => "socket",
            Self::Disk(..) => "disk",
        }
    }

    /// Waits for a wake-up, or for the given time.
    fn wait(&mut self, shared: &SharedState) -> Result<(), ProgramError> {
        let mut byte = [0];
        match self {
            Self::Futex => shared.wait(),
            Self::Pipe(reader) => {
                reader.read_exact(&mut byte).map_err(ProgramError::system("read from a pipe"))?
            }
            Self::Poll(reader) => {
                let mut files = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
                poll(&mut files, PollTimeout::NONE).map_err(ProgramError::system("poll"))?;
                reader.read_exact(&mut byte).map_err(ProgramError::system("read from a pipe"))?;
            }
            Self::Socket(socket) => {
                socket.read_exact(&mut byte).map_err(ProgramError::system("read from a socket"))?;
            }
            Self::Disk(device, length) => read_for(device, *length)?,
        }
        Ok(())
    }
}

fn read_for(device: &File, length: Duration) -> Result<(), ProgramError> {
    let mut room = vec![0; BLOCK + ALIGNMENT];
    let start = room.as_ptr().align_offset(ALIGNMENT);
    let buffer = room.get_mut(start..start + BLOCK).unwrap_or_default();
    let (end, mut at) = (since_boot() + length, 0);
    while since_boot() < end {
        device.read_exact_at(buffer, at).map_err(ProgramError::system("read the device"))?;
        at = (at + BLOCK as u64) % PART;
    }
    Ok(())
}

/// Waits for `thing`, in turns with sleeps of `pause`. Returns its name and the time waited.
fn sleep(
    mut thing: WaitObject,
    pause: Duration,
    shared: &SharedState,
) -> Result<(&'static str, Duration), ProgramError> {
    let name = thing.name();
    set_name(name)?;
    let mut waited = Duration::ZERO;
    while !shared.over.load(Ordering::Relaxed) {
        let start = since_boot();
        thing.wait(shared)?;
        waited += since_boot() - start;
        thread::sleep(pause);
    }
    Ok((name, waited))
}

/// Wakes all threads until `end`, and once more after that.
fn wake(
    period: Duration,
    end: Duration,
    mut pipes: Vec<PipeWriter>,
    mut socket: UnixStream,
    shared: &SharedState,
) -> Result<(), ProgramError> {
    while !shared.over.load(Ordering::Relaxed) {
        thread::sleep(period);
        shared.over.store(since_boot() >= end, Ordering::Relaxed);
        shared.wake();
        for pipe in &mut pipes {
            pipe.write_all(&[1]).map_err(ProgramError::system("write to a pipe"))?;
        }
        socket.write_all(&[1]).map_err(ProgramError::system("write to a socket"))?;
    }
    // A thread that was not waiting for the last wake-up begins to wait after it.
    thread::sleep(period);
    shared.wake();
    Ok(())
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let period = Duration::from_millis(args.number("period-millis")?.unwrap_or(330));
    let pause = period * 2 / 5;
    let start = since_boot();
    let end = start + seconds(args, 10.0)?;
    let (for_pipe, to_pipe) = pipe().map_err(ProgramError::system("make a pipe"))?;
    let (for_poll, to_poll) = pipe().map_err(ProgramError::system("make a pipe"))?;
    let (socket, to_socket) = UnixStream::pair().map_err(ProgramError::system("make sockets"))?;
    let path = args.text("disk").unwrap_or("/dev/vda");
    let device = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let device = device.map_err(ProgramError::system("open the device"))?;
    let things = [
        WaitObject::Futex,
        WaitObject::Pipe(for_pipe),
        WaitObject::Poll(for_poll),
        WaitObject::Socket(socket),
        WaitObject::Disk(device, period - pause),
    ];
    let shared = SharedState::default();
    let waited = thread::scope(|scope| {
        let shared = &shared;
        let threads = things.map(|thing| scope.spawn(move || sleep(thing, pause, shared)));
        let woken = wake(period, end, vec![to_pipe, to_poll], to_socket, shared);
        let waited: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        woken.map(|()| waited)
    })?;
    let all = since_boot() - start;
    for thread in waited {
        let (name, waited) = thread?;
        println!("{name} waited {:.6} s of {:.6} s", waited.as_secs_f64(), all.as_secs_f64());
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds", "period-millis", "disk"], run)
}
