//! The page of HTML: content of its block, and its state in a browser.

mod browser;
mod clicks;
mod parts;

use std::io::Read;
use std::path::Path;

use flate2::read::ZlibDecoder;
use profile::boot::Boot;
use profile::report::{By, Filter, FullReport, HostReport};
use profile::rows::TaskState;
use profile::store::Value as Cell;
use profile::{Profile, made_up};
use serde_json::Value;

use super::fixture::{self, Made};
use crate::{PageError, PageRequest, write_page};

/// The page of a profile.
fn page(path: &Path, request: &PageRequest<'_>) -> String {
    let profile = Profile::open(path).expect("a profile");
    let mut out = Vec::new();
    write_page(&profile, request, &mut out, &mut |_, _| {}).expect("a page");
    String::from_utf8(out).expect("UTF-8")
}

/// Writes the page of a profile next to it.
fn page_file(path: &Path, request: &PageRequest<'_>) -> std::path::PathBuf {
    let file = path.with_extension("html");
    std::fs::write(&file, page(path, request)).expect("room");
    file
}

/// Decodes base64 (RFC 4648, section 4).
fn decoded(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for chunk in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = chunk.iter().fold(0_u32, |bits, &byte| bits << 6 | u32::from(digit(byte)));
        let bits = bits << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    bytes
}

/// The facts in the block of a page, and its sections.
fn block(page: &str) -> (Value, Vec<u8>) {
    let (_, rest) = page.split_once("id=\"profile\">").expect("a block");
    let (text, _) = rest.split_once('<').expect("its end");
    let mut plain = Vec::new();
    ZlibDecoder::new(&decoded(text)[..]).read_to_end(&mut plain).expect("zlib");
    let (length, rest) = plain.split_first_chunk::<4>().expect("a length");
    let (json, sections) = rest.split_at(u32::from_le_bytes(*length) as usize);
    (serde_json::from_slice(json).expect("JSON"), sections.to_vec())
}

/// The numbers of a section.
fn section((facts, bytes): &(Value, Vec<u8>), name: &str) -> Vec<u64> {
    let at =
        |i: usize| usize::try_from(facts["sections"][name][i].as_u64().expect("a number")).expect("small");
    let mut numbers = Vec::new();
    let (mut number, mut shift) = (0_u64, 0);
    for byte in &bytes[at(0)..at(0) + at(1)] {
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            numbers.push(number);
            (number, shift) = (0, 0);
        }
    }
    numbers
}

/// Returns the only number of a query's answer.
fn number(path: &Path, sql: &str) -> u64 {
    let table = Profile::open(path).expect("a profile").query(sql).expect("an answer");
    match table.rows[0][0] {
        Cell::Integer(number) => number.unsigned_abs(),
        ref other => panic!("{other:?} is not a number"),
    }
}

/// Asserts that no name is outside of the block, and that names in it are harmless.
pub(super) fn assert_page(page: &str, name: &str) {
    let (facts, _) = block(page);
    let mut open = vec![&facts];
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => {
                assert!(
                    !text.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)),
                    "{text:?}"
                );
                assert!(text.chars().count() <= 20_000, "{} characters", text.len());
            }
            Value::Array(list) => open.extend(list),
            Value::Object(members) => open.extend(members.values()),
            _ => {}
        }
    }
    // Short ones are in any page.
    if name.len() > 8 {
        let (before, _) = page.split_once("id=\"profile\">").expect("a block");
        let (_, after) = page.rsplit_once("id=\"profile\">").expect("a block");
        let after = after.split_once('<').expect("its end").1;
        assert!(!before.contains(name) && !after.contains(name), "{name:?}");
    }
    assert_eq!(page.matches("<script").count(), 2);
}

#[test]
fn the_block_has_every_sample_once() {
    let made = fixture::plain();
    let block = block(&page(&made.path, &PageRequest::default()));
    let counts: u64 = section(&block, "entryCounts").iter().sum();
    assert_eq!(counts, fixture::SAMPLES);
    assert_eq!(counts, number(&made.path, "SELECT count(*) FROM v_charged"));
    // Weights of cells: the busy part of the exact time.
    let scale = block.0["time"]["weightScale"].as_f64().expect("a number");
    let cells = section(&block, "cells");
    let mut entries = section(&block, "entryCounts").into_iter();
    let seconds: f64 = cells
        .chunks(3)
        .map(|cell| {
            entries.by_ref().take(usize::try_from(cell[1]).expect("few")).sum::<u64>() as f64 * cell[2] as f64
                / scale
        })
        .sum();
    assert!((seconds - fixture::GUEST_NS as f64 / 1e9).abs() < 1e-6, "{seconds}");
    let symbols = block.0["functions"]["symbol"].as_array().expect("a list");
    for name in ["main", "work", "mix", "hash", "vfs_read", "[no frame: page not present]"] {
        assert!(symbols.iter().any(|symbol| symbol == name), "{name} in {symbols:?}");
    }
}

