//! Measures vprof against its budgets, side by side in one run, and prints a table. Fails only on a wrong
//! answer, never on a slow one.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use sampler::bench::StoppedGuest;
use symbols::names::OpenFiles;

mod agent;
mod attached;
mod attached_sandbox;
mod child;
mod crowd;
mod dump;
mod exits;
mod guest;
mod guest_sandbox;
mod kick;
mod machine;
mod names;
mod pipeline;
mod programs;
mod table;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [what, path] = arguments.as_slice() {
        let path = Path::new(path);
        return match what.to_str() {
            Some("summary") => child::report(&pipeline::summary(path)?),
            Some("functions") => child::report(&pipeline::functions(path)?),
            Some("folded") => child::report(&pipeline::folded(path)?),
            Some("page") => child::report(&pipeline::page(path)?),
            Some("merge") => child::report(&pipeline::merge(path)?),
            Some("names") => child::report(&names::measure(path)?),
            Some("crowd") => {
                let vcpus = path.to_str().and_then(|vcpus| vcpus.parse().ok()).context("not a number")?;
                crowd::measure(tempfile::tempdir()?.path(), vcpus, print)
            }
            Some("exits") => exits::guest(path, exits::FREQUENT),
            Some("rare-exits") => exits::guest(path, exits::RARE),
            Some("sandbox") => child::report(&guest_sandbox::measure(path)?),
            // Inside that sandbox the peak of memory cannot be read.
            Some("attached-sandbox") => attached_sandbox::measure(path),
            _ => bail!(
                "usage: bench, or bench summary|functions|folded|page PROFILE, or bench merge DIRECTORY, \
                 or bench names FILE, or bench sandbox on|off, or bench attached-sandbox on/PID|off/PID, \
                 or bench attach, or bench managed, or bench pipeline, or bench agent, \
                 or bench crowd VCPUS"
            ),
        };
    }
    if let [what, ram, rate] = arguments.as_slice()
        && what == "counting"
    {
        let rate = rate.to_str().and_then(|rate| rate.parse().ok()).context("the rate is not a number")?;
        return attached::counting(Path::new(ram), rate);
    }
    if arguments == ["managed"] {
        println!("{}", table::HEADER);
        print(&managed()?);
        return Ok(());
    }
    if arguments == ["pipeline"] {
        println!("{}", table::HEADER);
        print(&pipeline::rows()?);
        return Ok(());
    }
    if arguments == ["agent"] {
        let directory = tempfile::tempdir()?;
        let (stopped, _) = stopped_guest(directory.path(), dump::QemuGuest::boot)?;
        let (ram, empty) = attached::write_memory(&stopped, directory.path())?;
        println!("{}\n\n{}", machine::description(), table::HEADER);
        return agent::measure(&ram, &empty, print);
    }
    if arguments == ["attach"] {
        let directory = tempfile::tempdir()?;
        let (stopped, _) = stopped_guest(directory.path(), dump::QemuGuest::boot)?;
        attached::measure(&stopped, directory.path(), print)?;
        return Ok(());
    }
    eprintln!("measuring; leave the machine alone for ten minutes");
    let directory = tempfile::tempdir()?;
    let mut running = dump::QemuGuest::boot(directory.path())?;
    let (stack_rows, stopped) = guest::stacks(&mut running, directory.path())?;
    drop(running);
    let found = guest::found(&stopped)?;
    let task_scan = guest::task_scan(&stopped)?;
    println!("{}\n\n{}", machine::description(), table::HEADER);
    let kick_rows = kick::rows(&stopped);
    match &kick_rows {
        Ok(rows) => {
            print(rows);
            print(&managed()?);
            print(&guest_sandbox::rows()?);
        }
        Err(reason) => eprintln!("SKIPPED what needs KVM: {reason}"),
    }
    print(&stack_rows);
    print(&pipeline::rows()?);
    print(&[pipeline::memory(), found, task_scan]);
    print(&names::rows()?);
    // Takes longer than all others.
    if kick_rows.is_ok() {
        attached::measure(&stopped, directory.path(), print)?;
    }
    Ok(())
}

/// Measures the functions of managed languages in a sample: of a program that has some, and of one that has
/// none. Each is on another guest.
fn managed() -> anyhow::Result<[table::TableRow; 2]> {
    let row = |boot: BootGuest, measure: fn(&StoppedGuest, &OpenFiles) -> anyhow::Result<table::TableRow>| {
        let directory = tempfile::tempdir()?;
        let (stopped, files) = stopped_guest(directory.path(), boot)?;
        measure(&stopped, &files)
    };
    Ok([row(dump::QemuGuest::boot_python, kick::managed)?, row(dump::QemuGuest::boot, kick::unmanaged)?])
}

/// Way to boot a guest, whose files are in the directory.
type BootGuest = fn(&Path) -> anyhow::Result<dump::QemuGuest>;

/// Boots a guest and stops it. Returns its state with the files of its programs.
fn stopped_guest(directory: &Path, boot: BootGuest) -> anyhow::Result<(StoppedGuest, OpenFiles)> {
    let mut running = boot(directory)?;
    Ok((running.stop()?, running.files()))
}

/// Prints rows as soon as they are known: a measurement that fails takes no other with it.
fn print(rows: &[table::TableRow]) {
    for row in rows {
        println!("{}", row.markdown());
    }
}
