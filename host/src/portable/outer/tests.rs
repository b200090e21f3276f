use images::contents::ImageFormat;
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
            cmdline: String::new(),
            disks: disk.into_iter().collect(),
            network: None,
            vsock_cid: None,
            virtio_console: false,
        },
        command: None,
        recording: sampler::RecordingConfig::default(),
        duration: None,
        policy: wall::SyscallPolicy::default(),
        waits: Vec::new(),
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

/// Whether a host that froze like this is started anew.
fn tried_again(disk: Option<DiskMode>, stage: RunStage, kernel_up: bool) -> bool {
    let (setup, spec) = (setup(), spec(disk));
    let initrd = Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 };
    let attempt =
        Attempt { setup: &setup, spec: &spec, initrd: &initrd, payload_bytes: 0, vsock: None, restarts: 0 };
    let silent = RelayEnd::Silent(Duration::from_secs(30));
    match attempt.explain(silent, (stage, kernel_up), None, String::new()) {
        Broken::Again(_) => true,
        Broken::Final(error) => {
            assert!(error.to_string().contains("froze while the guest ran: silent for 30.00 s"), "{error}");
            assert_eq!(error.stage(), crate::Stage::Guest);
            false
        }
    }
}

#[test]
fn a_frozen_host_is_started_anew_only_where_nothing_was_done() {
    for disk in [None, Some(DiskMode::Snapshot), Some(DiskMode::ReadWrite)] {
        assert!(tried_again(disk, RunStage::Silent, false));
        assert!(tried_again(disk, RunStage::Preparing, false));
        assert!(!tried_again(disk, RunStage::Guest, true));
    }
    assert!(tried_again(None, RunStage::Guest, false));
    assert!(tried_again(Some(DiskMode::Snapshot), RunStage::Guest, false));
    assert!(!tried_again(Some(DiskMode::ReadWrite), RunStage::Guest, false));
}
