//! Boots of the images in QEMU's plain emulation, without vprof: init and the workloads do not depend on the
//! machine.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest_images::{
    DemoOptions, KernelFlavour, KernelSeries, SilentProgress, command_archive, demo, find_program,
};
use guest_programs::EXIT_PORT;
use testkit::events::{EmulationFailure, repeated};

/// Seconds after which an emulated guest counts as hanging.
const LIMIT: &str = "180";
/// Attempts to start a guest that hangs. QEMU's emulation of two CPUs sometimes loses a timer, and Linux then
/// reports RCU stalls.
const REPEATS: usize = 2;

struct ImageGuest {
    /// Image with kernel and initrd.
    image: PathBuf,
    /// Disk to attach, and true if changes to it are kept.
    disk: Option<(PathBuf, bool)>,
    command: Vec<String>,
    append: &'static str,
}

/// A guest that did not end within the limit.
struct HungGuest {
    console: String,
}

struct GuestEnd {
    /// Low seven bits, which QEMU reports, of the guest's write to the exit port; `None` if the guest powered
    /// off without such a write.
    status: Option<u8>,
    console: String,
}

impl ImageGuest {
    fn new(series: KernelSeries, flavour: KernelFlavour) -> Self {
        let image = demo(&DemoOptions { series, flavour }, &SilentProgress).unwrap();
        Self { disk: Some((image.clone(), false)), image, command: Vec::new(), append: "" }
    }

    fn script(self, script: &str) -> Self {
        // The firmware's last bytes may be on the first line.
        self.command(&["sh", "-c", &format!("echo\n{script}")])
    }

    fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(ToString::to_string).collect();
        self
    }

    fn boot(&self) -> GuestEnd {
        for _ in 0..REPEATS {
            match self.boot_once() {
                Ok(ended) => return ended,
                Err(hung) => repeated(EmulationFailure::Frozen, &hung.console),
            }
        }
        self.boot_once()
            .unwrap_or_else(|hung| panic!("the guest did not end within {LIMIT} s:\n{}", hung.console))
    }

    fn boot_once(&self) -> Result<GuestEnd, HungGuest> {
        let directory = tempfile::tempdir().unwrap();
        let (kernel, initrd) = (directory.path().join("vmlinuz"), directory.path().join("initrd"));
        dump(&self.image, "/boot/vmlinuz", &kernel);
        dump(&self.image, "/boot/initrd.img", &initrd);
        if !self.command.is_empty() {
            let mut bytes = fs::read(&initrd).unwrap();
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(command_archive(&self.command).unwrap());
            fs::write(&initrd, bytes).unwrap();
        }
        let qemu = find_program("qemu-system-x86_64").expect("QEMU: run cargo xtask deps");
        // `timeout` ends QEMU even when this test is ended from outside.
        let mut command = Command::new("timeout");
        command.arg(LIMIT).arg(qemu).stdin(Stdio::null());
        command.args(
            "-accel tcg,thread=multi -smp 2 -cpu max -m 1024 -nographic -no-reboot -nic none".split(' '),
        );
        command.args(["-device", &format!("isa-debug-exit,iobase={EXIT_PORT},iosize=4")]);
        command.args(["-device", "virtio-rng-pci"]);
        command.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initrd);
        command.args(["-append", &format!("console=ttyS0 quiet panic=-1 {}", self.append)]);
        if let Some((disk, changes_stay)) = &self.disk {
            let snapshot = if *changes_stay { "off" } else { "on" };
            let drive = format!("file={},if=virtio,format=raw,snapshot={snapshot}", disk.display());
            command.args(["-drive", &drive]);
        }
        let output = command.output().unwrap();
        let console = String::from_utf8_lossy(&output.stdout);
        // The firmware and the kernel's decompressor clear the screen.
        let console = console.rsplit("\x1b[2J").next().unwrap_or_default().to_owned();
        assert_eq!(output.status.signal(), None, "{console}");
        // isa-debug-exit ends QEMU with 2 * value + 1, of which eight bits arrive; power-off ends it with 0.
        let status = match output.status.code().unwrap() {
            0 => None,
            124 => return Err(HungGuest { console }),
            code => Some(u8::try_from((code - 1) / 2).unwrap()),
        };
        Ok(GuestEnd { status, console })
    }
}

