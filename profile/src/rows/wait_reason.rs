//! Wait reason of a task, from the kernel's functions that it sleeps in.

use serde::{Deserialize, Serialize};

use super::page_fault::{PageFaultKind, is_called};

/// Wait reason: the kind of event that a task sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum WaitReason {
    /// The task does not sleep, or the reason is not known.
    #[default]
    None,
    /// A page of its memory, by a fault of unknown kind.
    PageFault,
    /// The page of its next instruction.
    TextFault,
    /// A page that an instruction of its program reads or writes.
    DataFault,
    /// A page of its program that the kernel reads, writes or holds on its behalf.
    KernelFault,
    /// A futex: a mutex, a condition, the end of a thread.
    Futex,
    /// One of several files or requests: poll, select, epoll, io_uring.
    Poll,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A time: sleep and the like.
    Timer,
    /// The end of a child.
    Child,
    /// A signal.
    Signal,
    /// A terminal.
    Terminal,
    /// A block device, or a page of a file.
    Block,
    /// A lock of the kernel.
    Lock,
    /// Work: a kernel thread that has nothing to do.
    Work,
    /// Something else.
    Other,
}

/// Functions that indicate a wait reason (Linux 6.1 and 6.12), in the order of the checks: a fault may read a
/// disk, and poll sleeps by a timer. A name that ends in `*` stands for all that begin so.
const FUNCTIONS: &[(WaitReason, &[&str])] = &[
    (WaitReason::PageFault, &["handle_mm_fault", "exc_page_fault", "do_user_addr_fault"]),
    (WaitReason::Futex, &["futex_*", "__futex_*", "do_futex"]),
    (
        WaitReason::Poll,
        &[
            "do_sys_poll",
            "do_poll",
            "do_select",
            "ep_poll",
            "do_epoll_wait",
            "poll_schedule_timeout",
            // A completion of any request of an io_uring (io_uring/io_uring.c).
            "io_cqring_wait*",
        ],
    ),
    (WaitReason::Pipe, &["pipe_*", "anon_pipe_*", "fifo_open", "wait_for_partner"]),
    (
        WaitReason::Socket,
        &["sock_*", "__sys_recv*", "__sys_send*", "__sys_accept*", "inet_*", "sk_wait_data", "unix_stream_*"],
    ),
    (
        WaitReason::Timer,
        &["do_nanosleep", "hrtimer_nanosleep", "clock_nanosleep*", "msleep*", "usleep_range*"],
    ),
    (WaitReason::Child, &["do_wait", "kernel_wait4", "wait_for_vfork_done*"]),
    (
        WaitReason::Signal,
        &["sigsuspend", "do_sigtimedwait", "__x64_sys_pause", "do_signal_stop", "ptrace_stop"],
    ),
    (WaitReason::Terminal, &["n_tty_*", "tty_*"]),
    (
        WaitReason::Block,
        &[
            "io_schedule*",
            "folio_wait_bit_common",
            "__wait_on_buffer",
            "submit_bio_wait",
            "blk_mq_*",
            "jbd2_log_wait_commit",
        ],
    ),
    (
        WaitReason::Lock,
        &["__mutex_lock*", "mutex_lock*", "rwsem_down_*", "rt_mutex_*", "__rt_mutex_*", "down*"],
    ),
    // Workers of an io_uring: io_wqe_worker in 6.1, io_wq_worker in 6.12.
    (
        WaitReason::Work,
        &["kthread", "kthreadd", "worker_thread", "io_wqe_worker", "io_wq_worker", "io_sq_thread"],
    ),
];

impl WaitReason {
    const ALL: [Self; 17] = [
        Self::None,
        Self::PageFault,
        Self::TextFault,
        Self::DataFault,
        Self::KernelFault,
        Self::Futex,
        Self::Poll,
        Self::Pipe,
        Self::Socket,
        Self::Timer,
        Self::Child,
        Self::Signal,
        Self::Terminal,
        Self::Block,
        Self::Lock,
        Self::Work,
        Self::Other,
    ];

