//! The lines at the top of the screen.

use std::time::Duration;

use display::clean::escaped;
use display::units;
use profile::live::{Sampling, Span, VcpuShare};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::live::state::ViewState;
use crate::widgets::theme::ScreenTheme;
use crate::widgets::{RowSlot, put};

/// LinePiece of a line; the pieces with the highest rank are dropped first.
struct LinePiece {
    text: String,
    style: Style,
    rank: u8,
}

fn piece(text: String, rank: u8) -> LinePiece {
    LinePiece { text, style: Style::new(), rank }
}

/// Draws the header in one line or two.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &ViewState, theme: ScreenTheme) {
    let mut first = run(state, theme);
    let second = span(state, theme);
    if area.height == 1 {
        // A paused display or VM is shown in any case.
        first.splice(..0, second.into_iter().filter(|piece| piece.rank == 0));
        line(buffer, area, area.y, first, theme);
        return;
    }
    line(buffer, area, area.y, first, theme);
    line(buffer, area, area.y + 1, second, theme);
}

/// Returns the facts on the run.
fn run(state: &ViewState, theme: ScreenTheme) -> Vec<LinePiece> {
    let snapshot = &state.snapshot;
    if snapshot.time_s <= 0.0 {
        return vec![LinePiece {
            text: "The guest does not run yet.".to_owned(),
            style: theme.heading(),
            rank: 1,
        }];
    }
    let kernel = match &snapshot.kernel {
        Some(release) => format!("Linux {}", escaped(release)),
        None => "kernel not found yet".to_owned(),
    };
    let host = match snapshot.host.as_str() {
        "kvm" => "KVM".to_owned(),
        "portable" => "portable".to_owned(),
        other => format!("host: {}", escaped(other)),
    };
    let time = Duration::try_from_secs_f64(snapshot.time_s).unwrap_or_default();
    let Sampling { on, rate_hz, clock, samples, lost, .. } = &snapshot.sampling;
    let notice = |text: &str| LinePiece { text: text.to_owned(), style: theme.notice(), rank: 1 };
    let rate = if is_paused(&snapshot.vcpus) {
        notice("VM PAUSED")
    } else if *on {
        piece(units::rate(*rate_hz), 3)
    } else {
        notice("SAMPLING STOPPED")
    };
    let lost_style = if *lost > 0 { theme.heading() } else { Style::new() };
    vec![
        LinePiece { text: kernel, style: theme.heading(), rank: 2 },
        piece(host, 3),
        piece(units::clock(time), 1),
        rate,
        piece(escaped(clock).into_owned(), 5),
        piece(units::counted(*samples, "sample"), 4),
        LinePiece { text: format!("{} lost", units::count(*lost)), style: lost_style, rank: 4 },
    ]
}

/// Returns true if every vCPU was kept out of the guest for most of its latest segment.
fn is_paused(vcpus: &[VcpuShare]) -> bool {
    let paused = |vcpu: &VcpuShare| vcpu.now.iter().any(|(state, part)| state == "paused" && *part > 0.5);
    !vcpus.is_empty() && vcpus.iter().all(paused)
}

/// Returns the span of the figures, and the modes of its samples.
fn span(state: &ViewState, theme: ScreenTheme) -> Vec<LinePiece> {
    let modes = &state.snapshot.modes;
    let span = match state.span() {
        Span::Run => "whole run".to_owned(),
        Span::Last(s) => format!("last {s:.0} s"),
    };
    let mode = |name: &str, part: f64, rank| piece(format!("{name} {}", units::percent(part)), rank);
    let mut pieces = vec![
        LinePiece { text: span, style: theme.heading(), rank: 1 },
        mode("user", modes.user, 2),
        mode("kernel", modes.kernel, 2),
        mode("irq", modes.hardirq, 3),
        mode("softirq", modes.softirq, 3),
        mode("idle", modes.idle, 2),
    ];
    if state.paused {
        pieces.insert(0, LinePiece { text: "PAUSED".to_owned(), style: theme.notice(), rank: 0 });
    }
    pieces
}

const GAP: u16 = 2;

fn line(buffer: &mut Buffer, area: Rect, y: u16, mut pieces: Vec<LinePiece>, theme: ScreenTheme) {
    let width = |pieces: &[LinePiece]| {
        pieces.iter().map(|piece| piece.text.width() + usize::from(GAP)).sum::<usize>()
    };
    let room = usize::from(area.width + GAP - 1);
    while width(&pieces) > room
        && let Some(rank) = pieces.iter().map(|piece| piece.rank).max().filter(|rank| *rank > 1)
    {
        let last = pieces.iter().rposition(|piece| piece.rank == rank);
        last.into_iter().for_each(|at| drop(pieces.remove(at)));
    }
    let mut x = area.x + 1;
    for piece in pieces {
        let width = area.right().saturating_sub(x);
        x = put(buffer, RowSlot { x, y, width }, &piece.text, piece.style, theme).saturating_add(GAP);
    }
}
