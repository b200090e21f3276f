//! A Linux host with KVM, emulated, on which other VMMs run guests.
//!
//! ```text
//!  this machine ── QEMU, emulating an AMD processor with SVM
//!                   └── the host: kvm-host.img; /dev/vdb is demo.img, /dev/vdc is the vprof under test
//!                        ├── QEMU with KVM ── a guest: kernel, initrd and root of demo.img
//!                        └── vprof attach
//! ```
//!
//! The host runs shell scripts, one at a time, that it receives through a port:
//!
//! | direction | bytes |
//! |---|---|
//! | to the host | the script's length, a newline, the script |
//! | back | exit code, length of the output, length of the errors, a newline, output, errors |

use std::any::Any;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use testkit::events::{EmulationFailure, repeated};

use crate::emulated::{QEMU, add_command, connected};
use crate::kernel::kernel_of;
use crate::{GuestTurn, REPEATS, Run, Sharing, images, vprof};

/// Limit of a script: a host that does not answer for so long is frozen.
const LIMIT: Duration = Duration::from_secs(40);
/// Limit for a condition to come true.
const PATIENCE: Duration = Duration::from_secs(100);
/// Maximum wait of one script, in steps of 0.2 s.
const STEPS: u32 = 20;
/// Memory of the host: has room for the guests' memory and for huge pages.
const MEMORY: &str = "3G";

/// The host's command line: without slow protections that a test does not need, without console output but
/// for errors, with clocks that need no calibration.
const CMDLINE: &str = "root=/dev/vda ro console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off tsc=reliable \
     no_timer_check nowatchdog audit=0 apparmor=0 random.trust_cpu=on cryptomgr.notests i8042.noaux i8042.nokbd";

/// Script of the host that serves the port. Each script has its own session: the kernel would hang up the
/// server's session if it had stopped processes.
const SERVER: &str = r#"
until set -- /dev/vport*p1 && [ -c "$1" ]; do sleep 0.05; done
exec 3<>"$1"
while read -r length <&3; do
    head -c "$length" <&3 >/run/script
    setsid sh /run/script >/run/stdout 2>/run/stderr </dev/null 3>&-
    status=$?
    printf '%s %s %s\n' $status "$(stat -c %s /run/stdout)" "$(stat -c %s /run/stderr)" >&3
    cat /run/stdout /run/stderr >&3
done"#;

/// Script that prepares the host. Guests may have more memory than the host: they do not use it.
const PREPARE: &str = "set -e
echo 1 >/proc/sys/vm/overcommit_memory
cat /dev/vdc >/run/vprof
chmod 755 /run/vprof
mount -t ext4 -o ro,noload /dev/vdb /mnt
cp /mnt/boot/vmlinuz /run/vmlinuz
cp /mnt/boot/initrd.img /run/initrd
truncate -s %4 /run/initrd
[ -c /dev/kvm ]";

/// An emulated host; ended when dropped.
#[derive(Debug)]
pub struct KvmHost {
    qemu: Child,
    port: BufReader<UnixStream>,
    /// Failure of the emulation, in contrast to a failed test.
    failure: Option<EmulationFailure>,
    /// Number of vprofs started so far.
    profilings: u32,
    directory: tempfile::TempDir,
    _turn: GuestTurn,
}

