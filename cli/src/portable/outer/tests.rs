use std::os::fd::OwnedFd;

use super::*;
use crate::run::spec::{DiskSpec, Writes};
use images::contents::ImageFormat;

struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, _: &Batch) -> Result<(), profile::SinkError> {
        Err(profile::SinkError("the disk is full".to_owned()))
    }
}

fn spec(disk: Option<Writes>) -> RunSpec {
    RunSpec {
        network: None,
        vsock_cid: None,
        virtio_console: false,
        vcpus: 1,
        memory_bytes: 1 << 30,
        huge_pages: false,
        cmdline: String::new(),
        disks: disk
            .map(|writes| DiskSpec { path: "/x".into(), format: ImageFormat::Raw, writes })
            .into_iter()
            .collect(),
        command: None,
        rate_hz: 1.0,
        clock: profile::ClockKind::Uniform,
        seed: 0,
        stack_depth: 127,
        exact: false,
        task_scan_hz: 10.0,
        until_precision: None,
        host_load: 0,
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

fn heard(stage: Stage, kernel_up: bool) -> Heard {
    Heard { stage, kernel_up, at: Instant::now(), sink: Box::new(Nowhere), sink_error: None }
}

/// Whether a host that froze like this is started anew.
fn tried_again(disk: Option<Writes>, stage: Stage, kernel_up: bool) -> bool {
    let (setup, spec) = (setup(), spec(disk));
    let initrd = Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 };
    let attempt =
        Attempt { setup: &setup, spec: &spec, initrd: &initrd, payload_bytes: 0, vsock: None, restarts: 0 };
    let silent = Ended::Silent(Duration::from_secs(30));
    match attempt.explain(silent, &heard(stage, kernel_up), String::new()) {
        Broken::Again(_) => true,
        Broken::Final(error) => {
            assert!(error.to_string().contains("froze while the guest ran: silent for 30.00 s"), "{error}");
            assert_eq!(error.exit_code().number(), 1);
            false
        }
    }
}

#[tokio::test]
async fn a_frozen_host_is_started_anew_only_where_nothing_was_done() {
    for disk in [None, Some(Writes::Discarded), Some(Writes::Kept)] {
        assert!(tried_again(disk, Stage::Booting, false));
        assert!(tried_again(disk, Stage::Up, false));
        assert!(!tried_again(disk, Stage::Guest, true));
    }
    assert!(tried_again(None, Stage::Guest, false));
    assert!(tried_again(Some(Writes::Discarded), Stage::Guest, false));
    assert!(!tried_again(Some(Writes::Kept), Stage::Guest, false));
}

#[tokio::test]
async fn the_first_failure_of_the_sink_is_kept_and_no_more_is_written() {
    let mut heard = heard(Stage::Guest, true);
    heard.write(&Batch::default());
    assert_eq!(heard.sink_error.as_deref(), Some("the disk is full"));
    heard.sink_error = Some("first".to_owned());
    heard.write(&Batch::default());
    assert_eq!(heard.sink_error.as_deref(), Some("first"));
}

#[tokio::test]
async fn another_version_inside_is_refused() {
    let (setup, spec) = (setup(), spec(None));
    let initrd = Initrd { fd: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), bytes: 0 };
    let attempt =
        Attempt { setup: &setup, spec: &spec, initrd: &initrd, payload_bytes: 0, vsock: None, restarts: 0 };
    let (mut link, _watcher) = crate::run::link::link();
    let hello = FromHost::Hello { kernel: "6.1".to_owned(), version: "0.0.0-other".to_owned() };
    let refused = attempt.hear(hello, &mut link, &mut heard(Stage::Booting, false));
    assert!(matches!(refused, Err(Ended::Protocol(what)) if what.contains("0.0.0-other")));
}
