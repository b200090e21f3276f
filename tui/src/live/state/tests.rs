use profile::live::{CallsView, DetailView, SamplePart};
use profile::report::Direction;

use super::*;
use crate::keys::KeyParser;
use crate::list::TYPED;
use crate::live::fixture;

fn state(own_run: bool) -> ViewState {
    let mut state = ViewState::new(Duration::from_millis(500), own_run);
    assert!(state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(2, 1.0)))));
    state
}

/// Processes keys, and returns all their actions.
fn press(state: &mut ViewState, keys: &str) -> Vec<KeyAction> {
    KeyParser::default().feed(keys.as_bytes()).into_iter().filter_map(|key| state.key(key)).collect()
}

#[test]
fn panes_are_chosen_and_remember_their_order() {
    let mut state = state(false);
    assert_eq!(press(&mut state, "2sr\t"), []);
    assert_eq!((state.pane, state.here().list.order), (PaneKind::Tasks, SortOrder::default()));
    press(&mut state, "\x1b[Z");
    assert_eq!(
        (state.pane, state.here().list.order),
        (PaneKind::Functions, SortOrder { column: 3, reversed: true })
    );
    press(&mut state, "s");
    assert_eq!(state.here().list.order, SortOrder { column: 5, reversed: false });
    press(&mut state, "7\t");
    assert_eq!((state.pane, state.instances), (PaneKind::Programs, false));
    press(&mut state, "i2i");
    assert!(state.instances, "i is a key of the first pane");
}

#[test]
fn spans_go_round() {
    let mut state = state(false);
    let spans = [Span::Last(15.0), Span::Last(60.0), Span::Run, Span::Last(1.0)];
    let wanted =
        spans.map(|span| KeyAction::Send(RunCommand::View(View { span, rows: ROWS, ..View::default() })));
    assert_eq!(press(&mut state, "wwww"), wanted);
}

#[test]
fn sampling_is_controlled() {
    let mut state = state(false);
    assert_eq!(
        press(&mut state, "S+-"),
        [
            KeyAction::Send(RunCommand::Stop),
            KeyAction::Send(RunCommand::Rate(2_000.0)),
            KeyAction::Send(RunCommand::Rate(500.0))
        ]
    );
    state.snapshot.sampling.on = false;
    assert_eq!(press(&mut state, "S"), [KeyAction::Send(RunCommand::Start)]);
    state.event(RunEvent::Ended("gone".to_owned()));
    assert_eq!(press(&mut state, "S+wm"), []);
    assert_eq!(state.question, None);
}

#[test]
fn the_display_pauses_and_continues() {
    let mut state = state(false);
    press(&mut state, " ");
    assert!(!state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(2, 1.5)))));
    assert!(!state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(2, 2.0)))));
    assert_eq!((state.snapshot.time_s, state.history.latest(&[0]).count()), (1.0, 1));
    press(&mut state, " ");
    assert_eq!((state.snapshot.time_s, state.history.latest(&[0]).count()), (2.0, 3));
    press(&mut state, "  ");
    assert_eq!(state.snapshot.time_s, 2.0);
}

#[test]
fn filters_and_marks_are_typed() {
    let mut state = state(false);
    // Letters that are keys elsewhere are text in a question.
    assert_eq!(press(&mut state, "/qw\x7fuit\r"), []);
    assert_eq!(state.here().list.filter, "quit");
    press(&mut state, "/x");
    assert_eq!(state.here().list.filter, "quitx");
    state.key(KeyPress::Escape);
    assert_eq!((state.here().list.filter.as_str(), &state.question), ("quit", &None));
    state.key(KeyPress::Escape);
    assert_eq!(state.here().list.filter, "");
    assert_eq!(
        press(&mut state, "m \rmcache is warm\r"),
        [KeyAction::Send(RunCommand::Mark("cache is warm".into()))]
    );
    press(&mut state, &format!("m{}", "x".repeat(999)));
    assert_eq!(state.question, Some(UserPrompt::Mark("x".repeat(TYPED))));
    press(&mut state, "\x15\x03");
    assert_eq!(state.question, None);
}

#[test]
fn rows_are_selected_and_lines_scroll_from_the_latest() {
    let mut state = state(false);
    state.page = 10;
    press(&mut state, "ijj\x1b[6~k");
    assert_eq!(state.here().list.selected, 11);
    press(&mut state, "gk5k\x1b[5~");
    assert_eq!(state.here().list.scroll, 11);
    press(&mut state, "G");
    assert_eq!(state.here().list.scroll, 0);
    press(&mut state, "1");
    assert_eq!(state.here().list.selected, 0);
}

/// A snapshot with the table that the state requests.
fn answer(state: &mut ViewState, time_s: f64) -> bool {
    let detail = state.view().detail.map(|view| fixture::detail(&view));
    let snapshot = Snapshot { detail, ..fixture::snapshot(2, time_s) };
    state.event(RunEvent::Snapshot(Box::new(snapshot)))
}

#[test]
fn the_selected_row_stays_selected_where_it_moves_to() {
    let mut state = state(false);
    press(&mut state, "j");
    let second = state.selected();
    assert!(
        matches!(&second, Some(LiveTarget::Part(SamplePart::Program { comm, .. })) if comm == "sha256sum")
    );
    let mut moved = fixture::snapshot(2, 2.0);
    moved.programs[1].share.share = 0.9;
    state.event(RunEvent::Snapshot(Box::new(moved)));
    assert_eq!(state.selected(), second);
    assert_eq!(state.here().list.selected, 0);
    // The first row is the first one, whichever it is.
    press(&mut state, "g");
    state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(2, 3.0))));
    assert_ne!(state.selected(), second);
}

