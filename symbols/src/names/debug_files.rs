//! Separate debug files: where they may be, and the proof that one belongs to a program.

use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;

use crate::elf::{BuildId, DebugLink, ElfFile, ReadAt};

/// Directory in which distributions install debug files.
const USUAL: &str = "/usr/lib/debug";
/// Bytes of a file whose CRC is computed, at most.
const MAX_CRC: u64 = 1 << 30;
/// Bytes that are read at once for it.
const BLOCK: usize = 256 << 10;

/// Files of the guest by their path.
pub trait GuestFiles: Send {
    /// Returns the regular file at `path`, an absolute path of the guest.
    fn open(&self, path: &str) -> Option<Box<dyn ReadAt>>;

    /// Looks at what they are on, on the thread that will read them, while the guest has not changed it yet:
    /// once it has mounted a file system and writes to it, its disk may be in a state in which it cannot be
    /// opened.
    fn prepare(&self) {}
}

/// Makes readers of the guest's files, one for each thread that needs one.
pub type OpenFiles = Arc<dyn Fn() -> Box<dyn GuestFiles> + Send + Sync>;

/// Returns a guest none of whose files can be read: programs are read from its memory only.
pub fn no_files() -> OpenFiles {
    struct NoFiles;
    impl GuestFiles for NoFiles {
        fn open(&self, _: &str) -> Option<Box<dyn ReadAt>> {
            None
        }
    }
    Arc::new(|| Box::new(NoFiles))
}

/// Key by which a debug file is searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugQuery {
    /// Absolute path of the program or library in the guest.
    pub path: String,
    /// Build.
    pub build_id: Option<BuildId>,
    /// Link to a debug file.
    pub link: Option<DebugLink>,
}

impl DebugQuery {
    /// For `elf`, which the guest has at `path`.
    pub fn new(elf: &ElfFile, path: &str) -> Self {
        Self { path: path.into(), build_id: elf.build_id().cloned(), link: elf.debug_link() }
    }
}

/// `build-id X (PATH)`: what a user looks for elsewhere.
impl std::fmt::Display for DebugQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = display::clean::ascii(self.path.as_bytes());
        match (&self.build_id, &self.link) {
            (Some(id), _) => write!(f, "build-id {id} ({path})"),
            (None, Some(link)) => write!(f, "{} of {path}", link.name),
            (None, None) => write!(f, "{path}, which has neither a build-id nor a link to a debug file"),
        }
    }
}

/// Another place to ask for debug files, such as a server.
pub trait DebugSource: Send {
    /// Returns the name of the place, for reports.
    fn name(&self) -> String;
    /// Returns the debug file of this build; `Ok(None)` when the source does not have it.
    ///
    /// # Errors
    /// The source cannot be read.
    fn find(&self, build_id: &BuildId) -> Result<Option<Box<dyn ReadAt>>, DebugSourceError>;
}

/// Reason why a [`DebugSource`] could not be read; its `Display` is for a report.
#[derive(Debug, thiserror::Error)]
pub enum DebugSourceError {
    /// The file in the cache cannot be written.
    #[error("cannot write the cache {path}: {error}", path = .path.display())]
    Cache {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// No server has answered; a reason for each.
    #[error("{}", .0.join("; "))]
    Servers(Vec<String>),
}

/// Source of a debug file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebugFileOrigin {
    /// In the guest, at this path.
    Guest(String),
    /// On the host, at this path.
    Host(PathBuf),
    /// In a [`DebugSource`] of this name.
    Source(String),
}

/// A debug file that was proven to belong to the program.
#[derive(Debug)]
pub struct DebugFile {
    /// The file.
    pub elf: ElfFile,
    /// Source of the file.
    pub origin: DebugFileOrigin,
}

/// The places where debug files may be, in the order in which they are asked.
#[derive(Default)]
pub struct DebugFiles {
    guest: Option<Box<dyn GuestFiles>>,
    directories: Vec<PathBuf>,
    sources: Vec<Box<dyn DebugSource>>,
}

impl std::fmt::Debug for DebugFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.sources.iter().map(|source| source.name()).collect();
        f.debug_struct("DebugFiles")
            .field("guest", &self.guest.is_some())
            .field("directories", &self.directories)
            .field("sources", &names)
            .finish()
    }
}

impl DebugFiles {
    /// No place at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// And the guest's own files.
    #[must_use]
    pub fn with_guest(mut self, files: Box<dyn GuestFiles>) -> Self {
        self.guest = Some(files);
        self
    }

    /// And a directory of the host: one laid out as /usr/lib/debug, one with plain debug files, or a root of
    /// files with the guest's paths.
    #[must_use]
    pub fn with_directory(mut self, directory: PathBuf) -> Self {
        self.directories.push(directory);
        self
    }

    /// And another place.
    #[must_use]
    pub fn with_source(mut self, source: Box<dyn DebugSource>) -> Self {
        self.sources.push(source);
        self
    }

    /// Returns the first file that has symbols or DWARF and belongs to the program: of its build-id, or of
    /// the CRC in its link where it has no build-id. Without one, why places could not answer.
    pub fn find(&self, query: &DebugQuery) -> Result<DebugFile, Vec<String>> {
        if let Some(found) = self.in_guest(query).or_else(|| self.in_directories(query)) {
            return Ok(found);
        }
        let mut reasons = Vec::new();
        for source in &self.sources {
            let Some(id) = &query.build_id else { continue };
            match source.find(id) {
                Ok(None) => {}
                Ok(Some(file)) => match proven(file, query) {
                    Some(elf) => {
                        return Ok(DebugFile { elf, origin: DebugFileOrigin::Source(source.name()) });
                    }
                    None => reasons.push(format!("{}: not the file of build-id {id}", source.name())),
                },
                Err(reason) => reasons.push(format!("{}: {reason}", source.name())),
            }
        }
        Err(reasons)
    }

