//! Output of commands: text and JSON on standard output, and files next to profiles. A file gets its name
//! only when it is complete.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::errors::Error;

/// First bytes of every SQLite database (sqlite.org/fileformat.html, 1.3).
pub const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Permissions of files with recorded data, such as the arguments of the guest's programs: for their user
/// alone.
pub const PRIVATE: u32 = 0o600;

/// Target of output. A file is written under a temporary name in its directory until
/// [`OutputTarget::finish`].
#[derive(Debug)]
pub struct OutputTarget {
    sink: OutputSink,
    path: PathBuf,
    force: bool,
}

#[derive(Debug)]
enum OutputSink {
    Stdout(BufWriter<io::Stdout>),
    /// A device or a pipe.
    Direct(BufWriter<File>),
    Temporary(BufWriter<NamedTempFile>),
}

impl OutputTarget {
    /// Opens `path`, or standard output for `-`. Replaces an existing file only with `force`, and a profile
    /// never.
    pub fn open(path: &Path, force: bool) -> Result<Self, Error> {
        let sink = if path == Path::new("-") {
            OutputSink::Stdout(BufWriter::new(io::stdout()))
        } else {
            open(path, force)?
        };
        Ok(Self { sink, path: path.to_owned(), force })
    }

    /// Returns the writer.
    pub fn writer(&mut self) -> &mut (dyn Write + Send) {
        match &mut self.sink {
            OutputSink::Stdout(out) => out,
            OutputSink::Direct(out) => out,
            OutputSink::Temporary(out) => out,
        }
    }

    /// Makes the error of a failed write.
    pub fn error(&self, source: io::Error) -> Error {
        match self.sink {
            OutputSink::Stdout(_) => stdout_error(source),
            _ => Error::file("write", &self.path, source),
        }
    }

    /// Finishes the output, and gives a file its name.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Err(error) = self.writer().flush() {
            return Err(self.error(error));
        }
        let Self { sink, path, force } = self;
        let OutputSink::Temporary(out) = sink else { return Ok(()) };
        let failed = |source| Error::file("write", &path, source);
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        let kept = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        kept.map(drop).map_err(|error| match error.error.kind() {
            ErrorKind::AlreadyExists => Error::ExportExists(path.clone()),
            _ => failed(error.error),
        })
    }
}

