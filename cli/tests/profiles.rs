//! `report` and `query` on a profile made here, and on files that are not profiles.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use profile::store::SCHEMA_VERSION;
use serde_json::Value;
use support::{refused, run, stderr, stdout, write_profile};

/// A profile in a directory.
struct TestProfile(tempfile::TempDir);

impl TestProfile {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_profile(&directory.path().join("p.vprof"));
        Self(directory)
    }

    fn path(&self) -> String {
        self.0.path().join("p.vprof").to_str().unwrap().to_owned()
    }

    fn report(&self, more: &[&str]) -> std::process::Output {
        let path = self.path();
        run(["report", &path].iter().chain(more))
    }

    fn annotate(&self, arguments: &[&str]) -> std::process::Output {
        let path = self.path();
        run(std::iter::once("annotate").chain(arguments.iter().copied()).chain([path.as_str()]))
    }

    fn query(&self, sql: &str, more: &[&str]) -> std::process::Output {
        let path = self.path();
        run(["query", &path, sql].iter().chain(more))
    }
}

#[test]
fn the_text_report_names_processes_and_functions() {
    let profile = TestProfile::new();
    let output = profile.report(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("800.0 ms of Linux 6.1.0-test on 2 vCPUs, host: kvm\n"), "{text}");
    assert!(text.contains("800 samples (400 not idle), 4 lost"), "{text}");
    assert!(text.contains("75.0 %") && text.contains("evil"), "{text}");
    assert!(text.contains("do_work"), "{text}");
    assert!(text.contains("      300  user    [user] [evil\\x1b[2J,\"x\"]"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn the_json_report_is_one_object() {
    let profile = TestProfile::new();
    let report: Value = serde_json::from_slice(&profile.report(&["--json"]).stdout).unwrap();
    assert_eq!(report["host"], "kvm");
    assert_eq!(report["samples"], 800);
    assert_eq!(report["vcpus"].as_array().unwrap().len(), 2);
    let shares: f64 =
        report["processes"].as_array().unwrap().iter().map(|p| p["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    let calm: Value =
        serde_json::from_slice(&profile.report(&["--json", "--process", "calm"]).stdout).unwrap();
    assert_eq!(calm["processes"].as_array().unwrap().len(), 1);
    assert_eq!(calm["processes"][0]["share"], 0.25);
    let early: Value =
        serde_json::from_slice(&profile.report(&["--json", "--time", "..400ms", "--vcpu", "1"]).stdout)
            .unwrap();
    assert_eq!(early["samples"], 200);
}

#[test]
fn tables_by_everything() {
    let profile = TestProfile::new();
    for by in [
        "function",
        "instruction",
        "line",
        "process",
        "instance",
        "thread",
        "cgroup",
        "module",
        "irq",
        "syscall",
    ] {
        let output = profile.report(&["--by", by]);
        assert!(output.status.success(), "{by}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains(": shares of the time that was not idle, by 400 samples\n"), "{text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        let report: Value = serde_json::from_slice(&profile.report(&["--by", by, "--json"]).stdout).unwrap();
        assert_eq!(report["by"]["by"], by);
        let own = |row: &Value| row["self"]["samples"].as_u64().unwrap();
        let rows: u64 = report["by"]["rows"].as_array().unwrap().iter().map(own).sum();
        assert_eq!(rows + report["by"]["outside"]["samples"].as_u64().unwrap(), 400);
    }
    let text = stdout(&profile.report(&["--by", "function", "--mode", "kernel"]));
    assert!(
        text.contains("25.0 %") && text.contains("kernel  do_work\n") && !text.contains("[user]"),
        "{text}"
    );
    let text = stdout(&profile.report(&["--by", "thread", "--process", "calm"]));
    assert!(text.contains("  100  calm#0   calm\n"), "{text}");
    let text = stdout(&profile.report(&["--by", "irq"]));
    assert!(text.ends_with("  100.0 %  outside of interrupts\n"), "{text}");
    let text = stdout(&profile.report(&["--mode", "irq"]));
    assert!(text.contains("\nNo sample fits.\n"), "{text}");
    let text = stdout(&profile.report(&["--mode", "irq", "--process", "calm", "--by", "function"]));
    assert!(text.ends_with("\nNo sample fits: interrupts are charged to no process.\n"), "{text}");
}

#[test]
fn callers_and_annotations_are_shown() {
    let profile = TestProfile::new();
    let text = stdout(&profile.report(&["--callers", "do_work"]));
    assert!(text.contains("Callers of do_work: on the stack of 100 samples\n"), "{text}");
    assert!(text.contains("25.0 %  100.0 %      100  do_work\n"), "{text}");
    let text = stdout(&profile.report(&["--callees", "do_work", "--process", "evil\x1b[2J,\"x\""]));
    assert!(text.ends_with("No chosen sample has do_work on its stack.\n"), "{text}");
    let output = profile.annotate(&["do_work"]);
    let text = stdout(&output);
    assert!(text.contains("100.0 %         0xffffffff81000000"), "{text}{}", stderr(&output));
    let listing: Value = serde_json::from_slice(&profile.annotate(&["do_work", "--json"]).stdout).unwrap();
    assert_eq!((&listing["symbol"], &listing["self"]["samples"]), (&"do_work".into(), &100.into()));
    assert_eq!(listing["lines"][0]["address"], "0xffffffff81000000");
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md")).unwrap();
    let described = |name: &str| {
        let (_, after) = document.split_once(&format!("interface {name} {{")).expect("a type");
        let members = after.split_once("\n}").expect("its end").0.lines().skip(1);
        let members = members.map(str::trim).filter(|line| !line.starts_with("//"));
        members.filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect::<Vec<_>>()
    };
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&listing), described("Annotation"));
    assert_eq!(keys(&listing["lines"][0]), described("CodeLine"));
}

#[test]
fn rows_are_sorted_and_limited() {
    let profile = TestProfile::new();
    let text = stdout(&profile.report(&["--sort", "pid", "-n", "1"]));
    assert!(text.contains("evil") && !text.contains("calm"), "{text}");
    assert!(text.contains("in 1 more; -n 0 shows all"), "{text}");
    let text = stdout(&profile.report(&["--sort", "kernel"]));
    assert!(text.find("calm").unwrap() < text.find("evil").unwrap(), "{text}");
}

#[test]
fn queries_answer_as_table_csv_and_json() {
    let profile = TestProfile::new();
    let sql = "SELECT comm, pid, NULL AS void, 0.5 AS half, x'00ff' AS blob FROM instance ORDER BY pid";
    assert_eq!(
        stdout(&profile.query(sql, &["--csv"])),
        "comm,pid,void,half,blob\r\n\"evil\\x1b[2J,\"\"x\"\"\",100,,0.5,00ff\r\ncalm,101,,0.5,00ff\r\n"
    );
    // Text that a spreadsheet takes for a formula, and numbers that it does not.
    let formula = "SELECT '=1' AS text, -1 AS number, -0.5 AS half";
    assert_eq!(stdout(&profile.query(formula, &["--csv"])), "text,number,half\r\n'=1,-1,-0.5\r\n");
    assert_eq!(stdout(&profile.query(formula, &["--csv", "--raw"])), "text,number,half\r\n=1,-1,-0.5\r\n");
    assert_eq!(profile.query(formula, &["--raw"]).status.code(), Some(2));
    let rows: Value = serde_json::from_slice(&profile.query(sql, &["--json"]).stdout).unwrap();
    assert_eq!(rows[1]["comm"], "calm");
    assert_eq!(rows[1]["pid"], 101);
    assert_eq!(rows[1]["void"], Value::Null);
    assert_eq!(
        rows[0].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["comm", "pid", "void", "half", "blob"]
    );
    let table = stdout(&profile.query(sql, &[]));
    assert!(table.starts_with("comm"), "{table}");
    assert!(table.contains("evil\\x1b[2J,\"x\"  100"), "{table}");
    assert_eq!(stdout(&profile.query("SELECT 1 AS one WHERE 0", &["--csv"])), "one\r\n");
    assert_eq!(stdout(&profile.query("SELECT 1 AS one WHERE 0", &["--json"])), "[]\n");
}

#[test]
fn wrong_queries_get_one_sentence() {
    let profile = TestProfile::new();
    refused(&profile.query("SELEC 1", &[]), 1, &["syntax error"]);
    refused(&profile.query("SELECT * FROM void", &[]), 1, &["no such table: void"]);
    refused(&profile.query("DELETE FROM sample", &[]), 1, &["would change"]);
    refused(&profile.query("SELECT 1; SELECT 2", &[]), 1, &["exactly one"]);
    refused(&profile.query("", &[]), 1, &["exactly one"]);
    refused(&profile.report(&["--process", "nobody"]), 1, &["no process nobody"]);
    refused(&profile.report(&["--vcpu", "9"]), 1, &["no vCPU 9"]);
    refused(&profile.report(&["--cpu", "9"]), 1, &["no vCPU 9"]);
    refused(&profile.report(&["--process", "evil"]), 1, &["no process evil: near are evil\u{fffd}[2J"]);
    refused(&profile.report(&["--instance", "calm"]), 1, &["no instance calm: near are calm#0"]);
    refused(&profile.report(&["--cgroup", "docker"]), 1, &["no control group docker", "--by cgroup"]);
    refused(&profile.report(&["--thread", "worker"]), 1, &["no thread worker", "--by thread"]);
    refused(&profile.report(&["--symbol", "do_wrk"]), 1, &["no function do_wrk: near are do_work"]);
    refused(&profile.report(&["--callers", "do_wrk"]), 1, &["no function do_wrk: near are do_work"]);
    refused(&profile.annotate(&["do_wrk"]), 1, &["no function do_wrk: near are do_work"]);
    for (arguments, word) in [
        (["--by", "colour"], "possible values: function"),
        (["--mode", "fast"], "possible values: user"),
        (["--depth", "0"], "1..=100"),
        (["--time", "5"], "2s..5s"),
        (["--sort", "size"], "possible values: self"),
    ] {
        let output = profile.report(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
    refused(&profile.report(&["--time", "5s.."]), 1, &["after the end"]);
}

#[test]
fn files_that_are_not_profiles() {
    let profile = TestProfile::new();
    let directory = profile.0.path();
    let report = |name: &str| run(["report".as_ref(), directory.join(name).as_os_str()]);
    let whole = fs::read(profile.path()).unwrap();
    refused(&report("gone"), 1, &["gone does not exist"]);
    fs::write(directory.join("empty"), b"").unwrap();
    refused(&report("empty"), 1, &["is empty"]);
    fs::write(directory.join("text"), b"hello").unwrap();
    refused(&report("text"), 1, &["text is not a vprof profile"]);
    refused(&run(["report".as_ref(), directory.as_os_str()]), 1, &["is not a vprof profile"]);
    fs::write(directory.join("cut"), &whole[..whole.len() / 2]).unwrap();
    refused(&report("cut"), 1, &["cut is cut off"]);
    // PRAGMA user_version: 4 bytes, big endian, at 60 of the header.
    let mut newer = whole;
    newer[60..64].copy_from_slice(&(SCHEMA_VERSION + 1).to_be_bytes());
    fs::write(directory.join("newer"), newer).unwrap();
    refused(&report("newer"), 1, &[&format!("version {}", SCHEMA_VERSION + 1), "use a newer vprof"]);
}

#[test]
fn a_reader_that_goes_away_is_not_a_failure() {
    use std::io::Read;
    let profile = TestProfile::new();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";
    let mut child = support::vprof(["query", &profile.path(), sql, "--csv"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn help_opens_with_examples_and_there_is_a_version() {
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["attach", "--help"],
        &["mem", "--help"],
        &["report", "--help"],
        &["annotate", "--help"],
        &["open", "--help"],
        &["query", "--help"],
        &["symbolize", "--help"],
    ] {
        let text = stdout(&run(command));
        let (examples, usage) = (text.find("Examples:").unwrap(), text.find("Usage:").unwrap());
        assert!(examples < usage, "{text}");
    }
    assert!(stdout(&run(["--help"])).contains("4  no usable hypervisor"));
    let version = stdout(&run(["--version"]));
    assert!(version.starts_with(concat!("vprof ", env!("CARGO_PKG_VERSION"))), "{version}");
}

/// Returns what bash completes the last of these words to.
fn completed(words: &[&str]) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_vprof"));
    let script = "source <(vprof completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; \
                  _clap_complete_vprof vprof \"${!#}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let directory = program.parent().expect("a directory").display();
    let path = format!("{directory}:{}", std::env::var("PATH").expect("a path"));
    let output = Command::new("bash").args(["-c", script, "bash"]).args(words).env("PATH", path).output();
    stdout(&output.expect("bash")).lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_options_values_and_files() {
    assert_eq!(completed(&["vprof", "rep"]), ["report"]);
    assert_eq!(completed(&["vprof", "report", "--cal"]), ["--callers", "--callees"]);
    assert_eq!(completed(&["vprof", "run", "--host", "po"]), ["portable"]);
    let profile = TestProfile::new();
    let path = profile.path();
    assert_eq!(completed(&["vprof", "report", &path[..path.len() - 3]]), [path]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout(&run(["completions", shell])).contains("VPROF_COMPLETE"), "{shell}");
    }
}

#[test]
fn the_queries_in_the_help_work() {
    let profile = TestProfile::new();
    let help = stdout(&run(["--help"])) + &stdout(&run(["query", "--help"]));
    let queries: Vec<&str> = help.split('"').filter(|part| part.starts_with("SELECT")).collect();
    assert_eq!(queries.len(), 2, "{help}");
    for sql in queries {
        let output = profile.query(sql, &[]);
        assert!(output.status.success(), "{sql}: {}", stderr(&output));
    }
}

#[test]
fn doctor_prints_json() {
    let output = run(["doctor", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["kvm"]["present"].is_boolean());
    assert!(found["portable"]["usable"].is_boolean());
    let expected = if found["host"].is_null() { 4 } else { 0 };
    assert_eq!(output.status.code(), Some(expected));
}

#[test]
fn states_of_tasks_need_scans_or_exact_data() {
    let profile = TestProfile::new();
    for from in ["--states", "--states=sampled", "--states=exact"] {
        let output = profile.report(&[from]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        let sentence = stderr(&output);
        assert!(sentence.trim().lines().count() == 1, "{sentence}");
        assert!(sentence.contains("has no states of tasks"), "{sentence}");
    }
    for wrong in [&["--states=guess"][..], &["--states", "--by", "function"], &["--states", "--exact"]] {
        assert_eq!(profile.report(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn sums_of_exact_mode_have_no_parts_and_a_timehist_is_a_part_of_them() {
    let profile = TestProfile::new();
    for option in ["--tree-of", "--instance", "--cgroup", "--thread", "--cpu", "--time"] {
        let value = if option == "--time" { "1ms..2ms" } else { "0" };
        refused(&profile.report(&["--exact", option, value]), 2, &[option, "--timehist"]);
        refused(&profile.report(&["--exact", "--timehist", option, value]), 1, &["run --exact"]);
    }
    assert_eq!(profile.report(&["--timehist"]).status.code(), Some(2));
    assert_eq!(profile.report(&["--exact", "--timehist", "--by", "function"]).status.code(), Some(2));
}

#[test]
fn calls_of_functions_need_a_run_that_watched_some() {
    let profile = TestProfile::new();
    refused(&profile.report(&["--trips"]), 1, &["no watched functions", "run --trip FUNCTION"]);
    for wrong in
        [&["--trips", "--exact"][..], &["--trips", "--by", "function"], &["--trips", "--symbol", "f"]]
    {
        assert_eq!(profile.report(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_configuration_gives_defaults_and_a_wrong_one_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("config.toml");
    let with = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        support::vprof(arguments).env("VPROF_CONFIG", &file).output().unwrap()
    };
    let help = with("[run]\nrate = 250", &["run", "-h"]);
    assert!(stdout(&help).contains("[default: 250]"), "{}", stdout(&help));
    let wrong = with("[run]\nrats = 250", &["run", "x.img"]);
    support::refused(&wrong, 2, &["config.toml", "[run] rats", "did you mean rate?"]);
    let other = with("[run]\nrats = 250", &["ctl", "list"]);
    assert!(other.status.success() && stderr(&other).contains("[run] rats"), "{}", stderr(&other));
    let value = with("[report]\nrows = \"many\"", &["report", "x.vprof"]);
    assert_eq!(value.status.code(), Some(2));
    assert!(stderr(&value).contains("The value is in the configuration"), "{}", stderr(&value));
    let missing =
        support::vprof(["ctl", "list"]).env("VPROF_CONFIG", "/nowhere/config.toml").output().unwrap();
    support::refused(&missing, 2, &["/nowhere/config.toml", "no such file"]);
}
