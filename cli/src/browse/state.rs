//! State of the view, and the keys that change it. Independent of the terminal and of the profile.

use profile::report::{By, Direction};

use super::rows::{Below, BrowseRow, BrowseTable};
use super::source::{KINDS, Place, View};
use crate::errors::Error;
use crate::top::keys::KeyPress;
use crate::top::state::edit;

/// Action of the loop for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrowseAction {
    /// Read a table, and show it.
    Read(Box<Step>),
    /// Leave the screen.
    Quit,
    /// Stop this process, as a shell's job.
    Suspend,
    /// Redraw the screen: another program has written to the terminal.
    Redraw,
}

/// A step to another table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The table.
    pub place: Place,
    /// It is below the one that is shown; otherwise it takes its place.
    pub is_below: bool,
}

/// A text that is typed, and the text before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedFilter {
    pub typed: String,
    before: String,
}

/// A table that is shown, or was on the way to the one that is.
#[derive(Debug)]
pub struct Level {
    pub place: Place,
    pub table: BrowseTable,
    /// Text that rows must have.
    pub filter: String,
    /// Rows are in the order of their totals.
    pub by_total: bool,
    /// Position of the selected row among those with the text.
    pub selected: usize,
    /// Rows above the screen.
    pub scroll: usize,
}

impl Level {
    fn new(place: Place, table: BrowseTable) -> Self {
        let selected = table.first;
        Self { place, table, filter: String::new(), by_total: false, selected, scroll: 0 }
    }

    /// Returns the rows that have the text.
    pub fn rows(&self) -> Vec<&BrowseRow> {
        let text = self.filter.to_lowercase();
        let has = |row: &&BrowseRow| text.is_empty() || row.cells.iter().any(|cell| cell.contains(&text));
        self.table.rows.iter().filter(has).collect()
    }
}

/// State of the view.
#[derive(Debug)]
pub struct BrowseState {
    /// The way to the table that is shown, which is the last one; never empty.
    levels: Vec<Level>,
    /// First line of the help, if it is shown.
    pub help: Option<usize>,
    pub question: Option<TypedFilter>,
    /// The latest message.
    pub message: Option<String>,
    /// Rows of the table when it was last drawn.
    pub page: usize,
}

impl BrowseState {
    /// Makes the state that shows a first table.
    pub fn new(place: Place, table: BrowseTable) -> Self {
        let levels = vec![Level::new(place, table)];
        Self { levels, help: None, question: None, message: None, page: 1 }
    }

    /// Returns the tables on the way to the one that is shown.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Returns the table that is shown.
    pub fn level(&self) -> &Level {
        self.levels.last().expect("there is always a level")
    }

    /// Returns the table that is shown, to change it.
    pub fn level_mut(&mut self) -> &mut Level {
        self.levels.last_mut().expect("there is always a level")
    }

    /// Shows a table that was read, or why it could not be.
    pub fn arrive(&mut self, read: Result<BrowseTable, Error>, step: Step) {
        self.message = None;
        match read {
            Ok(table) => {
                if !step.is_below {
                    self.levels.pop();
                }
                self.levels.push(Level::new(step.place, table));
            }
            Err(error) => self.message = Some(error.to_string()),
        }
    }

    /// Processes a key.
    pub fn key(&mut self, key: KeyPress) -> Option<BrowseAction> {
        self.message = None;
        if let Some(typed) = self.question.take() {
            self.answer(typed, key);
            return None;
        }
        match key {
            KeyPress::Ctrl('c') => return Some(BrowseAction::Quit),
            KeyPress::Ctrl('z') => return Some(BrowseAction::Suspend),
            KeyPress::Ctrl('l') => return Some(BrowseAction::Redraw),
            _ => {}
        }
        if let Some(down) = &mut self.help {
            match key {
                KeyPress::Up | KeyPress::Char('k') => *down = down.saturating_sub(1),
                KeyPress::Down | KeyPress::Char('j') => *down += 1,
                KeyPress::PageDown => *down += self.page,
                KeyPress::PageUp => *down = down.saturating_sub(self.page),
                _ => self.help = None,
            }
            return None;
        }
        match key {
            KeyPress::Char('q') => return Some(BrowseAction::Quit),
            KeyPress::Char('?' | 'h') => self.help = Some(0),
            KeyPress::Char('/') => {
                let before = self.level().filter.clone();
                self.question = Some(TypedFilter { typed: before.clone(), before });
            }
            KeyPress::Char('s') => self.sort(),
            KeyPress::Up | KeyPress::Char('k') => self.select(false, 1),
            KeyPress::Down | KeyPress::Char('j') => self.select(true, 1),
            KeyPress::PageUp => self.select(false, self.page),
            KeyPress::PageDown | KeyPress::Char(' ') => self.select(true, self.page),
            KeyPress::Home | KeyPress::Char('g') => self.select(false, usize::MAX),
            KeyPress::End | KeyPress::Char('G') => self.select(true, usize::MAX),
            KeyPress::Escape if !self.level().filter.is_empty() => self.level_mut().filter.clear(),
            KeyPress::Escape | KeyPress::Backspace => self.out(),
            _ => return self.step(key).map(Box::new).map(BrowseAction::Read),
        }
        None
    }

