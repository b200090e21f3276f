//! The part of a profile that a command uses.

use clap::{Args, ValueEnum};
use profile::Filter;
use profile::report::ModeGroup;

use super::parse::{TimeSpan, parse_span};

/// Part of a profile that a command uses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Only a part")]
pub struct FilterArgs {
    /// Only processes with this name, process id or name#instance; `*` in a name stands for any characters;
    /// repeatable
    #[arg(long, short = 'p', value_name = "NAME|PID")]
    pub process: Vec<String>,

    /// Only processes with this name, process id or name#instance, and all that they have started;
    /// `command` for the command of `vprof run IMAGE -- CMD`
    #[arg(long, value_name = "NAME|PID|command")]
    pub tree_of: Option<String>,

    /// Only this instance of a process
    #[arg(long, value_name = "NAME#N")]
    pub instance: Option<String>,

    /// Only processes whose control group has this in its path, like a unit or a container
    #[arg(long, value_name = "PART")]
    pub cgroup: Option<String>,

    /// Only threads with this name or thread id
    #[arg(long, value_name = "NAME|TID")]
    pub thread: Option<String>,

    /// Only samples with this function on their stack
    #[arg(long, value_name = "FUNCTION")]
    pub symbol: Option<String>,

    /// Only samples in this mode; repeatable, or with commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MODE")]
    pub mode: Vec<ModeChoice>,

    /// Only this vCPU, of each virtual machine of a merged profile
    #[arg(long, visible_alias = "vcpu", value_name = "N")]
    pub cpu: Option<u8>,

    /// Only virtual machines with this name, in a merged profile; `*` stands for any characters
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// Only virtual machines of the host with this name, in a merged profile; `*` stands for any characters
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub vm_host: Option<String>,

    /// Only samples in this part of the run, like 2s..5s, 500ms.. or ..10s, counted from its start
    #[arg(long, value_name = "FROM..TO", value_parser = parse_span)]
    pub time: Option<TimeSpan>,

    /// Frames of a language's interpreter in place of those of the functions that it runs
    #[arg(long, help_heading = "Stacks")]
    pub native: bool,
}

impl FilterArgs {
    /// Returns the filter that the options choose.
    pub fn to_filter(&self) -> Filter {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let span = self.time.unwrap_or_default();
        Filter {
            process: self.process.clone(),
            tree: self.tree_of.clone(),
            instance: self.instance.clone(),
            cgroup: self.cgroup.clone(),
            thread: self.thread.clone(),
            symbol: self.symbol.clone(),
            module: None,
            modes: self.mode.iter().map(|&mode| mode.into()).collect(),
            vcpu: self.cpu.map(u16::from),
            vm: self.vm.clone(),
            host: self.vm_host.clone(),
            from_ns: span.from.map(ns),
            to_ns: span.to.map(ns),
            relative: false,
            native: self.native,
        }
    }
}

/// `--mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    /// User code
    User,
    /// The kernel outside of interrupts
    Kernel,
    /// Hard interrupts, soft interrupts and NMIs
    Irq,
    /// Hard interrupts and NMIs
    Hardirq,
    /// Soft interrupts
    Softirq,
}

impl From<ModeChoice> for ModeGroup {
    fn from(mode: ModeChoice) -> Self {
        match mode {
            ModeChoice::User => Self::User,
            ModeChoice::Kernel => Self::Kernel,
            ModeChoice::Irq => Self::Irq,
            ModeChoice::Hardirq => Self::HardIrq,
            ModeChoice::Softirq => Self::SoftIrq,
        }
    }
}
