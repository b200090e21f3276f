//! Filters of system calls, by kind of thread. Found by `--seccomp log` on the guests of the tests.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use serde::{Deserialize, Serialize};

use crate::WallError;

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
    /// Serves another device: network card, console, random numbers, sockets.
    Device,
    /// Reads the guest for the profile: collector, finder, namer, task scanner.
    Sampler,
    /// Reads disk images, kernels and initrds. It is the only thread of its process.
    Reader,
}

impl ThreadKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Vcpu, Self::Disk, Self::Device, Self::Sampler, Self::Reader];

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
    libc::SYS_tgkill,
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

/// System calls that a disk's thread makes besides.
const DISK: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_readv,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_lseek,
    libc::SYS_fstat,
    // Room for a snapshot.
    libc::SYS_fstatfs,
    libc::SYS_statx,
    libc::SYS_fcntl,
];

/// System calls that another device's thread makes besides.
const DEVICE: &[i64] = &[
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_fstat,
];

/// System calls that threads of the sampler make besides: temporary files, and separate threads.
const SAMPLER: &[i64] = &[
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fcntl,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_prctl,
    libc::SYS_sched_setaffinity,
    libc::SYS_setpriority,
    libc::SYS_sendto,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
];

/// System calls that the reader of images makes besides: it reads open files, and writes to memory.
const READER: &[i64] =
    &[libc::SYS_preadv, libc::SYS_readv, libc::SYS_lseek, libc::SYS_fstat, libc::SYS_statx, libc::SYS_fcntl];

