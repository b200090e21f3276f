//! The reader of images: a process inside a sandbox that reads disk images, kernels and initrds. Their
//! authors may be hostile, and the parsers may have errors.
//!
//! ```text
//!  vprof run, attach, image                          vprof image-reader
//!  opens and locks files      --- descriptors -->    qcow2, partitions, file systems, loaders' files
//!  checks the answer          <-- one Answer  ---    descriptors, and nothing else
//!                             <-- two memfds  ---    kernel and initrd
//! ```
//!
//! The reader has the files open for reading, and two files in memory open for writing. It enters the sandbox
//! ([`sandbox::enter_reader`]) before it reads a byte of them, answers once, and ends. Its answer is as
//! hostile as the image: [`Answer::from_bytes`] checks it.

mod answer;
mod child;
mod memory;
mod process;

pub use answer::{Answer, AnswerError, BootFacts};
pub use child::main;
pub use memory::BootMemory;
pub use process::{BootFiles, LoadedBoot, ReaderError, check, inspect, load};

use std::os::fd::RawFd;

use disk_images::contents::ImageFormat;
use sandbox::{ResourceLimits, SyscallPolicy};
use serde::{Deserialize, Serialize};

/// Name of the hidden command that starts a reader. Its argument is the number of a descriptor with a
/// `ReaderJob`.
pub const COMMAND: &str = "image-reader";

/// Resources of a reader. A kernel and an initrd have 2 GiB each at most; a unified kernel image that has
/// both is in memory together with its parts. An initrd is unpacked at some 100 MB/s, and compressed by a
/// factor of 5.
const LIMITS: ResourceLimits =
    ResourceLimits { memory_bytes: 8 << 30, file_bytes: MAX_RESULT, cpu_seconds: 120 };
/// Largest kernel or initrd in memory, bytes. An initrd may consist of several files.
const MAX_RESULT: u64 = 4 << 30;

/// Job of a reader, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ReaderJob {
    task: ReaderTask,
    /// Fate of a system call that a reader is not known to make.
    policy: SyscallPolicy,
    /// The pipe for the report of a refused system call.
    report: RawFd,
}

/// Task of a reader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum ReaderTask {
    /// Finds what a guest boots, and checks its disks.
    Boot(BootTask),
    /// Checks disks of which nothing is booted.
    Check { disks: Vec<(PassedFile, ImageFormat)> },
    /// Lists the contents of a disk image.
    Inspect { image: PassedFile, format: Option<ImageFormat> },
}

/// Files of a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BootTask {
    image: PassedFile,
    format: ImageFormat,
    kernel: Option<PassedFile>,
    initrd: Option<PassedFile>,
    /// Other disks.
    disks: Vec<(PassedFile, ImageFormat)>,
    /// True if the guest is to run a command.
    command: bool,
    /// Receives the kernel.
    boot_kernel: RawFd,
    /// Receives the initrd.
    boot_initrd: RawFd,
}

/// Open file that a reader inherits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PassedFile {
    /// Path for messages.
    path: String,
    /// Number of the descriptor.
    descriptor: RawFd,
}
