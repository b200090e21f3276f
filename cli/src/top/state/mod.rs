//! What is shown, and what keys change about it. Knows no terminal.

use std::time::Duration;

use profile::live::{Snapshot, Span, View};
use text::units;

use super::history::History;
use super::keys::Key;
use super::panes::Pane;
use super::steer::{self, Command, Event};
use super::table::Order;

/// Rows of each table that are asked for.
pub const ROWS: usize = 200;
/// Spans that can be chosen.
pub const SPANS: [Span; 5] =
    [Span::Last(1.0), Span::Last(5.0), Span::Last(15.0), Span::Last(60.0), Span::Run];
/// The longest text that can be typed, characters.
const TYPED: usize = 200;

/// What a key asks the loop to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Tell the run.
    Send(Command),
    /// Leave the screen.
    Quit,
    /// Stop this process, as a shell's job.
    Suspend,
    /// Draw everything anew: something else has written to the terminal.
    Redraw,
}

/// A question at the bottom of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Text that rows are to have; what is there already, and what was there before.
    Filter { typed: String, before: String },
    /// Text of a mark.
    Mark(String),
    /// Whether to end the run.
    End,
}

/// What is remembered of each pane.
#[derive(Debug, Clone, Default)]
pub struct PaneState {
    /// By what its rows are sorted.
    pub order: Order,
    /// Text that they have.
    pub filter: String,
    /// Rows above the screen; of panes that follow, below it.
    pub scroll: usize,
}

/// Everything.
#[derive(Debug)]
pub struct State {
    /// The look that is shown.
    pub look: Box<Snapshot>,
    /// A later one, while the display stands still.
    later: Option<Box<Snapshot>>,
    /// The vCPUs over time.
    pub history: History,
    /// Time between two looks.
    pub every: Duration,
    pub pane: Pane,
    panes: [PaneState; Pane::ALL.len()],
    /// Place in [`SPANS`].
    span: usize,
    pub paused: bool,
    /// The help is shown, so many lines down.
    pub help: Option<usize>,
    pub question: Option<Question>,
    /// The latest thing to say.
    pub message: Option<String>,
    /// Why there will be no more looks.
    pub ended: Option<String>,
    /// The run is this very process.
    pub own_run: bool,
    /// Rows of the pane on the screen when it was drawn last.
    pub page: usize,
}

