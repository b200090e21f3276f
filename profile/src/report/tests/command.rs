//! The processes of a command.

use super::views::{ask, text};
use super::*;
use crate::rows::CgroupRow;

/// Name, pid, parent, start, row of its control group, command line.
type Process = (&'static str, i32, i32, u64, Option<u32>, &'static str);

/// Returns a profile of a command in which each process ran for as many samples as its number. Each is name,
/// pid, parent, start, row of its control group, command line.
fn of_command(processes: &[Process], times: Option<(u64, u64)>) -> Run {
    let mut run = Run::new();
    run.batch
        .meta
        .push(("command".to_owned(), "bash -c (sleep 3; :) & python3 cpu.py; wait; date".to_owned()));
    if let Some((begun, took)) = times {
        for (key, ns) in [("command_begun_ns", begun), ("command_wall_ns", took)] {
            run.batch.meta.push((key.to_owned(), ns.to_string()));
        }
    }
    run.batch.instances.clear();
    for (id, &(comm, pid, parent, start_ns, cgroup, command)) in (1..).zip(processes) {
        run.batch.instances.push(crate::rows::InstanceRow {
            id,
            pid,
            start_ns,
            comm: comm.to_owned(),
            parent_pid: Some(parent),
            command: text(command),
            cgroup,
            ..Default::default()
        });
        run.add(u64::try_from(pid).expect("positive"), 0, Mode::User, Some(id), 5);
    }
    run
}

fn samples_of_command(run: &Run) -> Option<u64> {
    let report = ask(run, &Filter::default(), &Request::Summary).expect("a report");
    report.command.expect("a command").cpu.map(|cpu| cpu.samples)
}

const BASH: &str = "bash -c (sleep 3; :) & python3 cpu.py; wait; date";

#[test]
fn the_commands_processes_are_those_of_its_unit_from_its_start_to_its_end() {
    let group = |id, path: &str, unit: &str| CgroupRow {
        id,
        path: path.to_owned(),
        unit: text(unit),
        container: None,
    };
    let unit = Some(1);
    let processes = [
        ("systemd", 1, 0, 0, Some(2), "/sbin/init"),
        ("sh", 2, 1, 10, unit, "/bin/sh /run/vprof-command"),
        ("systemctl", 3, 2, 11, unit, "systemctl start multi-user.target"),
        // bash, which has become its last command.
        ("date", 5, 2, 100, unit, "date"),
        // Its subshell has not.
        ("bash", 7, 5, 101, unit, BASH),
        ("python3", 11, 5, 102, unit, "python3 cpu.py"),
        // Started by one of the command's, in its own group.
        ("worker", 13, 11, 103, Some(3), "worker"),
        ("sync", 17, 2, 301, unit, "sync"),
        ("nginx", 19, 1, 50, Some(3), "nginx"),
    ];
    let mut run = of_command(&processes, Some((100, 200)));
    run.batch.cgroups = vec![
        group(1, "/system.slice/kernel-command-line.service", "kernel-command-line.service"),
        group(2, "/init.scope", "init.scope"),
        group(3, "/system.slice/other.service", "other.service"),
    ];
    assert_eq!(samples_of_command(&run), Some(5 + 7 + 11 + 13));
    // It has not ended: all processes of its unit.
    run.batch.meta.retain(|(key, _)| key != "command_wall_ns");
    assert_eq!(samples_of_command(&run), Some(2 + 3 + 5 + 7 + 11 + 13 + 17));
    // None of its unit was sampled: no process is better than a wrong one.
    let mut run = of_command(&processes[..1], None);
    run.batch.cgroups = vec![group(2, "/init.scope", "init.scope")];
    assert_eq!(samples_of_command(&run), None);
}

#[test]
fn the_command_of_an_init_that_is_made_for_it_is_all_that_init_starts() {
    let processes = [
        ("init", 1, 0, 0, None, "/init"),
        ("date", 5, 1, 100, None, "date"),
        ("bash", 7, 5, 101, None, BASH),
        ("python3", 11, 5, 102, None, "python3 cpu.py"),
        ("orphan", 13, 1, 103, None, "orphan"),
    ];
    assert_eq!(samples_of_command(&of_command(&processes, None)), Some(5 + 7 + 11 + 13));
}
