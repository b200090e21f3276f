//! States of tasks.

/// State of a task.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub enum TaskState {
    /// On a CPU.
    Running,
    /// On a CPU that serves a hard interrupt.
    Interrupted,
    /// On a CPU while vprof serves a tick or an event there, or while the CPU switches to the host and back
    /// for one. This is not time of the guest.
    Sampler,
    /// Could run, and waits for a CPU.
    Runnable,
    /// Sleeps; a signal wakes it.
    Sleep,
    /// Sleeps uninterruptibly: mostly for a disk or for a lock of the kernel.
    Disk,
    /// Stopped, traced or frozen.
    Stopped,
    /// Has exited; its parent has not reaped it.
    Zombie,
    /// Not known: events were lost.
    #[default]
    Unknown,
}

impl TaskState {
    /// All states, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Running,
        Self::Interrupted,
        Self::Sampler,
        Self::Runnable,
        Self::Sleep,
        Self::Disk,
        Self::Stopped,
        Self::Zombie,
        Self::Unknown,
    ];

    /// Name of the state of a task that has exited, in table `task_scan_state`.
    pub(crate) const GONE: &str = "gone";

    /// Returns the state of this name, [`TaskState::Unknown`] for a name that a newer version may have
    /// written.
    pub(crate) fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.name() == name).unwrap_or_default()
    }

    /// True if the task waits for something that a wait reason names.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Sleep | Self::Disk | Self::Stopped)
    }

    /// True if the task has a CPU on which the guest's time passes.
    pub fn is_on_cpu(self) -> bool {
        matches!(self, Self::Running | Self::Interrupted)
    }

    /// Returns the name in table `task_state`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Sampler => "sampler",
            Self::Runnable => "runnable",
            Self::Sleep => "sleep",
            Self::Disk => "disk",
            Self::Stopped => "stopped",
            Self::Zombie => "zombie",
            Self::Unknown => "unknown",
        }
    }
}
