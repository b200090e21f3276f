//! The questions of `fleet/` in the engines that they are for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use export::lake::{HOUR_NS, KnownStacks, LakeProfile, LakeVm, LakeWindow, LakeWriter};
use profile::merge::merge;
use profile::store::Value as Field;
use profile::{Profile, made_up};
use serde_json::Value;
use testkit::{eventually, python_packages, tool};

/// Hosts, and windows of each.
const HOSTS: u64 = 3;
const WINDOWS: u64 = 2;
/// First window, hours since 1970, and its day.
const FIRST: u64 = 490_000;
const DAY: &str = "2025-11-24";
/// Samples of the profiles.
const SAMPLES: u64 = 3_000;

/// Answers by question.
type Answers = BTreeMap<String, Vec<BTreeMap<String, Value>>>;

/// A lake, and the profiles that it is of.
struct Lake {
    directory: tempfile::TempDir,
    profiles: Vec<PathBuf>,
}

impl Lake {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut lake = Self { directory, profiles: Vec::new() };
        for host in 0..HOSTS {
            (0..WINDOWS).fold(KnownStacks::default(), |known, window| lake.add(host, window, known));
        }
        lake
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("lake")
    }

    fn add(&mut self, host: u64, number: u64, known: KnownStacks) -> KnownStacks {
        let path = self.directory.path().join(format!("{host}-{number}.vprof"));
        let samples = SAMPLES + 500 * host + 100 * number;
        made_up::write_run(&path, samples, 60, host * WINDOWS + number);
        let window = LakeWindow {
            host: format!("host-{host}"),
            start_unix_ns: (FIRST + number) * HOUR_NS,
            length_ns: HOUR_NS,
            inclusion: 1.0,
            dropped_windows: 0,
        };
        let mut writer = LakeWriter::create(window, known, &self.path()).expect("files");
        let vm = LakeVm { id: format!("vm-{host}"), name: format!("web-{host}"), ..LakeVm::default() };
        let profile = LakeProfile::read(&Profile::open(&path).expect("a profile")).expect("a whole profile");
        writer.add(&vm, &profile).expect("rows");
        self.profiles.push(path);
        writer.finish().expect("files").1
    }

    /// Returns one number of the profile that has all windows.
    fn query(&self, sql: &str) -> f64 {
        let merged = self.directory.path().join("merged.vprof");
        merge(&self.profiles, &merged, true, &mut |_, _| {}).expect("a merged profile");
        let answer = Profile::open(&merged).expect("a profile").query(sql).expect("an answer");
        match answer.rows.first().map(Vec::as_slice) {
            Some([Field::Integer(number)]) => *number as f64,
            Some([Field::Real(number)]) => *number,
            other => panic!("{sql}: {other:?}"),
        }
    }

    /// Asks an engine of one of the packages. It gives the same answers from larger files that it makes of a
    /// day.
    fn ask(&self, engine: &str, packages: &[&str], master: Option<&str>) -> Option<Answers> {
        let programs = python_packages(packages)?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(programs.join("python3"));
        command
            .arg(root.join("tests/fleet/ask.py"))
            .arg(engine)
            .arg(root.join("../fleet"))
            .arg(self.path())
            .arg(DAY);
        let output = command.args(master).current_dir(self.directory.path()).output().expect("Python");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{engine}: {errors}");
        let mut found: BTreeMap<String, Answers> = serde_json::from_slice(&output.stdout).expect("JSON");
        let answers = found.remove("lake").expect("answers");
        assert_equal(&answers, &found["compact"]);
        let compact = self.directory.path().join(format!("lake-of-{engine}/v1/samples/day={DAY}/hour=all"));
        let files = fs::read_dir(compact).expect("a directory").flatten();
        let files = files.filter(|file| file.path().extension().is_some_and(|end| end == "parquet")).count();
        // DuckDB's SQL sorts VMs in several parts.
        let most = if engine == "duckdb" { HOSTS } else { 1 };
        assert!((1..=most).contains(&(files as u64)), "{engine}: {files} files");
        Some(answers)
    }

    /// Asserts that the answers have the sums of the merged profile.
    fn assert_sums(&self, answers: &Answers) {
        let number = |row: &BTreeMap<String, Value>, column: &str| row[column].as_f64().expect("a number");
        let sum = |question: &str, column: &str| -> f64 {
            answers[question].iter().map(|row| number(row, column)).sum()
        };
        let user = self.query("SELECT count(*) FROM v_charged WHERE mode = 'user'");
        assert!(user > 1_000.0);
        assert_eq!(sum("top", "sample_count"), user, "the user code of all functions");
        let all = self.query("SELECT count(*) FROM v_charged");
        assert_eq!(sum("machines", "sample_count"), all);
        assert_eq!(answers["machines"].len() as u64, HOSTS);
        let cpu = sum("over_time", "cpu_seconds");
        let folded = sum("flame", "us") / 1e6;
        assert!((sum("top", "cpu_seconds") / cpu - 1.0).abs() < 1e-9 && (folded / cpu - 1.0).abs() < 1e-9);
        assert_eq!(answers["over_time"].len() as u64, WINDOWS);
        for row in answers["top"].iter().chain(&answers["over_time"]) {
            let (low, share, high) = (number(row, "low"), number(row, "share"), number(row, "high"));
            assert!(low <= share && share <= high && high <= 1.0, "{row:?}");
            assert_eq!(row["hosts"].as_u64(), Some(HOSTS));
        }
    }
}

