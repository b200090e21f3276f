//! ViewState of a view, and the keys that change it. Independent of the terminal.

use std::time::Duration;

use profile::live::{Snapshot, Span, View};
use text::units;

use super::control::{self, RunCommand, RunEvent};
use super::history::StateHistory;
use super::keys::KeyPress;
use super::panes::PaneKind;
use super::table::SortOrder;

/// Rows of each table in a snapshot.
pub const ROWS: usize = 200;
/// Spans to choose from.
pub const SPANS: [Span; 5] =
    [Span::Last(1.0), Span::Last(5.0), Span::Last(15.0), Span::Last(60.0), Span::Run];
/// Longest text that can be typed, characters.
const TYPED: usize = 200;

/// KeyAction of the loop for a key.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyAction {
    /// Send a command to the run.
    Send(RunCommand),
    /// Leave the screen.
    Quit,
    /// Stop this process, as a shell's job.
    Suspend,
    /// Redraw the screen: another program has written to the terminal.
    Redraw,
}

/// A question at the bottom of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserPrompt {
    /// Filter of rows: the text so far, and the filter before.
    Filter { typed: String, before: String },
    /// Text of a mark.
    Mark(String),
    /// Confirmation of the end of the run.
    End,
}

/// ViewState of a pane.
#[derive(Debug, Clone, Default)]
pub struct PaneState {
    /// Sort order of the rows.
    pub order: SortOrder,
    /// Text that rows must have.
    pub filter: String,
    /// Rows above the screen; below it for panes that follow.
    pub scroll: usize,
}

/// ViewState of the view.
#[derive(Debug)]
pub struct ViewState {
    /// Snapshot that is shown.
    pub snapshot: Box<Snapshot>,
    /// A later snapshot, while the display is paused.
    later: Option<Box<Snapshot>>,
    /// States of the vCPUs over time.
    pub history: StateHistory,
    /// Time between two refreshes.
    pub every: Duration,
    pub pane: PaneKind,
    /// The first pane has instances of programs.
    pub instances: bool,
    panes: [PaneState; PaneKind::ALL.len()],
    /// Number of the span in [`SPANS`].
    span: usize,
    pub paused: bool,
    /// First line of the help, if it is shown.
    pub help: Option<usize>,
    pub question: Option<UserPrompt>,
    /// The latest message.
    pub message: Option<String>,
    /// Reason for the end of all snapshots.
    pub ended: Option<String>,
    /// The run is this process.
    pub own_run: bool,
    /// Rows of the pane when it was last drawn.
    pub page: usize,
}

impl ViewState {
    /// Makes an empty state. `own_run`: the end of the run is the end of this process.
    pub fn new(every: Duration, own_run: bool) -> Self {
        Self {
            snapshot: Box::default(),
            later: None,
            history: StateHistory::default(),
            every,
            pane: PaneKind::Programs,
            instances: false,
            panes: std::array::from_fn(|_| PaneState::default()),
            span: 1,
            paused: false,
            help: None,
            question: None,
            message: None,
            ended: None,
            own_run,
            page: 1,
        }
    }

    /// Returns the span and rows of snapshots.
    pub fn view(&self) -> View {
        View { span: self.span(), rows: ROWS }
    }

    /// Returns the span of the tables.
    pub fn span(&self) -> Span {
        SPANS[self.span]
    }

    /// Returns the state of the pane that is shown.
    pub fn here(&self) -> &PaneState {
        &self.panes[self.pane.place()]
    }

    /// Returns the state of the pane that is shown, to change it.
    pub fn here_mut(&mut self) -> &mut PaneState {
        &mut self.panes[self.pane.place()]
    }

    /// Processes an event of the run. Returns false if the screen does not change.
    pub fn event(&mut self, event: RunEvent) -> bool {
        match event {
            RunEvent::Snapshot(snapshot) => {
                self.history.add(&snapshot, self.every, self.paused);
                match self.paused {
                    true => self.later = Some(snapshot),
                    false => self.snapshot = snapshot,
                }
                !self.paused
            }
            RunEvent::Message(sentence) => {
                self.message = Some(sentence).filter(|sentence| !sentence.is_empty());
                true
            }
            RunEvent::Ended(reason) => {
                self.ended = Some(reason);
                true
            }
            RunEvent::Closed => false,
        }
    }

    /// Processes a key.
    pub fn key(&mut self, key: KeyPress) -> Option<KeyAction> {
        self.message = None;
        match key {
            KeyPress::Ctrl('l') => return Some(KeyAction::Redraw),
            KeyPress::Ctrl('z') if self.own_run => {
                self.message = Some(
                    "Ctrl-Z would stop the guest, too: use `vprof top` in another terminal, which can be left".into(),
                );
                return None;
            }
            KeyPress::Ctrl('z') => return Some(KeyAction::Suspend),
            _ => {}
        }
        match self.question.take() {
            Some(question) => self.answer(question, key),
            None => match self.help {
                Some(down) => self.help_key(key, down),
                None => self.pane_key(key),
            },
        }
    }

    fn help_key(&mut self, key: KeyPress, down: usize) -> Option<KeyAction> {
        self.help = match key {
            KeyPress::Ctrl('c') => return self.quit(),
            // The help scrolls if it does not fit.
            KeyPress::Down | KeyPress::Char('j' | ' ') | KeyPress::PageDown => Some(down.saturating_add(1)),
            KeyPress::Up | KeyPress::Char('k') | KeyPress::PageUp => Some(down.saturating_sub(1)),
            _ => None,
        };
        None
    }

