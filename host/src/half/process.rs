//! Starting a guest half, and the reason of its end.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus, Stdio};

use tempfile::TempDir;

use super::{COMMAND, HalfJob};
use crate::process::{refused_call, walled_command};

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
        let (mut command, job_file) = walled_command(COMMAND, job, job.inherited())?;
        command.env("TMPDIR", self.directory.path());
        command.stdin(Stdio::from(connection)).stdout(Stdio::null());
        Ok((command, job_file))
    }

    /// Returns the reason of its end in one sentence, if a filter of system calls has ended it.
    pub fn refused(self, status: ExitStatus) -> Option<String> {
        refused_call(self.report, status)
    }
}