/// Results of a script.
#[derive(Debug)]
pub struct ScriptOutput {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A `vprof` that was started on a host.
#[derive(Debug)]
pub struct ProfilerRun(String);

impl ProfilerRun {
    /// Returns the path of its profile on the host.
    pub fn profile(&self) -> String {
        format!("{}/out.vprof", self.0)
    }
}

/// Calls `test` with a host that has just booted. Repeats, and reports, a test in which the emulation has
/// failed (docs/limits.md).
///
/// # Panics
/// `test` panics.
pub fn on_kvm_host(test: impl Fn(&mut KvmHost)) {
    on_kvm_host_with(None, test);
}

/// Calls `test` like [`on_kvm_host`], with a host that has another disk, `/dev/vdd`.
///
/// # Panics
/// `test` panics.
pub fn on_kvm_host_with(disk: Option<&Path>, test: impl Fn(&mut KvmHost)) {
    for repeat in 0.. {
        let Err((failure, panic)) = once_with(disk, &test) else { return };
        if repeat == REPEATS {
            resume_unwind(panic);
        }
        repeated(failure, "of the emulated host");
    }
}

/// Calls `test` once with a host that has just booted.
///
/// # Errors
/// The emulation failed: how, and the panic of `test`.
///
/// # Panics
/// `test` panics, and the emulation has not failed.
pub fn once_on_kvm_host(test: impl Fn(&mut KvmHost)) -> Result<(), (EmulationFailure, Box<dyn Any + Send>)> {
    once_with(None, test)
}

fn once_with(
    disk: Option<&Path>,
    test: impl Fn(&mut KvmHost),
) -> Result<(), (EmulationFailure, Box<dyn Any + Send>)> {
    let mut host = KvmHost::boot(disk);
    catch_unwind(AssertUnwindSafe(|| {
        host.prepare();
        test(&mut host);
    }))
    .map_err(|panic| match host.failure {
        Some(failure) => (failure, panic),
        None => resume_unwind(panic),
    })
}

impl KvmHost {
    fn boot(disk: Option<&Path>) -> Self {
        let turn = GuestTurn::take(Sharing::Alone, LIMIT);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = images().join("kvm-host.img");
        let (kernel, initrd) = kernel_of(&image, directory.path());
        add_command(&initrd, &["sh", "-c", SERVER]);
        let port = directory.path().join("port");
        let mut qemu = Command::new(QEMU);
        qemu.args(["-display", "none", "-nodefaults", "-no-reboot", "-accel", "tcg,thread=multi"])
            .args(["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", MEMORY, "-append", CMDLINE])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initrd)
            .arg("-serial")
            .arg(format!("file:{}", directory.path().join("console").display()))
            .arg("-chardev")
            .arg(format!("socket,id=port,server=on,wait=off,path={}", port.display()))
            .args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port"])
            .stdin(Stdio::null());
        let demo = images().join("demo.img");
        for file in [image.as_path(), &demo, vprof()].into_iter().chain(disk) {
            qemu.arg("-drive").arg(format!("file={},if=virtio,format=raw,readonly=on", file.display()));
        }
        // SAFETY: prctl takes numbers here and is async-signal-safe; nothing else happens between fork and
        // exec.
        unsafe {
            qemu.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut qemu = qemu.spawn().expect("QEMU is installed");
        let port = connected(&mut qemu, &port);
        port.set_read_timeout(Some(LIMIT)).expect("a limit");
        Self { qemu, port: BufReader::new(port), failure: None, profilings: 0, directory, _turn: turn }
    }

    fn prepare(&mut self) {
        self.must(PREPARE);
    }

    /// Runs a shell script to its end.
    ///
    /// # Panics
    /// The host does not answer.
    pub fn sh(&mut self, script: &str) -> ScriptOutput {
        let (code, stdout, stderr) = self.execute(script);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ScriptOutput { code, stdout: text(&stdout), stderr: text(&stderr) }
    }

    /// Runs a shell script that has to succeed, and returns its output.
    ///
    /// # Panics
    /// The script fails.
    pub fn must(&mut self, script: &str) -> String {
        let output = self.sh(script);
        assert_eq!(output.code, 0, "{script}: {output:?}\n{}", self.state());
        output.stdout
    }

    /// Waits until a shell's condition holds.
    ///
    /// # Panics
    /// The condition does not come true.
    pub fn wait_until(&mut self, condition: &str) {
        assert!(self.comes_true(condition), "{condition} does not come true\n{}", self.state());
    }

