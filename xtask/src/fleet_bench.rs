//! `cargo xtask fleet-bench`: the time of each question to a lake, and its size, by the number of hosts;
//! written into docs/fleet.md.
//!
//! ```text
//! vprof run, guests ──▶ profiles ───lab/fleet───▶ lake of 100, 1,000, 10,000 hosts' hours
//!                          vprof fleet by DuckDB, Spark ──▶ times ──▶ docs/fleet.md, docs/fleet.svg
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest_images::{DebianOptions, DemoOptions, Progress};
use testkit::{LinePlot, PlotLine, PlotScale, python_packages};

use crate::demo::{GuestTools, LOAD};
use crate::deps;
use crate::progress::ProgressLine;
use crate::workspace;

/// Lines of the document between which the table is.
const MARKS: [&str; 2] = ["<!-- scale: cargo xtask fleet-bench -->", "<!-- end of scale -->"];
/// The plot, in the checkout.
const PLOT: &str = "docs/fleet.svg";
/// Engines' clients.
const DUCKDB: &str = "duckdb-cli==1.5.6";
const SPARK: &str = "pyspark==4.3.0";
/// Day of the lake that `lab/fleet` makes.
const DAY: &str = "2025-11-24";
/// The fleet of the arithmetic.
const FLEET_HOSTS: u64 = 10_000;
const FLEET_CPUS: u64 = 100;
/// Files of a host's window.
const LAKE_TABLES: u64 = 5;
/// Free disk for each of a lake's hours, bytes: the lake takes a third of a MB, and its compaction sorts on
/// the disk where memory is too little.
const ROOM: u64 = 1_500_000;
/// Of a day.
const SECONDS: f64 = 86_400.0;
/// Questions with the words that they need.
const QUESTIONS: [&[&str]; 7] = [
    &["top"],
    &["diff", "--before", "label=tenant=1", "--after", "label=tenant=2"],
    &["over-time", "--process", "sh*"],
    &["interrupts"],
    &["noisy"],
    &["vms"],
    &["flame", "-o", "-"],
];

/// Arguments of `cargo xtask fleet-bench`.
#[derive(Debug, Args)]
pub struct FleetBenchArgs {
    /// Numbers of hosts' hours
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000", value_name = "HOURS")]
    hours: Vec<u64>,
    /// Profile to multiply instead of those of a demo guest and of Debian; repeatable
    #[arg(long, value_name = "PROFILE")]
    profile: Vec<PathBuf>,
    /// Print the table alone: docs/fleet.md stays as it is
    #[arg(long)]
    dry_run: bool,
}

/// Times of the questions, s, in the order of [`QUESTIONS`].
type Times = Vec<f64>;

/// Measurements of a lake.
#[derive(Debug)]
struct LakeSize {
    host_hours: u64,
    files: u64,
    bytes: u64,
    /// Time of the compaction by DuckDB, s.
    compaction_s: f64,
    compact_files: u64,
    compact_bytes: u64,
    /// By DuckDB, from the lake and after compaction; by Spark.
    duckdb: Times,
    compact: Times,
    spark: Times,
}

