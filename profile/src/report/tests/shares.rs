//! Rows, their shares, filters and order.

use super::*;

#[test]
fn the_known_answer() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    assert_eq!((report.samples, report.busy_samples, report.lost), (100, 80, 1));
    let rows: Vec<_> = report
        .processes
        .iter()
        .map(|p| (p.comm.as_str(), p.pid, p.instance, p.kind, p.estimate.samples))
        .collect();
    use ProcessKind::{Boot, Interrupt, KernelThread, Process, Unknown};
    assert_eq!(
        rows,
        [
            ("gzip", 10, 0, Process, 30),
            ("gzip", 11, 1, Process, 16),
            ("[unknown]", 0, 0, Unknown, 10),
            ("[early boot]", 0, 0, Boot, 8),
            ("[hard interrupts]", 0, 0, Interrupt, 6),
            ("kthreadd", 2, 0, KernelThread, 6),
            ("[soft interrupts]", 0, 0, Interrupt, 4),
        ]
    );
    let programs: Vec<_> =
        report.programs.iter().map(|p| (p.comm.as_str(), p.instances, p.pid, p.estimate.samples)).collect();
    assert_eq!(
        programs,
        [
            ("gzip", 2, None, 46),
            ("[unknown]", 0, None, 10),
            ("[early boot]", 0, None, 8),
            ("[hard interrupts]", 0, None, 6),
            ("kthreadd", 1, Some(2), 6),
            ("[soft interrupts]", 0, None, 4),
        ]
    );
    let sum = |of: fn(&Program) -> f64| report.programs.iter().map(of).sum::<f64>();
    assert!((sum(|p| p.estimate.share) - 1.0).abs() < 1e-12);
    assert!((sum(|p| p.user_share + p.kernel_share) - 1.0).abs() < 1e-12);
    let gzip = &report.processes[0];
    assert_eq!((gzip.estimate.share, gzip.user_share, gzip.kernel_share), (0.375, 0.25, 0.125));
    assert!(
        gzip.estimate.share_low < 0.375
            && gzip.estimate.share_low > 0.27
            && gzip.estimate.share_high > 0.375
            && gzip.estimate.share_high < 0.49
    );
    for process in &report.processes {
        assert!((process.user_share + process.kernel_share - process.estimate.share).abs() < 1e-12);
    }
    let functions: Vec<_> = report
        .functions
        .iter()
        .map(|f| (f.symbol.as_str(), f.module.as_deref(), f.mode.as_str(), f.estimate.samples))
        .collect();
    assert_eq!(
        functions,
        [
            ("[user]", Some("gzip"), "user", 30),
            ("schedule", None, "kernel", 10),
            ("[early boot]", None, "boot", 8),
            ("0xffffffffc1000000", None, "unknown", 7),
            ("ext4_read", Some("ext4"), "kernel", 6),
            ("schedule", None, "hardirq", 5),
            ("[zfs]", Some("zfs"), "kernel", 4),
            ("ext4_read", Some("ext4"), "softirq", 4),
            ("[user]", Some("[unknown]"), "user", 3),
            ("0xffffffffc1000000", None, "kernel", 2),
            ("schedule", None, "nmi", 1),
        ]
    );
    for sum in shares(&report) {
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}

#[test]
fn vcpus_and_the_rest() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    let [first, second] = report.vcpus.as_slice() else { panic!("two vCPUs") };
    assert_eq!((first.samples, first.user, first.kernel, first.hardirq), (40, 0.5, 0.25, 0.15));
    assert_eq!((first.softirq, first.idle, first.lost), (0.1, 0.0, 0));
    assert_eq!((second.samples, second.lost, second.exits), (60, 1, 30));
    assert!((second.kernel - 27.0 / 60.0).abs() < 1e-12 && (second.idle - 20.0 / 60.0).abs() < 1e-12);
    for vcpu in &report.vcpus {
        let sum = vcpu.user + vcpu.kernel + vcpu.hardirq + vcpu.softirq + vcpu.idle;
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
    assert_eq!(
        (report.host.as_str(), report.kernel.as_deref(), report.complete),
        ("portable", Some("6.1.0"), true)
    );
    assert_eq!((report.duration_s, report.rate_hz, report.seed), (2.0, 1_000.0, u64::MAX));
    assert_eq!((report.started_unix_s, report.measured_rate_hz), (1.5e9, 21.0 / 4.0));
    assert_eq!(report.overhead, Overhead { sampler_s: 0.01, guest_s: 3.8, wall_s: 4.0, share: 0.0025 });
    assert_eq!(report.lateness.over_1ms, 1);
    assert!((19_900..=20_100).contains(&report.lateness.median_ns), "{:?}", report.lateness);
    assert!((2_990_000..=3_010_000).contains(&report.lateness.max_ns), "{:?}", report.lateness);
    assert_eq!(report.missing, ["no BTF"]);
    assert_eq!(report.events[0].time_s, 0.5);
    assert_eq!(report.meta.into_iter().collect::<Vec<_>>(), [("image".to_owned(), "demo.img".to_owned())]);
}

