//! A process that may hold a virtual machine, as /proc shows it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use vmm::host_kernel;

use crate::descriptors::OpenDescriptors;
use crate::error::AttachError;
use crate::process_stat::StatFields;

/// Beginning of the link of a vCPU's descriptor, before its number (`create_vcpu_fd`, virt/kvm/kvm_main.c,
/// Linux 6.12; without a number before 4.17).
const VCPU: &str = "anon_inode:kvm-vcpu:";
/// Beginning of the link of the descriptor of a vCPU's counters (`kvm_vcpu_ioctl_get_stats_fd`,
/// virt/kvm/kvm_main.c, Linux 6.12), which has the vCPU's number since 6.2.
const STATS: &str = "anon_inode:kvm-vcpu-stats:";

/// Descriptors of machines whose memory or registers are hidden from the host: AMD's security processor
/// (drivers/crypto/ccp/sev-dev.c), guest memory that is not mapped (virt/kvm/guest_memfd.c), and the names of
/// machines' own descriptors.
const CONFIDENTIAL: [&str; 4] = ["/dev/sev", "kvm-gmem", "sev-vm", "tdx"];

/// Flag of a thread that is in the guest (include/linux/sched.h).
const PF_VCPU: u64 = 1;
/// Flag of a process that is being shut down (include/linux/sched.h).
const PF_EXITING: u64 = 4;
/// Type of comparison of two descriptors' files (include/uapi/linux/kcmp.h).
const KCMP_FILE: libc::c_long = 0;

/// Process, identified by a descriptor that is not reused. Its files in /proc that are read again are opened
/// once.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    pidfd: OwnedFd,
    name: String,
    stat: File,
    status: File,
    /// Not visible to everyone: opened at the first use.
    descriptors: OnceLock<OpenDescriptors>,
}

