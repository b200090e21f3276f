//! Profiles in files of a temporary directory.

mod content;
mod edit;
mod hostile;
mod killed;
mod open;
mod query;
mod replace;
mod size;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, ConsoleRow, EventRow, FrameRow, InstanceRow, SampleRow, Sink, StackRow, TaskRunRow, TripCallRow,
    VcpuRow,
};
use crate::rows::{COMPLETE, Mode, TaskState, WaitReason};

pub(crate) fn sample(n: u64) -> SampleRow {
    SampleRow {
        vcpu: 0,
        time_ns: n,
        late_ns: 5,
        mode: Mode::Kernel,
        halted: false,
        frame: 1,
        rsp: 0xffff_c900_0000_0000,
        cpl: 0,
        cr3: 0x1000,
        interrupts_on: Some(true),
        preempt_count: Some(0x8000_0000),
        instance: Some(1),
        tid: Some(12),
        ..Default::default()
    }
}

fn batch(samples: u64) -> Batch {
    let text = str::to_owned;
    Batch {
        meta: vec![(text("host"), text("kvm"))],
        vcpus: vec![VcpuRow {
            id: 0,
            samples,
            lost: 1,
            exits: 4,
            states: Microstates { guest: 3, sampler: 2, halted: u64::MAX, ..Microstates::default() },
        }],
        instances: vec![InstanceRow {
            id: 1,
            pid: 12,
            start_ns: 99,
            comm: text("gzip"),
            number: 3,
            ..Default::default()
        }],
        frames: vec![FrameRow {
            id: 1,
            address: 0xffff_ffff_8100_0010,
            symbol: Some(text("schedule")),
            offset: 16,
            ..Default::default()
        }],
        samples: (0..samples).map(sample).collect(),
        console: vec![ConsoleRow { time_ns: 1, bytes: vec![0, 0xff, b'\n'] }],
        events: vec![EventRow { time_ns: 2, kind: text("kernel"), text: text("found") }],
        ..Default::default()
    }
}

fn written(samples: u64) -> (TempDir, PathBuf, ProfileWriter) {
    let directory = tempdir().expect("a directory");
    let path = directory.path().join("a ?#%strange name.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(&batch(samples)).expect("room");
    (directory, path, writer)
}

fn finished(samples: u64) -> (TempDir, PathBuf) {
    let (directory, path, mut writer) = written(samples);
    writer.finish().expect("room");
    (directory, path)
}

fn first(profile: &Profile, sql: &str) -> Vec<Value> {
    profile.query(sql).expect("an answer").rows.swap_remove(0)
}

fn samples(path: &Path) -> u64 {
    let profile = Profile::open(path).expect("a profile");
    match first(&profile, "SELECT count(*) FROM sample")[..] {
        [Value::Integer(count)] => count.cast_unsigned(),
        ref other => panic!("a count: {other:?}"),
    }
}

fn files(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> =
        names.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.sort();
    names
}

/// Rows of a run before its guest.
fn preamble() -> Batch {
    Batch { meta: vec![("host".to_owned(), "kvm".to_owned())], ..Batch::default() }
}

/// Returns file and log in the middle of a run.
fn interrupted() -> (TempDir, PathBuf) {
    let (source, path, writer) = written(500);
    let directory = tempdir().expect("a directory");
    let copy = directory.path().join("killed.vprof");
    fs::copy(&path, &copy).expect("room");
    fs::copy(writer::companion(&path, "-wal"), writer::companion(&copy, "-wal")).expect("a log");
    drop((writer, source));
    (directory, copy)
}
