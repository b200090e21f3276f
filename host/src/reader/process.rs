//! Starting a reader of images, and the check of what it returns.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use disk_images::contents::ImageFormat;
use disk_images::{ImageInspection, NamedFile};
use display::message::{Reason, Shown};
use display::units;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox::SyscallPolicy;

use super::answer::{Answer, AnswerError, BootFacts, MAX_ANSWER};
use super::{BootMemory, BootTask, COMMAND, LIMITS, MAX_RESULT, PassedFile, ReaderJob, ReaderTask};
use crate::process::{refused_call, walled_command};
use crate::spec::DiskSpec;

/// Longest time until a reader has answered and ended: it may use 120 s of CPU time, and storage may be slow.
const PATIENCE: Duration = Duration::from_secs(600);

/// Reason for which a reader of images returned nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// A file cannot be used. The sentence is that of [`disk_images::ImageError`].
    #[error("{0}")]
    Refused(String),
    /// The process cannot be started or waited for.
    #[error("cannot {action}: {}", Reason(.source))]
    Start {
        /// Like "start the reader of images".
        action: &'static str,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The process ended without an answer.
    #[error("can't read {}: the process that reads it ended: {reason}", Shown(.image))]
    Ended {
        /// The image.
        image: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The process does not answer.
    #[error(
        "can't read {}: the process that reads it has not answered for {}; the image may have taken it over",
        Shown(.image),
        units::duration(PATIENCE)
    )]
    Silent {
        /// The image.
        image: PathBuf,
    },
    /// A parser has an error.
    #[error("can't read {}: vprof has an error at {place}, which this image meets", Shown(.image))]
    Panicked {
        /// The image.
        image: PathBuf,
        /// Place in the program.
        place: String,
    },
    /// The answer is invalid.
    #[error("can't read {}: the process that reads it sent {source}; the image may have taken it over", Shown(.image))]
    Answer {
        /// The image.
        image: PathBuf,
        /// The fault of the answer.
        source: AnswerError,
    },
}

/// Everything that a guest boots, and its origin.
#[derive(Debug)]
pub struct LoadedBoot {
    /// Facts.
    pub facts: BootFacts,
    /// Kernel and initrd.
    pub payload: BootMemory,
}

/// Open files of a guest, for [`load`].
#[derive(Debug)]
pub struct BootFiles {
    /// IMAGE: a disk image or a kernel.
    pub image: NamedFile,
    /// Format of IMAGE.
    pub format: ImageFormat,
    /// Kernel of `--kernel`.
    pub kernel: Option<NamedFile>,
    /// Initrd of `--initrd`.
    pub initrd: Option<NamedFile>,
    /// Other disks.
    pub disks: Vec<(NamedFile, ImageFormat)>,
    /// True if the guest is to run a command: only then is the initrd searched for what runs it.
    pub command: bool,
}

/// Has a reader find what a guest boots, and check its disks. No file needs to be open for writing.
///
/// # Errors
/// A file cannot be used, or the reader fails.
pub fn load(files: &BootFiles, policy: SyscallPolicy) -> Result<LoadedBoot, ReaderError> {
    let BootFiles { image, format, kernel, initrd, disks, command } = files;
    let failed = start("keep the guest's kernel in memory");
    let (boot_kernel, boot_initrd) = BootMemory::empty().map_err(&failed)?;
    let task = ReaderTask::Boot(BootTask {
        image: passed(image),
        format: *format,
        kernel: kernel.as_ref().map(passed),
        initrd: initrd.as_ref().map(passed),
        disks: disks.iter().map(|(disk, format)| (passed(disk), *format)).collect(),
        command: *command,
        boot_kernel: boot_kernel.as_raw_fd(),
        boot_initrd: boot_initrd.as_raw_fd(),
    });
    match ask(&image.path, task, policy)? {
        Answer::Boot(facts) => {
            let initrd = facts.has_initrd.then_some(boot_initrd);
            for mut file in [Some(&boot_kernel), initrd.as_ref()].into_iter().flatten() {
                if file.metadata().map_err(&failed)?.len() > MAX_RESULT {
                    let source = AnswerError::TooLong;
                    return Err(ReaderError::Answer { image: image.path.clone(), source });
                }
                file.rewind().map_err(&failed)?;
            }
            Ok(LoadedBoot { facts, payload: BootMemory { kernel: boot_kernel, initrd } })
        }
        _ => Err(other_task(&image.path)),
    }
}

/// Has a reader check disks of which nothing is booted. Their files are only read.
///
/// # Errors
/// The tables of a disk cannot be used, or the reader fails.
pub fn check(disks: &[(DiskSpec, File)], policy: SyscallPolicy) -> Result<(), ReaderError> {
    let Some((first, _)) = disks.first() else { return Ok(()) };
    let passed = |(disk, file): &(DiskSpec, File)| {
        let path = disk.path.to_string_lossy().into_owned();
        (PassedFile { path, descriptor: file.as_raw_fd() }, disk.format)
    };
    match ask(&first.path, ReaderTask::Check { disks: disks.iter().map(passed).collect() }, policy)? {
        Answer::Checked => Ok(()),
        _ => Err(other_task(&first.path)),
    }
}

