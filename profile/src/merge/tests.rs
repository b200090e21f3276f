use std::collections::{BTreeMap, BTreeSet};

use tempfile::{TempDir, tempdir};

use super::tables::{LEFT_OUT, MERGED_TABLES, OWN_TABLES};
use super::*;
use crate::report::{By, Estimate, Recording, RecordingRequest, Request};
use crate::rows::*;
use crate::store::{ProfileError, Value};
use crate::{Batch, Filter, ProfileWriter, Report, Sink};

const MS: u64 = 1_000_000;
/// Start of the first run, ns since 1970.
const STARTED: u64 = 1_700_000_000_000_000_000;

/// A run of a machine with the same programs as the others, at other addresses and under the same ids.
#[derive(Debug, Clone, Copy)]
struct Made {
    number: u64,
    vcpus: u8,
    rate_hz: u64,
    clock: &'static str,
    host: &'static str,
    samples: u64,
}

const A: Made = Made { number: 1, vcpus: 2, rate_hz: 1_000, clock: "uniform", host: "alpha", samples: 400 };
const B: Made = Made { number: 2, vcpus: 1, rate_hz: 250, clock: "exponential", host: "beta", samples: 150 };
const C: Made = Made { number: 3, vcpus: 3, rate_hz: 100, clock: "uniform", host: "beta", samples: 300 };

impl Made {
    fn batch(&self) -> Batch {
        let Self { number, vcpus, rate_hz, clock, host, samples } = *self;
        let interval = 1_000_000_000 / rate_hz;
        let length = samples / u64::from(vcpus) * interval;
        let meta = [
            ("version", "0.1.0".to_owned()),
            ("host", "kvm".to_owned()),
            ("hostname", host.to_owned()),
            ("started_unix_ns", (STARTED + number * 7_000 * MS).to_string()),
            ("seed", number.to_string()),
            ("duration_ns", length.to_string()),
            ("rate_hz", rate_hz.to_string()),
            ("clock", clock.to_owned()),
            ("complete", "1".to_owned()),
        ];
        let mut batch =
            Batch { meta: meta.map(|(key, value)| (key.to_owned(), value)).to_vec(), ..Batch::default() };
        self.code(&mut batch);
        for id in 0..vcpus {
            // vCPUs of different machines are busy for different times.
            let guest = length / (1 + u64::from(id)) / number;
            let states = Microstates { guest, halted: length - guest, ..Microstates::default() };
            let samples = samples / u64::from(vcpus);
            batch.vcpus.push(VcpuRow { id, samples, lost: number, exits: 9, states });
            batch.microstates.push(MicrostateRow { vcpu: id, time_ns: length, states });
        }
        for n in 0..samples {
            batch.samples.push(self.sample(n, interval));
        }
        batch.exits.push(ExitRow { id: 1, reason: "halt".to_owned(), count: 5, ..ExitRow::default() });
        batch.console.push(ConsoleRow { time_ns: 1, bytes: b"login:".to_vec() });
        let text = format!("machine {number} lacks something");
        batch.events.push(EventRow { time_ns: 3 * MS, kind: "missing".to_owned(), text });
        batch
    }

