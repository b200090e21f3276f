//! The help: keys, and the meaning of the figures.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::widgets::help;
use crate::widgets::theme::ScreenTheme;

/// Keys and their actions. A line without a key is text, or a heading if it ends with a colon.
const LINES: [(&str, &str); 43] = [
    ("", "Keys:"),
    ("1 to 7, Tab", "choose a pane"),
    ("j k, arrows", "select a row; PgUp PgDn by a page, g G the ends"),
    ("Enter", "go in: the functions of a program, process or task; the"),
    ("", "             callees of a function"),
    ("Esc, Backsp.", "go out again"),
    ("c", "callers of a function; there: callees, and back"),
    ("i", "programs, or each instance of one"),
    ("s, r", "sort by the next column; the other way round"),
    ("/, Esc", "show only rows with a text or an id; show all again"),
    ("w", "the span: last 1, 5, 15, 60 s, whole run"),
    ("space", "pause the display; the run continues"),
    ("S", "stop sampling; start it again"),
    ("+ -", "sampling rate, in steps of 1, 2, 5"),
    ("m", "put a mark with a text into the profile"),
    ("Ctrl-L", "redraw the screen"),
    ("q", "leave; the run continues"),
    ("", ""),
    ("", "vCPUs over time, the latest at the right:"),
    ("height", "part of the time in which the guest ran; the rest was halted"),
    ("w", "a quarter or more of it waiting for a CPU of the host"),
    ("k", "the same in KVM for a halted guest"),
    ("v", "in vprof, serving exits"),
    ("s", "in vprof, taking samples"),
    ("p", "paused by vprof, or by its own VMM"),
    ("", "Figures on the right are of the span, and exact; several vCPUs share a"),
    ("", "row with their means where there is no room."),
    ("", ""),
    ("", "Panes:"),
    ("share, self", "part of the samples that were not idle and hit the row"),
    ("total", "part of those that had the function on their stack"),
    ("of it", "part of the samples of the function that the tree is of"),
    ("±", "distance from the share to the end of its 95 % interval"),
    ("user", "part of the process's own samples in user code"),
    ("tasks", "parts of each task's time: on a CPU, interrupted, runnable,"),
    ("", "             asleep, waiting for a disk, paused by vprof, stopped, dead;"),
    ("", "             exact, or by scans of all tasks"),
    ("exits", "of the last second: part of a vCPU's time, rate, and mean time"),
    ("", "             from the exit to the next entry"),
    ("memory", "the largest holders of each kind, with --memory-use"),
    ("", ""),
    ("", "Tables have the first 200 rows of the run; docs/top.md describes"),
    ("", "the screen."),
];

/// Action of `q` if the run is this process.
const ENDS: &str = "end the run, if you confirm; its summary follows";
/// Draws the help from line `down` on; returns the first line, which is limited by the length of the text.
pub fn draw(buffer: &mut Buffer, area: Rect, down: usize, own_run: bool, theme: ScreenTheme) -> usize {
    let own = |(key, text)| if own_run && key == "q" { (key, ENDS) } else { (key, text) };
    help::draw_lines(buffer, area, down, &LINES.map(own), theme)
}
