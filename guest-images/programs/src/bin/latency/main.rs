//! `latency`: costs of system calls, processes, switches, files and local communication, measured as lmbench
//! does (L. McVoy and C. Staelin, *lmbench: Portable Tools for Performance Analysis*, USENIX 1996).
//!
//! Each measurement is a line: its name, its value, and the unit, `ns` or `MB/s` (10^6 bytes).

mod files;
mod local;
mod measure;
mod processor;
mod ring;
mod selected;

use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, pin, seconds};

const USAGE: &str = "latency [--tables NAME,...] [--processes N,N,...] [--seconds N] [--cpu N]
measures, each for N seconds (0.2) on one CPU, what is in the tables (processor, select, switch, files, local):
system calls and processes, select, switches in rings of N processes (2 to 96), files and mappings, local communication;
prints each as NAME VALUE UNIT, the best of ten means";

/// Names of the measurements, in order.
const TABLES: &str = "processor,select,switch,files,local";
/// Rings of the usual tables.
const RINGS: &str = "2,4,8,16,32,64,96";
/// Measurement that ends at once, for measurements of program starts.
const NOTHING: &str = "nothing";

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    if args.flag(NOTHING) {
        return Ok(());
    }
    pin(args.number("cpu")?.unwrap_or(0))?;
    let length = seconds(args, 0.2)?;
    let text = args.text("processes").unwrap_or(RINGS);
    let rings: Option<Vec<usize>> =
        text.split(',').map(|n| n.parse().ok().filter(|n| (2..=256).contains(n))).collect();
    let Some(rings) = rings else {
        return Err(ProgramError::Usage(format!("--processes {text}: rings of 2 to 256 are known")));
    };
    for table in args.text("tables").unwrap_or(TABLES).split(',') {
        match table {
            "processor" => processor::measure(length)?,
            "select" => selected::measure(length)?,
            "switch" => ring::measure(length, &rings)?,
            "files" => files::measure(length)?,
            "local" => local::measure(length)?,
            _ => return Err(ProgramError::Usage(format!("--tables {table}: there are {TABLES}"))),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["tables", "processes", "seconds", "cpu", "nothing!"], run)
}