impl Process {
    /// Opens the process with this id.
    ///
    /// # Errors
    /// There is no such process.
    pub fn open(pid: i32) -> Result<Self, AttachError> {
        // SAFETY: takes no pointers; gives a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            let error = host_kernel::last_error(host_kernel::PIDFD_OPEN);
            // EINVAL: not a process id, or the id of a thread.
            return Err(match error.raw_os_error() {
                Some(libc::EINVAL | libc::ESRCH) => AttachError::NoProcess { pid },
                _ => step_error(pid, "open a process", error),
            });
        };
        // SAFETY: the descriptor is new and owned by nothing else.
        let pidfd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file =
            |name| File::open(format!("/proc/{pid}/{name}")).map_err(|_| AttachError::NoProcess { pid });
        let (stat, status, descriptors) = (file("stat")?, file("status")?, OnceLock::new());
        ProcessStat::read(&stat).ok_or(AttachError::NoProcess { pid })?;
        Ok(Self { pid, pidfd, name: name_of(pid), stat, status, descriptors })
    }

    /// Returns the process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the name (`comm`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits at most `limit_ms` for the end; returns true if the process has ended.
    pub(crate) fn ended_within(&self, limit_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, limit_ms) == 1 && poll.revents != 0 }
    }

    /// Returns true if a signal has stopped the process, or a tracer.
    pub(crate) fn is_stopped(&self) -> bool {
        ProcessStat::read(&self.stat).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
    }

    /// Duplicates the descriptor `fd` of a vCPU with that number.
    pub(crate) fn vcpu_descriptor(&self, number: u32, fd: i32) -> io::Result<OwnedFd> {
        self.checked_descriptor(fd, &format!("{VCPU}{number}"))
    }

    /// Duplicates the descriptor `fd` of the counters of a vCPU with that number.
    pub(crate) fn counter_descriptor(&self, number: u32, fd: i32) -> io::Result<OwnedFd> {
        self.checked_descriptor(fd, &format!("{STATS}{number}"))
    }

    /// Duplicates a descriptor whose link is `wanted`. The copy is checked: the VMM may have put another file
    /// in its place since its own link was read, and a file that is truncated is a fault (SIGBUS) to those
    /// who have mapped it. No path and no memfd has such a link, which begins without a slash.
    fn checked_descriptor(&self, fd: i32, wanted: &str) -> io::Result<OwnedFd> {
        let copy = self.descriptor(fd)?;
        let link = fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
        if link.as_os_str() == wanted { Ok(copy) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    /// Duplicates one of the process's descriptors.
    fn descriptor(&self, fd: i32) -> io::Result<OwnedFd> {
        // SAFETY: takes no pointers; gives a new descriptor or an error.
        let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), fd, 0) };
        match i32::try_from(got).ok().filter(|got| *got >= 0) {
            // SAFETY: the descriptor is new and owned by nothing else.
            Some(got) => Ok(unsafe { OwnedFd::from_raw_fd(got) }),
            None => Err(host_kernel::last_error(host_kernel::PIDFD_GETFD)),
        }
    }

    fn descriptors(&self) -> io::Result<&OpenDescriptors> {
        if let Some(open) = self.descriptors.get() {
            return Ok(open);
        }
        let open = OpenDescriptors::open(self.pid)?;
        Ok(self.descriptors.get_or_init(|| open))
    }

    /// Returns the descriptors whose links start with `prefix`, with the number after it: one descriptor per
    /// number, in order.
    fn numbered(&self, prefix: &str) -> io::Result<Vec<(u32, i32)>> {
        let mut found = self.descriptors()?.numbered(prefix)?;
        found.dedup_by_key(|(number, _)| *number);
        Ok(found)
    }

    /// Returns all descriptors of vCPUs: (KVM's number of the vCPU, descriptor), in order.
    pub(crate) fn all_vcpus(&self) -> io::Result<Vec<(u32, i32)>> {
        self.descriptors()?.numbered(VCPU)
    }

    /// Returns one descriptor for each number of a vCPU, as [`Self::all_vcpus`] does.
    pub(crate) fn vcpus(&self) -> io::Result<Vec<(u32, i32)>> {
        self.numbered(VCPU)
    }

    /// Returns the link of a descriptor that only machines have whose memory or registers are hidden.
    pub(crate) fn confidential(&self) -> io::Result<Option<String>> {
        let links = self.descriptors()?.links()?;
        let found = links.iter().find_map(|(_, link)| link.to_str().filter(|link| is_confidential(link)));
        Ok(found.map(|link| format!("it has {link} open")))
    }

    /// Returns true if two descriptors, of those of all vCPUs, have the same vCPU number and are not proven
    /// to be the same vCPU: the process has several virtual machines.
    pub(crate) fn has_several_vms(&self, all: &[(u32, i32)]) -> bool {
        let differ = |pair: &[(u32, i32)]| match pair {
            [(first, fd), (second, other)] => first == second && !self.is_same_file(*fd, *other),
            _ => false,
        };
        all.windows(2).any(differ)
    }

    fn is_same_file(&self, fd: i32, other: i32) -> bool {
        // SAFETY: takes no pointers.
        unsafe { libc::syscall(libc::SYS_kcmp, self.pid, self.pid, KCMP_FILE, fd, other) == 0 }
    }

    /// Returns true if a thread of the process is in the guest, or has been there for 10 ms or more in total.
    /// Both are visible while the thread runs.
    pub(crate) fn is_vcpu_thread(&self, thread: i32) -> bool {
        let text = fs::read_to_string(thread_file(self.pid, thread, "stat")).unwrap_or_default();
        ProcessStat::parse(&text).is_some_and(|stat| stat.flags & PF_VCPU != 0 || stat.guest_time > 0)
    }

    /// Returns true if one of these descriptors is a vCPU's. KVM has them closed when the process executes
    /// another program (O_CLOEXEC, `create_vcpu_fd`, virt/kvm/kvm_main.c, Linux 6.12), though a thread may
    /// keep its number.
    pub(crate) fn holds_vcpu(&self, descriptors: &[i32]) -> bool {
        self.descriptors().is_ok_and(|open| open.has_any(descriptors, VCPU))
    }

    /// Returns the descriptors of vCPUs' counters, as [`Self::vcpus`] does.
    pub(crate) fn counters(&self) -> io::Result<Vec<(u32, i32)>> {
        self.numbered(STATS)
    }

    /// Returns true if the process has begun to end: releasing the memory of a large machine takes seconds.
    pub(crate) fn is_ending(&self) -> bool {
        let status = read_again(&self.status).unwrap_or_default();
        ProcessStat::read(&self.stat).is_none_or(|stat| stat.flags & PF_EXITING != 0) || is_killed(&status)
    }

    /// Returns the ids of the process's threads.
    pub(crate) fn threads(&self) -> io::Result<Vec<i32>> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// Returns true if this process may read the other's memory (`mem_open`, fs/proc/base.c, checks the same
    /// permission as `process_vm_readv`).
    pub(crate) fn may_be_read(&self) -> bool {
        fs::File::open(format!("/proc/{}/mem", self.pid)).is_ok()
    }

    /// Returns true if the program's name begins with `qemu`.
    pub(crate) fn is_qemu(&self) -> bool {
        let program = fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        program.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("qemu"))
    }
}