fn open(path: &Path, force: bool) -> Result<OutputSink, Error> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(Error::file("write", path, ErrorKind::IsADirectory.into()));
        }
        Ok(metadata) if !metadata.is_file() => {
            let file = OpenOptions::new().write(true).open(path);
            return file
                .map(|file| OutputSink::Direct(BufWriter::new(file)))
                .map_err(|error| Error::file("write", path, error));
        }
        Ok(_) if is_database(path) => return Err(Error::ExportOverProfile(path.to_owned())),
        Ok(_) if !force => return Err(Error::ExportExists(path.to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(Error::file("write", path, error)),
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = Builder::new()
        .prefix(".vprof-")
        .permissions(Permissions::from_mode(PRIVATE))
        .tempfile_in(parent)
        .map_err(|error| Error::file("write a file in", parent, error))?;
    Ok(OutputSink::Temporary(BufWriter::new(file)))
}

/// Returns true for a SQLite database, as profiles are. A file that can't be read is not known as one.
pub fn is_database(path: &Path) -> bool {
    let mut head = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *SQLITE_MAGIC
}

/// Writes text to standard output, all at once.
pub fn write_text(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints a value as JSON.
pub fn write_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut out = JsonOutput::new(io::BufWriter::new(io::stdout().lock()));
    serde_json::to_writer_pretty(&mut out, value).map_err(|e| stdout_error(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints a value as JSON on one line.
pub fn write_json_line(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut out = JsonOutput::new(io::BufWriter::new(io::stdout().lock()));
    serde_json::to_writer(&mut out, value).map_err(|e| stdout_error(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_error)
}

/// Writer of JSON for a terminal: control characters from U+0080 to U+009F, which JSON allows in a string
/// (RFC 8259, section 7) and terminals obey (ECMA-48, 5.3), become `\u00XX`.
#[derive(Debug)]
pub struct JsonOutput<W> {
    out: W,
    /// The last byte was [`C1_LEAD`], and is not written yet.
    lead: bool,
}

/// First byte of U+0080 to U+00BF in UTF-8 (RFC 3629).
const C1_LEAD: u8 = 0xc2;

impl<W: Write> JsonOutput<W> {
    /// Makes a writer to `out`.
    pub fn new(out: W) -> Self {
        Self { out, lead: false }
    }
}

impl<W: Write> Write for JsonOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if std::mem::take(&mut self.lead) {
                if matches!(first, 0x80..=0x9f) {
                    write!(self.out, "\\u{first:04x}")?;
                    rest = rest.get(1..).unwrap_or_default();
                    continue;
                }
                self.out.write_all(&[C1_LEAD])?;
            }
            let end = rest.iter().position(|byte| *byte == C1_LEAD);
            let (plain, others) = rest.split_at(end.unwrap_or(rest.len()));
            self.out.write_all(plain)?;
            self.lead = !others.is_empty();
            rest = others.get(1..).unwrap_or_default();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Accepts that the reader of standard output has left, as `head -1` does. For commands whose exit code is a
/// verdict, because the verdict must not depend on how much of the output is read.
pub fn ignore_closed_pipe(printed: Result<(), Error>) -> Result<(), Error> {
    match printed {
        Err(error) if error.is_broken_pipe() => Ok(()),
        other => other,
    }
}

/// Makes the error of a failed write to standard output.
pub fn stdout_error(source: io::Error) -> Error {
    Error::System { action: "write to standard output", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, force: bool, text: &str) -> Result<(), Error> {
        let mut output = OutputTarget::open(path, force)?;
        output.writer().write_all(text.as_bytes()).map_err(|error| output.error(error))?;
        output.finish()
    }

    #[test]
    fn a_file_is_replaced_only_by_force_and_a_profile_never() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.folded");
        write(&path, false, "one").unwrap();
        assert!(matches!(write(&path, false, "two"), Err(Error::ExportExists(_))));
        write(&path, true, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, b"SQLite format 3\0 and more").unwrap();
        assert!(matches!(write(&path, true, "four"), Err(Error::ExportOverProfile(_))));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn no_control_character_is_in_json() {
        let text = "a\u{9b}31m\u{80}\u{9f}\u{a0}\u{c2}\u{1b}é\u{bf}\u{10ffff}";
        let mut whole = JsonOutput::new(Vec::new());
        serde_json::to_writer_pretty(&mut whole, &[text]).unwrap();
        let written = String::from_utf8(whole.out).unwrap();
        assert!(written.chars().all(|c| c == '\n' || !c.is_control()), "{written:?}");
        assert!(written.contains("a\\u009b31m\\u0080\\u009f\u{a0}"), "{written:?}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&written).unwrap(), [text]);
        // However the bytes are cut.
        let mut single = JsonOutput::new(Vec::new());
        for byte in serde_json::to_vec(text).unwrap() {
            single.write_all(&[byte]).unwrap();
        }
        assert_eq!(serde_json::from_slice::<String>(&single.out).unwrap(), text);
        assert!(!String::from_utf8(single.out).unwrap().chars().any(char::is_control));
    }

    #[test]
    fn an_unfinished_file_does_not_exist() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.folded");
        let mut output = OutputTarget::open(&path, false).unwrap();
        output.writer().write_all(b"half").unwrap();
        drop(output);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(write(&directory.path().join("no/such/place"), false, "").is_err());
        assert!(write(directory.path(), true, "").is_err());
        write(Path::new("/dev/null"), false, "gone").unwrap();
        assert!(write(Path::new("/dev/full"), false, "no room").is_err());
    }
}
