//! State of the view, and the keys that change it. Independent of the terminal.

use std::time::Duration;

use display::units;
use profile::live::{Snapshot, Span, View};

use super::control::{self, RunCommand, RunEvent};
use super::details::{DetailLevel, LiveList};
use super::history::StateHistory;
use super::panes::{LiveTarget, PaneKind, PaneTable};
use crate::frame::ViewAction;
use crate::keys::KeyPress;
use crate::list::{TypedFilter, edit};
use crate::table::SortOrder;
use crate::widgets::help;

/// Rows of each table in a snapshot.
pub const ROWS: usize = 200;
/// Spans to choose from.
pub const SPANS: [Span; 5] =
    [Span::Last(1.0), Span::Last(5.0), Span::Last(15.0), Span::Last(60.0), Span::Run];

/// What the loop does for a key.
pub type KeyAction = ViewAction<RunCommand>;

/// A question at the bottom of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserPrompt {
    /// Filter of rows.
    Filter(TypedFilter),
    /// Text of a mark.
    Mark(String),
    /// Confirmation of the end of the run.
    End,
}

/// State of the view.
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
    /// The pane that is chosen.
    pub pane: PaneKind,
    /// The first pane has instances of programs.
    pub instances: bool,
    panes: [LiveList; PaneKind::ALL.len()],
    /// Tables on the way from a row of the pane to the one that is shown, which is the last one.
    details: Vec<DetailLevel>,
    /// Number of the span in [`SPANS`].
    span: usize,
    /// The display is paused, while the run continues.
    pub paused: bool,
    /// First line of the help, if it is shown.
    pub help: Option<usize>,
    /// The question at the bottom of the screen.
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
            panes: std::array::from_fn(|_| LiveList::default()),
            details: Vec::new(),
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
        let detail = self.details.last().map(|level| level.view.clone());
        View { span: self.span(), rows: ROWS, detail, history_s: None }
    }

    /// Returns the span of the tables.
    pub fn span(&self) -> Span {
        SPANS[self.span]
    }

    /// Returns the tables on the way from a row of the pane to the one that is shown; none for the pane.
    pub fn details(&self) -> &[DetailLevel] {
        &self.details
    }

    /// Returns the list that is shown.
    pub fn here(&self) -> &LiveList {
        self.details.last().map_or(&self.panes[self.pane.place()], |level| &level.rows)
    }

    /// Returns the list that is shown, to change it.
    pub fn here_mut(&mut self) -> &mut LiveList {
        match self.details.last_mut() {
            Some(level) => &mut level.rows,
            None => &mut self.panes[self.pane.place()],
        }
    }

    /// Returns the table that is shown, sorted and filtered.
    pub fn table(&self) -> PaneTable {
        let list = &self.here().list;
        match self.details.last() {
            Some(level) => level.table(),
            None => self.pane.table(&self.snapshot, self.instances, list.order, &list.filter),
        }
    }

    /// Returns true if the table that is shown follows its latest rows.
    pub fn follows(&self) -> bool {
        self.details.is_empty() && self.pane.follows()
    }

    /// Processes an event of the run. Returns false if the screen does not change.
    pub fn event(&mut self, event: RunEvent) -> bool {
        match event {
            RunEvent::Snapshot(snapshot) => {
                self.history.add(&snapshot, self.every, self.paused);
                let of = snapshot.detail.as_ref().map(|detail| &detail.view);
                // A table that is opened during a pause is shown, with all of its snapshot.
                let opens = self
                    .details
                    .last()
                    .is_some_and(|level| level.detail.is_none() && of == Some(&level.view));
                let shows = opens || !self.paused;
                match shows {
                    true => self.show(snapshot),
                    false => self.later = Some(snapshot),
                }
                shows
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

    fn show(&mut self, mut snapshot: Box<Snapshot>) {
        if let (Some(level), Some(detail)) = (self.details.last_mut(), snapshot.detail.take())
            && level.view == detail.view
        {
            level.detail = Some(Box::new(detail));
        }
        (self.snapshot, self.later) = (snapshot, None);
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
        if key == KeyPress::Ctrl('c') {
            return self.quit();
        }
        self.help = help::scroll(down, key, self.page);
        None
    }

    fn pane_key(&mut self, key: KeyPress) -> Option<KeyAction> {
        match key {
            KeyPress::Char('q') | KeyPress::Ctrl('c') => return self.quit(),
            KeyPress::Char('?' | 'h') => self.help = Some(0),
            KeyPress::Tab => return self.choose(self.pane.after(1)),
            KeyPress::BackTab => return self.choose(self.pane.after(PaneKind::ALL.len() - 1)),
            KeyPress::Char(digit @ '1'..='7') => {
                return self.choose(PaneKind::Programs.after(digit as usize - '1' as usize));
            }
            KeyPress::Char('i') if self.pane == PaneKind::Programs && self.details.is_empty() => {
                self.instances ^= true;
            }
            KeyPress::Char('s') => self.next_order(),
            KeyPress::Char('r') => self.here_mut().list.order.reversed ^= true,
            KeyPress::Char('/') => {
                self.question = Some(UserPrompt::Filter(self.here().list.type_filter()));
            }
            KeyPress::Escape if !self.here().list.filter.is_empty() => self.here_mut().list.filter.clear(),
            KeyPress::Escape | KeyPress::Backspace => return self.out(),
            KeyPress::Enter => return self.enter(),
            KeyPress::Char('c') => return self.other_direction(),
            KeyPress::Char('a') => {
                self.message = Some("machine code is in the profile: `vprof report -i` shows it".to_owned());
            }
            KeyPress::Char(' ') => self.pause(),
            _ if self.go(key) => {}
            _ if self.ended.is_some() => {}
            _ => return self.run_key(key).map(KeyAction::Send),
        }
        None
    }

    /// Shows another pane.
    fn choose(&mut self, pane: PaneKind) -> Option<KeyAction> {
        self.pane = pane;
        let had_details = !self.details.is_empty();
        self.details.clear();
        had_details.then(|| self.send_view()).flatten()
    }

    /// Returns the request for snapshots of what is shown; the last snapshot of a run remains.
    fn send_view(&self) -> Option<KeyAction> {
        self.ended.is_none().then(|| KeyAction::Send(RunCommand::View(self.view())))
    }

    /// Shows the table below the selected row.
    fn enter(&mut self) -> Option<KeyAction> {
        let below = self.selected().map(|target| DetailLevel::below(&target, self.details.last()))?;
        self.open(below)
    }

    /// Shows callers instead of callees of the same function, and the other way round; from another table,
    /// the callers of the selected function.
    fn other_direction(&mut self) -> Option<KeyAction> {
        if let Some(turned) = self.details.last().and_then(DetailLevel::turned) {
            let opened = self.open(Ok(turned));
            if opened.is_some() {
                // It takes the place of the other one.
                self.details.remove(self.details.len() - 2);
            }
            return opened;
        }
        let callers = self.selected().map(|target| DetailLevel::of_callers(&target, self.details.last()))?;
        self.open(callers)
    }

    fn selected(&mut self) -> Option<LiveTarget> {
        let table = self.table();
        match self.follows() {
            true => Some(LiveTarget::Line),
            false => self.here_mut().selected(&table).cloned(),
        }
    }

    fn open(&mut self, level: Result<DetailLevel, &'static str>) -> Option<KeyAction> {
        let level = match level {
            Ok(_) if self.ended.is_some() => Err("the run has ended: `vprof report -i` shows its stacks"),
            level => level,
        };
        match level {
            Ok(level) => self.details.push(level),
            Err(reason) => {
                self.message = Some(reason.to_owned());
                return None;
            }
        }
        self.send_view()
    }

    /// Shows the table above.
    fn out(&mut self) -> Option<KeyAction> {
        self.details.pop()?;
        if self.paused
            && self.ended.is_none()
            && let Some(level) = self.details.last_mut()
        {
            // The figures above it are of a later time than its rows.
            level.detail = None;
        }
        self.send_view()
    }

    /// Processes a key that selects a row, or scrolls the lines of a pane. Returns false for another key.
    fn go(&mut self, key: KeyPress) -> bool {
        let (table, page) = (self.table(), self.page);
        if !self.follows() {
            return self.here_mut().go(key, &table, page);
        }
        // Lines are counted from the end.
        let list = &mut self.here_mut().list;
        list.scroll = match key {
            KeyPress::Up | KeyPress::Char('k') => list.scroll.saturating_add(1),
            KeyPress::Down | KeyPress::Char('j') => list.scroll.saturating_sub(1),
            KeyPress::PageUp => list.scroll.saturating_add(page),
            KeyPress::PageDown => list.scroll.saturating_sub(page),
            KeyPress::Home | KeyPress::Char('g') => usize::MAX,
            KeyPress::End | KeyPress::Char('G') => 0,
            _ => return false,
        };
        true
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
            UserPrompt::Filter(filter) => {
                let here = self.here_mut();
                let before = here.list.filter.clone();
                let filter = filter.key(key, &mut here.list);
                if here.list.filter != before {
                    here.select_first();
                }
                self.question = filter.map(UserPrompt::Filter);
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
        let table = self.table();
        if table.sorts {
            let column = table.next_order(self.here().list.order.column);
            self.here_mut().list.order = SortOrder { column, reversed: false };
        }
    }

    fn pause(&mut self) {
        self.paused ^= true;
        if !self.paused {
            self.history.show_all();
            if let Some(later) = self.later.take() {
                self.show(later);
            }
        }
    }
}

#[cfg(test)]
mod tests;
