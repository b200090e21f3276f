//! The vCPUs: their states over time, and in the span.

use profile::live::{ModeShares, Snapshot, VcpuShare};
use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use crate::live::history::{mean, parts};
use crate::live::state::ViewState;
use crate::widgets::theme::ScreenTheme;
use crate::widgets::theme::StateParts;
use crate::widgets::{RowSlot, put_right};

/// Columns of the vCPUs' numbers, with a gap.
const LABEL: u16 = 6;
/// Smallest width of the strip while a column of figures can be dropped.
const STRIP: u16 = 20;
/// Smallest width of the strip with figures of samples.
const STRIP_BEFORE_MODES: u16 = 48;

/// Source of a column of figures.
#[derive(Debug, Clone, Copy)]
enum FigureSource {
    /// A state, by its number.
    State(usize),
    /// A part of the samples.
    Samples(fn(&ModeShares) -> f64),
}

/// A column of figures.
#[derive(Debug, Clone, Copy)]
struct FigureColumn {
    name: &'static str,
    source: FigureSource,
}

impl FigureColumn {
    /// Returns the width with a gap; `100.0` fits.
    fn width(&self) -> u16 {
        u16::try_from(self.name.len()).unwrap_or(8).max(5) + 1
    }

    /// Returns the mean over several vCPUs.
    fn part(&self, vcpus: &[VcpuShare]) -> f64 {
        match self.source {
            FigureSource::State(place) => {
                let all: Vec<StateParts> = vcpus.iter().map(|vcpu| parts(&vcpu.states)).collect();
                f64::from(mean(&all)[place])
            }
            FigureSource::Samples(part) => {
                vcpus.iter().map(|vcpu| part(&vcpu.modes)).sum::<f64>() / vcpus.len().max(1) as f64
            }
        }
    }
}

/// States, as in [`crate::widgets::theme::STATES`].
const FIGURES: [FigureColumn; 7] = [
    FigureColumn { name: "guest%", source: FigureSource::State(0) },
    FigureColumn { name: "halted%", source: FigureSource::State(1) },
    FigureColumn { name: "waiting%", source: FigureSource::State(2) },
    FigureColumn { name: "kvm%", source: FigureSource::State(3) },
    FigureColumn { name: "vmm%", source: FigureSource::State(4) },
    FigureColumn { name: "sampler%", source: FigureSource::State(5) },
    FigureColumn { name: "paused%", source: FigureSource::State(6) },
];

const MODES: [FigureColumn; 3] = [
    FigureColumn { name: "user%", source: FigureSource::Samples(|modes| modes.user) },
    FigureColumn { name: "kernel%", source: FigureSource::Samples(|modes| modes.kernel) },
    FigureColumn { name: "irq%", source: FigureSource::Samples(|modes| modes.hardirq + modes.softirq) },
];

/// Returns the figures that fit, and the width of the strip.
fn fit(width: u16, vcpus: &[VcpuShare]) -> (Vec<FigureColumn>, u16) {
    let mut figures = FIGURES.to_vec();
    // Pauses are rare: without one, their column is dropped.
    if vcpus.iter().all(|vcpu| parts(&vcpu.states)[6] < 0.000_5) {
        figures.pop();
    }
    let strip = |figures: &[FigureColumn]| {
        width.saturating_sub(LABEL + figures.iter().map(FigureColumn::width).sum::<u16>())
    };
    while strip(&figures) < STRIP && figures.len() > 1 {
        figures.pop();
    }
    let with_modes = [figures.as_slice(), &MODES].concat();
    if strip(&with_modes) >= STRIP_BEFORE_MODES {
        figures = with_modes;
    }
    let width = strip(&figures);
    (figures, width)
}

/// Returns the number of rows for the vCPUs, at most `most`; all rows but the last have equally many vCPUs.
pub fn rows(snapshot: &Snapshot, most: u16) -> u16 {
    let count = snapshot.vcpus.len();
    let each = count.div_ceil(usize::from(most.max(1))).max(1);
    u16::try_from(count.div_ceil(each)).unwrap_or(most).max(1)
}

/// Draws a heading, if there is a row for it, and a row for each vCPU or for several.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &ViewState, theme: ScreenTheme) {
    let vcpus = &state.snapshot.vcpus;
    if vcpus.is_empty() {
        return;
    }
    let (figures, strip) = fit(area.width, vcpus);
    let low = area.height == 1;
    let rows = area.height - u16::from(!low);
    let each = vcpus.len().div_ceil(usize::from(rows.max(1)));
    if !low {
        heading(buffer, area, state, &figures, each, theme);
    }
    for (group, y) in vcpus.chunks(each).zip(area.y + u16::from(!low)..area.bottom()) {
        put_right(buffer, RowSlot { x: area.x, y, width: LABEL - 1 }, &label(group), Style::new(), theme);
        let ids: Vec<u8> = group.iter().map(|vcpu| vcpu.id).collect();
        let right = area.x + LABEL + strip;
        for (parts, x) in state.history.latest(&ids).zip((area.x + LABEL..right).rev()) {
            let (symbol, style) = theme.column(&parts);
            buffer.set_stringn(x, y, symbol, 1, style);
        }
        row(buffer, Position { x: right, y }, group, &figures, theme);
    }
}

fn heading(
    buffer: &mut Buffer,
    area: Rect,
    state: &ViewState,
    figures: &[FigureColumn],
    each: usize,
    theme: ScreenTheme,
) {
    let name = if each > 1 { "vCPUs" } else { "vCPU" };
    put_right(buffer, RowSlot { x: area.x, y: area.y, width: LABEL - 1 }, name, theme.heading(), theme);
    let every = format!("{} s a column", state.every.as_secs_f64());
    let strip = area.width.saturating_sub(LABEL + figures.iter().map(FigureColumn::width).sum::<u16>());
    put_right(buffer, RowSlot { x: area.x + LABEL, y: area.y, width: strip }, &every, Style::new(), theme);
    let mut x = area.x + LABEL + strip;
    for figure in figures {
        let style = match figure.source {
            FigureSource::State(place) => theme.state(place).patch(theme.heading()),
            FigureSource::Samples(_) => theme.heading(),
        };
        put_right(buffer, RowSlot { x, y: area.y, width: figure.width() }, figure.name, style, theme);
        x += figure.width();
    }
}

fn label(group: &[VcpuShare]) -> String {
    match group {
        [first, .., last] => format!("{}-{}", first.id, last.id),
        [one] => one.id.to_string(),
        [] => String::new(),
    }
}

fn row(
    buffer: &mut Buffer,
    start: Position,
    group: &[VcpuShare],
    figures: &[FigureColumn],
    theme: ScreenTheme,
) {
    let Position { mut x, y } = start;
    for figure in figures {
        let width = figure.width();
        put_right(buffer, RowSlot { x, y, width }, &percent(figure.part(group)), Style::new(), theme);
        x += width;
    }
}

/// Formats a part in per cent, without the sign, which is in the heading.
fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if !percent.is_finite() => "-".to_owned(),
        percent if percent > 0.0 && percent < 0.05 => "<0.1".to_owned(),
        percent => format!("{percent:.1}"),
    }
}
