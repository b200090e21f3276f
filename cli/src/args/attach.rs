//! `vprof attach`.

use std::path::PathBuf;
use std::str::FromStr;

use attach::{EngineChoice, TargetChoice};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use host::attached::{AttachTarget, ChosenVm, HalfStart};
use profile::watch::{BadWatch, WatchThreshold};
use sampler::WatchConfig;
use sandbox::SyscallPolicy;
use serde::{Deserialize, Serialize};

use super::parse::{ValueError, policy_parser};
use super::{RecordingArgs, TEMPLATE};
use crate::completion;

const EXAMPLES: &str = "\
Examples:
  vprof attach                             this host's only VM, or a list of VMs
  vprof attach 4711                        until Ctrl-C, or until the VM ends
  vprof attach 4711 -d 30s -F 200          30 s, 200 samples per second and vCPU
  vprof attach web -o web.vprof            QEMU's -name, crosvm's --name,
                                           Firecracker's --id
  vprof attach --gdb localhost:1234        QEMU's GDB stub, also without KVM
  vprof attach 4711 --top                  live on this terminal
  vprof attach 4711 --disk web.qcow2       names from the guest's own files
  vprof attach 4711 --engine ptrace        by stops of the vCPUs in any case
  vprof attach 4711 --host-stacks          functions of the VMM and KVM, too
  vprof attach 4711 --watch -F 100         until Ctrl-C; reports stalls
  vprof attach web --watch=blocked-task:30s,oom --watch-exit --json
";

const NOTES: &str = "\
The VM has to run on KVM, under QEMU, Firecracker, Cloud Hypervisor, crosvm or vprof. vprof sends it no \
request and changes nothing in it; however vprof ends, the VM continues. On AMD processors the host's kernel takes \
the samples, without a stop, if vprof is root or has cap_bpf and cap_perfmon as well. Otherwise a sample stops one \
vCPU for some 100 us, and fewer samples cost less (-F). docs/attach.md lists what a profile of such a VM has.

With --gdb the VM needs QEMU's option `-gdb tcp:127.0.0.1:1234` instead of KVM. A sample then stops all vCPUs; \
vprof lowers the rate where stops would take more than a tenth of the time.

Conditions of --watch, and when each is reported: irqs-off (5 s), soft-lockup (10 s), rcu-stall (21 s), \
blocked-task (120 s), lost-timer (5 s), paused (5 s), starved (5 s of waiting for a CPU in 10 s), oom (at once). \
docs/watch.md has their exact meaning, and what each engine can judge.

vprof needs the right to trace the VM's process: run it as root, or give that right to a group, once:
  sudo groupadd -f vprof && sudo chgrp vprof $(command -v vprof) && sudo chmod 0750 $(command -v vprof)
  sudo setcap cap_sys_ptrace,cap_dac_read_search+ep $(command -v vprof)

Exit codes: 0 done, also if the VM ended; 1 failed; 2 the command line is wrong; \
3 --until-precision was not reached, or --watch has seen a stall.";

/// Means by which vCPUs are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
pub enum Engine {
    /// The host's kernel where possible, else vprof.
    #[default]
    Auto,
    /// The host's kernel, without stops.
    Bpf,
    /// Stops of the vCPU by vprof.
    Ptrace,
}

impl Engine {
    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bpf => "bpf",
            Self::Ptrace => "ptrace",
        }
    }
}

impl From<Engine> for EngineChoice {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Auto => Self::Auto,
            Engine::Bpf => Self::Bpf,
            Engine::Ptrace => Self::Ptrace,
        }
    }
}

/// Virtual machine of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VmChoice {
    /// By its process.
    Pid(i32),
    /// By its name.
    Name(String),
}

impl VmChoice {
    fn parse(text: &str) -> Result<Self, ValueError> {
        match text.parse::<i32>() {
            Ok(pid) if pid > 0 => Ok(Self::Pid(pid)),
            Ok(_) => Err(ValueError::Pid),
            // More digits than any process id has.
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => Err(ValueError::Pid),
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

/// Conditions to watch for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchChoice(pub Vec<WatchThreshold>);

impl FromStr for WatchChoice {
    type Err = BadWatch;

    /// Parses `all`, or a list of conditions with commas. Of a repeated condition the last one counts.
    fn from_str(text: &str) -> Result<Self, BadWatch> {
        if text == "all" {
            return Ok(Self(WatchThreshold::all()));
        }
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// The virtual machine of another VMM, and the way to it.
#[derive(Debug, Clone, Args)]
pub struct VmArgs {
    /// Process id or name of the virtual machine [default: the only one; vprof lists several]
    #[arg(
        value_name = "PID|NAME",
        conflicts_with = "name",
        value_parser = VmChoice::parse,
        add = ArgValueCompleter::new(completion::machines)
    )]
    pub vm: Option<VmChoice>,

    /// The virtual machine with this name, which may be a number
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Guest",
        add = ArgValueCompleter::new(completion::machine_names)
    )]
    pub name: Option<String>,

    /// The virtual machine behind the GDB stub at this address: QEMU's with KVM or without
    #[arg(long, value_name = "HOST:PORT", help_heading = "Guest", conflicts_with_all = ["vm", "name"])]
    pub gdb: Option<String>,

    /// Way of sampling: by the host's kernel (`bpf`), by vprof, which stops the vCPU (`ptrace`), or by the
    /// kernel where possible (`auto`)
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        default_value_t,
        help_heading = "Guest",
        conflicts_with = "gdb"
    )]
    pub engine: Engine,

    /// The virtual machine with this number, from 1 on, in a process that runs several; needs the engine
    /// `bpf`
    #[arg(long = "vm", value_name = "NUMBER", help_heading = "Guest", conflicts_with = "gdb")]
    pub vm_number: Option<usize>,
}

