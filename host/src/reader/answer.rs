//! Answer of a reader of images, and its check. An image that has taken the reader over may have written it.

use disk_images::ImageInspection;
use display::clean::escaped;
use serde::{Deserialize, Serialize};

/// Longest answer, bytes. An inspection with 256 kernels, each with words of 16 KiB, has about 4 MiB.
pub(super) const MAX_ANSWER: usize = 16 << 20;
/// Longest sentence, bytes: that of a disk with 128 partitions, none of which has a kernel, has about 10 KiB.
const MAX_SENTENCE: usize = 64 << 10;
/// Longest words for a kernel's command line, bytes. Those of a boot loader's entry have at most 16 KiB, to
/// which a `root=` is added.
const MAX_WORDS: usize = 64 << 10;

/// Answer of a reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The guest's kernel and initrd are in memory, and its disks are sound.
    Boot(BootFacts),
    /// The disks are sound.
    Checked,
    /// Contents of a disk image.
    Inspection(ImageInspection),
    /// A file cannot be used, in one sentence for the user.
    Refused(String),
    /// A parser has failed, at this place of the program.
    Panicked(String),
}

/// Facts about what a guest boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootFacts {
    /// True if IMAGE is a disk, false if it is a kernel.
    pub is_disk: bool,
    /// True if there is an initrd.
    pub has_initrd: bool,
    /// True if the initrd runs a command that follows it; false if that was not asked.
    pub takes_command: bool,
    /// True if the disk's init is systemd; `None` if that is unknown.
    pub has_systemd: Option<bool>,
    /// Words for the kernel's command line.
    pub words: Option<String>,
    /// Length of the longest command line that the kernel takes, bytes.
    pub longest_command_line: usize,
    /// Origin of the kernel in one line, for the profile.
    pub origin: String,
    /// Choice made for a disk and its reason, in one line for the user.
    pub sentence: Option<String>,
}

/// Reason for which an answer is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The answer is longer than any that a reader sends.
    #[error("more than {MAX_ANSWER} bytes")]
    TooLong,
    /// The bytes are not an answer.
    #[error("bytes that are not an answer: {0}")]
    Malformed(#[from] postcard::Error),
    /// Bytes follow the answer.
    #[error("bytes after its answer")]
    Trailing,
    /// A text is longer than any that a reader sends, or it has a NUL.
    #[error("an invalid {0}")]
    Text(&'static str),
    /// The answer is for another task.
    #[error("the answer to another question")]
    OtherTask,
}

impl Answer {
    /// Returns the answer as bytes.
    ///
    /// # Errors
    /// The answer is longer than what the other end accepts.
    pub fn to_bytes(&self) -> Result<Vec<u8>, AnswerError> {
        let bytes = postcard::to_extend(self, Vec::new())?;
        if bytes.len() > MAX_ANSWER { Err(AnswerError::TooLong) } else { Ok(bytes) }
    }

    /// Reads an answer from all that a reader has sent. Sentences are returned on one line, without
    /// characters that affect a terminal.
    ///
    /// # Errors
    /// The bytes are not an answer that a reader sends.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AnswerError> {
        if bytes.len() > MAX_ANSWER {
            return Err(AnswerError::TooLong);
        }
        let (answer, rest) = postcard::take_from_bytes(bytes)?;
        if !rest.is_empty() {
            return Err(AnswerError::Trailing);
        }
        Ok(match answer {
            Self::Boot(facts) => Self::Boot(facts.checked()?),
            Self::Checked => Self::Checked,
            // Whatever shows an inspection escapes its texts: JSON has them as they are.
            Self::Inspection(inspection) => Self::Inspection(inspection),
            Self::Refused(text) => Self::Refused(sentence(text)?),
            Self::Panicked(place) => Self::Panicked(sentence(place)?),
        })
    }
}

impl BootFacts {
    fn checked(self) -> Result<Self, AnswerError> {
        if self.words.as_ref().is_some_and(|words| words.len() > MAX_WORDS || words.contains('\0')) {
            return Err(AnswerError::Text("command line"));
        }
        Ok(Self {
            origin: sentence(self.origin)?,
            sentence: self.sentence.map(sentence).transpose()?,
            ..self
        })
    }
}

/// Checks a text for the user, and returns it on one line.
fn sentence(text: String) -> Result<String, AnswerError> {
    if text.len() > MAX_SENTENCE {
        return Err(AnswerError::Text("sentence"));
    }
    Ok(escaped(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> BootFacts {
        BootFacts {
            is_disk: true,
            has_initrd: true,
            takes_command: false,
            has_systemd: Some(true),
            words: Some("root=/dev/vda quiet".to_owned()),
            longest_command_line: 2047,
            origin: "/boot/vmlinuz in x.img".to_owned(),
            sentence: None,
        }
    }

    fn read(answer: &Answer) -> Result<Answer, AnswerError> {
        Answer::from_bytes(&postcard::to_extend(answer, Vec::new()).unwrap())
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        for answer in [
            Answer::Boot(facts()),
            Answer::Checked,
            Answer::Refused("x.img is empty: give a disk image".to_owned()),
            Answer::Panicked("disk-images/src/lib.rs:1".to_owned()),
        ] {
            assert_eq!(Answer::from_bytes(&answer.to_bytes().unwrap()).unwrap(), answer);
        }
    }

    #[test]
    fn a_sentence_cannot_move_the_cursor_or_begin_a_line() {
        let read = read(&Answer::Refused("no\nvprof: all is well\x1b[2J".to_owned())).unwrap();
        assert_eq!(read, Answer::Refused("no\\x0avprof: all is well\\x1b[2J".to_owned()));
        let boot = Answer::Boot(BootFacts { sentence: Some("\x1b]0;x\x07".to_owned()), ..facts() });
        let Answer::Boot(facts) = Answer::from_bytes(&boot.to_bytes().unwrap()).unwrap() else { panic!() };
        assert_eq!(facts.sentence.as_deref(), Some("\\x1b]0;x\\x07"));
    }

    #[test]
    fn hostile_answers_are_refused() {
        assert!(matches!(read(&Answer::Refused("x".repeat(MAX_SENTENCE + 1))), Err(AnswerError::Text(_))));
        for words in ["a\0b".to_owned(), "x".repeat(MAX_WORDS + 1)] {
            let facts = BootFacts { words: Some(words), ..facts() };
            assert!(matches!(read(&Answer::Boot(facts)), Err(AnswerError::Text("command line"))));
        }
        let mut bytes = Answer::Boot(facts()).to_bytes().unwrap();
        bytes.push(0);
        assert!(matches!(Answer::from_bytes(&bytes), Err(AnswerError::Trailing)));
        assert!(matches!(Answer::from_bytes(&bytes[..9]), Err(AnswerError::Malformed(_))));
        assert!(matches!(Answer::from_bytes(&[]), Err(AnswerError::Malformed(_))));
        // A text that claims 2^63 bytes.
        let claim = [&[3][..], &[0xff; 9], &[0x7f]].concat();
        assert!(matches!(Answer::from_bytes(&claim), Err(AnswerError::Malformed(_))));
        assert!(matches!(Answer::from_bytes(&vec![0; MAX_ANSWER + 1]), Err(AnswerError::TooLong)));
    }
}