#[test]
fn enter_goes_in_and_escape_out() {
    let mut state = state(false);
    let part = SamplePart::Program { comm: "python3".to_owned(), kernel_thread: false };
    let view = |calls| {
        let detail = Some(DetailView { part: part.clone(), calls });
        vec![KeyAction::Send(RunCommand::View(View {
            detail,
            span: Span::Last(5.0),
            rows: ROWS,
            history_s: None,
        }))]
    };
    let calls = |symbol: &str, module: Option<&str>, direction| {
        let (symbol, module) = (symbol.to_owned(), module.map(str::to_owned));
        view(Some(CallsView { symbol, module, direction }))
    };
    assert_eq!(press(&mut state, "\r"), view(None));
    assert_eq!(press(&mut state, "\r"), [], "its rows have not come yet");
    answer(&mut state, 1.5);
    let (python, callees, callers) = (Some("python3.11"), Direction::Callees, Direction::Callers);
    assert_eq!(press(&mut state, "j\r"), calls("_PyEval_EvalFrameDefault", python, callees));
    answer(&mut state, 2.0);
    assert_eq!(press(&mut state, "c"), calls("_PyEval_EvalFrameDefault", python, callers));
    answer(&mut state, 2.5);
    assert_eq!(state.details().len(), 2, "callers take the place of callees");
    assert_eq!(press(&mut state, "\r"), [], "the function itself");
    assert_eq!(press(&mut state, "j\r"), calls("main", python, callers));
    assert_eq!(press(&mut state, "\x7f"), calls("_PyEval_EvalFrameDefault", python, callers));
    assert_eq!(press(&mut state, "/main\r"), []);
    state.key(KeyPress::Escape);
    assert_eq!((state.here().list.filter.as_str(), state.details().len()), ("", 2));
    assert_eq!(state.key(KeyPress::Escape), view(None).pop());
    assert_eq!(
        press(&mut state, "3"),
        [KeyAction::Send(RunCommand::View(View { detail: None, ..state.view() }))]
    );
    assert_eq!((state.pane, state.details().len()), (PaneKind::Tasks, 0));
    // A task leads to its process, an exit and a line to nothing.
    press(&mut state, "\r");
    let process = SamplePart::Process { comm: "python3".to_owned(), instance: 0 };
    assert_eq!(state.view().detail, Some(DetailView { part: process, calls: None }));
    for pane in ["4", "5", "6"] {
        press(&mut state, pane);
        assert_eq!(press(&mut state, "\r"), [], "{pane}");
        assert!(state.message.as_deref().is_some_and(|message| message.starts_with("nothing is below")));
    }
    assert_eq!(press(&mut state, "2ja"), []);
    assert!(state.message.as_deref().is_some_and(|message| message.contains("report -i")));
    press(&mut state, "c");
    let all = state.view().detail.unwrap();
    assert_eq!((all.part, all.calls.unwrap().direction), (SamplePart::All, Direction::Callers));
}

#[test]
fn what_is_opened_in_a_pause_has_the_figures_of_one_moment() {
    let mut state = state(false);
    press(&mut state, " ");
    assert!(!answer(&mut state, 2.0));
    press(&mut state, "\r");
    // Tables of another part are not those of this one.
    assert!(!state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(2, 2.5)))));
    assert!(answer(&mut state, 3.0) && !answer(&mut state, 3.5));
    assert_eq!((state.snapshot.time_s, state.table().rows.len()), (3.0, 2));
    press(&mut state, "\r");
    assert!(answer(&mut state, 4.0));
    press(&mut state, "\x7f");
    assert_eq!((state.table().rows.len(), state.table().empty), (0, "Reading ..."));
    assert!(answer(&mut state, 5.0));
    press(&mut state, " ");
    assert_eq!(state.snapshot.time_s, 5.0);
}

#[test]
fn tables_of_a_run_that_has_ended_stay() {
    let mut state = state(false);
    press(&mut state, "\r");
    answer(&mut state, 2.0);
    state.event(RunEvent::Ended("the run has ended".to_owned()));
    assert_eq!(press(&mut state, "\rc"), []);
    assert!(state.message.as_deref().is_some_and(|message| message.contains("report -i")));
    assert_eq!((state.details().len(), state.table().rows.len()), (1, 2));
    assert_eq!(press(&mut state, "\x7f"), []);
    assert_eq!(state.details().len(), 0);
}

#[test]
fn the_own_run_ends_only_after_a_confirmation() {
    let mut other = state(false);
    assert_eq!(press(&mut other, "q"), [KeyAction::Quit]);
    assert_eq!(press(&mut other, "\x1a\x0c"), [KeyAction::Suspend, KeyAction::Redraw]);
    let mut own = state(true);
    assert_eq!(press(&mut own, "qn\x1a"), []);
    assert!(own.message.as_deref().is_some_and(|message| message.contains("guest")));
    assert_eq!(press(&mut own, "qy"), [KeyAction::Send(RunCommand::End)]);
    assert_eq!(press(&mut own, "\x03\x03"), [KeyAction::Send(RunCommand::End)]);
}

#[test]
fn the_help_takes_its_keys() {
    let mut state = state(false);
    press(&mut state, "?jjk");
    assert_eq!(state.help, Some(1));
    assert_eq!(press(&mut state, "q"), []);
    assert_eq!(state.help, None);
    assert_eq!(press(&mut state, "?\x03"), [KeyAction::Quit]);
}
