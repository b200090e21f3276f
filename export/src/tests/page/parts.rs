//! Lanes of programs, the heat map, tables by kind, phases and histograms of the page.

use profile::{Filter, Profile, made_up};

use super::browser::Browser;
use super::{fixture, number, page_file};
use crate::PageRequest;

/// Opens the page of a made-up run of 10 s on 2 vCPUs.
fn opened() -> Option<(tempfile::TempDir, std::path::PathBuf, Browser)> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, 20_000, 500);
    let browser = Browser::open(&page_file(&path, &PageRequest::default()))?;
    Some((directory, path, browser))
}

/// Names of the timeline's lanes that are buttons.
fn lanes(browser: &mut Browser) -> Vec<String> {
    let names = "[...document.querySelectorAll('#lane-names button')].map((lane) => lane.textContent)";
    serde_json::from_value(browser.value(names)).expect("names")
}

/// Sum of the column `Samples` of the table by kind.
fn samples_of_kind(browser: &mut Browser) -> u64 {
    browser.value("document.getElementById('by-more').hidden || document.getElementById('by-more').click()");
    let rows = browser.rows("#by-table");
    rows.iter().map(|row| row[3].replace(',', "").parse::<u64>().expect("a number")).sum()
}

fn choose(browser: &mut Browser, select: &str, value: &str) {
    browser.value(&format!(
        "{{ const list = document.getElementById('{select}'); list.value = '{value}'; list.dispatchEvent(new Event('change')); }}"
    ));
    browser.next_frame();
}

#[test]
fn only_a_part_of_a_run_is_called_one() {
    let made = fixture::several();
    for (vcpu, is_part) in [(None, false), (Some(0), true)] {
        let filter = Filter { vcpu, ..Filter::default() };
        let request = PageRequest { filter, ..PageRequest::default() };
        let Some(mut browser) = Browser::open(&page_file(&made.path, &request)) else { return };
        let limits = browser.text("#limits");
        assert_eq!(limits.contains("Only a part of the run: vCPU 0."), is_part, "{limits}");
        assert_eq!(limits.contains("Only a part"), is_part, "{limits}");
    }
}

#[test]
fn what_the_report_warns_of_and_its_names_are_the_same() {
    let (slowed, plain) = (fixture::slowed(), fixture::plain());
    let Some(mut browser) = Browser::open(&page_file(&slowed.path, &PageRequest::default())) else { return };
    let limits = browser.text("#limits");
    assert!(limits.contains("Sampling took 75.0 %") && limits.contains("to a serial port"), "{limits}");
    let first = "document.querySelector('#top-processes .name').textContent";
    assert_eq!(browser.value(first), "[prog], 2 processes");
    assert_eq!(lanes(&mut browser)[0], "▸ [prog], 2 processes");
    browser.click("#lane-names button");
    assert!(lanes(&mut browser)[1].ends_with("[prog#0]"));
    let Some(mut browser) = Browser::open(&page_file(&plain.path, &PageRequest::default())) else { return };
    let limits = browser.text("#limits");
    assert!(!limits.contains("Sampling took") && !limits.contains("serial"), "{limits}");
    browser.assert_quiet();
}

#[test]
fn lanes_open_into_processes_and_threads() {
    let made = fixture::several();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    assert_eq!(lanes(&mut browser), ["▸ prog, 2 processes", "[hard interrupts]"]);
    let height = "document.getElementById('lane-canvas').clientHeight";
    let before = browser.value(height).as_f64().expect("a number");
    browser.click("#lane-names button");
    assert_eq!(
        lanes(&mut browser),
        ["▾ prog, 2 processes", "▸ prog#0", "prog#1", "[hard interrupts]"],
        "most time first"
    );
    assert_eq!(browser.value("document.querySelector('#lane-names button').ariaExpanded"), "true");
    browser.click("#lane-names button:nth-of-type(2)");
    assert_eq!(
        lanes(&mut browser),
        ["▾ prog, 2 processes", "▾ prog#0", "worker 11", "helper 12", "prog#1", "[hard interrupts]"]
    );
    // The focus stays, so that keys close it again.
    assert_eq!(browser.value("document.activeElement.textContent"), "▾ prog#0");
    assert!(browser.value(height).as_f64().expect("a number") > before + 60.0);
    // The lane of the thread that is only in the kernel, at 50 ms of 100: all of its time is there.
    let (_, _, left, width) = browser.place("#lane-canvas");
    let (_, lane, ..) = browser.place("#lane-names button:nth-of-type(4)");
    browser.mouse("mouseMoved", (left + width * 0.5, lane), 0);
    let tip = browser.text("#lane-tip");
    assert!(tip.contains("helper 12") && tip.contains("User code 0.0 %, kernel"), "{tip}");
    assert!(!tip.contains("kernel 0.0 %"), "{tip}");
    // A lane of one process chooses it.
    browser.mouse("mousePressed", (left + width * 0.5, lane), 1);
    browser.mouse("mouseReleased", (left + width * 0.5, lane), 0);
    browser.next_frame();
    assert!(browser.text("#chosen").starts_with("prog#0"), "{}", browser.text("#chosen"));
    browser.assert_quiet();
}

