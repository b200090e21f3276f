//! The documentation describes the tool correctly: docs/json.md against a report, docs/profile.md against the
//! schema.

mod exact;
mod trips;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

use profile::boot::{
    Boot, Call, ChainLink, CpuEstimate, FailedUnit, PHASES, Phase, Program, StartupTimes, Systemd, Target,
    Unit,
};
use profile::diff::Diff;
use profile::made_up;
use profile::merge::merge;
use profile::report::{
    By, Direction, HostReport, MemoryReport, ModeGroup, ReportError, Request, SharesBy, SourceChoice,
    StateReport, StateSource, TreeRequest,
};
use profile::rows::{
    Batch, FrameKind, HostFrameRow, HostSampleRow, InstanceRow, MemoryKind, MemoryReadingRow, MemoryUseRow,
    Microstates, SampleRow, Sink, StackRow, TaskScanRow, TaskScanStateRow, ThreadPlace, ThreadRow, VcpuRow,
};
use profile::rows::{TaskState, WaitReason};
use profile::rusage::Rusage;
use profile::stat::Stat;
use profile::store::{Table, Value as Cell};
use profile::{Filter, Profile, ProfileWriter, Report};

use exact::exact_profile;
use types::Types;

fn document(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    document.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Returns the types of docs/json.md.
fn types() -> Types {
    Types::parse(&blocks(&document("json.md"), "ts"))
}

/// Writes batches into a profile, and opens it.
fn written(path: &Path, batches: &[Batch]) -> Profile {
    let mut writer = ProfileWriter::create(path, false).expect("a profile");
    batches.iter().for_each(|batch| writer.write(batch).expect("room"));
    writer.finish().expect("room");
    Profile::open(path).expect("a profile")
}

fn profile(directory: &Path) -> Profile {
    let path = directory.join("made-up.vprof");
    made_up::write_profile(&path, 30_000, 500);
    Profile::open(&path).expect("a profile")
}

#[test]
fn a_report_fits_its_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let profile = profile(directory.path());
    let report = Report::read(&profile, &Filter::default()).expect("a report");
    assert!(!report.vcpus.is_empty() && !report.functions.is_empty() && report.stacks.kernel.walks > 0);
    let json = serde_json::to_value(&report).expect("JSON");
    types.check(&json, "Report");
    let filter = Filter {
        process: vec!["program-07".into()],
        modes: vec![ModeGroup::User],
        vcpu: Some(1),
        from_ns: Some(1),
        ..Filter::default()
    };
    let tree = |direction| {
        Request::Tree(TreeRequest { symbol: "user_function_50".into(), module: None, direction, depth: 3 })
    };
    let requests = By::ALL.map(|(_, by)| Request::By(vec![by])).into_iter().chain([
        Request::Summary,
        Request::By(vec![By::Process, By::Function]),
        tree(Direction::Callers),
        tree(Direction::Callees),
    ]);
    for request in requests {
        for filter in [&filter, &Filter::default()] {
            let part = Report::read_with(&profile, filter, &request).expect("a report");
            types.check(&serde_json::to_value(&part).expect("JSON"), "Report");
        }
    }
    let back: Report = serde_json::from_value(json).expect("a report");
    assert_eq!(back.samples, report.samples);
}

#[test]
fn a_merge_fits_its_schema() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = [1, 2].map(|number| directory.path().join(format!("{number}.vprof")));
    for (path, number) in paths.iter().zip(1..) {
        made_up::write_run(path, 5_000, 50, number);
    }
    let output = directory.path().join("all.vprof");
    let merged = merge(&paths, &output, false, &mut |_, _| ()).expect("a merge");
    types().check(&serde_json::to_value(&merged).expect("JSON"), "Merged");
    let all = Profile::open(&output).expect("a profile");
    let keys = Request::By(vec![By::Vm, By::Host, By::Instance]);
    let report = Report::read_with(&all, &Filter::default(), &keys).expect("a report");
    types().check(&serde_json::to_value(&report).expect("JSON"), "Report");
    types().check(&serde_json::to_value(Stat::read(&all).expect("figures")).expect("JSON"), "Stat");
}

/// A profile whose scans found one thread asleep, running and gone, and another at all times.
fn scanned_profile(path: &Path, meta: &[(&str, &str)]) -> Profile {
    let row = |tid, scan, state, wait_reason| TaskScanStateRow {
        instance: 1,
        tid,
        scan,
        state,
        wait_reason,
        stack: 0,
    };
    let moments =
        (1..=40_u64).map(|id| TaskScanRow { id, time_ns: id * 100_000_000, late_ns: 0, backoff: 0 });
    let batch = Batch {
        meta: meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        instances: vec![InstanceRow { id: 1, pid: 7, comm: "sleeper".into(), ..InstanceRow::default() }],
        threads: vec![ThreadRow { instance: 1, tid: 8, comm: "worker".into() }],
        task_scans: moments.collect(),
        task_scan_states: vec![
            row(8, 1, Some(TaskState::Sleep), WaitReason::Pipe),
            row(8, 11, Some(TaskState::Running), WaitReason::None),
            row(8, 21, None, WaitReason::None),
            row(9, 1, Some(TaskState::Disk), WaitReason::Block),
        ],
        ..Batch::default()
    };
    written(path, &[batch])
}

