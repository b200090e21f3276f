use images::contents::ImageFormat;
use vmm::DiskMode;

use super::*;
use crate::spec::{DiskSpec, MachineSpec};

struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, _: &Batch) -> Result<(), profile::SinkError> {
        Err(profile::SinkError("the disk is full".to_owned()))
    }
}

fn spec(disk: Option<DiskMode>) -> RunSpec {
    let disk = disk.map(|mode| DiskSpec { path: "/x".into(), format: ImageFormat::Raw, mode });
    RunSpec {
        machine: MachineSpec {
            vcpus: 1,
            memory_bytes: 1 << 30,
            huge_pages: false,
            cmdline: String::new(),
            disks: disk.into_iter().collect(),
            network: None,
            vsock_cid: None,
            virtio_console: false,
        },
        command: None,
        recording: sampler::RecordingConfig::default(),
        duration: None,
        waits: Vec::new(),
        retries: 0,
        meta: Vec::new(),
    }
}

fn setup() -> Setup {
    Setup {
        qemu: Qemu { path: "/q".into(), version: "1".to_owned() },
        bundle: Bundle { directory: "/b".into(), kernel: "/b/k".into(), initrd: "/b/i".into() },
        silence: Duration::from_secs(30),
    }
}

fn state(stage: HostStage, measured: bool) -> HostState {
    HostState {
        stage,
        kernel_up: measured,
        measured,
        run_ns: 12_000_000_000,
        begun: None,
        standstill: None,
        heard: Instant::now(),
        progressed: Instant::now(),
        sink: Box::new(Nowhere),
        sink_error: None,
    }
}

fn attempt<'a>(setup: &'a Setup, spec: &'a RunSpec, initrd: &'a Initrd) -> Attempt<'a> {
    Attempt { setup, spec, initrd, payload_bytes: 0, vsock: None, restarts: Restarts::default() }
}

fn initrd() -> Initrd {
    Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 }
}

fn outcome(end: MachineEnd) -> Outcome {
    Outcome { end: GuestEnd::Ran(end), totals: sampler::SessionTotals::default(), host_restarts: 0 }
}

/// The fault of a host that came to this end, if it is one.
fn fault(disk: Option<DiskMode>, state: &HostState, ended: Ended) -> Option<Fault> {
    let (setup, spec, initrd) = (setup(), spec(disk), initrd());
    match attempt(&setup, &spec, &initrd).explain(ended, state, String::new()) {
        Ok(Attempted::Faulty(fault)) => Some(fault),
        Ok(Attempted::Ended(_)) => panic!("no guest has ended"),
        Err(_) => None,
    }
}

#[test]
fn a_frozen_host_has_measured_nothing_before_the_kernel_is_found() {
    let measured = |disk, stage, measured| {
        let silent = Ended::Silent(Duration::from_secs(30));
        fault(disk, &state(stage, measured), silent).expect("a fault").measured
    };
    for disk in [None, Some(DiskMode::Snapshot), Some(DiskMode::ReadWrite)] {
        assert!(!measured(disk, HostStage::Booting, false));
        assert!(!measured(disk, HostStage::Up, false));
        assert!(measured(disk, HostStage::Guest, true));
    }
    assert!(!measured(None, HostStage::Guest, false));
    assert!(!measured(Some(DiskMode::Snapshot), HostStage::Guest, false));
    // What the guest has written to a disk stays there.
    assert!(measured(Some(DiskMode::ReadWrite), HostStage::Guest, false));
}

#[test]
fn faults_of_the_emulation_are_told_apart_from_other_ends() {
    let guest = || state(HostStage::Guest, true);
    let silent = fault(None, &guest(), Ended::Silent(Duration::from_secs(30))).unwrap();
    let error = silent.result.unwrap_err();
    assert!(error.to_string().contains("froze while the guest ran: silent for 30.00 s"), "{error}");
    assert_eq!(error.stage(), crate::Stage::Guest);
    let stalled = fault(None, &guest(), Ended::Stalled("vCPU 1 had no ticks for 10 s".to_owned())).unwrap();
    assert_eq!(
        stalled.sentence,
        "the emulated host stalled after 12.00 s: vCPU 1 had no ticks for 10 s: a known fault of QEMU's SVM emulation \
         (docs/limits.md)"
    );
    let error = stalled.result.unwrap_err();
    assert!(error.to_string().contains("`--retry`") && error.stage() == crate::Stage::Guest, "{error}");
    assert!(fault(None, &guest(), Ended::Died(None)).is_some());
    assert!(fault(None, &state(HostStage::Booting, false), Ended::Died(None)).is_none());
    assert!(fault(None, &guest(), Ended::Stopped).is_none());
    assert!(fault(None, &guest(), Ended::Inside("no disk".to_owned())).is_none());
}

#[test]
fn a_triple_fault_is_one_of_the_emulation_and_keeps_its_outcome() {
    let (setup, spec, initrd) = (setup(), spec(None), initrd());
    let attempt = attempt(&setup, &spec, &initrd);
    let failed = outcome(MachineEnd::Failed(format!("vCPU 0: {TRIPLE_FAULT}: an exception")));
    let Attempted::Faulty(fault) = attempt.judge(failed, &state(HostStage::Guest, true)) else {
        panic!("no fault");
    };
    assert!(fault.measured && fault.result.is_ok());
    assert!(fault.sentence.contains("had a triple fault after 12.00 s"), "{}", fault.sentence);
    for end in [MachineEnd::Reset, MachineEnd::Failed("vCPU 0: KVM failed".to_owned())] {
        let judged = attempt.judge(outcome(end), &state(HostStage::Guest, true));
        assert!(matches!(judged, Attempted::Ended(_)), "{judged:?}");
    }
}

