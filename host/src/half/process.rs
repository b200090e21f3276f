//! Starting a guest half, and the reason of its end.

use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use tempfile::TempDir;
use wall::{REPORT_BYTES, RefusedCall};

use super::{COMMAND, HalfJob};
use crate::process::{memory_file, prepare_child};

/// Parts of a guest half that outlive its start.
#[derive(Debug)]
pub struct HalfProcess {
    /// Directory of its temporary files, removed with this.
    directory: TempDir,
    report: io::PipeReader,
}

impl HalfProcess {
    /// Returns the pipe of the report: this end, and the one for [`super::Descriptors::report`].
    ///
    /// # Errors
    /// No descriptors are left, or no temporary directory can be made.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (report, writer) = io::pipe()?;
        let directory = tempfile::Builder::new().prefix("vprof-").tempdir()?;
        Ok((Self { directory, report }, writer.into()))
    }

    /// Returns the command of a guest half. `connection` becomes its standard input. Its environment is empty
    /// but for TMPDIR.
    ///
    /// # Errors
    /// The job cannot be written to memory.
    pub fn command(&self, job: &HalfJob, connection: OwnedFd) -> io::Result<(Command, OwnedFd)> {
        let text = serde_json::to_vec(job)?;
        let job_file = memory_file(c"vprof-job", &text)?;
        let job_number = job_file.as_raw_fd();
        let mut command = Command::new("/proc/self/exe");
        command.args([COMMAND, &job_number.to_string()]);
        command.env_clear().env("TMPDIR", self.directory.path());
        command.stdin(Stdio::from(connection)).stdout(Stdio::null());
        let mut inherited = job.descriptors.all();
        inherited.push(job_number);
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls that are async-signal-safe are made, on values that
        // the closure owns; nothing is allocated.
        unsafe {
            command.pre_exec(move || prepare_child(parent, &inherited));
        }
        Ok((command, job_file))
    }

    /// Returns the reason of its end in one sentence, if a filter of system calls has ended it.
    pub fn refused(mut self, status: ExitStatus) -> Option<String> {
        let mut report = [0; REPORT_BYTES];
        if self.report.read_exact(&mut report).is_ok() {
            return Some(RefusedCall::from_report(report).to_string());
        }
        (status.signal() == Some(libc::SIGSYS))
            .then(|| "it made a system call that its filter refuses".to_owned())
    }
}