    /// Returns the wait reason of this name, [`WaitReason::None`] for a name that a newer version may have
    /// written.
    pub(crate) fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|reason| reason.name() == name).unwrap_or_default()
    }

    /// Returns the wait reason of a sleep. `functions` are all on its stack, innermost first, `kernel` those
    /// of the kernel; for the rest see [`PageFaultKind::from_stack`].
    pub fn from_sleep<'a>(
        functions: impl Iterator<Item = &'a str> + Clone,
        kernel: impl Iterator<Item = &'a str> + Clone,
        from_user: bool,
        fetching: Option<bool>,
    ) -> Self {
        let wait_reason = Self::from_functions(functions);
        if wait_reason != Self::PageFault {
            return wait_reason;
        }
        match PageFaultKind::from_stack(kernel.clone(), from_user, fetching) {
            Some(PageFaultKind::Text) => Self::TextFault,
            Some(PageFaultKind::Data) => Self::DataFault,
            Some(PageFaultKind::Kernel) => Self::KernelFault,
            // No exception: the kernel itself requests a page, for example to read a disk into it.
            None if kernel.clone().any(|function| is_called(function, "__get_user_pages*")) => {
                Self::KernelFault
            }
            None => Self::PageFault,
        }
    }

    /// Returns the wait reason that these functions indicate, innermost first.
    fn from_functions<'a>(functions: impl Iterator<Item = &'a str> + Clone) -> Self {
        let tells = |names: &&[&str]| {
            functions.clone().any(|function| names.iter().any(|name| is_called(function, name)))
        };
        FUNCTIONS.iter().find(|(_, names)| tells(names)).map_or(Self::Other, |(wait_reason, _)| *wait_reason)
    }

    /// Returns the name in table `task_state`; empty for [`WaitReason::None`].
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::PageFault => "page fault",
            Self::TextFault => "text fault",
            Self::DataFault => "data fault",
            Self::KernelFault => "kernel fault",
            Self::Futex => "futex",
            Self::Poll => "poll",
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Timer => "timer",
            Self::Child => "child",
            Self::Signal => "signal",
            Self::Terminal => "terminal",
            Self::Block => "block",
            Self::Lock => "lock",
            Self::Work => "work",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(stack: &str) -> WaitReason {
        WaitReason::from_functions(stack.split(' '))
    }

    #[test]
    fn stacks_of_linux_tell_their_causes() {
        assert_eq!(
            reason("schedule futex_wait_queue futex_wait do_futex __x64_sys_futex"),
            WaitReason::Futex
        );
        assert_eq!(reason("schedule do_nanosleep hrtimer_nanosleep __x64_sys_nanosleep"), WaitReason::Timer);
        assert_eq!(reason("schedule pipe_read vfs_read ksys_read"), WaitReason::Pipe);
        assert_eq!(reason("schedule schedule_hrtimeout_range do_sys_poll __x64_sys_poll"), WaitReason::Poll);
        assert_eq!(
            reason("schedule io_cqring_wait_schedule io_cqring_wait __do_sys_io_uring_enter"),
            WaitReason::Poll
        );
        assert_eq!(reason("schedule schedule_timeout io_wq_worker ret_from_fork"), WaitReason::Work);
        assert_eq!(reason("schedule do_wait kernel_wait4 __do_sys_wait4"), WaitReason::Child);
        assert_eq!(reason("schedule io_schedule folio_wait_bit_common filemap_read"), WaitReason::Block);
        assert_eq!(
            reason("schedule io_schedule folio_wait_bit_common filemap_fault handle_mm_fault.isra.0"),
            WaitReason::PageFault
        );
        let fault = "schedule io_schedule filemap_fault handle_mm_fault";
        let kind = |rest: &str, fetching| {
            let stack = format!("{fault} {rest}");
            WaitReason::from_sleep(stack.split(' '), stack.split(' '), true, fetching)
        };
        let entry = "exc_page_fault asm_exc_page_fault";
        assert_eq!(kind(entry, Some(true)), WaitReason::TextFault);
        assert_eq!(kind(entry, Some(false)), WaitReason::DataFault);
        assert_eq!(kind(entry, None), WaitReason::PageFault);
        assert_eq!(
            kind(&format!("{entry} copy_user_generic vfs_read"), Some(false)),
            WaitReason::KernelFault
        );
        assert_eq!(
            kind("__get_user_pages_locked bio_iov_iter_get_pages", Some(false)),
            WaitReason::KernelFault
        );
        let pipe = "schedule pipe_read".split(' ');
        assert_eq!(WaitReason::from_sleep(pipe.clone(), pipe, true, Some(true)), WaitReason::Pipe);
        assert_eq!(reason("schedule worker_thread kthread ret_from_fork"), WaitReason::Work);
        assert_eq!(reason("schedule something_new"), WaitReason::Other);
        assert_eq!(WaitReason::from_functions(std::iter::empty()), WaitReason::Other);
    }
}
