//! A user's actions in the page, whose figures then agree with `vprof query`.

use profile::made_up;

use super::browser::Browser;
use super::{fixture, little, number, page_file};
use crate::PageRequest;

/// A profile of 20,000 samples and 500 stacks, its page, and a browser that shows it.
fn opened() -> Option<(tempfile::TempDir, std::path::PathBuf, Browser)> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, 20_000, 500);
    let browser = Browser::open(&page_file(&path, &PageRequest::default()))?;
    Some((directory, path, browser))
}

/// Returns the number of samples in the line about a frame.
fn samples_in(detail: &str) -> u64 {
    let part =
        detail.split(" · ").find_map(|part| part.strip_suffix(" samples")).expect("a number of samples");
    digits(part.rsplit(", ").next().unwrap_or_default().rsplit(' ').next().unwrap_or_default())
}

/// Parses a number of the page.
fn digits(text: &str) -> u64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in {text:?}"))
}

#[test]
fn tables_are_sorted_and_say_what_queries_say() {
    let Some((_directory, path, mut browser)) = opened() else { return };
    let rows = browser.rows("#processes-table");
    assert_eq!(rows[0][0], "[hard interrupts]");
    let interrupts = "SELECT samples FROM v_processes WHERE comm = '[hard interrupts]'";
    assert_eq!(digits(&rows[0][2]), number(&path, interrupts));
    // By name, and again from the other end.
    browser.click("#processes-table th:first-child button");
    assert_eq!(browser.rows("#processes-table")[0][0], "[hard interrupts]");
    browser.click("#processes-table th:first-child button");
    let rows = browser.rows("#processes-table");
    assert_eq!(rows[0][0], "program-63#0");
    assert_eq!(
        digits(&rows[0][2]),
        number(&path, "SELECT samples FROM v_processes WHERE comm = 'program-63'")
    );
    assert_eq!(browser.value("document.querySelector('#processes-table th').ariaSort"), "descending");
    // The functions by their own samples.
    browser.click("#functions-table th:nth-child(4) button");
    let own = digits(&browser.rows("#functions-table")[0][3]);
    let most =
        "SELECT max(samples) FROM (SELECT sum(samples) AS samples FROM v_functions GROUP BY symbol, module)";
    assert_eq!(own, number(&path, most));
    browser.value("document.getElementById('functions-filter').focus()");
    browser.write("kernel_inlined");
    let inlined = "SELECT count(DISTINCT symbol) FROM v_functions WHERE symbol LIKE 'kernel_inlined%'";
    let rows = browser.rows("#functions-table");
    assert!(rows.iter().all(|row| row[0].starts_with("kernel_inlined")), "{rows:?}");
    let shown = browser.text("#functions-count");
    assert!(digits(shown.split(" of ").next().unwrap_or_default()) >= number(&path, inlined), "{shown}");
    browser.assert_quiet();
}

/// Buckets are five hundredths of a hundredth of the run: 10 s have 500 of 20 ms.
#[test]
fn a_picked_time_counts_its_samples() {
    let Some((_directory, path, mut browser)) = opened() else { return };
    let (_, y, left, width) = browser.place("#lane-canvas");
    browser.mouse("mousePressed", (left + width * 0.25, y), 1);
    for part in [0.3, 0.4, 0.5] {
        browser.mouse("mouseMoved", (left + width * part, y), 1);
    }
    browser.mouse("mouseReleased", (left + width * 0.5, y), 0);
    browser.next_frame();
    let value = |browser: &mut Browser, id: &str| {
        let text = browser.value(&format!("document.getElementById('{id}').value"));
        text.as_str().and_then(|text| text.parse::<f64>().ok()).expect("a number")
    };
    let (from, to) = (value(&mut browser, "from"), value(&mut browser, "to"));
    assert!((from - 2.5).abs() < 0.1 && (to - 5.0).abs() < 0.1, "{from} to {to}");
    let picked = format!("time_ns >= {from} * 1000000000 AND time_ns < {to} * 1000000000");
    let all = format!(
        "SELECT count(*) FROM sample s JOIN v_charged USING (id) WHERE s.{}",
        picked.replace("AND ", "AND s.")
    );
    let rows = browser.rows("#processes-table");
    let sum: u64 = rows.iter().map(|row| digits(&row[2])).sum();
    let shown = browser.rows("#processes-table").len();
    assert_eq!(shown, 25, "the first rows");
    assert!(sum < number(&path, &all));
    let detail = browser.text("#frame-detail");
    assert_eq!(samples_in(&detail), number(&path, &all), "{detail}");
    let interrupts = all.replace("WHERE", "WHERE comm = '[hard interrupts]' AND");
    assert_eq!(digits(&rows[0][2]), number(&path, &interrupts));
    // All of it again.
    browser.key("Escape");
    assert!(browser.text("#chosen").starts_with("Whole run"), "{}", browser.text("#chosen"));
    browser.assert_quiet();
}

