//! Names the user code of a finished profile by debug files.
//!
//! A run names code by what it finds in the guest. Distributions strip their programs, so much code has no
//! name; debug files that are installed or fetched later name it here. A file is used only if it has exactly
//! the build-id that the profile has of the program. A frame is changed only if the file has more information
//! on it: a name never gets worse.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;
use symbols::elf::BuildId;
use symbols::names::{DebugFile, DebugFiles, DebugQuery, Symbolizer};

use crate::naming::{is_nameless, name_frame, named_by, present_start, shared_with};
use crate::rows::{FrameRow, InlinedRow};
use crate::store::{CodeFile, EditError, Editor};

#[cfg(test)]
mod tests;

/// Progress, reported before each file.
#[derive(Debug, Clone, Copy)]
pub struct FileProgress<'a> {
    /// Number of files that are done.
    pub done: usize,
    /// Number of all files.
    pub files: usize,
    /// Path of the next file, in the guest.
    pub path: &'a str,
}

/// Numbers of frames of user code and of those with a name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FrameCounts {
    /// All frames.
    pub all: usize,
    /// Frames with a name before.
    pub before: usize,
    /// Frames with a name now.
    pub after: usize,
}

impl FrameCounts {
    fn from_rows(frames: &[FrameRow]) -> Self {
        let before = frames.iter().filter(|row| has_name(row)).count();
        Self { all: frames.len(), before, after: before }
    }

    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.before += other.before;
        self.after += other.after;
    }
}

/// A file of the guest whose debug file was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SymbolizedFile {
    /// Path in the guest.
    pub path: String,
    /// Its build-id, hexadecimal.
    pub build_id: String,
    /// The debug file: a path of the host, or the name of a source.
    pub debug_file: String,
    /// Its frames.
    pub frames: FrameCounts,
}

/// A file of the guest without a debug file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotFound {
    /// Path in the guest.
    pub path: String,
    /// Build-id, hexadecimal.
    pub build_id: Option<String>,
    /// Reason, in a few words.
    pub reason: String,
    /// Its frames.
    pub frames: FrameCounts,
}

/// Result of [`symbolize`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SymbolizeResult {
    /// Files with a debug file, those with the most new names first.
    pub found: Vec<SymbolizedFile>,
    /// Files without one, those with the most unnamed frames first.
    pub not_found: Vec<NotFound>,
    /// The frames of all files.
    pub frames: FrameCounts,
    /// Number of files of which a source could not say whether it has a debug file.
    pub unanswered: usize,
}

/// Names the user code of the profile at `path` by what `debug` finds. Stores the names of each file at once:
/// what was stored before a failure stays.
///
/// # Errors
/// See [`EditError`]. A debug file that is missing or damaged is not an error.
pub fn symbolize(
    path: &Path,
    debug: &DebugFiles,
    mut progress: impl FnMut(FileProgress<'_>),
) -> Result<SymbolizeResult, EditError> {
    let mut editor = Editor::open(path)?;
    let files = editor.files()?;
    let mut result = SymbolizeResult::default();
    for (done, file) in files.iter().enumerate() {
        progress(FileProgress { done, files: files.len(), path: &file.path });
        let old = editor.frames(file.id)?;
        let mut frames = FrameCounts::from_rows(&old);
        match find(file, debug) {
            Ok((build_id, debug_file)) => {
                let debug_path = named_by(&debug_file.origin);
                let new = rename(&old, &debug_file, debug);
                // A debug file with no more names than the program itself has named nothing.
                if !new.is_empty() {
                    editor.rename(file.id, &debug_path, &new)?;
                }
                frames.after += gained(&old, &new);
                let path = file.path.clone();
                result.found.push(SymbolizedFile { path, build_id, debug_file: debug_path, frames });
            }
            Err(reason) => {
                result.unanswered += usize::from(matches!(reason, DebugFileError::Rejected(_)));
                let (path, build_id) = (file.path.clone(), file.build_id.clone());
                result.not_found.push(NotFound { path, build_id, reason: reason.to_string(), frames });
            }
        }
        result.frames.add(frames);
    }
    result.found.sort_by_key(|file| std::cmp::Reverse(file.frames.after - file.frames.before));
    result.not_found.sort_by_key(|file| std::cmp::Reverse(file.frames.all - file.frames.before));
    Ok(result)
}

/// Reason why a file has no debug file.
#[derive(Debug, thiserror::Error)]
enum DebugFileError {
    /// The guest's file was not read.
    #[error("{0}")]
    NotRead(String),
    /// The guest's file has no build-id.
    #[error("it has no build-id")]
    NoBuildId,
    /// The profile is damaged.
    #[error("its build-id is invalid")]
    InvalidBuildId,
    /// No source has the file.
    #[error("no debug file of this build")]
    NotFound,
    /// The sources' files do not fit, or cannot be read.
    #[error("{0}")]
    Rejected(String),
}

/// Returns the debug file of a file.
fn find(file: &CodeFile, debug: &DebugFiles) -> Result<(String, DebugFile), DebugFileError> {
    let unread = |read: &String| read.starts_with("not read");
    let Some(text) = &file.build_id else {
        let unread = file.read_from.clone().filter(unread);
        return Err(unread.map_or(DebugFileError::NoBuildId, DebugFileError::NotRead));
    };
    let build_id: BuildId = text.parse().map_err(|_| DebugFileError::InvalidBuildId)?;
    let query = DebugQuery { path: file.path.clone(), build_id: Some(build_id), link: None };
    match debug.find(&query) {
        Ok(found) => Ok((text.clone(), found)),
        Err(reasons) if reasons.is_empty() => Err(DebugFileError::NotFound),
        Err(reasons) => Err(DebugFileError::Rejected(reasons.join("; "))),
    }
}

/// Returns the frames on which `file` has more information.
fn rename(old: &[FrameRow], file: &DebugFile, places: &DebugFiles) -> Vec<(FrameRow, Vec<InlinedRow>)> {
    let shared = shared_with(file, places);
    let symbols = Symbolizer::new(&file.elf, None, shared.as_ref().map(|shared| &shared.elf));
    old.iter().filter_map(|row| better(row, &symbols)).collect()
}

/// Returns the frame as `symbols` name it, if that is more than it has.
fn better(old: &FrameRow, symbols: &Symbolizer) -> Option<(FrameRow, Vec<InlinedRow>)> {
    let start = present_start(old);
    let module = old.module.as_deref().unwrap_or_default();
    let (mut new, inlined) = name_frame(old.clone(), module, Some(symbols), &|_: u64| start);
    if new.source.is_none() && (old.source.is_some() || !has_name(&new)) {
        return None;
    }
    if !has_name(&new) && old.symbol.is_some() {
        (new.symbol, new.offset) = (old.symbol.clone(), old.offset);
    }
    Some((new, inlined))
}

/// Returns how many of the frames got their first name.
fn gained(old: &[FrameRow], new: &[(FrameRow, Vec<InlinedRow>)]) -> usize {
    let named = |rows: &mut dyn Iterator<Item = &FrameRow>| rows.filter(|row| has_name(row)).count();
    let changed: HashSet<u32> = new.iter().map(|(row, _)| row.id).collect();
    let before = named(&mut old.iter().filter(|row| changed.contains(&row.id)));
    named(&mut new.iter().map(|(row, _)| row)).saturating_sub(before)
}

fn has_name(row: &FrameRow) -> bool {
    !is_nameless(row.symbol.as_deref(), row.module.as_deref(), row.address, row.offset)
}
