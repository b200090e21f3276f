//! The virtual machines of this host, where the user has not chosen one.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use attach::{RunningMachine, StatFields};
use display::clean::escaped;
use display::units;

use crate::errors::Error;
use crate::output::write_text;
use render::PageLayout;
use render::table::{ColumnAlign, TextTable};

/// Time over which the use of CPUs is measured.
const MEASURED: Duration = Duration::from_millis(200);

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ProcessUse {
    /// CPU time since its start, clock ticks.
    ticks: u64,
    /// Memory, bytes.
    memory: u64,
}

impl ProcessUse {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, page_size())
    }

    /// Parses /proc/PID/stat (proc_pid_stat(5)): fields 14, 15 and 24.
    fn parse(text: &str, page: u64) -> Option<Self> {
        let fields = StatFields::new(text)?;
        let ticks = fields.number(14)?.saturating_add(fields.number(15)?);
        Some(Self { ticks, memory: fields.number(24)?.saturating_mul(page) })
    }
}

/// Prints the machines that a command may choose from.
pub fn print(machines: &[RunningMachine], command: &str) -> Result<(), Error> {
    let read = || machines.iter().map(|machine| ProcessUse::read(machine.pid)).collect::<Vec<_>>();
    let (begin, before) = (Instant::now(), read());
    thread::sleep(MEASURED);
    let (after, elapsed) = (read(), begin.elapsed());
    let uses = before.into_iter().zip(after).map(|(before, after)| {
        let (before, after) = (before?, after?);
        Some((after.memory, cpus(after.ticks.saturating_sub(before.ticks), elapsed)))
    });
    let rows: Vec<_> = machines.iter().zip(uses).collect();
    write_text(&render(&rows, command, PageLayout::stdout()))
}

/// Returns the number of CPUs in use.
fn cpus(ticks: u64, elapsed: Duration) -> f64 {
    ticks as f64 / ticks_per_second() / elapsed.as_secs_f64()
}

/// Formats machines, each with its memory and the number of CPUs that it uses, if they are known.
fn render(rows: &[(&RunningMachine, Option<(u64, f64)>)], command: &str, page: PageLayout) -> String {
    let mut table = TextTable::new(&[
        ("pid", ColumnAlign::Right),
        ("vCPUs", ColumnAlign::Right),
        ("CPUs now", ColumnAlign::Right),
        ("memory", ColumnAlign::Right),
        ("VMM", ColumnAlign::Left),
        ("name", ColumnAlign::Left),
    ])
    .flexible(5);
    for (machine, used) in rows {
        let (memory, cpus) =
            used.map_or_else(Default::default, |(memory, cpus)| (units::bytes(memory), format!("{cpus:.2}")));
        table.row(vec![
            machine.pid.to_string(),
            machine.vcpus.to_string(),
            cpus,
            memory,
            escaped(&machine.program).into_owned(),
            escaped(&machine.name).into_owned(),
        ]);
    }
    let table = table.render(page.width);
    format!("{table}Choose one: vprof {command} PID, or vprof {command} NAME\n")
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 { ticks as f64 } else { 100.0 }
}

fn page_size() -> u64 {
    // SAFETY: as above.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use render::TextStyle;

    #[test]
    fn a_process_has_its_time_and_memory() {
        let text = format!("12 (a) R 7) S 1 2 3 4 5 6 7 8 9 10 100 23 {} 300 25", "0 ".repeat(8).trim_end());
        assert_eq!(ProcessUse::parse(&text, 4096), Some(ProcessUse { ticks: 123, memory: 300 * 4096 }));
        assert_eq!(ProcessUse::parse("12 (a) S 1", 4096), None);
        let own = ProcessUse::read(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.memory > 100_000, "{own:?}");
    }

    #[test]
    fn machines_are_a_table() {
        let machine = |pid, name: &str, program: &str| RunningMachine {
            pid,
            name: name.to_owned(),
            program: program.to_owned(),
            vcpus: 2,
        };
        let (web, gone) = (machine(4711, "web", "qemu-system-x86"), machine(99, "e\x1b[2J", "firecracker"));
        let page = PageLayout { width: 80, style: TextStyle::Plain };
        let rows = [(&web, Some((3 << 30, 1.5))), (&gone, None)];
        assert_eq!(
            render(&rows, "attach", page),
            " pid  vCPUs  CPUs now  memory  VMM              name\n\
             4711      2      1.50   3 GiB  qemu-system-x86  web\n  \
               99      2                    firecracker      e\\x1b[2J\n\
             Choose one: vprof attach PID, or vprof attach NAME\n"
        );
    }
}
