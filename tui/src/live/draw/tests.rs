//! Whole screens, as the user sees them.

use std::time::Duration;

use profile::live::Snapshot;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::keys::{KeyParser, KeyPress};
use crate::live::control::{RunCommand, RunEvent};
use crate::live::fixture;
use crate::live::state::KeyAction;

const EVERY: Duration = Duration::from_millis(500);
const PLAIN: ScreenTheme = ScreenTheme { color: false, unicode: true };
const COLORED: ScreenTheme = ScreenTheme { color: true, unicode: true };
const ASCII: ScreenTheme = ScreenTheme { color: false, unicode: false };

/// Makes a run of 20 seconds with this many vCPUs, after these keys.
fn watched(vcpus: u8, keys: &str) -> ViewState {
    let mut state = ViewState::new(EVERY, false);
    for step in 1..=40 {
        state.event(RunEvent::Snapshot(Box::new(fixture::snapshot(vcpus, f64::from(step) / 2.0))));
    }
    for key in KeyParser::default().feed(keys.as_bytes()) {
        if let Some(KeyAction::Send(RunCommand::View(view))) = state.key(key) {
            let detail = view.detail.as_ref().map(fixture::detail);
            let snapshot = Snapshot { detail, ..fixture::snapshot(vcpus, 20.0) };
            state.event(RunEvent::Snapshot(Box::new(snapshot)));
        }
    }
    state
}

fn drawn(state: &mut ViewState, (width, height): (u16, u16), theme: ScreenTheme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen(frame, state, theme)).unwrap();
    terminal.backend().buffer().clone()
}

