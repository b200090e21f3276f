//! First request for registers, made where KVM's refusal is harmless.
//!
//! KVM_RUN fails with EINVAL if registers are requested of a machine whose state is protected
//! (`kvm_arch_vcpu_ioctl_run`, arch/x86/kvm/x86.c, Linux 6.15), and a VMM ends then. So the first request is
//! made while the vCPU's thread is traced from one KVM_RUN to the end of the next one:
//!
//! ```text
//! stop in KVM_RUN, no request ──▶ VMM ──▶ entry of KVM_RUN: request ──▶ its end: accepted, or
//!                                                      EINVAL, which the VMM sees as EINTR
//! ```
//!
//! The VMM sees EINTR at each stop, so a refusal is the same to it.

use std::thread;
use std::time::{Duration, Instant};

use crate::guard::StopSlot;
use crate::run_page::{RegisterRequest, RunPage};
use crate::stop::{SyscallStop, ThreadStop, TracedStop};

/// Time limit of a trial: a VMM enters KVM_RUN again within milliseconds.
const LIMIT: Duration = Duration::from_millis(500);
/// Time for which a KVM_RUN that is not refused continues before it is interrupted: a refusal takes
/// microseconds.
const IN_RUN: Duration = Duration::from_micros(500);
/// Interval between two checks of a traced thread.
const PAUSE: Duration = Duration::from_micros(50);

/// Outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrialOutcome {
    Accepted,
    /// KVM has refused the request. The VMM has not noticed.
    Refused,
    /// The thread was not in KVM_RUN, or did not enter it within the time limit.
    NotInRun,
}

/// Requests parts of the state (`bits` of `kvm_valid_regs`) of the vCPU with the VMM's descriptor `fd`, which
/// `thread` runs, for one KVM_RUN.
pub(crate) fn try_request(
    thread: i32,
    fd: i32,
    page: &mut RunPage,
    bits: u64,
    slot: &StopSlot,
) -> TrialOutcome {
    // The kernel detaches when this thread ends, also from a thread that could not be stopped in time.
    let outcome = thread::scope(|scope| {
        let trial = thread::Builder::new()
            .name("trial".to_owned())
            .spawn_scoped(scope, move || run(thread, fd, page, bits, slot));
        trial.ok().and_then(|trial| trial.join().ok())
    });
    outcome.flatten().unwrap_or(TrialOutcome::NotInRun)
}

/// Runs the trial; `None` if the thread is gone, or is not in KVM_RUN.
fn run(thread: i32, fd: i32, page: &RunPage, bits: u64, slot: &StopSlot) -> Option<TrialOutcome> {
    let begin = Instant::now();
    let mut stop = ThreadStop::new(thread, slot, || begin.elapsed() < LIMIT).ok()?;
    if stop.interrupted_run() != Some(fd) {
        return None;
    }
    page.mark_old();
    stop.continue_to_syscall().ok()?;
    let mut request: Option<(RegisterRequest<'_>, Instant)> = None;
    let mut interrupted = false;
    loop {
        slot.beat();
        let Some(traced) = stop.check_stopped().ok()? else {
            let in_run = request.as_ref().is_some_and(|(_, since)| since.elapsed() >= IN_RUN);
            if (in_run || begin.elapsed() >= LIMIT) && !std::mem::replace(&mut interrupted, true) {
                stop.interrupt().ok()?;
            }
            if begin.elapsed() >= 2 * LIMIT {
                return None;
            }
            thread::sleep(PAUSE);
            continue;
        };
        match (traced, &request) {
            (TracedStop::Syscall(SyscallStop::Entry(call)), None) if call == Some(fd) => {
                request = Some((page.request(bits), Instant::now()));
            }
            (TracedStop::Syscall(SyscallStop::Exit(result)), Some(_)) => {
                // Before the thread continues.
                drop(request.take());
                let refused = result == -i64::from(libc::EINVAL);
                if refused {
                    stop.set_result(-i64::from(libc::EINTR)).ok()?;
                }
                return Some(if refused { TrialOutcome::Refused } else { TrialOutcome::Accepted });
            }
            (TracedStop::GroupStop, _) => return None,
            _ if begin.elapsed() >= LIMIT && request.is_none() => return None,
            _ => {}
        }
        stop.continue_to_syscall().ok()?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use vmm::{Machine, Unobserved, VmConfig, kvm_check};

    use super::*;
    use crate::guard::Heartbeat;
    use crate::run_page::REQUESTED;
    use crate::target::Target;

    /// Variable that is set in the VMM's process.
    const ROLE: &str = "VPROF_TEST_TRIAL";
    /// Bit of `kvm_valid_regs` that no KVM knows: it refuses KVM_RUN as it does for protected machines.
    const UNKNOWN: u64 = 1 << 63;

    /// Runs the VMM if this is its process: its guest counts (`inc %rax; jmp`). Ends with the machine.
    fn play() {
        if std::env::var_os(ROLE).is_some() {
            let config =
                VmConfig { memory_bytes: 64 << 20, ..VmConfig::flat(vec![0x48, 0xff, 0xc0, 0xeb, 0xfb]) };
            let machine = Machine::start(config, |_| Unobserved).unwrap();
            println!("it runs");
            let ended = machine.wait(Some(Duration::from_secs(100)));
            println!("{:?}", ended.map(|ended| ended.end));
            std::process::exit(1);
        }
    }

    struct Vmm(Child);

    impl Vmm {
        fn start(test: &str) -> Self {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test, "--nocapture"]).env(ROLE, "vmm").stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            while !line.contains("it runs") {
                line.clear();
                assert!(output.read_line(&mut line).unwrap() > 0, "the VMM ended early");
            }
            Self(child)
        }
    }

    impl Drop for Vmm {
        fn drop(&mut self) {
            let _ended = self.0.kill();
            let _status = self.0.wait();
        }
    }

    #[test]
    fn a_refusal_is_seen_here_and_not_by_the_vmm() {
        play();
        if let Err(error) = kvm_check::open() {
            return testkit::missing(&format!("/dev/kvm ({error})"));
        }
        let mut vmm = Vmm::start("trial::tests::a_refusal_is_seen_here_and_not_by_the_vmm");
        let mut target = Target::find(i32::try_from(vmm.0.id()).unwrap(), 1, None).unwrap();
        let [vcpu] = &mut target.vcpus[..] else { panic!("one vCPU") };
        let slot = StopSlot::new(&Heartbeat::new().unwrap(), 0);
        let mut trial = |bits| try_request(vcpu.id.thread, vcpu.fd, &mut vcpu.page, bits, &slot);
        let mut count = [0; 2];
        let begin = Instant::now();
        while count.iter().any(|count| *count < 50) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{count:?}");
            for (bits, count) in [UNKNOWN, REQUESTED].into_iter().zip(&mut count) {
                match (trial(bits), bits) {
                    (TrialOutcome::Refused, UNKNOWN) | (TrialOutcome::Accepted, REQUESTED) => *count += 1,
                    // The stop came between two KVM_RUNs: often if the thread has to wait for a CPU.
                    (TrialOutcome::NotInRun, _) => {}
                    (other, _) => panic!("{other:?} for {bits:#x}"),
                }
            }
        }
        let run_ns = || vcpu.files.run_ns().unwrap();
        let before = run_ns();
        testkit::eventually("CPU time of the guest", Duration::from_secs(20), || {
            (run_ns() > before).then_some(())
        });
        assert!(vmm.0.try_wait().unwrap().is_none());
    }
}
