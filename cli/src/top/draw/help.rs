//! The help: keys, and what the figures mean.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::put;
use super::theme::Theme;

/// Keys and what they do; without a key a line of text, and a heading where it ends with a colon.
const LINES: [(&str, &str); 36] = [
    ("", "Keys:"),
    ("1 to 6, Tab", "choose a pane"),
    ("j k, arrows", "scroll by a row; PgUp PgDn by a page, g G to the ends"),
    ("s, r", "sort by the next column; the other way round"),
    ("/, Esc", "show only rows with a text or an id; show all again"),
    ("w", "the span: last 1, 5, 15, 60 s, whole run"),
    ("space", "hold the display still; the run goes on"),
    ("S", "stop sampling; start it again"),
    ("+ -", "sampling rate, in steps of 1, 2, 5"),
    ("m", "put a mark with a text into the profile"),
    ("Ctrl-L", "draw the screen anew"),
    ("q", "leave; the run goes on"),
    ("", ""),
    ("", "vCPUs over time, the latest at the right:"),
    ("height", "part of the time in which the guest ran; the rest was halted"),
    ("w", "a quarter or more of it waiting for a CPU of the host"),
    ("k", "so long in KVM for a halted guest"),
    ("v", "in vprof, serving exits"),
    ("s", "in vprof, taking samples"),
    ("p", "paused by vprof, or by its own VMM"),
    ("", "Figures on the right are of the span, and exact; several vCPUs share a"),
    ("", "row with their means where there is no room."),
    ("", ""),
    ("", "Panes:"),
    ("share, self", "part of the samples that were not idle and hit it"),
    ("total", "part of those that had the function on their stack"),
    ("±", "how far its 95 % interval reaches from it"),
    ("user", "part of the process's own samples in user code"),
    ("tasks", "parts of each task's time: on a CPU, interrupted, in the run queue,"),
    ("", "             asleep, waiting for a disk, held up by vprof, stopped, dead;"),
    ("", "             exact, or by scans of all tasks"),
    ("exits", "of the last second: part of a vCPU's time, how often, how long"),
    ("", "             from the exit to the next entry"),
    ("", ""),
    ("", "Tables have the first 200 rows that the run tells; docs/top.md says"),
    ("", "more."),
];

/// What `q` does where the run is this process.
const ENDS: &str = "end the run, if you confirm; its summary follows";
/// Columns of keys.
const KEYS: u16 = 13;

/// Draws the help from line `down` on; returns the line that it could begin with.
pub fn draw(buffer: &mut Buffer, area: Rect, down: usize, own_run: bool, theme: Theme) -> usize {
    let down = down.min(LINES.len().saturating_sub(usize::from(area.height)));
    for ((key, text), y) in LINES.iter().skip(down).zip(area.top()..area.bottom()) {
        let text = if own_run && *key == "q" { ENDS } else { text };
        let x = area.x + 1;
        let style = if text.ends_with(':') && key.is_empty() { theme.heading() } else { Style::new() };
        if key.is_empty() {
            put(buffer, (x, y, area.width - 1), text, style, theme);
        } else {
            put(buffer, (x, y, KEYS - 1), key, theme.heading(), theme);
            put(buffer, (x + KEYS, y, area.width.saturating_sub(1 + KEYS)), text, style, theme);
        }
    }
    down
}
