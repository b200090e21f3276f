mod code;
mod command;
mod flat;
mod host;
mod managed;
mod memory;
mod shares;
mod times;
mod views;
pub(super) use views::known as known_with_stacks;

use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};

use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, EventRow, FrameKind, FrameRow, InstanceRow, MicrostateRow, Mode, RateRow, SampleRow, Sink,
    VcpuRow, VcpuState,
};
use crate::store::{Profile, ProfileWriter, Value};

const MS: u64 = 1_000_000;

/// A made-up run: frames 1 to 4 are kernel code, 5 and 6 user code of instances 1 and 2.
pub(super) struct Run {
    batch: Batch,
}

impl Run {
    fn new() -> Self {
        let meta = [
            ("version", "0.1.0"),
            ("host", "portable"),
            ("kernel", "6.1.0"),
            ("started_unix_ns", "1500000000000000000"),
            ("duration_ns", "2000000000"),
            ("rate_hz", "1000"),
            ("clock", "uniform"),
            ("seed", "18446744073709551615"),
            ("vcpus", "2"),
            ("complete", "1"),
            ("image", "demo.img"),
        ];
        let mut batch =
            Batch { meta: meta.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(), ..Batch::default() };
        for id in 0..2 {
            batch.vcpus.push(VcpuRow {
                id,
                samples: 10,
                lost: u64::from(id),
                exits: 30,
                states: Microstates {
                    guest: 1_900 * MS,
                    vmm: 95 * MS,
                    sampler: 5 * MS,
                    ..Microstates::default()
                },
            });
        }
        for (id, pid, comm, number, kernel_thread) in [
            (1, 10, "gzip", 0, false),
            (2, 11, "gzip", 1, false),
            (3, 2, "kthreadd", 0, true),
            (4, 0, "swapper/0", 0, true),
        ] {
            batch.instances.push(InstanceRow {
                id,
                pid,
                start_ns: 1,
                comm: comm.to_owned(),
                number,
                kernel_thread,
                ..Default::default()
            });
        }
        for (id, address, symbol, module) in [
            (1, 0xffff_ffff_8100_0000, Some("schedule"), None),
            (2, 0xffff_ffff_8100_0008, Some("schedule"), None),
            (3, 0xffff_ffff_c000_0000, Some("ext4_read"), Some("ext4")),
            (4, 0xffff_ffff_c100_0000, None, None),
        ] {
            let (symbol, module) = (symbol.map(str::to_owned), module.map(str::to_owned));
            batch.frames.push(FrameRow { id, address, symbol, module, ..Default::default() });
        }
        for (id, instance) in [(5, Some(1)), (6, Some(2)), (7, None)] {
            let kind = FrameKind::User;
            batch.frames.push(FrameRow { id, address: 0x40_1000, kind, instance, ..Default::default() });
        }
        batch.frames.push(FrameRow { id: 8, module: Some("zfs".to_owned()), ..batch.frames[3].clone() });
        batch.events.push(EventRow {
            time_ns: 500 * MS,
            kind: "missing".to_owned(),
            text: "no BTF".to_owned(),
        });
        Self { batch }
    }

    fn add(&mut self, count: u64, vcpu: u8, mode: Mode, instance: Option<u32>, frame: u32) {
        for _ in 0..count {
            let n = self.batch.samples.len() as u64;
            self.batch.samples.push(SampleRow {
                vcpu,
                time_ns: n * 10 * MS,
                late_ns: if n == 0 { 3 * MS } else { 20_000 },
                mode,
                halted: mode == Mode::Idle,
                vcpu_state: if mode == Mode::Idle { VcpuState::Halted } else { VcpuState::Guest },
                frame,
                rsp: 0,
                cpl: if mode == Mode::User { 3 } else { 0 },
                cr3: 0,
                interrupts_on: Some(true),
                preempt_count: None,
                instance,
                ..Default::default()
            });
        }
    }

    pub(super) fn write(&self) -> (TempDir, PathBuf) {
        let directory = tempdir().expect("a directory");
        let path = directory.path().join("run.vprof");
        let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
        writer.write(&self.batch).expect("room");
        writer.finish().expect("room");
        (directory, path)
    }
}

/// 100 samples: 40 on vCPU 0 that are all busy, 60 on vCPU 1 of which 20 are idle.
pub(super) fn known() -> Run {
    let mut run = Run::new();
    run.add(20, 0, Mode::User, Some(1), 5);
    run.add(6, 0, Mode::Kernel, Some(1), 1);
    run.add(4, 0, Mode::Kernel, Some(1), 2);
    run.add(5, 0, Mode::HardIrq, Some(1), 1);
    run.add(1, 0, Mode::Nmi, Some(1), 1);
    run.add(4, 0, Mode::SoftIrq, None, 3);
    run.add(10, 1, Mode::User, Some(2), 6);
    run.add(6, 1, Mode::Kernel, Some(3), 3);
    run.add(20, 1, Mode::Idle, Some(4), 2);
    run.add(8, 1, Mode::Boot, None, 4);
    run.add(7, 1, Mode::Unknown, None, 4);
    run.add(3, 1, Mode::User, None, 7);
    run.add(2, 1, Mode::Kernel, Some(2), 4);
    run.add(4, 1, Mode::Kernel, Some(2), 8);
    run
}

fn read(path: &Path, filter: &Filter) -> Report {
    Report::read(&Profile::open(path).expect("a profile"), filter).expect("a report")
}

fn shares(report: &Report) -> [f64; 2] {
    [
        report.processes.iter().map(|p| p.estimate.share).sum(),
        report.functions.iter().map(|f| f.estimate.share).sum(),
    ]
}
