//! `vprof mem`: the guest's memory by holder, once. The attach half ([`host::attached`]) reads it.

mod json;
mod render;

use ::attach::{TargetChoice, VcpuRoom};
use host::attached::{AttachPurpose, AttachSpec, HalfStart};

use crate::args::MemArgs;
use crate::attach;
use crate::errors::{Error, ExitCode};
use crate::output::write_json;
use crate::pager;
use ::render::PageLayout;

/// Rows of each kind, at most.
const MOST_ROWS: usize = 4096;

/// Runs the command.
pub fn command(args: &MemArgs) -> Result<ExitCode, Error> {
    let rows = if args.json || args.rows == 0 { MOST_ROWS } else { args.rows.min(MOST_ROWS) };
    let spec = AttachSpec {
        target: args.vm.target(TargetChoice { room: VcpuRoom::Present, ..TargetChoice::default() }),
        purpose: AttachPurpose::Memory { rows },
        policy: args.seccomp,
    };
    let Some((half, vm)) = attach::start(spec, Vec::new(), (None, HalfStart::Program), "mem")? else {
        return Ok(ExitCode::Usage);
    };
    let memory = half.memory()?;
    if args.json {
        write_json(&json::MemJson::new(&vm.label, &memory))?;
    } else {
        pager::page(&render::render(&vm.label, &memory, PageLayout::stdout()))?;
    }
    Ok(ExitCode::Done)
}
