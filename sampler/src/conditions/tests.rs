use guest_linux::TaskSnapshot;
use proptest::prelude::*;

use std::time::Duration;

use super::*;
use profile::conditions::{Condition, ConditionTimes, RunTrigger};
use profile::rows::{Batch, CgroupRow, ConsoleRow, EventRow, ExitRow, InjectedRow, UnitEventRow};

fn batch(console: &[&str]) -> Batch {
    let row = |text: &&str| ConsoleRow { time_ns: 0, bytes: text.as_bytes().to_vec() };
    Batch { console: console.iter().map(row).collect(), ..Batch::default() }
}

fn named(name: &str) -> TaskSnapshot {
    let mut task = TaskSnapshot { pid: 7, ..TaskSnapshot::default() };
    task.process_comm[..name.len()].copy_from_slice(name.as_bytes());
    task
}

fn started_by(condition: Condition) -> SamplingGate {
    let mut gate = SamplingGate::default();
    assert!(gate.arm(RunTrigger::Start(condition), 0) && gate.is_closed());
    gate
}

#[test]
fn a_line_is_seen_whole_or_unfinished_and_without_colours() {
    for parts in [&["noise\n", "\x1b[1mwarm\x1b[0m up"][..], &["wa", "rm up: "], &["warm up done\r\n"]] {
        let when = Condition::Console("^warm up".to_owned());
        let mut gate = started_by(when.clone());
        gate.scan(&batch(&["lukewarm up\n"]));
        assert!(gate.decide(1).is_empty());
        gate.forget_rows();
        gate.scan(&batch(parts));
        assert_eq!(gate.decide(2), [GateAction::Open(when)], "{parts:?}");
        assert!(!gate.is_closed() && gate.seen.start_ns == Some(2));
    }
}

#[test]
fn a_boot_is_over_when_systemd_says_so_of_all_of_it() {
    let mut gate = SamplingGate::default();
    gate.arm(RunTrigger::Until(Condition::Started), 0);
    assert!(gate.needs_tasks());
    let row = |step: &str| UnitEventRow { step: step.to_owned(), ..UnitEventRow::default() };
    let mut rows = Batch { unit_events: vec![row("started")], ..Batch::default() };
    gate.scan(&rows);
    assert!(gate.decide(1).is_empty());
    rows.unit_events.push(row("finished"));
    gate.scan(&rows);
    assert_eq!(gate.decide(2), [GateAction::End(Condition::Started)]);
}

#[test]
fn a_row_is_scanned_once() {
    let mut gate = started_by(Condition::Console("abab".to_owned()));
    let mut rows = batch(&["ab"]);
    gate.scan(&rows);
    gate.scan(&rows);
    assert!(gate.decide(0).is_empty());
    rows.console.push(ConsoleRow { time_ns: 0, bytes: b"ab".to_vec() });
    gate.scan(&rows);
    assert_eq!(gate.decide(0).len(), 1);
}

#[test]
fn a_process_is_there_when_it_has_the_name_and_gone_when_two_lists_say_so() {
    let mut gate = started_by(Condition::Process("a-name-of-many-bytes".to_owned()));
    gate.arm(
        RunTrigger::Stop { when: Condition::ProcessEnd("a-name-of-many-bytes".to_owned()), end: true },
        0,
    );
    assert!(gate.needs_tasks());
    gate.list(&[named("sh")]);
    assert!(gate.decide(1).is_empty());
    gate.task(&named("a-name-of-many-"));
    assert!(matches!(gate.decide(2)[..], [GateAction::Open(_)]));
    for (tasks, ends) in [
        (vec![], false),
        (vec![], false),
        (vec![named("a-name-of-many-")], false),
        (vec![], false),
        (vec![named("a-name-of-many-")], false),
        (vec![named("sh")], false),
        (vec![], true),
    ] {
        gate.list(&tasks);
        assert_eq!(matches!(gate.decide(3)[..], [GateAction::Close(_, true)]), ends);
    }
    assert!(gate.is_closed() && !gate.needs_tasks());
}

#[test]
fn the_end_is_waited_for_once_sampling_has_begun() {
    let mut gate = started_by(Condition::Time(Duration::from_nanos(100)));
    gate.arm(RunTrigger::Stop { when: Condition::Time(Duration::from_nanos(50)), end: false }, 0);
    assert!(gate.decide(99).is_empty());
    assert!(matches!(gate.decide(120)[..], [GateAction::Open(_)]));
    assert!(gate.decide(169).is_empty());
    assert!(matches!(gate.decide(170)[..], [GateAction::Close(_, false)]));
}

#[test]
fn marks_and_units_are_seen_and_somebody_may_open_before() {
    let mut gate = started_by(Condition::Mark("go".to_owned()));
    gate.arm(RunTrigger::Until(Condition::Unit("nginx.service".to_owned())), 0);
    let event =
        |kind: &str, text: &str| EventRow { time_ns: 0, kind: kind.to_owned(), text: text.to_owned() };
    let group = |path: &str| CgroupRow { id: 1, path: path.to_owned(), unit: None, container: None };
    let mut rows = Batch { events: vec![event("kernel", "go"), event("mark", "gone")], ..Batch::default() };
    rows.cgroups = vec![group("/system.slice/nginx.services")];
    gate.scan(&rows);
    assert!(gate.decide(1).is_empty());
    rows.events.push(event("mark", "go"));
    rows.cgroups.push(group("/system.slice/nginx.service/worker"));
    gate.scan(&rows);
    assert!(matches!(gate.decide(2)[..], [GateAction::Open(_), GateAction::End(_)]));
    assert_eq!(
        gate.seen,
        ConditionTimes { start_ns: Some(2), stop_ns: None, until_ns: Some(2), still_ns: None }
    );
    let mut gate = started_by(Condition::Mark("go".to_owned()));
    assert!(gate.open(5) && !gate.open(6) && !gate.is_closed());
}

