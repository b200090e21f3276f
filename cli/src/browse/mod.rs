//! `vprof report --interactive`: the tables of a report on a terminal, one below the other.
//!
//! ```text
//!  [`source::ReportSource`] ──tables──▶ [`state::BrowseState`] ──▶ [`draw::screen`] ──▶ terminal
//!        ▲                                     ▲
//!        └───────────────places────────────────┴──keys── [`TypedKeys`]
//! ```
//!
//! Each table is one that `vprof report` or `vprof annotate` prints, read by the same functions.

mod draw;
mod rows;
mod source;
mod state;
#[cfg(test)]
mod tests;

use profile::Filter;

use crate::args::ReportArgs;
use crate::errors::{Error, ExitCode, UsageError};
use crate::top::draw::theme::ScreenTheme;
use crate::top::show::TypedKeys;
use crate::top::terminal::{SignalEvent, ViewScreen, ViewSignals, is_usable};
use source::ReportSource;
use state::{BrowseAction, BrowseState};

/// Shows the part of the profile that the options choose, until the user quits.
pub fn command(args: &ReportArgs) -> Result<ExitCode, Error> {
    if !is_usable() {
        return Err(UsageError::NoScreen.into());
    }
    let source = ReportSource::open(&args.profile)?;
    let mut state = first(&source, args.to_filter())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::System { action: "start the runtime", source })?;
    runtime.block_on(show(&source, &mut state))?;
    Ok(ExitCode::Done)
}

/// Returns the state at its start: the programs of the chosen part.
fn first(source: &ReportSource, filter: Filter) -> Result<BrowseState, Error> {
    let place = source::Place::of_programs(filter);
    let table = source.table(&place)?;
    Ok(BrowseState::new(place, table))
}

async fn show(source: &ReportSource, state: &mut BrowseState) -> Result<(), Error> {
    let theme = ScreenTheme::from_environment();
    // Before the screen: a signal without a handler would end this process and leave the terminal raw.
    let mut signals = ViewSignals::new()?;
    let mut screen = ViewScreen::enter()?;
    let mut typed = TypedKeys::start()?;
    loop {
        screen.draw(|frame| draw::screen(frame, state, theme))?;
        let keys = tokio::select! {
            keys = typed.next() => match keys {
                Some(keys) => keys,
                // The terminal is gone.
                None => return Ok(()),
            },
            signal = signals.next() => {
                match signal {
                    SignalEvent::End => return Ok(()),
                    SignalEvent::Resized => {}
                    SignalEvent::Stop => screen.suspend()?,
                    SignalEvent::Continue => screen.resume()?,
                }
                continue;
            }
        };
        for key in keys {
            match state.key(key) {
                None => {}
                Some(BrowseAction::Quit) => return Ok(()),
                Some(BrowseAction::Suspend) => screen.suspend()?,
                Some(BrowseAction::Redraw) => screen.invalidate()?,
                Some(BrowseAction::Read(step)) => {
                    // A large profile takes a moment.
                    state.message = Some("reading ...".to_owned());
                    screen.draw(|frame| draw::screen(frame, state, theme))?;
                    state.arrive(source.table(&step.place), *step);
                }
            }
        }
    }
}
