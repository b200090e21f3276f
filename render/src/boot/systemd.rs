//! systemd's account of a boot.

use display::clean::escaped;
use display::units;
use profile::boot::{ChainLink, StartupTimes, Systemd};

use super::super::PageLayout;
use super::super::exact::more;
use super::super::paragraph::{heading, wrapped};
use super::super::table::{ColumnAlign, TextTable};

/// Adds the account, or why there is none; at most `rows` rows per table.
pub(super) fn render(text: &mut String, systemd: &Systemd, rows: usize, page: PageLayout) {
    heading(text, page, "systemd", "");
    if let Some(missing) = &systemd.missing {
        let sentence = format!("Units and targets have no times: {}.", escaped(missing));
        return wrapped(text, &sentence, "  ", page.width);
    }
    let known = format!("times of units are known to {}", units::seconds(systemd.within_s));
    let sentence = match &systemd.startup {
        Some(startup) => format!(
            "Startup finished after {} ({known}). systemd's own account counts from the beginning of the kernel's clock, \
             at {}: {}.",
            units::seconds(startup.at_s),
            units::seconds(startup.at_s - total_s(startup)),
            account(startup)
        ),
        None => format!("It had not finished its startup when the run ended; {known}."),
    };
    wrapped(text, &sentence, "  ", page.width);
    if systemd.targets.iter().any(|target| target.by_log) {
        let note = "Times with ~ are those of the kernel's log, whose clock is a little ahead.";
        wrapped(text, note, "  ", page.width);
    }
    targets(text, systemd, rows, page);
    for unit in systemd.failed.iter().take(rows) {
        let (name, result) = (escaped(&unit.name), escaped(&unit.result));
        let sentence = format!("{name} did not start ({result}), at {}.", units::seconds(unit.at_s));
        wrapped(text, &sentence, "  ", page.width);
    }
    more(text, systemd.failed.len(), rows);
    chain(text, &systemd.chain, rows, page);
}

/// Formats the times as systemd-analyze does.
fn account(startup: &StartupTimes) -> String {
    let StartupTimes { kernel_s, initrd_s, userspace_s, .. } = startup;
    let initrd = initrd_s.map_or_else(String::new, |s| format!(" + {} initrd", units::seconds(s)));
    let sum = units::seconds(total_s(startup));
    let (kernel, userspace) = (units::seconds(*kernel_s), units::seconds(*userspace_s));
    format!("{kernel} kernel{initrd} + {userspace} userspace = {sum}")
}

/// Formats a time, marked if it is that of the kernel's log.
fn by(log: bool, s: f64) -> String {
    format!("{}{}", if log { "~" } else { "" }, units::seconds(s))
}

fn total_s(startup: &StartupTimes) -> f64 {
    startup.kernel_s + startup.initrd_s.unwrap_or(0.0) + startup.userspace_s
}

fn targets(text: &mut String, systemd: &Systemd, rows: usize, page: PageLayout) {
    if systemd.targets.is_empty() {
        return;
    }
    heading(text, page, "Targets", ": when they were reached");
    let mut table =
        TextTable::new(&[("at", ColumnAlign::Right), ("target", ColumnAlign::Left)]).indent(2).flexible(1);
    // The last targets are the purpose of a boot.
    let skipped = systemd.targets.len().saturating_sub(rows);
    for target in systemd.targets.iter().skip(skipped) {
        table.row(vec![by(target.by_log, target.at_s), escaped(&target.name).into_owned()]);
    }
    text.push_str(&table.render(page.width));
    more(text, systemd.targets.len(), rows);
}

