//! Tables below a row of a pane: the functions of a process, callers and callees of a function.

use display::clean::escaped;
use profile::live::{CallsView, Detail, DetailView, SamplePart};
use profile::report::Direction;

use super::panes::{LiveFunction, LiveTarget, PaneTable, calls, functions};
use crate::keys::KeyPress;
use crate::list::ListState;

/// A list of rows that move with each snapshot.
#[derive(Debug, Clone, Default)]
pub struct LiveList {
    /// The list; panes that follow count `scroll` from the end.
    pub list: ListState,
    /// The row that the user has selected; `None`: the first one, whichever it is.
    chosen: Option<LiveTarget>,
}

impl LiveList {
    /// Selects the chosen row where it is now. If it has gone, the row at its position remains selected.
    pub fn follow(&mut self, table: &PaneTable) {
        if let Some(at) = table.rows.iter().position(|row| Some(&row.target) == self.chosen.as_ref()) {
            self.list.selected = at;
        }
        self.list.selected = self.list.selected.min(table.rows.len().saturating_sub(1));
    }

    /// Processes a key that selects a row of the table. Returns false for another key.
    pub fn go(&mut self, key: KeyPress, table: &PaneTable, page: usize) -> bool {
        self.follow(table);
        let went = self.list.go(key, table.rows.len(), page);
        if went {
            let row = table.rows.get(self.list.selected).filter(|_| self.list.selected > 0);
            self.chosen = row.map(|row| row.target.clone());
        }
        went
    }

    /// Selects the first row, whichever it is.
    pub fn select_first(&mut self) {
        self.chosen = None;
        (self.list.selected, self.list.scroll) = (0, 0);
    }

    /// Returns the selected row of the table.
    pub fn selected<'a>(&mut self, table: &'a PaneTable) -> Option<&'a LiveTarget> {
        self.follow(table);
        table.rows.get(self.list.selected).map(|row| &row.target)
    }
}

/// A table below a row.
#[derive(Debug)]
pub struct DetailLevel {
    /// Name in the way to the table; escaped.
    pub name: String,
    /// Selection of the table.
    pub view: DetailView,
    /// Its rows.
    pub rows: LiveList,
    /// The latest data, once some has come.
    pub detail: Option<Box<Detail>>,
}

impl DetailLevel {
    fn new(view: DetailView) -> Self {
        let name = match (&view.calls, &view.part) {
            (Some(CallsView { symbol, direction: Direction::Callers, .. }), _) => {
                format!("callers of {}", escaped(symbol))
            }
            (Some(CallsView { symbol, direction: Direction::Callees, .. }), _) => {
                format!("callees of {}", escaped(symbol))
            }
            (None, SamplePart::All) => "all".to_owned(),
            (None, SamplePart::Program { comm, .. }) => escaped(comm).into_owned(),
            (None, SamplePart::Process { comm, instance }) => format!("{}#{instance}", escaped(comm)),
        };
        Self { name, view, rows: LiveList::default(), detail: None }
    }

    /// Makes the table below a row of this table, or of a pane if there is no table.
    ///
    /// # Errors
    /// Nothing is below the row: the reason.
    pub fn below(target: &LiveTarget, above: Option<&Self>) -> Result<Self, &'static str> {
        let part = || above.map_or(SamplePart::All, |level| level.view.part.clone());
        let direction = above.and_then(|level| level.view.calls.as_ref()).map(|calls| calls.direction);
        match target {
            LiveTarget::Part(part) | LiveTarget::Thread(part, _) => {
                Ok(Self::new(DetailView { part: part.clone(), calls: None }))
            }
            LiveTarget::Call(_, way) if way.is_empty() => {
                Err("this is the function of the table; Esc goes out")
            }
            LiveTarget::Function(function) | LiveTarget::Call(function, _) => {
                Ok(Self::of_calls(function, part(), direction.unwrap_or(Direction::Callees)))
            }
            LiveTarget::Exit(_) => Err("nothing is below an exit"),
            LiveTarget::Line => Err("nothing is below this row"),
        }
    }

    /// Makes the table of the callers of the function of a row.
    ///
    /// # Errors
    /// The row is not a function.
    pub fn of_callers(target: &LiveTarget, above: Option<&Self>) -> Result<Self, &'static str> {
        let part = above.map_or(SamplePart::All, |level| level.view.part.clone());
        match target {
            LiveTarget::Function(function) => Ok(Self::of_calls(function, part, Direction::Callers)),
            _ => Err("this row has no callers; 2 shows functions"),
        }
    }

    fn of_calls(function: &LiveFunction, part: SamplePart, direction: Direction) -> Self {
        let (symbol, module) = (function.symbol.clone(), function.module.clone());
        Self::new(DetailView { part, calls: Some(CallsView { symbol, module, direction }) })
    }

    /// Makes the table of the callers if this one has the callees of a function, and the other way round.
    pub fn turned(&self) -> Option<Self> {
        let calls = self.view.calls.clone()?;
        let direction = match calls.direction {
            Direction::Callers => Direction::Callees,
            Direction::Callees => Direction::Callers,
        };
        let calls = Some(CallsView { direction, ..calls });
        Some(Self::new(DetailView { part: self.view.part.clone(), calls }))
    }

    /// Returns the rows, sorted and filtered.
    pub fn table(&self) -> PaneTable {
        let Some(detail) = &self.detail else {
            return PaneTable { empty: "Reading ...", ..PaneTable::default() };
        };
        let mut table = match &self.view.calls {
            None => functions(&detail.functions),
            Some(_) => calls(&detail.calls),
        };
        table.filter(&self.rows.list.filter);
        table.sort(self.rows.list.order);
        table
    }
}
