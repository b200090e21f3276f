//! Names of system calls, for the message on a refused one: a user can look `preadv` up, but not 295.

/// Makes the table of names by number from the C library's constants.
macro_rules! named {
    ($($call:ident)*) => {
        &[$((libc::$call, stringify!($call))),*]
    };
}

/// System calls that programs make, with their names in the C library. The table leaves out calls that only
/// administer a system, such as `swapon`, and obsolete ones.
const NAMED: &[(i64, &str)] = named! {
    SYS_accept SYS_accept4 SYS_access SYS_alarm SYS_arch_prctl SYS_bind SYS_bpf SYS_brk SYS_capget
    SYS_capset SYS_chdir SYS_chmod SYS_chown SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep
    SYS_clone SYS_clone3 SYS_close SYS_close_range SYS_connect SYS_copy_file_range SYS_creat SYS_dup
    SYS_dup2 SYS_dup3 SYS_epoll_create SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_epoll_wait SYS_eventfd SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group
    SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fchdir SYS_fchmod SYS_fchmodat
    SYS_fchown SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_flock SYS_fork SYS_fstat SYS_fstatfs SYS_fsync
    SYS_ftruncate SYS_futex SYS_getcpu SYS_getcwd SYS_getdents SYS_getdents64 SYS_getegid SYS_geteuid
    SYS_getgid SYS_getitimer SYS_getpeername SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom
    SYS_getrlimit SYS_getrusage SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid
    SYS_getxattr SYS_inotify_init1 SYS_io_uring_enter SYS_io_uring_setup SYS_ioctl SYS_kill SYS_link
    SYS_listen SYS_lseek SYS_lstat SYS_madvise SYS_membarrier SYS_memfd_create SYS_mincore SYS_mkdir
    SYS_mkdirat SYS_mknod SYS_mlock SYS_mlock2 SYS_mmap SYS_mount SYS_mprotect SYS_mremap SYS_msync
    SYS_munlock SYS_munmap SYS_nanosleep SYS_newfstatat SYS_open SYS_openat SYS_openat2 SYS_pause
    SYS_perf_event_open SYS_pidfd_getfd SYS_pidfd_send_signal SYS_pipe SYS_pipe2 SYS_poll SYS_ppoll
    SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2 SYS_prlimit64 SYS_process_madvise SYS_process_vm_readv
    SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read
    SYS_readahead SYS_readlink SYS_readlinkat SYS_readv SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_rename
    SYS_renameat SYS_renameat2 SYS_restart_syscall SYS_rmdir SYS_rseq SYS_rt_sigaction SYS_rt_sigpending
    SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sched_getaffinity
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_setaffinity SYS_sched_setparam
    SYS_sched_setscheduler SYS_sched_yield SYS_seccomp SYS_select SYS_sendfile SYS_sendmmsg SYS_sendmsg
    SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setgid SYS_setitimer SYS_setpgid
    SYS_setpriority SYS_setrlimit SYS_setsid SYS_setsockopt SYS_setuid SYS_shutdown SYS_sigaltstack
    SYS_socket SYS_socketpair SYS_splice SYS_stat SYS_statfs SYS_statx SYS_symlink SYS_sync
    SYS_sync_file_range SYS_sysinfo SYS_tgkill SYS_time SYS_timer_create SYS_timer_delete
    SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create SYS_timerfd_settime
    SYS_times SYS_tkill SYS_truncate SYS_umask SYS_uname SYS_unlink SYS_unlinkat SYS_unshare
    SYS_utimensat SYS_utimes SYS_vfork SYS_vmsplice SYS_wait4 SYS_waitid SYS_write SYS_writev
};

/// Returns the name of the system call with this number, such as `preadv` for 295.
pub(crate) fn name(number: u32) -> Option<&'static str> {
    let (_, constant) = NAMED.iter().find(|(known, _)| *known == i64::from(number))?;
    constant.strip_prefix("SYS_")
}
