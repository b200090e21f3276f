//! `report --memory-use`: the guest's memory by holder over time.

use display::units;
use profile::report::{HolderHistory, MemoryReport};
use profile::rows::MemoryKind;

use super::paragraph::{heading, wrapped};
use super::table::{ColumnAlign, TextTable};
use super::{PageLayout, visible};

/// Formats the report with at most `rows` holders of each kind.
pub fn render(report: &MemoryReport, rows: usize, page: PageLayout) -> String {
    let mut text = String::new();
    let size = units::bytes;
    let span = report.times_s.first().zip(report.times_s.last());
    let span = span.map_or(0.0, |(first, last)| last - first);
    let readings = units::counted(report.readings, "reading");
    let title = format!("Memory of the guest: {readings} in {}", units::seconds(span));
    wrapped(&mut text, &page.style.bold(&title), "", page.width);
    let memory = &report.memory;
    let mut last = format!("at the end {} in all", size(memory.total));
    if let Some(available) = memory.available {
        last += &format!(", {} available to programs", size(available));
    }
    if let Some((total, used)) = memory.swap_total.zip(memory.swap_used).filter(|(total, _)| *total > 0) {
        last += &format!("; {} of {} swap in use", size(used), size(total));
    }
    wrapped(&mut text, &last, "  ", page.width);
    let cost = format!("the readings took {} of CPU time of the host", units::seconds(report.cost_s));
    wrapped(&mut text, &cost, "  ", page.width);
    for kind in MemoryKind::ALL {
        let holders: Vec<_> = report.holders.iter().filter(|holder| holder.kind == kind).collect();
        if holders.is_empty() {
            continue;
        }
        let (title, remark) = section(kind);
        heading(&mut text, page, title, remark);
        // All parts, since they add up.
        let shown = if kind == MemoryKind::Part { holders.len() } else { rows };
        table(&mut text, &holders, shown, page);
    }
    text
}

fn section(kind: MemoryKind) -> (&'static str, &'static str) {
    match kind {
        MemoryKind::Part => ("Holders", ": together all memory"),
        MemoryKind::Process => ("Processes", ": resident memory; pages that processes share count for each"),
        MemoryKind::Group => ("Control groups", ": each with the groups below it"),
        MemoryKind::Filesystem => ("Page cache by file system", ""),
        MemoryKind::File => ("Page cache by file", ""),
        MemoryKind::Slab => ("Slab caches", ""),
    }
}

fn table(text: &mut String, holders: &[&HolderHistory], rows: usize, page: PageLayout) {
    let mut table = TextTable::new(&[
        ("first", ColumnAlign::Right),
        ("last", ColumnAlign::Right),
        ("peak", ColumnAlign::Right),
        ("at", ColumnAlign::Right),
        ("holder", ColumnAlign::Left),
    ])
    .indent(2)
    .flexible(4);
    // A dash: not among the largest at that reading.
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), units::bytes);
    for holder in holders.iter().take(rows) {
        table.row(vec![
            size(holder.first),
            size(holder.last),
            units::bytes(holder.peak),
            units::seconds(holder.peak_s),
            holder_name(holder.kind, &holder.name, holder.pid),
        ]);
    }
    text.push_str(&table.render(page.width));
    let more = holders.len().saturating_sub(rows);
    if more > 0 {
        wrapped(text, &format!("({more} more: -n 0)"), "  ", page.width);
    }
}

/// Returns a holder's name in tables; `name` and `pid` as a profile has them.
pub fn holder_name(kind: MemoryKind, name: &str, pid: Option<i32>) -> String {
    let part = (kind == MemoryKind::Part).then(|| part_label(name)).flatten();
    match (part, pid) {
        (Some(part), _) => part.to_owned(),
        (None, Some(pid)) => format!("{} ({pid})", visible(name)),
        (None, None) => visible(name).into_owned(),
    }
}

/// Returns the label of a part of the memory, by its name in profiles, for example `page_cache`.
pub fn part_label(name: &str) -> Option<&'static str> {
    Some(match name {
        "free" => "free",
        "anonymous" => "processes (anonymous)",
        "page_cache" => "page cache of files",
        "buffers" => "page cache of disks",
        "shmem" => "tmpfs, shared memory",
        "slab_reclaimable" => "slab, reclaimable",
        "slab_unreclaimable" => "slab, other",
        "page_tables" => "page tables",
        "kernel_stacks" => "kernel stacks",
        "per_cpu" => "per-CPU variables",
        "huge_pool" => "pools of huge pages",
        "other" => "other, of the kernel",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use profile::report::WholeMemory;

    use super::*;
    use crate::TextStyle;

    #[test]
    fn holders_fit_a_terminal() {
        let holder = |kind, name: &str, pid, first, peak: u64| HolderHistory {
            kind,
            name: name.to_owned(),
            pid,
            first,
            last: Some(1 << 20),
            peak,
            peak_s: 12.5,
            bytes: Vec::new(),
        };
        let report = MemoryReport {
            readings: 7,
            cost_s: 0.01,
            times_s: vec![1.0, 61.0],
            memory: WholeMemory { total: 500 << 20, available: Some(400 << 20), ..WholeMemory::default() },
            holders: vec![
                holder(MemoryKind::Part, "page_cache", None, Some(0), 3 << 20),
                holder(MemoryKind::Process, "a\u{1b}b", Some(7), None, 2 << 20),
                holder(MemoryKind::Process, "c", Some(8), None, 1 << 20),
                holder(MemoryKind::Group, &"/long".repeat(40), None, None, 2 << 20),
            ],
        };
        let text = render(&report, 1, PageLayout { width: 80, style: TextStyle::Plain });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "Memory of the guest: 7 readings in 60.00 s",
            "at the end 500 MiB in all, 400 MiB available to programs",
            "page cache of files\n",
            "a\\x1bb (7)\n",
            "(1 more: -n 0)",
            "Control groups",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Slab") && !text.contains('\u{1b}'), "{text}");
    }
}
