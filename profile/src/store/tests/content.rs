//! Rows, and a reader next to the writer.

use super::*;

#[test]
fn one_file_with_everything_remains() {
    let (directory, path) = finished(3);
    let names: Vec<_> = fs::read_dir(&directory).expect("a directory").collect();
    assert_eq!(names.len(), 1);
    let profile = Profile::open(&path).expect("a profile");
    let text = |text: &str| Value::Text(text.to_owned());
    assert_eq!(
        first(&profile, "SELECT id, pid, start_ns, comm, number, kernel_thread FROM instance"),
        [
            Value::Integer(1),
            Value::Integer(12),
            Value::Integer(99),
            text("gzip"),
            Value::Integer(3),
            Value::Integer(0)
        ]
    );
    assert_eq!(
        first(&profile, "SELECT symbol, module, address, kind, instance, offset FROM frame"),
        [
            text("schedule"),
            Value::Null,
            Value::Integer(0xffff_ffff_8100_0010_u64.cast_signed()),
            text("kernel"),
            Value::Null,
            Value::Integer(16)
        ]
    );
    assert_eq!(first(&profile, "SELECT bytes FROM console"), [Value::Blob(vec![0, 255, 10])]);
    assert_eq!(first(&profile, "SELECT halted_ns FROM vcpu"), [Value::Integer(i64::MAX)]);
    let row = "SELECT comm, pid, instance, tid, symbol, address, mode, time_s FROM v_samples WHERE id = 3";
    assert_eq!(
        first(&profile, row),
        [
            text("gzip"),
            Value::Integer(12),
            Value::Integer(3),
            Value::Integer(12),
            text("schedule"),
            text("0xffffffff81000010"),
            text("kernel"),
            Value::Real(2e-9)
        ]
    );
    assert_eq!(
        first(&profile, "SELECT preempt_count, rsp, cr3 FROM sample"),
        [
            Value::Integer(0x8000_0000),
            Value::Integer(0xffff_c900_0000_0000_u64.cast_signed()),
            Value::Integer(0x1000)
        ]
    );
    let pragmas = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version";
    assert_eq!(
        first(&profile, pragmas),
        [Value::Integer(APPLICATION_ID.into()), Value::Integer(SCHEMA_VERSION.into())]
    );
}

#[test]
fn later_rows_replace_earlier_ones() {
    let (_directory, path, mut writer) = written(1);
    let mut second = batch(0);
    second.instances[0].comm = "xz".to_owned();
    second.frames[0].symbol = None;
    second.meta[0].1 = "portable".to_owned();
    second.vcpus[0].samples = 77;
    writer.write(&second).expect("room");
    let profile = Profile::open(&path).expect("a profile that is being written");
    let sql = "SELECT (SELECT comm FROM instance), (SELECT symbol FROM frame), (SELECT value FROM meta), \
               (SELECT samples FROM vcpu)";
    let text = |text: &str| Value::Text(text.to_owned());
    assert_eq!(first(&profile, sql), [text("xz"), Value::Null, text("portable"), Value::Integer(77)]);
}

#[test]
fn a_reader_beside_the_writer_does_not_stop_it() {
    let (_directory, path, mut writer) = written(10);
    let profile = Profile::open(&path).expect("a profile that is being written");
    let count = "SELECT count(*) FROM sample";
    assert_eq!(first(&profile, count), [Value::Integer(10)]);
    writer.write(&batch(5)).expect("room");
    assert_eq!(first(&profile, count), [Value::Integer(15)]);
    // The log cannot be folded back while it has a reader; that is not a failure.
    writer.finish().expect("room");
    drop(writer);
    assert_eq!(first(&profile, count), [Value::Integer(15)]);
    drop(profile);
    assert_eq!(first(&Profile::open(&path).expect("a profile"), count), [Value::Integer(15)]);
}