#[test]
fn the_flame_graph_is_searched_zoomed_and_inverted() {
    let Some((_directory, path, mut browser)) = opened() else { return };
    browser.value("document.body.focus()");
    browser.send("Input.dispatchKeyEvent", serde_json::json!({ "type": "keyDown", "key": "/", "text": "/" }));
    assert_eq!(browser.value("document.activeElement.id"), "search");
    browser.write("kernel_function_99");
    let on_stack = "SELECT count(*) FROM sample s JOIN v_stacks v ON v.id = s.stack JOIN v_charged c ON c.id = s.id \
                    WHERE v.text LIKE '%kernel\\_function\\_99%' ESCAPE '\\'";
    let (found, expected) = (browser.text("#match"), number(&path, on_stack));
    assert!(expected > 0);
    assert_eq!(digits(found.rsplit(" · ").next().unwrap_or_default()), expected, "{found}");
    browser.key("Escape");
    assert_eq!(browser.text("#match"), "");
    // Into the first process, by keys.
    browser.value("document.getElementById('frames').focus()");
    browser.key("ArrowDown");
    assert!(browser.text("#frame-detail").starts_with("[hard interrupts]"));
    browser.key("Enter");
    assert_eq!(browser.value("document.querySelectorAll('#path button').length"), 2);
    let detail = browser.text("#frame-detail");
    let interrupts = number(&path, "SELECT samples FROM v_processes WHERE comm = '[hard interrupts]'");
    assert!(
        detail.contains(
            &format!(", {} samples", interrupts / 1_000 * 1_000 + interrupts % 1_000)
                .replace("1000", "1,000")
        ),
        "{detail}"
    );
    browser.key("Escape");
    assert_eq!(browser.value("document.querySelectorAll('#path button').length"), 0);
    // Inverted and without processes, the widest frame is the function with most own samples.
    browser.click("#invert");
    browser.click("#by-process");
    browser.value("document.getElementById('frames').focus()");
    browser.key("ArrowDown");
    let detail = browser.text("#frame-detail");
    let most = "SELECT max(n) FROM (SELECT sum(samples) AS n FROM v_functions GROUP BY symbol, module)";
    assert_eq!(samples_in(&detail), number(&path, most), "{detail}");
    browser.assert_quiet();
}

#[test]
fn a_search_goes_from_frame_to_frame_and_ends_before_the_zoom() {
    let Some((_directory, _path, mut browser)) = opened() else { return };
    browser.value("document.getElementById('frames').focus()");
    browser.key("ArrowDown");
    browser.key("Enter");
    browser.value("document.getElementById('search').focus()");
    browser.write("kernel");
    let frames = |browser: &mut Browser| {
        let text = browser.text("#match");
        text.rsplit_once("frame ").map(|(_, frame)| frame.to_owned())
    };
    assert_eq!(frames(&mut browser), None);
    browser.key("Enter");
    let first = frames(&mut browser).expect("a frame");
    assert!(first.starts_with("1 of "), "{first}");
    assert!(browser.text("#frame-detail").contains("kernel"));
    browser.click("#next-match");
    assert!(frames(&mut browser).expect("a frame").starts_with("2 of "));
    browser.key("Escape");
    assert_eq!(browser.value("document.getElementById('search').value"), "");
    assert_eq!(browser.value("document.querySelectorAll('#path button').length"), 2);
    browser.key("Escape");
    assert_eq!(browser.value("document.querySelectorAll('#path button').length"), 0);
    browser.assert_quiet();
}

