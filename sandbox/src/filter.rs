//! Filters of system calls, by kind of thread. Found by `--seccomp log` on the guests of the tests.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use serde::{Deserialize, Serialize};

use crate::{Reach, SandboxError};

/// Fate of a system call outside of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SyscallPolicy {
    /// It is refused and reported, and the process ends.
    #[default]
    Refuse,
    /// It is made, and the kernel logs it (auditd's log or `dmesg`: `type=1326`).
    Log,
    /// There are no filters.
    Off,
}

/// Kind of a thread that has a separate filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    /// Runs a vCPU.
    Vcpu,
    /// Serves a disk.
    Disk,
    /// Serves another device: network card, console, random numbers, ports. In a process that has started
    /// its VMM: reads what a serial port or the monitor sends.
    Device,
    /// Reads the guest for the profile: collector, finder, namer, task scanner.
    Sampler,
    /// Reads disk images, kernels and initrds. It is the only thread of its process.
    Reader,
    /// Samples vCPUs of another VMM.
    Ticker,
    /// Watches the process of another VMM.
    Watcher,
}

impl ThreadKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Vcpu, Self::Disk, Self::Device, Self::Sampler, Self::Reader, Self::Ticker, Self::Watcher];
    /// Kinds of the process that runs a guest.
    const OF_GUEST: [Self; 4] = [Self::Vcpu, Self::Disk, Self::Device, Self::Sampler];
    /// Kinds of the process that is attached to another VMM, or has started one.
    const OF_ATTACHED: [Self; 4] = [Self::Ticker, Self::Watcher, Self::Sampler, Self::Device];

    /// Returns true if such a thread reads disk images: the disk's thread for the guest, the sampler's for
    /// names, the reader for what the guest boots.
    fn reads_images(self) -> bool {
        match self {
            Self::Disk | Self::Sampler | Self::Reader => true,
            Self::Vcpu | Self::Device | Self::Ticker | Self::Watcher => false,
        }
    }

    pub(crate) fn number(self) -> u32 {
        self as u32 + 1
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Vcpu => "a vCPU's thread",
            Self::Disk => "a disk's thread",
            Self::Device => "a device's thread",
            Self::Sampler => "a sampler's thread",
            Self::Reader => "the reader of images",
            Self::Ticker => "a thread that samples vCPUs",
            Self::Watcher => "the thread that watches the VMM",
        }
    }
}

/// System calls that every thread may make: memory, waiting, time, signals to itself, its end. `read` and
/// `write` are of open descriptors.
const COMMON: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_clock_gettime,
    libc::SYS_getrusage,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_getrandom,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_close,
];

/// System calls that open and read a disk image besides, whatever its format: a raw image is read by
/// `pread64`, a qcow2 image by `preadv`. Every thread that reads images has this one list
/// ([`ThreadKind::reads_images`]), because the format of an image must not decide whether a filter ends the
/// run.
const IMAGE: &[i64] = &[
    libc::SYS_preadv,
    libc::SYS_readv,
    libc::SYS_lseek,
    // The size of a file: the C library asks for it by any of these three.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
];

/// System calls that a disk's thread makes besides [`IMAGE`]: it writes images.
const DISK: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    // Room for a snapshot.
    libc::SYS_fstatfs,
];

/// System calls that another device's thread makes besides.
const DEVICE: &[i64] = &[
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_fstat,
];

/// System calls that threads of the sampler make besides [`IMAGE`], by which they read the guest's programs:
/// temporary files, and separate threads.
const SAMPLER: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_prctl,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_sendto,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
];

/// System calls that only the process's first thread makes, while it builds the machine and serves the run.
const PROCESS: &[i64] = &[
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    libc::SYS_dup,
    libc::SYS_getdents64,
    libc::SYS_readlink,
    libc::SYS_fadvise64,
    libc::SYS_prlimit64,
    libc::SYS_getrlimit,
    libc::SYS_socketpair,
    libc::SYS_wait4,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sync_file_range,
    libc::SYS_sysinfo,
    libc::SYS_capget,
];