    /// Programs, files, frames and stacks: user code at the same places, the kernel's at others.
    fn code(&self, batch: &mut Batch) {
        let kernel = 0xffff_ffff_8000_0000 + (self.number << 24);
        for (id, pid, comm) in [(1, 10, "nginx"), (2, 11, "nginx"), (3, 12, "only"), (4, 2, "ksoftirqd/0")] {
            let comm = if comm == "only" { format!("only-{}", self.number) } else { comm.to_owned() };
            let number = u32::from(id == 2);
            batch.threads.push(ThreadRow { instance: id, tid: pid, comm: format!("{comm}-thread") });
            batch.instances.push(InstanceRow {
                id,
                pid,
                start_ns: 5,
                comm,
                number,
                kernel_thread: id == 4,
                parent_pid: Some(if id == 2 { 10 } else { 1 }),
                exe: Some(1),
                cgroup: Some(1),
                ..InstanceRow::default()
            });
        }
        batch.cgroups.push(CgroupRow {
            id: 1,
            path: "/system.slice/nginx.service".to_owned(),
            unit: Some("nginx.service".to_owned()),
            container: None,
        });
        let file = |id, build_id: Option<&str>| FileRow {
            id,
            path: format!("/usr/bin/file-{id}"),
            build_id: build_id.map(str::to_owned),
            filesystem: "ext4".to_owned(),
            ..FileRow::default()
        };
        batch.files = vec![file(1, Some("abcd")), file(2, None)];
        let frame = |id, kind, address, file, symbol: &str| FrameRow {
            id,
            kind,
            address,
            file,
            symbol: Some(symbol.to_owned()),
            ..FrameRow::default()
        };
        batch.frames = vec![
            frame(1, FrameKind::User, 0x1000, Some(1), "main"),
            frame(2, FrameKind::User, 0x2000, Some(1), "serve"),
            // The same file name without a build-id is not the same file.
            frame(3, FrameKind::User, 0x3000, Some(2), "parse"),
            frame(4, FrameKind::Kernel, kernel, None, "do_syscall_64"),
            FrameRow { instance: Some(3), ..frame(5, FrameKind::User, 0x7f00, None, "jitted") },
            // The same code but for what the compiler has put into it.
            frame(6, FrameKind::User, 0x4000, Some(1), "outer"),
        ];
        let symbol = if self.number == 1 { "one" } else { "another" };
        batch.inlined.push(InlinedRow {
            frame: 6,
            depth: 0,
            symbol: symbol.to_owned(),
            source: None,
            line: None,
        });
        let stack = |id, parent, frame| StackRow { id, parent, frame };
        batch.stacks = vec![
            stack(1, None, 1),
            stack(2, Some(1), 2),
            stack(3, Some(2), 4),
            stack(4, Some(1), 3),
            stack(5, None, 5),
            stack(6, Some(1), 6),
        ];
        batch.code.push(CodeRow {
            start: 0x1000,
            file: Some(1),
            module: None,
            bytes: vec![0x90; 8],
            read: CodeSource::File,
        });
        batch.code.push(CodeRow {
            start: kernel,
            file: None,
            module: None,
            bytes: vec![1],
            read: CodeSource::Memory,
        });
        let interrupt = if self.number == 1 { "eth0" } else { "virtio0" };
        batch.interrupts.push(InterruptRow { id: 1, kind: "hard".to_owned(), name: interrupt.to_owned() });
        batch.syscalls.push((1, "write".to_owned()));
    }

    fn sample(&self, n: u64, interval: u64) -> SampleRow {
        // Spread over programs, and differently in each machine.
        let spread = (n * 2_654_435_761 + self.number) >> 7;
        let base = SampleRow {
            vcpu: u8::try_from(n % u64::from(self.vcpus)).expect("few vCPUs"),
            time_ns: n / u64::from(self.vcpus) * interval + interval / 2,
            late_ns: 1_000 + n,
            cpl: 3,
            rsp: 0x7ffc_0000 + n,
            cr3: 0x1000,
            preempt_count: Some(0),
            vcpu_state: VcpuState::Guest,
            ..SampleRow::default()
        };
        let user = |instance: u32, stack, frame| SampleRow {
            mode: Mode::User,
            instance: Some(instance),
            tid: Some(i32::try_from(instance + 9).expect("small")),
            stack: Some(stack),
            frame,
            ..base
        };
        match spread % 8 {
            0 | 1 => user(1, 2, 2),
            2 => user(2, 4, 3),
            3 => user(3, 5, 5),
            4 => user(1, 6, 6),
            5 => SampleRow { mode: Mode::Kernel, syscall: Some(1), ..user(1, 3, 4) },
            6 => SampleRow { mode: Mode::HardIrq, interrupt: Some(1), frame: 4, instance: Some(2), ..base },
            _ => SampleRow { mode: Mode::Idle, frame: 4, instance: Some(4), ..base },
        }
    }