/// Returns the lines of a screen, without spaces at their ends.
fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let mut lines = Vec::new();
    for row in buffer.content().chunks(width) {
        let mut line = String::new();
        let mut skip = 0;
        for cell in row {
            if skip == 0 {
                line.push_str(cell.symbol());
            }
            skip = cell.symbol().width().max(skip).saturating_sub(1);
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

fn text(state: &mut ViewState, size: (u16, u16), theme: ScreenTheme) -> String {
    lines(&drawn(state, size, theme)).join("\n") + "\n"
}

/// Compares these screens with those in `golden/`. `VPROF_GOLDEN=write cargo test -p vprof top::draw` writes
/// them.
macro_rules! golden {
    ($($name:ident: $vcpus:expr, $keys:expr, $size:expr, $theme:expr;)*) => {
        $(#[test]
        fn $name() {
            let drawn = text(&mut watched($vcpus, $keys), $size, $theme);
            if std::env::var("VPROF_GOLDEN").is_ok_and(|value| value == "write") {
                let name = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/draw/golden/", stringify!($name), ".txt");
                std::fs::write(name, &drawn).expect("the file of the screen");
                return;
            }
            let golden = include_str!(concat!("golden/", stringify!($name), ".txt"));
            assert!(drawn == golden, "drawn:\n{drawn}\ngolden:\n{golden}");
        })*
    };
}

golden! {
    programs: 2, "", (80, 24), PLAIN;
    processes: 2, "i", (80, 24), PLAIN;
    functions_wide: 2, "2", (120, 40), PLAIN;
    functions: 2, "2s", (80, 24), PLAIN;
    tiny: 2, "", (40, 10), PLAIN;
    tasks_of_many_vcpus_in_ascii: 64, "3", (80, 24), ASCII;
    exits_paused_and_filtered: 2, "4/ser\r ", (80, 16), PLAIN;
    console_while_a_mark_is_typed: 2, "5\x1b[Amcache is warm", (80, 20), PLAIN;
    events_on_a_narrow_screen: 2, "6", (60, 18), PLAIN;
    memory: 2, "7", (80, 24), PLAIN;
    help: 2, "?", (80, 24), PLAIN;
    functions_of_a_process: 2, "ij\r", (80, 24), PLAIN;
    callers: 2, "\rj\rcj", (80, 24), PLAIN;
    callees_wide_and_filtered: 2, "2jj\r/main\r", (200, 30), PLAIN;
    callees_on_a_small_screen: 2, "\rj\r", (40, 10), ASCII;
}

#[test]
fn too_small_says_so() {
    let drawn = text(&mut watched(2, ""), (30, 8), PLAIN);
    assert!(drawn.starts_with("Too small.\nvprof top needs 40x10,\nthis is 30x8.\nq quits.\n"), "{drawn}");
    assert_eq!(text(&mut watched(2, ""), (3, 1), PLAIN), "To…\n");
}

#[test]
fn a_run_that_is_not_running_yet_has_a_message() {
    let mut state = ViewState::new(EVERY, true);
    state.event(RunEvent::Message("booting the portable host ...".to_owned()));
    let drawn = text(&mut state, (80, 24), PLAIN);
    assert!(drawn.starts_with(" The guest does not run yet.\n"), "{drawn}");
    assert!(drawn.contains("No samples in this span") && drawn.ends_with("booting the portable host ...\n"));
}

#[test]
fn a_paused_machine_is_shown_instead_of_the_rate() {
    let mut state = watched(2, "");
    let mut snapshot = fixture::snapshot(2, 21.0);
    let pause =
        |snapshot: &mut Snapshot, vcpu: usize| snapshot.vcpus[vcpu].now = vec![("paused".to_owned(), 0.9)];
    pause(&mut snapshot, 0);
    state.event(RunEvent::Snapshot(Box::new(snapshot.clone())));
    assert!(!text(&mut state, (80, 24), PLAIN).contains("VM PAUSED"), "one of two runs");
    pause(&mut snapshot, 1);
    state.event(RunEvent::Snapshot(Box::new(snapshot)));
    for size in [(80, 24), (40, 10)] {
        let drawn = text(&mut state, size, PLAIN);
        assert!(drawn.lines().next().is_some_and(|line| line.contains("VM PAUSED")), "{drawn}");
    }
}

#[test]
fn the_end_and_questions_are_at_the_bottom() {
    let mut state = watched(2, "");
    state.event(RunEvent::Ended("the run has ended".to_owned()));
    assert!(text(&mut state, (80, 24), PLAIN).ends_with("\nthe run has ended; q quits\n"));
    let mut own = ViewState::new(EVERY, true);
    own.key(KeyPress::Char('q'));
    assert!(text(&mut own, (80, 24), PLAIN).ends_with("\nEnd the run? y ends it, any other key cancels.\n"));
    let mut typed = watched(2, &format!("/{}end", "x".repeat(100)));
    let last = lines(&drawn(&mut typed, (40, 10), PLAIN)).pop().unwrap();
    assert_eq!(last, "show only rows with: xxxxxxxxxxxxxxxend");
}

#[test]
fn colours_add_to_a_readable_screen() {
    let (plain, colored) =
        (drawn(&mut watched(2, ""), (80, 24), PLAIN), drawn(&mut watched(2, ""), (80, 24), COLORED));
    assert_eq!(lines(&plain), lines(&colored));
    assert!(plain.content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    let used = |symbol: &str| colored.content().iter().find(|cell| cell.symbol() == symbol).unwrap().fg;
    assert_eq!([used("█"), used("w"), used("▼")], [Color::Cyan, Color::Yellow, Color::Reset]);
    assert!(colored.content().iter().all(|cell| !matches!(cell.fg, Color::Rgb(..) | Color::Indexed(_))));
}

proptest! {
    /// A screen of any size is drawn, whatever the data and the keys; its text has no control characters.
    #[test]
    fn anything_can_be_drawn(
        size in (1_u16..200, 1_u16..60),
        keys in prop::collection::vec(any::<u8>(), 0..12),
        (names, numbers) in (prop::collection::vec(".*", 5), prop::collection::vec(any::<f64>(), 6)),
        (vcpus, unicode) in (0_u8..65, any::<bool>()),
    ) {
        let mut snapshot = fixture::snapshot(vcpus, numbers[0]);
        snapshot.programs[0].comm.clone_from(&names[0]);
        snapshot.functions[0].symbol.clone_from(&names[1]);
        snapshot.kernel = Some(names[2].clone());
        snapshot.console.push(names[3].clone());
        snapshot.events[0].text.clone_from(&names[4]);
        snapshot.programs[0].share.share = numbers[1];
        snapshot.programs[0].share.high = numbers[2];
        snapshot.exits[0].mean_ns = numbers[3];
        snapshot.sampling.rate_hz = numbers[4];
        snapshot.modes.user = numbers[5];
        snapshot.vcpus.iter_mut().for_each(|vcpu| vcpu.states[0].1 = numbers[5]);
        let mut state = ViewState::new(EVERY, true);
        state.event(RunEvent::Snapshot(Box::new(snapshot)));
        for key in KeyParser::default().feed(&keys) {
            if let Some(KeyAction::Send(RunCommand::View(view))) = state.key(key) {
                let mut detail = view.detail.as_ref().map(fixture::detail);
                for call in detail.iter_mut().flat_map(|detail| &mut detail.calls) {
                    (call.symbol, call.part) = (names[0].clone(), numbers[1]);
                }
                state.event(RunEvent::Snapshot(Box::new(Snapshot { detail, ..fixture::snapshot(vcpus, 1.0) })));
            }
            let drawn = drawn(&mut state, size, ScreenTheme { color: true, unicode });
            for cell in drawn.content() {
                prop_assert!(!cell.symbol().contains(char::is_control));
                prop_assert!(unicode || cell.symbol().is_ascii());
            }
        }
    }
}
