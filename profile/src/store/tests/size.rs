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
    // Without the limit: 20,000 samples with 127 frames, 127 stacks and 20 processes each, some 200 MB.
    assert!(size > 8 << 20 && size < 20 << 20, "{size} bytes");
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