fn chain(text: &mut String, chain: &[ChainLink], rows: usize, page: PageLayout) {
    if chain.is_empty() {
        return;
    }
    heading(text, page, "Units that the boot waited for", ", the last first");
    let note = "Each row is the unit that became active last before the one above began to start (`gap` later). The order \
                is that of time: dependencies between units are in unit files, which vprof does not read.";
    wrapped(text, note, "  ", page.width);
    let columns = [
        ("from", ColumnAlign::Right),
        ("took", ColumnAlign::Right),
        ("gap", ColumnAlign::Right),
        ("own CPU", ColumnAlign::Right),
        ("all CPU", ColumnAlign::Right),
        ("mostly", ColumnAlign::Left),
        ("unit", ColumnAlign::Left),
    ];
    let mut table = TextTable::new(&columns).indent(2).flexible(6);
    for link in chain.iter().take(rows) {
        let took = link.to_s - link.from_s;
        let at_once = took <= 0.0;
        let or_none = |s: f64| if at_once { String::new() } else { units::seconds(s) };
        table.row(vec![
            by(link.by_log, link.from_s),
            or_none(took),
            units::seconds(link.gap_s),
            or_none(link.own.s),
            or_none(link.all.s),
            mostly(link).to_owned(),
            escaped(&link.name).into_owned(),
        ]);
    }
    text.push_str(&table.render(page.width));
    more(text, chain.len(), rows);
}

/// Returns the part that took at least half of a unit's start.
fn mostly(link: &ChainLink) -> &'static str {
    let half = (link.to_s - link.from_s) / 2.0;
    if half <= 0.0 {
        ""
    } else if link.own.s >= half {
        "itself"
    } else if link.all.s - link.own.s >= half {
        "others"
    } else {
        "waiting"
    }
}

#[cfg(test)]
mod tests {
    use profile::boot::{CpuEstimate, FailedUnit, Target};

    use super::*;
    use crate::TextStyle;

    fn shown(systemd: &Systemd) -> String {
        let mut text = String::new();
        render(&mut text, systemd, 10, PageLayout { width: 80, style: TextStyle::Plain });
        text
    }

    #[test]
    fn a_boot_fits_80_columns_and_is_harmless() {
        let time = |s: f64| CpuEstimate { s, ..CpuEstimate::default() };
        let link = |name: &str, from_s: f64, to_s: f64, own: f64, all: f64| ChainLink {
            name: name.to_owned(),
            from_s,
            to_s,
            by_log: false,
            gap_s: 0.001,
            own: time(own),
            all: time(all),
        };
        let systemd = Systemd {
            startup: Some(StartupTimes { at_s: 91.6, kernel_s: 22.646, initrd_s: None, userspace_s: 68.88 }),
            targets: vec![Target { name: "multi-user.target\x1b[2J".to_owned(), at_s: 89.43, by_log: true }],
            failed: vec![FailedUnit {
                name: "a.service".to_owned(),
                at_s: 3.0,
                result: "timeout".to_owned(),
            }],
            chain: vec![
                link("multi-user.target", 89.43, 89.43, 0.0, 0.0),
                link("slow.service", 20.0, 80.0, 1.0, 20.0),
                link("busy.service", 10.0, 12.0, 1.5, 2.5),
                link("shared.service", 10.0, 12.0, 0.2, 2.5),
                link(&"long-".repeat(20), 1.0, 2.0, 0.2, 2.5),
            ],
            within_s: 0.003,
            missing: None,
        };
        let text = shown(&systemd);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        for (word, unit) in [("waiting", "slow"), ("itself", "busy"), ("others", "shared")] {
            let row = text.lines().find(|line| line.contains(&format!("{unit}.service"))).expect("a row");
            assert!(row.contains(word), "{row}");
        }
        assert!(text.contains("~89.43 s") && text.contains("Times with ~"), "{text}");
        assert!(text.contains("22.65 s kernel + 68.88 s userspace = 91.53 s"), "{text}");
    }

    #[test]
    fn a_boot_without_a_journal_has_one_sentence() {
        let missing = Some("no process systemd-journald was seen".to_owned());
        let text = shown(&Systemd { missing, ..Systemd::default() });
        assert!(text.contains("have no times: no process systemd-journald was seen."), "{text}");
        assert!(text.lines().filter(|line| !line.is_empty()).count() == 2, "{text}");
    }
}