impl State {
    /// Nothing seen yet. `own_run`: leaving the screen ends the run.
    pub fn new(every: Duration, own_run: bool) -> Self {
        Self {
            look: Box::default(),
            later: None,
            history: History::default(),
            every,
            pane: Pane::Processes,
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

    /// How to look.
    pub fn view(&self) -> View {
        View { span: self.span(), rows: ROWS }
    }

    /// The time that tables are to speak of.
    pub fn span(&self) -> Span {
        SPANS[self.span]
    }

    /// What is remembered of the pane that is shown.
    pub fn here(&self) -> &PaneState {
        &self.panes[self.pane.place()]
    }

    /// The same, to change it.
    pub fn here_mut(&mut self) -> &mut PaneState {
        &mut self.panes[self.pane.place()]
    }

    /// Takes what the run tells. False where nothing changes on the screen.
    pub fn event(&mut self, event: Event) -> bool {
        match event {
            Event::Look(look) => {
                self.history.add(&look, self.every, self.paused);
                match self.paused {
                    true => self.later = Some(look),
                    false => self.look = look,
                }
                !self.paused
            }
            Event::Told(sentence) => {
                self.message = Some(sentence).filter(|sentence| !sentence.is_empty());
                true
            }
            Event::Ended(why) => {
                self.ended = Some(why);
                true
            }
        }
    }

    /// Takes a key.
    pub fn key(&mut self, key: Key) -> Option<Action> {
        self.message = None;
        match key {
            Key::Ctrl('l') => return Some(Action::Redraw),
            Key::Ctrl('z') if self.own_run => {
                self.message = Some(
                    "Ctrl-Z would stop the guest, too; `vprof top` can be left in another terminal".into(),
                );
                return None;
            }
            Key::Ctrl('z') => return Some(Action::Suspend),
            _ => {}
        }
        match self.question.take() {
            Some(question) => self.answer(question, key),
            None => match self.help {
                Some(down) => self.key_of_help(key, down),
                None => self.key_of_pane(key),
            },
        }
    }

    fn key_of_help(&mut self, key: Key, down: usize) -> Option<Action> {
        self.help = match key {
            Key::Ctrl('c') => return self.quit(),
            // It scrolls where it does not fit.
            Key::Down | Key::Char('j' | ' ') | Key::PageDown => Some(down.saturating_add(1)),
            Key::Up | Key::Char('k') | Key::PageUp => Some(down.saturating_sub(1)),
            _ => None,
        };
        None
    }

    fn key_of_pane(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Char('q') | Key::Ctrl('c') => return self.quit(),
            Key::Char('?' | 'h') => self.help = Some(0),
            Key::Tab => self.pane = self.pane.after(1),
            Key::BackTab => self.pane = self.pane.after(Pane::ALL.len() - 1),
            Key::Char(digit @ '1'..='6') => {
                self.pane = Pane::Processes.after(digit as usize - '1' as usize);
            }
            Key::Char('s') => self.next_order(),
            Key::Char('r') => self.here_mut().order.reversed ^= true,
            Key::Char('/') => {
                let before = self.here().filter.clone();
                self.question = Some(Question::Filter { typed: before.clone(), before });
            }
            Key::Escape => self.here_mut().filter.clear(),
            Key::Char(' ') => self.pause(),
            Key::Up | Key::Char('k') => self.scroll(false, 1),
            Key::Down | Key::Char('j') => self.scroll(true, 1),
            Key::PageUp => self.scroll(false, self.page),
            Key::PageDown => self.scroll(true, self.page),
            Key::Home | Key::Char('g') => self.scroll(false, usize::MAX),
            Key::End | Key::Char('G') => self.scroll(true, usize::MAX),
            _ if self.ended.is_some() => {}
            _ => return self.key_of_run(key).map(Action::Send),
        }
        None
    }

    /// Keys that tell the run something.
    fn key_of_run(&mut self, key: Key) -> Option<Command> {
        let sampling = &self.look.sampling;
        let (command, said) = match key {
            Key::Char('w') => {
                self.span = (self.span + 1) % SPANS.len();
                return Some(Command::View(self.view()));
            }
            Key::Char('m') => {
                self.question = Some(Question::Mark(String::new()));
                return None;
            }
            Key::Char('S') if sampling.on => (Command::Stop, "sampling stops; S goes on".to_owned()),
            Key::Char('S') => (Command::Start, "sampling goes on".to_owned()),
            Key::Char(sign @ ('+' | '=' | '-')) if sampling.rate_hz > 0.0 => {
                let hz = steer::step(sampling.rate_hz, sign != '-');
                (Command::Rate(hz), format!("the rate becomes {}", units::rate(hz)))
            }
            _ => return None,
        };
        self.message = Some(said);
        Some(command)
    }

    fn quit(&mut self) -> Option<Action> {
        if !self.own_run || self.ended.is_some() {
            return Some(Action::Quit);
        }
        self.question = Some(Question::End);
        None
    }

    fn answer(&mut self, question: Question, key: Key) -> Option<Action> {
        match question {
            Question::End => match key {
                Key::Char('y' | 'Y') | Key::Ctrl('c') | Key::Enter => {
                    self.message = Some("ending the run ...".into());
                    Some(Action::Send(Command::End))
                }
                _ => None,
            },
            Question::Filter { mut typed, before } => {
                match key {
                    Key::Escape | Key::Ctrl('c') => self.here_mut().filter = before,
                    Key::Enter => {}
                    _ => {
                        edit(&mut typed, key);
                        self.here_mut().filter.clone_from(&typed);
                        self.here_mut().scroll = 0;
                        self.question = Some(Question::Filter { typed, before });
                    }
                }
                None
            }
            Question::Mark(mut typed) => match key {
                Key::Escape | Key::Ctrl('c') => None,
                Key::Enter if typed.trim().is_empty() => None,
                Key::Enter => {
                    self.message = Some("marked".into());
                    Some(Action::Send(Command::Mark(typed)))
                }
                _ => {
                    edit(&mut typed, key);
                    self.question = Some(Question::Mark(typed));
                    None
                }
            },
        }
    }

    fn next_order(&mut self) {
        let order = self.here().order;
        let table = self.pane.table(&Snapshot::default(), order, "");
        self.here_mut().order = Order { column: table.next_order(order.column), reversed: false };
    }

    fn pause(&mut self) {
        self.paused ^= true;
        if !self.paused {
            self.history.show_all();
            if let Some(later) = self.later.take() {
                self.look = later;
            }
        }
    }

    fn scroll(&mut self, down: bool, rows: usize) {
        // Whoever follows counts from the end.
        let away = down != self.pane.follows();
        let here = self.here_mut();
        here.scroll = if away { here.scroll.saturating_add(rows) } else { here.scroll.saturating_sub(rows) };
    }
}

fn edit(typed: &mut String, key: Key) {
    match key {
        Key::Backspace => drop(typed.pop()),
        Key::Ctrl('u') => typed.clear(),
        Key::Char(c) if typed.chars().count() < TYPED => typed.push(c),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