    /// Processes keys that lead to another table.
    fn step(&mut self, key: KeyPress) -> Option<Step> {
        match key {
            KeyPress::Enter => self.enter(),
            KeyPress::Char('a') => self.code(),
            KeyPress::Char('c') => self.other_direction(),
            KeyPress::Char(digit @ '0'..='9') => {
                // The last kind has the last key.
                let place = (digit as usize + 9 - '0' as usize) % KINDS.len();
                self.kind(|_| place)
            }
            KeyPress::Tab => self.kind(|place| place + 1),
            KeyPress::BackTab => self.kind(|place| place + KINDS.len() - 1),
            _ => None,
        }
    }

    /// Returns the row that is selected.
    pub fn selected(&self) -> Option<&BrowseRow> {
        let level = self.level();
        level.rows().get(level.selected).copied()
    }

    fn enter(&mut self) -> Option<Step> {
        let below = self.selected()?.below.clone();
        let place = match below {
            Below::Part(place) => *place,
            Below::Place(view, name) => Place { name, filter: self.level().place.filter.clone(), view },
            Below::Nothing(why) => {
                self.message = Some(why.to_owned());
                return None;
            }
        };
        Some(Step { place, is_below: true })
    }

    /// Returns the step to the code of the selected row's function.
    fn code(&mut self) -> Option<Step> {
        let row = self.selected()?;
        let place = &self.level().place;
        let target = match (&row.call, &row.below) {
            (Some(call), _) => call.target(),
            (None, Below::Place(View::Code(target), _)) => target.clone(),
            _ => {
                self.message = Some("this row has no code; 4 shows functions".to_owned());
                return None;
            }
        };
        let name = text::clean::escaped(&target.symbol).into_owned();
        let place = Place { name, filter: place.filter.clone(), view: View::Code(target) };
        Some(Step { place, is_below: true })
    }

    /// Returns the step from callees to callers of the same function, and back; from another table to the
    /// callers of the selected function.
    fn other_direction(&mut self) -> Option<Step> {
        let place = self.level().place.clone();
        if let View::Calls(call, direction) = &place.view {
            let direction = match direction {
                Direction::Callers => Direction::Callees,
                Direction::Callees => Direction::Callers,
            };
            let view = View::Calls(call.clone(), direction);
            return Some(Step { place: Place { view, ..place }, is_below: false });
        }
        let Some(call) = self.selected().and_then(|row| row.call.clone()) else {
            self.message = Some("this row has no callers; 4 shows functions".to_owned());
            return None;
        };
        let name = text::clean::escaped(&call.symbol).into_owned();
        let view = View::Calls(call, Direction::Callers);
        Some(Step { place: Place { name, view, ..place }, is_below: true })
    }

    /// Returns the step to another kind of table of the same part; `next` returns its number.
    fn kind(&mut self, next: impl Fn(usize) -> usize) -> Option<Step> {
        let place = self.level().place.clone();
        let View::By(by) = place.view else {
            self.message =
                Some("other tables are of a part of the profile: Backspace goes back to it".to_owned());
            return None;
        };
        let now = KINDS.iter().position(|kind| *kind == by).unwrap_or(0);
        let by: By = KINDS[next(now) % KINDS.len()];
        Some(Step { place: Place { view: View::By(by), ..place }, is_below: false })
    }

    fn out(&mut self) {
        if self.levels.len() > 1 {
            self.levels.pop();
        } else {
            self.message = Some("this is the first table; q quits".to_owned());
        }
    }

    fn sort(&mut self) {
        let level = self.level_mut();
        if !level.table.has_totals() {
            self.message = Some("only tables of code have totals to sort by".to_owned());
            return;
        }
        level.by_total ^= true;
        level.table.sort(level.by_total);
        (level.selected, level.scroll) = (0, 0);
    }

    fn select(&mut self, down: bool, rows: usize) {
        let last = self.level().rows().len().saturating_sub(1);
        let level = self.level_mut();
        let selected = match down {
            true => level.selected.saturating_add(rows),
            false => level.selected.saturating_sub(rows),
        };
        level.selected = selected.min(last);
    }

    fn answer(&mut self, filter: TypedFilter, key: KeyPress) {
        let TypedFilter { mut typed, before } = filter;
        let level = self.level_mut();
        match key {
            KeyPress::Escape | KeyPress::Ctrl('c') => level.filter = before,
            KeyPress::Enter => {}
            _ => {
                edit(&mut typed, key);
                level.filter.clone_from(&typed);
                (level.selected, level.scroll) = (0, 0);
                self.question = Some(TypedFilter { typed, before });
            }
        }
    }
}
