use super::*;
use crate::top::fixture;
use crate::top::keys::KeyParser;

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
    assert_eq!((state.pane, state.here().order), (PaneKind::Tasks, SortOrder::default()));
    press(&mut state, "\x1b[Z");
    assert_eq!(
        (state.pane, state.here().order),
        (PaneKind::Functions, SortOrder { column: 3, reversed: true })
    );
    press(&mut state, "s");
    assert_eq!(state.here().order, SortOrder { column: 5, reversed: false });
    press(&mut state, "6\t");
    assert_eq!((state.pane, state.instances), (PaneKind::Programs, false));
    press(&mut state, "i2i");
    assert!(state.instances, "i is a key of the first pane");
}

#[test]
fn spans_go_round() {
    let mut state = state(false);
    let spans = [Span::Last(15.0), Span::Last(60.0), Span::Run, Span::Last(1.0)];
    let wanted = spans.map(|span| KeyAction::Send(RunCommand::View(View { span, rows: ROWS })));
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
    assert_eq!(state.here().filter, "quit");
    press(&mut state, "/x");
    assert_eq!(state.here().filter, "quitx");
    state.key(KeyPress::Escape);
    assert_eq!((state.here().filter.as_str(), &state.question), ("quit", &None));
    state.key(KeyPress::Escape);
    assert_eq!(state.here().filter, "");
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
fn rows_scroll_from_the_latest() {
    let mut state = state(false);
    state.page = 10;
    press(&mut state, "jj\x1b[6~k");
    assert_eq!(state.here().scroll, 11);
    press(&mut state, "gk5k\x1b[5~");
    assert_eq!(state.here().scroll, 11);
    press(&mut state, "G");
    assert_eq!(state.here().scroll, 0);
    press(&mut state, "1");
    assert_eq!(state.here().scroll, 0);
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