impl VmArgs {
    /// Returns the machine. Its number and the engine of `choice` are those of these arguments.
    pub fn target(&self, choice: TargetChoice) -> AttachTarget {
        if let Some(address) = &self.gdb {
            return AttachTarget::Stub(address.clone());
        }
        let vm = match (&self.vm, &self.name) {
            (Some(VmChoice::Pid(pid)), _) => ChosenVm::Pid(*pid),
            (_, Some(name)) | (Some(VmChoice::Name(name)), None) => ChosenVm::Name(name.clone()),
            (None, None) => ChosenVm::Only,
        };
        let target = TargetChoice { vm: self.vm_number, engine: self.engine.into(), ..choice };
        AttachTarget::Process(vm, target)
    }
}

/// `vprof attach`.
#[derive(Debug, Clone, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct AttachArgs {
    /// The virtual machine.
    #[command(flatten)]
    pub vm: VmArgs,

    /// Also record the stack of a vCPU's thread in the host: functions of the VMM, of KVM and of the host's
    /// kernel; needs the engine `bpf` (`vprof report --host`, `vprof export --host`)
    #[arg(long, help_heading = "Guest", conflicts_with = "gdb")]
    pub host_stacks: bool,

    /// Take memory of the host's kernel for the vCPUs that there are: the recording ends when another one is
    /// plugged in. For `vprof agent`, which attaches again.
    #[arg(long, hide = true)]
    pub present_vcpus: bool,

    /// Do not count exits by their reasons: less memory of the host's kernel, and less time at each exit. For
    /// `vprof agent`.
    #[arg(long, hide = true)]
    pub no_exits: bool,

    /// Begin when the recording of the same machine by another vprof ends, without a gap. For `vprof agent`.
    #[arg(long, hide = true)]
    pub takes_over: bool,

    /// Directory of tables of guests' kernels that recorders have in common. For `vprof agent`.
    #[arg(long, value_name = "DIR", hide = true)]
    pub tables: Option<PathBuf>,

    /// Start of the process that reads the guest.
    #[arg(skip)]
    pub half: HalfStart,

    /// Report a stall of the guest within seconds, with the stacks of all vCPUs and blocked tasks: all
    /// conditions, or a list like `irqs-off,blocked-task:60s`, each with the time after which it counts
    /// (docs/watch.md). Exit code 3 if there was one. With --json a line for each
    #[arg(long, value_name = "CONDITION[:TIME],...", num_args = 0..=1, require_equals = true,
        default_missing_value = "all", help_heading = "Watch",
        add = ArgValueCompleter::new(completion::watch_conditions))]
    pub watch: Option<WatchChoice>,

    /// End the run with the first stall
    #[arg(long, requires = "watch", help_heading = "Watch")]
    pub watch_exit: bool,

    /// A disk image of the guest, raw or qcow2, from which functions of its programs get their names;
    /// only read; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub disk: Vec<PathBuf>,

    /// Filter of the system calls of the process that reads the guest: at an unexpected call `on` ends the
    /// run, and `log` has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on", help_heading = "Host")]
    pub seccomp: SyscallPolicy,

    /// Options of sampling and output.
    #[command(flatten)]
    pub recording: RecordingArgs,
}

impl AttachArgs {
    /// Returns the configuration of the watch, if there is one.
    pub fn watch_config(&self) -> Option<WatchConfig> {
        let WatchChoice(conditions) = self.watch.clone()?;
        Some(WatchConfig { conditions, exit: self.watch_exit, unjudged: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use profile::watch::WatchCondition;

    use super::*;

    #[test]
    fn a_watch_is_of_all_conditions_or_of_a_list() {
        let parse = str::parse::<WatchChoice>;
        assert_eq!(parse("all").map(|choice| choice.0.len()), Ok(WatchCondition::ALL.len()));
        let list = parse("oom,blocked-task:30s").expect("a list").0;
        let names: Vec<_> = list.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["oom", "blocked-task:30s"]);
        for wrong in ["", "oom,", "oom:1s", "hang", "paused:soon"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
