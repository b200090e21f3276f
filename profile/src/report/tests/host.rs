//! Stacks of the host.

use super::*;
use crate::rows::{HostFrameRow, HostSampleRow, StackRow};

/// Adds stacks of the host to ticks of vCPU 0: ten of its samples were in KVM and ten in the guest, and 20
/// ticks in the VMM.
fn add_host(batch: &mut Batch) {
    let frame = |id, kind, symbol: Option<&str>, module: &str| HostFrameRow {
        id,
        kind,
        address: 0x1000 * u64::from(id),
        symbol: symbol.map(str::to_owned),
        module: Some(module.to_owned()),
        ..HostFrameRow::default()
    };
    batch.host_frames = vec![
        frame(1, FrameKind::User, Some("main_loop"), "vmm"),
        frame(2, FrameKind::Kernel, Some("kvm_vcpu_ioctl"), "kvm"),
        frame(3, FrameKind::User, None, "libc.so.6"),
        frame(4, FrameKind::Kernel, Some("vcpu_enter_guest"), "kvm"),
        HostFrameRow { module: None, ..frame(5, FrameKind::Reason, Some("a reason"), "") },
    ];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    // The callers of stack 7 are missing. The function of stack 8 has called itself.
    let stacks =
        [(1, None, 1), (2, Some(1), 2), (3, None, 5), (7, Some(3), 3), (8, Some(1), 1), (9, Some(2), 4)];
    batch.host_stacks = stacks.map(|(id, parent, frame)| stack(id, parent, frame)).to_vec();
    let tick = |time_ns, place, stack| HostSampleRow { vcpu: 0, time_ns, place, on_cpu: true, stack };
    batch.host_samples = (0..10).map(|n| tick(n * 10 * MS, ThreadPlace::Kvm, Some(2))).collect();
    batch.host_samples.extend((10..20).map(|n| tick(n * 10 * MS, ThreadPlace::Guest, Some(9))));
    let in_vmm = |n: u64| tick(n * 10 * MS + 5 * MS, ThreadPlace::Vmm, Some(if n < 15 { 8 } else { 7 }));
    batch.host_samples.extend((0..20).map(in_vmm));
}

fn with_host() -> Run {
    let mut run = known();
    add_host(&mut run.batch);
    run
}

fn first_vcpu() -> Filter {
    Filter { vcpu: Some(0), ..Filter::default() }
}

#[test]
fn stacks_of_the_host_change_nothing_of_the_guest() {
    let (_one, path) = known().write();
    let (_other, path_with_host) = with_host().write();
    let open = |path: &Path| Profile::open(path).expect("a profile");
    let (profile, profile_with_host) = (open(&path), open(&path_with_host));
    let requests = By::ALL.map(|(_, by)| Request::By(vec![by]));
    for request in requests.iter().chain([&Request::Summary]) {
        for filter in [Filter::default(), first_vcpu()] {
            let read = |profile| Report::read_with(profile, &filter, request).expect("a report");
            assert_eq!(read(&profile), read(&profile_with_host), "{request:?}");
        }
    }
    let recorded = |profile| {
        let recording = Recording::read(profile, &RecordingRequest::default(), &mut |_, _| {});
        let recording = recording.expect("a recording");
        (recording.samples, recording.stacks, recording.frames, recording.functions)
    };
    assert_eq!(recorded(&profile), recorded(&profile_with_host));
}

#[test]
fn all_ticks_divide_all_time_into_places_and_functions() {
    let (_directory, path) = with_host().write();
    let profile = Profile::open(&path).expect("a profile");
    let report = HostReport::read(&profile, &first_vcpu()).expect("a report");
    // 40 samples of the guest, ten of them in KVM, and 20 ticks in the VMM; 2 s.
    assert_eq!((report.ticks, report.without_stack), (60, 0));
    assert!((report.run_s - 2.0).abs() < 1e-9);
    assert_eq!((report.stacks, report.cut_stacks), (30, 5));
    let places = report.places.iter().map(|place| (place.place, place.estimate.samples));
    let wanted = [
        (ThreadPlace::Guest, 30),
        (ThreadPlace::Kvm, 10),
        (ThreadPlace::Vmm, 20),
        (ThreadPlace::Waiting, 0),
        (ThreadPlace::Halted, 0),
    ];
    assert_eq!(places.collect::<Vec<_>>(), wanted);
    let share: f64 = report.places.iter().map(|place| place.estimate.share).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    for (place, (_, samples)) in report.places.iter().zip(wanted) {
        let Estimate { share, share_low, share_high, time_s, .. } = place.estimate;
        let exact = samples as f64 / 60.0;
        assert!((share - exact).abs() < 1e-9 && (time_s - 2.0 * exact).abs() < 1e-9, "{place:?}");
        assert!(share_low <= exact && exact <= share_high, "{place:?}");
    }
    let functions = report.functions.iter().map(|function| {
        let HostFunction { symbol, module, own, total, .. } = function;
        (symbol.as_str(), module.as_deref().unwrap_or("-"), own.samples, total.samples)
    });
    let wanted = [
        ("main_loop", "vmm", 15, 25),
        ("kvm_vcpu_ioctl", "kvm", 10, 10),
        ("[libc.so.6]", "libc.so.6", 5, 5),
        ("[no frame: a reason]", "-", 0, 5),
    ];
    assert_eq!(functions.collect::<Vec<_>>(), wanted);
    let all = HostReport::read(&profile, &Filter::default()).expect("a report");
    assert_eq!((all.ticks, all.places[4].estimate.samples), (120, 20), "with the other vCPU");
}