#[test]
fn functions_have_the_report_s_estimates() {
    let made = fixture::plain();
    let (facts, _) = block(&page(&made.path, &PageRequest::default()));
    let row = |name: &str| {
        let symbols = facts["functions"]["symbol"].as_array().expect("a list");
        let id = symbols.iter().position(|symbol| symbol == name).expect("a function");
        let rows = facts["estimates"].as_array().expect("a list");
        rows.iter().find(|row| row[0] == id).expect("a row").clone()
    };
    assert_eq!((row("mix")[1].as_u64(), row("mix")[5].as_u64()), (Some(40), Some(40)));
    assert_eq!((row("work")[1].as_u64(), row("work")[5].as_u64()), (Some(10), Some(76)));
    let share = row("mix")[2].as_f64().expect("a share");
    assert!((share - 40.0 / 85.0).abs() < 1e-5, "{share}");
}

/// Rows of each kind of `--by` are those of the report.
#[test]
fn every_kind_has_the_reports_rows() {
    has_the_reports_rows(&fixture::several().path, &[]);
}

#[test]
fn a_merged_profile_has_virtual_machines_and_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let [one, other, all] =
        ["one", "other", "all"].map(|name| directory.path().join(format!("{name}.vprof")));
    made_up::write_run(&one, 500, 10, 1);
    made_up::write_run(&other, 700, 10, 2);
    profile::merge::merge(&[one, other], &all, false, &mut |_, _| {}).unwrap();
    has_the_reports_rows(&all, &[By::Vm, By::Host]);
}

/// Asserts that a page has the rows of all kinds that it has for each profile, and of `more`.
fn has_the_reports_rows(path: &Path, more: &[By]) {
    let (facts, _) = block(&page(path, &PageRequest::default()));
    let profile = Profile::open(path).expect("a profile");
    // Functions and processes have their own lists; virtual machines and hosts are of merged profiles.
    let listed = |by| !matches!(by, By::Function | By::Instance | By::Vm | By::Host) || more.contains(&by);
    assert_eq!(facts["by"].get("vm").is_some(), more.contains(&By::Vm));
    let kinds = By::ALL.iter().filter(|(_, by)| listed(*by));
    for &(name, by) in kinds {
        let found = FullReport::read(&profile, &Filter::default(), &[by], 0).expect("a report");
        let expected: Vec<_> =
            found.breakdowns[0].rows.iter().map(|row| (row.name.as_str(), row.own.samples)).collect();
        let rows = facts["by"][name]["rows"].as_array().unwrap_or_else(|| panic!("no {name}"));
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row[0].as_str().expect("a name"), row[3].as_u64().expect("a number")))
            .collect();
        assert_eq!(rows, expected, "{name}");
        assert!(!rows.is_empty(), "{name}");
        assert_eq!(facts["by"][name]["leftOut"], 0);
    }
}

#[test]
fn the_hottest_code_has_its_samples() {
    let made = fixture::several();
    let (facts, _) = block(&page(&made.path, &PageRequest::default()));
    let code = facts["code"].as_array().expect("a list");
    assert_eq!((code.len(), &code[0]["symbol"], &code[0]["samples"]), (1, &"work".into(), &50.into()));
    let lines = code[0]["lines"].as_array().expect("a list");
    let texts: Vec<_> = lines.iter().map(|line| (line[1].as_str(), line[3].as_u64())).collect();
    let at = |address, own| (Some(address), Some(own));
    assert_eq!(texts, [at("0x2000", 0), at("0x2001", 0), at("0x2004", 50), at("0x2005", 0)]);
    assert_eq!(
        block(&page(&fixture::plain().path, &PageRequest::default())).0["code"],
        serde_json::json!([])
    );
}

