//! `vprof top`: a run in progress, live on a terminal.

pub mod own_run;
mod remote;

use control::place;
use tui::frame;
use tui::live::LiveView;
use tui::live::state::ViewState;
use tui::screen::{UnusableTerminal, check_terminal};

use crate::args::TopArgs;
use crate::errors::{Error, ExitCode, UsageError};
use remote::RemoteRun;

/// Runs the command.
pub fn command(args: &TopArgs) -> Result<ExitCode, Error> {
    check()?;
    let found = place::connect(args.run.as_deref())?;
    let runtime =
        control::runtime().map_err(|source| Error::System { action: "start the runtime", source })?;
    let mut state = ViewState::new(args.display, false);
    runtime.block_on(async {
        let mut run = RemoteRun::new(found.stream, state.view(), args.display).await?;
        let mut view = LiveView { run: &mut run, state: &mut state };
        frame::show(&mut view, ::attach::stop_process).await
    })?;
    if let Some(reason) = state.ended {
        display::stderr_line!("vprof: {reason}");
    }
    Ok(ExitCode::Done)
}

/// Checks that this terminal can show a live view.
pub fn check() -> Result<(), Error> {
    check_terminal().map_err(|reason| match reason {
        UnusableTerminal::NoTerminal => UsageError::NoTerminal.into(),
        UnusableTerminal::Plain(term) => UsageError::PlainTerminal(term).into(),
    })
}
