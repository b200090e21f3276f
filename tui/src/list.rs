//! The list of a table's rows: the selected one, the filter, and the keys that change them.

use crate::keys::KeyPress;
use crate::table::SortOrder;

/// Longest text that can be typed, characters.
pub const TYPED: usize = 200;

/// State of a list.
#[derive(Debug, Clone, Default)]
pub struct ListState {
    /// Text that rows must have.
    pub filter: String,
    /// Order of rows that can be sorted.
    pub order: SortOrder,
    /// Position of the selected row among those with the text.
    pub selected: usize,
    /// Rows above the screen.
    pub scroll: usize,
}

impl ListState {
    /// Processes a key that selects one of `rows` rows, of which the screen shows `page`. Returns false for
    /// another key.
    pub fn go(&mut self, key: KeyPress, rows: usize, page: usize) -> bool {
        let selected = match key {
            KeyPress::Up | KeyPress::Char('k') => self.selected.saturating_sub(1),
            KeyPress::Down | KeyPress::Char('j') => self.selected.saturating_add(1),
            KeyPress::PageUp => self.selected.saturating_sub(page),
            KeyPress::PageDown => self.selected.saturating_add(page),
            KeyPress::Home | KeyPress::Char('g') => 0,
            KeyPress::End | KeyPress::Char('G') => usize::MAX,
            _ => return false,
        };
        self.selected = selected.min(rows.saturating_sub(1));
        true
    }

    /// Scrolls so that the selected one of `rows` rows is among the `body` rows on the screen.
    pub fn show(&mut self, rows: usize, body: usize) {
        let body = body.max(1);
        self.selected = self.selected.min(rows.saturating_sub(1));
        let lowest = (self.selected + 1).saturating_sub(body);
        self.scroll = self.scroll.min(rows.saturating_sub(body)).min(self.selected).max(lowest);
    }

    /// Begins to type a filter.
    pub fn type_filter(&self) -> TypedFilter {
        TypedFilter { typed: self.filter.clone(), before: self.filter.clone() }
    }
}

/// A filter that is typed, and the filter before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedFilter {
    pub typed: String,
    before: String,
}

impl TypedFilter {
    /// Processes a key, which changes the list at once. Returns `None` at the end.
    pub fn key(mut self, key: KeyPress, list: &mut ListState) -> Option<Self> {
        match key {
            KeyPress::Escape | KeyPress::Ctrl('c') => list.filter = self.before,
            KeyPress::Enter => {}
            _ => {
                edit(&mut self.typed, key);
                list.filter.clone_from(&self.typed);
                (list.selected, list.scroll) = (0, 0);
                return Some(self);
            }
        }
        None
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
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_on_the_screen() {
        let mut list = ListState::default();
        assert!(list.go(KeyPress::End, 100, 10) && !list.go(KeyPress::Enter, 100, 10));
        list.show(100, 10);
        assert_eq!((list.selected, list.scroll), (99, 90));
        list.go(KeyPress::PageUp, 100, 10);
        list.show(100, 10);
        assert_eq!((list.selected, list.scroll), (89, 89));
        // Fewer rows than before.
        list.show(5, 10);
        assert_eq!((list.selected, list.scroll), (4, 0));
        list.show(0, 0);
        assert_eq!((list.selected, list.scroll), (0, 0));
    }
}
