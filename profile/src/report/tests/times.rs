//! Shares and times where a part of the run was not the guest's, or not sampled.

use super::*;

/// Ticks during work of the VMM or waits for the host do not count for the guest, whatever process was there.
#[test]
fn ticks_outside_of_the_guest_move_no_share() {
    let mut run = known();
    let (_directory, path) = run.write();
    let before = read(&path, &Filter::default());
    assert_eq!(before.ticks, TickCounts { guest: 80, halted: 20, vmm: 0, waiting: 0 });
    for (count, vcpu_state) in [(50, VcpuState::Vmm), (70, VcpuState::Waiting)] {
        let first = run.batch.samples.len();
        run.add(count, 0, Mode::Kernel, Some(3), 3);
        run.batch.samples[first..].iter_mut().for_each(|sample| sample.vcpu_state = vcpu_state);
    }
    let (_directory, path) = run.write();
    let after = read(&path, &Filter::default());
    assert_eq!(after.ticks, TickCounts { guest: 80, halted: 20, vmm: 50, waiting: 70 });
    assert_eq!((after.samples, after.busy_samples, after.chosen_samples), (220, 80, 80));
    assert_eq!((&after.processes, &after.functions), (&before.processes, &before.functions));
    assert_eq!((after.vcpus[0].user, after.vcpus[0].times), (before.vcpus[0].user, before.vcpus[0].times));
    let profile = Profile::open(&path).expect("a profile");
    let rows =
        profile.query("SELECT samples FROM v_processes WHERE comm = 'kthreadd'").expect("an answer").rows;
    assert_eq!(rows, [[Value::Integer(6)]]);
    assert_eq!(
        profile.query("SELECT sum(samples) FROM v_functions").expect("an answer").rows,
        [[Value::Integer(80)]]
    );
}

