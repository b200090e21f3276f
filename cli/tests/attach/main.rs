//! `vprof attach` on a VMM with a few bytes of code at CPL 3 as its guest, which every KVM runs. The VMM is
//! this test's own binary, started again.

mod agent;
mod half;
#[path = "../support/mod.rs"]
mod support;
mod watch;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{
    child_of, make_call, meta_of, on_an_old_kernel, refused, run, stderr, stdout, thread_of, vprof,
};
use testkit::{OwnProcess, Terminal, eventually};
use vmm::config::FLAT_ENTRY;
use vmm::{Exit, Machine, Observer, Tick, VmConfig, kvm_check};

const SOON: Duration = Duration::from_secs(20);
/// Variable that is set in the VMM.
const VMM: &str = "VPROF_TEST_VMM";
/// `1: jmp 1b`
const SPIN: &[u8] = &[0xeb, 0xfe];
/// `1: mov $20000, %ecx; 2: dec %ecx; jnz 2b; out %al, $0x80; jmp 1b`
const EXITS: &[u8] = &[0xb9, 0x20, 0x4e, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xe6, 0x80, 0xeb, 0xf3];
/// `1: mov $2000000, %ecx; 2: dec %ecx; jnz 2b; out %al, $0x81; jmp 1b`: the loop takes about a millisecond.
const RESTS: &[u8] = &[0xb9, 0x80, 0x84, 0x1e, 0, 0xff, 0xc9, 0x75, 0xfc, 0xe6, REST_PORT, 0xeb, 0xf3];
const REST_PORT: u8 = 0x81;

/// Observer of a vCPU whose VMM sleeps when the guest writes to [`REST_PORT`]: the guest uses a fifth of a
/// CPU, because most tests need a guest with samples and leave the rest of the CPU to other tests.
struct Resting;

impl Observer for Resting {
    fn started(&mut self) -> Option<Duration> {
        None
    }

    fn exited(&mut self, exit: Exit, _: u64) {
        if exit == (Exit::Io { port: REST_PORT.into(), write: true }) {
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    fn ticked(&mut self, _: &Tick<'_>) -> Option<Duration> {
        None
    }
}

/// A VMM with two vCPUs: the first runs, the second waits for its start.
struct TestVm(OwnProcess);

impl TestVm {
    /// Starts this binary again for the test `test`, with a guest that rests most of the time. Returns `None`
    /// if there is no KVM and none is required.
    fn start(test: &str) -> Option<Self> {
        Self::start_as(test, "rest")
    }

    /// Starts a VMM like [`Self::start`]; with `spin`, its first vCPU never leaves the guest by itself, with
    /// `exits` it does all the time.
    fn start_as(test: &str, role: &str) -> Option<Self> {
        Self::start_program(Command::new(std::env::current_exe().unwrap()), test, role)
    }

    /// Starts a VMM like [`Self::start_as`], with the name that a VMM has whose command line has `--name`.
    fn start_named(test: &str, role: &str, name: &str) -> Option<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg0(format!("--name={name}"));
        Self::start_program(command, test, role)
    }

    fn start_program(mut command: Command, test: &str, role: &str) -> Option<Self> {
        if let Err(error) = kvm_check::open() {
            testkit::missing(&format!("/dev/kvm ({error})"));
            return None;
        }
        command.args(["--exact", test, "--nocapture"]).env(VMM, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("it runs")));
        Some(Self(OwnProcess(child)))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Returns true if a tracer holds a vCPU.
    fn is_held(&self) -> bool {
        thread_states(self.0.id()).contains(&'t')
    }
}

/// A vprof that is attached and has samples.
struct AttachedVprof {
    vprof: Child,
    profile: PathBuf,
}

impl AttachedVprof {
    fn start(vm: &TestVm, directory: &Path) -> Self {
        let (profile, socket) = (directory.join("a.vprof"), directory.join("run.sock"));
        let mut attach = vprof(["attach", &vm.pid(), "-q", "-o"]);
        let vprof_there = attach.arg(&profile).arg("--control").arg(&socket).spawn().unwrap();
        let ctl = || vprof(["ctl", "--run"]).arg(&socket).args(["--json", "status"]).output().unwrap();
        eventually("samples", SOON, || {
            let status = ctl();
            // The run answers before it has samples.
            let samples = status.status.success().then(|| json(&status)["samples"].as_u64())?;
            samples.filter(|samples| *samples > 0)
        });
        Self { vprof: vprof_there, profile }
    }

