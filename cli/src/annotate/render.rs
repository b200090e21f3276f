//! `annotate`: the lines of a function as text.

use text::clean::escaped;
use text::units;

use super::{CodeAddress, FunctionListing};
use crate::render::summary::{heading, wrapped};
use crate::render::table::{ColumnAlign, TextTable};
use crate::render::{PageLayout, with_module};

/// Formats the listing, with at most `rows` lines.
pub fn render(listing: &FunctionListing, rows: usize, page: PageLayout) -> String {
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
    let mut table = TextTable::new(&[
        ("self", ColumnAlign::Right),
        ("calls", ColumnAlign::Right),
        ("address", ColumnAlign::Right),
        ("instruction", ColumnAlign::Left),
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

/// Formats a part; nothing for 0, so that sampled lines stand out.
fn part(part: f64) -> String {
    if part > 0.0 { units::percent(part) } else { String::new() }
}

fn place(place: &CodeAddress) -> String {
    format!("{:#x}", place.address)
}
