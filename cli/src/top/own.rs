//! The run of this very process: `vprof run --top`.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::link::Phase;
use host::protocol::Control;
use profile::live::{Shared, View};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::show::show;
use super::state::State;
use super::steer::{Command, Event, Run};
use crate::errors::Error;
use crate::terminal;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// How long the view has to leave the screen: a terminal that stands still cannot hold up the end.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// What the view needs of its run.
#[derive(Debug)]
pub struct Parts {
    /// Its tables.
    pub tables: Shared,
    /// Where it stands.
    pub phase: watch::Receiver<Phase>,
    /// Steers it.
    pub control: mpsc::Sender<Control>,
    /// Ends it.
    pub stop: watch::Sender<bool>,
}

/// A view on a thread of its own; no view can hold up the run.
#[derive(Debug)]
pub struct Beside {
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Beside {
    /// Shows the run from now on.
    pub fn start(parts: Parts) -> Result<Self, Error> {
        let system = |action| move |source| Error::System { action, source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("start the runtime"))?;
        let (end, ended) = oneshot::channel();
        let view = move || {
            runtime.block_on(async {
                let mut state = State::new(EVERY, true);
                let mut ticks = interval(EVERY);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                let mut run = Own {
                    parts,
                    ended,
                    ticks,
                    view: state.view(),
                    told: None,
                    preparing: false,
                    looked: None,
                };
                show(&mut run, &mut state).await
            })
        };
        let thread = std::thread::Builder::new().name("vprof-top".to_owned()).spawn(view);
        Ok(Self { end, thread: thread.map_err(system("start a thread"))? })
    }

    /// Leaves the screen; says what went wrong with it.
    pub fn finish(self) -> Option<Error> {
        drop(self.end);
        let deadline = Instant::now() + LEAVE_LIMIT;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let failed = match self.thread.is_finished() {
            // A panic in it was reported when it happened.
            true => self.thread.join().ok().and_then(Result::err),
            false => None,
        };
        terminal::restore();
        failed
    }
}

#[derive(Debug)]
struct Own {
    parts: Parts,
    /// Dropped at the end.
    ended: oneshot::Receiver<()>,
    ticks: Interval,
    view: View,
    told: Option<String>,
    /// What was told last is what is being done before the guest runs.
    preparing: bool,
    /// The batch and the view of the latest look.
    looked: Option<(u64, View)>,
}

impl Own {
    /// A look, if there is anything new.
    fn look(&mut self) -> Option<Event> {
        let tables = self.parts.tables.lock();
        let now = (tables.time_ns(), self.view);
        (self.looked.replace(now) != Some(now)).then(|| Event::Look(Box::new(tables.snapshot(&self.view))))
    }
}

impl Run for Own {
    async fn next(&mut self) -> Event {
        loop {
            if let Some(sentence) = self.told.take() {
                return Event::Told(sentence);
            }
            tokio::select! {
                _ = &mut self.ended => return Event::Ended("the run has ended".to_owned()),
                Ok(()) = self.parts.phase.changed() => {
                    let preparing = match &*self.parts.phase.borrow_and_update() {
                        Phase::Preparing(what) => Some(format!("{what} ...")),
                        Phase::Running(_) => None,
                    };
                    // What was being prepared is done: the line is free again.
                    let was_preparing = std::mem::replace(&mut self.preparing, preparing.is_some());
                    self.told = preparing.or_else(|| was_preparing.then(String::new));
                }
                _ = self.ticks.tick() => {
                    if let Some(look) = self.look() {
                        return look;
                    }
                }
            }
        }
    }

    async fn send(&mut self, command: Command) -> Result<(), Error> {
        let control = match command {
            Command::View(view) => {
                self.view = view;
                self.ticks.reset_immediately();
                return Ok(());
            }
            Command::End => {
                self.parts.stop.send_replace(true);
                return Ok(());
            }
            Command::Start => Control::Sampling(true),
            Command::Stop => Control::Sampling(false),
            Command::Rate(hz) => Control::Rate(hz),
            Command::Mark(text) => Control::Mark(text),
        };
        if self.parts.control.try_send(control).is_err() {
            self.told = Some("the run is busy, or does not run yet: try again".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use profile::rows::Batch;

    use super::*;

    fn own() -> (Own, mpsc::Receiver<Control>, watch::Receiver<bool>, oneshot::Sender<()>) {
        let (control, controlled) = mpsc::channel(1);
        let (stop, stopped) = watch::channel(false);
        let phase = watch::channel(Phase::Preparing("booting".to_owned())).1;
        let (end, ended) = oneshot::channel();
        let parts = Parts { tables: Shared::default(), phase, control, stop };
        let view = View::default();
        let own =
            Own { parts, ended, ticks: interval(EVERY), view, told: None, preparing: false, looked: None };
        (own, controlled, stopped, end)
    }

    #[tokio::test]
    async fn looks_come_where_there_is_something_new() {
        let (mut own, _controlled, _stopped, end) = own();
        assert!(matches!(own.next().await, Event::Look(look) if look.time_s == 0.0));
        let meta = vec![("duration_ns".to_owned(), "2000000000".to_owned())];
        own.parts.tables.lock().add(&Batch { meta, ..Batch::default() });
        own.ticks.reset_immediately();
        assert!(matches!(own.next().await, Event::Look(look) if look.time_s == 2.0));
        drop(end);
        assert!(matches!(own.next().await, Event::Ended(_)));
    }

    #[tokio::test]
    async fn commands_reach_the_run() {
        let (mut own, mut controlled, stopped, _end) = own();
        own.send(Command::Rate(50.0)).await.unwrap();
        own.send(Command::Mark("full".to_owned())).await.unwrap();
        assert_eq!(controlled.try_recv().unwrap(), Control::Rate(50.0));
        assert!(controlled.try_recv().is_err());
        assert!(matches!(own.next().await, Event::Told(sentence) if sentence.contains("try again")));
        own.send(Command::End).await.unwrap();
        assert!(*stopped.borrow());
    }
}