#[test]
fn rows_have_their_part_of_the_exact_time() {
    let mut run = known();
    run.batch.vcpus[1].states = Microstates { guest: 100 * MS, halted: 1_900 * MS, ..Microstates::default() };
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let sum: f64 = report.processes.iter().map(|p| p.estimate.time_s).sum();
    assert!((sum - 2.0).abs() < 1e-9, "{sum}");
    // gzip#0 has 30 of 40 samples of the first vCPU, gzip#1 16 of 40 of the second.
    let of = |pid: i32| report.processes.iter().find(|p| p.pid == pid).expect("a process").estimate;
    let (first, second) = (of(10), of(11));
    assert!((first.time_s - 0.75 * 1.9).abs() < 1e-9 && (second.time_s - 0.4 * 0.1).abs() < 1e-9);
    assert!(
        (first.share - first.time_s / 2.0).abs() < 1e-9
            && (first.share_low - first.time_low_s / 2.0).abs() < 1e-9
    );
    assert!(first.time_low_s < first.time_s && first.time_s < first.time_high_s);
    for vcpu in &report.vcpus {
        let ModeTimes { user, kernel, hardirq, softirq, nmi, idle } = vcpu.times;
        let all = [user, kernel, hardirq, softirq, nmi, idle];
        let sum: f64 = all.iter().map(|mode| mode.time_s).sum();
        assert!((sum - vcpu.guest_s - vcpu.halted_s).abs() < 1e-9, "{sum}");
        assert!((all.iter().map(|mode| mode.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!(all.iter().all(|mode| mode.time_low_s <= mode.time_s && mode.time_s <= mode.time_high_s));
    }
    let idle = report.vcpus[1].times.idle;
    assert_eq!((idle.samples, idle.time_s, report.vcpus[0].times.nmi.samples), (20, 1.9, 1));
}

/// Soft interrupts are charged to no process, but those of ksoftirqd to it; a process of that name is not the
/// kernel's.
#[test]
fn soft_interrupts_of_ksoftirqd_are_its_own_work() {
    let mut run = known();
    for (id, kernel_thread) in [(5, true), (6, false)] {
        let comm = "ksoftirqd/0".to_owned();
        let pid = 100 + i32::try_from(id).expect("small");
        run.batch.instances.push(InstanceRow { id, pid, comm, kernel_thread, ..InstanceRow::default() });
        run.batch.samples.extend((0..3).map(|n| SampleRow {
            time_ns: 1_990 * MS + n,
            mode: Mode::SoftIrq,
            instance: Some(id),
            vcpu_state: VcpuState::Guest,
            frame: 1,
            ..SampleRow::default()
        }));
    }
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let named: Vec<_> = report.processes.iter().filter(|p| p.comm == "ksoftirqd/0").collect();
    assert_eq!(named.iter().map(|p| (p.pid, p.estimate.samples)).collect::<Vec<_>>(), [(105, 3)]);
    let profile = Profile::open(&path).expect("a profile");
    let view = profile.query("SELECT pid, samples FROM v_processes WHERE comm = 'ksoftirqd/0'");
    assert_eq!(view.expect("an answer").rows, [[Value::Integer(105), Value::Integer(3)]]);
}

/// An idle task that does not halt: a process's share is of busy time, its time a part of all time in the
/// guest.
#[test]
fn a_guest_that_polls_is_idle_in_its_own_time() {
    let mut run = Run::new();
    run.batch.vcpus.truncate(1);
    for _ in 0..250 {
        run.add(1, 0, Mode::User, Some(1), 5);
        run.add(3, 0, Mode::Idle, Some(4), 2);
    }
    run.batch.samples.iter_mut().for_each(|sample| sample.vcpu_state = VcpuState::Guest);
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    let gzip = report.processes[0].estimate;
    assert_eq!((report.busy_samples, gzip.samples, gzip.share), (250, 250, 1.0));
    assert!((gzip.time_s - 1.9 / 4.0).abs() < 1e-9, "{gzip:?}");
    // The precision is at most that of a quarter of 1,000 samples.
    assert!(gzip.time_low_s < 0.46 && gzip.time_high_s > 0.49, "{gzip:?}");
    assert!((report.vcpus[0].times.idle.share - 0.75).abs() < 1e-9);
}

#[test]
fn a_part_of_the_run_has_its_part_of_the_time() {
    let mut run = known();
    let segment = |vcpu, end: u64, guest: u64| MicrostateRow {
        vcpu,
        time_ns: end * MS,
        states: Microstates { guest: guest * MS, halted: (200 - guest) * MS, ..Microstates::default() },
    };
    run.batch.microstates = vec![segment(0, 200, 100), segment(0, 400, 180), segment(1, 200, 200)];
    let (_directory, path) = run.write();
    // Samples of the first 400 ms are on vCPU 0. Half of the first segment, and all of the second.
    let filter = |from, to| Filter {
        vcpu: Some(0),
        from_ns: Some(from * MS),
        to_ns: Some(to * MS),
        ..Filter::default()
    };
    let time = |report: &Report| report.processes.iter().map(|p| p.estimate.time_s).sum::<f64>();
    assert!((time(&read(&path, &filter(100, 400))) - 0.23).abs() < 1e-9);
    assert!((time(&read(&path, &filter(0, 200))) - 0.1).abs() < 1e-9);
    run.batch.microstates.clear();
    let (_directory, path) = run.write();
    // A fifth of the run's 2 s.
    assert!((time(&read(&path, &filter(0, 400))) - 0.38).abs() < 1e-9);
}

/// Sampled at 1,000 Hz for half a second, not at all for a second, and at 500 Hz for half a second.
#[test]
fn time_without_sampling_has_no_share() {
    let mut run = Run::new();
    // The second one is added after the time without sampling, and halts.
    let row = |id, samples, guest, halted| {
        let states = Microstates { guest, halted, ..Microstates::default() };
        VcpuRow { id, samples, states, ..VcpuRow::default() }
    };
    run.batch.vcpus = vec![row(0, 750, 2_000 * MS, 0), row(1, 250, 0, 500 * MS)];
    for n in 0..500_u64 {
        run.batch.samples.push(sampled(n * MS, 1));
        if n % 2 == 0 {
            run.batch.samples.push(sampled((1_500 + n) * MS, 2));
        }
    }
    run.batch.samples.sort_by_key(|sample| sample.time_ns);
    let rate = |ms: u64, rate_hz| RateRow { vcpu: 0, time_ns: ms * MS, rate_hz };
    run.batch.rates = vec![rate(500, 0.0), rate(1_500, 500.0)];
    let states = Microstates { guest: 200 * MS, ..Microstates::default() };
    run.batch.microstates =
        (1..=10).map(|n| MicrostateRow { vcpu: 0, time_ns: n * 200 * MS, states }).collect();
    let (_directory, path) = run.write();
    let report = read(&path, &Filter::default());
    assert!((report.unsampled_s - 1.0).abs() < 1e-9);
    assert!((report.measured_rate_hz - 1_000.0 / 1.5).abs() < 1e-9, "{}", report.measured_rate_hz);
    // Twice as many samples, the same time.
    for process in &report.processes {
        assert!((process.estimate.time_s - 0.5).abs() < 0.01, "{process:?}");
        assert!((process.estimate.share - 0.5).abs() < 0.01, "{process:?}");
    }
    assert_eq!(report.processes.len(), 2);
}

/// User code of an instance, hit on vCPU 0.
fn sampled(time_ns: u64, instance: u32) -> SampleRow {
    SampleRow {
        mode: Mode::User,
        time_ns,
        instance: Some(instance),
        frame: 5,
        cpl: 3,
        ..SampleRow::default()
    }
}

#[test]
fn a_clock_without_chance_has_no_valid_intervals() {
    let mut run = known();
    for (clock, valid) in [("uniform", true), ("exponential", true), ("fixed", false), ("", false)] {
        run.batch
            .meta
            .iter_mut()
            .filter(|(key, _)| key == "clock")
            .for_each(|(_, value)| *value = clock.to_owned());
        let (_directory, path) = run.write();
        let report = read(&path, &Filter::default());
        assert_eq!(report.intervals_valid, valid, "{clock}");
        assert!((2.0..4.1).contains(&report.needed_for_half.expect("a factor")));
    }
}
