//! `vprof top`: a run in progress, live on a terminal.
//!
//! ```text
//!  [`control::WatchedRun`] ──snapshots──▶ [`state::ViewState`] ──▶ [`draw::screen`] ──▶ terminal
//!        ▲                                     ▲
//!        └──────────────commands───────────────┴──keys── [`keys::KeyParser`]
//! ```
//!
//! Between two refreshes there is work only for a key or a signal, and only changes are written.

mod backend;
mod control;
mod details;
pub mod draw;
#[cfg(test)]
mod fixture;
mod history;
pub mod keys;
pub mod list;
pub mod own_run;
pub mod panes;
mod remote;
pub mod show;
pub mod state;
pub mod table;
pub mod terminal;

use host::control::place;

use crate::args::TopArgs;
use crate::errors::{Error, ExitCode};
use remote::RemoteRun;
use show::show;
use state::ViewState;

/// Runs the command.
pub fn command(args: &TopArgs) -> Result<ExitCode, Error> {
    terminal::check()?;
    let found = place::connect(args.run.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    let mut state = ViewState::new(args.display, false);
    runtime.block_on(async {
        let mut run = RemoteRun::new(found.stream, state.view(), args.display).await?;
        show(&mut run, &mut state).await
    })?;
    if let Some(reason) = state.ended {
        text::stderr_line!("vprof: {reason}");
    }
    Ok(ExitCode::Done)
}
