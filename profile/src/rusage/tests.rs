use statistics::cpu_accounting::{ChildCpuTimes, CpuStat};

use super::*;
use crate::rows::Microstates;
use crate::rows::{
    Batch, CpuTimeRow, InstanceRow, MicrostateRow, Mode, ReapedRow, RusageRow, SampleRow, Sink,
    ThreadTimeRow, VcpuRow, VcpuState,
};
use crate::store::{Profile, ProfileWriter};

const MS: u64 = 1_000_000;

/// Ten seconds of one vCPU, of which the guest had eight: of a thousand samples in it `hog` has half, a tenth
/// of that in the kernel, and soft interrupts a tenth; the guest's own accounting does not show `hog`.
fn batch() -> Batch {
    let meta =
        [("clock", "exponential"), ("rate_hz", "100"), ("duration_ns", "10000000000"), ("host", "kvm")];
    let mut batch = Batch {
        meta: meta.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        instances: vec![
            InstanceRow { id: 1, pid: 7, comm: "hog".to_owned(), ..InstanceRow::default() },
            InstanceRow { id: 2, pid: 8, comm: "victim".to_owned(), number: 3, ..InstanceRow::default() },
        ],
        vcpus: vec![VcpuRow {
            states: Microstates {
                guest: 8_000 * MS,
                halted: 1_500 * MS,
                waiting: 500 * MS,
                ..Microstates::default()
            },
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
            first: false,
            time_ns: 10_000 * MS,
            stat: CpuStat { user_ns: 9_000 * MS, idle_ns: MS, iowait_ns: MS, ..CpuStat::default() },
        }],
        ..Batch::default()
    };
    for n in 0..1_000_u64 {
        let (mode, instance, vcpu_state) = match n % 10 {
            0..=3 => (Mode::User, 1, VcpuState::Guest),
            4 => (if n % 20 == 4 { Mode::Kernel } else { Mode::User }, 1, VcpuState::Guest),
            5..=8 => (Mode::User, 2, VcpuState::Guest),
            _ => (Mode::SoftIrq, 2, VcpuState::Guest),
        };
        batch.samples.push(SampleRow {
            time_ns: n * 10 * MS,
            mode,
            instance: Some(instance),
            tid: Some(6 + i32::try_from(instance).expect("small")),
            vcpu_state,
            ..SampleRow::default()
        });
        // A sample outside of the guest's time.
        batch.samples.push(SampleRow {
            time_ns: n * 10 * MS,
            mode,
            instance: Some(1),
            vcpu_state: VcpuState::Vmm,
            ..SampleRow::default()
        });
    }
    batch
}

fn profile(directory: &std::path::Path, batch: &Batch) -> Profile {
    let path = directory.join("run.vprof");
    let mut writer = ProfileWriter::create(&path, false).expect("a new profile");
    writer.write(batch).expect("room");
    Profile::open(&path).expect("a profile")
}

#[test]
fn what_the_guest_does_not_see_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &batch())).expect("the accounting");
    assert!(rusage.intervals_valid && rusage.processes.len() == 2);
    let [hog, victim] = &rusage.processes[..] else { panic!("two processes") };
    assert_eq!((hog.comm.as_str(), hog.samples, hog.measured_cpu_ns), ("hog", 500, 4_000 * MS));
    assert_eq!((hog.measured_user_ns, hog.interrupted_ns), (3_600 * MS, 0));
    assert!(hog.outside && hog.difference_ns == -3_980_000_000);
    assert!(hog.measured_low_ns < 4_000 * MS && 4_000 * MS < hog.measured_high_ns);
    // Only the time before its last reading counts: half of its 400 samples.
    assert_eq!((victim.instance, victim.samples, victim.measured_cpu_ns), (3, 200, 1_600 * MS));
    assert!(!victim.outside && victim.interrupted_ns == 400 * MS, "{victim:?}");
    assert_eq!((rusage.threads.len(), rusage.threads[0].measured_cpu_ns), (1, victim.measured_cpu_ns));
    assert!(rusage.threads[0].outside, "its own accounting is empty");
}