/// System calls that only the process's first thread makes, while it builds the machine and serves the run.
const PROCESS: &[i64] = &[
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
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

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Condition = Result<SeccompCondition, seccompiler::BackendError>;

fn equals(argument: u8, value: u64) -> Condition {
    SeccompCondition::new(argument, Length::Dword, Compare::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Condition {
    SeccompCondition::new(argument, Length::Dword, Compare::MaskedEq(mask), value)
}

fn rule(condition: Condition) -> Result<SeccompRule, WallError> {
    Ok(SeccompRule::new(vec![condition?])?)
}

/// Adds calls without regard to their arguments.
fn allow(rules: &mut Rules, calls: &[i64]) {
    rules.extend(calls.iter().map(|call| (*call, Vec::new())));
}

/// Adds a call with one condition among its arguments.
fn allow_if(rules: &mut Rules, call: i64, conditions: Vec<Condition>) -> Result<(), WallError> {
    let conditions = conditions.into_iter().map(rule).collect::<Result<Vec<_>, _>>()?;
    rules.entry(call).or_default().extend(conditions);
    Ok(())
}

/// The calls of every thread. No thread makes memory executable: vprof generates no code.
fn common() -> Result<Rules, WallError> {
    let mut rules = Rules::new();
    allow(&mut rules, COMMON);
    let executable = u64::from(libc::PROT_EXEC.cast_unsigned());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        allow_if(&mut rules, call, vec![masked(2, executable, 0)])?;
    }
    // Builds with debug assertions check each descriptor before they close it.
    allow_if(&mut rules, libc::SYS_fcntl, vec![equals(1, u64::from(libc::F_GETFD.cast_unsigned()))])?;
    Ok(rules)
}

/// Adds the start of a thread, and no other process: `clone` with `CLONE_THREAD`. The C library uses it where
/// the kernel has no `clone3`, whose flags a filter cannot read.
fn allow_threads(rules: &mut Rules) -> Result<(), WallError> {
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    allow_if(rules, libc::SYS_clone, vec![masked(0, thread, thread)])?;
    // `clone3` is answered by a separate filter: of several filters the strictest action counts, and an error
    // is weaker than a refusal (seccomp(2)).
    allow(rules, &[libc::SYS_clone3, libc::SYS_prctl, libc::SYS_seccomp]);
    Ok(())
}

/// Adds `openat` for reading, and for temporary files, which have no name. Landlock keeps all other files
/// away.
fn allow_files(rules: &mut Rules) -> Result<(), WallError> {
    let written = reading();
    let temporary = u64::from(libc::O_TMPFILE.cast_unsigned());
    allow_if(rules, libc::SYS_openat, vec![masked(2, written, 0), masked(2, temporary, temporary)])
}

fn rules_of(kind: ThreadKind) -> Result<Rules, WallError> {
    let mut rules = common()?;
    match kind {
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
        ThreadKind::Device => {
            allow(&mut rules, DEVICE);
            allow_if(&mut rules, libc::SYS_ioctl, vec![equals(1, KVM_SIGNAL_MSI), equals(1, FIONBIO)])?;
        }
        ThreadKind::Sampler => {
            allow(&mut rules, SAMPLER);
            allow_threads(&mut rules)?;
            allow_files(&mut rules)?;
        }
        ThreadKind::Reader => {
            allow(&mut rules, READER);
            allow_if(&mut rules, libc::SYS_ioctl, vec![equals(1, BLKGETSIZE64)])?;
        }
    }
    Ok(rules)
}

/// Flags of `openat` that write.
fn reading() -> u64 {
    u64::from((libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC).cast_unsigned())
}

/// The calls of the process: those of all kinds of threads, and what builds and serves a machine.
fn rules_of_process() -> Result<Rules, WallError> {
    let mut rules = common()?;
    for calls in [DISK, DEVICE, SAMPLER, PROCESS] {
        allow(&mut rules, calls);
    }
    let requests = vec![masked(1, TYPE_MASK, KVMIO), equals(1, FIONBIO), equals(1, BLKGETSIZE64)];
    allow_if(&mut rules, libc::SYS_ioctl, requests)?;
    allow_threads(&mut rules)?;
    allow_files(&mut rules)?;
    Ok(rules)
}

/// Compiles rules, with what the policy says for all other calls.
fn compile(rules: Rules, policy: SyscallPolicy) -> Result<BpfProgram, WallError> {
    let outside = if policy == SyscallPolicy::Log { SeccompAction::Log } else { SeccompAction::Trap };
    let filter = SeccompFilter::new(rules, outside, SeccompAction::Allow, TargetArch::x86_64)?;
    Ok(filter.try_into()?)
}

/// Filters the calling thread, which is one of this kind and starts no other.
pub(crate) fn apply_alone(kind: ThreadKind, policy: SyscallPolicy) -> Result<(), WallError> {
    apply_filter(&compile(rules_of(kind)?, policy)?).map_err(WallError::Filter)
}

/// Compiled filters.
#[derive(Debug)]
pub(crate) struct Filters {
    /// Has the C library use `clone`: `clone3` does not exist.
    no_clone3: BpfProgram,
    process: BpfProgram,
    threads: [BpfProgram; ThreadKind::ALL.len()],
}

impl Filters {
    pub(crate) fn compile(policy: SyscallPolicy) -> Result<Self, WallError> {
        let mut threads = Vec::new();
        for kind in ThreadKind::ALL {
            threads.push(compile(rules_of(kind)?, policy)?);
        }
        let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
        let enosys = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let no_clone3 = SeccompFilter::new(absent, SeccompAction::Allow, enosys, TargetArch::x86_64)?;
        Ok(Self {
            no_clone3: no_clone3.try_into()?,
            process: compile(rules_of_process()?, policy)?,
            threads: threads.try_into().unwrap_or_else(|_| unreachable!("one filter for each kind")),
        })
    }

    /// Filters the calling thread and all that it starts.
    pub(crate) fn apply_to_process(&self) -> Result<(), seccompiler::Error> {
        apply_filter(&self.no_clone3)?;
        apply_filter(&self.process)
    }

    /// Filters the calling thread further.
    pub(crate) fn apply_to_thread(&self, kind: ThreadKind) -> Result<(), seccompiler::Error> {
        apply_filter(&self.threads[kind as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_may_the_process_may() {
        let process = rules_of_process().unwrap();
        for kind in ThreadKind::ALL {
            for call in rules_of(kind).unwrap().keys() {
                assert!(process.contains_key(call), "{kind:?}: {call}");
            }
        }
    }

    #[test]
    fn no_filter_lets_a_program_or_a_process_start() {
        let kinds = ThreadKind::ALL.map(|kind| rules_of(kind).unwrap());
        for rules in kinds.into_iter().chain([rules_of_process().unwrap()]) {
            for call in
                [libc::SYS_execve, libc::SYS_execveat, libc::SYS_fork, libc::SYS_vfork, libc::SYS_ptrace]
            {
                assert!(!rules.contains_key(&call), "{call}");
            }
        }
    }
}
