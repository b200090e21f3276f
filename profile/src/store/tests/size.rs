//! The limit of a profile.

use super::*;

/// Rows of a hostile guest in a fifth of a second: each sample has another process and another stack.
fn flood(n: u32) -> Batch {
    const SAMPLES: u32 = 50;
    const DEPTH: u32 = 127;
    let mut batch = batch(0);
    (batch.instances, batch.frames, batch.console) = (Vec::new(), Vec::new(), Vec::new());
    for n in n * SAMPLES..(n + 1) * SAMPLES {
        let first = 10 + n * DEPTH;
        let process = |id| InstanceRow { id, comm: format!("p{id}"), ..InstanceRow::default() };
        batch.instances.extend((0..20).map(|k| process(10 + n * 20 + k)));
        for id in first..first + DEPTH {
            batch.frames.push(FrameRow { id, address: id.into(), ..FrameRow::default() });
            batch.stacks.push(StackRow { id, parent: (id > first).then(|| id - 1), frame: id });
        }
        let last = first + DEPTH - 1;
        let row = SampleRow { frame: last, stack: Some(last), instance: Some(10 + n * 20), ..sample(1) };
        batch.samples.push(row);
    }
    batch
}

/// Runs of a task, `count` of them.
fn runs(count: u64) -> Batch {
    let run = |n: u64| TaskRunRow {
        vcpu: 1,
        instance: 300,
        tid: 4_711,
        from_ns: 60_000_000_000 + n * 100_000,
        wait_ns: 5_000_000 + n,
        delay_ns: 20_000 + n,
        running_ns: 100_000 + n,
        interrupted_ns: 3_000,
        sampler_ns: 30_000 + n,
        state: TaskState::Sleep,
        wait_reason: WaitReason::Futex,
    };
    Batch { task_runs: (0..count).map(run).collect(), ..Batch::default() }
}

#[test]
fn runs_take_a_quarter_of_the_size_and_the_first_ones_stay() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile").limited_to(8 << 20);
    let size = || fs::metadata(&path).expect("a file").len();
    writer.write(&batch(3)).expect("room");
    for _ in 0..100 {
        writer.write(&runs(1_000)).expect("room");
    }
    writer.finish().expect("room");
    // The empty profile has 200 KiB.
    assert!(size() < (8 << 20) / 4 + (256 << 10), "{} bytes", size());
    let profile = Profile::open(&path).expect("a profile");
    let room = (8 << 20) / 4 / 56;
    let last = 60_000_000_000 + (room - 1) % 1_000 * 100_000;
    let kept = first(
        &profile,
        "SELECT count(*), max(id), (SELECT from_ns FROM task_run ORDER BY id DESC LIMIT 1) FROM task_run",
    );
    assert_eq!(kept, [room, room, last].map(Value::Integer));
}

#[test]
fn calls_take_a_quarter_of_the_size_and_the_first_ones_stay() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile").limited_to(8 << 20);
    let call = |n: u64| TripCallRow {
        trip: 2,
        vcpu: 1,
        time_ns: 60_000_000_000 + n * 10_000,
        mode: Mode::Kernel,
        instance: Some(300),
        tid: Some(4_711),
        stack: Some(70_000),
        weight: 1,
        arguments: [Some(i64::MIN + 5), Some(70_000), Some(4_096), Some(3), None, None],
    };
    let calls = Batch { trip_calls: (0..1_000).map(call).collect(), ..Batch::default() };
    for _ in 0..100 {
        writer.write(&calls).expect("room");
    }
    writer.finish().expect("room");
    let size = fs::metadata(&path).expect("a file").len();
    // The empty profile has 200 KiB.
    assert!(size < (8 << 20) / 4 + (256 << 10) && size > 1 << 20, "{size} bytes");
    let profile = Profile::open(&path).expect("a profile");
    let kept = first(&profile, "SELECT count(*), max(id) FROM trip_call");
    let room = (8 << 20) / 4 / 80;
    assert_eq!(kept, [room, room].map(Value::Integer));
}

#[test]
fn beyond_its_size_a_profile_has_no_more_runs() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile").limited_to(1 << 20);
    writer.write(&runs(10)).expect("room");
    for n in 0..40 {
        writer.write(&flood(n)).expect("room");
    }
    writer.write(&runs(10)).expect("room");
    writer.finish().expect("room");
    let profile = Profile::open(&path).expect("a profile");
    assert_eq!(first(&profile, "SELECT count(*) FROM task_run"), [Value::Integer(10)]);
}

#[test]
fn beyond_its_size_a_profile_has_every_sample_and_no_new_stack() {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("p.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a profile").limited_to(8 << 20);
    writer.write(&batch(3)).expect("room");
    for n in 0..400 {
        writer.write(&flood(n)).expect("room");
    }
    // A stack from before stays whole.
    let again = SampleRow { stack: Some(12), frame: 12, ..sample(1) };
    writer.write(&Batch { samples: vec![again], ..Batch::default() }).expect("room");
    writer.finish().expect("room");
    let size = fs::metadata(&path).expect("a file").len();
    // Without the limit: 20,000 samples with 127 frames, 127 stacks and 20 processes each, some 200 MB. The
    // log, of up to 4 MiB, counts until it is in the file.
    assert!(size > 4 << 20 && size < 20 << 20, "{size} bytes");
    let profile = Profile::open(&path).expect("a profile");
    let number = |sql: &str| match first(&profile, sql)[..] {
        [Value::Integer(number)] => number,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(number("SELECT count(*) FROM sample"), 20_004);
    assert_eq!(number("SELECT count(*) FROM sample WHERE frame NOT IN (SELECT id FROM frame)"), 0);
    assert_eq!(number("SELECT count(*) FROM sample WHERE instance NOT IN (SELECT id FROM instance)"), 0);
    assert_eq!(number("SELECT count(*) FROM sample WHERE stack NOT IN (SELECT id FROM stack)"), 0);
    assert!(number("SELECT count(*) FROM sample WHERE stack IS NULL") > 15_000);
    assert_eq!(number("SELECT stack FROM sample ORDER BY id DESC LIMIT 1"), 12);
    assert_eq!(number("SELECT count(*) FROM event WHERE text LIKE '%limit of 8 MiB%'"), 1);
}
