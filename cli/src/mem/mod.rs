//! `vprof mem`: the guest's memory by holder, once. The attach half ([`host::attached`]) reads it.

mod json;
mod render;

use host::attached::{AttachHalf, AttachPurpose, AttachSpec, StartedHalf};

use crate::args::MemArgs;
use crate::attach::list;
use crate::errors::{Error, ExitCode, UsageError};
use crate::output::write_json;
use crate::pager;
use crate::render::PageLayout;

/// Rows of each kind, at most.
const MOST_ROWS: usize = 4096;

/// Runs the command.
pub fn command(args: &MemArgs) -> Result<ExitCode, Error> {
    let rows = if args.json || args.rows == 0 { MOST_ROWS } else { args.rows.min(MOST_ROWS) };
    let spec = AttachSpec {
        target: args.vm.target(false),
        purpose: AttachPurpose::Memory { rows },
        policy: args.seccomp,
    };
    let (half, vm) = match AttachHalf::start(spec, Vec::new())? {
        StartedHalf::Found(half, vm) => (half, vm),
        StartedHalf::Unchosen(machines) if machines.is_empty() => return Err(UsageError::NoVm.into()),
        StartedHalf::Unchosen(machines) => {
            return list::print(&machines, "mem").map(|()| ExitCode::Usage);
        }
    };
    let memory = half.memory()?;
    if args.json {
        write_json(&json::MemJson::new(&vm.label, &memory))?;
    } else {
        pager::page(&render::render(&vm.label, &memory, PageLayout::stdout()))?;
    }
    Ok(ExitCode::Done)
}
