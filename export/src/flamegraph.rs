//! A flame graph as SVG: callers above their callees, as on the page and in its colours. A click zooms, a
//! search marks functions.

use std::collections::BTreeMap;
use std::io::{self, Write};

use display::clean::{escaped, xml};
use display::units;
use profile::report::Recording;

use crate::folded::{KERNEL_MARK, ROOT_MARK, lines};
use crate::palette::{Colour, FULL_CHANGE, KERNEL, PROCESS, REASON, USER};
use crate::{Count, ExportError, Format, Request};

/// Width of the picture, px.
pub(crate) const WIDTH: f64 = 1_200.0;
/// Height of a frame, px.
const ROW: f64 = 17.0;
/// Margin at the left and right, px.
pub(crate) const MARGIN: f64 = 10.0;
/// Font of all text: a monospaced one, so that the room for a name is known.
pub(crate) const FONT: &str = "ui-monospace,'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace";
/// Height of title, note and legend, px.
const HEAD: f64 = 66.0;
/// Width of a letter of 12 px in a monospaced font, px.
const LETTER: f64 = 7.25;
/// Width below which a frame is left out, px.
const NARROWEST: f64 = 0.3;
/// Limit of the depth of the picture, frames.
const DEEPEST: usize = 300;
/// The page's limit, too: a picture with more frames takes too long to draw.
const MOST: usize = 60_000;

/// Zoom by a click and search, in the picture itself; also of a boot chart, whose pieces have times.
pub(crate) const SCRIPT: &str = include_str!("flamegraph.js");

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut tree = FrameTree::default();
    for (line, number) in lines(recording, (request.root, request.count), true) {
        tree.add(&line, 0, number);
    }
    let legend = [
        ("user code", USER),
        ("kernel", KERNEL),
        ("program, thread or vCPU", PROCESS),
        ("reason for missing frames", REASON),
    ];
    let note = format!("{}. A click zooms; Ctrl-F searches.", source(recording));
    let picture = Picture {
        tree: &tree,
        title: &request.title,
        note: &note,
        count: request.count,
        difference_of: None,
    };
    picture.write(&legend, out)
}

/// Returns what the picture is of: its time, and the run.
fn source(recording: &Recording) -> String {
    let about = &recording.about;
    let kernel = about.kernel.as_ref().map_or_else(String::new, |kernel| format!(" of Linux {kernel}"));
    format!(
        "{} of CPU time, of a run of {}{}, host: {}",
        units::seconds(recording.weight_ns() / 1e9),
        units::seconds(about.duration_ns as f64 / 1e9),
        escaped(&kernel),
        escaped(&about.host)
    )
}

/// Writes a flame graph of folded stacks with their times, us, whose first frames are programs.
///
/// # Errors
/// See [`ExportError`].
pub fn write_graph(
    stacks: impl Iterator<Item = (String, u64)>,
    title: &str,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut tree = FrameTree::default();
    for (stack, us) in stacks {
        let (program, functions) = stack.split_once(';').unwrap_or((&stack, ""));
        let end = if functions.is_empty() { "" } else { ";" };
        tree.add(&format!("{program}{ROOT_MARK}{end}{functions}"), 0, us);
    }
    let legend = [("function", USER), ("program", PROCESS), ("reason for missing frames", REASON)];
    let note = "A click zooms; Ctrl-F searches.";
    let picture = Picture { tree: &tree, title, note, count: Count::Time, difference_of: None };
    picture.write(&legend, out)
}