#[test]
fn the_address_has_what_was_chosen() {
    let Some((_directory, _path, mut browser)) = opened() else { return };
    browser.value(
        "for (const [id, s] of [['to', '4'], ['from', '6']]) { const field = document.getElementById(id); \
         field.value = s; field.dispatchEvent(new Event('change')); }",
    );
    browser.click("#processes-table tbody tr:nth-child(2) button");
    browser.click("#invert");
    browser.value("document.getElementById('search').focus()");
    browser.write("kernel_function_99");
    let seen = |browser: &mut Browser| {
        let fields =
            "['from', 'to', 'search', 'flame-process'].map((id) => document.getElementById(id).value)";
        (
            browser.value(fields),
            browser.text("#chosen"),
            browser.text("#match"),
            browser.text("#frame-detail"),
        )
    };
    let chosen = seen(&mut browser);
    assert!(chosen.1.contains("4.00 to 6.00 s"), "{chosen:?}");
    let address = browser.value("location.href");
    let address = address.as_str().expect("an address");
    // A link to a part of the page keeps it.
    browser.click(".bar a[href='#exits']");
    assert_eq!(browser.value("location.href"), address);
    for _ in 0..2 {
        browser.key("Escape");
    }
    assert!(browser.text("#chosen").starts_with("Whole run"));
    assert_eq!(browser.value("location.hash"), "#invert=1");
    browser.value(&format!("location.href = {}", serde_json::json!(address)));
    browser.next_frame();
    browser.next_frame();
    assert_eq!(seen(&mut browser), chosen);
    // What no page has is left out.
    browser.value("location.hash = 'process=nobody&from=a&to=b&frame=x&search=%ff'");
    browser.next_frame();
    browser.next_frame();
    assert!(browser.text("#chosen").starts_with("Whole run"));
    browser.assert_quiet();
}

#[test]
fn a_base_has_a_list_of_changes() {
    let (made, other) = (fixture::plain(), fixture::named("other"));
    let base = profile::Profile::open(&other.path).expect("a profile");
    let request = PageRequest { base: Some(("before".to_owned(), &base)), ..PageRequest::default() };
    let Some(mut browser) = Browser::open(&page_file(&made.path, &request)) else { return };
    let rows = browser.rows("#changed-programs-table");
    let row =
        |name: &str| rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
    // The two differ in the name of one program, so that one time is gone, and the same is new.
    let (gone, new) = (row("other"), row("prog"));
    assert_eq!((&*gone[2], &*gone[4], &*new[1], &*new[4]), ("0 s", "gone", "0 s", "new"));
    assert_eq!(gone[1], new[2]);
    assert_eq!((gone[3].replace('−', ""), new[3].replace('+', "")), (gone[1].clone(), new[2].clone()));
    assert!(rows.iter().filter(|row| row[0] != "other" && row[0] != "prog").all(|row| row[3] == "0 s"));
    // Functions of the kernel did not change, those of the program moved to another file.
    let rows = browser.rows("#changed-functions-table");
    let row = |name: &str, module: &str| {
        let row = rows
            .iter()
            .find(|row| row[0] == name && row[1] == module)
            .unwrap_or_else(|| panic!("{name}: {rows:?}"));
        [&*row[2], &*row[3], &*row[4], &*row[5]]
    };
    let ([in_base, now, change, ratio], [_, moved, ..]) = (row("vfs_read", ""), row("work", "prog"));
    assert_eq!((now, change, ratio), (in_base, "0 s", "1.00 x"));
    assert_eq!(row("work", "other"), [moved, "0 s", &format!("−{moved}"), "gone"]);
    browser.click("#changed-functions-table tbody tr button");
    assert_ne!(browser.text("#match"), "");
    browser.assert_quiet();
}

#[test]
fn the_host_has_the_figures_of_queries() {
    let made = fixture::with_host();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    let count = |sql: &str| number(&made.path, sql);
    let ticks = |place: &str| count(&format!("SELECT count(*) FROM host_sample WHERE place = '{place}'"));
    let sampled = |state: &str| count(&format!("SELECT count(*) FROM sample WHERE vcpu_state = '{state}'"));
    let shown: Vec<u64> = browser.rows("#host-places").iter().map(|row| digits(&row[1])).collect();
    let (kvm, vmm) = (ticks("kvm"), ticks("vmm"));
    assert_eq!(shown, [sampled("guest") - kvm, kvm, vmm, ticks("waiting"), sampled("halted")]);
    let rows = browser.rows("#host-functions-table");
    for (name, kind) in [("main_loop", "VMM"), ("kvm_vcpu_ioctl", "kernel")] {
        let own =
            format!("SELECT sum(ticks) FROM v_host_functions WHERE symbol = '{name}' AND place <> 'guest'");
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
        assert_eq!((digits(&row[3]), row[2].as_str()), (count(&own), kind));
    }
    // The lane below that of the vCPU, on the same axis.
    let (_, _, left, width) = browser.place("#lane-canvas");
    let (_, lane, ..) = browser.place("#lane-names span[title='vCPU 0, host']");
    browser.mouse("mouseMoved", (left + width * 0.5, lane), 0);
    let tip = browser.text("#lane-tip");
    for part in ["100 ticks", "Guest 75.0 %", "KVM, between two stays in the guest 10.0 %", "VMM 5.0 %"] {
        assert!(tip.contains(part), "{part}: {tip}");
    }
    // Guest and host in one flame graph.
    browser.click("#with-host");
    let busy = count("SELECT count(*) FROM v_charged") + vmm;
    assert_eq!(samples_in(&browser.text("#frame-detail")), busy);
    assert_eq!(browser.value("document.getElementById('by-process').disabled"), true);
    browser.value("document.getElementById('search').focus()");
    browser.write("kvm_vcpu_ioctl");
    let found = browser.text("#match");
    let below = count("SELECT count(*) FROM host_sample WHERE stack IN (2, 3)");
    assert_eq!(digits(found.rsplit(" · ").next().unwrap_or_default()), below, "{found}");
    assert!(browser.value("location.hash").as_str().is_some_and(|hash| hash.contains("host=1")));
    browser.assert_quiet();
}