impl LakeSize {
    /// Returns the times with their names.
    fn engines(&self) -> [(&'static str, &Times); 3] {
        [("DuckDB", &self.duckdb), ("DuckDB, after compaction", &self.compact), ("Spark", &self.spark)]
    }

    /// Returns what a day of [`FLEET_HOSTS`] hosts with [`FLEET_CPUS`] vCPUs each takes, if the figures of
    /// this lake hold for each vCPU.
    fn large_fleet(&self) -> String {
        let hours = self.host_hours as f64;
        let core_days = (FLEET_HOSTS * FLEET_CPUS) as f64;
        let of_fleet = |measured: f64| measured / hours * 24.0 * core_days;
        let (bytes, compact) = (of_fleet(self.bytes as f64), of_fleet(self.compact_bytes as f64));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let core_hours =
            |times: &Times| of_fleet(times.first().copied().unwrap_or(f64::NAN)) * cpus / 3_600.0;
        let files = (FLEET_HOSTS * 24 * LAKE_TABLES) as f64;
        let rows = [
            ("files, each one PUT", format!("{:.1} million", files / 1e6)),
            ("bytes", format!("{:.1} TB", bytes / 1e12)),
            (
                "network, mean of a host",
                format!("{:.0} kbit/s", bytes * 8.0 / SECONDS / FLEET_HOSTS as f64 / 1e3),
            ),
            ("network, mean of all", format!("{:.2} Gbit/s", bytes * 8.0 / SECONDS / 1e9)),
            (
                "storage of a month, compact but for a day",
                format!("{:.0} TB", (bytes + 30.0 * compact) / 1e12),
            ),
            ("CPU time of the agents, budget of 0.1 %", format!("{:.0} core-hours", core_days * 24.0 / 1e3)),
            (
                "CPU time of `top` for all of the day, DuckDB",
                format!("{:.0} core-hours", core_hours(&self.duckdb)),
            ),
            ("the same after compaction", format!("{:.1} core-hours", core_hours(&self.compact))),
        ];
        let mut text = format!(
            "A day of {FLEET_HOSTS} hosts with {FLEET_CPUS} vCPUs each, by the figures of {} hosts' hours: as if \
             each vCPU\nwere a separate machine. Those of one machine share rows and stacks, and take less.\n\n\
             | a day | |\n|---|---|\n",
            self.host_hours
        );
        for (what, much) in rows {
            text += &format!("| {what} | {much} |\n");
        }
        text + "\n"
    }
}

/// Measures, prints and writes.
pub fn run(options: &FleetBenchArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure_for_tests(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let root = workspace::root()?;
    let tools = GuestTools::build(&line)?;
    let stage = tempfile::tempdir().context("cannot make a directory")?;
    let (most, free) = (options.hours.iter().max().copied().unwrap_or(0), free_bytes(stage.path())?);
    let needed = most.saturating_mul(ROOM);
    ensure!(
        free >= needed,
        "{most} hosts' hours take {:.0} GB in {}, which has {:.0} GB: set TMPDIR to a directory with more, or fewer --hours",
        needed as f64 / 1e9,
        std::env::temp_dir().display(),
        free as f64 / 1e9
    );
    let profiles = match options.profile.is_empty() {
        true => record(&tools, stage.path(), &line)?,
        false => options.profile.clone(),
    };
    let packages = |package: &str| {
        let made = line.during(&format!("installing {package}"), || {
            python_packages(&[package]).context("an engine is needed")
        });
        made.with_context(|| format!("{package} is not installed"))
    };
    let (duckdb, spark) = (packages(DUCKDB)?, packages(SPARK)?);
    // Spark looks for its home by the first python3.
    let mut path = OsString::from(spark);
    path.push(":");
    path.push(duckdb);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let bench = FleetBench { tools, path, root, line };
    let mut sizes = Vec::new();
    for host_hours in &options.hours {
        let measured = bench.measure(&stage.path().join(host_hours.to_string()), *host_hours, &profiles);
        bench.line.end();
        // A failure, as of a full disk, comes after what was measured before it.
        sizes.push(measured.inspect_err(|_| println!("{}", document(&sizes)))?);
    }
    let text = document(&sizes);
    println!("{text}");
    if !options.dry_run {
        let page = bench.root.join("docs/fleet.md");
        let old = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let new =
            workspace::between(&old, MARKS, &text).context("docs/fleet.md has no place for the table")?;
        fs::write(&page, new).with_context(|| format!("cannot write {}", page.display()))?;
        let path = bench.root.join(PLOT);
        fs::write(&path, plot(&sizes)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Records the profiles that are multiplied.
fn record(tools: &GuestTools, stage: &Path, line: &ProgressLine) -> Result<Vec<PathBuf>> {
    let load = format!("process:{LOAD}");
    let demo = guest_images::demo(&DemoOptions::default(), line)?;
    let debian = guest_images::debian(&DebianOptions::default(), line)?;
    let runs: [(PathBuf, &[&str]); 2] = [(demo, &["--start-when", &load]), (debian, &["-d", "90s"])];
    let mut profiles = Vec::new();
    for (number, (image, words)) in runs.into_iter().enumerate() {
        let profile = stage.join(format!("{number}.vprof"));
        let mut command = Command::new(&tools.vprof);
        tools.set_environment(&mut command);
        command.arg("run").arg(&image).args(["--snapshot", "--retry=2"]).args(words).arg("-o").arg(&profile);
        line.during(&format!("recording {}", image.display()), || finished(&mut command))?;
        profiles.push(profile);
    }
    Ok(profiles)
}

struct FleetBench {
    tools: GuestTools,
    /// Directories of the engines, and the others.
    path: OsString,
    root: PathBuf,
    line: ProgressLine,
}

impl FleetBench {
    fn measure(&self, stage: &Path, host_hours: u64, profiles: &[PathBuf]) -> Result<LakeSize> {
        let (lake, compact) = (stage.join("lake"), stage.join("compact"));
        let name = |what: &str| format!("{host_hours} hosts' hours: {what}");
        let mut generate = self.tools.cargo();
        workspace::choose_lab(generate.args(["run", "--quiet", "--release", "--package", "fleet"]))?;
        generate.arg("--").arg(&lake).arg(host_hours.to_string()).args(profiles);
        self.line.during(&name("writing"), || finished(&mut generate))?;
        let (files, bytes) = size(&lake)?;
        let duckdb = self.line.during(&name("DuckDB"), || self.ask("duckdb", &lake))?;
        let spark = self.line.during(&name("Spark"), || self.ask("spark", &lake))?;
        let compaction_s = self.line.during(&name("compaction"), || self.compact(stage, &lake, &compact))?;
        let (compact_files, compact_bytes) = size(&compact)?;
        let after = self.line.during(&name("DuckDB after compaction"), || self.ask("duckdb", &compact))?;
        fs::remove_dir_all(stage).context("cannot remove the lake")?;
        Ok(LakeSize {
            host_hours,
            files,
            bytes,
            compaction_s,
            compact_files,
            compact_bytes,
            duckdb,
            compact: after,
            spark,
        })
    }

    /// Asks all questions; returns the time of each.
    fn ask(&self, engine: &str, lake: &Path) -> Result<Times> {
        let ask = |words: &&[&str]| {
            let mut command = Command::new(&self.tools.vprof);
            command.arg("fleet").args(*words).args(["--engine", engine, "--lake"]).arg(lake);
            let start = Instant::now();
            finished(command.env("PATH", &self.path).env("SPARK_LOCAL_IP", "127.0.0.1"))?;
            Ok(start.elapsed().as_secs_f64())
        };
        QUESTIONS.iter().map(ask).collect()
    }

    /// Makes the larger files; returns the time that it takes, s.
    fn compact(&self, stage: &Path, lake: &Path, compact: &Path) -> Result<f64> {
        fs::create_dir_all(compact.join("v1")).context("cannot make a directory")?;
        let mut sql = String::new();
        for file in ["fleet/views/duckdb.sql", "fleet/compact/duckdb.sql"] {
            sql +=
                &fs::read_to_string(self.root.join(file)).with_context(|| format!("cannot read {file}"))?;
        }
        let (lake, compact) = (lake.display().to_string(), compact.display().to_string());
        let sql = sql.replace("LAKE", &lake).replace("COMPACT", &compact).replace("DAY", DAY);
        let mut command = Command::new("duckdb");
        // It sorts in a directory here.
        command.current_dir(stage).args(["-bail", ":memory:", "-c", &sql]);
        let start = Instant::now();
        finished(command.env("PATH", &self.path))?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Runs a program to its end, and shows its messages only if it fails.
fn finished(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} has failed: {}", words.trim());
    Ok(())
}

/// Returns the free bytes of a directory's file system, by df(1).
fn free_bytes(directory: &Path) -> Result<u64> {
    let shown = Command::new("df").args(["--output=avail", "-B1"]).arg(directory).output();
    let shown = shown.context("cannot start df")?;
    let words = String::from_utf8_lossy(&shown.stdout);
    let free = words.lines().nth(1).and_then(|line| line.trim().parse().ok());
    free.with_context(|| format!("df shows no free bytes of {}", directory.display()))
}

/// Returns the number of files below a directory, and their bytes.
fn size(directory: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.context("cannot read a directory")?;
        let about = entry.metadata().context("cannot read a file's size")?;
        let (files, bytes) = if about.is_dir() { size(&entry.path())? } else { (1, about.len()) };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    Ok(sum)
}

/// Returns the tables.
fn document(sizes: &[LakeSize]) -> String {
    let mut text = String::from(
        "\n| hosts' hours | files | MB | MB per core and day | compaction by DuckDB, s | files, MB after it |\n\
         |---|---|---|---|---|---|\n",
    );
    for size in sizes {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let per_day = megabytes(size.bytes) / size.host_hours as f64 * 24.0;
        text += &format!(
            "| {} | {} | {:.1} | {per_day:.2} | {:.0} | {}, {:.1} |\n",
            size.host_hours,
            size.files,
            megabytes(size.bytes),
            size.compaction_s,
            size.compact_files,
            megabytes(size.compact_bytes)
        );
    }
    text += "\nSeconds for the answer, with the start of the engine:\n\n| question | engine |";
    for size in sizes {
        text += &format!(" {} |", size.host_hours);
    }
    text += &format!("\n|---|---|{}\n", "---|".repeat(sizes.len()));
    for (place, words) in QUESTIONS.iter().enumerate() {
        let names = sizes.first().map(LakeSize::engines).into_iter().flatten();
        for (engine, (name, _)) in names.enumerate() {
            text += &format!("| `{}` | {name} |", words.first().unwrap_or(&""));
            for size in sizes {
                let time = size.engines().get(engine).and_then(|(_, times)| times.get(place).copied());
                text += &format!(" {:.1} |", time.unwrap_or(f64::NAN));
            }
            text.push('\n');
        }
    }
    text +=
        &format!("\n![Time of a question by the number of hosts]({})\n\n", PLOT.trim_start_matches("docs/"));
    text + &sizes.last().map(LakeSize::large_fleet).unwrap_or_default()
}

/// Draws the times of the first question.
fn plot(sizes: &[LakeSize]) -> String {
    let Some(names) = sizes.first().map(LakeSize::engines) else { return String::new() };
    let points = |engine: usize| {
        let point = |size: &LakeSize| Some((size.host_hours as f64, *size.engines().get(engine)?.1.first()?));
        sizes.iter().filter_map(point).collect()
    };
    let line = |(engine, (name, _)): (usize, &(&str, &Times))| PlotLine {
        name: (*name).to_owned(),
        points: points(engine),
    };
    let lines = names.iter().enumerate().map(line).collect();
    let (x, y) = ("hours of hosts", "time of vprof fleet top, s");
    LinePlot { title: "Time of a question", x, y, scale: PlotScale::Logarithmic, lines }.svg()
}