/// Writes a flame graph of two profiles. The widths are those of the second; red has a larger share of all
/// time than before, blue a smaller one. `stacks` are folded, with their numbers in the first and in the
/// second, us; those of the first are scaled to `all_us`, the time of the second that was not idle, which may
/// be more than that of the stacks.
///
/// # Errors
/// See [`ExportError`].
pub fn write_difference(
    stacks: impl Iterator<Item = (String, u64, u64)>,
    all_us: u64,
    title: &str,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut tree = FrameTree::default();
    for (stack, before, after) in stacks {
        tree.add(&stack, before, after);
    }
    let points = |share: f64| format!("{:+.0} % of all time", share * 100.0);
    let [less, more] = [-FULL_CHANGE, FULL_CHANGE].map(points);
    let legend = [
        (less.as_str(), Colour::of_change(-FULL_CHANGE)),
        ("no change", Colour::of_change(0.0)),
        (more.as_str(), Colour::of_change(FULL_CHANGE)),
    ];
    let note = "Widths are those after. A click zooms; Ctrl-F searches.";
    let all = Some(all_us.max(tree.frames[0].after));
    let picture = Picture { tree: &tree, title, note, count: Count::Time, difference_of: all };
    picture.write(&legend, out)
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FrameKind {
    User,
    Kernel,
    Process,
    Reason,
}

impl FrameKind {
    fn colour(self) -> Colour {
        match self {
            Self::User => USER,
            Self::Kernel => KERNEL,
            Self::Process => PROCESS,
            Self::Reason => REASON,
        }
    }
}

/// A function in its place on the stack, with all stacks that lead through it.
#[derive(Debug)]
struct Frame {
    name: String,
    kind: FrameKind,
    before: u64,
    after: u64,
    callees: BTreeMap<(String, FrameKind), usize>,
}

/// Frames; the first one is all.
#[derive(Debug)]
struct FrameTree {
    frames: Vec<Frame>,
}

impl Default for FrameTree {
    fn default() -> Self {
        let root = Frame {
            name: "all".to_owned(),
            kind: FrameKind::Process,
            before: 0,
            after: 0,
            callees: BTreeMap::new(),
        };
        Self { frames: vec![root] }
    }
}

impl FrameTree {
    /// Adds a folded stack.
    fn add(&mut self, stack: &str, before: u64, after: u64) {
        let mut at = 0;
        self.count(at, before, after);
        for part in stack.split(';').take(DEEPEST) {
            let (name, kind) = match (part.strip_suffix(ROOT_MARK), part.strip_suffix(KERNEL_MARK)) {
                (Some(name), _) => (name, FrameKind::Process),
                (None, Some(name)) => (name, FrameKind::Kernel),
                (None, None) if part.starts_with("[no frame: ") || part.starts_with("[doubtful ") => {
                    (part, FrameKind::Reason)
                }
                (None, None) => (part, FrameKind::User),
            };
            let key = (name.to_owned(), kind);
            at = match self.frames[at].callees.get(&key) {
                Some(&callee) => callee,
                None => {
                    let callee = self.frames.len();
                    let name = key.0.clone();
                    self.frames.push(Frame { name, kind, before: 0, after: 0, callees: BTreeMap::new() });
                    self.frames[at].callees.insert(key, callee);
                    callee
                }
            };
            self.count(at, before, after);
        }
    }

    fn count(&mut self, at: usize, before: u64, after: u64) {
        let frame = &mut self.frames[at];
        frame.before = frame.before.saturating_add(before);
        frame.after = frame.after.saturating_add(after);
    }

    /// Returns the frames that are wide enough with their depth and their beginning, as a part of all: each
    /// before its callees, which are in the order of their names.
    fn laid_out(&self) -> Vec<(usize, usize, f64)> {
        let least = NARROWEST / (WIDTH - 2.0 * MARGIN);
        let all = self.frames[0].after as f64;
        let mut laid = Vec::new();
        let mut open = vec![(0, 0, 0.0)];
        while let Some((at, depth, begin)) = open.pop() {
            laid.push((at, depth, begin));
            let mut next = begin;
            let below = open.len();
            for &callee in self.frames[at].callees.values() {
                let width = self.frames[callee].after as f64 / all;
                if width >= least {
                    open.push((callee, depth + 1, next));
                }
                next += width;
            }
            open[below..].reverse();
        }
        laid.truncate(MOST);
        laid
    }
}

/// A flame graph to write.
struct Picture<'a> {
    tree: &'a FrameTree,
    title: &'a str,
    note: &'a str,
    count: Count,
    /// All time that shares of a difference are parts of, us.
    difference_of: Option<u64>,
}

