//! `-- CMD ARGS`: a command for a guest that was made to run one. Guests with systemd get theirs in another
//! way.
//!
//! The guest's init reads the command from `/vprof/command`, in which a NUL ends each word. Init runs the
//! command, and writes the command's exit status to the exit port.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::{BootPayload, ImageError, cpio, initrd_check};

/// File that only initrds which run commands have: their list of modules.
const MARK: &str = "lib/modules/load-order";
/// Path of the command, relative to the root of the initramfs.
const PATH: &str = "vprof/command";
/// Longest command, bytes: Linux' limit of one argument (MAX_ARG_STRLEN).
const MAX_LENGTH: usize = 128 << 10;

/// Reason for which a guest cannot run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The guest has no initrd that runs commands.
    #[error(
        "a command needs an init that runs it: use a disk image with systemd, one built by \
         `cargo xtask image demo`, or its kernel with --initrd"
    )]
    NoInit,
    /// The guest's init does not run commands.
    #[error(
        "this guest can't run the command after --: use a disk image with systemd, or one built by \
         `cargo xtask image demo`"
    )]
    ForeignInit,
    /// The command is longer than `MAX_LENGTH`.
    #[error("the command after -- is longer than 128 KiB")]
    TooLong,
}

/// Returns true if the initrd runs commands.
pub fn is_taken(payload: &BootPayload) -> bool {
    payload.initrd.as_deref().is_some_and(|initrd| initrd_check::contains(initrd, MARK))
}

/// Returns the error for a guest that neither was made for commands nor has systemd.
pub fn refuse(has_initrd: bool) -> ImageError {
    ImageError::Command(if has_initrd { CommandError::ForeignInit } else { CommandError::NoInit })
}

/// Returns the archive with the command, which follows the initrd at a multiple of [`cpio::ALIGNMENT`].
///
/// # Errors
/// The command is too long.
pub fn archive(command: &[OsString]) -> Result<Vec<u8>, ImageError> {
    check_length(command)?;
    let mut words = Vec::new();
    for word in command {
        words.extend_from_slice(word.as_bytes());
        words.push(0);
    }
    let mut writer = cpio::ArchiveWriter::append_to(Vec::new());
    writer.directory("vprof");
    writer.file(PATH, 0o644, &words);
    Ok(writer.finish())
}

/// Checks the length of a command.
///
/// # Errors
/// The command is longer than any guest accepts.
pub fn check_length(command: &[OsString]) -> Result<(), ImageError> {
    let length: usize = command.iter().map(|word| word.len() + 1).sum();
    if length > MAX_LENGTH {
        return Err(CommandError::TooLong.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(name: &str) -> BootPayload {
        let mut initrd = cpio::ArchiveWriter::append_to(Vec::new());
        initrd.file(name, 0o644, b"");
        BootPayload { kernel: Vec::new(), initrd: Some(initrd.finish()) }
    }

    #[test]
    fn the_archive_has_the_command() {
        let archive = archive(&["sh".into(), "-c".into(), "exit 3".into()]).unwrap();
        let directory = cpio::entry(&archive, 0).unwrap();
        let file = cpio::entry(&archive, directory.end).unwrap();
        assert_eq!(file.name, PATH.as_bytes());
        assert_eq!(file.content, b"sh\0-c\0exit 3\0");
    }

    #[test]
    fn without_an_init_that_runs_it_there_is_no_command() {
        let none = BootPayload { kernel: Vec::new(), initrd: None };
        assert!(!is_taken(&none) && !is_taken(&payload("init")) && is_taken(&payload(MARK)));
        assert!(refuse(false).to_string().contains("--initrd"));
        assert!(refuse(true).to_string().contains("cargo xtask image"));
        let error = archive(&["x".repeat(MAX_LENGTH).into()]).unwrap_err();
        assert!(error.to_string().contains("128 KiB"));
    }
}
