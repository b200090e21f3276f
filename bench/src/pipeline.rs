//! Benchmarks of what follows the vCPU: collector, report, memory.

use std::fs;
use std::path::{Path, PathBuf};

use export::{Count, Format, Request, Root};
use profile::made_up;
use profile::report::{self, By};
use profile::store::Value;
use profile::{Batch, Filter, Profile, ProfileWriter, Report, Sink, SinkError};
use sampler::bench;
use vprof_tests::Guest;

use crate::child;
use crate::table::TableRow;

/// Samples in the profile that is written and reported.
const SAMPLES: u64 = 1_000_000;

/// Stacks in the profile that is reported by function.
const STACKS: u32 = 50_000;

/// Profiles that are merged, and samples and stacks of each.
const PROFILES: u64 = 100;
const SAMPLES_OF_EACH: u64 = 100_000;
const STACKS_OF_EACH: u32 = 5_000;

fn seconds(ns: u64) -> String {
    format!("{:.2} s", ns as f64 / 1e9)
}

/// Measures the throughput of collector and writer, and the time and memory of a report.
pub fn rows() -> anyhow::Result<Vec<TableRow>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("bench.vprof");
    let mut writer = ProfileWriter::create(&path, false)?;
    let (written, result) = bench::measured(|| -> Result<(), SinkError> {
        bench::collect_samples(&mut writer, SAMPLES, |_, _| {})?;
        let mut rest = Batch::default();
        made_up::finish(&mut rest, SAMPLES);
        writer.write(&rest)?;
        writer.finish()
    });
    result?;
    drop(writer);
    let size = fs::metadata(&path)?.len();
    let [read, read_wall, memory] = child::run("summary", &path)?;
    made_up::write_profile(&path, SAMPLES, STACKS);
    let [functions, functions_wall, functions_memory] = child::run("functions", &path)?;
    let [folded, folded_wall, folded_memory] = child::run("folded", &path)?;
    let [page, page_wall, page_bytes, page_memory] = child::run("page", &path)?;
    let sources = tempfile::tempdir()?;
    for number in 0..PROFILES {
        let path = sources.path().join(format!("machine-{number}.vprof"));
        made_up::write_run(&path, SAMPLES_OF_EACH, STACKS_OF_EACH, number);
    }
    let [merged, merged_wall, merged_bytes, merged_memory] = child::run("merge", sources.path())?;
    drop(sources);
    Ok(vec![
        TableRow::text(
            "collector and writer, one core",
            format!("{:.0} samples/s", SAMPLES as f64 / written.cpu.as_secs_f64()),
            "at least 200,000/s",
        )
        .detail(format!(
            "{SAMPLES} samples in {:.2?} of CPU, {:.2?} of time, {} MB",
            written.cpu,
            written.wall,
            size / 1_000_000
        )),
        TableRow::text("report over 1,000,000 samples", seconds(read), "at most 2 s").detail(format!(
            "of CPU, {} of time; {} MB at the peak (at most 300)",
            seconds(read_wall),
            memory / 1_000_000
        )),
        TableRow::text(
            "report by function, 1,000,000 samples, 50,000 stacks",
            seconds(functions),
            "at most 3 s",
        )
        .detail(format!(
            "of CPU, {} of time; 20 frames deep; {} MB at the peak",
            seconds(functions_wall),
            functions_memory / 1_000_000
        )),
        TableRow::text(
            "export of folded stacks, 1,000,000 samples, 50,000 stacks",
            format!("{:.0} samples/s", SAMPLES as f64 / (folded as f64 / 1e9)),
            "at least 1,000,000/s",
        )
        .detail(format!(
            "{} of CPU, {} of time; 20 frames deep; {} MB at the peak",
            seconds(folded),
            seconds(folded_wall),
            folded_memory / 1_000_000
        )),
        TableRow::text(
            "merge of 100 profiles of 100,000 samples and 5,000 stacks",
            seconds(merged),
            "at most 60 s",
        )
        .detail(format!(
            "of CPU, {} of time; {} MB, {} MB at the peak (at most 500)",
            seconds(merged_wall),
            merged_bytes / 1_000_000,
            merged_memory / 1_000_000
        )),
        TableRow::text("page of HTML, 1,000,000 samples, 50,000 stacks", seconds(page), "at most 5 s")
            .detail(format!(
                "of CPU, {} of time; {:.1} MB (at most 5), {} MB at the peak (at most 500)",
                seconds(page_wall),
                page_bytes as f64 / 1e6,
                page_memory / 1_000_000
            )),
    ])
}

