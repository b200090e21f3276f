//! Recording of one machine: a process that does what `vprof attach` does, and is another one for each
//! machine, so that a hostile guest reaches no other's data.

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use attach::StatFields;
use control::client::Client;
use control::message::Request;
use control::place;
use export::lake::LakeVm;
use host::attached::AWAITS;
use nix::sys::signal::Signal;
use profile::live::{Span, View};
use sandbox::SyscallPolicy;

use super::forker::{RecorderEnd, RecorderForker, RecorderOrder};
use crate::args::Engine;
use crate::run::recording::random_seed;

/// Time for which a recorder is given after the end of its window: then it ends by itself.
const GRACE: Duration = Duration::from_secs(30);
/// Span over which the time in stops is measured, s.
const MEASURED_S: f64 = 30.0;

/// Machine, place and limits of a recording.
#[derive(Debug, Clone)]
pub struct RecorderPlan {
    /// Process of the VMM.
    pub pid: i32,
    /// The machine.
    pub vm: LakeVm,
    /// Directory of the window in the spool.
    pub window: PathBuf,
    /// The profile, in that directory.
    pub profile: PathBuf,
    /// Directory of tables that recorders have in common.
    pub tables: PathBuf,
    /// Ticks per second and vCPU.
    pub rate_hz: f64,
    /// Time until the end of the window.
    pub rest: Duration,
    /// Largest size of the profile, bytes.
    pub max_size: u64,
    /// Way of sampling.
    pub engine: Engine,
    /// Fate of an unexpected system call.
    pub seccomp: SyscallPolicy,
    /// The recorder of the window before still records the machine, and ends when this one is ready.
    pub takes_over: bool,
}

/// A recorder that runs.
#[derive(Debug)]
pub struct Recorder {
    pub plan: RecorderPlan,
    forker: RecorderForker,
    number: u64,
    /// Rate that it was last given.
    rate_hz: f64,
    stopped: bool,
}

/// End of a recorder.
#[derive(Debug)]
pub struct EndedRecorder {
    /// The agent has ended it.
    pub stopped: bool,
    /// The rest.
    pub end: RecorderEnd,
}

impl Recorder {
    /// Has a recorder started. It ends with this process.
    ///
    /// # Errors
    /// The process of which recorders are copies has ended.
    pub fn start(plan: RecorderPlan, forker: &RecorderForker) -> io::Result<Self> {
        let order = RecorderOrder::new(&plan, plan.rest + GRACE, random_seed());
        let number = forker.order(order)?;
        Ok(Self { rate_hz: plan.rate_hz, plan, forker: forker.clone(), number, stopped: false })
    }

    /// Returns true if it waits for the end of the recorder before it.
    pub fn awaits(&self) -> bool {
        let about = self.client().and_then(|mut client| client.about().ok());
        about.and_then(|about| about.preparing).is_some_and(|step| step == AWAITS)
    }

    /// Returns true once it was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Has the recorder end its recording: once, since the second request would abort it.
    pub fn stop(&mut self) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        // Fails where the recorders have ended with that process.
        let _ended = self.forker.stop(self.number);
    }

    /// Returns the end of the recorder, if it has ended. It must not be asked again then.
    ///
    /// # Errors
    /// The process of which recorders are copies has ended.
    pub fn ended(&mut self) -> io::Result<Option<EndedRecorder>> {
        let end = self.forker.take_end(self.number)?;
        Ok(end.map(|end| EndedRecorder { stopped: self.stopped, end }))
    }

    /// Changes the rate, unless it is that already. Returns false if the recorder does not take it.
    pub fn set_rate(&mut self, hz: f64) -> bool {
        // Equal to what `vprof ctl` prints.
        if (self.rate_hz - hz).abs() < 0.05 * hz {
            return true;
        }
        let asked = self.client().is_some_and(|mut client| client.ask(&Request::Rate { hz }).is_ok());
        if asked {
            self.rate_hz = hz;
        }
        asked
    }

    /// Returns the part of the last half minute for which the vCPU that was stopped most was stopped for
    /// samples; `None` while it is not known.
    pub fn stopped_share(&self) -> Option<f64> {
        let view = View { span: Span::Last(MEASURED_S), rows: 1, ..View::default() };
        let snapshot = self.client()?.tables(view).ok()?;
        let shares = snapshot.vcpus.iter().flat_map(|vcpu| &vcpu.states);
        shares.filter(|(state, _)| state == "sampler").map(|(_, share)| *share).reduce(f64::max)
    }

    fn client(&self) -> Option<Client> {
        let pid = self.forker.pid(self.number).ok()??;
        Client::new(place::connect(Some(&pid.to_string())).ok()?).ok()
    }
}