#[test]
fn states_fit_their_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let exact = exact_profile(&directory.path().join("exact.vprof"));
    let all = Filter::default();
    let report = StateReport::read(&exact, &all, SourceChoice::Best).expect("exact times");
    types.check(&serde_json::to_value(&report).expect("JSON"), "States");
    let task = &report.tasks[0];
    assert_eq!((report.source, report.scans.is_some()), (StateSource::Exact, false));
    assert!((task.states.iter().map(|state| state.s).sum::<f64>() - task.life_s).abs() < 1e-12, "{task:?}");
    assert!((task.running.s - 500e-9).abs() < 1e-12 && task.running.low_s == task.running.high_s);
    assert!(matches!(StateReport::read(&exact, &all, SourceChoice::Sampled), Err(ReportError::NoStates(_))));

    let meta = [("task_scan_hz", "10"), ("task_scan_from_ns", "0"), ("duration_ns", "4000000000")];
    let scanned = scanned_profile(&directory.path().join("scanned.vprof"), &meta);
    let report = StateReport::read(&scanned, &all, SourceChoice::Best).expect("a report");
    types.check(&serde_json::to_value(&report).expect("JSON"), "States");
    assert_eq!((report.source, report.tasks.len()), (StateSource::Sampled, 2));
    let task = &report.tasks[0];
    assert_eq!((task.task.tid, task.task.thread.as_deref()), (8, Some("worker")));
    assert!((task.life_s - 2.0).abs() < 1e-9 && (task.running.s - 1.0).abs() < 1e-9, "{task:?}");
    assert!((task.running.share - 0.5).abs() < 1e-9 && task.running.low_s < 1.0 && task.running.high_s > 1.0);
    assert_eq!((task.waits[0].state.as_str(), task.waits[0].wait_reason.as_str()), ("sleep", "pipe"));
    let half = Filter { to_ns: Some(1_050_000_000), ..Filter::default() };
    let report = StateReport::read(&scanned, &half, SourceChoice::Best).expect("a part of it");
    let sleeper = report.tasks.iter().find(|task| task.task.tid == 8).expect("the task");
    assert!((sleeper.waits[0].share - 1.0).abs() < 1e-9 && sleeper.running.s == 0.0, "{sleeper:?}");
    let one = Filter { thread: Some("worker".into()), process: vec!["sleeper".into()], ..Filter::default() };
    assert_eq!(StateReport::read(&scanned, &one, SourceChoice::Best).expect("one").tasks.len(), 1);
    let view = scanned.query("SELECT tid, state, scans FROM v_sampled_states").expect("an answer").rows;
    assert_eq!(format!("{:?}", view[0]), "[Integer(8), Text(\"running\"), Integer(10)]");
}

#[test]
fn stacks_of_the_host_fit_their_schema() {
    let directory = tempfile::tempdir().expect("a directory");
    let frame = |id, kind| HostFrameRow { id, kind, ..HostFrameRow::default() };
    let place = ThreadPlace::Kvm;
    let tick = |time_ns, stack| HostSampleRow { time_ns, place, stack, ..HostSampleRow::default() };
    let states = Microstates { guest: 4_000_000, ..Microstates::default() };
    let batch = Batch {
        host_frames: vec![
            frame(1, FrameKind::User),
            frame(2, FrameKind::Kernel),
            frame(3, FrameKind::Reason),
        ],
        host_stacks: (1..=3).map(|id| StackRow { id, parent: None, frame: id }).collect(),
        host_samples: (1..=4).map(|n| tick(u64::from(n), Some(n))).collect(),
        samples: (1..=4).map(|time_ns| SampleRow { time_ns, ..SampleRow::default() }).collect(),
        vcpus: vec![VcpuRow { states, ..VcpuRow::default() }],
        ..Batch::default()
    };
    let profile = written(&directory.path().join("host.vprof"), &[batch]);
    let report = HostReport::read(&profile, &Filter::default()).expect("a report");
    assert_eq!((report.functions.len(), report.places[1].estimate.samples), (3, 4), "{report:?}");
    types().check(&serde_json::to_value(&report).expect("JSON"), "HostReport");
}

#[test]
fn memory_over_time_fits_its_schema() {
    let directory = tempfile::tempdir().expect("a directory");
    let used = |kind, pid| MemoryUseRow { pid, ..MemoryUseRow::new(1, kind, "free", 4096) };
    let batch = Batch {
        memory_readings: vec![MemoryReadingRow { id: 1, total: 4096, ..MemoryReadingRow::default() }],
        memory_uses: MemoryKind::ALL.map(|kind| used(kind, i32::from(kind == MemoryKind::Process))).to_vec(),
        ..Batch::default()
    };
    let profile = written(&directory.path().join("memory.vprof"), &[batch]);
    let report = MemoryReport::read(&profile, &Filter::default()).expect("a report");
    assert_eq!(report.holders.len(), MemoryKind::ALL.len());
    types().check(&serde_json::to_value(&report).expect("JSON"), "MemoryReport");
}