#[test]
fn a_phone_shows_all_of_it() {
    let (made, other) = (fixture::with_host(), fixture::named("other"));
    let base = profile::Profile::open(&other.path).expect("a profile");
    let request = PageRequest { base: Some(("before".to_owned(), &base)), ..PageRequest::default() };
    let Some(mut browser) = Browser::open(&page_file(&made.path, &request)) else { return };
    let size =
        |width| serde_json::json!({ "width": width, "height": 844, "deviceScaleFactor": 2, "mobile": true });
    for (width, scheme) in [(1280, "dark"), (390, "light"), (390, "dark")] {
        browser.send("Emulation.setDeviceMetricsOverride", size(width));
        let media = serde_json::json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.send("Emulation.setEmulatedMedia", media);
        browser.value("document.querySelectorAll('details').forEach((part) => { part.open = true; })");
        // A choice is as wide as its longest text.
        browser.value("document.querySelectorAll('select option').forEach((one) => { one.text = 'long::name'.repeat(9); })");
        browser.next_frame();
        let wide = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 \
                    && !e.closest('.scroll')).map((e) => e.id || e.className || e.tagName)";
        assert_eq!(browser.value(wide), serde_json::json!([]), "{width} {scheme}");
        assert_eq!(browser.value("document.documentElement.scrollWidth > innerWidth"), false);
        // No column is so narrow that a line of its text has one letter.
        let tall = "[...document.querySelectorAll('td, dd')].filter((e) => e.offsetHeight > 200).map((e) => e.textContent)";
        assert_eq!(browser.value(tall), serde_json::json!([]), "{width} {scheme}");
    }
    browser.assert_quiet();
}

#[test]
fn names_of_a_hostile_guest_are_text() {
    let name = "</script><script>window.harm = 1</script><img src=x onerror='window.harm = 1'>\"'\u{202e}\n\u{1b}[2J";
    let made = fixture::named(name);
    let request = PageRequest { title: name.to_owned(), ..PageRequest::default() };
    let Some(mut browser) = Browser::open(&page_file(&made.path, &request)) else { return };
    assert_eq!(browser.value("window.harm ?? null"), serde_json::Value::Null);
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    let rows = browser.rows("#processes-table");
    assert!(rows.iter().any(|row| row[0].starts_with("</script><script>")), "{rows:?}");
    browser.click("#invert");
    browser.click("#processes-table tbody tr:last-child button");
    browser.assert_quiet();
}

#[test]
fn profiles_with_little_in_them_open() {
    for (word, made) in little() {
        let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else {
            return;
        };
        assert_eq!(browser.value("document.getElementById('problem').hidden"), true, "{word}");
        browser.click("#invert");
        browser.click("#zoom-in");
        browser.value("document.getElementById('lanes').focus()");
        browser.key("ArrowRight");
        let limits = browser.text("#limits");
        let expected = match word {
            "empty" => "no samples",
            "one" => "Only 1 sample ",
            _ => "Only 5 samples ",
        };
        assert!(limits.contains(expected), "{word}: {limits}");
        browser.assert_quiet();
    }
}

#[test]
fn a_run_that_goes_on_says_so() {
    let (made, _writer) = fixture::unfinished();
    let Some(mut browser) = Browser::open(&page_file(&made.path, &PageRequest::default())) else { return };
    let limits = browser.text("#limits");
    assert!(limits.contains("was in progress"), "{limits}");
    assert_eq!(samples_in(&browser.text("#frame-detail")), fixture::SAMPLES);
    browser.assert_quiet();
}
