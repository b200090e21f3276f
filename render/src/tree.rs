//! `report --callers` and `--callees`: an indented table.

use display::clean::escaped;
use display::units;
use profile::report::{CallTree, Direction, LEAST_PART, Report};

use super::PageLayout;
use super::paragraph::{heading, wrapped};
use super::summary::title;
use super::table::{ColumnAlign, TextTable};

/// Formats the tree with at most `rows` rows.
pub fn render(report: &Report, tree: &CallTree, rows: usize, page: PageLayout) -> String {
    let mut text = title(report, page);
    let symbol = escaped(&tree.symbol);
    let title_text = match tree.direction {
        Direction::Callers => format!("Callers of {symbol}"),
        Direction::Callees => format!("Callees of {symbol}"),
    };
    if tree.total.samples == 0 {
        wrapped(&mut text, &format!("No chosen sample has {symbol} on its stack."), "  ", page.width);
        return text;
    }
    let samples = units::counted(tree.total.samples, "sample");
    let note = match tree.modules.as_slice() {
        [] | [_] => format!(": on the stack of {samples}"),
        several => format!(
            ": on the stack of {samples}; {} functions have this name ({}), and the tree is of all of them",
            several.len(),
            several.iter().map(|module| escaped(module)).collect::<Vec<_>>().join(", ")
        ),
    };
    heading(&mut text, page, &title_text, &note);
    let mut table = TextTable::new(&[
        ("of all", ColumnAlign::Right),
        ("of it", ColumnAlign::Right),
        ("samples", ColumnAlign::Right),
        ("function", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(3);
    for node in tree.nodes.iter().take(rows) {
        let name = super::with_module(&node.symbol, node.module.as_deref());
        table.row(vec![
            units::percent(node.estimate.share),
            units::percent(node.part),
            units::count(node.estimate.samples),
            // Deep trees keep room for names.
            format!("{}{name}", "  ".repeat(usize::try_from(node.depth).unwrap_or(0).min(20))),
        ]);
    }
    text.push_str(&table.render(page.width));
    let more = tree.nodes.len().saturating_sub(rows) as u64;
    if more > 0 {
        text.push_str(&format!("  {} more; -n 0 shows all\n", units::count(more)));
    }
    if tree.left_out > 0 {
        let branches = match tree.left_out {
            1 => "1 branch".to_owned(),
            many => format!("{} branches", units::count(many)),
        };
        text.push_str(&format!("  {branches} below {} left out\n", units::percent(LEAST_PART)));
    }
    text
}
