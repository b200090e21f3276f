//! `annotate`: the lines of a function as text.

use display::clean::escaped;
use display::units;
use profile::report::{Annotation, CodeAddress, FunctionListing, ShownLines};

use crate::by::BLOCKS;
use crate::paragraph::{heading, wrapped};
use crate::table::{ColumnAlign, TextTable};
use crate::{PageLayout, with_module};

/// Returns the lines of a function, with notes on what limits them.
pub fn annotated_listing(annotation: &Annotation, intel: bool) -> FunctionListing {
    let mut listing = FunctionListing::new(annotation, intel);
    if annotation.emulated {
        listing.notes.push(BLOCKS.to_owned());
    }
    if annotation.nameless && annotation.kind == "user" {
        listing.notes.push(
            "No symbol covers the function: a debug file of its build would name it (`vprof docs symbols`)."
                .to_owned(),
        );
    }
    listing
}

/// Formats the listing.
pub fn render(listing: &FunctionListing, shown: ShownLines, page: PageLayout) -> String {
    let mut text = String::new();
    let name = with_module(&listing.symbol, listing.module.as_deref());
    let (own, total) = (&listing.own, &listing.total);
    let note = format!(
        "{} of all samples that were not idle ({}), {} with what it calls",
        units::percent(own.share),
        units::count(own.samples),
        units::percent(total.share)
    );
    heading(&mut text, page, &name, "");
    wrapped(&mut text, &note, "  ", page.width);
    for note in &listing.notes {
        wrapped(&mut text, &escaped(note), "  ", page.width);
    }
    let lines = listing.without_padding();
    if lines.is_empty() {
        return text;
    }
    text.push('\n');
    let mut table = TextTable::new(&[
        ("self", ColumnAlign::Right),
        ("below", ColumnAlign::Right),
        ("address", ColumnAlign::Right),
        ("instruction", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(3)
    .spare(&[1])
    .styled(page.style);
    let note = |text: String| vec![String::new(), String::new(), String::new(), text];
    let mut source = None;
    for stretch in lines.iter().zip(shown.choose(lines)).collect::<Vec<_>>().chunk_by(|a, b| a.1 == b.1) {
        if !stretch[0].1 {
            let samples: u64 = stretch.iter().map(|(line, _)| line.own + line.called).sum();
            let with =
                if samples > 0 { format!(", {}", units::counted(samples, "sample")) } else { String::new() };
            table.row(note(format!("... {}{with}", units::counted(stretch.len() as u64, "instruction"))));
            continue;
        }
        for (line, _) in stretch {
            if line.source.is_some() && line.source != source {
                let at = line.source.as_deref().unwrap_or_default();
                table.row(note(format!("; {}", escaped(at))));
                source.clone_from(&line.source);
            }
            let cells =
                vec![part(line.self_part), part(line.called_part), place(&line.place), line.text.clone()];
            table.hot_row(line.self_part, cells);
        }
    }
    text.push_str(&table.render(page.width));
    text
}

/// Formats a part; nothing for 0, so that sampled lines stand out.
fn part(part: f64) -> String {
    if part > 0.0 { units::percent(part) } else { String::new() }
}

fn place(place: &CodeAddress) -> String {
    format!("{:#x}", place.address)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use profile::report::{CodeLine, Estimate};

    use super::*;
    use crate::TextStyle;

    /// A function of 40 instructions of one byte and four of padding, with samples at some places.
    fn listing(samples: &[(usize, u64)]) -> FunctionListing {
        let line = |place: usize| {
            let own = samples.iter().find(|(at, _)| *at == place).map_or(0, |(_, own)| *own);
            let (bytes, text) = if place < 40 { ("55", "push %rbp") } else { ("cc", "int3") };
            let address = CodeAddress { address: 0x1000 + place as u64, start: 0x1000 };
            let mut line = CodeLine::new(address.address, address.start, bytes.into(), text.into());
            (line.own, line.self_part) = (own, own as f64 / 100.0);
            line
        };
        FunctionListing {
            symbol: "f".to_owned(),
            module: None,
            kind: "kernel".to_owned(),
            read: None,
            own: Estimate::default(),
            total: Estimate::default(),
            notes: Vec::new(),
            lines: (0..44).map(line).collect(),
        }
    }

    fn rows(samples: &[(usize, u64)], shown: ShownLines) -> Vec<String> {
        let page = PageLayout { width: 80, style: TextStyle::Plain };
        render(&listing(samples), shown, page).lines().skip(5).map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn cold_stretches_are_folded_and_padding_is_left_out() {
        let sampled = rows(&[(10, 60), (30, 2)], ShownLines::Sampled);
        assert_eq!(sampled.len(), 1 + 7 + 1 + 7 + 1, "{sampled:?}");
        assert_eq!((&*sampled[0], &*sampled[8]), ("... 7 instructions", "... 13 instructions"));
        assert_eq!(
            (&*sampled[4], &*sampled[16]),
            ("60.0 %          0x100a  push %rbp", "... 6 instructions")
        );
        assert_eq!(rows(&[], ShownLines::Sampled), ["... 40 instructions"]);
        assert_eq!(rows(&[(10, 60)], ShownLines::All).len(), 40);
        // A fold of one line would save none.
        let near = rows(&[(4, 1), (12, 1)], ShownLines::Sampled);
        assert_eq!(near.len(), 1 + 15 + 1, "{near:?}");
    }

    #[test]
    fn a_number_of_rows_chooses_the_hottest() {
        let hottest = rows(&[(2, 1), (10, 60), (30, 2)], ShownLines::Hottest(1));
        assert_eq!(hottest.len(), 1 + 7 + 1, "{hottest:?}");
        assert_eq!(
            (&*hottest[0], &*hottest[8]),
            ("... 7 instructions, 1 sample", "... 26 instructions, 2 samples")
        );
    }

    #[test]
    fn samples_past_the_code_are_shown() {
        let all = rows(&[(42, 9)], ShownLines::Sampled);
        assert!(all.iter().any(|row| row.starts_with("9.0 %") && row.ends_with("int3")), "{all:?}");
    }

    #[test]
    fn notes_say_what_limits_the_lines() {
        let annotation = |kind: &str, nameless, emulated| Annotation {
            symbol: "f".to_owned(),
            module: None,
            kind: kind.to_owned(),
            nameless,
            emulated,
            start: 0x1000,
            code: Some(vec![0xc3]),
            read: None,
            own: Estimate::default(),
            total: Estimate::default(),
            hits: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let notes = |annotation: &Annotation| annotated_listing(annotation, false).notes;
        // Debug files are of user code.
        assert!(notes(&annotation("kernel", true, false)).is_empty());
        let nameless = notes(&annotation("user", true, false));
        assert!(nameless[0].contains("a debug file of its build would name it"), "{nameless:?}");
        let emulated = notes(&annotation("kernel", false, true));
        assert!(emulated[0].contains("exact to a block"), "{emulated:?}");
    }
}
