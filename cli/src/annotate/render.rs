//! `annotate`: the lines of a function for people.

use text::clean::escaped;
use text::units;

use super::{Listing, Place};
use crate::render::summary::{heading, wrapped};
use crate::render::table::{Align, Table};
use crate::render::{Page, with_module};

/// The listing, with the lines that `rows` leaves of it.
pub fn render(listing: &Listing, rows: usize, page: Page) -> String {
    let mut text = String::new();
    let name = with_module(&listing.symbol, listing.module.as_deref());
    let (own, total) = (&listing.own, &listing.total);
    let note = format!(
        ": {} of all samples that were not idle ({}), {} with what it calls",
        units::percent(own.share),
        units::count(own.samples),
        units::percent(total.share)
    );
    heading(&mut text, page.style, &name, "");
    wrapped(&mut text, note.trim_start_matches(": "), "  ", page.width);
    for note in &listing.notes {
        wrapped(&mut text, &escaped(note), "  ", page.width);
    }
    if listing.lines.is_empty() {
        return text;
    }
    text.push('\n');
    let mut table = Table::new(&[
        ("self", Align::Right),
        ("calls", Align::Right),
        ("address", Align::Right),
        ("instruction", Align::Left),
    ])
    .indent(2)
    .flexible(3);
    let mut source = None;
    for line in listing.lines.iter().take(rows) {
        if line.source.is_some() && line.source != source {
            let at = line.source.as_deref().unwrap_or_default();
            table.row(vec![String::new(), String::new(), String::new(), format!("; {}", escaped(at))]);
            source.clone_from(&line.source);
        }
        table.row(vec![part(line.self_part), part(line.called_part), place(&line.place), line.text.clone()]);
    }
    text.push_str(&table.render(page.width));
    let more = listing.lines.len().saturating_sub(rows) as u64;
    if more > 0 {
        text.push_str(&format!("  {} more; -n 0 shows all\n", units::count(more)));
    }
    text
}

/// Nothing where nothing hit, so that what was hit stands out.
fn part(part: f64) -> String {
    if part > 0.0 { units::percent(part) } else { String::new() }
}

fn place(place: &Place) -> String {
    format!("{:#x}", place.address)
}
