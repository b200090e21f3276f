use symbols::CpuBooks;

use super::*;
use crate::batch::{
    Batch, CpuTimeRow, Fell, InstanceRow, Mode, RusageRow, SampleRow, Sink, ThreadTimeRow, VcpuRow,
};
use crate::microstate::States;
use crate::profile::{Profile, ProfileWriter};

const MS: u64 = 1_000_000;

/// Ten seconds of one vCPU, of which the guest had eight: of a thousand samples in it `hog` has half, a tenth of that
/// in the kernel, and soft interrupts a tenth; the guest's own books know nothing of `hog`.
fn profile(directory: &std::path::Path) -> Profile {
    let meta =
        [("clock", "exponential"), ("rate_hz", "100"), ("duration_ns", "10000000000"), ("host", "kvm")];
    let mut batch = Batch {
        meta: meta.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        instances: vec![
            InstanceRow { id: 1, pid: 7, comm: "hog".to_owned(), ..InstanceRow::default() },
            InstanceRow { id: 2, pid: 8, comm: "victim".to_owned(), number: 3, ..InstanceRow::default() },
        ],
        vcpus: vec![VcpuRow {
            states: States { guest: 8_000 * MS, halted: 1_500 * MS, waiting: 500 * MS, ..States::default() },
            ..VcpuRow::default()
        }],
        rusage: vec![
            RusageRow { instance: 1, time_ns: 10_000 * MS, user_ns: 20 * MS, ..RusageRow::default() },
            RusageRow { instance: 2, time_ns: 5_000 * MS, user_ns: 1_600 * MS, ..RusageRow::default() },
        ],
        thread_times: vec![ThreadTimeRow {
            instance: 2,
            tid: 8,
            time_ns: 5_000 * MS,
            ..ThreadTimeRow::default()
        }],
        cpu_times: vec![CpuTimeRow {
            books: CpuBooks { user_ns: 9_000 * MS, idle_ns: MS, iowait_ns: MS, ..CpuBooks::default() },
            ..CpuTimeRow::default()
        }],
        ..Batch::default()
    };
    for n in 0..1_000_u64 {
        let (mode, instance, fell) = match n % 10 {
            0..=3 => (Mode::User, 1, Fell::Guest),
            4 => (if n % 20 == 4 { Mode::Kernel } else { Mode::User }, 1, Fell::Guest),
            5..=8 => (Mode::User, 2, Fell::Guest),
            _ => (Mode::SoftIrq, 2, Fell::Guest),
        };
        batch.samples.push(SampleRow {
            time_ns: n * 10 * MS,
            mode,
            instance: Some(instance),
            tid: Some(6 + i32::try_from(instance).expect("small")),
            fell,
            ..SampleRow::default()
        });
        // What says nothing of the guest's time.
        batch.samples.push(SampleRow {
            time_ns: n * 10 * MS,
            mode,
            instance: Some(1),
            fell: Fell::Vmm,
            ..SampleRow::default()
        });
    }
    let path = directory.join("run.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(&batch).expect("room");
    Profile::open(&path).expect("a profile")
}

#[test]
fn what_the_guest_does_not_see_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path())).expect("books");
    assert!(rusage.intervals_valid && rusage.processes.len() == 2);
    let [hog, victim] = &rusage.processes[..] else { panic!("two processes") };
    assert_eq!((hog.comm.as_str(), hog.samples, hog.true_cpu_ns), ("hog", 500, 4_000 * MS));
    assert_eq!((hog.true_user_ns, hog.interrupted_ns), (3_600 * MS, 0));
    assert!(hog.outside && hog.difference_ns == -3_980_000_000);
    assert!(hog.true_low_ns < 4_000 * MS && 4_000 * MS < hog.true_high_ns);
    // Only what was before its books counts: half of its 400 samples.
    assert_eq!((victim.instance, victim.samples, victim.true_cpu_ns), (3, 200, 1_600 * MS));
    assert!(!victim.outside && victim.interrupted_ns == 400 * MS, "{victim:?}");
    assert_eq!((rusage.threads.len(), rusage.threads[0].true_cpu_ns), (1, victim.true_cpu_ns));
    assert!(rusage.threads[0].outside, "its own books are empty");
}

#[test]
fn a_cpu_is_compared_with_its_vcpu() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path())).expect("books");
    let [cpu] = &rusage.cpus[..] else { panic!("one CPU") };
    assert_eq!((cpu.reported.user_ns, cpu.reported.idle_ns), (9_000 * MS, 2 * MS));
    assert_eq!((cpu.truly.user_ns, cpu.truly.softirq_ns), (6_800 * MS, 800 * MS));
    assert_eq!((cpu.truly.idle_ns, cpu.truly.steal_ns), (1_500 * MS, 500 * MS));
    let sum: u64 = cpu.truly.named().iter().map(|(_, ns)| ns).sum();
    assert_eq!(sum, 10_000 * MS);
    assert_eq!((cpu.low.steal_ns, cpu.high.steal_ns), (500 * MS, 500 * MS), "exact");
    assert!(cpu.low.user_ns < cpu.truly.user_ns && cpu.truly.user_ns < cpu.high.user_ns);
}