    fn write(&self, directory: &TempDir, name: &str) -> PathBuf {
        let path = directory.path().join(format!("{name}.vprof"));
        written(&path, &self.batch());
        path
    }
}

fn written(path: &Path, batch: &Batch) {
    let mut writer = ProfileWriter::create(path, true).expect("a new profile");
    writer.write(batch).expect("room");
    writer.finish().expect("room");
}

fn merged(paths: &[PathBuf], directory: &TempDir) -> (Merged, Profile) {
    let output = directory.path().join("all.vprof");
    let merged = merge(paths, &output, true, &mut |_, _| ()).expect("a merge");
    (merged, Profile::open(&output).expect("a profile"))
}

fn three(directory: &TempDir) -> Vec<PathBuf> {
    [(C, "c"), (A, "a"), (B, "b")].map(|(made, name)| made.write(directory, name)).to_vec()
}

fn rows(profile: &Profile, sql: &str) -> Vec<Vec<Value>> {
    profile.query(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).rows
}

fn number(profile: &Profile, sql: &str) -> i64 {
    match rows(profile, sql)[0][0] {
        Value::Integer(number) => number,
        ref other => panic!("{sql}: {other:?}"),
    }
}

/// Samples with everything that they refer to, by names and not by ids.
const SAMPLES: &str = "SELECT c.number, s.time_ns - $from, s.late_ns, m.name, i.comm, i.pid, i.number, i.start_ns, \
    t.comm, g.unit, x.path, f.symbol, f.address, f.kind, p.path, fi.pid, n.symbol, s.tid, y.name, q.kind, q.name, \
    v.text, s.rsp, s.cr3, s.halted, s.cpl, s.vcpu_state, s.fault, s.preempt_count \
    FROM sample s JOIN vcpu c ON c.id = s.vcpu JOIN mode m ON m.id = s.mode \
    LEFT JOIN instance i ON i.id = s.instance LEFT JOIN thread t ON t.instance = i.id AND t.tid = s.tid \
    LEFT JOIN cgroup g ON g.id = i.cgroup LEFT JOIN file x ON x.id = i.exe \
    JOIN frame f ON f.id = s.frame LEFT JOIN file p ON p.id = f.file LEFT JOIN instance fi ON fi.id = f.instance \
    LEFT JOIN inlined n ON n.frame = f.id LEFT JOIN syscall y ON y.number = s.syscall \
    LEFT JOIN interrupt q ON q.id = s.interrupt LEFT JOIN v_stacks v ON v.id = s.stack \
    WHERE $vm ORDER BY s.id";

