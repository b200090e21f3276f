//! The tables, their rows, and whole screens.

use std::path::PathBuf;
use std::rc::Rc;

use profile::report::{Direction, Report};
use profile::{Filter, Profile, made_up};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use tempfile::TempDir;

use super::rows::Below;
use super::source::{KINDS, Place, ReportSource, View};
use super::state::{BrowseAction, BrowseState, Step};
use super::*;
use crate::keys::{KeyParser, KeyPress};
use crate::table::CellValue;

const PLAIN: ScreenTheme = ScreenTheme { color: false, unicode: true };

/// A profile, and a view of it.
struct Session {
    made_up: Rc<MadeUp>,
    source: ReportSource,
    state: BrowseState,
}

struct MadeUp {
    _directory: TempDir,
    path: PathBuf,
}

impl MadeUp {
    fn new() -> Rc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.vprof");
        made_up::write_profile(&path, 4_000, 40);
        Rc::new(Self { _directory: directory, path })
    }
}

impl Session {
    fn new() -> Self {
        Self::open(&MadeUp::new())
    }

    fn open(made_up: &Rc<MadeUp>) -> Self {
        let BrowseView { source, state } = BrowseView::open(&made_up.path, Filter::default()).unwrap();
        Self { made_up: Rc::clone(made_up), source, state }
    }

    /// Processes keys as the loop does; returns the last action.
    fn press(&mut self, keys: &str) -> Option<BrowseAction> {
        let mut last = None;
        for key in KeyParser::default().feed(keys.as_bytes()) {
            last = self.key(key);
        }
        last
    }

    fn key(&mut self, key: KeyPress) -> Option<BrowseAction> {
        let action = self.state.key(key);
        if let Some(BrowseAction::Send(step)) = &action {
            self.go(step.as_ref().clone());
        }
        action
    }

    fn go(&mut self, step: Step) {
        let read = self.source.table(&step.place);
        self.state.arrive(read, step);
    }

    fn text(&mut self, size: (u16, u16)) -> String {
        lines(&drawn(&mut self.state, size, PLAIN)).join("\n") + "\n"
    }

    /// Chosen samples of a part of the profile, as `vprof report` counts them.
    fn samples(&self, filter: &Filter) -> u64 {
        let profile = Profile::open(&self.made_up.path).unwrap();
        Report::read(&profile, filter).unwrap().chosen_samples
    }
}

fn drawn(state: &mut BrowseState, (width, height): (u16, u16), theme: ScreenTheme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::screen(frame, state, theme)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let line = |row: &[ratatui::buffer::Cell]| {
        row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()
    };
    buffer.content().chunks(width).map(line).collect()
}

/// Samples of a row's own.
fn own(cells: &[CellValue]) -> u64 {
    let count =
        cells.iter().find_map(|cell| if let CellValue::Count(count) = cell { Some(*count) } else { None });
    count.unwrap()
}

#[test]
fn what_is_below_a_row_has_its_samples() {
    let mut session = Session::new();
    let mut parts = 0;
    for kind in KINDS {
        let place = Place { name: String::new(), filter: Filter::default(), view: View::By(kind) };
        session.go(Step { place, is_below: false });
        assert_eq!(session.state.message, None, "{kind:?}");
        for row in session.state.level().rows().iter().take(3) {
            if let Below::Part(below) = &row.target.below {
                assert_eq!(session.samples(&below.filter), own(&row.cells), "{kind:?}: {}", below.name);
                parts += 1;
            }
        }
    }
    assert!(parts >= 8, "{parts}");
}

#[test]
fn keys_lead_from_a_program_to_its_code_and_back() {
    let mut session = Session::new();
    assert!(session.text((80, 24)).contains("[hard interrupts]"));
    session.press("/program-07\r\r");
    assert!(matches!(session.state.level().place.view, View::By(profile::report::By::Function)));
    let text = session.text((80, 24));
    assert!(text.contains(" all > program-07\n") && text.contains("[4 function]"), "{text}");
    session.press("s\r");
    assert!(matches!(session.state.level().place.view, View::Calls(_, Direction::Callees)));
    session.press("c");
    assert!(matches!(session.state.level().place.view, View::Calls(_, Direction::Callers)));
    assert!(session.text((80, 24)).contains("> callers of "));
    assert_eq!(session.state.levels().len(), 3);
    session.press("a");
    // The made-up profile has no machine code: the addresses are left.
    let text = session.text((80, 24));
    assert!(text.contains("> code of "), "{text}");
    assert!(text.contains("\n The profile has no machine code"), "a note has the whole width: {text}");
    session.press("\x7f\x7f\x7f");
    assert_eq!(session.state.levels().len(), 1);
    assert_eq!(session.state.level().list.filter, "program-07");
    session.press("\x7f");
    assert_eq!(session.state.message.as_deref(), Some("this is the first table; q quits"));
    assert_eq!(session.press("q"), Some(BrowseAction::Quit));
    assert_eq!(session.press("\x1a"), Some(BrowseAction::Suspend));
}