    fn pane_key(&mut self, key: KeyPress) -> Option<KeyAction> {
        match key {
            KeyPress::Char('q') | KeyPress::Ctrl('c') => return self.quit(),
            KeyPress::Char('?' | 'h') => self.help = Some(0),
            KeyPress::Tab => self.pane = self.pane.after(1),
            KeyPress::BackTab => self.pane = self.pane.after(PaneKind::ALL.len() - 1),
            KeyPress::Char(digit @ '1'..='6') => {
                self.pane = PaneKind::Programs.after(digit as usize - '1' as usize);
            }
            KeyPress::Char('i') if self.pane == PaneKind::Programs => self.instances ^= true,
            KeyPress::Char('s') => self.next_order(),
            KeyPress::Char('r') => self.here_mut().order.reversed ^= true,
            KeyPress::Char('/') => {
                let before = self.here().filter.clone();
                self.question = Some(UserPrompt::Filter { typed: before.clone(), before });
            }
            KeyPress::Escape => self.here_mut().filter.clear(),
            KeyPress::Char(' ') => self.pause(),
            KeyPress::Up | KeyPress::Char('k') => self.scroll(false, 1),
            KeyPress::Down | KeyPress::Char('j') => self.scroll(true, 1),
            KeyPress::PageUp => self.scroll(false, self.page),
            KeyPress::PageDown => self.scroll(true, self.page),
            KeyPress::Home | KeyPress::Char('g') => self.scroll(false, usize::MAX),
            KeyPress::End | KeyPress::Char('G') => self.scroll(true, usize::MAX),
            _ if self.ended.is_some() => {}
            _ => return self.run_key(key).map(KeyAction::Send),
        }
        None
    }

    /// Processes keys that send a command to the run.
    fn run_key(&mut self, key: KeyPress) -> Option<RunCommand> {
        let sampling = &self.snapshot.sampling;
        let (command, message) = match key {
            KeyPress::Char('w') => {
                self.span = (self.span + 1) % SPANS.len();
                return Some(RunCommand::View(self.view()));
            }
            KeyPress::Char('m') => {
                self.question = Some(UserPrompt::Mark(String::new()));
                return None;
            }
            KeyPress::Char('S') if sampling.on => (RunCommand::Stop, "sampling stops; S resumes".to_owned()),
            KeyPress::Char('S') => (RunCommand::Start, "sampling resumes".to_owned()),
            KeyPress::Char(sign @ ('+' | '=' | '-')) if sampling.rate_hz > 0.0 => {
                let hz = control::step(sampling.rate_hz, sign != '-');
                (RunCommand::Rate(hz), format!("the rate becomes {}", units::rate(hz)))
            }
            _ => return None,
        };
        self.message = Some(message);
        Some(command)
    }

    fn quit(&mut self) -> Option<KeyAction> {
        if !self.own_run || self.ended.is_some() {
            return Some(KeyAction::Quit);
        }
        self.question = Some(UserPrompt::End);
        None
    }

    fn answer(&mut self, question: UserPrompt, key: KeyPress) -> Option<KeyAction> {
        match question {
            UserPrompt::End => match key {
                KeyPress::Char('y' | 'Y') | KeyPress::Ctrl('c') | KeyPress::Enter => {
                    self.message = Some("ending the run ...".into());
                    Some(KeyAction::Send(RunCommand::End))
                }
                _ => None,
            },
            UserPrompt::Filter { mut typed, before } => {
                match key {
                    KeyPress::Escape | KeyPress::Ctrl('c') => self.here_mut().filter = before,
                    KeyPress::Enter => {}
                    _ => {
                        edit(&mut typed, key);
                        self.here_mut().filter.clone_from(&typed);
                        self.here_mut().scroll = 0;
                        self.question = Some(UserPrompt::Filter { typed, before });
                    }
                }
                None
            }
            UserPrompt::Mark(mut typed) => match key {
                KeyPress::Escape | KeyPress::Ctrl('c') => None,
                KeyPress::Enter if typed.trim().is_empty() => None,
                KeyPress::Enter => {
                    self.message = Some("marked".into());
                    Some(KeyAction::Send(RunCommand::Mark(typed)))
                }
                _ => {
                    edit(&mut typed, key);
                    self.question = Some(UserPrompt::Mark(typed));
                    None
                }
            },
        }
    }

    fn next_order(&mut self) {
        let order = self.here().order;
        let table = self.pane.table(&Snapshot::default(), self.instances, order, "");
        self.here_mut().order = SortOrder { column: table.next_order(order.column), reversed: false };
    }

    fn pause(&mut self) {
        self.paused ^= true;
        if !self.paused {
            self.history.show_all();
            if let Some(later) = self.later.take() {
                self.snapshot = later;
            }
        }
    }

    fn scroll(&mut self, down: bool, rows: usize) {
        // Panes that follow count rows from the end.
        let away = down != self.pane.follows();
        let here = self.here_mut();
        here.scroll = if away { here.scroll.saturating_add(rows) } else { here.scroll.saturating_sub(rows) };
    }
}

/// Changes a text that is being typed.
pub fn edit(typed: &mut String, key: KeyPress) {
    match key {
        KeyPress::Backspace => drop(typed.pop()),
        KeyPress::Ctrl('u') => typed.clear(),
        KeyPress::Char(c) if typed.chars().count() < TYPED => typed.push(c),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
