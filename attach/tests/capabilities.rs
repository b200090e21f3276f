//! Test of attaching by a program whose file has capabilities, for a user who has none.
//!
//! The VMM, which is root's, and the profiler are this test's own binary, started again with a role.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use attach::capabilities::{confine_process, drop_all, raise_tracing};
use attach::{Attachment, StopMemory, Target};
use testkit::OwnProcess;
use vmm::{Machine, Observer, Tick, Unobserved, VmConfig, kvm_check};

const ROLE: &str = "VPROF_TEST_ROLE";
const TEST: &str = "a_user_attaches_by_the_files_capabilities_and_has_no_other_right";
/// User and group without rights.
const NOBODY: u32 = 65534;
/// `CAP_DAC_READ_SEARCH` and `CAP_SYS_PTRACE` (include/uapi/linux/capability.h), and the latter alone.
const BOTH: u64 = 1 << 2 | 1 << 19;
const TRACING: u64 = 1 << 19;

/// Reports ticks.
struct Ticks(Sender<()>);

impl Observer<StopMemory> for Ticks {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }

    fn ticked(&mut self, _: &Tick<'_, StopMemory>) -> Option<Duration> {
        let _nobody_waits = self.0.send(());
        Some(Duration::from_millis(1))
    }
}

/// Returns a set of this thread, by its name in /proc.
fn set(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn vmm() -> ! {
    // again: inc %rax; jmp again
    let config = VmConfig { memory_bytes: 64 << 20, ..VmConfig::flat(vec![0x48, 0xff, 0xc0, 0xeb, 0xfb]) };
    let machine = Machine::start(config, |_| Unobserved).unwrap();
    println!("it runs");
    drop(machine.wait(Some(Duration::from_secs(60))));
    std::process::exit(0)
}

fn profiler(pid: i32, secret: &str) -> ! {
    assert_eq!(set("CapEff"), BOTH | 1 << 21, "the file's capabilities");
    confine_process().unwrap();
    assert_eq!((set("CapPrm"), set("CapEff")), (BOTH, 0));
    let unreadable = || assert!(std::fs::read(secret).is_err(), "another user's file");
    unreadable();
    raise_tracing().unwrap();
    let target = Target::find(pid, 1, None).unwrap();
    assert_eq!((set("CapPrm"), set("CapEff")), (BOTH, TRACING));
    let (sender, ticks) = channel();
    let attached = Attachment::start(target, |_| Ticks(sender.clone())).unwrap();
    // One shows that the right suffices.
    ticks.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((set("CapPrm"), set("CapEff")), (TRACING, TRACING), "what ticks need");
    unreadable();
    attached.wait().unwrap();
    drop_all().unwrap();
    assert_eq!((set("CapPrm"), set("CapEff")), (0, 0));
    println!("it is done");
    std::process::exit(0)
}

#[test]
fn a_user_attaches_by_the_files_capabilities_and_has_no_other_right() {
    match std::env::var(ROLE).unwrap_or_default().split(' ').collect::<Vec<_>>()[..] {
        ["vmm"] => vmm(),
        ["profiler", pid, secret] => profiler(pid.parse().unwrap(), secret),
        _ => {}
    }
    if let Err(error) = kvm_check::open() {
        return testkit::missing(&format!("/dev/kvm ({error})"));
    }
    let directory = std::env::temp_dir().join(format!("vprof-capabilities-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let program = directory.join("profiler");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let secret = directory.join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // One more than attaching needs.
    let sets = "cap_sys_ptrace,cap_dac_read_search,cap_sys_admin+ep";
    let given = Command::new("setcap").arg(sets).arg(&program).status();
    if !given.is_ok_and(|status| status.success()) {
        std::fs::remove_dir_all(&directory).unwrap();
        return testkit::missing("setcap, as root");
    }
    let role = |program: &std::path::Path, role: String| {
        let mut command = Command::new(program);
        command.args(["--exact", TEST, "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
        command
    };
    let mut vm = OwnProcess(role(&std::env::current_exe().unwrap(), "vmm".to_owned()).spawn().unwrap());
    let mut output = BufReader::new(vm.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("it runs") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the VMM ended early");
    }
    let mut user = role(&program, format!("profiler {} {}", vm.id(), secret.display()));
    let ended = user.uid(NOBODY).gid(NOBODY).current_dir(&directory).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("it is done"), "{text}{}", String::from_utf8_lossy(&ended.stderr));
}
