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

fn state(stage: HostStage, kernel_up: bool) -> HostState {
    HostState { stage, kernel_up, at: Instant::now(), sink: Box::new(Nowhere), sink_error: None }
}

/// Whether a host that froze like this is started anew.
fn tried_again(disk: Option<DiskMode>, stage: HostStage, kernel_up: bool) -> bool {
    let (setup, spec) = (setup(), spec(disk));
    let initrd = Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 };
    let attempt =
        Attempt { setup: &setup, spec: &spec, initrd: &initrd, payload_bytes: 0, vsock: None, restarts: 0 };
    let silent = Ended::Silent(Duration::from_secs(30));
    match attempt.explain(silent, &state(stage, kernel_up), String::new()) {
        Broken::Again(_) => true,
        Broken::Final(error) => {
            assert!(error.to_string().contains("froze while the guest ran: silent for 30.00 s"), "{error}");
            assert!(!error.no_hypervisor());
            false
        }
    }
}

#[tokio::test]
async fn a_frozen_host_is_started_anew_only_where_nothing_was_done() {
    for disk in [None, Some(DiskMode::Snapshot), Some(DiskMode::ReadWrite)] {
        assert!(tried_again(disk, HostStage::Booting, false));
        assert!(tried_again(disk, HostStage::Up, false));
        assert!(!tried_again(disk, HostStage::Guest, true));
    }
    assert!(tried_again(None, HostStage::Guest, false));
    assert!(tried_again(Some(DiskMode::Snapshot), HostStage::Guest, false));
    assert!(!tried_again(Some(DiskMode::ReadWrite), HostStage::Guest, false));
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
    let (setup, spec) = (setup(), spec(None));
    let initrd = Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 };
    let attempt =
        Attempt { setup: &setup, spec: &spec, initrd: &initrd, payload_bytes: 0, vsock: None, restarts: 0 };
    let (mut link, _watcher) = crate::link::link();
    let hello = FromHost::Hello { kernel: "6.1".to_owned(), version: "0.0.0-other".to_owned() };
    let refused = attempt.handle(hello, &mut link, &mut state(HostStage::Booting, false));
    assert!(matches!(refused, Err(Ended::Protocol(what)) if what.to_string().contains("0.0.0-other")));
}
