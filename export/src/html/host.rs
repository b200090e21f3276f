//! The host of an attached VM: places of the vCPUs' threads, functions of the host, and the stacks that lead
//! from the VMM into the guest.

use profile::Profile;
use profile::report::{Filter, HostReport, PlacedTick, Recording, RecordingRequest, ReportError};

/// Data of the host.
#[derive(Debug)]
pub(super) struct Host {
    pub report: HostReport,
    /// The ticks that the report counts.
    pub ticks: Vec<PlacedTick>,
    /// Stacks of guest and host.
    pub recording: Recording,
}

impl Host {
    /// Reads the data; `None` if the profile has no stacks of the host.
    pub(super) fn read(
        profile: &Profile,
        filter: &Filter,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Self>, ReportError> {
        let (report, ticks) = match HostReport::read_with_ticks(profile, filter) {
            Err(ReportError::NoHost) => return Ok(None),
            read => read?,
        };
        let request = RecordingRequest { filter: filter.clone(), idle: false, host: true };
        let recording = Recording::read(profile, &request, progress)?;
        Ok(Some(Self { report, ticks, recording }))
    }
}
