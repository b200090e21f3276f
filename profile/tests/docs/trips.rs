//! Reports of watched functions.

use std::collections::BTreeMap;

use profile::Filter;
use profile::report::{ReportError, TripReport, call_stacks, for_each_call};
use profile::rows::{
    Batch, FrameRow, InstanceRow, Mode, StackRow, TripArgumentRow, TripCallRow, TripRow, TripTextRow,
};

use super::{profile, types, written};

fn call(time_ns: u64, instance: u32, stack: Option<u32>, arguments: [Option<i64>; 6]) -> TripCallRow {
    let (mode, tid) = (Mode::Kernel, Some(7));
    let weight = u32::from(stack.is_some());
    TripCallRow { trip: 1, time_ns, mode, instance: Some(instance), tid, stack, weight, arguments, vcpu: 0 }
}

/// A function that was called by two programs and an interrupt, and one that was not called.
fn calls() -> Batch {
    let frame = |id, symbol: &str| FrameRow { id, symbol: Some(symbol.into()), ..FrameRow::default() };
    let argument = |number, name: &str, kind: &str, values| TripArgumentRow {
        trip: 1,
        number,
        name: name.into(),
        type_name: "int".into(),
        kind: kind.into(),
        values,
    };
    let modes = vec![(0, "MODE_ABS".to_owned()), (1, "MODE_REL".to_owned())];
    let known = [Some(1), Some(-1), Some(1), Some(0xffff_8000_0000_0000_u64.cast_signed()), Some(-2), None];
    let none = [None, Some(5), Some(7), Some(0), Some(0), None];
    let lost = [Some(0), Some(5), Some(0), Some(0), Some(0), None];
    let meta = [
        ("trips", "f, g"),
        ("trip_from_ns", "1000"),
        ("trip_to_ns", "2001000"),
        ("trip_end", "it"),
        ("duration_ns", "2001000"),
    ];
    Batch {
        meta: meta.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        instances: vec![
            InstanceRow { id: 1, pid: 7, comm: "one".into(), ..InstanceRow::default() },
            InstanceRow { id: 2, pid: 8, comm: "two".into(), ..InstanceRow::default() },
        ],
        frames: vec![frame(1, "caller"), frame(2, "f"), frame(3, "other"), frame(4, "f")],
        stacks: vec![
            StackRow { id: 1, parent: None, frame: 1 },
            StackRow { id: 2, parent: Some(1), frame: 2 },
            StackRow { id: 3, parent: None, frame: 3 },
            StackRow { id: 4, parent: Some(3), frame: 4 },
        ],
        trips: vec![
            TripRow {
                id: 1,
                symbol: "f".into(),
                typed: true,
                calls: 9,
                lost: 2,
                cost_ns: 500,
                ..TripRow::default()
            },
            TripRow { id: 2, symbol: "g".into(), ..TripRow::default() },
        ],
        trip_arguments: vec![
            argument(1, "name", "text", Vec::new()),
            argument(2, "size", "unsigned", Vec::new()),
            argument(3, "mode", "enum", modes),
            argument(4, "file", "pointer", Vec::new()),
            argument(5, "error", "signed", Vec::new()),
        ],
        trip_texts: vec![TripTextRow { id: 1, text: "/etc".into() }],
        trip_calls: vec![
            call(101_000, 1, Some(2), known),
            // Rows of several vCPUs are not in the order of time.
            TripCallRow { vcpu: 1, ..call(1_000, 1, Some(2), known) },
            call(301_000, 1, None, none),
            TripCallRow { weight: 3, ..call(401_000, 2, Some(4), lost) },
            TripCallRow { mode: Mode::SoftIrq, ..call(501_000, 2, None, lost) },
        ],
        ..Batch::default()
    }
}