#[test]
fn every_table_is_in_one_list() {
    let connection = Connection::open_in_memory().expect("memory");
    connection.execute_batch(crate::store::SCHEMA).expect("the schema");
    let names = |sql: &str| -> Vec<String> {
        let mut statement = connection.prepare(sql).expect("a query");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("names")
    };
    let tables = names("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
    let lists = MERGED_TABLES.iter().map(|table| table.name).chain(OWN_TABLES).chain(LEFT_OUT);
    let mut listed: Vec<&str> = lists.collect();
    listed.sort_unstable();
    assert_eq!(listed, tables);
    for table in &MERGED_TABLES {
        let columns = names(&format!("SELECT name FROM pragma_table_info('{}') ORDER BY name", table.name));
        let mut listed: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        // Samples get new ids in their order.
        listed.extend((table.name == "sample").then_some("id"));
        listed.sort_unstable();
        assert_eq!(listed, columns, "{}", table.name);
    }
}

#[test]
fn every_sample_is_there_with_all_that_it_refers_to() {
    let directory = tempdir().expect("a directory");
    let paths = three(&directory);
    let (merged, all) = merged(&paths, &directory);
    // In the order of their starts.
    let names: Vec<&str> = merged.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!((names, merged.samples), (vec!["a", "b", "c"], 850));
    for vm in &merged.vms {
        let source = Profile::open(&vm.profile).expect("a profile");
        let own = rows(&source, &SAMPLES.replace("$from", "0").replace("$vm", "1"));
        let id = number(&all, &format!("SELECT id FROM vm WHERE name = '{}'", vm.name));
        let from = number(&all, &format!("SELECT from_ns FROM vm WHERE id = {id}"));
        let sql = SAMPLES.replace("$from", &from.to_string()).replace("$vm", &format!("c.vm = {id}"));
        assert_eq!(rows(&all, &sql), own, "{}", vm.name);
        assert_eq!(own.len() as u64, vm.samples);
        for table in ["microstate", "rate"] {
            let sql = |from: i64, vm: &str| {
                format!(
                    "SELECT c.number, t.time_ns - {from}, t.* FROM {table} t JOIN vcpu c ON c.id = t.vcpu WHERE {vm}"
                )
            };
            let times = |rows: Vec<Vec<Value>>| {
                rows.into_iter().map(|row| [&row[..2], &row[4..]].concat()).collect::<Vec<_>>()
            };
            assert_eq!(
                times(rows(&all, &sql(from, &format!("c.vm = {id}")))),
                times(rows(&source, &sql(0, "1")))
            );
        }
        let meta = format!("SELECT key, value FROM vm_meta WHERE vm = {id} ORDER BY key");
        assert_eq!(rows(&all, &meta), rows(&source, "SELECT key, value FROM meta ORDER BY key"));
    }
}

#[test]
fn machines_are_apart_and_equal_things_are_one() {
    let directory = tempdir().expect("a directory");
    let (_, all) = merged(&three(&directory), &directory);
    for (sql, expected) in [
        ("SELECT count(*) FROM vcpu", 6),
        ("SELECT max(id) FROM vcpu", 5),
        ("SELECT count(*) FROM instance", 12),
        ("SELECT count(DISTINCT vm) FROM instance", 3),
        // Of the files only the one with a build-id is the same.
        ("SELECT count(*) FROM file", 4),
        ("SELECT count(*) FROM cgroup", 1),
        ("SELECT count(*) FROM interrupt", 2),
        // main and serve once; parse, the kernel's and the generated code thrice; outer in two ways.
        ("SELECT count(*) FROM frame", 13),
        ("SELECT count(*) FROM inlined", 2),
        ("SELECT count(*) FROM stack", 13),
        ("SELECT count(*) FROM stack WHERE parent >= id", 0),
        ("SELECT count(*) FROM code", 1),
        ("SELECT count(*) FROM exit", 0),
        ("SELECT count(*) FROM console", 0),
        ("SELECT count(*) FROM event WHERE text = 'b: machine 2 lacks something'", 1),
    ] {
        assert_eq!(number(&all, sql), expected, "{sql}");
    }
}

fn estimates(report: &Report) -> BTreeMap<String, Estimate> {
    let breakdown = report.by.as_ref().expect("rows");
    let name = |row: &crate::report::Row| {
        let name = row.name.rsplit_once('/').map_or(row.name.as_str(), |(_, name)| name);
        format!("{name} {:?} {:?} {:?}", row.module, row.kind, row.tid)
    };
    breakdown.rows.iter().map(|row| (name(row), row.own)).collect()
}

#[test]
fn a_machine_has_the_report_of_its_own_profile() {
    let directory = tempdir().expect("a directory");
    let (merged, all) = merged(&three(&directory), &directory);
    for vm in &merged.vms {
        let source = Profile::open(&vm.profile).expect("a profile");
        let filter = Filter { vm: Some(vm.name.clone()), ..Filter::default() };
        for by in [
            By::Function,
            By::Process,
            By::Instance,
            By::Thread,
            By::Cgroup,
            By::Syscall,
            By::Irq,
            By::Module,
        ] {
            let read = |profile, filter: &Filter| {
                Report::read_with(profile, filter, &Request::By(vec![by])).expect("a report")
            };
            let (part, own) = (read(&all, &filter), read(&source, &Filter::default()));
            assert_eq!(estimates(&part), estimates(&own), "{} {by:?}", vm.name);
            assert_eq!(
                (part.ticks, part.busy_samples, part.lateness),
                (own.ticks, own.busy_samples, own.lateness)
            );
            assert_eq!(part.measured_rate_hz > 0.0, own.measured_rate_hz > 0.0);
            for (part, own) in part.vcpus.iter().zip(&own.vcpus) {
                assert_eq!((part.number, part.times, part.guest_s), (own.id, own.times, own.guest_s));
            }
        }
        let recording = |profile, filter: &Filter| {
            let request = RecordingRequest { filter: filter.clone(), ..RecordingRequest::default() };
            Recording::read(profile, &request, &mut |_, _| ()).expect("a recording")
        };
        let (part, own) = (recording(&all, &filter), recording(&source, &Filter::default()));
        let weights = |recording: &Recording| {
            recording.samples.iter().map(|sample| (sample.weight_ns, sample.mode)).collect::<Vec<_>>()
        };
        assert_eq!(weights(&part), weights(&own));
    }
    let one = Filter { vm: Some("c".to_owned()), vcpu: Some(2), ..Filter::default() };
    let report = Report::read(&all, &one).expect("a report");
    assert_eq!((report.vcpus.len(), report.vcpus[0].number, report.samples), (1, 2, 100));
    let host = Filter { host: Some("be*".to_owned()), ..Filter::default() };
    assert_eq!(Report::read(&all, &host).expect("a report").samples, 450);
}

/// Shares are of the time of all machines: each vCPU counts by its exact time, however often it is sampled.
#[test]
fn shares_are_of_the_time_of_all_machines() {
    let directory = tempdir().expect("a directory");
    let (_, all) = merged(&three(&directory), &directory);
    let sql = "SELECT c.guest_ns, avg(m.name <> 'idle'), avg(m.name IN ('user', 'kernel') AND i.comm = 'nginx') \
               FROM sample s JOIN vcpu c ON c.id = s.vcpu JOIN mode m ON m.id = s.mode \
               LEFT JOIN instance i ON i.id = s.instance GROUP BY c.id";
    let (mut busy, mut nginx) = (0.0, 0.0);
    for row in rows(&all, sql) {
        let [Value::Integer(ns), Value::Real(of_busy), Value::Real(of_nginx)] = row[..] else {
            panic!("{row:?}")
        };
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let ns = ns as f64;
        (busy, nginx) = (busy + ns * of_busy, nginx + ns * of_nginx);
    }
    let report =
        Report::read_with(&all, &Filter::default(), &Request::By(vec![By::Process])).expect("a report");
    let rows = &report.by.as_ref().expect("rows").rows;
    let found = rows.iter().find(|row| row.name == "nginx").expect("the program").own;
    assert!((found.share - nginx / busy).abs() < 1e-9, "{found:?} {}", nginx / busy);
    assert!((found.time_s - nginx / 1e9).abs() < 1e-9, "{found:?}");
    // Machines, hosts and vCPUs add up to all of it.
    for by in [By::Vm, By::Host] {
        let report = Report::read_with(&all, &Filter::default(), &Request::By(vec![by])).expect("a report");
        let rows = &report.by.as_ref().expect("rows").rows;
        let sum: f64 = rows.iter().map(|row| row.own.share).sum();
        assert!((sum - 1.0).abs() < 1e-9 && rows.len() == if by == By::Vm { 3 } else { 2 }, "{rows:?}");
        assert_eq!(rows.iter().map(|row| row.own.samples).sum::<u64>(), report.busy_samples);
    }
    let per_vm = "SELECT vm, sum(samples) FROM v_processes GROUP BY vm ORDER BY vm";
    let of_views: Vec<_> = rows_of(&all, per_vm);
    assert_eq!(of_views.len(), 3);
    assert_eq!(report.busy_samples.cast_signed(), of_views.iter().map(|(_, samples)| samples).sum::<i64>());
}

fn rows_of(profile: &Profile, sql: &str) -> Vec<(String, i64)> {
    let pair = |row: Vec<Value>| match &row[..] {
        [Value::Text(name), Value::Integer(number)] => (name.clone(), *number),
        other => panic!("{other:?}"),
    };
    rows(profile, sql).into_iter().map(pair).collect()
}

#[test]
fn processes_of_machines_are_apart() {
    let directory = tempdir().expect("a directory");
    let (_, all) = merged(&three(&directory), &directory);
    let filter = Filter { instance: Some("b/nginx#0".to_owned()), ..Filter::default() };
    let one = Report::read(&all, &filter).expect("a report");
    let each = Filter { instance: Some("nginx#0".to_owned()), ..Filter::default() };
    let three = Report::read(&all, &each).expect("a report");
    assert_eq!((one.processes.len(), three.processes.len()), (1, 3));
    assert_eq!(one.processes[0].vm.as_deref(), Some("b"));
    let machines: BTreeSet<_> = three.processes.iter().map(|process| process.vm.clone()).collect();
    assert_eq!(machines.len(), 3);
    // A parent is a process of the same machine.
    let tree = Filter { tree: Some("a/nginx#0".to_owned()), ..Filter::default() };
    let tree = Report::read(&all, &tree).expect("a report");
    assert!(tree.processes.iter().all(|process| process.vm.as_deref() == Some("a")), "{:?}", tree.processes);
    assert_eq!(tree.processes.len(), 2);
}

#[test]
fn machines_of_one_name_get_numbers() {
    let directory = tempdir().expect("a directory");
    let deeper = tempdir().expect("a directory");
    let paths = [A.write(&directory, "web"), B.write(&deeper, "web")];
    let (merged, all) = merged(&paths, &directory);
    let names: Vec<&str> = merged.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["web", "web#2"]);
    let both = Filter { vm: Some("web*".to_owned()), ..Filter::default() };
    assert_eq!(Report::read(&all, &both).expect("a report").samples, 550);
}