/// Returns true if a descriptor with this link belongs to a machine whose memory or registers are hidden.
fn is_confidential(link: &str) -> bool {
    // Only the kernel's own files have no path, or one in brackets.
    let name = link.strip_prefix("anon_inode:").unwrap_or(link);
    let name = name
        .trim_start_matches('/')
        .trim_start_matches('[')
        .split([']', ':', ' '])
        .next()
        .unwrap_or_default();
    let without_path = link.starts_with("anon_inode:") || link.starts_with("/[");
    link == "/dev/sev" || without_path && CONFIDENTIAL.contains(&name)
}

/// Makes the error of a failed step on the process `pid`, by the error number.
pub(crate) fn step_error(pid: i32, action: &'static str, source: io::Error) -> AttachError {
    if host_kernel::is_lacking(&source) {
        return AttachError::OldKernel { action, source };
    }
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AttachError::Permission { pid },
        // A thread or a descriptor is gone, or all of them.
        Some(libc::ESRCH | libc::ENOENT | libc::EBADF) => match Process::open(pid) {
            Ok(process) if !process.is_ending() => {
                AttachError::Ended { pid, name: process.name().to_owned() }
            }
            _ => AttachError::NoProcess { pid },
        },
        _ => AttachError::Host { action, source },
    }
}

/// Reads a file of /proc from its beginning.
pub(crate) fn read_again(file: &File) -> io::Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match file.read_at(&mut part, u64::try_from(bytes.len()).unwrap_or(u64::MAX))? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count => bytes.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
}

fn name_of(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().replace(char::is_control, "?")
}

/// Returns the process id and the name of the thread's tracer, if it has one.
pub(crate) fn tracer_of(pid: i32, thread: i32) -> Option<(i32, String)> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    let tracer: i32 = line.trim().parse().ok().filter(|tracer| *tracer != 0)?;
    Some((tracer, name_of(tracer)))
}

/// Returns true if SIGKILL is pending for a thread or its process, by /proc/PID/status (proc_pid_status(5)).
fn is_killed(status: &str) -> bool {
    let pending =
        |line: &str| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")).map(str::to_owned);
    let masks =
        status.lines().filter_map(pending).filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    masks.fold(0, |all, mask| all | mask) & (1 << (libc::SIGKILL - 1)) != 0
}

/// Fields of /proc/PID/stat (proc_pid_stat(5)).
struct ProcessStat {
    state: u8,
    parent: i32,
    flags: u64,
    /// Time in the guest, clock ticks.
    guest_time: u64,
}