#[test]
fn a_cpu_is_compared_with_its_vcpu() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &batch())).expect("the accounting");
    let [cpu] = &rusage.cpus[..] else { panic!("one CPU") };
    assert_eq!((cpu.reported.user_ns, cpu.reported.idle_ns), (9_000 * MS, 2 * MS));
    assert_eq!((cpu.measured.user_ns, cpu.measured.softirq_ns), (6_800 * MS, 800 * MS));
    assert_eq!((cpu.measured.idle_ns, cpu.measured.steal_ns), (1_500 * MS, 500 * MS));
    let sum: u64 = cpu.measured.named().iter().map(|(_, ns)| ns).sum();
    assert_eq!(sum, 10_000 * MS);
    assert_eq!((cpu.low.steal_ns, cpu.high.steal_ns), (500 * MS, 500 * MS), "exact");
    assert!(cpu.low.user_ns < cpu.measured.user_ns && cpu.measured.user_ns < cpu.high.user_ns);
}

/// `sh` has started `victim`, which has started `hog`; both have ended, and the accounting is read a second
/// later.
fn family() -> Batch {
    let mut batch = batch();
    for (instance, parent_pid) in batch.instances.iter_mut().zip([8, 6]) {
        instance.parent_pid = Some(parent_pid);
    }
    batch.instances.push(InstanceRow { id: 3, pid: 6, comm: "sh".to_owned(), ..InstanceRow::default() });
    let children = ChildCpuTimes {
        user_ns: 7_000 * MS,
        system_ns: 300 * MS,
        minor_faults: 5,
        ..ChildCpuTimes::default()
    };
    let of_sh = RusageRow { instance: 3, time_ns: 11_000 * MS, children, ..RusageRow::default() };
    batch.rusage.push(of_sh);
    batch.cpu_times[0].time_ns = 11_000 * MS;
    batch
}

#[test]
fn children_are_those_that_have_ended_by_their_parents() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &family())).expect("the accounting");
    let of = |comm: &str| {
        let process = rusage.processes.iter().find(|process| process.comm == comm).expect("a process");
        process.children.clone()
    };
    let sh = of("sh").expect("children");
    assert_eq!((sh.processes, sh.seen, sh.samples), (2, false, 900));
    assert_eq!((sh.reported_user_ns, sh.reported_system_ns, sh.minor_faults), (7_000 * MS, 300 * MS, 5));
    assert_eq!((sh.measured_cpu_ns, sh.difference_ns), (7_200 * MS, 100_000_000));
    assert!(sh.measured_low_ns < 7_200 * MS && 7_200 * MS < sh.measured_high_ns);
    let victim = of("victim").expect("a child");
    assert_eq!((victim.processes, victim.samples, victim.reported_user_ns), (1, 500, 0));
    assert_eq!(of("hog"), None);
    // Its last reading is at the end: it has not ended.
    let mut batch = family();
    batch.rusage[0].time_ns = 11_000 * MS;
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &batch)).expect("the accounting");
    let sh = rusage.processes.iter().find(|process| process.comm == "sh").expect("a process");
    assert_eq!(sh.children.as_ref().map(|children| children.processes), Some(1));
}

#[test]
fn what_exact_mode_has_seen_says_who_waited() {
    let mut batch = family();
    batch.meta.push(("exact_from_ns".to_owned(), "0".to_owned()));
    // The parent of hog went away, and sh has inherited it.
    batch.reaped = vec![ReapedRow { child: 1, parent: 3, time_ns: 10_500 * MS }];
    let directory = tempfile::tempdir().expect("a directory");
    let path = profile(directory.path(), &batch);
    let rusage = Rusage::read(&path).expect("the accounting");
    let known: Vec<_> = rusage.processes.iter().map(|p| (p.comm.as_str(), p.children.is_some())).collect();
    assert_eq!(known, [("hog", false), ("victim", false), ("sh", true)]);
    let sh = rusage.processes[2].children.as_ref().expect("a child");
    assert_eq!((sh.processes, sh.seen, sh.samples), (1, true, 500));
    // Children that were waited for before the first reading are in neither time.
    let first = RusageRow { first: true, time_ns: 10_600 * MS, ..batch.rusage[2] };
    batch.rusage.push(first);
    // A damaged profile whose children are each other's.
    batch.reaped.extend([(2, 1), (1, 2)].map(|(child, parent)| ReapedRow { child, parent, time_ns: MS }));
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &batch)).expect("the accounting");
    let sh = rusage.processes.iter().find(|process| process.comm == "sh").expect("a process");
    assert_eq!(sh.children, None);
}