impl Picture<'_> {
    /// Writes the picture, unless there is nothing in it.
    fn write(&self, legend: &[(&str, Colour)], out: &mut dyn Write) -> Result<(), ExportError> {
        if self.tree.frames[0].after == 0 {
            return Err(ExportError::Empty(Format::Flamegraph));
        }
        let laid = self.tree.laid_out();
        let rows = laid.iter().map(|(_, depth, _)| depth + 1).max().unwrap_or(1);
        let height = HEAD + rows as f64 * ROW + MARGIN;
        writeln!(
            out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" \
             height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" style=\"max-width:100%;height:auto\" \
             font-family=\"{FONT}\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"{MARGIN}\" y=\"19\" font-size=\"15\">{}</text>\n\
             <text x=\"{MARGIN}\" y=\"37\" fill=\"#59636e\">{}</text>\n\
             <text id=\"found\" x=\"{:.1}\" y=\"19\" text-anchor=\"end\"/>",
            xml(&escaped(self.title)),
            xml(self.note),
            WIDTH - MARGIN,
        )?;
        write_legend(legend, out)?;
        writeln!(out, "<g id=\"frames\">")?;
        for (at, depth, begin) in laid {
            self.frame(&self.tree.frames[at], depth, begin, out)?;
        }
        writeln!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")?;
        Ok(())
    }

    fn frame(&self, frame: &Frame, depth: usize, begin: f64, out: &mut dyn Write) -> io::Result<()> {
        let part = |number: u64, all: u64| if all == 0 { 0.0 } else { number as f64 / all as f64 };
        let shown = self.tree.frames[0].after;
        let all = self.difference_of.unwrap_or(shown);
        let share = part(frame.after, all);
        let change = share - part(frame.before, all);
        let (x, y) = (MARGIN + begin * (WIDTH - 2.0 * MARGIN), HEAD + depth as f64 * ROW);
        let width = part(frame.after, shown) * (WIDTH - 2.0 * MARGIN);
        let fill = match self.difference_of {
            Some(_) if depth > 0 => Colour::of_change(change),
            _ => frame.kind.colour().shaded(&frame.name),
        };
        let unit = match self.count {
            Count::Time => "us",
            Count::Samples => "samples",
        };
        let change =
            if self.difference_of.is_some() { format!("; {:+.2}%", change * 100.0) } else { String::new() };
        write!(
            out,
            "<g><title>{} ({} {unit}, {:.2}%{change})</title>\
             <rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"#ffffff\" \
             stroke-width=\"0.5\"/>",
            xml(&frame.name),
            units::count(frame.after),
            share * 100.0,
            ROW - 1.0
        )?;
        let text = fitted(&frame.name, width);
        if !text.is_empty() {
            let ink = if fill.is_dark() { " fill=\"#ffffff\"" } else { "" };
            write!(out, "<text x=\"{:.2}\" y=\"{:.1}\"{ink}>{}</text>", x + 3.0, y + 12.0, xml(&text))?;
        }
        writeln!(out, "</g>")
    }
}

/// Writes a row of colours and their meanings.
pub(crate) fn write_legend(legend: &[(&str, Colour)], out: &mut dyn Write) -> io::Result<()> {
    let mut x = MARGIN;
    for (name, colour) in legend {
        writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"46\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"56\" fill=\"#59636e\">{}</text>",
            x + 17.0,
            xml(name)
        )?;
        x += 17.0 + (name.chars().count() as f64 + 2.0) * LETTER;
    }
    Ok(())
}

