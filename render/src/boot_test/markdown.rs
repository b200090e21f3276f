//! The result as Markdown, for a comment on a change.

use profile::boot::{Evidence, is_part_of_kernel};

use super::BootOutcome;
use crate::boot::last_seen;
use display::clean::{escaped, markdown, markdown_code};

/// Largest number of initcalls.
const CALLS: usize = 10;

/// Formats the whole text.
pub fn render(outcome: &BootOutcome) -> String {
    let mark = if outcome.passed { "passed" } else { "**failed**" };
    let mut text = format!("### Boot of `{}`: {mark}\n\n", markdown_code(&outcome.image));
    if let Some(failure) = &outcome.failure {
        text.push_str(&format!("{}\n\n", markdown(failure)));
    }
    if outcome.spread.is_empty() {
        reached(&mut text, outcome);
    } else {
        text.push_str("| phase | median | min | max |\n|---|---:|---:|---:|\n");
        for spread in &outcome.spread {
            text.push_str(&format!(
                "| {}{} | {:.3} s | {:.3} s | {:.3} s |\n",
                indent(&spread.name),
                spread.name,
                spread.median,
                spread.min,
                spread.max
            ));
        }
        text.push('\n');
    }
    text.push_str("| expectation | result |\n|---|---|\n");
    for check in &outcome.checks {
        let mark = if check.skipped {
            "skipped"
        } else if check.passed {
            "met"
        } else {
            "**not met**"
        };
        text.push_str(&format!("| {} | {mark}: {} |\n", markdown(&check.name), markdown(&check.message)));
    }
    if let Some(attempt) = outcome.boots.first() {
        calls(&mut text, &attempt.boot);
    }
    if let Some(evidence) = outcome.boots.iter().find_map(|attempt| attempt.evidence.as_ref()) {
        end(&mut text, evidence);
    }
    text
}

/// Returns the indent of a phase that is a part of the one before it.
fn indent(phase: &str) -> &'static str {
    if is_part_of_kernel(phase) { "&nbsp;&nbsp;" } else { "" }
}

/// Adds the phases of the first boot that did not come up: the last one is where it stayed.
fn reached(text: &mut String, outcome: &BootOutcome) {
    let Some(boot) = outcome.boots.iter().map(|attempt| &attempt.boot).find(|boot| !boot.phases.is_empty())
    else {
        return;
    };
    text.push_str("| phase | from | time |\n|---|---:|---:|\n");
    for phase in &boot.phases {
        let open = if phase.ended { "" } else { " (not ended)" };
        text.push_str(&format!(
            "| {}{}{open} | {:.3} s | {:.3} s |\n",
            indent(&phase.name),
            phase.name,
            phase.from_s,
            phase.wall_s
        ));
    }
    text.push('\n');
}

fn end(text: &mut String, evidence: &Evidence) {
    verbatim(text, "vCPUs and sleeping tasks at the end; innermost function first", &last_seen(evidence));
    let console: Vec<String> = evidence.console.iter().map(|line| escaped(line).into_owned()).collect();
    verbatim(text, "The console's last lines", &console);
}

/// Adds lines verbatim, if there are any.
fn verbatim(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    text.push_str(&format!("\n{title}:\n\n"));
    // Four blanks: no line can end the block.
    lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
}

fn calls(text: &mut String, boot: &profile::boot::Boot) {
    let mut calls: Vec<_> = boot.initcalls.iter().collect();
    calls.sort_by(|a, b| b.time.s.total_cmp(&a.time.s));
    if calls.is_empty() {
        return;
    }
    text.push_str("\n<details><summary>Slowest initcalls</summary>\n\n| initcall | CPU time | from |\n|---|---:|---:|\n");
    for call in calls.into_iter().take(CALLS) {
        text.push_str(&format!(
            "| `{}` | {:.1} ms | {:.3} s |\n",
            markdown_code(&call.function),
            call.time.s * 1e3,
            call.from_s
        ));
    }
    text.push_str("\n</details>\n");
}

#[cfg(test)]
mod tests {
    use profile::boot::LastOf;

    use super::*;

    #[test]
    fn parts_of_a_phase_are_indented_and_a_failed_boot_has_its_phases() {
        use profile::boot::{Boot, Phase};

        use crate::boot_test::{BootAttempt, BootVerdict};
        use statistics::spread::ValueSpread;

        let phase =
            |name: &str, ended| Phase { name: name.to_owned(), wall_s: 1.5, ended, ..Phase::default() };
        let phases = vec![phase("kernel", true), phase("early", true), phase("initrd", false)];
        let attempt = BootAttempt {
            profile: "x.vprof".into(),
            verdict: BootVerdict::TimeOut,
            sentence: "too late".to_owned(),
            reboots: 0,
            boot: Boot { phases, ..Boot::default() },
            evidence: None,
        };
        let mut outcome = BootOutcome {
            version: String::new(),
            image: "a.img".to_owned(),
            passed: false,
            failure: Some("too late".to_owned()),
            boots: vec![attempt],
            checks: Vec::new(),
            spread: Vec::new(),
        };
        let rows = "| kernel | 0.000 s | 1.500 s |\n| &nbsp;&nbsp;early | 0.000 s | 1.500 s |\n\
                    | initrd (not ended) | 0.000 s | 1.500 s |\n";
        assert!(render(&outcome).contains(rows), "{}", render(&outcome));
        outcome.spread =
            ["kernel", "early"].iter().filter_map(|name| ValueSpread::from_values(name, &[1.0])).collect();
        let text = render(&outcome);
        assert!(
            text.contains("| kernel | 1.000 s |") && text.contains("| &nbsp;&nbsp;early | 1.000 s |"),
            "{text}"
        );
        assert!(!text.contains("not ended"), "{text}");
    }

    #[test]
    fn a_hang_is_shown_with_stacks_and_the_console() {
        let vcpu = LastOf { busy: 1.0, process: Some("sh\n# no heading".to_owned()), ..LastOf::default() };
        let vcpu = LastOf { stack: vec!["native_halt".to_owned(), "panic".to_owned()], ..vcpu };
        let evidence =
            Evidence { console: vec!["last line".to_owned()], vcpus: vec![vcpu], ..Evidence::default() };
        let mut text = String::new();
        end(&mut text, &evidence);
        assert!(
            text.contains("\n    vCPU 0: 100 % busy, last with sh\\x0a# no heading: native_halt < panic\n"),
            "{text}"
        );
        assert!(text.ends_with("The console's last lines:\n\n    last line\n"), "{text}");
    }
}
