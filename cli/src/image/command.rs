//! `-- CMD ARGS`: hands a command to a guest that was made for it.
//!
//! The guest's init finds `/vprof/command`, each of its words ended by a NUL, runs it, and writes its exit status to the exit port.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::{ImageError, Payload, cpio, initrd};

/// What initrds that run commands have, and others do not: their own list of modules.
const MARK: &str = "lib/modules/load-order";
/// Where the guest finds its command, relative to the root of the initramfs.
const PATH: &str = "vprof/command";
/// The longest command, bytes: what one argument may have on Linux (MAX_ARG_STRLEN).
const MAX_LENGTH: usize = 128 << 10;

/// Adds the command to the initrd.
pub fn add(payload: &mut Payload, command: &[OsString]) -> Result<(), ImageError> {
    let Some(initrd) = payload.initrd.take() else {
        return Err(ImageError::Command(
            "a command needs an initrd that runs it: use an image built by `cargo xtask image`, or give --initrd"
                .to_owned(),
        ));
    };
    if !initrd::contains(&initrd, MARK) {
        return Err(ImageError::Command(
            "this image can't run the command after --: only images built by `cargo xtask image` have an init that does"
                .to_owned(),
        ));
    }
    let mut words = Vec::new();
    for word in command {
        words.extend_from_slice(word.as_bytes());
        words.push(0);
    }
    if words.len() > MAX_LENGTH {
        return Err(ImageError::Command("the command after -- is longer than 128 KiB".to_owned()));
    }
    let mut writer = cpio::Writer::append_to(initrd);
    writer.directory("vprof");
    writer.file(PATH, 0o644, &words);
    payload.initrd = Some(writer.finish());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(name: &str) -> Payload {
        let mut initrd = cpio::Writer::append_to(Vec::new());
        initrd.file(name, 0o644, b"");
        Payload { kernel: Vec::new(), initrd: Some(initrd.finish()) }
    }

    #[test]
    fn the_command_follows_the_initrd() {
        let mut payload = payload(MARK);
        let end = payload.initrd.as_ref().unwrap().len();
        add(&mut payload, &["sh".into(), "-c".into(), "exit 3".into()]).unwrap();
        let initrd = payload.initrd.unwrap();
        let directory = cpio::entry(&initrd, end).unwrap();
        let file = cpio::entry(&initrd, directory.end).unwrap();
        assert_eq!(file.name, PATH.as_bytes());
        assert_eq!(file.content, b"sh\0-c\0exit 3\0");
    }

    #[test]
    fn without_an_init_that_runs_it_there_is_no_command() {
        let error = |payload: &mut Payload, word: &str| {
            add(payload, &[OsString::from(word)]).unwrap_err().to_string()
        };
        let mut none = Payload { kernel: Vec::new(), initrd: None };
        assert!(error(&mut none, "true").contains("--initrd"));
        assert!(error(&mut payload("init"), "true").contains("cargo xtask image"));
        assert!(error(&mut payload(MARK), &"x".repeat(MAX_LENGTH)).contains("128 KiB"));
    }
}