fn refused(paths: &[PathBuf], directory: &TempDir) -> String {
    let output = directory.path().join("refused.vprof");
    let error = merge(paths, &output, false, &mut |_, _| ()).expect_err("a refusal").to_string();
    assert!(!output.exists() && !error.contains('\n'), "{error}");
    error
}

#[test]
fn what_cannot_be_merged_says_so() {
    let directory = tempdir().expect("a directory");
    let paths = three(&directory);
    let (c, a) = (paths[0].clone(), paths[1].clone());
    let (_, all) = merged(&paths, &directory);
    let end = |error: &str, end: &str| assert!(error.ends_with(end), "{error}");
    end(&refused(&[a.clone(), a.clone()], &directory), "are of the same run: name it once");
    let copy = directory.path().join("copy.vprof");
    std::fs::copy(&a, &copy).expect("a copy");
    end(&refused(&[a.clone(), copy], &directory), "are of the same run: name it once");
    let again = [a.clone(), all.path().to_owned()];
    end(&refused(&again, &directory), "is merged already: name the profiles that it was made of");
    let output = merge(&paths, &a, true, &mut |_, _| ()).expect_err("a refusal").to_string();
    end(&output, "is both a source and the output: give another name with -o");

    let changed = |name: &str, sql: &str| {
        let path = directory.path().join(format!("{name}.vprof"));
        std::fs::copy(&c, &path).expect("a copy");
        Connection::open(&path).expect("a database").execute_batch(sql).expect(sql);
        refused(&[a.clone(), path], &directory)
    };
    end(&changed("older", "PRAGMA user_version = 10"), "record again, or use the vprof that wrote it");
    end(&changed("start", "DELETE FROM meta WHERE key = 'started_unix_ns'"), "started: record again");
    let far = "UPDATE meta SET value = '18446744073709551615' WHERE key = 'started_unix_ns'";
    end(&changed("far", far), "has impossible times: its run is too long, or too far from the others");
    end(&changed("time", "UPDATE sample SET time_ns = -1"), "is damaged: a time is out of range");
    let text = "UPDATE instance SET pid = 'x' WHERE id = 1";
    end(&changed("type", text), "is damaged: a value has another type than its column");
    end(&changed("stack", "UPDATE stack SET parent = 6 WHERE id = 2"), "a stack comes before its caller");
    end(&changed("id", "UPDATE frame SET id = 0 WHERE id = 1"), "a row has an impossible number");
    let cut = directory.path().join("cut.vprof");
    let bytes = std::fs::read(&c).expect("a file");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a file");
    assert!(refused(&[a, cut], &directory).contains("is cut off: it has "));
}