#[test]
fn many_programs_have_few_lanes_until_more_are_wanted() {
    let Some((_directory, _path, mut browser)) = opened() else { return };
    let first = lanes(&mut browser);
    assert_eq!((first.len(), &*first[0], &*first[8]), (9, "[hard interrupts]", "57 more"));
    browser.click("#lane-names button:last-of-type");
    assert_eq!(lanes(&mut browser).len(), 25);
    browser.assert_quiet();
}

/// The heat map has columns of 1 s with 50 rows of 20 ms, each 5 px high.
#[test]
fn a_range_of_the_heat_map_is_picked_everywhere() {
    let Some((_directory, path, mut browser)) = opened() else { return };
    let (_, middle, left, width) = browser.place("#heat-canvas");
    let height = browser.value("document.getElementById('heat-canvas').clientHeight").as_f64();
    let top = middle - height.expect("a number") / 2.0;
    // Rows 10 to 14 of the third second.
    let (x, from, to) = (left + width * 0.25, top + 2.0 + 10.5 * 5.0, top + 2.0 + 14.5 * 5.0);
    browser.mouse("mousePressed", (x, from), 1);
    browser.mouse("mouseMoved", (x, to), 1);
    browser.mouse("mouseReleased", (x, to), 0);
    browser.next_frame();
    let fields = "['from', 'to'].map((id) => document.getElementById(id).value)";
    assert_eq!(browser.value(fields), serde_json::json!(["2.20", "2.30"]));
    let sql = "SELECT count(*) FROM v_charged JOIN sample USING (id) WHERE time_ns >= 2200000000 AND time_ns < 2300000000";
    let detail = browser.text("#frame-detail");
    assert!(detail.contains(&format!("{} samples", number(&path, sql))), "{detail}");
    assert!(browser.text("#heat-detail").starts_with("2.20 to 2.30 s: "));
    // By keys: a column on, then its end a row further.
    browser.value("document.getElementById('heat').focus()");
    browser.key("ArrowRight");
    assert_eq!(browser.value(fields), serde_json::json!(["3.20", "3.30"]));
    browser.key("ArrowDown");
    assert_eq!(browser.value(fields), serde_json::json!(["3.22", "3.32"]));
    choose(&mut browser, "by-kind", "irq");
    assert!(samples_of_kind(&mut browser) > 0);
    browser.assert_quiet();
}

#[test]
fn every_kind_has_a_table_of_the_picked_time() {
    let Some((_directory, path, mut browser)) = opened() else { return };
    let kinds = browser.value("[...document.getElementById('by-kind').options].map((kind) => kind.value)");
    let kinds: Vec<String> = serde_json::from_value(kinds).expect("kinds");
    assert_eq!(kinds.len(), 10);
    let all = number(&path, "SELECT count(*) FROM v_charged");
    let interrupts = |sql: &str| {
        number(
            &path,
            &format!("SELECT count(*) FROM sample WHERE id IN (SELECT id FROM v_charged) AND {sql}"),
        )
    };
    let in_irq = "mode = (SELECT id FROM mode WHERE name = 'hardirq')";
    let picked = "time_ns >= 2000000000 AND time_ns < 4000000000";
    for kind in &kinds {
        choose(&mut browser, "by-kind", kind);
        let expected = match kind.as_str() {
            "irq" => interrupts(in_irq),
            "syscall" => all - interrupts(in_irq),
            _ => all,
        };
        let shown = samples_of_kind(&mut browser);
        let left_out = browser.text("#by-note").contains("left out");
        assert!(shown == expected || left_out && shown < expected, "{kind}: {shown} of {expected}");
    }
    browser.value(
        "for (const [id, s] of [['from', '2'], ['to', '4']]) { const field = document.getElementById(id); field.value = s; \
         field.dispatchEvent(new Event('change')); }",
    );
    browser.next_frame();
    let (some, some_irq) = (interrupts(picked), interrupts(&format!("{in_irq} AND {picked}")));
    for kind in &kinds {
        choose(&mut browser, "by-kind", kind);
        let note = browser.text("#by-note");
        if matches!(kind.as_str(), "line" | "instruction") {
            assert!(note.starts_with("All of the run"), "{kind}: {note}");
            continue;
        }
        let expected = match kind.as_str() {
            "irq" => some_irq,
            "syscall" => some - some_irq,
            _ => some,
        };
        assert_eq!(samples_of_kind(&mut browser), expected, "{kind}: {note}");
    }
    browser.assert_quiet();
}

