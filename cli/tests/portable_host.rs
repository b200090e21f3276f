//! The launcher of the portable host against a QEMU that misbehaves.

mod support;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use host::protocol::{FromHost, encode};
use host::spec::{GuestEnd, Outcome};
use profile::rows::{Batch, ConsoleRow, EventRow, SampleRow, VcpuRow};
use profile::{Profile, ProfileWriter, Sink};
use sampler::SessionTotals;
use support::{fake_host, stderr, vprof};
use vmm::MachineEnd;

/// Finds the port: the only socket that is inherited. The script may not list the directory.
const PORT: &str =
    "for fd in {3..30}; do case $(readlink /proc/$$/fd/$fd) in socket*) port=$fd;; esac; done\n";
/// Descriptor through which the script writes its process id. It may open no file for writing.
const PIDS: i32 = 99;

/// A portable host whose QEMU is a script.
struct FakeHost {
    directory: tempfile::TempDir,
    bundle: PathBuf,
    path: String,
}

impl FakeHost {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (bundle, bin) = fake_host(directory.path(), &format!("echo $$ >&{PIDS}\n{script}"));
        fs::write(directory.path().join("kernel"), testkit::bz_image(5000)).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Self { directory, bundle, path }
    }

    /// A host that sends these messages only.
    fn saying(messages: &[FromHost]) -> Self {
        let words: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        let fake = Self::new(&format!("{PORT}cat \"${{0%/*}}/words\" >&$port; exec sleep 1000"));
        fs::write(fake.directory.path().join("bin/words"), words).unwrap();
        fake
    }

    fn profile(&self) -> PathBuf {
        self.directory.path().join("out.vprof")
    }

    /// Gives the run's profile a predecessor, in which the console says "old".
    fn older(&self) {
        let mut writer = ProfileWriter::create(&self.profile(), false).unwrap();
        writer.write(&recorded(b"old")).unwrap();
        writer.finish().unwrap();
    }

    fn console(&self) -> Vec<u8> {
        let table =
            Profile::open(&self.profile()).unwrap().query("SELECT group_concat(bytes, '') FROM console");
        match &table.unwrap().rows[0][0] {
            profile::store::Value::Text(text) => text.clone().into_bytes(),
            profile::store::Value::Blob(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn run(&self, more: &[&str]) -> Command {
        let file = |name: &str| self.directory.path().join(name);
        let mut command = vprof(["run", "--host", "portable", "--portable-host"]);
        command.arg(&self.bundle).arg(file("kernel")).arg("-o").arg(file("out.vprof"));
        command.args(more).env("PATH", &self.path);
        let pids = fs::File::options().create(true).append(true).open(self.pids_file()).unwrap();
        // SAFETY: between fork and exec one system call is made, on a descriptor that the closure owns.
        unsafe {
            command.pre_exec(move || match libc::dup2(pids.as_raw_fd(), PIDS) {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            })
        };
        command
    }

    /// File with a line for each start of QEMU, next to QEMU, where the script can read it.
    fn pids_file(&self) -> PathBuf {
        self.directory.path().join("bin/pids")
    }

    /// A host that sends these messages at its first start, at its second, and so on, and is silent then.
    fn sending(starts: &[Vec<FromHost>]) -> Self {
        let send = "n=$(wc -l < \"${0%/*}/pids\")\ncat \"${0%/*}/sent.$n\" >&$port; exec sleep 1000";
        let fake = Self::new(&format!("{PORT}{send}"));
        for (n, messages) in (1..).zip(starts) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
            fs::write(fake.directory.path().join(format!("bin/sent.{n}")), bytes).unwrap();
        }
        fake
    }

    /// The profile's events of a kind.
    fn events(&self, kind: &str) -> Vec<String> {
        let profile = profile::Profile::open(&self.directory.path().join("out.vprof")).unwrap();
        let events = profile::report::Report::read(&profile, &Default::default()).unwrap().events;
        events.into_iter().filter(|event| event.kind == kind).map(|event| event.text).collect()
    }

    /// Process ids of all starts of QEMU.
    fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.pids_file()).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn no_profile(&self) -> bool {
        !self.directory.path().join("out.vprof").exists()
    }
}

fn failed(sentence: &str) -> FromHost {
    // What the half takes this to be has no influence on the profile.
    FromHost::Error { stage: host::Stage::BeforeGuest, sentence: sentence.to_owned() }
}