/// System calls that the watcher of another VMM makes besides: links of its descriptors, in an open
/// directory.
const WATCHER: &[i64] = &[
    libc::SYS_getdents64,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
];

/// System calls that only the first thread of an attached process makes, besides those of its other threads.
const ATTACHED: &[i64] = &[
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_capget,
    libc::SYS_capset,
    // The lock of the VMM's process, where another vprof has it first.
    libc::SYS_flock,
    // The end of the guard.
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_getdents64,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Type of KVM's requests in bits 8 to 15 of their number (`KVMIO` of linux/kvm.h).
const KVMIO: u64 = 0xae00;
const TYPE_MASK: u64 = 0xff00;
/// `KVM_RUN` (this and the next ones: linux/kvm.h).
const KVM_RUN: u64 = 0xae80;
const KVM_GET_MP_STATE: u64 = 0x8004_ae98;
const KVM_GET_REGS: u64 = 0x8090_ae81;
const KVM_SET_REGS: u64 = 0x4090_ae82;
const KVM_GET_SREGS: u64 = 0x8138_ae83;
const KVM_GET_VCPU_EVENTS: u64 = 0x8040_ae9f;
const KVM_GET_NESTED_STATE: u64 = 0xc080_aebe;
const KVM_SIGNAL_MSI: u64 = 0x4020_aea5;
const KVM_IOEVENTFD: u64 = 0x4040_ae79;
/// `FIONBIO` (asm-generic/ioctls.h).
const FIONBIO: u64 = 0x5421;
/// `BLKGETSIZE64` (linux/fs.h).
const BLKGETSIZE64: u64 = 0x8008_1272;
/// `BPF_MAP_UPDATE_ELEM` and `BPF_PROG_TEST_RUN` (linux/bpf.h).
const BPF_COMMANDS: [u64; 2] = [2, 10];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Condition = Result<SeccompCondition, seccompiler::BackendError>;

fn equals(argument: u8, value: u64) -> Condition {
    SeccompCondition::new(argument, Length::Dword, Compare::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Condition {
    SeccompCondition::new(argument, Length::Dword, Compare::MaskedEq(mask), value)
}

fn rule(condition: Condition) -> Result<SeccompRule, SandboxError> {
    Ok(SeccompRule::new(vec![condition?])?)
}

/// Adds calls without regard to their arguments.
fn allow(rules: &mut Rules, calls: &[i64]) {
    rules.extend(calls.iter().map(|call| (*call, Vec::new())));
}

/// Adds a call with one condition among its arguments.
fn allow_if(rules: &mut Rules, call: i64, conditions: Vec<Condition>) -> Result<(), SandboxError> {
    let conditions = conditions.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    rules.entry(call).or_default().extend(conditions);
    Ok(())
}

/// The calls of every thread. No thread makes memory executable: vprof generates no code.
fn common() -> Result<Rules, SandboxError> {
    let mut rules = Rules::new();
    allow(&mut rules, COMMON);
    // Signals to this process alone.
    allow_if(&mut rules, libc::SYS_tgkill, vec![equals(0, u64::from(std::process::id()))])?;
    let executable = u64::from(libc::PROT_EXEC.cast_unsigned());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allow_if(&mut rules, call, vec![masked(2, executable, 0)])?;
    }
    // Builds with debug assertions check each descriptor before they close it.
    allow_if(&mut rules, libc::SYS_fcntl, vec![equals(1, u64::from(libc::F_GETFD.cast_unsigned()))])?;
    Ok(rules)
}

/// Adds what opens and reads a disk image.
fn allow_images(rules: &mut Rules) -> Result<(), SandboxError> {
    allow(rules, IMAGE);
    allow_if(rules, libc::SYS_ioctl, vec![equals(1, BLKGETSIZE64)])
}

/// Adds the start of a thread, and no other process: `clone` with `CLONE_THREAD`. The C library uses it where
/// the kernel has no `clone3`, whose flags a filter cannot read.
fn allow_threads(rules: &mut Rules) -> Result<(), SandboxError> {
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    allow_if(rules, libc::SYS_clone, vec![masked(0, thread, thread)])?;
    // `clone3` is answered by a separate filter: of several filters the strictest action counts, and an error
    // is weaker than a refusal (seccomp(2)).
    allow(rules, &[libc::SYS_clone3, libc::SYS_prctl, libc::SYS_seccomp]);
    Ok(())
}

/// Adds `openat` for reading, and for temporary files, which have no name. Landlock keeps all other files
/// away.
fn allow_files(rules: &mut Rules) -> Result<(), SandboxError> {
    let written = reading();
    let temporary = u64::from(libc::O_TMPFILE.cast_unsigned());
    allow_if(rules, libc::SYS_openat, vec![masked(2, written, 0), masked(2, temporary, temporary)])
}

/// Returns the threads that may be stopped.
fn traced_threads(reach: &Reach) -> &[i32] {
    match reach {
        Reach::Stops { threads, .. } | Reach::Kernel { threads, .. } => threads,
        Reach::Stub { .. } | Reach::Child { .. } => &[],
    }
}

/// Adds access to the machine of another VMM, for threads of this kind; without a kind, for the first thread.
fn allow_reach(rules: &mut Rules, reach: &Reach, kind: Option<ThreadKind>) -> Result<(), SandboxError> {
    let process = match reach {
        Reach::Stops { process, .. } | Reach::Kernel { process, .. } | Reach::Child { process } => {
            Some(*process)
        }
        Reach::Stub { process } => *process,
    };
    if let Some(process) = process {
        allow_if(rules, libc::SYS_process_vm_readv, vec![equals(0, number(process))])?;
    }
    let samples = kind.is_none_or(|kind| kind == ThreadKind::Ticker);
    if samples {
        // Stops of threads, and the end of a stub's guard.
        allow(rules, &[libc::SYS_wait4]);
    }
    if samples && !traced_threads(reach).is_empty() {
        // A stop, the registers of the VMM's thread, and its resumption: nothing that changes a register
        // or a byte.
        let seize = vec![equals(0, u64::from(libc::PTRACE_SEIZE))?, equals(3, 0)?];
        rules.entry(libc::SYS_ptrace).or_default().push(SeccompRule::new(seize)?);
        let requests = [libc::PTRACE_INTERRUPT, libc::PTRACE_GETREGS, libc::PTRACE_DETACH];
        allow_if(rules, libc::SYS_ptrace, requests.map(|request| equals(0, request.into())).into())?;
    }
    match reach {
        Reach::Kernel { .. } => {
            // The sampler reads KVM's counters by a program as well.
            let commands = if samples { &BPF_COMMANDS[..] } else { &BPF_COMMANDS[1..] };
            let conditions = commands.iter().map(|command| equals(0, *command)).collect();
            allow_if(rules, libc::SYS_bpf, conditions)?;
        }
        // Through the stub any thread reads memory.
        Reach::Stub { .. } => allow(rules, &[libc::SYS_recvfrom, libc::SYS_sendto]),
        Reach::Child { process } => {
            allow(rules, &[libc::SYS_recvfrom, libc::SYS_sendto]);
            if kind.is_none() {
                let kill = equals(1, u64::from(libc::SIGKILL.cast_unsigned()))?;
                let end = SeccompRule::new(vec![equals(0, number(*process))?, kill])?;
                rules.entry(libc::SYS_kill).or_default().push(end);
            }
        }
        Reach::Stops { .. } => {}
    }
    Ok(())
}

fn number(id: i32) -> u64 {
    u64::from(id.cast_unsigned())
}

/// Returns the filter by which nothing but these threads is traced.
fn only_traces(threads: &[i32]) -> Result<SeccompFilter, SandboxError> {
    let other = |thread: &i32| SeccompCondition::new(1, Length::Dword, Compare::Ne, number(*thread));
    let others = SeccompRule::new(threads.iter().map(other).collect::<Result<_, _>>()?)?;
    let rules = Rules::from([(libc::SYS_ptrace, vec![others])]);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Trap, TargetArch::x86_64)?)
}

