//! `simulate --plot`: the coverage of intervals of every kind, as an SVG picture.

use std::fmt::Write as _;

use statistics::clock::ClockKind;
use statistics::simulate::{Row, Section, Study};

/// From the left edge to the scale, px.
const LEFT: f64 = 230.0;
/// Length of the scale, px.
const LENGTH: f64 = 430.0;
/// From one row to the next, px.
const STEP: f64 = 16.0;
/// From the top to the first row, px.
const TOP: f64 = 58.0;
/// Coverage at the beginning of the scale, a part of all runs.
const FROM: f64 = 0.85;

/// Draws the picture: one mark for each clock, with three standard errors of so many profilings around it.
pub fn plot(study: &Study) -> String {
    let rows: Vec<&Row> = study.rows.iter().filter(|row| row.section == Section::Printed).collect();
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.dedup();
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(*name));
    let bottom = TOP + names.len() as f64 * STEP;
    let (width, height) = (LEFT + LENGTH + 20.0, bottom + 50.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\">\n<style>text{{font:12px sans-serif;fill:#57606a}}.grid{{stroke:#8c959f;stroke-opacity:.35}}\
         .band{{fill:#8c959f;fill-opacity:.15}}.uniform{{stroke:#0969da;fill:#0969da}}\
         .exponential{{stroke:#bc4c00;fill:none}}circle,path{{stroke-width:1.5}}\
         @media (prefers-color-scheme:dark){{text{{fill:#adb5bd}}}}</style>\n<title>Coverage of 95 % intervals</title>\n"
    );
    let at = |coverage: f64| LEFT + (coverage.max(FROM) - FROM) / (1.0 - FROM) * LENGTH;
    let heading =
        format!("Coverage: 95 % intervals that contain the true value, {} profilings a row", study.runs);
    // Writing to a String can't fail.
    let _ = writeln!(text, "<text x=\"10\" y=\"18\" font-weight=\"bold\">{heading}</text>");
    let legend = "<circle class=\"uniform\" cx=\"16\" cy=\"36\" r=\"3.5\"/><text x=\"26\" y=\"40\">uniform clock</text>\
                  <circle class=\"exponential\" cx=\"126\" cy=\"36\" r=\"3.5\"/><text x=\"136\" y=\"40\">exponential clock; \
                  lines: three standard errors of chance; band: 93 to 97 %</text>";
    let _ = writeln!(text, "{legend}");
    let (low, high) = (at(0.93), at(0.97));
    let _ = writeln!(
        text,
        "<rect class=\"band\" x=\"{low:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        high - low,
        bottom - TOP
    );
    for percent in [85, 90, 95, 100_u32] {
        let x = at(f64::from(percent) / 100.0);
        let _ = writeln!(
            text,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{percent} %</text>",
            bottom + 16.0
        );
    }
    for (n, name) in names.iter().enumerate() {
        let y = TOP + (n as f64 + 0.5) * STEP;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LEFT - 8.0,
            y + 4.0
        );
        for row in rows.iter().filter(|row| row.name == *name) {
            let uniform = row.clock == ClockKind::Uniform;
            let (class, y) = if uniform { ("uniform", y - 3.0) } else { ("exponential", y + 3.0) };
            let held = row.result.coverage;
            let error = 3.0 * (0.95 * 0.05 / f64::from(study.runs.max(1))).sqrt();
            let (from, to) = (at(held - error), at((held + error).min(1.0)));
            let _ = writeln!(
                text,
                "<path class=\"{class}\" d=\"M{from:.1} {y:.1}H{to:.1}\"/><circle class=\"{class}\" cx=\"{:.1}\" \
                 cy=\"{y:.1}\" r=\"2.5\"><title>{name}, {}: {:.1} %</title></circle>",
                at(held),
                row.clock.name(),
                held * 100.0
            );
        }
    }
    text.push_str("</svg>\n");
    text
}
