//! The vCPUs: over time, and the states of their span.

use profile::live::{ModeShares, Snapshot, VcpuShare};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::put_right;
use super::theme::Theme;
use crate::top::history::{Parts, mean, parts};
use crate::top::state::State;

/// Columns of the vCPUs' numbers, with a gap.
const LABEL: u16 = 6;
/// The strip is not narrower while a column of figures can give way.
const STRIP: u16 = 20;
/// And this wide before figures of samples have room.
const STRIP_BEFORE_MODES: u16 = 48;

/// What a column of figures tells.
#[derive(Debug, Clone, Copy)]
enum Of {
    /// A state, by its place.
    State(usize),
    /// Some of what samples hit.
    Samples(fn(&ModeShares) -> f64),
}

/// A column of figures.
#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
    of: Of,
}

impl Figure {
    /// With a gap; `100.0` has room.
    fn width(&self) -> u16 {
        u16::try_from(self.name.len()).unwrap_or(8).max(5) + 1
    }

    /// Of several vCPUs, the mean.
    fn part(&self, vcpus: &[VcpuShare]) -> f64 {
        match self.of {
            Of::State(place) => {
                let all: Vec<Parts> = vcpus.iter().map(|vcpu| parts(&vcpu.states)).collect();
                f64::from(mean(&all)[place])
            }
            Of::Samples(of) => {
                vcpus.iter().map(|vcpu| of(&vcpu.modes)).sum::<f64>() / vcpus.len().max(1) as f64
            }
        }
    }
}

/// The states, as in [`crate::top::history::STATES`].
const FIGURES: [Figure; 7] = [
    Figure { name: "guest%", of: Of::State(0) },
    Figure { name: "halted%", of: Of::State(1) },
    Figure { name: "waiting%", of: Of::State(2) },
    Figure { name: "kvm%", of: Of::State(3) },
    Figure { name: "vmm%", of: Of::State(4) },
    Figure { name: "sampler%", of: Of::State(5) },
    Figure { name: "paused%", of: Of::State(6) },
];

const MODES: [Figure; 3] = [
    Figure { name: "user%", of: Of::Samples(|modes| modes.user) },
    Figure { name: "kernel%", of: Of::Samples(|modes| modes.kernel) },
    Figure { name: "irq%", of: Of::Samples(|modes| modes.hardirq + modes.softirq) },
];

/// The figures that have room, and the width of the strip.
fn fit(width: u16, vcpus: &[VcpuShare]) -> (Vec<Figure>, u16) {
    let mut figures = FIGURES.to_vec();
    // Hardly ever there; what is there is told.
    if vcpus.iter().all(|vcpu| parts(&vcpu.states)[6] < 0.000_5) {
        figures.pop();
    }
    let strip =
        |figures: &[Figure]| width.saturating_sub(LABEL + figures.iter().map(Figure::width).sum::<u16>());
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

/// Rows for the vCPUs where there is room for so many; all rows but the last have as many vCPUs.
pub fn rows(look: &Snapshot, most: u16) -> u16 {
    let count = look.vcpus.len();
    let each = count.div_ceil(usize::from(most.max(1))).max(1);
    u16::try_from(count.div_ceil(each)).unwrap_or(most).max(1)
}

/// Draws a heading, where there is a row for it, and a row for each vCPU or for several.
pub fn draw(buffer: &mut Buffer, area: Rect, state: &State, theme: Theme) {
    let vcpus = &state.look.vcpus;
    if vcpus.is_empty() {
        return;
    }
    let (figures, strip) = fit(area.width, vcpus);
    let low = area.height == 1;
    let rows = area.height - u16::from(!low);
    let each = vcpus.len().div_ceil(usize::from(rows.max(1)));
    if !low {
        heading(buffer, area, state, (&figures, strip), each, theme);
    }
    for (group, y) in vcpus.chunks(each).zip(area.y + u16::from(!low)..area.bottom()) {
        put_right(buffer, (area.x, y, LABEL - 1), &label(group), Style::new(), theme);
        let ids: Vec<u8> = group.iter().map(|vcpu| vcpu.id).collect();
        let right = area.x + LABEL + strip;
        for (parts, x) in state.history.latest(&ids).zip((area.x + LABEL..right).rev()) {
            let (symbol, style) = theme.column(&parts);
            buffer.set_stringn(x, y, symbol, 1, style);
        }
        row(buffer, (right, y), group, &figures, theme);
    }
}

fn heading(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    (figures, strip): (&[Figure], u16),
    each: usize,
    theme: Theme,
) {
    let name = if each > 1 { "vCPUs" } else { "vCPU" };
    put_right(buffer, (area.x, area.y, LABEL - 1), name, theme.heading(), theme);
    let every = format!("{} s a column", state.every.as_secs_f64());
    put_right(buffer, (area.x + LABEL, area.y, strip), &every, Style::new(), theme);
    let mut x = area.x + LABEL + strip;
    for figure in figures {
        let style = match figure.of {
            Of::State(place) => theme.state(place).patch(theme.heading()),
            Of::Samples(_) => theme.heading(),
        };
        put_right(buffer, (x, area.y, figure.width()), figure.name, style, theme);
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

fn row(buffer: &mut Buffer, (mut x, y): (u16, u16), group: &[VcpuShare], figures: &[Figure], theme: Theme) {
    for figure in figures {
        let width = figure.width();
        put_right(buffer, (x, y, width), &percent(figure.part(group)), Style::new(), theme);
        x += width;
    }
}

/// Without the sign, which stands in the heading.
fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if !percent.is_finite() => "-".to_owned(),
        percent if percent > 0.0 && percent < 0.05 => "<0.1".to_owned(),
        percent => format!("{percent:.1}"),
    }
}
