//! The process of a reader.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use disk_images::contents::{DiskContents, ImageFormat};
use disk_images::{BootPlan, BootRequest, ImageError, NamedFile};
use display::message::Reason;
use sandbox::SandboxError;

use super::answer::{Answer, BootFacts};
use super::{BootTask, LIMITS, PassedFile, ReaderJob, ReaderTask};

/// Reason why a reader has no result.
#[derive(Debug, thiserror::Error)]
enum ChildError {
    /// The job is not understood.
    #[error("the reader of images got no job: {0}")]
    Job(#[from] serde_json::Error),
    /// A part of the sandbox cannot be set up.
    #[error("cannot enter the sandbox around the reader of images: {0}")]
    Sandbox(#[from] SandboxError),
    /// The job cannot be read.
    #[error("the reader of images cannot start: {0}")]
    Start(io::Error),
    /// The kernel or the initrd does not fit into memory.
    #[error("cannot keep the guest's {what} in memory: {}", Reason(.source))]
    Keep {
        /// `kernel` or `initrd`.
        what: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A file cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The kernel cannot be used.
    #[error(transparent)]
    Kernel(#[from] vmm::KernelError),
}

/// Does the job in the descriptor of this number, and sends the answer through standard output. Called once,
/// by a process with one thread.
///
/// # Errors
/// The answer cannot be sent.
pub fn main(job: RawFd) -> io::Result<()> {
    let bytes = guarded(|| serve(job)).to_bytes().map_err(io::Error::other)?;
    io::stdout().write_all(&bytes)
}

/// Place of the last panic.
static PLACE: Mutex<Option<String>> = Mutex::new(None);

/// Returns the answer of `read`, also if that fails or panics. A panic prints nothing.
fn guarded(read: impl FnOnce() -> Result<Answer, ChildError>) -> Answer {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line()));
        *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }));
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => Answer::Refused(error.to_string()),
        Err(_) => {
            let place = PLACE.lock().unwrap_or_else(PoisonError::into_inner).take();
            Answer::Panicked(place.unwrap_or_else(|| "an unknown place".to_owned()))
        }
    }
}

fn serve(job: RawFd) -> Result<Answer, ChildError> {
    let mut text = Vec::new();
    own(job).read_to_end(&mut text).map_err(ChildError::Start)?;
    let ReaderJob { task, policy, report } = serde_json::from_slice(&text)?;
    sandbox::enter_reader(policy, LIMITS, OwnedFd::from(own(report)))?;
    Ok(match task {
        ReaderTask::Boot(task) => Answer::Boot(boot(task)?),
        ReaderTask::Check { disks } => {
            check(disks)?;
            Answer::Checked
        }
        ReaderTask::Inspect { image, format } => {
            Answer::Inspection(disk_images::inspect(&named(image), format)?)
        }
    })
}

/// Takes a descriptor of the job.
fn own(number: RawFd) -> File {
    // SAFETY: each number is that of a descriptor that the parent has passed on for this process alone, and
    // occurs once in the job.
    unsafe { File::from_raw_fd(number) }
}

fn named(PassedFile { path, descriptor }: PassedFile) -> NamedFile {
    NamedFile { path: path.into(), file: own(descriptor) }
}

fn boot(task: BootTask) -> Result<BootFacts, ChildError> {
    let BootTask { image, format, kernel, initrd, disks, command, boot_kernel, boot_initrd } = task;
    let (boot_kernel, boot_initrd) = (own(boot_kernel), own(boot_initrd));
    let request = BootRequest {
        image: named(image),
        format: Some(format),
        kernel: kernel.map(named),
        initrd: initrd.map(named),
    };
    let BootPlan { payload, is_disk, words, origin, sentence, has_systemd } = disk_images::load(request)?;
    check(disks)?;
    // A compressed initrd is unpacked for this, which takes 100 ms and more.
    let takes_command = command && disk_images::command::is_taken(&payload);
    keep("kernel", boot_kernel, &payload.kernel)?;
    if let Some(initrd) = &payload.initrd {
        keep("initrd", boot_initrd, initrd)?;
    }
    let has_initrd = payload.initrd.is_some();
    let longest_command_line = vmm::longest_command_line(&payload.kernel)?;
    Ok(BootFacts {
        is_disk,
        has_initrd,
        takes_command,
        has_systemd,
        words,
        longest_command_line,
        origin,
        sentence,
    })
}

fn check(disks: Vec<(PassedFile, ImageFormat)>) -> Result<(), ImageError> {
    disks.into_iter().try_for_each(|(PassedFile { path, descriptor }, format)| {
        DiskContents::open(own(descriptor), format, false, Path::new(&path)).map(drop)
    })
}

fn keep(what: &'static str, mut file: File, bytes: &[u8]) -> Result<(), ChildError> {
    file.write_all(bytes).map_err(|source| ChildError::Keep { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_answer_with_its_place() {
        let answer = guarded(|| {
            let tables: [u8; 0] = [];
            Ok(Answer::Refused(tables[std::hint::black_box(3)].to_string()))
        });
        // The hook is that of all tests from here on: libtest counts a failure without it.
        drop(std::panic::take_hook());
        assert!(
            matches!(&answer, Answer::Panicked(place) if place.starts_with("host/src/reader/child.rs:")),
            "{answer:?}"
        );
    }
}