#[test]
fn a_guest_that_claims_all_the_time_there_is_can_be_compared() {
    const MOST: u64 = u64::MAX;
    let mut batch = batch();
    for row in &mut batch.rusage {
        let (instance, time_ns) = (row.instance, row.time_ns);
        *row = RusageRow {
            instance,
            first: false,
            time_ns,
            user_ns: MOST,
            system_ns: MOST,
            tick_user_ns: MOST,
            tick_system_ns: MOST,
            runtime_ns: MOST,
            run_delay_ns: MOST,
            voluntary: MOST,
            involuntary: MOST,
            children: ChildCpuTimes { user_ns: MOST, system_ns: MOST, ..ChildCpuTimes::default() },
        };
    }
    let stat = CpuStat {
        cpu: 0,
        user_ns: MOST,
        nice_ns: MOST,
        system_ns: MOST,
        softirq_ns: MOST,
        irq_ns: MOST,
        idle_ns: MOST,
        iowait_ns: MOST,
        steal_ns: MOST,
    };
    batch.cpu_times[0].stat = stat;
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &batch)).expect("the accounting");
    assert!(rusage.processes.iter().all(|process| process.outside && process.difference_ns > 0));
    assert!(rusage.cpus[0].reported.user_ns >= i64::MAX.cast_unsigned());
}

/// The same, but the first reading is after two seconds, when `hog` had used a second itself, and the
/// vCPU's states are known in segments of two seconds.
fn later() -> Batch {
    let mut batch = batch();
    for second in [2, 4, 6, 8, 10_u64] {
        batch.microstates.push(MicrostateRow {
            vcpu: 0,
            time_ns: second * 1_000 * MS,
            states: Microstates {
                guest: 1_600 * MS,
                halted: 300 * MS,
                waiting: 100 * MS,
                ..Microstates::default()
            },
        });
    }
    let first = RusageRow {
        instance: 1,
        first: true,
        time_ns: 2_000 * MS,
        user_ns: 900 * MS,
        system_ns: 100 * MS,
        runtime_ns: 1_000 * MS,
        ..RusageRow::default()
    };
    // The kernel divides the sum of 4.1 s otherwise than before.
    let last = RusageRow {
        first: false,
        time_ns: 10_000 * MS,
        user_ns: 4_090 * MS,
        system_ns: 10 * MS,
        runtime_ns: 4_100 * MS,
        ..first
    };
    // A process that ended before a second reading cannot be compared.
    batch.rusage = vec![last, first, RusageRow { instance: 2, ..first }];
    let last = batch.cpu_times[0];
    let stat = CpuStat { user_ns: 3_000 * MS, idle_ns: MS, ..CpuStat::default() };
    batch.cpu_times = vec![
        CpuTimeRow { time_ns: 9_000 * MS, ..last },
        CpuTimeRow { first: true, time_ns: 3_000 * MS, stat },
    ];
    batch
}

#[test]
fn what_was_before_the_first_reading_is_left_out_on_both_sides() {
    let directory = tempfile::tempdir().expect("a directory");
    let rusage = Rusage::read(&profile(directory.path(), &later())).expect("the accounting");
    let [hog] = &rusage.processes[..] else { panic!("one process: {:?}", rusage.processes) };
    // A sample at 2 s is of the time before: 400 of 500 are left, less one.
    assert_eq!((hog.samples, hog.since_s, hog.read_s), (399, Some(2.0), 10.0));
    assert_eq!((hog.before_user_ns, hog.before_system_ns), (900 * MS, 100 * MS));
    assert_eq!((hog.reported_user_ns, hog.reported_system_ns, hog.runtime_ns), (3_100 * MS, 0, 3_100 * MS));
    assert_eq!(hog.measured_cpu_ns, 3_192 * MS);
    assert!(!hog.outside, "{hog:?}");
    let [cpu] = &rusage.cpus[..] else { panic!("one CPU") };
    assert_eq!((cpu.since_s, cpu.read_s), (Some(3.0), 9.0));
    assert_eq!(
        (cpu.reported.user_ns, cpu.before.user_ns, cpu.reported.idle_ns),
        (6_000 * MS, 3_000 * MS, MS)
    );
    assert_eq!((cpu.measured.idle_ns, cpu.measured.steal_ns), (900 * MS, 300 * MS));
    // Two segments are whole; of the two that are cut, all of a state may be inside or outside.
    assert_eq!((cpu.low.steal_ns, cpu.high.steal_ns), (200 * MS, 400 * MS));
    let of_guest =
        cpu.measured.user_ns + cpu.measured.system_ns + cpu.measured.irq_ns + cpu.measured.softirq_ns;
    assert_eq!(of_guest, 4_800 * MS);
}