/// Cuts a name at its end, with `…`, so that it fits into this many px; empty if less than three letters do.
pub(crate) fn fitted(name: &str, width: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates at 0")]
    let letters = ((width - 6.0) / LETTER) as usize;
    if letters < 3 {
        return String::new();
    }
    match name.char_indices().nth(letters) {
        None => name.to_owned(),
        Some(_) => name.chars().take(letters - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(stacks: &[(&str, u64, u64)]) -> String {
        difference_of(stacks, stacks.iter().map(|(_, _, after)| after).sum())
    }

    fn difference_of(stacks: &[(&str, u64, u64)], all: u64) -> String {
        let stacks = stacks.iter().map(|(stack, before, after)| ((*stack).to_owned(), *before, *after));
        let mut svg = Vec::new();
        write_difference(stacks, all, "a <title>", &mut svg).unwrap();
        String::from_utf8(svg).unwrap()
    }

    /// Fill and place of the frame with this name.
    fn frame<'a>(svg: &'a str, name: &str) -> &'a str {
        svg.lines().find(|line| line.starts_with(&format!("<g><title>{name} ("))).unwrap()
    }

    #[test]
    fn a_change_colours_the_whole_stack() {
        let svg = difference(&[("main;read;copy", 31, 10), ("main;write", 69, 90)]);
        // 31 points have become 10: all frames below main have the full colour of a decline.
        for name in ["read", "copy"] {
            assert!(frame(&svg, name).contains("10.00%; -21.00%)"), "{svg}");
            assert!(
                frame(&svg, name).contains("fill=\"#2166ac\"")
                    && frame(&svg, name).contains("fill=\"#ffffff\"")
            );
        }
        assert!(frame(&svg, "write").contains("fill=\"#c9372c\""));
        assert!(frame(&svg, "main").contains("fill=\"#eceef1\""), "all of the time before and after");
        assert!(svg.contains("a &lt;title&gt;") && svg.contains("-10 % of all time"));
    }

    #[test]
    fn a_part_of_the_time_has_colours_by_its_shares_of_all() {
        // 120 us of the program have become 40, of 1,000: all of it has shrunk, though read is a larger part
        // of it.
        let svg = difference_of(&[("main;read", 60, 30), ("main;write", 60, 10)], 1_000);
        assert!(frame(&svg, "main").contains("(40 us, 4.00%; -8.00%)"), "{svg}");
        assert!(frame(&svg, "read").contains("(30 us, 3.00%; -3.00%)"), "{svg}");
        assert!(frame(&svg, "main").contains("width=\"1180.00\""), "the picture is of the part: {svg}");
    }

    #[test]
    fn callers_are_above_and_callees_side_by_side() {
        let svg = difference(&[("main;read", 1, 1), ("main;write", 1, 3)]);
        let number = |name: &str, key: &str| {
            let rest = frame(&svg, name).split_once(&format!("{key}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
        };
        assert!(number("all", "y") < number("main", "y") && number("main", "y") < number("read", "y"));
        assert_eq!(number("read", "y"), number("write", "y"));
        assert!((number("read", "x") + number("read", "width") - number("write", "x")).abs() < 0.1);
        assert!((number("write", "width") - 3.0 * number("read", "width")).abs() < 0.1);
    }

    #[test]
    fn names_are_cut_at_their_end() {
        assert_eq!(fitted("deflate", 200.0), "deflate");
        assert_eq!(fitted("deflate_stored", 6.0 + 5.5 * LETTER), "defl…");
        assert_eq!(fitted("deflate", 10.0), "");
    }

    #[test]
    fn deep_and_narrow_frames_are_left_out() {
        let deep = vec!["f"; 1_000].join(";");
        let svg = difference(&[(&deep, 0, 1_000_000), ("narrow", 0, 1)]);
        assert_eq!(svg.matches("<g><title>f (").count(), DEEPEST);
        assert!(!svg.contains("narrow"));
    }
}
