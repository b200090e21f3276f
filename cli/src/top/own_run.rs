//! The run of this process: `vprof run --top`.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::Phase;
use control::SessionChange;
use profile::live::{SharedTables, View};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use tui::live::LiveView;
use tui::live::control::{RunCommand, RunEvent, WatchedRun};
use tui::live::state::ViewState;
use tui::{frame, terminal};

use crate::errors::Error;

/// Time between two refreshes.
const EVERY: Duration = Duration::from_millis(500);
/// Longest time in which the view leaves the screen: a blocked terminal must not delay the end of the run.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// Handles of the run for its view.
#[derive(Debug)]
pub struct RunHandles {
    /// Live tables.
    pub tables: SharedTables,
    /// Progress of the run.
    pub phase: watch::Receiver<Phase>,
    /// Requests to the run.
    pub control: mpsc::Sender<SessionChange>,
    /// Set to end the run.
    pub stop: watch::Sender<bool>,
}

/// Thread of a view. A view can't delay the run.
#[derive(Debug)]
pub struct ViewThread {
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Error>>,
}

impl ViewThread {
    /// Starts the view of the run.
    pub fn start(parts: RunHandles) -> Result<Self, Error> {
        let system = |action| move |source| Error::System { action, source };
        let runtime = control::runtime().map_err(system("start the runtime"))?;
        let (end, ended) = oneshot::channel();
        let view = move || {
            runtime.block_on(async {
                let mut state = ViewState::new(EVERY, true);
                let mut ticks = interval(EVERY);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                let mut run = OwnRun {
                    parts,
                    ended,
                    ticks,
                    view: state.view(),
                    message: None,
                    preparing: false,
                    latest: None,
                };
                let mut view = LiveView { run: &mut run, state: &mut state };
                frame::show(&mut view, ::attach::stop_process).await
            })
        };
        let thread = std::thread::Builder::new().name("vprof-top".to_owned()).spawn(view);
        Ok(Self { end, thread: thread.map_err(system("start a thread"))? })
    }

    /// Ends the view, and returns its error, if it had one. `stays`: the view of a run that has ended stays
    /// until the user leaves it.
    pub fn finish(self, stays: bool) -> Option<Error> {
        let Self { end, thread } = self;
        if !stays {
            drop(end);
        } else if end.send(()).is_ok() {
            let failed = thread.join().ok().and_then(Result::err);
            terminal::restore();
            return failed;
        }
        let deadline = Instant::now() + LEAVE_LIMIT;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let failed = match thread.is_finished() {
            // A panic in it was reported when it happened.
            true => thread.join().ok().and_then(Result::err),
            false => None,
        };
        terminal::restore();
        failed
    }
}

/// The run of this process, as a view sees it.
#[derive(Debug)]
struct OwnRun {
    parts: RunHandles,
    /// Gets a message at the end of the run, and is closed when the view has to leave.
    ended: oneshot::Receiver<()>,
    ticks: Interval,
    view: View,
    /// Message to show next.
    message: Option<String>,
    /// The latest message is about a step before the guest runs.
    preparing: bool,
    /// Time and view of the latest snapshot.
    latest: Option<(u64, View)>,
}

impl OwnRun {
    /// Returns a snapshot, if there is new data or another view.
    fn snapshot(&mut self) -> Option<RunEvent> {
        let tables = self.parts.tables.lock();
        let now = (tables.time_ns(), self.view.clone());
        if self.latest.as_ref() == Some(&now) {
            return None;
        }
        self.latest = Some(now);
        Some(RunEvent::Snapshot(Box::new(tables.snapshot(&self.view))))
    }
}

impl WatchedRun for OwnRun {
    type Error = Error;

    async fn next(&mut self) -> RunEvent {
        loop {
            if let Some(sentence) = self.message.take() {
                return RunEvent::Message(sentence);
            }
            tokio::select! {
                ended = &mut self.ended => return match ended {
                    Ok(()) => RunEvent::Ended("the run has ended".to_owned()),
                    Err(_) => RunEvent::Closed,
                },
                Ok(()) = self.parts.phase.changed() => {
                    let preparing = match &*self.parts.phase.borrow_and_update() {
                        Phase::Preparing(step) => Some(format!("{step} ...")),
                        Phase::Running(_) => None,
                    };
                    // A finished step clears its message.
                    let was_preparing = std::mem::replace(&mut self.preparing, preparing.is_some());
                    self.message = preparing.or_else(|| was_preparing.then(String::new));
                }
                _ = self.ticks.tick() => {
                    if let Some(event) = self.snapshot() {
                        return event;
                    }
                }
            }
        }
    }

    async fn send(&mut self, command: RunCommand) -> Result<(), Error> {
        let control = match command {
            RunCommand::View(view) => {
                self.view = view;
                self.ticks.reset_immediately();
                return Ok(());
            }
            RunCommand::End => {
                self.parts.stop.send_replace(true);
                return Ok(());
            }
            RunCommand::Start => SessionChange::Sampling(true),
            RunCommand::Stop => SessionChange::Sampling(false),
            RunCommand::Rate(hz) => SessionChange::Rate(hz),
            RunCommand::Mark(text) => SessionChange::Mark(text),
        };
        if self.parts.control.try_send(control).is_err() {
            self.message = Some("the run is busy or not running yet: try again".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use profile::rows::Batch;

    use super::*;

    fn own() -> (OwnRun, mpsc::Receiver<SessionChange>, watch::Receiver<bool>, oneshot::Sender<()>) {
        let (control, controlled) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(false);
        let phase = watch::channel(Phase::Preparing("booting".to_owned())).1;
        let (end, ended) = oneshot::channel();
        let parts = RunHandles { tables: SharedTables::default(), phase, control, stop };
        let view = View::default();
        let own = OwnRun {
            parts,
            ended,
            ticks: interval(EVERY),
            view,
            message: None,
            preparing: false,
            latest: None,
        };
        (own, controlled, stopped, end)
    }

    #[tokio::test]
    async fn snapshots_come_when_there_is_new_data() {
        let (mut own, _controlled, _stopped, end) = own();
        assert!(matches!(own.next().await, RunEvent::Snapshot(snapshot) if snapshot.time_s == 0.0));
        let meta = vec![("duration_ns".to_owned(), "2000000000".to_owned())];
        own.parts.tables.lock().add(&Batch { meta, ..Batch::default() });
        own.ticks.reset_immediately();
        assert!(matches!(own.next().await, RunEvent::Snapshot(snapshot) if snapshot.time_s == 2.0));
        drop(end);
        assert_eq!(own.next().await, RunEvent::Closed);
    }

    #[tokio::test]
    async fn the_view_of_a_run_that_has_ended_stays() {
        let (mut own, _controlled, _stopped, end) = own();
        end.send(()).unwrap();
        // Snapshots may come first.
        let mut event = own.next().await;
        while matches!(event, RunEvent::Snapshot(_)) {
            event = own.next().await;
        }
        assert_eq!(event, RunEvent::Ended("the run has ended".to_owned()));
    }

    #[tokio::test]
    async fn commands_reach_the_run() {
        let (mut own, mut controlled, stopped, _end) = own();
        own.send(RunCommand::Rate(50.0)).await.unwrap();
        own.send(RunCommand::Mark("full".to_owned())).await.unwrap();
        assert_eq!(controlled.try_recv().unwrap(), SessionChange::Rate(50.0));
        assert!(controlled.try_recv().is_err());
        assert!(matches!(own.next().await, RunEvent::Message(sentence) if sentence.contains("try again")));
        own.send(RunCommand::End).await.unwrap();
        assert!(*stopped.borrow());
    }
}
