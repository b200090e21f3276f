//! Programs of the initrd that a guest was booted with, unpacked when the first of them is wanted.
//!
//! ```text
//! keep: packed bytes ──▶ temporary file     (before the guest runs)
//! first wanted: a thread unpacks ──▶ temporary file of programs, their paths and places in memory
//! ```
//!
//! Both files are made at first, since a process inside a sandbox may open none later. They have no name and
//! go with the process. The thread that walks stacks must not stop for long, so it waits for a file for a
//! limited time and then continues without it.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use disk_images::initrd;
use symbols::elf::ReadAt;

/// Bytes per write.
const BLOCK: usize = 256 << 10;

/// An initrd whose programs can be read. Clones share it.
#[derive(Debug, Clone)]
pub struct Initrd(Arc<SharedInitrd>);

#[derive(Debug)]
struct SharedInitrd {
    state: Mutex<UnpackState>,
    unpacked: Condvar,
}

/// Progress of the unpacking.
#[derive(Debug)]
enum UnpackState {
    Packed(PackedInitrd),
    Unpacking,
    Unpacked(Arc<ProgramIndex>),
    /// The initrd has no programs that can be read.
    Nothing,
}

#[derive(Debug)]
struct PackedInitrd {
    packed: File,
    /// Still empty.
    programs: File,
}

#[derive(Debug)]
struct ProgramIndex {
    index: initrd::Initrd,
    file: File,
}

impl Initrd {
    /// Keeps an initrd, as the guest's loader puts it into memory, in a temporary file, and makes the one for
    /// its programs.
    ///
    /// # Errors
    /// Returns an error if there is no room for the files.
    pub fn keep(packed: &[u8]) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(packed)?;
        file.rewind()?;
        let packed = PackedInitrd { packed: file, programs: tempfile::tempfile()? };
        Ok(Self(Arc::new(SharedInitrd {
            state: Mutex::new(UnpackState::Packed(packed)),
            unpacked: Condvar::new(),
        })))
    }

    /// Opens the program or library at `path`, an absolute path, if the file is known before `patience` is
    /// used up. Subtracts the time waited from `patience`.
    pub(crate) fn open(&self, path: &str, patience: &mut Duration) -> Option<Box<dyn ReadAt>> {
        let programs = self.programs(patience)?;
        let bytes = programs.index.find(path)?;
        Some(Box::new(InitrdProgram { programs, bytes }))
    }

    fn programs(&self, patience: &mut Duration) -> Option<Arc<ProgramIndex>> {
        let start = Instant::now();
        let mut state = self.start();
        loop {
            match &*state {
                UnpackState::Unpacked(programs) => return Some(Arc::clone(programs)),
                UnpackState::Nothing => return None,
                UnpackState::Packed(_) | UnpackState::Unpacking => {}
            }
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                *patience = left;
                return None;
            }
            let waited = self.0.unpacked.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !matches!(*state, UnpackState::Unpacking) {
                *patience = patience.saturating_sub(start.elapsed());
            }
        }
    }

    /// Starts the unpacking, unless it was started before.
    fn start(&self) -> MutexGuard<'_, UnpackState> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let UnpackState::Packed(_) = *state
            && let UnpackState::Packed(packed) = std::mem::replace(&mut *state, UnpackState::Unpacking)
        {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("initrd".to_owned());
            let started = thread.spawn(move || {
                let programs = unpack(packed);
                *shared.state.lock().unwrap_or_else(PoisonError::into_inner) = programs
                    .map_or(UnpackState::Nothing, |programs| UnpackState::Unpacked(Arc::new(programs)));
                shared.unpacked.notify_all();
            });
            if started.is_err() {
                *state = UnpackState::Nothing;
            }
        }
        state
    }
}

/// Unpacks all programs; `None` if there is no room or no program.
fn unpack(PackedInitrd { packed, programs }: PackedInitrd) -> Option<ProgramIndex> {
    let mut writer = BufWriter::with_capacity(BLOCK, programs);
    let index = initrd::Initrd::read(BufReader::new(packed), &mut writer);
    let file = writer.into_inner().ok()?;
    let any = index.paths().next().is_some();
    any.then_some(ProgramIndex { index, file })
}

/// One file of an initrd.
struct InitrdProgram {
    programs: Arc<ProgramIndex>,
    bytes: Range<u64>,
}

impl ReadAt for InitrdProgram {
    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let end = offset.checked_add(into.len() as u64)?;
        if end > self.len() {
            return None;
        }
        self.programs.file.read_exact_at(into, self.bytes.start.checked_add(offset)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with one program of `size` bytes.
    fn archive(name: &str, size: usize) -> Vec<u8> {
        let mut program = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0".to_vec();
        program.resize(size, 7);
        let mut bytes = Vec::new();
        for (name, mode, content) in [(name, 0o100_755, &program[..]), ("TRAILER!!!", 0, &[])] {
            bytes.extend(b"070701");
            let (size, name_size) = (content.len(), name.len() + 1);
            for field in [0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
                bytes.extend(format!("{field:08x}").bytes());
            }
            bytes.extend(name.bytes());
            bytes.push(0);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(content);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_is_read_wherever_and_by_whomever() {
        let initrd = Initrd::keep(&archive("bin/sh", 100_000)).unwrap();
        let other = initrd.clone();
        let threads = [initrd, other].map(|initrd| {
            std::thread::spawn(move || {
                let program = initrd.open("/bin/sh", &mut LONG.clone()).unwrap();
                let mut bytes = [0; 4];
                program.read_at(99_996, &mut bytes).unwrap();
                (program.len(), bytes, program.read_at(99_997, &mut bytes))
            })
        });
        for thread in threads {
            assert_eq!(thread.join().unwrap(), (100_000, [7; 4], None));
        }
    }

    #[test]
    fn without_patience_nothing_is_waited_for() {
        let shared = SharedInitrd { state: Mutex::new(UnpackState::Unpacking), unpacked: Condvar::new() };
        let initrd = Initrd(Arc::new(shared));
        let mut patience = Duration::from_millis(1);
        assert!(initrd.open("/init", &mut patience).is_none());
        assert_eq!(patience, Duration::ZERO);
        assert!(initrd.open("/init", &mut patience).is_none());
    }

    #[test]
    fn what_is_not_there_is_not_opened() {
        let initrd = Initrd::keep(&archive("init", 100)).unwrap();
        assert!(initrd.open("/sbin/init", &mut LONG.clone()).is_none());
        assert!(initrd.open("/init", &mut LONG.clone()).is_some());
        let nothing = Initrd::keep(b"no archive at all").unwrap();
        assert!(nothing.open("/init", &mut LONG.clone()).is_none());
    }
}