impl ProcessStat {
    fn find(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(stat: &File) -> Option<Self> {
        Self::parse(&read_again(stat).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let fields = StatFields::new(text)?;
        Some(Self {
            state: *fields.get(3)?.as_bytes().first()?,
            parent: fields.get(4)?.parse().ok()?,
            flags: fields.number(9)?,
            guest_time: fields.number(43).unwrap_or(0),
        })
    }
}

/// A virtual machine of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningMachine {
    /// Process of its VMM.
    pub pid: i32,
    /// Its name: QEMU's `-name`, `--name` or `--id` of other VMMs, or else `program`. Without control
    /// characters.
    pub name: String,
    /// The VMM's program.
    pub program: String,
    /// Number of its vCPUs.
    pub vcpus: usize,
}

/// Returns the virtual machines on KVM that this user may see, in the order of their process ids.
pub fn running_machines() -> Vec<RunningMachine> {
    let mut running = Vec::new();
    for (pid, vcpus) in holders() {
        let words = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
        let program = name_of(pid);
        let name = given_name(&words).unwrap_or_else(|| program.clone()).replace(char::is_control, "?");
        running.push(RunningMachine { pid, name, program, vcpus });
    }
    running.sort_by_key(|machine| machine.pid);
    running
}

/// Returns the number of the process's vCPUs, as far as this process may see them.
fn vcpus_of(pid: i32) -> usize {
    let mut vcpus = OpenDescriptors::open(pid).and_then(|open| open.numbered(VCPU)).unwrap_or_default();
    vcpus.dedup_by_key(|(number, _)| *number);
    vcpus.len()
}

/// Returns the ids of all processes that have vCPUs, with their number.
fn holders() -> impl Iterator<Item = (i32, usize)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.map(|pid| (pid, vcpus_of(pid))).filter(|(_, vcpus)| *vcpus > 0)
}

/// Finds the process that holds the virtual machine of the process `pid`: itself, or the only one of its
/// descendants with a vCPU, where a launcher has started the VMM. `vprof run` is such a launcher. Returns
/// `pid` if there is none.
///
/// # Errors
/// Several descendants hold a virtual machine.
pub fn find_holder(pid: i32) -> Result<i32, AttachError> {
    // Init is above every process.
    if pid == 1 || vcpus_of(pid) > 0 {
        return Ok(pid);
    }
    let holders = holders().map(|(holder, _)| holder);
    let mut below: Vec<_> = holders.filter(|holder| descends(*holder, pid)).collect();
    match below.len() {
        0 => Ok(pid),
        1 => Ok(below.swap_remove(0)),
        _ => Err(AttachError::SeveralBelow {
            pid,
            name: name_of(pid),
            running: below.into_iter().map(|holder| (holder, name_of(holder))).collect(),
        }),
    }
}

/// Returns true if the process `pid` was started by `ancestor`, or by a process that it has started.
fn descends(pid: i32, ancestor: i32) -> bool {
    let parents = std::iter::successors(Some(pid), |pid| Some(ProcessStat::find(*pid)?.parent));
    // Process ids may be reused while they are read: no chain of parents is this long.
    parents.skip(1).take(1_000).take_while(|parent| *parent > 0).any(|parent| parent == ancestor)
}

/// Finds the process of the virtual machine with that name: QEMU's `-name`, `--name` or `--id` of other VMMs,
/// or the program's own name.
///
/// # Errors
/// No virtual machine has the name, or several have it.
pub fn find_by_name(name: &str) -> Result<i32, AttachError> {
    let list = |machines: Vec<RunningMachine>| {
        machines.into_iter().map(|machine| (machine.pid, machine.name)).collect()
    };
    let (mut matching, others): (Vec<_>, Vec<_>) =
        running_machines().into_iter().partition(|machine| machine.name == name || machine.program == name);
    match matching.len() {
        0 => Err(AttachError::NoName { name: name.to_owned(), running: list(others) }),
        1 => Ok(matching.swap_remove(0).pid),
        _ => Err(AttachError::Ambiguous { name: name.to_owned(), running: list(matching) }),
    }
}

