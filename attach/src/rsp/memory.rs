//! The guest's physical memory, through its stub.
//!
//! A stub reads memory of a stopped machine only. So each read between samples needs a separate stop. Read
//! memory is kept for a short time, and larger reads are split, with a pause after each part.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_linux::{PhysAddr, PhysicalMemory};

use super::client::{MachineState, StubClient};

/// Size of a block, which is read and kept as a whole, bytes.
const BLOCK: usize = 32 << 10;
/// Maximum number of blocks that are kept.
const BLOCKS: usize = 256;
/// Time for which a block is valid: guests change their lists all the time, so readers tolerate that.
const FRESH: Duration = Duration::from_millis(200);
/// Number of bytes that are read in one stop.
const PART: usize = 128 << 10;
/// The machine runs for at least this many times as long as it was stopped for a read.
const REST: u32 = 2;

/// Connection, shared by the ticks and the readers of memory.
pub(crate) type ClientHandle = Arc<Mutex<StubClient>>;

/// Locks the connection.
pub(crate) fn lock_client(client: &ClientHandle) -> MutexGuard<'_, StubClient> {
    client.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory during a stop that another user of the connection has made; `None` while the machine runs.
#[derive(Debug, Clone)]
pub(crate) struct StoppedStub(pub(crate) ClientHandle);

impl PhysicalMemory for StoppedStub {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let mut client = lock_client(&self.0);
        (client.state() == MachineState::Stopped).then(|| client.read_memory(at.0, into).ok().flatten())?
    }
}

/// Guest physical memory through a stub, at any time. Cheap to clone.
#[derive(Clone)]
pub struct StubMemory {
    client: ClientHandle,
    blocks: Arc<Mutex<HashMap<u64, Block>>>,
}

/// Bytes as they were at one time; `None` where there is no memory.
struct Block {
    read: Instant,
    bytes: Option<Box<[u8]>>,
}

impl fmt::Debug for StubMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubMemory").finish_non_exhaustive()
    }
}

impl StubMemory {
    pub(crate) fn new(client: ClientHandle) -> Self {
        Self { client, blocks: Arc::default() }
    }

    /// Reads memory in a separate stop, or in one that is in progress.
    fn fetch(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let begin = Instant::now();
        let (read, own) = {
            let mut client = lock_client(&self.client);
            let own = client.state() != MachineState::Stopped;
            client.stop_and_ask(&[]).ok()??;
            let read = client.read_memory(at, into).ok();
            if own {
                client.resume().ok()?;
            }
            (read?, own)
        };
        if own {
            sleep(begin.elapsed() * REST);
        }
        read
    }

    fn block(&self, number: u64) -> Option<()> {
        let bytes = u64::try_from(BLOCK).ok()?;
        let mut block = vec![0; BLOCK].into_boxed_slice();
        let read = self.fetch(number.checked_mul(bytes)?, &mut block);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.len() >= BLOCKS {
            blocks.retain(|_, block| block.read.elapsed() < FRESH);
        }
        if blocks.len() < BLOCKS {
            blocks.insert(number, Block { read: Instant::now(), bytes: read.map(|()| block) });
        }
        Some(())
    }

    /// Copies out of a fresh block; `None` if there is none, `Some(None)` if the block is not memory.
    fn kept(&self, number: u64, offset: usize, into: &mut [u8]) -> Option<Option<()>> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let block = blocks.get(&number).filter(|block| block.read.elapsed() < FRESH)?;
        let part = block.bytes.as_ref().and_then(|bytes| bytes.get(offset..offset.checked_add(into.len())?));
        Some(part.map(|part| into.copy_from_slice(part)))
    }
}

impl PhysicalMemory for StubMemory {
    fn read(&self, at: PhysAddr, into: &mut [u8]) -> Option<()> {
        let block_bytes = u64::try_from(BLOCK).ok()?;
        let offset = usize::try_from(at.0 % block_bytes).ok()?;
        if offset.checked_add(into.len())? <= BLOCK {
            let number = at.0 / block_bytes;
            if let Some(kept) = self.kept(number, offset, into) {
                return kept;
            }
            self.block(number)?;
            if let Some(kept) = self.kept(number, offset, into) {
                return kept;
            }
        }
        let mut next = at;
        for part in into.chunks_mut(PART) {
            self.fetch(next.0, part)?;
            next = next.checked_add(u64::try_from(part.len()).ok()?)?;
        }
        Some(())
    }
}
