//! Writes profiles in formats that other programs read.
//!
//! ```no_run
//! use std::path::Path;
//!
//! let profile = profile::Profile::open(Path::new("vprof.vprof"))?;
//! let request = export::Request::new(export::Format::Folded);
//! let mut text = Vec::new();
//! export::write(&profile, &request, &mut text, &mut |_, _| {})?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`write()`] reads the chosen part of a profile as a [`Recording`] and hands it to the module of the format. All text of the
//! guest goes through [`text::clean`] first. Nothing here knows a terminal or a file.

mod bootchart;
mod csv;
mod firefox;
mod flamegraph;
mod folded;
mod format;
mod html;
pub mod names;
mod parquet;
mod perf_script;
mod pprof;
mod rows;
mod sums;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use profile::report::{Filter, Recording, RecordingRequest, ReportError};
use profile::{Profile, ProfileError};

pub use flamegraph::write_difference;
pub use format::{Count, Format, Root};
pub use html::{PageError, PageRequest, write_page};

/// What shall be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// In which format.
    pub format: Format,
    /// Which part of the profile.
    pub filter: Filter,
    /// What stands at the root of stacks, in formats without a place of its own for processes and threads.
    pub root: Root,
    /// What numbers count, in formats that have only one.
    pub count: Count,
    /// What the profile is called, in formats that have a title.
    pub title: String,
}

impl Request {
    /// All of a profile in this format.
    pub fn new(format: Format) -> Self {
        let (filter, root, count) = (Filter::default(), Root::default(), Count::default());
        Self { format, filter, root, count, title: "vprof".to_owned() }
    }
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The profile could not be read.
    #[error(transparent)]
    Read(#[from] ReportError),
    /// The output could not be written.
    #[error("can't write the export: {0}")]
    Write(#[from] io::Error),
    /// The format shows more of a profile than its recording.
    #[error("{0} needs a whole profile")]
    NeedsProfile(Format),
    /// The format shows the whole run.
    #[error("{0} shows the whole boot: it takes no option that chooses a part")]
    Whole(Format),
    /// The page could not be made.
    #[error(transparent)]
    Page(#[from] PageError),
    /// There is nothing to write.
    #[error("the chosen part of the profile has no samples in the guest: there is nothing to export as {0}")]
    Empty(Format),
    /// The format can not hold it.
    #[error("{format} can't hold this profile: {reason}")]
    TooMuch {
        /// The format.
        format: Format,
        /// What does not fit.
        reason: String,
    },
}

impl From<ProfileError> for ExportError {
    fn from(error: ProfileError) -> Self {
        Self::Read(error.into())
    }
}

/// Writes the chosen part of a profile to `out`. `progress` is told now and then how many samples are done, and of how many.
///
/// # Errors
/// See [`ExportError`]. What was written before an error is not complete.
pub fn write(
    profile: &Profile,
    request: &Request,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ExportError> {
    if request.format == Format::Html {
        let page = PageRequest { filter: request.filter.clone(), title: request.title.clone(), base: None };
        return Ok(write_page(profile, &page, out, progress)?);
    }
    if request.format == Format::Bootchart {
        if request.filter != Filter::default() {
            return Err(ExportError::Whole(request.format));
        }
        let chart = profile::boot::Chart::read(profile)?;
        bootchart::write(&chart, &request.title, out)?;
        return Ok(out.flush()?);
    }
    let wanted = RecordingRequest { filter: request.filter.clone(), idle: request.format.shows_idle() };
    let recording = Recording::read(profile, &wanted, progress)?;
    write_recording(&recording, request, out)?;
    Ok(out.flush()?)
}

/// Like [`write()`], of what is read already.
///
/// # Errors
/// See [`ExportError`].
pub fn write_recording(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    match request.format {
        Format::Folded => folded::write(recording, request, out),
        Format::Flamegraph => flamegraph::write(recording, request, out),
        Format::Firefox => firefox::write(recording, request, out),
        Format::Pprof => pprof::write(recording, request, out),
        Format::PerfScript => perf_script::write(recording, request, out),
        Format::Csv => csv::write(recording, request, out),
        Format::Parquet => parquet::write(recording, request, out),
        // It shows more than samples.
        Format::Html | Format::Bootchart => Err(ExportError::NeedsProfile(request.format)),
    }
}