/// The views agree with the report.
#[test]
fn views_agree_with_the_report() {
    let (_directory, path) = known().write();
    let report = read(&path, &Filter::default());
    let profile = Profile::open(&path).expect("a profile");
    let rows = |sql: &str| profile.query(sql).expect("an answer").rows;
    let integer = |value: u64| Value::Integer(value.try_into().expect("small"));
    let near =
        |value: &Value, expected: f64| matches!(value, Value::Real(value) if (value - expected).abs() < 1e-9);
    let processes = rows(
        "SELECT comm, pid, instance, samples, sample_share, user_sample_share, kernel_sample_share FROM v_processes",
    );
    assert_eq!(processes.len(), report.processes.len());
    for p in &report.processes {
        let same = |row: &&Vec<Value>| {
            row[0] == Value::Text(p.comm.clone()) && row[1] == integer(p.pid.unsigned_abs().into())
        };
        let row = processes.iter().find(same).expect("the same process");
        assert_eq!(row[2..4], [integer(p.instance.into()), integer(p.estimate.samples)]);
        assert!(
            near(&row[4], p.estimate.share) && near(&row[5], p.user_share) && near(&row[6], p.kernel_share),
            "{row:?}"
        );
    }
    let functions = rows("SELECT symbol, module, mode, samples, sample_share FROM v_functions");
    assert_eq!(functions.len(), report.functions.len());
    for f in &report.functions {
        let module = f.module.clone().map_or(Value::Null, Value::Text);
        let key =
            [Value::Text(f.symbol.clone()), module, Value::Text(f.mode.clone()), integer(f.estimate.samples)];
        let row = functions.iter().find(|row| row[..4] == key).expect("the same function");
        assert!(near(&row[4], f.estimate.share));
    }
    let vcpus = rows("SELECT id, samples, user, kernel, hardirq, softirq, idle FROM v_vcpus ORDER BY id");
    for (v, row) in report.vcpus.iter().zip(&vcpus) {
        assert_eq!(row[..2], [integer(v.id.into()), integer(v.samples)]);
        let parts = [v.user, v.kernel, v.hardirq, v.softirq, v.idle];
        assert!(row[2..].iter().zip(parts).all(|(value, part)| near(value, part)), "{row:?}");
    }
}

#[test]
fn filters_choose_a_part() {
    let (_directory, path) = known().write();
    let by_process =
        |process: &str| read(&path, &Filter { process: vec![process.to_owned()], ..Filter::default() });
    let both = by_process("gzip");
    assert_eq!(
        both.processes.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(),
        [(10, 30), (11, 16)]
    );
    assert_eq!((both.samples, both.busy_samples, both.vcpus.len()), (100, 80, 2));
    for sum in shares(&both) {
        assert!((sum - 46.0 / 80.0).abs() < 1e-9, "shares still refer to everything: {sum}");
    }
    for one in ["11", "gzip#1"] {
        let report = by_process(one);
        assert_eq!(
            report.processes.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(),
            [(11, 16)]
        );
        assert!(report.functions.iter().all(|f| f.mode == "user" || f.mode == "kernel"));
    }
    let several = |names: &[&str]| {
        let process = names.iter().map(|name| (*name).to_owned()).collect();
        let report = read(&path, &Filter { process, ..Filter::default() });
        report.processes.iter().map(|p| p.pid).collect::<Vec<_>>()
    };
    assert_eq!(several(&["gzip#1", "kthreadd"]), [11, 2]);
    assert_eq!(several(&["*"]), [10, 11, 2]);
    assert_eq!(several(&["g*p"]), [10, 11]);
    assert_eq!(several(&["k*d*d*"]), [2]);
    let first = read(&path, &Filter { vcpu: Some(0), ..Filter::default() });
    assert_eq!((first.samples, first.busy_samples, first.vcpus.len()), (40, 40, 1));
    assert!((shares(&first)[0] - 1.0).abs() < 1e-9);
    // Sample n was taken at n * 10 ms.
    let early = read(&path, &Filter { from_ns: Some(100 * MS), to_ns: Some(200 * MS), ..Filter::default() });
    assert_eq!((early.samples, early.processes.len(), early.processes[0].estimate.share), (10, 1, 1.0));
    let none = read(&path, &Filter { from_ns: Some(1_999 * MS), ..Filter::default() });
    assert_eq!((none.samples, none.processes.len(), none.vcpus[0].user), (0, 0, 0.0));
}