/// Has the process of a command end properly when the calling thread does.
pub fn ends_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure makes two system calls that are async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(move || end_with_parent(parent));
    }
}

/// Has the calling process end properly when the thread that has started it does.
///
/// # Errors
/// That thread has ended already.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
    // The parent may have ended before the line above.
    match u32::try_from(nix::unistd::getppid().as_raw()) {
        Ok(found) if found == parent => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Returns the status and the use of resources of a child that has ended, with those of all processes that it
/// has waited for (`RUSAGE_BOTH`, kernel/exit.c).
///
/// # Errors
/// The process cannot be waited for.
pub fn wait_for(child: u32) -> io::Result<Option<(ExitStatus, libc::rusage)>> {
    let pid = i32::try_from(child).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: zeros are a value of the structure, which is numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places outlive the call.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some((ExitStatus::from_raw(status), usage))),
    }
}

/// Returns the CPU time of a process and of all its descendants so far, ns: those that have ended count if
/// they were waited for.
pub fn cpu_ns(process: u32) -> u64 {
    let own = fs::read_to_string(format!("/proc/{process}/stat")).ok();
    let ticks = own.as_deref().and_then(cpu_ticks).unwrap_or(0);
    let ticks_per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
    let tick_ns = 1_000_000_000 / u64::try_from(ticks_per_second.unwrap_or(100)).unwrap_or(100).max(1);
    children(process)
        .into_iter()
        .fold(ticks.saturating_mul(tick_ns), |sum, child| sum.saturating_add(cpu_ns(child)))
}

/// Returns fields 14 to 17 of /proc/PID/stat (proc_pid_stat(5)) together, clock ticks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let fields = StatFields::new(stat)?;
    (14..=17).filter_map(|number| fields.get(number)).map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the children of all threads of a process (/proc/PID/task/TID/children).
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn cpu_time_is_that_of_a_process_and_of_its_children() {
        assert_eq!(cpu_ticks("1 (a) b) S 4 5 6 7 8 9 10 11 12 13 100 20 3 4 18"), Some(127));
        assert_eq!(cpu_ticks("1 (a) S 4"), Some(0));
        let mut shell = Command::new("sh").args(["-c", "(while :; do :; done) & wait"]).spawn().unwrap();
        let busy = testkit::eventually("time of the child", Duration::from_secs(20), || {
            Some(cpu_ns(shell.id())).filter(|ns| *ns >= 100_000_000)
        });
        assert!(busy >= 100_000_000);
        for child in children(shell.id()) {
            kill(Pid::from_raw(child.cast_signed()), Signal::SIGKILL).unwrap();
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn the_use_of_an_ended_child_is_known() {
        let child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3"])
            .spawn();
        let id = child.unwrap().id();
        let (status, usage) =
            testkit::eventually("its end", Duration::from_secs(60), || wait_for(id).unwrap());
        assert_eq!(status.code(), Some(3));
        assert!(usage.ru_utime.tv_sec > 0 || usage.ru_utime.tv_usec > 10_000, "{:?}", usage.ru_utime);
        assert!(usage.ru_maxrss > 500);
        assert!(wait_for(id).is_err(), "there is no such child any longer");
    }
}