fn hello() -> FromHost {
    FromHost::Hello { kernel: "6.1".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

fn recorded(line: &[u8]) -> Batch {
    let vcpus = vec![VcpuRow { exits: 3, ..VcpuRow::default() }];
    Batch { vcpus, console: vec![ConsoleRow { time_ns: 1, bytes: line.to_vec() }], ..Batch::default() }
}

fn end(trouble: &[&str]) -> FromHost {
    FromHost::End(Outcome {
        end: GuestEnd::Ran(vmm::MachineEnd::PowerOff),
        totals: SessionTotals::default(),
        host_restarts: 0,
        trouble: trouble.iter().map(|&sentence| sentence.to_owned()).collect(),
    })
}

#[test]
fn what_was_recorded_survives_whatever_fails_afterwards() {
    let failure = failed("can't finish writing a disk: no space left on device");
    let fake = FakeHost::saying(&[hello(), FromHost::Batch(Box::new(recorded(b"hours"))), failure]);
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("can't finish writing a disk"), "{error}");
    assert!(error.contains("out.vprof has what was recorded until then"), "{error}");
    assert_eq!(fake.console(), b"hours");
}

#[test]
fn a_disk_that_is_full_is_a_note_and_an_exit_code() {
    let trouble = ["can't write the rest of web.qcow2: no space left on device"];
    let fake = FakeHost::saying(&[hello(), FromHost::Batch(Box::new(recorded(b"hours"))), end(&trouble)]);
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(trouble[0]), "{error}");
    assert!(error.contains("the profile is in"), "the summary is shown: {error}");
    assert_eq!(fake.console(), b"hours");
}

#[test]
fn a_run_that_recorded_nothing_leaves_nothing() {
    let fake = FakeHost::saying(&[hello(), failed("can't load kvm-amd.ko")]);
    let output = fake.run(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("can't load kvm-amd.ko") && !stderr(&output).contains("recorded until"));
    let names = fs::read_dir(fake.directory.path()).unwrap();
    let mut names = names.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    assert!(!names.any(|name| name.starts_with("out") || name.starts_with(".vprof")));
}

