//! States of tasks.

/// What a task does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub enum TaskState {
    /// On a CPU.
    Running,
    /// On a CPU that serves a hard interrupt.
    Interrupted,
    /// On a CPU while vprof serves a tick or an event there, or the CPU is on its way to the host and back for one: no time
    /// of the guest's.
    Sampler,
    /// Could run, and waits for a CPU.
    Runnable,
    /// Sleeps; a signal wakes it.
    Sleep,
    /// Sleeps uninterruptibly: mostly for a disk or for a lock of the kernel.
    Disk,
    /// Stopped, traced or frozen.
    Stopped,
    /// Has ended, and its parent has not asked for it.
    Zombie,
    /// Not known: events were lost.
    #[default]
    Unknown,
}

impl TaskState {
    /// All, in the order of reports.
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

    /// The task has a CPU, and the guest's time goes on there.
    pub fn is_on_cpu(self) -> bool {
        matches!(self, Self::Running | Self::Interrupted)
    }

    /// As in table `task_state`.
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