fn rules_of(kind: ThreadKind, reach: Option<&Reach>) -> Result<Rules, SandboxError> {
    let mut rules = common()?;
    if let Some(reach) = reach {
        allow_reach(&mut rules, reach, Some(kind))?;
    }
    if kind.reads_images() {
        allow_images(&mut rules)?;
    }
    match kind {
        ThreadKind::Ticker => {
            let duplicate = u64::from(libc::F_DUPFD_CLOEXEC.cast_unsigned());
            allow_if(&mut rules, libc::SYS_fcntl, vec![equals(1, duplicate)])?;
            let slack = u64::from(libc::PR_SET_TIMERSLACK.cast_unsigned());
            allow_if(&mut rules, libc::SYS_prctl, vec![equals(0, slack)])?;
        }
        ThreadKind::Watcher => {
            allow(&mut rules, WATCHER);
        }
        ThreadKind::Vcpu => {
            let requests = [
                KVM_RUN,
                KVM_GET_MP_STATE,
                KVM_GET_REGS,
                KVM_GET_SREGS,
                // A probe that replaces an instruction which loads RDI loads it.
                KVM_SET_REGS,
                KVM_GET_VCPU_EVENTS,
                KVM_GET_NESTED_STATE,
                KVM_SIGNAL_MSI,
                KVM_IOEVENTFD,
            ];
            allow_if(&mut rules, libc::SYS_ioctl, requests.map(|request| equals(1, request)).into())?;
            allow(&mut rules, &[libc::SYS_timer_settime, libc::SYS_timer_delete, libc::SYS_getcpu]);
            allow_if(&mut rules, libc::SYS_openat, vec![masked(2, reading(), 0)])?;
        }
        ThreadKind::Disk => {
            allow(&mut rules, DISK);
            allow_if(&mut rules, libc::SYS_ioctl, vec![equals(1, KVM_SIGNAL_MSI)])?;
        }
        // It reads a socket of the VMM, as its reach allows.
        ThreadKind::Device if reach.is_some() => {}
        ThreadKind::Device => {
            allow(&mut rules, DEVICE);
            allow_if(&mut rules, libc::SYS_ioctl, vec![equals(1, KVM_SIGNAL_MSI), equals(1, FIONBIO)])?;
        }
        ThreadKind::Sampler => {
            allow(&mut rules, SAMPLER);
            allow_threads(&mut rules)?;
            allow_if(&mut rules, libc::SYS_openat, vec![masked(2, reading(), 0)])?;
        }
        // It reads open files, and writes to memory.
        ThreadKind::Reader => {}
    }
    if reach.is_some() {
        // The process's filters answer it.
        allow(&mut rules, &[libc::SYS_openat]);
    }
    Ok(rules)
}