#[test]
fn other_tables_are_of_the_same_part() {
    let mut session = Session::new();
    session.press("/program-07\r\r");
    let filter = session.state.level().place.filter.clone();
    session.press("3");
    assert_eq!(session.state.level().place.filter, filter);
    assert_eq!(session.state.levels().len(), 2, "it takes the place of the functions");
    assert_eq!(session.state.level().rows().len(), 1);
    session.press("\t0");
    assert_eq!(session.state.level().place.view, View::By(profile::report::By::Syscall));
    session.press("\t");
    assert_eq!(session.state.level().place.view, View::By(profile::report::By::Process));
    session.press("9");
    assert!(session.text((80, 24)).contains("No sample fits."));
    session.press("\r");
    assert_eq!(session.state.level().place.view, View::By(profile::report::By::Irq));
}

#[test]
fn rows_are_filtered_selected_and_sorted() {
    let mut session = Session::new();
    session.text((80, 24));
    session.press("\x1b[6~jk");
    assert_eq!(session.state.level().list.selected, session.state.page);
    let text = session.text((80, 24));
    assert!(text.contains(" of 65\n"), "{text}");
    let samples = text.lines().next().unwrap();
    assert!(samples.ends_with(" samples"), "it is not cut: {samples}");
    session.press("G/no such row\r");
    assert!(session.text((80, 24)).contains("No row has this text."));
    assert_eq!(session.press("\r"), None);
    session.key(KeyPress::Escape);
    assert_eq!((session.state.level().list.filter.as_str(), session.state.level().rows().len()), ("", 65));
    session.press("s");
    let numbers = |session: &Session, name: &str| -> Vec<f64> {
        let level = session.state.level();
        let at = level.table.table.columns.iter().position(|column| column.name == name).unwrap();
        let number = |cell: &CellValue| match cell {
            CellValue::Share(share) => *share,
            CellValue::Count(count) => *count as f64,
            _ => unreachable!("{name}"),
        };
        level.rows().iter().map(|row| number(&row.cells[at])).collect()
    };
    assert!(numbers(&session, "samples").is_sorted_by(|a, b| a >= b));
    session.press("r");
    assert!(numbers(&session, "samples").is_sorted());
    session.press("4");
    assert!(numbers(&session, "self").is_sorted_by(|a, b| a >= b));
    session.press("s");
    assert!(numbers(&session, "total").is_sorted_by(|a, b| a >= b));
    assert!(session.text((80, 24)).contains("▼total"));
    session.press("\rs");
    assert_eq!(session.state.message.as_deref(), Some("this table has its own order"));
}

#[test]
fn the_help_and_questions_take_their_keys() {
    let mut session = Session::new();
    session.press("?");
    assert!(session.text((80, 24)).contains("go in: the functions"));
    session.press("q");
    assert_eq!(session.state.help, None);
    session.press("/q");
    assert!(session.text((80, 24)).ends_with("show only rows with: q\n"));
    assert_eq!(session.press("\x03"), None);
    assert_eq!((session.state.level().list.filter.as_str(), &session.state.question), ("", &None));
}

#[test]
fn small_screens_have_the_rows_and_smaller_ones_say_so() {
    let mut session = Session::new();
    let text = session.text((40, 10));
    assert!(text.contains("program-") && text.ends_with("? help  q quit  Enter in  Esc out\n"), "{text}");
    assert!(session.text((39, 10)).starts_with("Too small.\nvprof report needs 40x10,\n"));
    let text = session.text((200, 50));
    assert!(text.contains("[1 process] 2 instance ") && text.contains("1-"), "{text}");
}

/// A screen of any size is drawn, whatever the keys; its text has no control characters.
#[test]
fn anything_can_be_drawn() {
    let made_up = MadeUp::new();
    let sizes = (1_u16..200, 1_u16..60);
    let cases = (sizes, "[1-9jkacsq?/ \r\x7f\t]{0,6}", any::<bool>());
    let draw = |(size, keys, unicode): ((u16, u16), String, bool)| {
        let mut session = Session::open(&made_up);
        for key in KeyParser::default().feed(keys.as_bytes()) {
            session.key(key);
            let drawn = drawn(&mut session.state, size, ScreenTheme { color: true, unicode });
            for cell in drawn.content() {
                prop_assert!(!cell.symbol().contains(char::is_control));
                prop_assert!(unicode || cell.symbol().is_ascii());
            }
        }
        Ok(())
    };
    TestRunner::new(ProptestConfig::with_cases(12)).run(&cases, draw).unwrap();
}
