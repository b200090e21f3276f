//! Rights of the process: capabilities, namespaces, limits, core dumps.

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::ResourceLimits;

/// Version of `capset`'s structures (`_LINUX_CAPABILITY_VERSION_3` of linux/capability.h, Linux 2.6.26).
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Capabilities that are tried, at most: 64 bits of two words (linux/capability.h).
const CAPABILITIES: libc::c_ulong = 64;
/// Descriptors that the process may have at once. A guest with 16 disks has about 150.
const MAX_DESCRIPTORS: libc::rlim_t = 4096;

/// Enters new namespaces: network, mounts, host name, System V objects. Returns false where the process
/// may not, which is so without root: a user namespace would give the process more of the kernel to attack.
pub(crate) fn enter_namespaces() -> bool {
    let flags = CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC;
    unshare(flags).is_ok()
}

/// Gives up all that a process with open descriptors does not need, except the capabilities of the set
/// `kept`. Allocates nothing.
///
/// # Errors
/// The action that fails, like "set no_new_privs", and the error of the kernel.
pub(crate) fn give_up(kept: u64) -> Result<(), (&'static str, Errno)> {
    let rights = |action| move |errno| (action, errno);
    // By a program that it executes, it gains nothing.
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(rights("set no_new_privs"))?;
    // No core dump with the guest's memory; other processes of its user cannot trace it.
    prctl(libc::PR_SET_DUMPABLE, 0).map_err(rights("forbid core dumps"))?;
    drop_capabilities(kept).map_err(rights("drop its capabilities"))?;
    limit(libc::RLIMIT_CORE, 0).map_err(rights("forbid core dumps"))?;
    limit(libc::RLIMIT_NOFILE, MAX_DESCRIPTORS).map_err(rights("limit its descriptors"))
}

/// Limits what a process that reads foreign bytes may take.
pub(crate) fn limit_resources(limits: ResourceLimits) -> Result<(), Errno> {
    limit(libc::RLIMIT_AS, limits.memory_bytes)?;
    limit(libc::RLIMIT_FSIZE, limits.file_bytes)?;
    // SIGXCPU at the first one shows the reason of the end; at the second one the kernel sends SIGKILL.
    limit(libc::RLIMIT_CPU, limits.cpu_seconds.saturating_add(1))?;
    limit_soft(libc::RLIMIT_CPU, limits.cpu_seconds)
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<(), Errno> {
    // SAFETY: these options take numbers.
    Errno::result(unsafe { libc::prctl(option, value, 0, 0, 0) }).map(drop)
}

/// Drops all capabilities but those of the set `kept`, which stay as they are.
fn drop_capabilities(kept: u64) -> Result<(), Errno> {
    for capability in 0..CAPABILITIES {
        // Fails without CAP_SETPCAP, and for numbers that this kernel does not have. no_new_privs keeps the
        // bounding set from being of use.
        let _kept = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let mut header = Header { version: CAPABILITY_VERSION, pid: 0 };
    // Effective, permitted, inheritable: the low words of the sets, then the high ones.
    let mut sets = [0_u32; 6];
    // SAFETY: the header and the six words are what version 3 of the call reads and writes (capset(2)), and
    // outlive it.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    let words = [kept & 0xffff_ffff, kept >> 32].map(|word| u32::try_from(word).unwrap_or(0));
    for (set, word) in sets.chunks_exact_mut(3).zip(words) {
        if let [effective, permitted, inheritable] = set {
            (*effective, *permitted, *inheritable) = (*effective & word, *permitted & word, 0);
        }
    }
    // SAFETY: as above.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) }).map(drop)
}

/// Lowers a limit; one that is lower already stays.
fn limit(which: libc::__rlimit_resource_t, most: libc::rlim_t) -> Result<(), Errno> {
    set_limit(which, |limit| libc::rlimit {
        rlim_cur: limit.rlim_cur.min(most),
        rlim_max: limit.rlim_max.min(most),
    })
}

/// Lowers a limit that the process may raise again.
fn limit_soft(which: libc::__rlimit_resource_t, most: libc::rlim_t) -> Result<(), Errno> {
    set_limit(which, |limit| libc::rlimit { rlim_cur: limit.rlim_cur.min(most), ..limit })
}

fn set_limit(
    which: libc::__rlimit_resource_t,
    lower: impl FnOnce(libc::rlimit) -> libc::rlimit,
) -> Result<(), Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes one rlimit through a pointer that is valid for the call.
    Errno::result(unsafe { libc::getrlimit(which, &raw mut limit) })?;
    limit = lower(limit);
    // SAFETY: setrlimit reads one rlimit through a pointer that is valid for the call.
    Errno::result(unsafe { libc::setrlimit(which, &raw const limit) }).map(drop)
}