#[test]
fn exits_have_the_code_that_they_are_from() {
    let made = fixture::several();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    let rows = browser.rows("#sites-table");
    let seen: Vec<_> = rows.iter().map(|row| (row[0].as_str(), row[4].as_str(), row[5].as_str())).collect();
    assert_eq!(seen[1], ("[hard interrupts]", "1", "9.00 µs"), "{rows:?}");
    assert_eq!((seen.len(), seen[0].1, seen[0].2), (2, "2", "21.0 µs"), "{rows:?}");
    browser.assert_quiet();
}

#[test]
fn exits_have_a_histogram_of_their_times() {
    let made = fixture::several();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    assert_eq!(browser.value("document.querySelectorAll('#latency-chart rect').length"), 2);
    let rows = browser.rows("#latency-table");
    assert_eq!(rows, [["9.22 µs", "10.2 µs", "2"], ["11.3 µs", "12.3 µs", "1"]]);
    assert!(browser.text("#latency-note").starts_with("3 exits"));
    choose(&mut browser, "latency-exit", "0");
    assert_eq!(browser.rows("#latency-table").len(), 2);
    browser.assert_quiet();
}

#[test]
fn exact_data_has_the_longest_delays_and_a_histogram_of_wakeups() {
    let made = fixture::of_exact();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    let tasks = browser.rows("#tasks-table");
    assert!(tasks[0].contains(&"8.00 ms".to_owned()), "{tasks:?}");
    assert_eq!(browser.value("document.querySelectorAll('#wakeups-chart rect').length"), 1);
    // The preemption is not a wake-up.
    assert_eq!(browser.rows("#wakeups-table"), [["983 µs", "1.05 ms", "2"]]);
    let note = browser.text("#wakeups-note");
    assert!(note.starts_with("2 wake-ups") && note.contains("the longest took 1.00 ms"), "{note}");
    browser.assert_quiet();
}

#[test]
fn code_has_the_shares_of_its_instructions() {
    let made = fixture::several();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    assert!(browser.text("#code-function").starts_with("work [prog]"), "{}", browser.text("#code-function"));
    let rows = browser.rows("#code-table");
    let listing = ["push %rbp", "mov %rsp, %rbp", "nop", "ret"];
    let lines: Vec<_> = rows.iter().filter(|row| row.len() == 4).collect();
    assert_eq!(lines.iter().map(|row| &*row[3]).collect::<Vec<_>>(), listing);
    assert_eq!(lines[2][..3], ["100.0 %", "", "0x2004"]);
    assert_eq!(lines[3][..3], ["", "", "0x2005"]);
    assert!(rows.iter().any(|row| row[0] == "; mix.h:7"), "{rows:?}");
    assert!(browser.text("#code-note").contains("50 samples in the function itself"));
    browser.assert_quiet();
}

#[test]
fn a_phase_of_the_boot_picks_its_time() {
    let made = fixture::of_boot();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    let boot = profile::boot::Boot::read(&Profile::open(&made.path).expect("a profile")).expect("a boot");
    let phases =
        "[...document.querySelectorAll('#phases button')].map((phase) => phase.textContent.split(' ')[0])";
    let names: Vec<String> = serde_json::from_value(browser.value(phases)).expect("names");
    let parts = boot.phases.iter().map(|phase| phase.name.as_str());
    let expected: Vec<_> = parts.filter(|name| !matches!(*name, "total" | "kernel")).collect();
    assert_eq!(names, expected);
    browser.click("#phases button");
    assert!(!browser.text("#chosen").starts_with("Whole run"));
    browser.assert_quiet();
}