#[test]
fn wrong_filters_are_told() {
    let (_directory, path) = known().write();
    let profile = Profile::open(&path).expect("a profile");
    let error = |filter: Filter| Report::read(&profile, &filter).expect_err("a wrong filter").to_string();
    for process in ["xz", "12", "gzip#22", "gzip#x", ""] {
        let filter = Filter { process: vec![process.to_owned()], ..Filter::default() };
        let (error, start) = (error(filter), format!("the profile has no process {process}: "));
        let advice = error.strip_prefix(&start).expect("what is not there");
        let near = if process.starts_with("gzip#") { "near are gzip" } else { "" };
        assert!([near, "`vprof report FILE --by process` lists them"].contains(&advice), "{error}");
    }
    // A prefix and a suffix do not overlap, and each of several names has to exist.
    for process in [vec!["gzi*zip".to_owned()], vec!["gzip".to_owned(), "x*".to_owned()]] {
        let last = process.last().expect("a name").clone();
        let error = error(Filter { process, ..Filter::default() });
        assert!(error.starts_with(&format!("the profile has no process {last}: ")), "{error}");
    }
    let list = Filter { process: vec!["gzip,x*".to_owned()], ..Filter::default() };
    assert_eq!(error(list), "the profile has no process gzip,x*: give each name its own --process");
    let no_vcpu = Filter { vcpu: Some(2), ..Filter::default() };
    assert_eq!(error(no_vcpu), "the profile has no vCPU 2: it has 2, counted from 0");
    let late = Filter { from_ns: Some(2_001 * MS), ..Filter::default() };
    assert_eq!(error(late), "the time range begins after the end of the run, which lasted 2.000 s");
    let empty = Filter { from_ns: Some(5), to_ns: Some(5), ..Filter::default() };
    assert_eq!(error(empty), "the time range ends before it begins");
}

#[test]
fn rows_are_sorted_as_asked() {
    let (_directory, path) = known().write();
    let mut report = read(&path, &Filter::default());
    let order = |report: &mut Report, key: &str| {
        report.sort(key.parse().expect("a key"));
        let pids = report.processes.iter().map(|p| p.pid).collect::<Vec<_>>();
        (pids, report.functions[0].symbol.clone())
    };
    assert_eq!(order(&mut report, "pid"), (vec![0, 0, 0, 0, 2, 10, 11], "[user]".into()));
    assert_eq!(order(&mut report, "name"), (vec![0, 0, 0, 0, 10, 11, 2], "0xffffffffc1000000".into()));
    assert_eq!(order(&mut report, "kernel").1, "schedule");
    assert_eq!(report.processes[0].comm, "gzip");
    assert_eq!(order(&mut report, "user").0[..2], [10, 11]);
    assert_eq!(order(&mut report, "samples").0, [10, 11, 0, 0, 0, 2, 0]);
    assert_eq!(
        "size".parse::<Sort>().expect_err("no key").to_string(),
        "size is not one of self, samples, total, name, pid, user, kernel"
    );
}

#[test]
fn two_hundred_instances_of_one_name() {
    let mut run = Run::new();
    run.batch.instances.clear();
    for id in 1..=200 {
        run.batch.instances.push(InstanceRow {
            id,
            pid: 300,
            start_ns: id.into(),
            comm: "true".to_owned(),
            number: id - 1,
            ..Default::default()
        });
        run.add(1, 0, Mode::Kernel, Some(id), 1);
    }
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    assert_eq!(report.processes.len(), 200);
    assert!(report.processes.iter().all(|p| p.comm == "true" && p.pid == 300 && p.estimate.samples == 1));
    assert_eq!(
        read(&path, &Filter { process: vec!["true#77".into()], ..Filter::default() }).processes.len(),
        1
    );
    assert_eq!(report.functions.len(), 1);
}

#[test]
fn a_profile_without_samples_has_a_report() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("run.vprof");
    // As in a run that continues: without a sample its file is there as long as its writer.
    let _writer = ProfileWriter::create(&path, false).expect("a new profile");
    let report = read(&path, &Filter::default());
    assert_eq!((report.samples, report.complete, report.host.as_str()), (0, false, "unknown"));
    assert_eq!(report.lateness, Lateness { median_ns: 0, p99_ns: 0, max_ns: 0, over_1ms: 0 });
    assert!(report.processes.is_empty() && report.vcpus.is_empty());
}

#[test]
fn frames_without_a_row_keep_the_sum() {
    let mut run = Run::new();
    run.add(3, 0, Mode::Kernel, Some(1), 999);
    run.add(1, 0, Mode::Kernel, Some(77), 1);
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    for sum in shares(&report) {
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
    assert_eq!((report.functions[0].symbol.as_str(), report.functions[0].estimate.samples), ("[unknown]", 3));
}