/// Flags of `openat` that write.
fn reading() -> u64 {
    u64::from((libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC).cast_unsigned())
}

/// The calls of the process: those of all kinds of threads, and what builds and serves a machine.
fn rules_of_process() -> Result<Rules, SandboxError> {
    let mut rules = common()?;
    for calls in [DISK, DEVICE, SAMPLER, PROCESS] {
        allow(&mut rules, calls);
    }
    allow_images(&mut rules)?;
    allow_if(&mut rules, libc::SYS_ioctl, vec![masked(1, TYPE_MASK, KVMIO), equals(1, FIONBIO)])?;
    allow_threads(&mut rules)?;
    allow_files(&mut rules)?;
    Ok(rules)
}

/// The calls of a process that is attached to another VMM: those of its threads, and what serves the run. No
/// file can be opened: `openat` gets an error.
fn rules_of_attached(reach: &Reach, policy: SyscallPolicy) -> Result<Rules, SandboxError> {
    let mut rules = common()?;
    for calls in [SAMPLER, WATCHER, ATTACHED] {
        allow(&mut rules, calls);
    }
    // The first thread opens the disks, whose names a sampler's thread then reads.
    allow_images(&mut rules)?;
    allow_if(&mut rules, libc::SYS_ioctl, vec![equals(1, FIONBIO)])?;
    allow_reach(&mut rules, reach, None)?;
    allow_threads(&mut rules)?;
    if policy == SyscallPolicy::Refuse {
        // A separate filter answers it.
        allow(&mut rules, &[libc::SYS_openat]);
    }
    Ok(rules)
}