#[test]
fn a_pattern_that_does_not_compile_is_refused_with_the_place() {
    let error =
        |pattern: &str| Condition::Console(pattern.to_owned()).check().expect_err(pattern).to_string();
    assert_eq!(error("é(ab"), "invalid regular expression at character 2: unclosed group");
    assert_eq!(error("ab)"), "invalid regular expression at character 3: unopened group");
    assert!(error("((a{1000}){1000}){1000}").contains("too large"));
    assert!(error(&"a".repeat(1_001)).contains("too large"));
    assert!(Condition::Console("^login: $".to_owned()).check().is_ok());
}

#[test]
fn a_panic_in_which_the_kernel_stays_ends_the_run() {
    let mut gate = SamplingGate::default();
    gate.arm(RunTrigger::Still(None), 0);
    gate.scan(&batch(&["[    1.0] Kernel panic - not syncing: no init\n", "---[ end Kernel panic - not"]));
    assert!(gate.decide(1).is_empty());
    gate.forget_rows();
    gate.scan(&batch(&[" syncing: no init ]---"]));
    assert_eq!(gate.decide(2), [GateAction::Panicked]);
    assert!(gate.decide(3).is_empty());
}

#[test]
fn a_guest_progresses_by_output_processes_disks_and_new_kinds_of_exits() {
    let exit = |id, device: &str| ExitRow {
        id,
        reason: "port write".to_owned(),
        device: Some(device.to_owned()),
        ..ExitRow::default()
    };
    let disk = |count| vec![InjectedRow { device: "disk 0".to_owned(), vector: None, count }];
    let event = EventRow { time_ns: 0, kind: "stopped".to_owned(), text: String::new() };
    let mut gate = SamplingGate::default();
    gate.arm(RunTrigger::Still(Some(Duration::from_nanos(10))), 0);
    assert!(gate.needs_tasks());
    let task = |start_ns, kernel_thread, name| TaskSnapshot { start_ns, kernel_thread, ..named(name) };
    gate.task(&task(5, false, "sh"));
    type Sign<'a> = &'a dyn Fn(&mut SamplingGate);
    let signs: [(&str, Sign<'_>, bool); 12] = [
        ("first process", &|_| {}, true),
        ("console", &|gate| gate.scan(&batch(&["."])), true),
        (
            "vprof was stopped",
            &|gate| gate.scan(&Batch { events: vec![event.clone()], ..Batch::default() }),
            true,
        ),
        ("process", &|gate| gate.list(&[task(5, false, "sh"), task(6, false, "cp")]), true),
        ("the same processes", &|gate| gate.list(&[task(5, false, "sh"), task(6, false, "cp")]), false),
        ("work queue", &|gate| gate.list(&[task(9, true, "kworker/0:1")]), false),
        ("disk", &|gate| gate.counted(&Batch { injected: disk(7), ..Batch::default() }), true),
        ("still disk", &|gate| gate.counted(&Batch { injected: disk(7), ..Batch::default() }), false),
        ("new exit", &|gate| gate.counted(&Batch { exits: vec![exit(4, "rng")], ..Batch::default() }), true),
        (
            "the same exit",
            &|gate| gate.counted(&Batch { exits: vec![exit(4, "rng")], ..Batch::default() }),
            false,
        ),
        (
            "output of a command",
            &|gate| gate.counted(&Batch { exits: vec![exit(1, "second serial port")], ..Batch::default() }),
            true,
        ),
        ("nothing", &|_| {}, false),
    ];
    let (mut now_ns, mut last_ns) = (0, 0);
    for (what, sign, progresses) in signs {
        now_ns += 2;
        sign(&mut gate);
        gate.forget_rows();
        assert!(gate.decide(now_ns).is_empty(), "{what}");
        last_ns = if progresses { now_ns } else { last_ns };
        assert_eq!(gate.progress_ns(), Some(last_ns), "{what}");
    }
    assert!(gate.decide(last_ns + 9).is_empty());
    assert_eq!(gate.decide(last_ns + 10), [GateAction::Still(Duration::from_nanos(10))]);
    assert!(gate.decide(last_ns + 99).is_empty() && gate.seen.still_ns == Some(last_ns + 10));
}

proptest! {
    #[test]
    fn any_output_is_scanned_within_bounds(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..30)) {
        let mut gate = started_by(Condition::Console("never\u{10ffff}never".to_owned()));
        for bytes in chunks {
            let rows = Batch { console: vec![ConsoleRow { time_ns: 0, bytes }], ..Batch::default() };
            gate.scan(&rows);
            gate.forget_rows();
        }
        prop_assert!(gate.decide(0).is_empty());
    }
}
