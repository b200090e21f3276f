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
//! [`write()`] reads the chosen part of a profile as a [`Recording`] and passes it to the format's module.
//! All text of the guest goes through [`display::clean`] first. Nothing here knows a terminal or a file.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod bootchart;
mod csv;
mod firefox;
mod flamegraph;
mod folded;
mod format;
mod html;
#[cfg(feature = "fleet")]
pub mod lake;
mod mapped;
pub mod names;
#[cfg(feature = "fleet")]
pub mod otlp;
mod palette;
#[cfg(feature = "fleet")]
mod parquet;
mod perf_script;
mod perfetto;
mod pprof;
mod rows;
mod speedscope;
mod sums;
#[cfg(test)]
mod tests;

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

use profile::boot::{Boot, Chart};
use profile::report::{Filter, Recording, RecordingRequest, ReportError, call_stacks};
use profile::store::QueryError;
use profile::{Profile, ProfileError};

pub use display::csv::Formulas;
pub use flamegraph::{write_difference, write_graph};
pub use format::{Count, Format, Root};
pub use html::{PageError, PageRequest, write_document, write_page};

/// Request for an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Format of the output.
    pub format: Format,
    /// Part of the profile.
    pub filter: Filter,
    /// Include the stacks of the host ([`Format::shows_host`]).
    pub host: bool,
    /// Stacks of the calls of this watched function instead of samples ([`Format::shows_calls`]).
    pub trip: Option<String>,
    /// Root of stacks, in formats that have no separate field for processes and threads.
    pub root: Root,
    /// Unit of numbers, in formats that have only one.
    pub count: Count,
    /// Title of the profile, in formats that have one.
    pub title: String,
    /// Treatment of text that a spreadsheet takes for a formula, in CSV.
    pub formulas: Formulas,
}

impl Request {
    /// Requests all of a profile in this format.
    pub fn new(format: Format) -> Self {
        let (filter, root, count) = (Filter::default(), Root::default(), Count::default());
        let formulas = Formulas::default();
        Self { format, filter, host: false, trip: None, root, count, title: "vprof".to_owned(), formulas }
    }
}

/// Error of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The profile could not be read.
    #[error(transparent)]
    Read(#[from] ReportError),
    /// A query on the profile failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The output could not be written.
    #[error("cannot write the export: {0}")]
    Write(#[from] io::Error),
    /// The format shows more of a profile than its recording.
    #[error("{0} needs a whole profile")]
    NeedsProfile(Format),
    /// The format shows the whole run.
    #[error("{0} shows the whole boot: leave options that choose a part out")]
    Whole(Format),
    /// The profile is not of a boot.
    #[error("{0} shows a boot, but no sample hit one: record the guest from its start, as `vprof boot` does")]
    NoBoot(Format),
    /// The page could not be made.
    #[error(transparent)]
    Page(#[from] PageError),
    /// This build lacks the format ([`Format::is_built`]).
    #[error("{0} is not in this build, because it was made without the feature `fleet`")]
    NotBuilt(Format),
    /// There is nothing to write.
    #[error("the chosen part of the profile has no samples in the guest to export as {0}")]
    Empty(Format),
    /// The format cannot hold it.
    #[error("{format} cannot hold this profile: {reason}")]
    TooMuch {
        /// The format.
        format: Format,
        /// Reason.
        reason: String,
    },
}

impl From<ProfileError> for ExportError {
    fn from(error: ProfileError) -> Self {
        Self::Read(error.into())
    }
}

/// Writes the chosen part of a profile to `out`. Calls `progress` from time to time with the number of
/// samples done and the number of all.
///
/// # Errors
/// See [`ExportError`]. Output before an error is not complete.
pub fn write(
    profile: &Profile,
    request: &Request,
    out: &mut (dyn Write + Send),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), ExportError> {
    if let Some(symbol) = request.trip.as_ref().filter(|_| request.format.shows_calls()) {
        folded::write_calls(&call_stacks(profile, &request.filter, symbol)?, request.root, out)?;
        return Ok(out.flush()?);
    }
    if request.format == Format::Html {
        let page = PageRequest { filter: request.filter.clone(), title: request.title.clone(), base: None };
        return Ok(write_page(profile, &page, out, progress)?);
    }
    if request.format == Format::Bootchart {
        if request.filter != Filter::default() {
            return Err(ExportError::Whole(request.format));
        }
        if !Boot::is_recorded(profile)? {
            return Err(ExportError::NoBoot(request.format));
        }
        let chart = Chart::read(profile)?;
        bootchart::write(&chart, &request.title, out)?;
        return Ok(out.flush()?);
    }
    if request.format == Format::Perfetto {
        perfetto::write(profile, request, out, progress)?;
        return Ok(out.flush()?);
    }
    let wanted = RecordingRequest {
        filter: request.filter.clone(),
        idle: request.format.shows_idle(),
        host: request.host,
    };
    let recording = Recording::read(profile, &wanted, progress)?;
    write_recording(&recording, request, out)?;
    Ok(out.flush()?)
}

/// Writes a recording like [`write()`].
///
/// # Errors
/// See [`ExportError`].
pub fn write_recording(
    recording: &Recording,
    request: &Request,
    out: &mut (dyn Write + Send),
) -> Result<(), ExportError> {
    match request.format {
        Format::Folded => folded::write(recording, request, out),
        Format::Flamegraph => flamegraph::write(recording, request, out),
        Format::Firefox => firefox::write(recording, request, out),
        Format::FirefoxGz => {
            let mut zipped = GzEncoder::new(out, Compression::default());
            firefox::write(recording, request, &mut zipped)?;
            zipped.finish()?;
            Ok(())
        }
        Format::Speedscope => speedscope::write(recording, request, out),
        Format::Pprof => pprof::write(recording, request, out),
        #[cfg(feature = "fleet")]
        Format::Otlp => otlp::write(recording, request, out),
        Format::PerfScript => perf_script::write(recording, request, out),
        Format::Csv => csv::write(recording, request, out),
        #[cfg(feature = "fleet")]
        Format::Parquet => parquet::write(recording, request, out),
        #[cfg(not(feature = "fleet"))]
        Format::Otlp | Format::Parquet => Err(ExportError::NotBuilt(request.format)),
        // These formats show more than samples.
        Format::Html | Format::Bootchart | Format::Perfetto => Err(ExportError::NeedsProfile(request.format)),
    }
}