/// Returns the filter that answers a system call with an error. Of several filters the strictest action
/// counts, and an error is weaker than a refusal (seccomp(2)).
fn answer(call: i64, errno: libc::c_int) -> Result<BpfProgram, SandboxError> {
    let rules = Rules::from([(call, Vec::new())]);
    let error = SeccompAction::Errno(errno.cast_unsigned());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, error, TargetArch::x86_64)?.try_into()?)
}

/// Compiles rules, with what the policy says for all other calls.
fn compile(rules: Rules, policy: SyscallPolicy) -> Result<BpfProgram, SandboxError> {
    let outside = if policy == SyscallPolicy::Log { SeccompAction::Log } else { SeccompAction::Trap };
    let filter = SeccompFilter::new(rules, outside, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

/// Compiles the filters of a thread, in the order in which they are applied.
fn compile_kind(
    kind: ThreadKind,
    reach: Option<&Reach>,
    policy: SyscallPolicy,
) -> Result<Vec<BpfProgram>, SandboxError> {
    let mut rules = rules_of(kind, reach)?;
    let mut programs = Vec::new();
    if policy == SyscallPolicy::Refuse && !rules.contains_key(&libc::SYS_openat) {
        // A thread that opens no file gets an error, because the C library tries to on its own: before it
        // gives memory of a thread back, it reads /proc/sys/vm/overcommit_memory, which it can do without.
        programs.push(answer(libc::SYS_openat, libc::EACCES)?);
        allow(&mut rules, &[libc::SYS_openat]);
    }
    programs.push(compile(rules, policy)?);
    Ok(programs)
}

/// Applies filters to the calling thread.
fn apply(programs: &[BpfProgram]) -> Result<(), seccompiler::Error> {
    programs.iter().try_for_each(|program| apply_filter(program))
}

/// Filters the calling thread, which is one of this kind and starts no other.
pub(crate) fn apply_alone(kind: ThreadKind, policy: SyscallPolicy) -> Result<(), SandboxError> {
    apply(&compile_kind(kind, None, policy)?).map_err(SandboxError::Filter)
}

/// Compiled filters.
#[derive(Debug)]
pub(crate) struct Filters {
    process: Vec<BpfProgram>,
    threads: Vec<(ThreadKind, Vec<BpfProgram>)>,
}

impl Filters {
    /// Compiles the filters of a process that runs a guest.
    pub(crate) fn of_guest(policy: SyscallPolicy) -> Result<Self, SandboxError> {
        // The C library then uses `clone`.
        let process = vec![answer(libc::SYS_clone3, libc::ENOSYS)?, compile(rules_of_process()?, policy)?];
        Ok(Self { process, threads: compile_all(&ThreadKind::OF_GUEST, None, policy)? })
    }

    /// Compiles the filters of a process that is attached to another VMM.
    pub(crate) fn of_attached(reach: &Reach, policy: SyscallPolicy) -> Result<Self, SandboxError> {
        let mut process = vec![answer(libc::SYS_clone3, libc::ENOSYS)?];
        if policy == SyscallPolicy::Refuse {
            process.push(answer(libc::SYS_openat, libc::EACCES)?);
            let threads = traced_threads(reach);
            if !threads.is_empty() {
                process.push(only_traces(threads)?.try_into()?);
            }
        }
        process.push(compile(rules_of_attached(reach, policy)?, policy)?);
        Ok(Self { process, threads: compile_all(&ThreadKind::OF_ATTACHED, Some(reach), policy)? })
    }

    /// Filters the calling thread and all that it starts.
    pub(crate) fn apply_to_process(&self) -> Result<(), seccompiler::Error> {
        apply(&self.process)
    }

    /// Filters the calling thread further.
    pub(crate) fn apply_to_thread(&self, kind: ThreadKind) -> Result<(), seccompiler::Error> {
        let mut own = self.threads.iter().filter(|(known, _)| *known == kind);
        own.try_for_each(|(_, programs)| apply(programs))
    }
}

fn compile_all(
    kinds: &[ThreadKind],
    reach: Option<&Reach>,
    policy: SyscallPolicy,
) -> Result<Vec<(ThreadKind, Vec<BpfProgram>)>, SandboxError> {
    kinds.iter().map(|kind| Ok((*kind, compile_kind(*kind, reach, policy)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaches() -> [Reach; 6] {
        [
            Reach::Stops { process: 2, threads: vec![3, 4] },
            Reach::Kernel { process: 2, threads: Vec::new() },
            Reach::Kernel { process: 2, threads: vec![3, 4] },
            Reach::Stub { process: Some(2) },
            Reach::Stub { process: None },
            Reach::Child { process: 2 },
        ]
    }

    #[test]
    fn what_a_thread_may_the_process_may() {
        let contains = |process: &Rules, kind: ThreadKind, reach: Option<&Reach>| {
            for call in rules_of(kind, reach).unwrap().keys() {
                assert!(process.contains_key(call), "{kind:?}: {call}");
            }
        };
        for kind in ThreadKind::OF_GUEST {
            contains(&rules_of_process().unwrap(), kind, None);
        }
        for reach in reaches() {
            let process = rules_of_attached(&reach, SyscallPolicy::Refuse).unwrap();
            // It opens files in the process of a guest only.
            for kind in ThreadKind::OF_ATTACHED {
                contains(&process, kind, Some(&reach));
            }
        }
    }

    #[test]
    fn no_filter_lets_a_program_or_a_process_start() {
        let kinds = ThreadKind::ALL.map(|kind| rules_of(kind, None).unwrap());
        let attached = reaches().map(|reach| rules_of_attached(&reach, SyscallPolicy::Refuse).unwrap());
        for rules in kinds.into_iter().chain(attached).chain([rules_of_process().unwrap()]) {
            for call in [libc::SYS_execve, libc::SYS_execveat, libc::SYS_fork, libc::SYS_vfork] {
                assert!(!rules.contains_key(&call), "{call}");
            }
        }
    }

    #[test]
    fn only_an_attached_process_traces_and_only_by_stops() {
        for reach in reaches() {
            let rules = rules_of_attached(&reach, SyscallPolicy::Refuse).unwrap();
            assert_eq!(
                rules.contains_key(&libc::SYS_ptrace),
                !traced_threads(&reach).is_empty(),
                "{reach:?}"
            );
        }
        assert!(!rules_of_process().unwrap().contains_key(&libc::SYS_ptrace));
        for rules in ThreadKind::OF_GUEST.map(|kind| rules_of(kind, None).unwrap()) {
            assert!(!rules.contains_key(&libc::SYS_process_vm_readv) && !rules.contains_key(&libc::SYS_bpf));
        }
    }

    /// A machine with the most vCPUs has the longest filter (`BPF_MAXINSNS`, linux/bpf_common.h).
    #[test]
    fn the_filters_of_the_largest_machine_fit() {
        let reach = Reach::Stops { process: 2, threads: (0..64).collect() };
        Filters::of_attached(&reach, SyscallPolicy::Refuse).unwrap();
    }
}
