//! Small line plots as SVG, without a library, readable on light and dark pages.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;
/// Room for the axis, its name, and the legend.
const BOTTOM: f64 = 78.0;
/// Colours that differ in brightness too, and stand out from white as well as from black.
const COLOURS: [&str; 4] = ["#d1495b", "#2f81c7", "#3f9b5f", "#9a6fd0"];
/// Different strokes, for readers who do not distinguish the colours.
const STROKES: [&str; 4] = ["", "6 3", "2 3", "9 3 2 3"];

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct PlotLine {
    /// Its name in the legend.
    pub name: String,
    /// In the order of x.
    pub points: Vec<(f64, f64)>,
}

/// Scale of both axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotScale {
    /// From zero.
    Linear,
    /// Powers of ten; values are positive.
    Logarithmic,
}

/// A plot.
#[derive(Debug)]
pub struct LinePlot<'a> {
    /// Title.
    pub title: &'a str,
    /// Name and unit of the horizontal axis.
    pub x: &'a str,
    /// Name and unit of the vertical axis.
    pub y: &'a str,
    /// Scale of both axes.
    pub scale: PlotScale,
    /// At most four.
    pub lines: Vec<PlotLine>,
}

impl LinePlot<'_> {
    /// Returns the file.
    pub fn svg(&self) -> String {
        let axis_of = |part: fn(&(f64, f64)) -> f64| {
            let values = || self.lines.iter().flat_map(|line| &line.points).map(part);
            let (least, greatest) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
            match self.scale {
                PlotScale::Linear => PlotAxis::up_to(greatest),
                PlotScale::Logarithmic => PlotAxis::decades(least, greatest),
            }
        };
        let (x, y) = (axis_of(|p| p.0), axis_of(|p| p.1));
        let at_x = |value: f64| LEFT + x.part(value) * (WIDTH - LEFT - RIGHT);
        let at_y = |value: f64| HEIGHT - BOTTOM - y.part(value) * (HEIGHT - TOP - BOTTOM);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <style>text{{font:12px sans-serif;fill:#57606a}}.grid{{stroke:#8c959f;stroke-opacity:.35}}\
             polyline{{fill:none;stroke-width:2}}\
             @media (prefers-color-scheme:dark){{text{{fill:#adb5bd}}}}</style>\n\
             <title>{0}</title>\n<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{0}</text>\n",
            escaped(self.title)
        );
        // Writing to a String cannot fail.
        for value in x.marks() {
            let (at, label) = (at_x(value), x.label(value));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
                bottom + 16.0
            );
        }
        for value in y.marks() {
            let (at, label) = (at_y(value), y.label(value));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let middle = f64::midpoint(TOP, bottom);
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {middle:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, right),
            bottom + 34.0,
            escaped(self.x),
            escaped(self.y)
        );
        for (index, line) in self.lines.iter().enumerate() {
            self.draw(&mut svg, index, line, &at_x, &at_y);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// One line and its entry in the legend.
    fn draw(
        &self,
        svg: &mut String,
        index: usize,
        line: &PlotLine,
        at_x: &dyn Fn(f64) -> f64,
        at_y: &dyn Fn(f64) -> f64,
    ) {
        let (colour, stroke) = (COLOURS[index % COLOURS.len()], STROKES[index % STROKES.len()]);
        let style = format!("stroke=\"{colour}\" stroke-dasharray=\"{stroke}\"");
        let points: Vec<String> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
        // Two entries of the legend in a row.
        let left = LEFT + if index.is_multiple_of(2) { 0.0 } else { (WIDTH - LEFT - RIGHT) / 2.0 };
        let at = HEIGHT - if index < 2 { 26.0 } else { 8.0 };
        let _ = writeln!(
            svg,
            "<polyline {style} points=\"{}\"/>\n<polyline {style} points=\"{left},{:.0} {:.0},{:.0}\"/>\
             <text x=\"{:.0}\" y=\"{at}\">{}</text>",
            points.join(" "),
            at - 4.0,
            left + 26.0,
            at - 4.0,
            left + 32.0,
            escaped(&line.name)
        );
    }
}

/// An axis, whose ends are round numbers.
enum PlotAxis {
    /// From zero, with marks at each step.
    Linear { end: f64, step: f64 },
    /// The exponents of ten at its ends.
    Decades { first: f64, last: f64 },
}

impl PlotAxis {
    fn up_to(greatest: f64) -> Self {
        let greatest = if greatest > 0.0 { greatest } else { 1.0 };
        let power = 10f64.powf((greatest / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| greatest / step <= 6.0);
        let step = step.unwrap_or(10.0 * power);
        Self::Linear { end: (greatest / step).ceil() * step, step }
    }

    fn decades(least: f64, greatest: f64) -> Self {
        let first = least.max(f64::MIN_POSITIVE).log10().floor();
        Self::Decades { first, last: greatest.max(f64::MIN_POSITIVE).log10().ceil().max(first + 1.0) }
    }

    /// Returns the place of a value, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        match self {
            Self::Linear { end, .. } => value / end,
            Self::Decades { first, last } => (value.log10() - first) / (last - first),
        }
    }

    fn marks(&self) -> Vec<f64> {
        match self {
            Self::Linear { end, step } => std::iter::successors(Some(0.0), |at| Some(at + step))
                .take_while(|at| *at <= end + step / 2.0)
                .collect(),
            Self::Decades { first, last } => std::iter::successors(Some(*first), |power| Some(power + 1.0))
                .take_while(|power| power <= last)
                .map(|power| 10f64.powf(power))
                .collect(),
        }
    }

    /// Formats a mark with as many digits as it needs.
    fn label(&self, value: f64) -> String {
        match self {
            Self::Linear { step, .. } if *step >= 1.0 => format!("{value:.0}"),
            Self::Linear { step, .. } if *step >= 0.1 => format!("{value:.1}"),
            Self::Linear { .. } => format!("{value:.2}"),
            Self::Decades { .. } => value.to_string(),
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (greatest, end, marks) in [(9.3, 10.0, 6), (1.0, 1.0, 6), (0.43, 0.5, 6), (250.0, 250.0, 6)] {
            let axis = PlotAxis::up_to(greatest);
            assert!((axis.part(end) - 1.0).abs() < 1e-9, "{greatest}");
            assert_eq!(axis.marks().len(), marks, "{greatest}");
        }
        assert!((PlotAxis::up_to(0.0).part(1.0) - 1.0).abs() < 1e-9);
        let axis = PlotAxis::decades(0.03, 200.0);
        let labels: Vec<String> = axis.marks().into_iter().map(|mark| axis.label(mark)).collect();
        assert_eq!(labels, ["0.01", "0.1", "1", "10", "100", "1000"]);
        assert!((axis.part(0.1) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn every_line_is_drawn_within_the_picture() {
        let line =
            |name: &str, top: f64| PlotLine { name: name.into(), points: vec![(0.0, 0.0), (9.0, top)] };
        let lines = vec![line("one", 5.0), line("two", 3.0)];
        let plot = LinePlot { title: "a < b", x: "x", y: "y", scale: PlotScale::Linear, lines };
        let svg = plot.svg();
        assert_eq!(svg.matches("<polyline").count(), 4, "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("one") && svg.contains("two"));
        // The greatest value of the first line, at the top of its axis.
        assert!(svg.contains(&format!(",{TOP:.1}\"")), "{svg}");
    }
}
