//! `vprof mem`.

use clap::Args;
use sandbox::SyscallPolicy;

use super::TEMPLATE;
use super::attach::VmArgs;
use super::parse::policy_parser;

const EXAMPLES: &str = "\
Examples:
  vprof mem                                this host's only VM, or a list of VMs
  vprof mem 4711 -n 20                     20 rows of each table
  vprof mem web --json                     all of it, for programs
  vprof mem --gdb localhost:1234           QEMU's GDB stub, also without KVM
";

const NOTES: &str = "\
vprof reads the guest's memory as `vprof attach` does, once, and changes nothing in the VM. To find the guest's \
kernel it stops one vCPU a few times for some 100 us, unless the host's kernel reads its registers \
(--engine bpf); the reading itself stops nothing, except by a GDB stub. The numbers are those of the \
guest's kernel: what /proc/meminfo, /proc/PID/status, memory.stat and /proc/slabinfo show inside. docs/mem.md explains \
each table, and docs/attach.md the right that is needed.

Exit codes: 0 done; 1 failed; 2 the command line is wrong.";

/// `vprof mem`.
#[derive(Debug, Args)]
#[command(
    before_help = EXAMPLES,
    after_help = NOTES,
    help_template = TEMPLATE,
    mut_arg("engine", |arg| arg.help("Way to find the guest's kernel: by the host's kernel (`bpf`), by stops of a vCPU (`ptrace`), \
        or by the kernel where possible (`auto`)"))
)]
pub struct MemArgs {
    /// The virtual machine.
    #[command(flatten)]
    pub vm: VmArgs,

    /// Rows per table; 0 for all, up to 4096
    #[arg(short = 'n', long, default_value_t = 10, value_name = "ROWS")]
    pub rows: usize,

    /// Print JSON (docs/json.md); always all rows
    #[arg(long)]
    pub json: bool,

    /// Filter of the system calls of the process that reads the guest: at an unexpected call `on` ends it,
    /// and `log` has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on", help_heading = "Host")]
    pub seccomp: SyscallPolicy,
}