/// Measures the memory of a `vprof` that records at 5 kHz, beyond its guest's.
pub fn memory() -> TableRow {
    let run = Guest::demo().options(["--rate", "5000"]).script("spin --seconds 3").run();
    assert!(run.status.success(), "{}: {}", run.status, run.stderr);
    let bytes = run.number("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'memory_beyond_guest_bytes'");
    let report = run.report();
    TableRow::text("memory of vprof beyond the guest's", format!("{:.0} MB", bytes / 1e6), "at most 64 MB")
        .detail(format!(
            "a Debian guest at 5,000 Hz, {} samples, host: {}",
            report.number("samples"),
            report.get("host").as_str().unwrap_or("unknown")
        ))
}

/// Measures the summary in a separate process, which has written nothing: ns of CPU and of elapsed time.
pub fn summary(path: &Path) -> anyhow::Result<[u64; 2]> {
    let (cost, report) = bench::measured(|| -> anyhow::Result<Report> {
        Ok(Report::read(&Profile::open(path)?, &Filter::default())?)
    });
    let report = report?;
    let charged: u64 = report.processes.iter().map(|process| process.estimate.samples).sum();
    anyhow::ensure!(
        (report.samples, charged) == (SAMPLES, SAMPLES),
        "the report has another number of samples"
    );
    ns(cost)
}

/// Measures the merge of all profiles in a directory likewise, and the bytes of the result.
pub fn merge(directory: &Path) -> anyhow::Result<[u64; 3]> {
    let entries = fs::read_dir(directory)?.map(|entry| Ok(entry?.path()));
    let paths: Vec<PathBuf> = entries.collect::<anyhow::Result<_>>()?;
    let output = directory.join("all.vprof");
    let (cost, merged) = bench::measured(|| profile::merge::merge(&paths, &output, false, &mut |_, _| ()));
    let counted = Profile::open(&output)?.query("SELECT count(*), count(DISTINCT vcpu) FROM sample")?;
    let samples = PROFILES * SAMPLES_OF_EACH;
    anyhow::ensure!(merged?.samples == samples, "the merged profile has another number of samples");
    let expected = [samples, 2 * PROFILES].map(|number| Value::Integer(number.cast_signed()));
    anyhow::ensure!(counted.rows == [expected.to_vec()], "{:?}", counted.rows);
    let [cpu, wall] = ns(cost)?;
    Ok([cpu, wall, fs::metadata(&output)?.len()])
}

/// Measures the table of functions likewise.
pub fn functions(path: &Path) -> anyhow::Result<[u64; 2]> {
    let (cost, report) = bench::measured(|| -> anyhow::Result<Report> {
        Ok(Report::read_with(
            &Profile::open(path)?,
            &Filter::default(),
            &report::Request::By(vec![By::Function]),
        )?)
    });
    let found: u64 = report?.by.iter().flat_map(|by| &by.rows).map(|row| row.own.samples).sum();
    anyhow::ensure!(found == SAMPLES, "the table has another number of samples");
    ns(cost)
}

/// Measures the export of folded stacks likewise; their numbers of samples add up.
pub fn folded(path: &Path) -> anyhow::Result<[u64; 2]> {
    let (cost, text) = bench::measured(|| -> anyhow::Result<Vec<u8>> {
        let mut text = Vec::new();
        // With a process at the root, nearly each of the made-up samples would have its own line.
        let request = Request { count: Count::Samples, root: Root::None, ..Request::new(Format::Folded) };
        export::write(&Profile::open(path)?, &request, &mut text, &mut |_, _| {})?;
        Ok(text)
    });
    let text = String::from_utf8(text?)?;
    let numbers = text.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    anyhow::ensure!(numbers.sum::<u64>() == SAMPLES, "the folded stacks have another number of samples");
    ns(cost)
}

/// Measures a page likewise; also returns its bytes.
pub fn page(path: &Path) -> anyhow::Result<[u64; 3]> {
    let (cost, page) = bench::measured(|| -> anyhow::Result<Vec<u8>> {
        let mut page = Vec::new();
        export::write(&Profile::open(path)?, &Request::new(Format::Html), &mut page, &mut |_, _| {})?;
        Ok(page)
    });
    let page = page?;
    anyhow::ensure!(page.ends_with(b"</html>\n"), "the page is not complete");
    let [cpu, wall] = ns(cost)?;
    Ok([cpu, wall, page.len() as u64])
}

fn ns(cost: bench::MeasuredCost) -> anyhow::Result<[u64; 2]> {
    Ok([u64::try_from(cost.cpu.as_nanos())?, u64::try_from(cost.wall.as_nanos())?])
}
