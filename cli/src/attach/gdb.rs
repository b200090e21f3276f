//! `vprof attach --gdb`: by the VMM's GDB stub.

use attach::gdb::GdbTarget;
use attach::{AttachedMemory, Attachment};
use symbols::names::OpenFiles;

use super::{
    PROOF_LIMIT, Plan, conclude, counted, guard_program, install, label, lower_rate, profile, program,
};
use crate::args::AttachArgs;
use crate::errors::{Error, ExitCode};
use crate::run::recording::{Recording, Streams};
use text::clean::escaped;

/// Data that a profile through a stub lacks.
const NOT_HAD: &str = "a GDB stub stops all vCPUs together and reports nothing between two stops: how a vCPU's time divides \
                       into guest, halted and vmm is estimated by samples, with what it waits for the host in `guest`; \
                       exits, interrupts that devices raise, and the console are not known";

/// Runs the command with an address.
pub(super) fn command(
    args: &AttachArgs,
    address: &str,
    recording: Recording<'_>,
    files: OpenFiles,
) -> Result<ExitCode, Error> {
    let mut target =
        GdbTarget::connect(address, usize::from(vmm::config::MAX_VCPUS), Some(guard_program(args)))?;
    install(&target.job_control(), args)?;
    let stub = format!("the GDB stub at {}", escaped(address));
    let label = target.process().map_or_else(|| stub.clone(), label);
    let vcpus = counted(target.vcpus());
    let memory = match target.memory() {
        AttachedMemory::Process(_) => "memory from its process",
        AttachedMemory::Stub(_) => "memory through the stub",
    };
    if !args.recording.quiet {
        let through = if target.process().is_some() { format!(" through {stub}") } else { String::new() };
        eprintln!("vprof: attached to {label}{through}, {vcpus}, {memory}");
    }
    target.prove(PROOF_LIMIT);
    let wanted = args.recording.rate;
    let lowered = lower_rate(args, target.rate_limit());
    let under = target.process().map(|process| format!(", {}", program(process.pid())));
    let plan = Plan {
        label: label.clone(),
        by: format!("through {stub}{}, {memory}", under.unwrap_or_default()),
        engine: ("gdb", format!("{stub} stops all vCPUs for samples: --gdb")),
        not_had: NOT_HAD.to_owned(),
        pid: target.process().map(attach::Process::pid),
        one_clock: true,
        vcpus: target.vcpus(),
        rate_hz: lowered.map_or(wanted, |lowered| lowered.hz),
        counters: Vec::new(),
        notes: lowered.iter().map(|lowered| ("rate", lowered.sentence())).collect(),
    };
    let start = |samplers| Attachment::start_by_gdb(target, samplers);
    let recorded = recording
        .record(label, Streams::none(), |link, tables| profile(args, plan, files, (link, tables), start))?;
    conclude(args, recorded)
}