fn dump(image: &Path, file: &str, to: &Path) {
    let debugfs = find_program("debugfs").unwrap();
    let request = format!("dump {file} {}", to.display());
    assert!(Command::new(debugfs).args(["-R", &request]).arg(image).output().unwrap().status.success());
    assert!(fs::metadata(to).is_ok_and(|meta| meta.len() > 0), "{file} is in {}", image.display());
}

fn lines(console: &str) -> Vec<&str> {
    console.lines().map(str::trim).collect()
}

/// Checks the promises to a command in each kernel that images are made with.
fn a_command_runs(series: KernelSeries, flavour: KernelFlavour) {
    let guest = ImageGuest::new(series, flavour).script(
        "echo \"kernel $(uname -r)\"
         echo \"terminal $(tty)\"; echo control >/dev/tty
         sh -i -c 'echo interactive'
         set -m; sleep 100 & kill %1 && echo jobs
         echo \"home $HOME $(pwd) $(id -u)\"
         echo \"python $(python3 -c 'print(6 * 7)')\"
         echo hello | gzip | gzip -d
         openssl version | cut -d' ' -f1
         echo \"sum $(printf abc | sha256sum | cut -c1-8)\"
         echo \"random $(cat /sys/class/misc/hw_random/rng_current)\"
         touch /usr/x /tmp/x /run/x /dev/shm/x && echo writable
         grep -q ' / ext4 rw' /proc/mounts && echo root
         seq -s, 2000
         exit 77",
    );
    let ended = guest.boot();
    let lines = lines(&ended.console);
    for expected in [
        "terminal /dev/ttyS0",
        "control",
        "interactive",
        "jobs",
        "home /root /root 0",
        "python 42",
        "hello",
        "random virtio_rng.0",
        "OpenSSL",
        "sum ba7816bf",
        "writable",
        "root",
    ] {
        assert!(
            lines.contains(&expected),
            "no line {expected:?} ({:?}) in:\n{}",
            ended.status,
            ended.console
        );
    }
    assert!(lines.iter().any(|line| line.starts_with(&format!("kernel {series}."))), "{}", ended.console);
    for complaint in ["guest-init:", "job control"] {
        assert!(!ended.console.contains(complaint), "{}", ended.console);
    }
    assert_eq!(ended.status, Some(77), "{}", ended.console);
    // All of a long last line arrives, though the guest ends right after it.
    assert!(lines.iter().any(|line| line.ends_with(",1999,2000")), "{}", ended.console);
}

#[test]
fn a_command_runs_on_6_1_cloud() {
    a_command_runs(KernelSeries::V6_1, KernelFlavour::Cloud);
}

#[test]
#[ignore = "another kernel: --all"]
fn a_command_runs_on_6_12_cloud() {
    a_command_runs(KernelSeries::V6_12, KernelFlavour::Cloud);
}

#[test]
#[ignore = "another kernel: --all"]
fn a_command_runs_on_6_1_generic() {
    a_command_runs(KernelSeries::V6_1, KernelFlavour::Generic);
}

#[test]
#[ignore = "another kernel: --all"]
fn a_command_runs_on_6_12_generic() {
    a_command_runs(KernelSeries::V6_12, KernelFlavour::Generic);
}

#[test]
#[ignore = "three guests: --all"]
fn exit_statuses_follow_the_shell() {
    for (command, status) in [
        (vec!["sh", "-c", "kill -9 $$"], (128 + 9) & 0x7f),
        (vec!["no-such-program"], 127),
        (vec!["/etc/passwd"], 126),
    ] {
        let ended = ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud).command(&command).boot();
        assert_eq!(ended.status, Some(status), "{command:?}:\n{}", ended.console);
    }
}

#[test]
#[ignore = "two guests: --all"]
fn a_guest_without_a_disk_runs_from_its_initrd() {
    let mut guest =
        ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud).command(&["spin", "--seconds", "0.1"]);
    guest.disk = None;
    let ended = guest.boot();
    assert_eq!(ended.status, Some(0), "{}", ended.console);
    // Without a command there is nothing that could have a status, so the power goes off.
    guest.command.clear();
    let ended = guest.boot();
    assert_eq!(ended.status, None, "{}", ended.console);
    assert!(ended.console.contains("guest-init: /usr/bin/demo-load:"), "{}", ended.console);
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_disk_that_is_no_file_system_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("empty.img");
    fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let mut guest = ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud).script("true");
    guest.disk = Some((disk, false));
    let ended = guest.boot();
    assert_eq!(ended.status, Some(125), "{}", ended.console);
    assert!(ended.console.contains("guest-init: cannot mount /dev/vda as ext4"), "{}", ended.console);
}

