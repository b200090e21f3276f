//! `merge`, and the commands that read its profile.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use profile::made_up;
use serde_json::Value;
use support::{refused, run, stderr, stdout};

const NAMES: [&str; 3] = ["db", "mail", "web"];
const SAMPLES: u64 = 20_000;

/// Profiles of three machines, and their merged one.
struct Machines(tempfile::TempDir);

impl Machines {
    fn new() -> Self {
        let machines = Self(tempfile::tempdir().unwrap());
        for (name, number) in NAMES.into_iter().zip(1..) {
            made_up::write_run(&machines.profile(name), SAMPLES * number, 40, number);
        }
        let output = machines.merge(&NAMES, "all", &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        machines
    }

    fn profile(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.vprof"))
    }

    fn text(&self, name: &str) -> String {
        self.profile(name).to_str().unwrap().to_owned()
    }

    fn merge(&self, names: &[&str], output: &str, more: &[&str]) -> std::process::Output {
        let sources = names.iter().map(|name| self.text(name));
        let output = ["-o".to_owned(), self.text(output)];
        let more = more.iter().map(|word| (*word).to_owned());
        run(std::iter::once("merge".to_owned()).chain(sources).chain(output).chain(more))
    }

    fn json(&self, command: &[&str], name: &str, more: &[&str]) -> Value {
        let path = self.text(name);
        let words = [command, &[path.as_str()], more, &["--json"]].concat();
        let output = run(&words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    }
}

/// Samples of each row by the keys.
fn sums(report: &Value, key: impl Fn(&Value) -> Option<String>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in report["by"]["rows"].as_array().unwrap() {
        if let Some(key) = key(row) {
            *sums.entry(key).or_default() += row["self"]["samples"].as_u64().unwrap();
        }
    }
    sums
}

#[test]
fn the_result_is_the_sum_of_its_parts() {
    let machines = Machines::new();
    let name = |row: &Value| Some(row["name"].as_str().unwrap().to_owned());
    let all = sums(&machines.json(&["report"], "all", &["--by", "function"]), name);
    let mut parts = BTreeMap::new();
    for machine in NAMES {
        let own = sums(&machines.json(&["report"], machine, &["--by", "function"]), name);
        let chosen = sums(&machines.json(&["report"], "all", &["--by", "function", "--vm", machine]), name);
        assert_eq!(own, chosen);
        own.into_iter().for_each(|(name, samples)| *parts.entry(name).or_default() += samples);
    }
    assert_eq!(all, parts);
    let by = machines.json(&["report"], "all", &["--by", "vm"]);
    let expected = NAMES.into_iter().zip(1..).map(|(name, number)| (name.to_owned(), SAMPLES * number));
    assert_eq!(sums(&by, name), expected.collect());
    // The same by SQL.
    let path = machines.text("all");
    let sql = "SELECT vm, sum(samples) FROM v_processes GROUP BY vm ORDER BY vm";
    let answer = stdout(&run(["query", &path, sql, "--csv"]));
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines, ["vm,sum(samples)", "db,20000", "mail,40000", "web,60000"]);
    let difference = machines.json(&["diff"], "db", &[&path, "--by", "process"]);
    assert!(difference["rows"].as_array().unwrap().len() > 10, "{difference}");
}

#[test]
fn every_command_that_reads_profiles_reads_it() {
    let machines = Machines::new();
    let path = machines.text("all");
    for command in [
        &["report"][..],
        &["report", "--by", "vm,process"],
        &["report", "--by", "host"],
        &["report", "--by", "instance", "--vm", "w*"],
        &["report", "--callers", "user_function_50"],
        &["stat"],
        &["query", ".tables"],
    ] {
        let (first, rest) = command.split_first().unwrap();
        let output = match *first {
            "query" => run(["query", &path, rest[0]]),
            _ => run([&[*first, path.as_str()], rest].concat()),
        };
        assert!(output.status.success() && stderr(&output).is_empty(), "{command:?}: {}", stderr(&output));
    }
    let text = stdout(&run(["report", &path, "--by", "instance", "-n", "0"]));
    assert!(text.contains("web/program-07#0"), "{text}");
    let stat = stdout(&run(["stat", &path]));
    assert!(stat.contains("mail/1") && stat.contains("use the profile of that machine"), "{stat}");
    for name in
        ["a.folded", "a.svg", "a.json", "a.pb.gz", "a.pftrace", "a.perf", "a.csv", "a.parquet", "a.html"]
    {
        let file = machines.0.path().join(name);
        let output = run(["export", &path, "-o", file.to_str().unwrap()]);
        assert!(output.status.success(), "{name}: {}", stderr(&output));
        assert!(fs::metadata(&file).unwrap().len() > 1_000, "{name}");
    }
    let csv = fs::read_to_string(machines.0.path().join("a.csv")).unwrap();
    assert!(csv.lines().nth(1).unwrap().contains(",db,"), "{:?}", csv.lines().nth(1));
    assert_eq!(csv.lines().count() as u64, 1 + 6 * SAMPLES);
    let perf = fs::read_to_string(machines.0.path().join("a.perf")).unwrap();
    assert!(perf.contains("\nweb/program-"), "{:.400}", perf);
}

#[test]
fn refusals_are_one_sentence() {
    let machines = Machines::new();
    let exists = |path: &Path| assert!(!path.exists(), "{}", path.display());
    refused(&machines.merge(&NAMES, "all", &[]), 1, &["exists", "--force"]);
    assert!(machines.merge(&NAMES, "all", &["--force", "-q"]).status.success());
    let one = machines.merge(&["db"], "one", &[]);
    assert!(one.status.code() == Some(2) && stderr(&one).contains("2 values required"), "{}", stderr(&one));
    refused(&machines.merge(&["db", "all"], "again", &[]), 1, &["merged already"]);
    refused(&machines.merge(&["db", "db"], "again", &[]), 1, &["same run"]);
    refused(&machines.merge(&["db", "absent"], "again", &[]), 1, &["does not exist"]);
    exists(&machines.profile("again"));
    let path = machines.text("all");
    for (words, says) in [
        (&["report", &path, "--boot"][..], "has no boot"),
        (&["report", &path, "--exact"], "use the profile of that machine"),
        (&["report", &path, "--states"], "use the profile of that machine"),
        (&["report", &path, "--memory-use"], "has no readings of memory"),
        (&["report", &path, "--trips"], "has no watched functions"),
        (&["rusage", &path], "has no CPU accounting of a guest"),
        (&["report", &path, "--vm", "webb"], "near are web"),
        (&["report", &machines.text("db"), "--vm", "db"], "is of one virtual machine"),
    ] {
        refused(&run(words), 1, &[says]);
    }
    let left: Vec<_> =
        fs::read_dir(machines.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}
