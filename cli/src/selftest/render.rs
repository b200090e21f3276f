//! The table of `vprof selftest`: a text for a bug report.

use display::clean::escaped;
use display::units;

use super::{CheckVerdict, SelftestCheck, SelftestOutcome, ValueUnit};
use render::PageLayout;
use render::table::{ColumnAlign, TextTable};

/// Formats the machine, one row per check, and the verdict.
pub fn render(outcome: &SelftestOutcome, page: PageLayout) -> String {
    let machine = &outcome.machine;
    let mut facts = TextTable::new(&[("", ColumnAlign::Left), ("", ColumnAlign::Left)]);
    let modules = if machine.kvm_modules.is_empty() {
        "none loaded".to_owned()
    } else {
        machine.kvm_modules.join(", ")
    };
    let kind = if machine.virtualized { ", itself a virtual machine" } else { "" };
    for (name, fact) in [
        ("vprof", outcome.version.clone()),
        ("processor", format!("{}, {}, {} CPUs{kind}", machine.vendor, machine.model, machine.cpus)),
        ("KVM modules", modules),
        ("host kernel", machine.kernel.clone()),
        ("guests on", format!("{}: {}", outcome.host, outcome.host_reason)),
        (
            "guest kernel",
            format!(
                "{} ({})",
                outcome.guest_kernel.as_deref().unwrap_or("not found"),
                outcome.kernel_file.display()
            ),
        ),
    ] {
        facts.row(vec![name.to_owned(), escaped(&fact).into_owned()]);
    }
    let mut table = TextTable::new(&[
        ("check", ColumnAlign::Left),
        ("vprof", ColumnAlign::Right),
        ("passes", ColumnAlign::Right),
        ("by", ColumnAlign::Left),
        ("result", ColumnAlign::Left),
    ]);
    for check in &outcome.checks {
        table.row(vec![
            check.name.clone(),
            check.measured.map_or_else(|| "nothing".to_owned(), |value| shown(check.unit, value)),
            bounds(check),
            check.reference.clone(),
            result(check),
        ]);
    }
    let count = |judgement| outcome.checks.iter().filter(|check| check.judgement == judgement).count();
    let verdict = format!(
        "{} passed, {} failed, {} not judged",
        count(CheckVerdict::Passed),
        count(CheckVerdict::Failed),
        count(CheckVerdict::NotJudged)
    );
    let table = table.render(usize::MAX);
    let (heading, rows) = table.split_once('\n').unwrap_or((&table, ""));
    format!(
        "{}\n{}\n{rows}\n{}\n",
        facts.render(usize::MAX),
        page.style.bold(heading),
        page.style.bold(&verdict)
    )
}

fn shown(unit: ValueUnit, value: f64) -> String {
    match unit {
        ValueUnit::Part => units::percent(value),
        ValueUnit::Seconds => units::seconds(value),
        ValueUnit::Count => format!("{value:.0}"),
    }
}

fn bounds(check: &SelftestCheck) -> String {
    let low = shown(check.unit, check.low);
    match check.high {
        None => format!("{low} and more"),
        Some(high) if high == check.low => low,
        Some(high) if check.low == 0.0 => format!("up to {}", shown(check.unit, high)),
        Some(high) => format!("{low} - {}", shown(check.unit, high)),
    }
}

fn result(check: &SelftestCheck) -> String {
    match check.judgement {
        CheckVerdict::Passed => "pass".to_owned(),
        CheckVerdict::Failed => "FAIL".to_owned(),
        CheckVerdict::NotJudged => format!("not judged: {}", check.note.as_deref().unwrap_or("no reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::MachineFacts;
    use render::TextStyle;

    #[test]
    fn the_table_says_what_passed_and_what_did_not() {
        let outcome = SelftestOutcome {
            version: "0.1.0".to_owned(),
            passed: false,
            machine: MachineFacts {
                vendor: "GenuineIntel".to_owned(),
                model: "Xeon".to_owned(),
                cpus: 8,
                virtualized: false,
                kvm_modules: vec!["kvm_intel".to_owned()],
                kernel: "6.1.0".to_owned(),
            },
            host: "kvm".to_owned(),
            host_reason: "it can".to_owned(),
            guest_kernel: Some("6.1.0".to_owned()),
            kernel_file: "/boot/vmlinuz".into(),
            checks: vec![
                SelftestCheck::near("share", ValueUnit::Part, Some(0.501), (0.5, 0.01), "its clock"),
                SelftestCheck::near("time", ValueUnit::Seconds, Some(2.5), (2.0, 0.1), "its clock"),
                SelftestCheck::between("lost", ValueUnit::Count, Some(0.0), (0.0, Some(0.0)), "none")
                    .unless(Some("emulated")),
            ],
        };
        let text = render(&outcome, PageLayout { width: 80, style: TextStyle::Plain });
        assert!(text.contains("GenuineIntel, Xeon, 8 CPUs\n"), "{text}");
        assert!(text.contains("50.1 %  49.0 % - 51.0 %  its clock  pass\n"), "{text}");
        assert!(text.contains("FAIL\n") && text.contains("not judged: emulated\n"), "{text}");
        assert!(text.ends_with("1 passed, 1 failed, 1 not judged\n"), "{text}");
    }
}
