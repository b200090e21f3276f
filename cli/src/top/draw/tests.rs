//! Whole screens, as somebody would see them.

use std::time::Duration;

use profile::live::Snapshot;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::top::fixture;
use crate::top::keys::{Key, Parser};
use crate::top::steer::Event;

const EVERY: Duration = Duration::from_millis(500);
const PLAIN: Theme = Theme { color: false, unicode: true };
const COLORED: Theme = Theme { color: true, unicode: true };
const ASCII: Theme = Theme { color: false, unicode: false };

/// A run of 20 seconds with so many vCPUs, after these keys.
fn watched(vcpus: u8, keys: &str) -> State {
    let mut state = State::new(EVERY, false);
    for step in 1..=40 {
        state.event(Event::Look(Box::new(fixture::look(vcpus, f64::from(step) / 2.0))));
    }
    for key in Parser::default().feed(keys.as_bytes()) {
        state.key(key);
    }
    state
}

fn drawn(state: &mut State, (width, height): (u16, u16), theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen(frame, state, theme)).unwrap();
    terminal.backend().buffer().clone()
}

/// The lines of a screen, without spaces at their ends.
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

fn text(state: &mut State, size: (u16, u16), theme: Theme) -> String {
    lines(&drawn(state, size, theme)).join("\n") + "\n"
}

/// What each of these screens is to be stands in `golden/`.
macro_rules! golden {
    ($($name:ident: $vcpus:expr, $keys:expr, $size:expr, $theme:expr;)*) => {
        $(#[test]
        fn $name() {
            let drawn = text(&mut watched($vcpus, $keys), $size, $theme);
            let golden = include_str!(concat!("golden/", stringify!($name), ".txt"));
            assert!(drawn == golden, "drawn:\n{drawn}\ngolden:\n{golden}");
        })*
    };
}

golden! {
    processes: 2, "", (80, 24), PLAIN;
    functions_wide: 2, "2", (120, 40), PLAIN;
    functions: 2, "2s", (80, 24), PLAIN;
    tiny: 2, "", (40, 10), PLAIN;
    tasks_of_many_vcpus_in_ascii: 64, "3", (80, 24), ASCII;
    exits_paused_and_filtered: 2, "4/ser\r ", (80, 16), PLAIN;
    console_while_a_mark_is_typed: 2, "5\x1b[Amcache is warm", (80, 20), PLAIN;
    events_on_a_narrow_screen: 2, "6", (60, 18), PLAIN;
    help: 2, "?", (80, 24), PLAIN;
}

#[test]
fn too_small_says_so() {
    let drawn = text(&mut watched(2, ""), (30, 8), PLAIN);
    assert!(drawn.starts_with("Too small.\nvprof top needs 40x10,\nthis is 30x8.\nq quits.\n"), "{drawn}");
    assert_eq!(text(&mut watched(2, ""), (3, 1), PLAIN), "To…\n");
}

#[test]
fn a_run_that_does_not_run_yet_says_so() {
    let mut state = State::new(EVERY, true);
    state.event(Event::Told("booting the portable host ...".to_owned()));
    let drawn = text(&mut state, (80, 24), PLAIN);
    assert!(drawn.starts_with(" The guest does not run yet.\n"), "{drawn}");
    assert!(drawn.contains("No samples in this span") && drawn.ends_with("booting the portable host ...\n"));
}

#[test]
fn a_machine_that_stands_still_is_told_where_others_have_their_rate() {
    let mut state = watched(2, "");
    let mut look = fixture::look(2, 21.0);
    let pause = |look: &mut Snapshot, vcpu: usize| look.vcpus[vcpu].now = vec![("paused".to_owned(), 0.9)];
    pause(&mut look, 0);
    state.event(Event::Look(Box::new(look.clone())));
    assert!(!text(&mut state, (80, 24), PLAIN).contains("VM PAUSED"), "one of two runs");
    pause(&mut look, 1);
    state.event(Event::Look(Box::new(look)));
    for size in [(80, 24), (40, 10)] {
        let drawn = text(&mut state, size, PLAIN);
        assert!(drawn.lines().next().is_some_and(|line| line.contains("VM PAUSED")), "{drawn}");
    }
}

#[test]
fn the_end_and_questions_stand_at_the_bottom() {
    let mut state = watched(2, "");
    state.event(Event::Ended("the run has ended".to_owned()));
    assert!(text(&mut state, (80, 24), PLAIN).ends_with("\nthe run has ended; q quits\n"));
    let mut own = State::new(EVERY, true);
    own.key(Key::Char('q'));
    assert!(text(&mut own, (80, 24), PLAIN).ends_with("\nEnd the run? y ends it, any other key goes on.\n"));
    let mut typed = watched(2, &format!("/{}end", "x".repeat(100)));
    let last = lines(&drawn(&mut typed, (40, 10), PLAIN)).pop().unwrap();
    assert_eq!(last, "show only rows with: xxxxxxxxxxxxxxxend");
}

#[test]
fn colours_add_to_what_can_be_read_without() {
    let (plain, colored) =
        (drawn(&mut watched(2, ""), (80, 24), PLAIN), drawn(&mut watched(2, ""), (80, 24), COLORED));
    assert_eq!(lines(&plain), lines(&colored));
    assert!(plain.content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    let used = |symbol: &str| colored.content().iter().find(|cell| cell.symbol() == symbol).unwrap().fg;
    assert_eq!([used("█"), used("w"), used("▼")], [Color::Cyan, Color::Yellow, Color::Reset]);
    assert!(colored.content().iter().all(|cell| !matches!(cell.fg, Color::Rgb(..) | Color::Indexed(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a run tells and somebody types, a screen of any size is drawn, and nothing on it steers the terminal.
    #[test]
    fn anything_can_be_drawn(
        size in (1_u16..200, 1_u16..60),
        keys in prop::collection::vec(any::<u8>(), 0..12),
        (names, numbers) in (prop::collection::vec(".*", 5), prop::collection::vec(any::<f64>(), 6)),
        (vcpus, unicode) in (0_u8..65, any::<bool>()),
    ) {
        let mut look = fixture::look(vcpus, numbers[0]);
        look.processes[0].comm.clone_from(&names[0]);
        look.functions[0].symbol.clone_from(&names[1]);
        look.kernel = Some(names[2].clone());
        look.console.push(names[3].clone());
        look.events[0].text.clone_from(&names[4]);
        look.processes[0].share.share = numbers[1];
        look.processes[0].share.high = numbers[2];
        look.exits[0].mean_ns = numbers[3];
        look.sampling.rate_hz = numbers[4];
        look.modes.user = numbers[5];
        look.vcpus.iter_mut().for_each(|vcpu| vcpu.states[0].1 = numbers[5]);
        let mut state = State::new(EVERY, true);
        state.event(Event::Look(Box::new(look)));
        for key in Parser::default().feed(&keys) {
            state.key(key);
            let drawn = drawn(&mut state, size, Theme { color: true, unicode });
            for cell in drawn.content() {
                prop_assert!(!cell.symbol().contains(char::is_control));
                prop_assert!(unicode || cell.symbol().is_ascii());
            }
        }
    }
}