#[test]
fn a_report_of_calls_fits_its_schema() {
    let directory = tempfile::tempdir().expect("a directory");
    let profile = written(&directory.path().join("trips.vprof"), &[calls()]);
    let report = TripReport::read(&profile, &Filter::default()).expect("calls");
    types().check(&serde_json::to_value(&report).expect("JSON"), "TripReport");
    let [f, g] = report.functions.as_slice() else { panic!("two functions") };
    assert_eq!((f.calls, f.lost, f.left_out, f.chosen, f.stacks), (9, 2, 2, 5, 3));
    assert_eq!((g.calls, g.interval.is_none(), g.arguments.is_none()), (0, true, true));
    assert!((f.rate_hz - 4_500.0).abs() < 1e-6 && (f.cost.whole_s - 500e-9).abs() < 1e-15);
    let interval = f.interval.as_ref().expect("intervals");
    let ns = [interval.mean_s, interval.max_s].map(|s| (s * 1e9).round());
    assert_eq!((interval.count, ns), (4, [125_000.0, 200_000.0]));
    let owners: Vec<_> =
        f.processes.iter().map(|owner| (owner.comm.as_str(), owner.pid, owner.calls)).collect();
    assert_eq!(owners, [("one", 7, 3), ("[softirq]", 0, 1), ("two", 8, 1)]);
    let callers: Vec<_> = f.callers.iter().map(|caller| (caller.stack.join("<"), caller.calls)).collect();
    assert_eq!(callers, [("other".to_owned(), 3.0), ("caller".to_owned(), 2.0)]);
    // One stack of three: the variance is 3 * 2.
    assert!((f.callers[0].error - 6_f64.sqrt()).abs() < 1e-12 && f.callers[1].error == 0.0);
    let values: Vec<BTreeMap<&str, u64>> = f
        .arguments
        .iter()
        .flatten()
        .map(|argument| argument.values.iter().map(|value| (value.value.as_str(), value.calls)).collect())
        .collect();
    let expected = [
        vec![("\"/etc\"", 2), ("NULL", 1), ("[unreadable]", 2)],
        vec![("18446744073709551615", 2), ("5", 3)],
        vec![("MODE_REL", 2), ("7", 1), ("MODE_ABS", 2)],
        vec![("0xffff800000000000", 2), ("NULL", 3)],
        vec![("-2", 2), ("0", 3)],
    ];
    assert_eq!(values, expected.map(BTreeMap::from_iter));
}

#[test]
fn a_part_of_the_calls_is_chosen() {
    let directory = tempfile::tempdir().expect("a directory");
    let profile = written(&directory.path().join("trips.vprof"), &[calls()]);
    let chosen = |filter| TripReport::read(&profile, &filter).map(|report| report.functions[0].chosen);
    let process = |name: &str| Filter { process: vec![name.to_owned()], ..Filter::default() };
    assert_eq!(chosen(process("one")).expect("calls"), 3);
    assert_eq!(chosen(process("two")).expect("calls"), 1, "not the interrupt");
    let late = Filter { from_ns: Some(301_000), to_ns: Some(501_000), ..Filter::default() };
    assert_eq!(chosen(late).expect("calls"), 2);
    assert!(matches!(chosen(process("three")), Err(ReportError::NoSuch { .. })));
    let stacks = call_stacks(&profile, &Filter::default(), "f").expect("stacks");
    let lines: Vec<_> =
        stacks.iter().map(|call| (call.comm.as_str(), call.stack.join("<"), call.calls)).collect();
    assert_eq!(lines, [("one", "f<caller".to_owned(), 2), ("two", "f<other".to_owned(), 3)]);
    let error = call_stacks(&profile, &Filter::default(), "h").unwrap_err().to_string();
    assert!(error.contains("no watched function h"), "{error}");
    let mut times = Vec::new();
    for_each_call(&profile, |call| {
        times.push(call.time_ns);
        assert_eq!((call.symbol.as_str(), call.arguments.len()), ("f", 5));
        assert_eq!(call.tid.is_some(), !call.comm.starts_with('['));
        Ok::<_, ReportError>(())
    })
    .expect("calls");
    assert_eq!(times, [1_000, 101_000, 301_000, 401_000, 501_000]);
}

#[test]
fn a_profile_without_calls_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = TripReport::read(&profile(directory.path()), &Filter::default()).unwrap_err().to_string();
    assert!(error.contains("without `vprof run --trip FUNCTION`"), "{error}");
    let batch = Batch { meta: vec![("trips".to_owned(), "f".to_owned())], ..Batch::default() };
    let early = written(&directory.path().join("early.vprof"), &[batch]);
    let error = TripReport::read(&early, &Filter::default()).unwrap_err().to_string();
    assert!(error.contains("before f could be watched"), "{error}");
}