/// Returns the name that a VMM's command line (words that end in NUL) gives it: `-name NAME`, `-name
/// guest=NAME,...` (QEMU, qemu(1)), `--name NAME` (crosvm), `--id NAME` (Firecracker).
fn given_name(words: &[u8]) -> Option<String> {
    let words: Vec<&str> =
        words.split(|byte| *byte == 0).filter_map(|word| str::from_utf8(word).ok()).collect();
    let option = |word: &str| ["-name", "--name", "--id"].contains(&word);
    let value = words.iter().position(|word| option(word)).and_then(|at| words.get(at + 1));
    let value = value.copied().or_else(|| words.iter().find_map(|word| word.strip_prefix("--name=")))?;
    let parts = || value.split(',');
    let guest = parts().find_map(|part| part.strip_prefix("guest="));
    guest.or_else(|| parts().next()).map(str::to_owned)
}

/// Returns the path of a file of a process's thread in /proc.
pub(crate) fn thread_file(pid: i32, thread: i32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("task").join(thread.to_string()).join(name)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let text = "12 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        let stat = ProcessStat::parse(text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.flags, stat.guest_time), (b'S', 1, 6, 0));
        let long = format!("{text} {} 815 0", vec!["0"; 19].join(" "));
        assert_eq!(ProcessStat::parse(&long).unwrap().guest_time, 815);
        assert!(ProcessStat::parse("12 (a) S 1").is_none() && ProcessStat::parse("").is_none());
    }

    #[test]
    fn a_process_that_ends_is_recognized() {
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(!own.is_ending());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!process.is_ending());
        child.kill().unwrap();
        // A zombie then, until it is waited for.
        assert!(process.ended_within(5_000) && process.is_ending());
        child.wait().unwrap();
        assert!(process.is_ending());
        assert!(
            is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n") && !is_killed("SigPnd:\t0\n")
        );
    }

    #[test]
    fn a_vm_has_the_name_of_its_command_line() {
        let name = |words: &[&str]| given_name(words.join("\0").as_bytes());
        assert_eq!(name(&["qemu", "-name", "web"]).as_deref(), Some("web"));
        assert_eq!(name(&["qemu", "-name", "guest=web,debug-threads=on"]).as_deref(), Some("web"));
        assert_eq!(name(&["firecracker", "--id", "f1"]).as_deref(), Some("f1"));
        assert_eq!(name(&["crosvm", "--name=c"]).as_deref(), Some("c"));
        assert_eq!(name(&["qemu", "-name"]), None);
    }

    /// Serializes tests of the vCPUs of this process.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a virtual machine with vCPU 0 in this process.
    fn make_vm(kvm: &fs::File) -> [OwnedFd; 2] {
        // KVM_CREATE_VM and KVM_CREATE_VCPU (include/uapi/linux/kvm.h).
        let make = |fd: i32, request| {
            // SAFETY: both requests take a number, and give a new descriptor.
            let made = unsafe { libc::ioctl(fd, request, 0) };
            assert!(made >= 0, "{}", io::Error::last_os_error());
            // SAFETY: the descriptor is new and owned by nothing else.
            unsafe { OwnedFd::from_raw_fd(made) }
        };
        let machine = make(kvm.as_raw_fd(), 0xae01);
        let vcpu = make(machine.as_raw_fd(), 0xae41);
        [machine, vcpu]
    }

    #[test]
    fn vms_of_one_process_are_told_apart_and_copies_of_a_descriptor_are_not() {
        let _alone = alone();
        let Ok(kvm) = fs::File::open("/dev/kvm") else { return testkit::missing("/dev/kvm") };
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let [_machine, vcpu] = make_vm(&kvm);
        let _copy = vcpu.try_clone().unwrap();
        let several = || own.has_several_vms(&own.all_vcpus().unwrap());
        assert!(!several());
        let second = make_vm(&kvm);
        assert!(several());
        drop(second);
        assert!(!several());
    }

    #[test]
    fn a_launcher_is_followed_to_the_vm_that_it_started() {
        let _alone = alone();
        let Ok(kvm) = fs::File::open("/dev/kvm") else { return testkit::missing("/dev/kvm") };
        let own = i32::try_from(std::process::id()).unwrap();
        let launcher = ProcessStat::find(own).unwrap().parent;
        assert!(descends(own, launcher) && !descends(launcher, own) && !descends(own, own));
        assert_eq!(find_holder(own).unwrap(), own, "there is none");
        let _vm = make_vm(&kvm);
        assert_eq!(find_holder(own).unwrap(), own);
        // Other tests of the same launcher may have VMs as well.
        match find_holder(launcher) {
            Ok(holder) => assert_eq!(holder, own),
            Err(AttachError::SeveralBelow { running, .. }) => {
                assert!(running.iter().any(|(holder, _)| *holder == own), "{running:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_descriptor_that_was_replaced_is_refused() {
        let _alone = alone();
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        // SAFETY: the name ends in NUL; gives a new descriptor.
        let memory = unsafe { libc::memfd_create(c"anon_inode:kvm-vcpu:0".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the descriptor is new and owned by nothing else.
        let memory = unsafe { OwnedFd::from_raw_fd(memory) };
        for result in
            [own.vcpu_descriptor(0, memory.as_raw_fd()), own.counter_descriptor(0, memory.as_raw_fd())]
        {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
        let Ok(kvm) = fs::File::open("/dev/kvm") else { return testkit::missing("/dev/kvm") };
        let [_machine, vcpu] = make_vm(&kvm);
        own.vcpu_descriptor(0, vcpu.as_raw_fd()).unwrap();
        assert!(own.vcpu_descriptor(1, vcpu.as_raw_fd()).is_err(), "another vCPU's");
    }

    #[test]
    fn confidential_machines_are_recognized_by_their_descriptors() {
        for link in
            ["/dev/sev", "anon_inode:[kvm-gmem]", "anon_inode:kvm-gmem", "/[kvm-gmem]", "anon_inode:sev-vm"]
        {
            assert!(is_confidential(link), "{link}");
        }
        for link in [
            "anon_inode:kvm-vm",
            "anon_inode:kvm-vcpu:0",
            "/home/tdx",
            "/kvm-gmem",
            "/dev/sev0",
            "socket:[1]",
        ] {
            assert!(!is_confidential(link), "{link}");
        }
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.confidential().unwrap(), None);
    }

    #[test]
    fn a_kernel_without_a_call_is_too_old() {
        let lacking = io::Error::from_raw_os_error(libc::ENOSYS);
        let error = host_kernel::of_call(host_kernel::PIDFD_GETFD, lacking);
        let text = step_error(1, "map the run page of a vCPU", error).to_string();
        assert!(text.contains("lacks pidfd_getfd") && text.contains("map the run page of a vCPU"), "{text}");
        assert!(text.contains("needs Linux 5.6") && text.contains("--gdb"), "{text}");
    }

    #[test]
    fn a_process_without_vcpus_has_none() {
        let _alone = alone();
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.vcpus().unwrap().is_empty() && !own.ended_within(0) && !own.is_stopped());
        assert!(own.threads().unwrap().contains(&own.pid()));
        for pid in [-1, 0, i32::MAX] {
            assert!(matches!(Process::open(pid), Err(AttachError::NoProcess { .. })), "{pid}");
        }
        assert!(matches!(find_by_name("no such machine"), Err(AttachError::NoName { .. })));
    }
}
