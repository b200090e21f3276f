//! The documentation says what the tool does: docs/json.md against a report, docs/profile.md against the schema.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sampler::profile::{Table, Value as Cell};
use sampler::report::{By, Direction, ModeGroup, Request, TreeRequest};
use sampler::simulate::{Options, Study, study};
use sampler::{Filter, Profile, Report, bench};
use serde_json::Value;

fn document(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    document.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

fn strings(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("the schema uses the type {other}"),
    }
}

/// The part of JSON Schema that docs/json.md uses. Stricter in one point: what is not described must not be there.
fn check(value: &Value, schema: &Value, at: &str) {
    match &schema["type"] {
        Value::String(name) => assert!(is_type(value, name), "{at} is not of type {name}: {value}"),
        names @ Value::Array(_) => {
            assert!(
                strings(names).iter().any(|name| is_type(value, name)),
                "{at} is none of {names}: {value}"
            );
        }
        _ => {
            let allowed =
                schema["enum"].as_array().unwrap_or_else(|| panic!("{at} has neither type nor enum"));
            assert!(allowed.contains(value), "{at} is none of {allowed:?}: {value}");
        }
    }
    if let (Some(object), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        let (found, described) = (object.keys().collect::<BTreeSet<_>>(), properties.keys().collect());
        assert_eq!(found, described, "keys of {at}");
        assert_eq!(strings(&schema["required"]), properties.keys().map(String::as_str).collect(), "{at}");
        for (key, value) in object {
            check(value, &properties[key], &format!("{at}.{key}"));
        }
    }
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        check(item, &schema["items"], &format!("{at}[{n}]"));
    }
}

fn profile(directory: &Path) -> Profile {
    let path = directory.join("made-up.vprof");
    bench::write_profile_with_stacks(&path, true, 30_000, 500).expect("a profile");
    Profile::open(&path).expect("a profile")
}

#[test]
fn a_report_fits_its_schema() {
    let text = document("json.md");
    let schema: Value = serde_json::from_str(blocks(&text, "json")[0]).expect("the schema is JSON");
    let directory = tempfile::tempdir().expect("a directory");
    let profile = profile(directory.path());
    let report = Report::read(&profile, &Filter::default()).expect("a report");
    assert!(!report.vcpus.is_empty() && !report.functions.is_empty() && report.stacks.kernel.walks > 0);
    let json = serde_json::to_value(&report).expect("JSON");
    check(&json, &schema, "report");
    let filter = Filter {
        process: Some("program-07".into()),
        modes: vec![ModeGroup::User],
        vcpu: Some(1),
        from_ns: Some(1),
        ..Filter::default()
    };
    let tree =
        |direction| Request::Tree(TreeRequest { symbol: "user_function_50".into(), direction, depth: 3 });
    let requests = By::ALL.map(|(_, by)| Request::By(by)).into_iter().chain([
        Request::Summary,
        tree(Direction::Callers),
        tree(Direction::Callees),
    ]);
    for request in requests {
        for filter in [&filter, &Filter::default()] {
            let part = Report::read_with(&profile, filter, &request).expect("a report");
            check(&serde_json::to_value(&part).expect("JSON"), &schema, "report");
        }
    }
    let back: Report = serde_json::from_value(json).expect("a report");
    assert_eq!(back.samples, report.samples);
}

#[test]
fn a_simulation_fits_its_schema() {
    let text = document("json.md");
    let block = text.split("# `vprof simulate --json`\n").nth(1).expect("a section");
    let schema: Value = serde_json::from_str(blocks(block, "json")[0]).expect("the schema is JSON");
    let result = study(&Options { seed: 1, runs: 2, clock: None }, |_, _| {});
    let json = serde_json::to_value(&result).expect("JSON");
    check(&json, &schema, "study");
    let back: Study = serde_json::from_value(json).expect("a study");
    assert_eq!((back.seed, back.runs, back.rows.len()), (1, 2, result.rows.len()));
}

fn text(cell: &Cell) -> &str {
    match cell {
        Cell::Text(text) => text,
        other => panic!("{other:?} is no text"),
    }
}

#[test]
fn every_column_is_described() {
    let document = document("profile.md");
    let directory = tempfile::tempdir().expect("a directory");
    let profile = profile(directory.path());
    let Table { rows, .. } = profile
        .query("SELECT s.type, s.name, c.name FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type <> 'index'")
        .expect("an answer");
    assert!(rows.len() > 60, "{} columns", rows.len());
    for row in &rows {
        let (kind, name, column) = (text(&row[0]), text(&row[1]), format!("`{}`", text(&row[2])));
        let described = if kind == "table" {
            let section = document.split(&format!("### `{name}`\n")).nth(1).expect("a section");
            section.split("\n### ").next().unwrap_or_default().contains(&format!("| {column} |"))
        } else {
            document.lines().any(|line| line.starts_with(&format!("| `{name}` |")) && line.contains(&column))
        };
        assert!(described, "{column} of {name} is not described");
    }
    let modes = profile.query("SELECT name FROM mode").expect("an answer").rows;
    assert!(modes.iter().all(|row| document.contains(&format!("| `{}` |", text(&row[0])))));
}

#[test]
fn the_example_queries_work() {
    let document = document("profile.md");
    let directory = tempfile::tempdir().expect("a directory");
    let profile = profile(directory.path());
    let queries = blocks(&document, "sql");
    assert!(queries.len() >= 5);
    for sql in queries {
        profile.query(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}