    /// Returns the file that several debug files share ([`ElfFile::alt_link`]), by the path and the build-id
    /// there, of the debug file at `origin`.
    pub fn find_shared(&self, path: &str, build_id: &BuildId, origin: &DebugFileOrigin) -> Option<DebugFile> {
        let query = DebugQuery { path: path.into(), build_id: Some(build_id.clone()), link: None };
        let from = match origin {
            DebugFileOrigin::Guest(from) => from.clone(),
            DebugFileOrigin::Host(from) => from.to_str()?.to_owned(),
            DebugFileOrigin::Source(_) => String::new(),
        };
        let near = join_lexically(directory_of(&from), path);
        let found = match origin {
            DebugFileOrigin::Host(_) => host(Path::new(&near), &query),
            _ => self.guest_file(&near, &query).or_else(|| self.guest_file(path, &query)),
        };
        found.or_else(|| self.find(&query).ok())
    }

    fn in_guest(&self, query: &DebugQuery) -> Option<DebugFile> {
        self.guest.as_ref()?;
        let mut paths: Vec<String> =
            by_build_id(query).map(|path| format!("{USUAL}/{path}")).into_iter().collect();
        let directory = directory_of(&query.path);
        if let Some(link) = &query.link {
            let name = &link.name;
            paths.push(format!("{USUAL}{directory}/{name}"));
            paths.push(format!("{directory}/{name}"));
            paths.push(format!("{directory}/.debug/{name}"));
        }
        paths.into_iter().filter(|path| *path != query.path).find_map(|path| self.guest_file(&path, query))
    }

    fn guest_file(&self, path: &str, query: &DebugQuery) -> Option<DebugFile> {
        let elf = proven(self.guest.as_ref()?.open(path)?, query)?;
        Some(DebugFile { elf, origin: DebugFileOrigin::Guest(path.into()) })
    }

    fn in_directories(&self, query: &DebugQuery) -> Option<DebugFile> {
        let mut below: Vec<String> = Vec::new();
        if let Some(path) = by_build_id(query) {
            below.push(path.clone());
            below.push(format!("{}/{path}", USUAL.trim_start_matches('/')));
        }
        let inside = query.path.trim_start_matches('/');
        let directory = directory_of(inside);
        if let Some(link) = &query.link {
            let name = &link.name;
            let usual = USUAL.trim_start_matches('/');
            below.extend([
                format!("{directory}/{name}"),
                name.clone(),
                format!("{directory}/.debug/{name}"),
                format!("{usual}/{directory}/{name}"),
            ]);
        }
        below.push(inside.to_owned());
        below.push(format!("{inside}.debug"));
        let base = inside.rsplit('/').next().unwrap_or(inside);
        below.extend([base.to_owned(), format!("{base}.debug")]);
        self.directories.iter().find_map(|directory| {
            below.iter().filter_map(|path| plain(path)).find_map(|path| host(&directory.join(path), query))
        })
    }
}

/// `.build-id/xx/yyyy.debug`.
fn by_build_id(query: &DebugQuery) -> Option<String> {
    let digits = query.build_id.as_ref()?.to_string();
    let (first, rest) = digits.split_at_checked(2)?;
    Some(format!(".build-id/{first}/{rest}.debug"))
}

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Returns a relative path that stays in the directory it is joined to: the guest chose its words.
fn plain(path: &str) -> Option<&Path> {
    let path = Path::new(path.trim_start_matches('/'));
    let stays = path.components().all(|part| matches!(part, Component::Normal(_)));
    (stays && path.components().next().is_some()).then_some(path)
}

/// `path` as seen from `directory`, without `.` and `..`.
fn join_lexically(directory: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{directory}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn host(path: &Path, query: &DebugQuery) -> Option<DebugFile> {
    // The guest chose the path: opening a FIFO waits, and opening a device may do something.
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    Some(DebugFile { elf: proven(Box::new(file), query)?, origin: DebugFileOrigin::Host(path.to_owned()) })
}

/// `file` when it belongs to the program and knows something that the program does not.
fn proven(file: Box<dyn ReadAt>, query: &DebugQuery) -> Option<ElfFile> {
    let elf = ElfFile::open(file).ok()?;
    let belongs = match (&query.build_id, &query.link) {
        (Some(id), _) => elf.build_id() == Some(id),
        (None, Some(link)) => crc32(elf.reader()) == Some(link.crc32),
        (None, None) => false,
    };
    let knows = elf.has_section(".symtab") || elf.has_section(".debug_info");
    (belongs && knows).then_some(elf)
}

fn crc32(file: &dyn ReadAt) -> Option<u32> {
    let size = file.len();
    if size > MAX_CRC {
        return None;
    }
    let mut crc = Crc::new();
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    while at < size {
        let part = usize::try_from(size - at).map_or(BLOCK, |left| left.min(BLOCK));
        let part = block.get_mut(..part)?;
        file.read_at(at, part)?;
        crc.update(part);
        at += part.len() as u64;
    }
    Some(crc.sum())
}