#[test]
fn a_profile_without_states_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    for (meta, part) in [
        (vec![("task_scan_hz", "0")], "--task-rate 0"),
        (vec![("task_scan_hz", "10"), ("task_scan_missing", "no BTF in this kernel")], "no BTF"),
        (vec![("task_scan_hz", "10")], "too short"),
    ] {
        let path = directory.path().join(part.replace(' ', "-"));
        let meta = meta.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let mut writer = ProfileWriter::create(&path, false).expect("a profile");
        writer.write(&Batch { meta, ..Batch::default() }).expect("room");
        let profile = Profile::open(&path).expect("a profile");
        let error =
            StateReport::read(&profile, &Filter::default(), SourceChoice::Best).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn the_guests_books_fit_their_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path())).expect("books");
    assert!(!rusage.processes.is_empty() && !rusage.threads.is_empty() && !rusage.cpus.is_empty());
    types.check(&serde_json::to_value(&rusage).expect("JSON"), "Rusage");
}

#[test]
fn figures_of_vcpus_fit_their_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, 1_000, 0);
    let stat = Stat::read(&Profile::open(&path).expect("a profile")).expect("figures");
    assert!(!stat.vcpus.is_empty() && !stat.exits.is_empty());
    assert!(!stat.interrupts.is_empty() && !stat.kvm_counters.is_empty());
    types.check(&serde_json::to_value(&stat).expect("JSON"), "Stat");
    let exact = exact_profile(&directory.path().join("exact.vprof"));
    let stat = Stat::read(&exact).expect("figures");
    assert_eq!(stat.served.len(), 2);
    types.check(&serde_json::to_value(&stat).expect("JSON"), "Stat");
}

#[test]
fn a_comparison_fits_its_schema() {
    let types = types();
    let directory = tempfile::tempdir().expect("a directory");
    let open = || [profile(directory.path()), profile(directory.path())];
    for by in [SharesBy::Function, SharesBy::Total, SharesBy::Process, SharesBy::Stack] {
        let ([one, _], [other, _]) = (open(), open());
        let two = Diff::read(&[one], &[other], &Filter::default(), by).expect("a comparison");
        let several = Diff::read(&open(), &open(), &Filter::default(), by).expect("a comparison");
        for diff in [two, several] {
            assert!(!diff.rows.is_empty() && diff.tested > 0);
            assert!(diff.rows.iter().all(|row| !row.share.marked && row.share.change == 0.0), "{by:?}");
            types.check(&serde_json::to_value(&diff).expect("JSON"), "Diff");
            let sum: f64 = diff.rows.iter().map(|row| row.share.after).sum();
            assert!(by == SharesBy::Total || (sum - 1.0).abs() < 1e-9, "{by:?}: {sum}");
        }
    }
}

fn text(cell: &Cell) -> &str {
    match cell {
        Cell::Text(text) => text,
        other => panic!("{other:?} is not text"),
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
            let rows = section.split("\n### ").next().unwrap_or_default().lines();
            let mut named = rows.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
            named.any(|cell| cell.contains(&column))
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

#[test]
fn a_boot_fits_its_schema() {
    let types = types();
    let time = CpuEstimate { samples: 3, s: 0.1, low_s: 0.05, high_s: 0.2 };
    let call = |module| Call { function: "acpi_init".to_owned(), module, from_s: 0.1, to_s: 0.2, time };
    let unit = Unit { name: "ssh.service".to_owned(), from_s: 1.0, to_s: 2.0, processes: 2, time };
    let phase = |name: &&str| Phase { name: (*name).to_owned(), ..Phase::default() };
    let program = Program { from_s: 0.3, path: "/init".to_owned(), filesystem: "rootfs".to_owned() };
    let boot = Boot {
        kernel: Some("6.1.0".to_owned()),
        host: "kvm".to_owned(),
        began_s: 0.1,
        reached_s: Some(2.0),
        sampled_from_s: None,
        phases: PHASES.iter().map(phase).collect(),
        early: vec![call(None)],
        initcalls: vec![call(Some("virtio".to_owned()))],
        init: vec![program],
        units: vec![unit.clone()],
        processes: vec![unit],
        systemd: Systemd {
            missing: Some("no journal".to_owned()),
            startup: Some(StartupTimes { initrd_s: Some(1.0), ..StartupTimes::default() }),
            targets: vec![Target::default()],
            failed: vec![FailedUnit::default()],
            chain: vec![ChainLink { own: time, all: time, ..ChainLink::default() }],
            within_s: 0.003,
        },
    };
    types.check(&serde_json::to_value(&boot).expect("JSON"), "Boot");
}
