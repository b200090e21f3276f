//! Stops that are in progress, in memory that the guard's process also maps.
//!
//! One word per slot: a sequence number in the upper half, and the held thread in the lower half, 0 for none.
//! Only the thread that owns a slot writes its word, so a stop costs two stores and no system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use vmm::host_kernel;

/// Size of the shared memory, bytes: one page.
const BYTES: usize = 4096;
/// The same as the size of a file.
const FILE_BYTES: libc::off_t = 4096;
/// Number of words in it.
const WORDS: usize = BYTES / size_of::<u64>();
/// Lower half of a word: the held thread.
const HELD: u64 = 0xffff_ffff;
/// One step of the sequence number.
const STEP: u64 = 1 << 32;
/// Interval at which [`Heartbeat::suspend`] checks for stops.
const PAUSE: Duration = Duration::from_micros(50);

/// Record of the stops that are in progress.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    at: NonNull<AtomicU64>,
    file: OwnedFd,
    /// No stop may begin.
    suspended: AtomicBool,
}

// SAFETY: the mapping belongs to no thread, and all access to it is atomic.
unsafe impl Send for Heartbeat {}
// SAFETY: as above.
unsafe impl Sync for Heartbeat {}

impl Heartbeat {
    /// Makes an empty record.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: the name ends in NUL; gives a new descriptor or an error.
        let fd = unsafe { libc::memfd_create(c"vprof-stops".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(host_kernel::last_error(host_kernel::MEMFD_CREATE));
        }
        // SAFETY: the descriptor is new and owned by nothing else.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: takes no pointers.
        if unsafe { libc::ftruncate(fd, FILE_BYTES) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Arc::new(Self::map(file)?))
    }

    /// Maps the record that another process has made.
    pub(crate) fn map(file: OwnedFd) -> io::Result<Self> {
        // SAFETY: stat is plain data for which all zeroes is a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for the call.
        if unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if stat.st_size != FILE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: makes a new mapping at an address that the kernel chooses.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { at, file, suspended: AtomicBool::new(false) })
    }

    /// Returns a word; the last one for indices that are too large.
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the word is within the mapping, which lives as long as `self`, and is aligned.
        unsafe { self.at.add(index.min(WORDS - 1)).as_ref() }
    }

    /// Returns all words.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        (0..WORDS).map(|index| self.word(index).load(Ordering::SeqCst))
    }

    /// Lets no stop begin, and waits until those in progress have ended, for at most `limit`.
    pub(crate) fn suspend(&self, limit: Duration) {
        self.suspended.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        while self.words().any(|word| held(word).is_some()) && begin.elapsed() < limit {
            sleep(PAUSE);
        }
    }

    /// Lets stops begin again.
    pub(crate) fn resume(&self) {
        self.suspended.store(false, Ordering::SeqCst);
    }

    /// Returns true while no stop may begin.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst)
    }
}

impl AsFd for Heartbeat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // SAFETY: `map` has made exactly this mapping, and nothing borrows it any longer.
        unsafe {
            libc::munmap(self.at.as_ptr().cast(), BYTES);
        }
    }
}

/// Returns the thread that a word shows as held.
pub(crate) fn held(word: u64) -> Option<i32> {
    i32::try_from(word & HELD).ok().filter(|thread| *thread != 0)
}

/// Slot of a thread that makes stops, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct StopSlot {
    heartbeat: Arc<Heartbeat>,
    index: usize,
}

impl StopSlot {
    /// Makes the slot with that number.
    pub(crate) fn new(heartbeat: &Arc<Heartbeat>, index: usize) -> Self {
        Self { heartbeat: Arc::clone(heartbeat), index }
    }

    fn word(&self) -> &AtomicU64 {
        self.heartbeat.word(self.index)
    }

    /// Records that a stop of `thread` begins. Returns false, and records nothing, if none may begin.
    pub(crate) fn begin(&self, thread: i32) -> bool {
        let word = (self.word().load(Ordering::Relaxed) & !HELD).wrapping_add(STEP);
        self.word().store(word | u64::from(thread.cast_unsigned()), Ordering::SeqCst);
        // After the store: `suspend` stores its flag and then reads the words.
        let begins = !self.heartbeat.is_suspended();
        if !begins {
            self.end();
        }
        begins
    }

    /// Records progress of a stop that is in progress.
    pub(crate) fn beat(&self) {
        let word = self.word().load(Ordering::Relaxed);
        self.word().store(word.wrapping_add(STEP), Ordering::SeqCst);
    }

    /// Records that the stop has ended.
    pub(crate) fn end(&self) {
        let word = self.word().load(Ordering::Relaxed);
        self.word().store(word & !HELD, Ordering::SeqCst);
    }

    /// Waits while no stop may begin and `keep_waiting` returns true.
    pub(crate) fn wait(&self, keep_waiting: impl Fn() -> bool) {
        while self.heartbeat.is_suspended() && keep_waiting() {
            sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_shows_the_stops_in_progress() {
        let own = Heartbeat::new().unwrap();
        let other = Heartbeat::map(own.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let slot = StopSlot::new(&own, 3);
        let held_words = || other.words().filter(|word| held(*word).is_some()).collect::<Vec<_>>();
        assert!(held_words().is_empty());
        assert!(slot.begin(12));
        let [first] = held_words()[..] else { panic!("one stop") };
        slot.beat();
        let [second] = held_words()[..] else { panic!("one stop") };
        assert!(held(first) == Some(12) && held(second) == Some(12) && first != second);
        slot.end();
        assert!(held_words().is_empty());
    }

    #[test]
    fn no_stop_begins_after_a_suspension_has_returned() {
        let heartbeat = Heartbeat::new().unwrap();
        let slot = StopSlot::new(&heartbeat, 0);
        assert!(slot.begin(12));
        std::thread::scope(|scope| {
            let suspension = scope.spawn(|| heartbeat.suspend(Duration::from_secs(20)));
            // Long enough for many checks, because each of them could end the suspension.
            sleep(400 * PAUSE);
            assert!(!suspension.is_finished(), "a stop is in progress");
            slot.end();
            suspension.join().unwrap();
        });
        assert!(!slot.begin(12) && heartbeat.words().all(|word| held(word).is_none()));
        heartbeat.resume();
        assert!(slot.begin(12));
    }
}
