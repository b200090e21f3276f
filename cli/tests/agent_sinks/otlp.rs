//! Receivers of OpenTelemetry profiles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::Value;
use testkit::{HttpAnswer, HttpReceiver, python_packages};

use crate::support::{stderr, stdout, vprof};
use crate::{TestSpool, not_sent};

/// OpenTelemetry's messages.
const OTLP: [&str; 1] = ["opentelemetry-proto==1.45.2"];
/// Decodes requests by OpenTelemetry's messages.
fn decode(programs: &Path, directory: &Path, bodies: &[Vec<u8>]) -> Vec<Value> {
    let mut command = Command::new(programs.join("python3"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent_sinks/otlp.py"));
    for (number, body) in bodies.iter().enumerate() {
        let path = directory.join(format!("{number}.pb"));
        fs::write(&path, body).unwrap();
        command.arg(path);
    }
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

/// Returns the rows of a query by their first column.
fn query(profile: &Path, sql: &str) -> BTreeMap<String, u64> {
    let output = vprof(["query"]).arg(profile).args([sql, "--csv"]).output().unwrap();
    let row = |line: &str| {
        let (name, number) = line.rsplit_once(',').unwrap();
        (name.trim_matches('"').to_owned(), number.parse().unwrap())
    };
    stdout(&output).lines().skip(1).map(row).collect()
}

/// Returns the folded stacks of a profile, the innermost function first.
fn folded(profile: &Path, count: &str) -> BTreeMap<String, u64> {
    let arguments = ["--format", "folded", "--root", "none", "--count", count, "-o", "-"];
    let output = vprof(["export"]).arg(profile).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let stack = |line: &str| {
        let (stack, number) = line.rsplit_once(' ').unwrap();
        (stack.rsplit(';').collect::<Vec<_>>().join(";"), number.parse().unwrap())
    };
    stdout(&output).lines().map(stack).collect()
}

fn by_innermost(stacks: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (stack, number) in stacks {
        *sums.entry(stack.split(';').next().unwrap().to_owned()).or_default() += number;
    }
    sums
}

#[test]
fn a_receiver_of_profiles_has_what_queries_have() {
    let Some(programs) = python_packages(&OTLP) else { return };
    let spool = TestSpool::new();
    let window = spool.add(0, &["web", "db"]);
    let receiver = HttpReceiver::new(|number, _| match number {
        // The second machine's request is lost on the way.
        1 => HttpAnswer::Status(500, "", Vec::new()),
        _ => HttpAnswer::Status(200, "Content-Type: application/x-protobuf\r\n", Vec::new()),
    });
    let sink = format!("otlp+http://{}", receiver.address);
    let secret = [("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc,X-Scope=1")];
    not_sent(TestSpool::send(&window, &sink, &secret), &["has not taken the profile of db", "status 500"]);
    let sent = TestSpool::send(&window, &sink, &secret);
    assert!(sent.status.success(), "{}", stderr(&sent));
    // The first machine is not sent again.
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Basic abc"));
    let totals: Value = serde_json::from_str(&stdout(&sent)).unwrap();
    assert_eq!((totals["sent"].as_u64(), totals["profiles"].as_u64()), (Some(1), Some(2)));
    assert_eq!(TestSpool::send(&window, &sink, &[]).status.code(), Some(0));
    assert_eq!(receiver.requests().len(), 3, "there is nothing left to send");

    let bodies: Vec<Vec<u8>> = [0, 2]
        .iter()
        .map(|number: &usize| {
            let mut plain = Vec::new();
            GzDecoder::new(requests[*number].body.as_slice()).read_to_end(&mut plain).unwrap();
            plain
        })
        .collect();
    let rows = decode(&programs, spool.0.path(), &bodies);
    for (machine, name) in [("id0", "web"), ("id1", "db")] {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["machine"]["vm.id"] == machine).collect();
        assert_machine(&rows, name);
        assert_sums(&rows, &window.join(format!("{machine}-0.vprof")));
        assert_frames(&rows);
    }
}

/// Asserts that all rows are of the machine of this name.
fn assert_machine(rows: &[&Value], name: &str) {
    let texts = |key: &str| {
        rows.iter().map(|row| row["machine"][key].as_str().unwrap_or("")).collect::<BTreeSet<_>>()
    };
    for (key, value) in [
        ("service.name", name),
        ("host.name", "alpha"),
        ("vm.vmm", "qemu"),
        ("team", "db"),
        ("os.type", "linux"),
    ] {
        assert_eq!(texts(key), BTreeSet::from([value]), "{key}");
    }
    assert!(rows.iter().all(|row| row["machine"]["vprof.inclusion"] == 0.5 && row["scope"] == "vprof"));
}

/// Asserts that sums of the rows are those of queries and folded stacks of the profile.
fn assert_sums(rows: &[&Value], profile: &Path) {
    let sum = |unit: &str, key: &dyn Fn(&Value) -> String| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for row in rows.iter().filter(|row| row["unit"] == unit) {
            let [value] = row["value"].as_array().unwrap().as_slice() else { panic!("{row}") };
            *sums.entry(key(row)).or_default() += value.as_u64().unwrap();
        }
        sums
    };
    // Per program and mode, and per innermost function.
    let owner = |row: &Value| {
        format!(
            "{} {}",
            row["attributes"]["process.executable.name"].as_str().unwrap(),
            row["attributes"]["cpu.mode"].as_str().unwrap()
        )
    };
    let per_process = sum("count", &owner);
    let expected = query(
        profile,
        "SELECT comm || ' ' || mode, count(*) FROM v_charged WHERE comm IS NOT NULL GROUP BY 1",
    );
    assert!(expected.len() > 1, "{expected:?}");
    assert_eq!(per_process, expected);
    let vcpu = |row: &Value| row["attributes"]["cpu.logical_number"].to_string();
    assert_eq!(sum("count", &vcpu), query(profile, "SELECT vcpu, count(*) FROM v_charged GROUP BY 1"));
    let stacks = folded(profile, "samples");
    let innermost = |row: &Value| row["stack"][0].as_str().unwrap_or("").to_owned();
    assert_eq!(sum("count", &innermost), by_innermost(&stacks));
    let times = by_innermost(&folded(profile, "time"));
    let own_times = sum("nanoseconds", &innermost);
    assert_eq!(own_times.len(), times.len());
    for (function, ns) in own_times {
        // Each stack is rounded to a microsecond there, to a nanosecond here.
        let (us, most) = (times[&function], stacks.len() as u64);
        assert!((ns / 1_000).abs_diff(us) <= most && ns > 100_000, "{function}: {ns}, {us}");
    }
    let whole = |row: &Value| {
        let names = row["stack"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
        names.collect::<Vec<_>>().join(";")
    };
    assert_eq!(sum("count", &whole), stacks, "the innermost function first");
}

/// Asserts that each frame has a mapping or none, and each row a time and an id.
fn assert_frames(rows: &[&Value]) {
    for row in rows {
        let frames = row["frames"].as_array().unwrap();
        assert!(frames.iter().all(|frame| frame["inside"] == true || frame["file"] == ""), "{row}");
        assert!(row["time"].as_u64().unwrap() > 0 && row["id"].as_str().unwrap().len() == 32);
    }
    let kinds = |kind: &str| {
        rows.iter().any(|row| {
            row["frames"].as_array().unwrap().iter().any(|frame| frame["profile.frame.type"] == kind)
        })
    };
    assert!(kinds("kernel") && kinds("native"));
}