#[test]
fn a_killed_run_is_merged_and_the_report_says_so() {
    let directory = tempdir().expect("a directory");
    let mut killed = B.batch();
    killed.meta.retain(|(key, _)| key != "complete");
    let path = directory.path().join("killed.vprof");
    written(&path, &killed);
    let (_, all) = merged(&[A.write(&directory, "a"), path], &directory);
    let report = Report::read(&all, &Filter::default()).expect("a report");
    assert!(!report.complete && report.missing.contains(&"killed: its run did not end properly".to_owned()));
    // Rates and clocks differ: the mean is over vCPUs.
    assert!((report.rate_hz - 750.0).abs() < 1e-9 && report.clock == "mixed" && report.intervals_valid);
}

#[test]
fn data_of_one_machine_is_refused() {
    use crate::report::{ExactReport, MemoryReport, SourceChoice, StateReport, TripReport};
    let directory = tempdir().expect("a directory");
    let (_, all) = merged(&three(&directory), &directory);
    let filter = Filter::default();
    let exact = ExactReport::read(&all, &[]).err().map(|error| error.to_string());
    let states = StateReport::read(&all, &filter, SourceChoice::Best).err().map(|error| error.to_string());
    for error in [exact, states] {
        assert!(error.as_ref().is_some_and(|error| error.ends_with(ONE_VM)), "{error:?}");
    }
    let boot = crate::boot::Boot::read(&all).err();
    let rusage = crate::rusage::Rusage::read(&all).err();
    for error in [boot, rusage] {
        assert!(matches!(error, Some(ProfileError::Merged { .. })), "{error:?}");
    }
    let memory = MemoryReport::read(&all, &filter).err().map(|error| error.to_string());
    let trips = TripReport::read(&all, &filter).err().map(|error| error.to_string());
    for error in [memory, trips] {
        let error = error.expect("a refusal");
        assert!(error.ends_with(": use the profile of one virtual machine"), "{error}");
    }
    assert!(!crate::boot::Boot::is_recorded(&all).expect("an answer"));
    let named = |vm: &str| Filter { vm: Some(vm.to_owned()), ..Filter::default() };
    let unknown = Report::read(&all, &named("d")).expect_err("no such machine").to_string();
    assert!(unknown.starts_with("the profile has no virtual machine d:"), "{unknown}");
    let own = Profile::open(&directory.path().join("a.vprof")).expect("a profile");
    let alone = Report::read(&own, &named("a")).expect_err("not merged").to_string();
    assert!(alone.starts_with("the profile is of one virtual machine"), "{alone}");
}
