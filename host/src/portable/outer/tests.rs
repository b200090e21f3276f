use disk_images::contents::ImageFormat;
use vmm::DiskMode;

use super::*;
use crate::spec::{DiskSpec, MachineSpec};

fn spec(disk: Option<DiskMode>) -> RunSpec {
    let disk = disk.map(|mode| DiskSpec { path: "/x".into(), format: ImageFormat::Raw, mode });
    RunSpec {
        machine: MachineSpec {
            vcpus: 1,
            memory_bytes: 1 << 30,
            huge_pages: false,
            cpu: vmm::CpuFeatures::default(),
            cmdline: String::new(),
            disks: disk.into_iter().collect(),
            network: None,
            virtio_console: false,
            output_ports: false,
        },
        command: None,
        recording: sampler::RecordingConfig::default(),
        duration: None,
        policy: sandbox::SyscallPolicy::default(),
        waits: Vec::new(),
        retries: 0,
        meta: Vec::new(),
    }
}

fn setup() -> Setup {
    Setup {
        qemu: Qemu { path: "/q".into(), version: "1".to_owned(), has_sandbox: false },
        bundle: Bundle { directory: "/b".into(), kernel: "/b/k".into(), initrd: "/b/i".into() },
        silence: Duration::from_secs(30),
    }
}

fn facts(stage: RunStage, measured: bool) -> RunFacts {
    RunFacts { stage, measured, run_ns: 12_000_000_000 }
}

fn attempt<'a>(setup: &'a Setup, spec: &'a RunSpec, parts: &'a HostParts) -> Attempt<'a> {
    Attempt { setup, spec, parts, payload_bytes: 0, restarts: Restarts::default() }
}

fn parts() -> HostParts {
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    HostParts {
        kernel: null(),
        initrd: Initrd { fd: null(), bytes: 0 },
        disks: Vec::new(),
        readable: Vec::new(),
        directory: tempfile::tempdir().unwrap(),
    }
}

fn outcome(end: MachineEnd) -> Outcome {
    Outcome {
        end: GuestEnd::Ran(end),
        totals: sampler::SessionTotals::default(),
        host_restarts: 0,
        trouble: Vec::new(),
    }
}

/// The fault of a host that came to this end, if it is one.
fn fault(disk: Option<DiskMode>, facts: &RunFacts, ended: RelayEnd) -> Option<Fault> {
    let (setup, spec, parts) = (setup(), spec(disk), parts());
    match attempt(&setup, &spec, &parts).explain(ended, facts, None, String::new()) {
        Ok(Attempted::Faulty(fault)) => Some(fault),
        Ok(Attempted::Ended(_)) => panic!("no guest has ended"),
        Err(_) => None,
    }
}

#[test]
fn a_frozen_host_has_measured_nothing_before_the_kernel_is_found() {
    let measured = |disk, stage, measured| {
        let silent = RelayEnd::Silent(Duration::from_secs(30));
        fault(disk, &facts(stage, measured), silent).expect("a fault").measured
    };
    for disk in [None, Some(DiskMode::Snapshot), Some(DiskMode::ReadWrite)] {
        assert!(!measured(disk, RunStage::Silent, false));
        assert!(!measured(disk, RunStage::Preparing, false));
        assert!(measured(disk, RunStage::Guest, true));
    }
    assert!(!measured(None, RunStage::Guest, false));
    assert!(!measured(Some(DiskMode::Snapshot), RunStage::Guest, false));
    // What the guest has written to a disk stays there.
    assert!(measured(Some(DiskMode::ReadWrite), RunStage::Guest, false));
}

#[test]
fn faults_of_the_emulation_are_told_apart_from_other_ends() {
    let guest = || facts(RunStage::Guest, true);
    let silent = fault(None, &guest(), RelayEnd::Silent(Duration::from_secs(30))).unwrap();
    let error = silent.result.unwrap_err();
    assert!(error.to_string().contains("froze while the guest ran: silent for 30.00 s"), "{error}");
    assert_eq!(error.stage(), crate::Stage::Guest);
    let stalled =
        fault(None, &guest(), RelayEnd::Stalled("vCPU 1 had no ticks for 10 s".to_owned())).unwrap();
    assert_eq!(
        stalled.sentence,
        "the emulated host stalled after 12.00 s: vCPU 1 had no ticks for 10 s: a known fault of QEMU's SVM emulation \
         (docs/limits.md)"
    );
    let error = stalled.result.unwrap_err();
    assert!(error.to_string().contains("`--retry`") && error.stage() == crate::Stage::Guest, "{error}");
    assert!(fault(None, &guest(), RelayEnd::Closed).is_some());
    assert!(fault(None, &facts(RunStage::Silent, false), RelayEnd::Closed).is_none());
    assert!(fault(None, &guest(), RelayEnd::Stopped).is_none());
    assert!(fault(None, &guest(), RelayEnd::Failed(crate::Stage::Guest, "no disk".to_owned())).is_none());
}

#[test]
fn a_triple_fault_is_one_of_the_emulation_and_keeps_its_outcome() {
    let (setup, spec, parts) = (setup(), spec(None), parts());
    let attempt = attempt(&setup, &spec, &parts);
    let failed = outcome(MachineEnd::Failed(format!("vCPU 0: {TRIPLE_FAULT}: an exception")));
    let Attempted::Faulty(fault) = attempt.judge(failed, &facts(RunStage::Guest, true)) else {
        panic!("no fault");
    };
    assert!(fault.measured && fault.result.is_ok());
    assert!(fault.sentence.contains("had a triple fault after 12.00 s"), "{}", fault.sentence);
    for end in [MachineEnd::Reset, MachineEnd::Failed("vCPU 0: KVM failed".to_owned())] {
        let judged = attempt.judge(outcome(end), &facts(RunStage::Guest, true));
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