/// Asserts that two engines agree.
fn assert_equal(one: &Answers, other: &Answers) {
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (question, rows) in one {
        let others = &other[question];
        assert_eq!(rows.len(), others.len(), "{question}");
        for (row, other) in rows.iter().zip(others) {
            for (column, value) in row {
                let equal = match (value.as_f64(), other[column].as_f64()) {
                    (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * one.abs().max(1.0),
                    _ => *value == other[column],
                };
                assert!(equal, "{question}, {column}: {row:?} and {other:?}");
            }
        }
    }
}

#[test]
fn duckdb_has_the_sums_of_a_merged_profile() {
    let lake = Lake::new();
    let Some(duckdb) = lake.ask("duckdb", &["duckdb==2.0.0", "pytz==2026.6"], None) else { return };
    lake.assert_sums(&duckdb);
}

/// Processes of a cluster; killed at the end.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only if it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
#[ignore = "half a gigabyte of packages, and a cluster of five processes in Java"]
fn a_spark_cluster_has_the_sums_of_a_merged_profile() {
    const PACKAGES: &[&str] = &["pyspark==4.3.0"];
    let Some(programs) = python_packages(PACKAGES) else { return };
    if tool("java").is_none() {
        return;
    }
    // Its scripts look for Python there.
    let mut path = OsString::from(&programs);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let lake = Lake::new();
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    let master = format!("spark://{address}");
    let start = |class: &str, arguments: &[&str]| {
        let mut command = Command::new(programs.join("spark-class"));
        command.arg(format!("org.apache.spark.deploy.{class}")).args(["--host", "127.0.0.1"]).args(arguments);
        command.current_dir(lake.directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let work = lake.directory.path().join("work");
        let settings = [("PATH", path.as_ref()), ("SPARK_WORKER_DIR", work.as_os_str())];
        command.envs(settings).env("SPARK_LOCAL_IP", "127.0.0.1");
        command.env("SPARK_MASTER_OPTS", "-Dspark.master.rest.enabled=false").spawn().expect("Spark")
    };
    let mut cluster = Processes(vec![start(
        "master.Master",
        &["--port", &address.port().to_string(), "--webui-port", "0"],
    )]);
    eventually("Spark's master", Duration::from_secs(60), || TcpStream::connect(address).ok());
    for _ in 0..2 {
        cluster.0.push(start("worker.Worker", &["-c", "1", "-m", "700m", "--webui-port", "0", &master]));
    }
    let spark = lake.ask("spark", PACKAGES, Some(&master)).expect("the packages are there");
    lake.assert_sums(&spark);
    let duckdb = lake.ask("duckdb", &["duckdb==2.0.0", "pytz==2026.6"], None).expect("DuckDB");
    assert_equal(&duckdb, &spark);
}