#[test]
#[ignore = "two guests: --all"]
fn a_disk_is_clean_after_the_guest() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("demo.img");
    let mut guest = ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud).script(
        "sleep 1000 > /var/held & echo kept > /etc/written; dd if=/dev/zero of=/var/big bs=1M count=8",
    );
    fs::copy(&guest.image, &disk).unwrap();
    guest.disk = Some((disk.clone(), true));
    assert_eq!(guest.boot().status, Some(0));
    let written = directory.path().join("written");
    dump(&disk, "/etc/written", &written);
    assert_eq!(fs::read(&written).unwrap(), b"kept\n");
    let e2fsck =
        Command::new(find_program("e2fsck").unwrap()).args(["-f", "-n"]).arg(&disk).output().unwrap();
    assert!(e2fsck.status.success(), "{}", String::from_utf8_lossy(&e2fsck.stdout));

    guest = ImageGuest { append: "ro", ..guest }.script("echo x > /etc/written || exit 9");
    assert_eq!(guest.boot().status, Some(9));
}

/// Returns the number before ` s` at the end of the line that starts with `start`.
fn seconds_of(console: &str, start: &str) -> f64 {
    let line = lines(console).into_iter().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no line {start:?} in:\n{console}"));
    line[start.len()..].split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "programs of cargo xtask experiments: --all"]
fn programs_of_experiments_print_what_is_read_of_them() {
    let ended = ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud)
        .script(
            "victim --rounds 1000000 && isochronous --seconds 0.5 && latency --seconds 0.01 --processes 2,5 &&
             blocked --seconds 0.5 --waiting 2 --working 1 && interfered --seconds 1.5 &&
             { latency --processes 1; test $? = 2; } && { isochronous --work-micros 30000; test $? = 2; }",
        )
        .boot();
    assert_eq!(ended.status, Some(0), "{}", ended.console);
    let starting = |start: &str| {
        let lines = lines(&ended.console);
        lines.into_iter().filter(|line| line.starts_with(start)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(seconds_of(&ended.console, "victim real ") > 0.0);
    assert!(seconds_of(&ended.console, "work-0 used ") > seconds_of(&ended.console, "wait-0 used "));
    for start in
        ["isochronous starts", "null_call ", "switch_64k_2 ", "tcp_rate ", "wait-1 used ", "storm sent "]
    {
        assert_eq!(starting(start).len(), 1, "{start}: {}", ended.console);
    }
    // One kind of line each of the two programs that keep a log, every 100 and every 250 ms.
    let (isochronous, interfered): (Vec<_>, Vec<_>) =
        starting("at ").into_iter().partition(|line| line.contains(" stat "));
    assert!(isochronous.len() >= 4, "{isochronous:?}");
    assert!(
        interfered.len() >= 6 && interfered.iter().all(|line| line.contains(" system ")),
        "{interfered:?}"
    );
}

#[test]
#[ignore = "programs of other tests, which judge them too: --all"]
fn workloads_do_what_they_say() {
    let ended = ImageGuest::new(KernelSeries::V6_1, KernelFlavour::Cloud)
        .script(
            "split --seconds 4 --ratio 3:1 &&
             shortlived --count 20 --exec --name few && shortlived --count 5 &&
             syscalls --seconds 0.2 && syscalls --seconds 0.2 --call read && sleeper --seconds 0.1 &&
             spin --name cut --cpu-millis 50 && hog --seconds 2 && demo-load 3 &&
             { spin --secnds 1; test $? = 2; }",
        )
        .boot();
    assert_eq!(ended.status, Some(0), "{}", ended.console);
    let ratio = seconds_of(&ended.console, "alpha used ") / seconds_of(&ended.console, "beta used ");
    // A busy host may stop the emulated CPU in the middle of the last turn, which no later turn makes up for.
    assert!((2.5..3.5).contains(&ratio), "{ratio}\n{}", ended.console);
    assert!(seconds_of(&ended.console, "hog used ") > 0.5, "{}", ended.console);
    let lines = lines(&ended.console);
    for expected in [
        "20 processes named few used 5 ms each",
        "5 processes named worker used 5 ms each",
        "demo-load: done",
    ] {
        assert!(
            lines.contains(&expected),
            "no line {expected:?} ({:?}) in:\n{}",
            ended.status,
            ended.console
        );
    }
}