    /// Waits for the end, which must come by itself; returns the status and the profile's event.
    fn end(mut self) -> (ExitStatus, String) {
        let status = eventually("end after the VM's", SOON, || self.vprof.try_wait().unwrap());
        let sql = "SELECT text FROM event WHERE kind = 'end'";
        let rows = vprof(["query"]).arg(&self.profile).args([sql, "--csv"]).output().unwrap();
        (status, stdout(&rows))
    }
}

/// Runs as the VMM if this process was started for it. A line on its input starts another program.
fn run_as_vmm() {
    let Ok(role) = std::env::var(VMM) else { return };
    let code = match role.as_str() {
        "rest" => RESTS,
        "exits" => EXITS,
        _ => SPIN,
    };
    let config = VmConfig { vcpus: 2, memory_bytes: 64 << 20, ..VmConfig::flat(code) };
    let machine = Machine::start(config, |_| Resting).unwrap();
    println!("it runs");
    std::thread::spawn(|| {
        if std::io::stdin().lines().next().is_some() {
            let error = Command::new("sleep").arg("100").exec();
            eprintln!("no other program: {error}");
        }
    });
    machine.wait(Some(Duration::from_secs(100))).unwrap();
    std::process::exit(0)
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn a_profile_of_a_vm_that_runs_already() {
    run_as_vmm();
    let Some(vm) = TestVm::start_as("a_profile_of_a_vm_that_runs_already", "spin") else { return };
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    let mut attach = vprof(["attach", &vm.pid(), "-F", "500", "-d", "2s", "--json", "-o"]);
    let report = json(&attach.arg(&profile).output().unwrap());
    assert_eq!(report["host"], "attached");
    assert!(report["samples"].as_u64().unwrap() > 200, "{report}");
    let at = format!("{FLAT_ENTRY:#x}");
    let query = "SELECT address, count(*) FROM v_samples WHERE vcpu = 0 GROUP BY 1";
    let mut ask = vprof(["query"]);
    let rows = stdout(&ask.arg(&profile).args([query, "--csv"]).output().unwrap());
    assert_eq!(rows.lines().skip(1).count(), 1, "{rows}");
    assert!(rows.contains(&at), "{rows}");

    let mut ask = vprof(["stat"]);
    let stat = json(&ask.arg(&profile).arg("--json").output().unwrap());
    assert!(stat["unavailable"].as_str().unwrap().contains("not known"), "{stat}");
    for vcpu in stat["vcpus"].as_array().unwrap() {
        let ns = |value: &Value| value.as_u64().unwrap();
        let wall = ns(&vcpu["wall_ns"]);
        let states: u64 = vcpu["states"].as_object().unwrap().values().map(ns).sum();
        assert_eq!(states, wall, "{vcpu}");
        assert!(wall > 1_500_000_000, "{vcpu}");
        // The second vCPU waits for its start; the first spins as far as the host lets it.
        let state = |name: &str| ns(&vcpu["states"][name]);
        match vcpu["id"].as_u64() {
            Some(0) => assert!(state("guest") + state("waiting") + state("sampler") > wall / 2, "{vcpu}"),
            _ => assert!(state("halted") > wall * 9 / 10, "{vcpu}"),
        }
    }
    let mut ask = vprof(["stat"]);
    let shown = stdout(&ask.arg(&profile).output().unwrap());
    assert!(shown.contains("not known: "), "{shown}");
}

#[test]
fn guest_and_host_divide_the_time_of_a_vcpu_that_leaves_the_guest() {
    run_as_vmm();
    let test = "guest_and_host_divide_the_time_of_a_vcpu_that_leaves_the_guest";
    let Some(vm) = TestVm::start_as(test, "exits") else { return };
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    let mut attach = vprof(["attach", &vm.pid(), "--host-stacks", "-d", "4s", "-q", "-o"]);
    let attached = attach.arg(&profile).output().unwrap();
    if stderr(&attached).contains("`--host-stacks` is not available") {
        return testkit::missing("root, and samples of the host's kernel on kvm_amd or kvm_pvm");
    }
    assert!(attached.status.success(), "{}", stderr(&attached));
    let ask = |command, words: &[&str]| vprof([command]).arg(&profile).args(words).output().unwrap();
    let report = json(&ask("report", &["--host", "--json", "--cpu", "0"]));
    let stat = json(&ask("stat", &["--json"]));
    let vcpu = &stat["vcpus"][0];
    let ns = |value: &Value| value.as_u64().unwrap() as f64;
    let place = |name: &str| report["places"].as_array().unwrap().iter().find(|row| row["place"] == name);
    let number = |name: &str, key: &str| place(name).unwrap()[key].as_f64().unwrap();
    let shares: f64 =
        ["guest", "kvm", "vmm", "waiting", "halted"].map(|name| number(name, "share")).iter().sum();
    assert!((shares - 1.0).abs() < 1e-6, "{report}");
    // Of the time on a CPU. The clock counts KVM's work between two stays in the guest as time in the guest.
    let of_clock = |state: &str| ns(&vcpu["states"][state]);
    let clock = of_clock("vmm") / (of_clock("vmm") + of_clock("guest"));
    let part =
        |key: &str| number("vmm", key) / (1.0 - number("waiting", "share") - number("halted", "share"));
    // Other programs take the CPU more often in one than in the other.
    let (low, high) = (part("share_low") - 0.1, part("share_high") + 0.1);
    assert!((low..high).contains(&clock), "{clock} is not in {low} to {high}: {vcpu} {report}");
    assert!(number("vmm", "samples") > 20.0 && number("kvm", "samples") > 20.0, "{report}");
    let functions = report["functions"].as_array().unwrap();
    let has = |kind: &str, name: &str| {
        let is = |row: &&Value| row["kind"] == kind && row["symbol"].as_str().unwrap().contains(name);
        assert!(functions.iter().any(|row| is(&row)), "{name}: {report}");
    };
    has("kernel", "kvm_arch_vcpu_ioctl_run");
    has("user", "ioctl");
    has("user", "vmm::");
    let folded = stdout(&ask("export", &["--host", "--format", "folded"]));
    // The place, and the guest's code without a name, are below the functions of the host.
    for part in [";[host: kvm] ", ";[host: vmm] ", ";[unknown];"] {
        let has = |line: &str| line.starts_with("vCPU 0;") && line.contains(part);
        assert!(folded.lines().any(has), "{part}: {folded}");
    }
    let guest = stdout(&ask("export", &["--format", "folded"]));
    assert!(!guest.contains("[host") && !guest.contains("ioctl"), "{guest}");
    let refused = vprof(["attach", &vm.pid(), "--host-stacks", "--engine", "ptrace"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("only the host's kernel takes stacks of the host"), "{refused:?}");
}

#[test]
fn the_profile_of_the_run_before_is_kept_under_the_default_name_only() {
    run_as_vmm();
    let test = "the_profile_of_the_run_before_is_kept_under_the_default_name_only";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let attach = |more: &[&str]| {
        let mut command = vprof(["attach", &vm.pid(), "-d", "300ms"]);
        command.args(more).current_dir(directory.path()).output().unwrap()
    };
    let started = |name: &str| {
        let mut query =
            vprof(["query", name, "SELECT value FROM meta WHERE key = 'started_unix_ns'", "--csv"]);
        stdout(&query.current_dir(directory.path()).output().unwrap())
    };
    let mut times = Vec::new();
    for run in 0..3 {
        let output = attach(&[]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("the one before is in vprof.vprof.old"), run > 0);
        times.push(started("vprof.vprof"));
        if run > 0 {
            assert_eq!(started("vprof.vprof.old"), times[run - 1]);
        }
    }
    assert!(times[0] != times[1] && times[1] != times[2], "{times:?}");
    refused(&attach(&["-o", "vprof.vprof"]), 1, &["vprof.vprof exists"]);
    assert_eq!(started("vprof.vprof"), times[2]);
    // With --force nothing is kept.
    assert!(attach(&["--force"]).status.success());
    assert_eq!(started("vprof.vprof.old"), times[1]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

/// Returns the states of a process's threads (proc_pid_status(5)): none once it has ended.
fn thread_states(process: u32) -> Vec<char> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok());
    status.filter_map(|status| status.split_once("State:\t")?.1.chars().next()).collect()
}

/// Returns true once no thread of a process runs: it was stopped by a signal, or has ended.
fn has_stopped(process: u32) -> bool {
    thread_states(process).iter().all(|state| ['T', 'Z', 'X'].contains(state))
}

#[test]
fn the_first_signal_ends_a_run_whose_half_is_stopped() {
    run_as_vmm();
    let test = "the_first_signal_ends_a_run_whose_half_is_stopped";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let signal = |process: u32, signal| {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(process.cast_signed()), signal).unwrap();
    };
    let mut attached = AttachedVprof::start(&vm, directory.path());
    let half = child_of(attached.vprof.id());
    signal(half, nix::sys::signal::Signal::SIGSTOP);
    // The guard ends a half that is stopped by chance while it holds a vCPU.
    eventually("a half that holds nothing", SOON, || (has_stopped(half) && !vm.is_held()).then_some(()));
    let states = thread_states(half);
    let stopped = states.contains(&'T');
    assert!(stopped || meta_of(&attached.profile, "engine").contains("ptrace"), "{states:?}");
    signal(attached.vprof.id(), nix::sys::signal::Signal::SIGINT);
    let status = eventually("its end", SOON, || attached.vprof.try_wait().unwrap());
    assert_eq!(status.success(), stopped, "{status}");
}

#[test]
fn the_memory_of_a_vm_without_linux_is_refused_in_a_sentence_and_the_vm_runs_on() {
    run_as_vmm();
    let test = "the_memory_of_a_vm_without_linux_is_refused_in_a_sentence_and_the_vm_runs_on";
    let Some(mut vm) = TestVm::start(test) else { return };
    for engine in ["auto", "ptrace"] {
        let output = vprof(["mem", &vm.pid(), "--engine", engine]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("the guest's kernel was not found"), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
        assert!(vm.0.try_wait().unwrap().is_none() && !vm.is_held());
    }
    let output = vprof(["mem", "no-such-vm"]).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("no-such-vm"), "{}", stderr(&output));
}

#[test]
fn a_lowered_rate_is_printed_unless_the_run_is_quiet() {
    run_as_vmm();
    let test = "a_lowered_rate_is_printed_unless_the_run_is_quiet";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    for (name, quiet) in [("loud", &[][..]), ("quiet", &["-q"])] {
        let profile = directory.path().join(name);
        let mut attach = vprof(["attach", &vm.pid(), "--engine", "ptrace", "--rate", "8000", "-d", "300ms"]);
        let output = attach.args(quiet).arg("-o").arg(&profile).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let sentence = "the rate is 4000 Hz per vCPU instead of 8000 Hz";
        assert_eq!(stderr(&output).contains(sentence), quiet.is_empty(), "{}", stderr(&output));
        let sql = "SELECT text FROM event WHERE kind = 'rate'";
        let rows = stdout(&vprof(["query"]).arg(&profile).args([sql, "--csv"]).output().unwrap());
        assert!(rows.contains(sentence), "{rows}");
    }
}

#[test]
fn one_vprof_at_a_time_until_the_vm_ends() {
    run_as_vmm();
    let Some(vm) = TestVm::start("one_vprof_at_a_time_until_the_vm_ends") else { return };
    let directory = tempfile::tempdir().unwrap();
    let second = directory.path().join("b.vprof");
    let attached = AttachedVprof::start(&vm, directory.path());
    let mut again = vprof(["attach", &vm.pid(), "-o"]);
    // Not the half, which leaves signals to it.
    let other = format!("another vprof (process {})", attached.vprof.id());
    refused(&again.arg(&second).output().unwrap(), 1, &[&other]);
    assert!(!second.exists());
    drop(vm);
    let (status, end) = attached.end();
    assert!(status.success());
    assert!(end.contains("process has ended"), "{end}");
}

#[test]
fn a_vmm_that_runs_another_program_is_released() {
    run_as_vmm();
    let Some(mut vm) = TestVm::start("a_vmm_that_runs_another_program_is_released") else { return };
    let directory = tempfile::tempdir().unwrap();
    let attached = AttachedVprof::start(&vm, directory.path());
    vm.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let (status, end) = attached.end();
    assert!(status.success());
    assert!(end.contains("vCPU"), "{end}");
    let other = std::fs::read_to_string(format!("/proc/{}/status", vm.pid())).unwrap();
    let field = |key: &str| other.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    assert_eq!((field("Name:"), field("TracerPid:")), ("sleep".to_owned(), "0".to_owned()), "{other}");
    assert!(field("State:").starts_with('S'), "it sleeps by itself: {other}");
}

#[test]
fn a_process_without_a_vm_is_refused() {
    run_as_vmm();
    let directory = tempfile::tempdir().unwrap();
    let attach = |words: &[&str]| {
        let output =
            vprof(["attach", "-o"]).arg(directory.path().join("a.vprof")).args(words).output().unwrap();
        assert!(!directory.path().join("a.vprof").exists());
        output
    };
    // Not the tests' own process, which has started virtual machines.
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    let refusal = attach(&[&other.id().to_string()]);
    other.kill().unwrap();
    other.wait().unwrap();
    refused(&refusal, 1, &["(sleep) runs no virtual machine"]);
    refused(&attach(&["999999999"]), 1, &["there is no process 999999999"]);
    for words in [&["--name", "no such vm"][..], &["no such vm"]] {
        refused(&attach(words), 1, &["no virtual machine is named no such vm"]);
    }
    refused(&attach(&["1", "--disk", "/nowhere"]), 1, &["/nowhere"]);
    for wrong in ["0", "-1", "99999999999"] {
        assert_eq!(run(["attach", "--", wrong]).status.code(), Some(2));
        assert!(stderr(&run(["attach", "--", wrong])).contains("a process id is a number from 1"));
    }
}

#[test]
fn a_live_view_that_the_guard_ends_leaves_the_terminal_as_it_was() {
    run_as_vmm();
    let test = "a_live_view_that_the_guard_ends_leaves_the_terminal_as_it_was";
    let Some(vm) = TestVm::start_as(test, "spin") else { return };
    let directory = tempfile::tempdir().unwrap();
    // A shell that is not interactive leaves modes alone.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "\"$@\"; echo ended: $?",
        "sh",
        env!("CARGO_BIN_EXE_vprof"),
        "attach",
        "--top",
        // Only stops have a guard.
        "--engine",
        "ptrace",
        "--rate",
        "8000",
    ]);
    shell
        .args(["--control", "none", &vm.pid(), "-o"])
        .arg(directory.path().join("a.vprof"))
        .env("VPROF_CONFIG", "");
    let mut terminal = Terminal::start(shell, 24, 80);
    // The view of a guest without Linux, once it is sampled.
    terminal.until("view of samples", |text| text.contains("kernel not found yet"));
    assert!(terminal.is_raw());
    let vprof = child_of(terminal.pid());
    let half = child_of(vprof);
    let process = nix::unistd::Pid::from_raw(half.cast_signed());
    let signal = |signal| nix::sys::signal::kill(process, signal).is_ok();
    // Most stops of the half meet it while it holds no vCPU, and have no consequence.
    for _ in 0..1_000 {
        if !signal(nix::sys::signal::Signal::SIGSTOP) {
            break;
        }
        eventually("its stop", SOON, || has_stopped(half).then_some(()));
        if vm.is_held() || !signal(nix::sys::signal::Signal::SIGCONT) {
            break;
        }
        // The next stop meets another part of the interval between two ticks.
        std::thread::sleep(Duration::from_millis(7));
    }
    terminal.until("the shell", |text| text.contains("ended: 1"));
    // Asserts that the modes and the screen are those of before.
    let (status, text) = terminal.end();
    assert!(status.success() && text.contains("the guard ended it"), "{text}");
}

#[test]
fn a_host_whose_kernel_is_too_old_gets_the_call_and_its_version() {
    run_as_vmm();
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    let own = std::process::id().to_string();
    let mut attach = vprof(["attach", &own, "-o"]);
    let output = on_an_old_kernel(attach.arg(&profile)).output().unwrap();
    refused(&output, 1, &["pidfd_open", "since 5.3", "needs Linux 5.6", "--gdb"]);
    assert!(!profile.exists());
    for words in [&["doctor"][..], &["ctl", "list"]] {
        let output = on_an_old_kernel(&mut vprof(words)).output().unwrap();
        let text = stdout(&output) + &stderr(&output);
        assert!(!text.contains("not implemented") && !text.contains("os error"), "{text}");
    }
}