#[test]
fn restarts_are_bounded_and_late_ones_need_the_option() {
    let mut restarts = Restarts::default();
    assert!(!restarts.take(true, 0));
    assert!(restarts.take(false, 0) && restarts.take(false, 0));
    assert!(!restarts.take(false, 0));
    assert!(restarts.take(true, 1));
    assert!(!restarts.take(true, 1) && !restarts.take(false, 1));
    assert_eq!(restarts.count(), 3);
}

/// A batch of a run that is this long, with samples or without.
fn batch(seconds: u64, samples: usize, kernel: bool) -> Batch {
    let mut batch = Batch::default();
    batch.meta.push(("duration_ns".to_owned(), (seconds * 1_000_000_000).to_string()));
    if kernel {
        batch.meta.push(("kernel".to_owned(), "6.1".to_owned()));
    }
    batch.samples = (0..samples).map(|_| profile::rows::SampleRow::default()).collect();
    batch
}

#[test]
fn samples_are_measured_once_the_kernel_is_known() {
    let mut state = state(HostStage::Guest, false);
    state.note(&batch(1, 5, false));
    state.note(&batch(2, 5, true));
    assert!(!state.measured, "the early boot is the same each time");
    // Before --start-when is met there are none.
    state.note(&batch(3, 0, false));
    assert!(!state.measured);
    state.note(&batch(4, 1, false));
    assert!(state.measured);
}

#[test]
fn a_clock_that_jumps_is_a_fault() {
    let mut state = state(HostStage::Guest, true);
    let begun = Instant::now();
    let mut jump = |after: u64, run: u64| {
        state.run_ns = run * 1_000_000_000;
        state.clock_jump(begun + Duration::from_secs(after))
    };
    assert_eq!(jump(0, 2), None);
    assert_eq!(jump(30, 32), None);
    // Rows may be late, and come all at once.
    assert_eq!(jump(60, 40), None);
    assert_eq!(jump(62, 64), None);
    assert_eq!(jump(95, 735).as_deref(), Some("its clock has jumped by 10 min 38 s"));
}

#[tokio::test]
async fn a_host_that_answers_and_records_nothing_is_stalled() {
    let (mut setup, spec, initrd) = (setup(), spec(None), initrd());
    setup.silence = Duration::from_millis(300);
    let (mut link, _watcher) = crate::link::link();
    let (ours, mut inner) = tokio::net::UnixStream::pair().unwrap();
    let answers = tokio::spawn(async move {
        loop {
            let status = FromHost::Status(sampler::SessionStatus::default());
            if inner.write_all(&encode(&status).unwrap()).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut child = tokio::process::Command::new("sleep").arg("100").kill_on_drop(true).spawn().unwrap();
    let mut state = state(HostStage::Guest, true);
    let attempt = attempt(&setup, &spec, &initrd);
    let talk = attempt.talk(ours, &mut child, &mut link, &mut state);
    let ended = tokio::time::timeout(Duration::from_secs(20), talk).await.expect("an end");
    assert!(matches!(&ended, Err(Ended::Stalled(sign)) if sign.starts_with("it answers")), "{ended:?}");
    answers.abort();
}

#[tokio::test]
async fn a_standstill_in_the_rows_ends_the_conversation() {
    let (setup, spec, initrd) = (setup(), spec(None), initrd());
    let (mut link, _watcher) = crate::link::link();
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let mut inner = theirs;
    let text = "vCPU 0 had no ticks for 10 s".to_owned();
    let mut stalled = batch(12, 3, false);
    stalled.events.push(EventRow { time_ns: 1, kind: STANDSTILL.to_owned(), text: text.clone() });
    for message in [FromHost::Batch(Box::new(batch(9, 3, true))), FromHost::Batch(Box::new(stalled))] {
        inner.write_all(&encode(&message).unwrap()).await.unwrap();
    }
    let mut child = tokio::process::Command::new("sleep").arg("100").kill_on_drop(true).spawn().unwrap();
    let mut state = state(HostStage::Guest, false);
    // The sink fails: that is not what ends it.
    let ended = attempt(&setup, &spec, &initrd).talk(ours, &mut child, &mut link, &mut state).await;
    assert!(matches!(&ended, Err(Ended::Stalled(sign)) if *sign == text), "{ended:?}");
    assert!(state.measured);
}

#[tokio::test]
async fn the_first_failure_of_the_sink_is_kept_and_no_more_is_written() {
    let mut state = state(HostStage::Guest, true);
    state.write(&Batch::default());
    assert_eq!(state.sink_error.as_deref(), Some("the disk is full"));
    state.sink_error = Some("first".to_owned());
    state.write(&Batch::default());
    assert_eq!(state.sink_error.as_deref(), Some("first"));
}

#[tokio::test]
async fn another_version_inside_is_refused() {
    let (setup, spec, initrd) = (setup(), spec(None), initrd());
    let (mut link, _watcher) = crate::link::link();
    let hello = FromHost::Hello { kernel: "6.1".to_owned(), version: "0.0.0-other".to_owned() };
    let attempt = attempt(&setup, &spec, &initrd);
    let refused = attempt.handle(hello, &mut link, &mut state(HostStage::Booting, false));
    assert!(matches!(refused, Err(Ended::Protocol(what)) if what.to_string().contains("0.0.0-other")));
}
