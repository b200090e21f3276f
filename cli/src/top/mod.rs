//! `vprof top`: a run that goes on, live on a terminal.
//!
//! ```text
//!  [`steer::Run`] ──looks──▶ [`state::State`] ──▶ [`draw::screen`] ──▶ terminal
//!        ▲                        ▲
//!        └──────commands──────────┴──keys── [`keys::Parser`]
//! ```
//!
//! Nothing happens between two looks unless a key or a signal comes, and only what has changed is written.

mod backend;
mod draw;
#[cfg(test)]
mod fixture;
mod history;
mod keys;
pub mod own;
mod panes;
mod remote;
mod show;
mod state;
mod steer;
mod table;
pub mod terminal;

use host::control::place;

use crate::args::TopArgs;
use crate::errors::{Error, ExitCode};
use remote::Remote;
use show::show;
use state::State;

/// Runs the command.
pub fn command(args: &TopArgs) -> Result<ExitCode, Error> {
    terminal::check()?;
    let found = place::connect(args.run.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    let mut state = State::new(args.display, false);
    runtime.block_on(async {
        let mut run = Remote::new(found.stream, state.view(), args.display).await?;
        show(&mut run, &mut state).await
    })?;
    if let Some(why) = state.ended {
        eprintln!("vprof: {why}");
    }
    Ok(ExitCode::Done)
}
