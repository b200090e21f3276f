//! State of the view, and the keys that change it. Independent of the terminal and of the profile.

use profile::report::{By, Direction};

use super::rows::{Below, BrowseRow, BrowseTable};
use super::source::{KINDS, Place, View};
use crate::ViewError;
use crate::frame::ViewAction;
use crate::keys::KeyPress;
use crate::list::{ListState, TypedFilter};
use crate::table::SortOrder;
use crate::widgets::help;

/// What the loop does for a key: a step is a table to read and show.
pub type BrowseAction = ViewAction<Box<Step>>;

/// A step to another table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The table.
    pub place: Place,
    /// It is below the one that is shown; otherwise it takes its place.
    pub is_below: bool,
}

/// A table that is shown, or was on the way to the one that is.
#[derive(Debug)]
pub struct Level {
    pub place: Place,
    pub table: BrowseTable,
    pub list: ListState,
}

impl Level {
    fn new(place: Place, table: BrowseTable) -> Self {
        let list = ListState { selected: table.first, ..ListState::default() };
        Self { place, table, list }
    }

    /// Returns the rows that have the text.
    pub fn rows(&self) -> Vec<&BrowseRow> {
        let text = self.list.filter.to_lowercase();
        self.table.table.rows.iter().filter(|row| row.contains(&text)).collect()
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
    pub fn arrive(&mut self, read: Result<BrowseTable, ViewError>, step: Step) {
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
            self.question = typed.key(key, &mut self.level_mut().list);
            return None;
        }
        match key {
            KeyPress::Ctrl('c') => return Some(BrowseAction::Quit),
            KeyPress::Ctrl('z') => return Some(BrowseAction::Suspend),
            KeyPress::Ctrl('l') => return Some(BrowseAction::Redraw),
            _ => {}
        }
        if let Some(down) = self.help {
            self.help = help::scroll(down, key, self.page);
            return None;
        }
        match key {
            KeyPress::Char('q') => return Some(BrowseAction::Quit),
            KeyPress::Char('?' | 'h') => self.help = Some(0),
            KeyPress::Char('/') => self.question = Some(self.level().list.type_filter()),
            KeyPress::Char('s') => self.sort(false),
            KeyPress::Char('r') => self.sort(true),
            KeyPress::Char(' ') => {
                self.go(KeyPress::PageDown);
            }
            KeyPress::Escape if !self.level().list.filter.is_empty() => self.level_mut().list.filter.clear(),
            KeyPress::Escape | KeyPress::Backspace => self.out(),
            _ if self.go(key) => {}
            _ => return self.step(key).map(Box::new).map(BrowseAction::Send),
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
        level.rows().get(level.list.selected).copied()
    }

    fn enter(&mut self) -> Option<Step> {
        let below = self.selected()?.target.below.clone();
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
        let target = match (&row.target.call, &row.target.below) {
            (Some(call), _) => call.target(),
            (None, Below::Place(View::Code(target), _)) => target.clone(),
            _ => {
                self.message = Some("this row has no code; 4 shows functions".to_owned());
                return None;
            }
        };
        let name = display::clean::escaped(&target.symbol).into_owned();
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
        let Some(call) = self.selected().and_then(|row| row.target.call.clone()) else {
            self.message = Some("this row has no callers; 4 shows functions".to_owned());
            return None;
        };
        let name = display::clean::escaped(&call.symbol).into_owned();
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

    /// Sorts by the next column, or in the reversed order.
    fn sort(&mut self, reverse: bool) {
        let Level { table, list, .. } = self.level_mut();
        let table = &mut table.table;
        if !table.sorts {
            self.message = Some("this table has its own order".to_owned());
            return;
        }
        list.order = match reverse {
            true => SortOrder { reversed: !list.order.reversed, ..list.order },
            false => SortOrder { column: table.next_order(list.order.column), reversed: false },
        };
        table.sort(list.order);
        (list.selected, list.scroll) = (0, 0);
    }

    fn go(&mut self, key: KeyPress) -> bool {
        let (rows, page) = (self.level().rows().len(), self.page);
        self.level_mut().list.go(key, rows, page)
    }
}