    /// Waits for a shell's condition; true if it comes true.
    fn comes_true(&mut self, condition: &str) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if self.sh(&waiting(condition)).code == 0 {
                return true;
            }
        }
        false
    }

    /// Waits for a shell's condition while this QEMU runs; true if it comes true.
    fn comes_true_of(&mut self, name: &str, condition: &str) -> bool {
        let lives = format!("kill -0 $(cat /run/{name}.pid) 2>/dev/null");
        self.comes_true(&format!("{condition} || ! {lives}"))
            && self.sh(&format!("{lives} && {condition}")).code == 0
    }

    /// Starts QEMU with KVM under this name.
    ///
    /// # Panics
    /// QEMU does not start.
    pub fn qemu(&mut self, name: &str, options: &str) {
        self.must(&format!(
            "set -e; cd /run; mkfifo {name}.in {name}.out; cat {name}.out >{name}.said &
             qemu-system-x86_64 -name {name} -accel kvm -cpu host -display none -nodefaults -no-reboot \
             -serial file:{name}.console -chardev pipe,id=monitor,path={name} -mon chardev=monitor \
             {options} 2>{name}.errors & echo $! >{name}.pid"
        ));
        let up = self.comes_true_of(name, &prompted(&format!("cat /run/{name}.said")));
        assert!(up, "QEMU does not start\n{}", self.state());
    }

    /// Boots the demo image, which runs `script`, in QEMU with KVM; returns when the guest has printed
    /// `ready`.
    ///
    /// # Panics
    /// The guest does not come up.
    pub fn guest(&mut self, name: &str, options: &str, script: &str) {
        self.guest_on("/dev/vdb", name, options, script);
    }

    /// Boots another disk with the kernel and the initrd of the demo image, like [`KvmHost::guest`].
    ///
    /// # Panics
    /// The guest does not come up.
    pub fn guest_on(&mut self, disk: &str, name: &str, options: &str, script: &str) {
        let archive = guest_images::command_archive(["sh", "-c", script]).expect("a short command");
        let octal: String = archive.iter().map(|byte| format!("\\{byte:03o}")).collect();
        self.must(&format!("printf '{octal}' | cat /run/initrd - >/run/{name}.initrd"));
        self.qemu(
            name,
            &format!(
                "-kernel vmlinuz -initrd {name}.initrd -append 'root=/dev/vda ro console=ttyS0 quiet panic=-1' \
                 -drive file={disk},if=virtio,format=raw,readonly=on {options}"
            ),
        );
        self.wait_for_console(name, 1, "ready");
    }

    /// Waits until that many lines of the guest's console contain `what`.
    ///
    /// # Panics
    /// The lines do not come: the guest does not come up.
    pub fn wait_for_console(&mut self, name: &str, lines: u32, what: &str) {
        let up = self.comes_true_of(name, &format!("[ $(grep -c '{what}' /run/{name}.console) = {lines} ]"));
        // A guest that does not boot has nothing to do with vprof.
        self.failure = self.failure.or((!up).then_some(EmulationFailure::Other));
        assert!(up, "the guest does not come up\n{}", self.state());
    }

    /// Returns the answer of QEMU's monitor to a command.
    pub fn monitor(&mut self, name: &str, command: &str) -> String {
        let output = format!("tail -c +$((before + 1)) /run/{name}.said");
        self.must(&format!(
            "before=$(stat -c %s /run/{name}.said); echo '{command}' >/run/{name}.in
             {}
             {output}",
            waiting(&prompted(&output))
        ))
    }

    /// Repeats a command of QEMU's monitor until the answer contains `what`.
    ///
    /// # Panics
    /// The answer stays another one.
    pub fn wait_for_monitor(&mut self, name: &str, command: &str, what: &str) {
        let mut answer = String::new();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            answer = self.monitor(name, command);
            if answer.contains(what) {
                return;
            }
        }
        panic!("{command} does not answer {what}: {answer}");
    }

    /// True if QEMU lets the guest run.
    pub fn runs(&mut self, name: &str) -> bool {
        self.monitor(name, "info status").contains("running")
    }

    /// Returns how often a signal has ended KVM_RUN of QEMU's vCPUs, as each stop by a tracer does, by KVM's
    /// counter.
    pub fn ended_by_signals(&mut self, name: &str) -> u64 {
        let counter = format!("/sys/kernel/debug/kvm/$(cat /run/{name}.pid)-*/signal_exits");
        let debugfs = "grep -q debugfs /proc/mounts || mount -t debugfs debugfs /sys/kernel/debug";
        let count = self.must(&format!("{debugfs}; cat {counter}"));
        count.trim().parse().expect("a number")
    }

    /// Ends QEMU.
    pub fn kill(&mut self, name: &str) {
        self.must(&format!("kill -9 $(cat /run/{name}.pid)"));
    }

    /// Starts `vprof attach` with these words of a shell.
    pub fn attach(&mut self, words: &str) -> ProfilerRun {
        self.vprof(&format!("attach {words}"))
    }

    /// Starts `vprof` with these words of a shell, the first of which is a command that makes a profile.
    pub fn vprof(&mut self, words: &str) -> ProfilerRun {
        self.profilings += 1;
        let at = format!("/run/profiling{}", self.profilings);
        let (command, words) = words.split_once(' ').unwrap_or((words, ""));
        self.must(&format!(
            "mkdir {at}; cd {at}; {{
                 /run/vprof {command} -o out.vprof --control out.sock {words} >stdout 2>stderr & echo $! >pid
                 wait $!; echo $? >status; }} &"
        ));
        self.wait_until(&format!("[ -s {at}/pid ]"));
        ProfilerRun(at)
    }

    /// Waits until the profile is being written.
    pub fn wait_for_profile(&mut self, profiling: &ProfilerRun) {
        self.wait_until(&format!("[ -s {0}/out.vprof ] || [ -s {0}/status ]", profiling.0));
    }

    /// Waits until the output of a vprof contains `what`.
    pub fn wait_for_output(&mut self, profiling: &ProfilerRun, what: &str) {
        self.wait_until(&format!("grep -q '{what}' {}/stdout", profiling.0));
    }

    /// Waits until the output of `vprof ctl status` for a vprof's run contains `what`.
    pub fn wait_for_status(&mut self, profiling: &ProfilerRun, what: &str) {
        self.wait_until(&format!("/run/vprof ctl status --run {}/out.sock | grep -q '{what}'", profiling.0));
    }

    /// Returns the process id of a vprof.
    pub fn pid(&mut self, profiling: &ProfilerRun) -> String {
        self.must(&format!("cat {}/pid", profiling.0)).trim().to_owned()
    }

    /// Sends a signal to a vprof.
    pub fn signal(&mut self, profiling: &ProfilerRun, signal: &str) {
        self.must(&format!("kill -{signal} $(cat {}/pid)", profiling.0));
    }

    /// Waits for the end of a vprof, and copies its results out of the host.
    pub fn finish(&mut self, profiling: ProfilerRun) -> Run {
        let ProfilerRun(at) = profiling;
        self.wait_until(&format!("[ -s {at}/status ]"));
        let mut file = |name: &str| self.execute(&format!("cat {at}/{name}")).1;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (status, stdout, stderr) = (text(file("status")), text(file("stdout")), text(file("stderr")));
        let status: i32 = status.trim().parse().expect("an exit code");
        let profile = file("out.vprof");
        self.must(&format!("rm -r {at}"));
        Run::from_parts(ExitStatus::from_raw(status << 8), stdout, stderr, &profile)
    }

    /// Runs `vprof attach` to its end.
    pub fn attached(&mut self, words: &str) -> Run {
        let profiling = self.attach(words);
        self.finish(profiling)
    }

    /// Sends a script and reads its results.
    fn execute(&mut self, script: &str) -> (i32, Vec<u8>, Vec<u8>) {
        self.exchange(script).unwrap_or_else(|error| {
            let timed_out = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            self.failure = Some(if timed_out { EmulationFailure::Frozen } else { EmulationFailure::Other });
            panic!("the emulated host does not answer ({error}) to {script}\n{}", self.state());
        })
    }

    fn exchange(&mut self, script: &str) -> std::io::Result<(i32, Vec<u8>, Vec<u8>)> {
        let request = format!("{}\n{script}", script.len());
        self.port.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.port.read_line(&mut line)?;
        let numbers: Vec<usize> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [code, stdout, stderr] = numbers[..] else {
            return Err(ErrorKind::UnexpectedEof.into());
        };
        let mut bytes = |count: usize| {
            let mut bytes = vec![0; count];
            self.port.read_exact(&mut bytes).map(|()| bytes)
        };
        Ok((i32::try_from(code).unwrap_or(i32::MAX), bytes(stdout)?, bytes(stderr)?))
    }

    /// Returns text that may explain why a condition did not come true.
    fn state(&mut self) -> String {
        let console = std::fs::read(self.directory.path().join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).into_owned();
        let files = "cd /run; tail -n 20 *.console *.errors *.said profiling*/std*";
        let inside = if self.failure.is_some() { None } else { self.exchange(files).ok() };
        let inside = inside.map(|(_, files, _)| String::from_utf8_lossy(&files).into_owned());
        format!("console of the host: {console}\n{}", inside.unwrap_or_default())
    }
}

impl Drop for KvmHost {
    fn drop(&mut self) {
        // Both fail only if QEMU is gone already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Returns the condition that a command's output ends with the prompt of QEMU's monitor.
fn prompted(command: &str) -> String {
    format!("{command} | tail -n 1 | grep -q '^(qemu) $'")
}

/// Returns a script that succeeds as soon as the condition holds, and fails if it does not come true in time.
fn waiting(condition: &str) -> String {
    format!(
        "steps=0; until {condition}; do steps=$((steps + 1)); [ $steps -lt {STEPS} ] || exit 1; sleep 0.2; done"
    )
}
