//! A flame chart of a boot as SVG: stacks over time on each vCPU, below the phases, in the page's colours and
//! with callers above their callees, as in a flame graph. A click zooms, a search marks functions.

use std::io::{self, Write};

use display::clean::{escaped, xml};
use profile::boot::{Chart, ChartPiece};

use crate::flamegraph::{FONT, MARGIN, SCRIPT, WIDTH, fitted, write_legend};
use crate::palette::{KERNEL, USER};

/// Height of a row, px.
const ROW: f64 = 17.0;
/// Height of title, note and legend, px.
const HEAD: f64 = 66.0;
/// Width below which a piece is left out, px.
const NARROWEST: f64 = 0.3;
/// Limit of rectangles in the picture: the widest are drawn.
const MOST: usize = 60_000;

/// Writes the picture.
pub(crate) fn write(chart: &Chart, title: &str, out: &mut dyn Write) -> io::Result<()> {
    let scale = (WIDTH - 2.0 * MARGIN) / chart.end_s.max(1e-9);
    let rows = |pieces: &[ChartPiece]| pieces.iter().map(|piece| piece.depth + 1).max().unwrap_or(0);
    let all: usize = chart.vcpus.iter().map(|(_, pieces)| rows(pieces) + 2).sum();
    let height = HEAD + ROW * (all as f64 + 4.0);
    writeln!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" \
         height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" style=\"max-width:100%;height:auto\" \
         font-family=\"{FONT}\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{MARGIN}\" y=\"19\" font-size=\"15\">{}</text>\n\
         <text x=\"{MARGIN}\" y=\"37\" fill=\"#59636e\">Time from the guest's first instruction; blank where no sample hit a \
         task or the kernel. A click zooms, Esc shows all; Ctrl-F searches.</text>\n\
         <text id=\"found\" x=\"{:.1}\" y=\"19\" text-anchor=\"end\"/>",
        xml(&escaped(title)),
        WIDTH - MARGIN,
    )?;
    write_legend(&[("kernel", KERNEL), ("programs", USER)], out)?;
    writeln!(out, "<g id=\"axis\">")?;
    axis(chart.end_s, scale, height, out)?;
    writeln!(out, "</g>")?;
    let mut top = HEAD + ROW * 1.5;
    let mut lanes = vec![(top, &chart.phases)];
    top += ROW * 2.0;
    for (vcpu, lane) in &chart.vcpus {
        writeln!(out, "<text x=\"{MARGIN}\" y=\"{:.1}\">vCPU {vcpu}</text>", top + 12.0)?;
        top += ROW;
        lanes.push((top, lane));
        top += ROW * (rows(lane) as f64 + 1.0);
    }
    writeln!(out, "<g id=\"frames\">")?;
    for (top, lane) in lanes {
        pieces(lane, (top, scale), out)?;
    }
    writeln!(out, "</g>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>")
}

/// Draws lines at round times.
fn axis(end_s: f64, scale: f64, height: f64, out: &mut dyn Write) -> io::Result<()> {
    let rough = end_s.max(1e-6) / 10.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(rough);
    for n in 0..=10 {
        let at = f64::from(n) * step;
        if at > end_s {
            break;
        }
        let x = MARGIN + at * scale;
        let anchor = if x > WIDTH - 80.0 { "end" } else { "start" };
        writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{height}\" stroke=\"#d5dae0\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#59636e\">{at:.3} s</text>",
            HEAD + ROW,
            HEAD + ROW * 0.8
        )?;
    }
    Ok(())
}

fn pieces(all: &[ChartPiece], (top, scale): (f64, f64), out: &mut dyn Write) -> io::Result<()> {
    let width = |piece: &ChartPiece| (piece.to_s - piece.from_s) * scale;
    let mut shown: Vec<&ChartPiece> = all.iter().filter(|piece| width(piece) >= NARROWEST).collect();
    shown.sort_by(|a, b| width(b).total_cmp(&width(a)));
    shown.truncate(MOST);
    for piece in shown {
        let (x, y, width) = (MARGIN + piece.from_s * scale, top + piece.depth as f64 * ROW, width(piece));
        let name = escaped(&piece.name);
        let fill = if piece.kernel { KERNEL } else { USER }.shaded(&name);
        let milliseconds = (piece.to_s - piece.from_s) * 1e3;
        write!(
            out,
            "<g><title>{} ({milliseconds:.1} ms from {:.3} s)</title>\
             <rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{:.1}\" fill=\"{fill}\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
            xml(&name),
            piece.from_s,
            ROW - 1.0
        )?;
        let text = fitted(&name, width);
        if !text.is_empty() {
            write!(out, "<text x=\"{:.2}\" y=\"{:.1}\">{}</text>", x + 3.0, y + 12.0, xml(&text))?;
        }
        writeln!(out, "</g>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_well_formed_whatever_names_are() {
        let piece = |name: &str, depth, from_s, to_s| ChartPiece {
            name: name.to_owned(),
            kernel: depth == 0,
            depth,
            from_s,
            to_s,
        };
        let lane = vec![
            piece("init<&\"", 0, 0.0, 2.0),
            piece("\x1b]do_one\u{ffff}", 1, 0.5, 1.0),
            piece("narrow", 1, 1.0, 1.000_001),
        ];
        let chart = Chart { end_s: 2.0, phases: vec![piece("kernel", 0, 0.0, 1.0)], vcpus: vec![(0, lane)] };
        let mut svg = Vec::new();
        write(&chart, "a<b", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("init&lt;&amp;&quot; (2000.0 ms from 0.000 s)") && !svg.contains("narrow"));
        let mut reader = quick_xml::Reader::from_str(&svg);
        let mut rects = 0;
        loop {
            match reader.read_event().unwrap() {
                quick_xml::events::Event::Eof => break,
                quick_xml::events::Event::Empty(tag) if tag.name().as_ref() == b"rect" => rects += 1,
                _ => {}
            }
        }
        // The background, two of the legend, and three pieces.
        assert_eq!(rects, 6);
        assert!(svg.contains("fill=\"#f7d48b\"/>"), "the page's colour of the kernel");
        assert!(svg.contains(">kernel</text>") && svg.contains(">programs</text>"), "a legend");
        // As wide as the page, as high as its content, and its last mark within it.
        assert!(svg.contains("width=\"1200\"") && svg.contains("max-width:100%"));
        assert!(svg.contains("text-anchor=\"end\" fill=\"#59636e\">2.000 s"));
    }

    #[test]
    fn names_that_do_not_fit_end_with_an_ellipsis_and_have_a_title() {
        let name = "a_function_with_a_name_that_is_longer_than_its_piece".to_owned();
        let piece = ChartPiece { name: name.clone(), kernel: true, depth: 0, from_s: 0.0, to_s: 0.1 };
        let chart = Chart { end_s: 1.0, phases: vec![piece], vcpus: Vec::new() };
        let mut svg = Vec::new();
        write(&chart, "", &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains(&format!("<title>{name} (100.0 ms from 0.000 s)</title>")));
        assert!(svg.contains(">a_function_wit…</text>"), "{svg}");
    }

    #[test]
    fn an_empty_boot_is_a_picture_too() {
        let mut svg = Vec::new();
        write(&Chart::default(), "", &mut svg).unwrap();
        assert!(String::from_utf8(svg).unwrap().ends_with("</svg>\n"));
    }
}