/// Has a reader list the contents of a disk image.
///
/// # Errors
/// The file is not a disk image, or the reader fails.
pub fn inspect(
    image: &NamedFile,
    format: Option<ImageFormat>,
    policy: SyscallPolicy,
) -> Result<ImageInspection, ReaderError> {
    match ask(&image.path, ReaderTask::Inspect { image: passed(image), format }, policy)? {
        Answer::Inspection(inspection) => Ok(inspection),
        _ => Err(other_task(&image.path)),
    }
}

fn start(action: &'static str) -> impl Fn(io::Error) -> ReaderError {
    move |source| ReaderError::Start { action, source }
}

fn other_task(image: &Path) -> ReaderError {
    ReaderError::Answer { image: image.to_owned(), source: AnswerError::OtherTask }
}

fn passed(file: &NamedFile) -> PassedFile {
    PassedFile { path: file.path.to_string_lossy().into_owned(), descriptor: file.file.as_raw_fd() }
}

impl ReaderTask {
    /// Returns the numbers of all descriptors.
    fn descriptors(&self) -> Vec<i32> {
        match self {
            Self::Boot(task) => [Some(&task.image), task.kernel.as_ref(), task.initrd.as_ref()]
                .into_iter()
                .flatten()
                .chain(task.disks.iter().map(|(disk, _)| disk))
                .map(|file| file.descriptor)
                .chain([task.boot_kernel, task.boot_initrd])
                .collect(),
            Self::Check { disks } => disks.iter().map(|(disk, _)| disk.descriptor).collect(),
            Self::Inspect { image, .. } => vec![image.descriptor],
        }
    }
}

/// Starts a reader for the task, and returns its answer. `image` is for error messages.
fn ask(image: &Path, task: ReaderTask, policy: SyscallPolicy) -> Result<Answer, ReaderError> {
    let failed = start("start the reader of images");
    let (report, report_writer) = io::pipe().map_err(&failed)?;
    let mut inherited = task.descriptors();
    inherited.push(report_writer.as_raw_fd());
    let job = ReaderJob { task, policy, report: report_writer.as_raw_fd() };
    let (mut command, job_file) = walled_command(COMMAND, &job, inherited).map_err(&failed)?;
    // Its answer is all that it says.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(&failed)?;
    drop((command, job_file, report_writer));
    let deadline = Instant::now() + PATIENCE;
    let read = match child.stdout.take() {
        Some(stdout) => read_until(stdout, deadline),
        None => Ok(Some(Vec::new())),
    };
    let ended = match &read {
        Ok(Some(bytes)) if bytes.len() <= MAX_ANSWER => has_ended(&mut child, deadline),
        _ => false,
    };
    if !ended {
        // Fails if it has ended since.
        let _ended = child.kill();
    }
    let status = child.wait().map_err(start("wait for the reader of images"))?;
    let image = || image.to_owned();
    let Some(bytes) = read.map_err(start("wait for the reader of images"))? else {
        return Err(ReaderError::Silent { image: image() });
    };
    if bytes.is_empty() || !status.success() && bytes.len() <= MAX_ANSWER {
        let reason = refused_call(report, status).unwrap_or_else(|| reason(status));
        return Err(ReaderError::Ended { image: image(), reason });
    }
    match Answer::from_bytes(&bytes) {
        Ok(Answer::Refused(sentence)) => Err(ReaderError::Refused(sentence)),
        Ok(Answer::Panicked(place)) => Err(ReaderError::Panicked { image: image(), place }),
        Ok(answer) => Ok(answer),
        Err(source) => Err(ReaderError::Answer { image: image(), source }),
    }
}

/// Reads an answer to its end, at most one byte more than the longest; `None` if it does not end in time.
fn read_until(mut answer: impl Read + AsFd, deadline: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while bytes.len() <= MAX_ANSWER {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(answer.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Ok(None),
            Ok(_) => match answer.read(&mut buffer)? {
                0 => break,
                count => bytes.extend_from_slice(&buffer[..count]),
            },
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bytes.truncate(MAX_ANSWER + 1);
    Ok(Some(bytes))
}

/// Waits for the end of a process that has answered. Returns false if it does not end in time.
fn has_ended(child: &mut Child, deadline: Instant) -> bool {
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Returns the reason of the process's end.
fn reason(status: ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGXCPU) => format!("it used more than {} s of CPU time", LIMITS.cpu_seconds),
        // An allocation that fails aborts.
        Some(libc::SIGABRT) => {
            format!("it got no more memory ({status}); it may have {} GiB", LIMITS.memory_bytes >> 30)
        }
        _ => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        assert_eq!(read_until(&reader, soon()).unwrap(), None);
        std::io::Write::write_all(&mut writer, b"begun").unwrap();
        assert_eq!(read_until(&reader, soon()).unwrap(), None, "it does not end");
        std::io::Write::write_all(&mut writer, b"whole").unwrap();
        drop(writer);
        assert_eq!(read_until(&reader, soon()).unwrap().as_deref(), Some(&b"whole"[..]));
    }

    #[test]
    fn a_process_that_does_not_end_is_not_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!has_ended(&mut child, soon()));
        child.kill().unwrap();
        assert!(has_ended(&mut child, Instant::now() + Duration::from_secs(600)));
        child.wait().unwrap();
    }
}