#[test]
fn an_older_profile_stays_until_a_new_one_has_begun() {
    let fake = FakeHost::saying(&[hello(), failed("no")]);
    fake.older();
    let output = fake.run(&["--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fake.console(), b"old");
    let output = fake.run(&["--force", "--control", "/no/such/place/x.sock"]).output().unwrap();
    assert!(stderr(&output).contains("/no/such/place/x.sock"), "{}", stderr(&output));
    assert_eq!(fake.console(), b"old");

    let fake = FakeHost::saying(&[hello(), FromHost::Batch(Box::new(recorded(b"new"))), end(&[])]);
    fake.older();
    let output = fake.run(&["--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(fake.console(), b"new");
}

/// The first words of a host whose guest has run for this long, with a sample or without.
fn booted(seconds: u64, sampled: bool) -> Vec<FromHost> {
    let mut batch = Batch::default();
    batch.meta.push(("kernel".to_owned(), "6.1".to_owned()));
    batch.meta.push(("duration_ns".to_owned(), ((seconds - 1) * 1_000_000_000).to_string()));
    let mut later = Batch::default();
    later.meta.push(("duration_ns".to_owned(), (seconds * 1_000_000_000).to_string()));
    later.samples.extend(sampled.then(SampleRow::default));
    vec![
        FromHost::Hello { kernel: "6.1".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        FromHost::Console(b"a guest\n".to_vec()),
        FromHost::Batch(Box::new(batch)),
        FromHost::Batch(Box::new(later)),
    ]
}

/// The same up to a standstill of the guest.
fn stalled(sampled: bool) -> Vec<FromHost> {
    let text = "vCPU 0 had no ticks for 10 s: it does not leave the guest".to_owned();
    let events = vec![EventRow { time_ns: 11_000_000_000, kind: sampler::STANDSTILL.to_owned(), text }];
    let mut messages = booted(12, sampled);
    messages.push(FromHost::Batch(Box::new(Batch { events, ..Batch::default() })));
    messages
}

/// The same up to the guest's end.
fn ended(end: MachineEnd) -> Vec<FromHost> {
    let outcome = Outcome {
        end: GuestEnd::Ran(end),
        totals: SessionTotals::default(),
        host_restarts: 0,
        trouble: Vec::new(),
    };
    let mut messages = booted(20, true);
    messages.push(FromHost::End(outcome));
    messages
}

#[test]
fn a_guest_that_stalls_ends_the_run_and_is_run_again_with_retry() {
    let stalls = [stalled(true), ended(MachineEnd::PowerOff)];
    let fake = FakeHost::sending(&stalls);
    let output = fake.run(&["-q"]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.starts_with("vprof: the emulated host stalled after 12.00 s: vCPU 0 had no ticks"),
        "{error}"
    );
    assert!(error.contains("`--retry`") && error.trim_end().lines().count() == 1, "{error}");
    assert_eq!((fake.pids().len(), fake.events("emulation").len()), (1, 1), "the profile stays");

    let fake = FakeHost::sending(&stalls);
    let output = fake.run(&["-q", "--retry"]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert!(error.contains("the emulated host stalled after 12.00 s"), "{error}");
    assert!(error.trim_end().ends_with("the run begins again"), "{error}");
    let pids = fake.pids();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    let events = fake.events("emulation");
    assert!(events.len() == 1 && events[0].ends_with("the run began again"), "{events:?}");
    assert_eq!(fake.events("standstill").len(), 0, "that was the first profile's");
}

#[test]
fn a_guest_that_stalls_before_it_is_measured_is_run_again_anyway() {
    let fake = FakeHost::sending(&[stalled(false), stalled(false), ended(MachineEnd::PowerOff)]);
    let output = fake.run(&["-q"]).output().unwrap();
    assert_eq!((output.status.code(), fake.pids().len()), (Some(0), 3), "{}", stderr(&output));
    assert_eq!(fake.events("emulation").len(), 2);
    let fake = FakeHost::sending(&[stalled(false), stalled(false), stalled(false)]);
    let output = fake.run(&["-q"]).output().unwrap();
    assert_eq!((output.status.code(), fake.pids().len()), (Some(1), 3), "{}", stderr(&output));
}

#[test]
fn a_triple_fault_counts_as_one_of_the_emulation() {
    let failed = MachineEnd::Failed(format!("vCPU 0: {}: an exception", vmm::TRIPLE_FAULT));
    let fake = FakeHost::sending(&[ended(failed.clone()), ended(failed), ended(MachineEnd::PowerOff)]);
    let output = fake.run(&["-q", "--retry=2"]).output().unwrap();
    assert_eq!((output.status.code(), fake.pids().len()), (Some(0), 3), "{}", stderr(&output));
    let failed = MachineEnd::Failed(format!("vCPU 0: {}: an exception", vmm::TRIPLE_FAULT));
    let fake = FakeHost::sending(&[ended(failed)]);
    let output = fake.run(&["-q"]).output().unwrap();
    let error = stderr(&output);
    assert_eq!((output.status.code(), fake.pids().len()), (Some(1), 1), "{error}");
    assert!(error.contains("triple fault after 20.00 s") && error.contains("`--retry`"), "{error}");
}

/// Returns true once the process is gone, or a zombie.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'),
    }
}

fn wait_until(what: &str, mut met: impl FnMut() -> bool) {
    testkit::eventually(what, Duration::from_secs(20), || met().then_some(()));
}

#[test]
fn a_silent_host_is_killed_and_tried_three_times() {
    let fake = FakeHost::new("exec sleep 1000");
    let output = fake.run(&["--host-timeout", "200ms", "-v"]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("starting the portable host again, 2 times"), "{error}");
    assert!(error.contains("the run begins again"), "{error}");
    assert!(error.contains("the portable host froze while it booted"), "{error}");
    assert!(error.contains("also after 2 restarts"), "{error}");
    let pids = fake.pids();
    assert_eq!(pids.len(), 3);
    assert!(pids.iter().all(|pid| is_gone(*pid)));
    assert!(fake.no_profile());
}

#[test]
fn a_host_that_dies_is_reported_with_its_last_words() {
    let fake = FakeHost::new("echo 'no such machine' >&2; exit 7");
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("ended while it booted (exit status: 7)"), "{error}");
    assert!(error.contains("no such machine"), "{error}");
    assert_eq!(fake.pids().len(), 1);
    assert!(fake.no_profile());
}

#[test]
fn a_host_that_sends_an_invalid_message_is_refused() {
    // 0xffffffff is a frame of 4 GiB.
    let fake = FakeHost::new(&format!("{PORT}printf '\\377\\377\\377\\377' >&$port; exec sleep 1000"));
    let output = fake.run(&[]).output().unwrap();
    let error = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("a message of 4294967295 bytes"), "{error}");
    assert!(fake.pids().iter().all(|pid| is_gone(*pid)));
}

#[test]
fn a_signal_ends_the_run_and_the_host() {
    let fake = FakeHost::new("exec sleep 1000");
    let mut child = fake.run(&["-q"]).spawn().unwrap();
    wait_until("QEMU starts", || fake.pids().len() == 1);
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(is_gone(fake.pids()[0]));
    assert!(fake.no_profile());
}

#[test]
fn the_host_dies_with_a_killed_vprof() {
    let fake = FakeHost::new("exec sleep 1000");
    let mut child = fake.run(&["-q"]).spawn().unwrap();
    wait_until("QEMU starts", || fake.pids().len() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let pid = fake.pids()[0];
    wait_until("QEMU dies with vprof", || is_gone(pid));
}
