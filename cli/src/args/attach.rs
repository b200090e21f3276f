//! `vprof attach`.

use std::path::PathBuf;

use attach::EngineChoice;
use clap::{Args, ValueEnum};
use wall::SyscallPolicy;

use super::parse::policy_parser;
use super::{RecordingArgs, TEMPLATE};

const EXAMPLES: &str = "\
Examples:
  vprof attach 4711                        until Ctrl-C, or until the VM ends
  vprof attach 4711 -d 30s -F 200          30 seconds, 200 samples a second and vCPU
  vprof attach --name web -o web.vprof     by QEMU's -name, crosvm's --name, Firecracker's --id
  vprof attach --gdb localhost:1234        by QEMU's GDB stub: without KVM, too
  vprof attach 4711 --top                  live on this terminal
  vprof attach 4711 --disk web.qcow2       names from the guest's own files
  vprof attach 4711 --engine auto          samples without stops, where the host's kernel can take them
";

const NOTES: &str = "\
The VM has to run on KVM, under QEMU, Firecracker, Cloud Hypervisor, crosvm or vprof. vprof sends it no \
request and changes nothing in it; however vprof ends, the VM continues. A sample stops one vCPU for some \
100 us: fewer samples cost less (-F). With --engine bpf or auto, the host's kernel takes the samples on AMD \
processors without a stop, which needs root, or cap_bpf and cap_perfmon in addition. docs/attach.md lists what is available and what is not.

With --gdb the VM needs QEMU's option `-gdb tcp:127.0.0.1:1234` instead of KVM. A sample then stops all vCPUs; \
vprof lowers the rate where stops would take more than a tenth of the time.

vprof needs the right to trace the VM's process: run it as root, or give that right to a group, once:
  sudo groupadd -f vprof && sudo chgrp vprof $(command -v vprof) && sudo chmod 0750 $(command -v vprof)
  sudo setcap cap_sys_ptrace,cap_dac_read_search+ep $(command -v vprof)

Exit codes: 0 done, also if the VM ended; 1 failed; 2 the command line is wrong; \
3 --until-precision was not reached.";

/// Means by which vCPUs are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Engine {
    /// The host's kernel where it can; else stops.
    Auto,
    /// The host's kernel.
    Bpf,
    /// Stops of the vCPU.
    #[default]
    Ptrace,
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

/// `vprof attach`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct AttachArgs {
    /// Process of the virtual machine
    #[arg(required_unless_present_any = ["name", "gdb"], conflicts_with = "name", value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,

    /// The virtual machine with this name, instead of PID
    #[arg(long, value_name = "NAME", help_heading = "Guest")]
    pub name: Option<String>,

    /// The virtual machine behind the GDB stub at this address, instead of PID: QEMU's with KVM or
    /// without
    #[arg(long, value_name = "HOST:PORT", help_heading = "Guest", conflicts_with_all = ["pid", "name"])]
    pub gdb: Option<String>,

    /// Means of sampling: the host's kernel (`bpf`), stops of the vCPU (`ptrace`), or the kernel where it can
    /// and stops otherwise (`auto`)
    #[arg(
        long,
        value_enum,
        value_name = "ENGINE",
        default_value_t,
        help_heading = "Guest",
        conflicts_with = "gdb"
    )]
    pub engine: Engine,

    /// A disk image of the guest, raw or qcow2, from which functions of its programs get their names;
    /// only read; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub disk: Vec<PathBuf>,

    /// System calls that the process which reads the guest is not known to make: `on` ends the run at one,
    /// `log` has the kernel log it, `off` does not filter (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on", help_heading = "Host")]
    pub seccomp: SyscallPolicy,

    /// Options of sampling and output.
    #[command(flatten)]
    pub recording: RecordingArgs,
}