/// The bar of a task has its whole life.
#[test]
fn every_state_of_tasks_has_its_part_of_the_bar() {
    let script = include_str!("../../html/page/script/tasks.js");
    for state in TaskState::ALL {
        let name = state.name();
        assert!(script.contains(&format!("['{name}', ")), "tasks.js lacks the state {name}");
    }
}

#[test]
fn a_boot_has_its_phases_and_a_run_without_one_none() {
    let boot = fixture::of_boot();
    let phases = |path: &Path| block(&page(path, &PageRequest::default())).0["phases"].clone();
    let read = Boot::read(&Profile::open(&boot.path).expect("a profile")).expect("a boot");
    let expected = read.phase("decompression").expect("a phase");
    let found = phases(&boot.path);
    assert_eq!((&found[0][0], &found[0][2]), (&"decompression".into(), &expected.to_s.into()));
    assert!(found.as_array().expect("a list").iter().all(|phase| phase[0] != "total"));
    assert_eq!(phases(&fixture::several().path), serde_json::json!([]));
}

#[test]
fn a_base_brings_its_stacks() {
    let (made, other) = (fixture::plain(), fixture::named("other"));
    let base = Profile::open(&other.path).expect("a profile");
    let request = PageRequest { base: Some(("before".to_owned(), &base)), ..PageRequest::default() };
    let block = block(&page(&made.path, &request));
    assert_eq!(block.0["base"]["name"], "before");
    assert_eq!(block.0["base"]["samples"], fixture::SAMPLES);
    let counts: u64 = section(&block, "base").chunks(4).map(|leaf| leaf[2]).sum();
    assert_eq!(counts, fixture::SAMPLES);
    // A process that only the base has does not have a row with samples.
    let rows = block.0["processes"].as_array().expect("rows");
    let other = rows.iter().find(|row| row["comm"] == "other").expect("a row");
    assert_eq!(other["samples"], 0);
}

#[test]
fn the_host_has_the_reports_figures() {
    let made = fixture::with_host();
    let block = block(&page(&made.path, &PageRequest::default()));
    let profile = Profile::open(&made.path).expect("a profile");
    let report = HostReport::read(&profile, &Filter::default()).expect("a report");
    // As text: it loses the last digit of some numbers.
    let text = serde_json::to_string(&report).expect("JSON");
    assert_eq!(block.0["host"], serde_json::from_str::<Value>(&text).expect("JSON"));
    let leaves: u64 = section(&block, "host").chunks(4).map(|leaf| leaf[2]).sum();
    let in_vmm = number(&made.path, "SELECT count(*) FROM host_sample WHERE place = 'vmm'");
    assert_eq!(leaves, fixture::SAMPLES + in_vmm);
    for place in &report.places {
        let lane = block.0["microstates"][0]["places"][place.place.name()].as_array().expect("a column");
        let ticks: u64 = lane.iter().filter_map(Value::as_u64).sum();
        assert_eq!(ticks, place.estimate.samples, "{place:?}");
    }
    let plain = fixture::plain();
    let (facts, _) = self::block(&page(&plain.path, &PageRequest::default()));
    assert_eq!((facts.get("host"), &facts["microstates"][0]["places"]), (None, &Value::Null));
}

#[test]
fn the_page_itself_chooses_processes() {
    let made = fixture::plain();
    let profile = Profile::open(&made.path).expect("a profile");
    let filter = Filter { process: vec!["prog".to_owned()], ..Filter::default() };
    let request = PageRequest { filter, ..PageRequest::default() };
    let error = write_page(&profile, &request, &mut Vec::new(), &mut |_, _| {}).expect_err("no page");
    assert!(matches!(error, PageError::Choice("--process")), "{error}");
}

#[test]
fn a_part_of_the_time_has_its_samples_alone() {
    let made = fixture::plain();
    let filter = Filter { from_ns: Some(10_000_000), to_ns: Some(30_000_000), ..Filter::default() };
    let block = block(&page(&made.path, &PageRequest { filter, ..PageRequest::default() }));
    let counts: u64 = section(&block, "entryCounts").iter().sum();
    let sql = "SELECT count(*) FROM sample WHERE time_ns >= 10000000 AND time_ns < 30000000";
    assert_eq!((counts, counts), (20, number(&made.path, sql)));
    assert_eq!(block.0["time"]["beginNs"], 10_000_000);
}

/// Profiles with little in them, with a word for each.
fn little() -> [(&'static str, Made); 3] {
    [("empty", fixture::empty()), ("one", fixture::of_one()), ("boot", fixture::of_boot())]
}