#[test]
fn a_recording_has_guest_and_host_on_one_axis() {
    let (_directory, path) = with_host().write();
    let profile = Profile::open(&path).expect("a profile");
    let request = RecordingRequest { filter: first_vcpu(), host: true, ..RecordingRequest::default() };
    let recording = Recording::read(&profile, &request, &mut |_, _| {}).expect("a recording");
    let mut times: BTreeMap<&str, (u32, f64)> = BTreeMap::new();
    for sample in &recording.samples {
        let owner = &recording.owners[sample.owner as usize];
        let name = if owner.name.starts_with("[host: ") { owner.name.as_str() } else { "guest" };
        let (count, ns) = times.entry(name).or_default();
        *count += 1;
        *ns += sample.weight_ns;
    }
    let counts: Vec<_> = times.iter().map(|(name, (count, _))| (*name, *count)).collect();
    assert_eq!(counts, [("[host: kvm]", 10), ("[host: vmm]", 20), ("guest", 30)]);
    let ms = |name| times[name].1 / 1e6;
    // The clock counts KVM's work as time in the guest; all of it is that of ticks that were not idle.
    assert!((ms("guest") + ms("[host: kvm]") - 1_900.0).abs() < 1e-6, "{times:?}");
    assert!((ms("[host: vmm]") - 95.0).abs() < 1e-6, "{times:?}");
    let stack = |sample: &RecordedSample| {
        let frames = recording.frames_of(sample.stack);
        let names = frames.flat_map(|frame| recording.entries_of(frame));
        names.map(|entry| recording.functions[entry.function as usize].symbol.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(stack(&recording.samples[0]), ["kvm_vcpu_ioctl", "main_loop"]);
    assert_eq!(stack(&recording.samples[1]), ["main_loop", "main_loop"], "at 5 ms");
    let below: Vec<_> =
        recording.samples.iter().filter_map(|sample| Some((sample, sample.host_stack?))).collect();
    assert_eq!(below.len(), 10, "of 30 in the guest");
    for (sample, host_stack) in below {
        assert_eq!(recording.owners[sample.owner as usize].place, None);
        let entered = stack(&RecordedSample { stack: host_stack, ..*sample });
        assert_eq!(entered, ["vcpu_enter_guest", "kvm_vcpu_ioctl", "main_loop"]);
        assert_ne!(stack(sample), entered, "the guest's stack stays");
    }
}

#[test]
fn a_profile_without_such_stacks_says_so() {
    let (_directory, path) = known().write();
    let profile = Profile::open(&path).expect("a profile");
    let error = HostReport::read(&profile, &Filter::default()).unwrap_err();
    assert!(matches!(error, ReportError::NoHost), "{error}");
    let request = RecordingRequest { host: true, ..RecordingRequest::default() };
    let error = Recording::read(&profile, &request, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, ReportError::NoHost), "{error}");
}

#[test]
fn rows_that_vprof_does_not_write_do_no_harm() {
    let mut run = with_host();
    // A cycle, a frame and a stack that do not exist.
    run.batch.host_stacks.push(StackRow { id: 4, parent: Some(5), frame: 1 });
    run.batch.host_stacks.push(StackRow { id: 5, parent: Some(4), frame: 2 });
    run.batch.host_stacks.push(StackRow { id: 6, parent: Some(6), frame: 99 });
    for (time_ns, stack) in [(1, Some(5)), (2, Some(6)), (3, Some(77)), (4, None)] {
        let place = ThreadPlace::Vmm;
        run.batch.host_samples.push(HostSampleRow { vcpu: 0, time_ns, place, on_cpu: false, stack });
    }
    let (_directory, path) = run.write();
    let profile = Profile::open(&path).expect("a profile");
    let report = HostReport::read(&profile, &first_vcpu()).expect("a report");
    assert_eq!((report.ticks, report.without_stack), (64, 3));
    let request = RecordingRequest { filter: first_vcpu(), host: true, ..RecordingRequest::default() };
    let recording = Recording::read(&profile, &request, &mut |_, _| {}).expect("a recording");
    assert!(recording.samples.iter().all(|sample| recording.frames_of(sample.stack).count() < 10));
}
