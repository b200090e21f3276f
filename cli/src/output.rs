//! Output of commands: text and JSON on standard output, and files next to profiles, complete under their name or not
//! there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::errors::Error;

/// What every SQLite database begins with (sqlite.org/fileformat.html, 1.3).
pub const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Permissions of files that hold what was recorded, such as the arguments of the guest's programs: nobody else reads
/// them.
pub const PRIVATE: u32 = 0o600;

/// Where output goes. A file is written under another name beside its own, which it gets by [`Output::finish`].
#[derive(Debug)]
pub struct Output {
    sink: Sink,
    path: PathBuf,
    force: bool,
}

#[derive(Debug)]
enum Sink {
    Stdout(BufWriter<io::Stdout>),
    /// A device or a pipe.
    Direct(BufWriter<File>),
    Beside(BufWriter<NamedTempFile>),
}

impl Output {
    /// Opens `path`, or standard output for `-`. An existing file is replaced only by `force`, a profile never.
    pub fn open(path: &Path, force: bool) -> Result<Self, Error> {
        let sink = if path == Path::new("-") {
            Sink::Stdout(BufWriter::new(io::stdout()))
        } else {
            open(path, force)?
        };
        Ok(Self { sink, path: path.to_owned(), force })
    }

    /// What it is written through.
    pub fn writer(&mut self) -> &mut dyn Write {
        match &mut self.sink {
            Sink::Stdout(out) => out,
            Sink::Direct(out) => out,
            Sink::Beside(out) => out,
        }
    }

    /// A failure to write it.
    pub fn error(&self, source: io::Error) -> Error {
        match self.sink {
            Sink::Stdout(_) => stdout_error(source),
            _ => Error::file("write", &self.path, source),
        }
    }

    /// All is written.
    pub fn finish(mut self) -> Result<(), Error> {
        if let Err(error) = self.writer().flush() {
            return Err(self.error(error));
        }
        let Self { sink, path, force } = self;
        let Sink::Beside(out) = sink else { return Ok(()) };
        let failed = |source| Error::file("write", &path, source);
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        let kept = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        kept.map(drop).map_err(|error| match error.error.kind() {
            ErrorKind::AlreadyExists => Error::ExportExists(path.clone()),
            _ => failed(error.error),
        })
    }
}

fn open(path: &Path, force: bool) -> Result<Sink, Error> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            return Err(Error::file("write", path, ErrorKind::IsADirectory.into()));
        }
        Ok(metadata) if !metadata.is_file() => {
            let file = OpenOptions::new().write(true).open(path);
            return file
                .map(|file| Sink::Direct(BufWriter::new(file)))
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
    Ok(Sink::Beside(BufWriter::new(file)))
}

/// Whether it is a profile, or another database. A file that can't be read is none that is known.
pub fn is_database(path: &Path) -> bool {
    let mut head = [0; 16];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *SQLITE_MAGIC
}

/// Writes text to standard output, all of it at once.
pub fn write_text(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(stdout_error)
}

/// Prints something as JSON.
pub fn write_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value).map_err(|e| stdout_error(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(stdout_error)
}

/// A failure to write to standard output.
pub fn stdout_error(source: io::Error) -> Error {
    Error::System { action: "write to standard output", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, force: bool, text: &str) -> Result<(), Error> {
        let mut output = Output::open(path, force)?;
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
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing stays beside it");
    }

    #[test]
    fn what_is_not_finished_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.folded");
        let mut output = Output::open(&path, false).unwrap();
        output.writer().write_all(b"half").unwrap();
        drop(output);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(write(&directory.path().join("no/such/place"), false, "").is_err());
        assert!(write(directory.path(), true, "").is_err());
        write(Path::new("/dev/null"), false, "gone").unwrap();
        assert!(write(Path::new("/dev/full"), false, "no room").is_err());
    }
}
