//! Guests, files and stacks that targets share: valid until the fuzzer's bytes change them.

pub mod disks;
pub mod files;
pub mod guests;
pub mod patches;
pub mod stacks;

use arbitrary::{Arbitrary, Unstructured};
use tempfile::TempDir;

/// Decodes a target's input. Returns `None` if the fuzzer's bytes are too few for it.
pub fn decode<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> Option<T> {
    // Saves the fuzzer from exploring each way in which bytes are too few.
    let (needed, _) = T::size_hint(0);
    if bytes.len() < needed { None } else { T::arbitrary_take_rest(Unstructured::new(bytes)).ok() }
}

/// Returns seeds for a target that decodes its input: one without changes, because zeros decode to empty
/// lists, and two with some changes.
pub fn decoded_seeds() -> Vec<Vec<u8>> {
    vec![vec![0; 64], (0..=u8::MAX).collect(), (0..=u8::MAX).rev().collect()]
}

/// Makes a directory for one input, in memory if the machine has such a file system.
pub fn directory() -> TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let directory = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    directory.expect("room for a directory")
}