#[test]
fn a_first_reading_is_late_by_a_tick_too() {
    let measured = Time { ns: 50e6, low_ns: 40e6, high_ns: 60e6 };
    let is_outside = |reported_ns, since_first| chance(reported_ns, since_first, &measured) < LEVEL;
    assert!(is_outside(65_000_000, false) && !is_outside(65_000_000, true));
    assert!(!is_outside(31_000_000, false) && is_outside(29_000_000, true));
}

/// Of many right rows some are outside of their own 95 % interval.
#[test]
fn many_rows_are_judged_together() {
    let measured = Time { ns: 50e6, low_ns: 40e6, high_ns: 60e6 };
    let mut chances = vec![1.0; 100];
    // Two and four standard errors away.
    chances[3] = chance(60_500_000, false, &measured);
    assert!(chances[3] < LEVEL && outside(&chances[3..4]).any(|is| is));
    assert!(outside(&chances).all(|is| !is));
    chances[5] = chance(72_000_000, false, &measured);
    assert!(outside(&chances).enumerate().all(|(n, is)| is == (n == 5)));
}

#[test]
fn an_id_that_is_given_again_has_no_first_reading() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut batch = batch();
    let last = ThreadTimeRow { tick_user_ns: 7 * MS, runtime_ns: 7 * MS, ..batch.thread_times[0] };
    let first =
        ThreadTimeRow { first: true, time_ns: MS, tick_user_ns: 90 * MS, runtime_ns: 90 * MS, ..last };
    batch.thread_times = vec![first, last];
    let rusage = Rusage::read(&profile(directory.path(), &batch)).expect("the accounting");
    assert_eq!((rusage.threads[0].since_s, rusage.threads[0].reported_user_ns), (None, 7 * MS));
}

/// Ticks and the scheduler's clock disagree: a process with two threads whose accounting was read at the same
/// time.
#[test]
fn threads_are_told_as_the_kernel_shows_them_and_agree_with_their_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut batch = batch();
    let row = ThreadTimeRow { instance: 2, tid: 8, time_ns: 5_000 * MS, ..ThreadTimeRow::default() };
    batch.thread_times = vec![
        // Runs between the ticks.
        ThreadTimeRow { tick_user_ns: 30 * MS, tick_system_ns: 10 * MS, runtime_ns: 2_000 * MS, ..row },
        // Runs when they come.
        ThreadTimeRow {
            tid: 9,
            tick_user_ns: 1_230 * MS,
            tick_system_ns: 1_230 * MS,
            runtime_ns: 500 * MS,
            ..row
        },
    ];
    let (user_ns, system_ns) = (1_750 * MS, 750 * MS);
    batch.rusage[1] = RusageRow { user_ns, system_ns, runtime_ns: 2_500 * MS, ..batch.rusage[1] };
    let rusage = Rusage::read(&profile(directory.path(), &batch)).expect("the accounting");
    let reported: Vec<_> =
        rusage.threads.iter().map(|t| (t.tid, t.reported_user_ns, t.reported_system_ns)).collect();
    assert_eq!(reported, [(8, 1_500 * MS, 500 * MS), (9, 250 * MS, 250 * MS)]);
    let process = rusage.processes.iter().find(|process| process.pid == 8).expect("read");
    let sum = |of: fn(&ThreadRusage) -> u64| rusage.threads.iter().map(of).sum::<u64>();
    assert_eq!(process.reported_user_ns, sum(|thread| thread.reported_user_ns));
    assert_eq!(process.reported_system_ns, sum(|thread| thread.reported_system_ns));
}
