//! Instances: the process that a task belongs to, distinguished from later ones with the same pid.
//!
//! An instance is identified by pid and start time of the thread group's leader: a reused pid has another
//! start time, a forked child another pid, and threads share their leader's. An exec keeps both and changes
//! the name; the instance then gets the new name with a new number. Numbers count per name and are never
//! given twice.

use std::collections::HashMap;
use std::sync::Arc;

use guest_linux::TaskSnapshot;

use super::walker::StackWalker;
use display::clean;
use profile::rows::{Batch, CgroupRow, InstanceRow, ThreadRow};

/// Instances that are remembered at once. Beyond that the half that was not seen for longest is forgotten; a
/// forgotten instance that shows up again counts as a new one. A guest that forks endlessly must not exhaust
/// the host's memory.
const REMEMBERED: usize = 65_536;
/// Program names with separate counters. Names beyond share one counter, whose numbers are unique, too.
const NAMES: usize = 65_536;

#[derive(Debug)]
struct KnownInstance {
    id: u32,
    comm: [u8; 16],
    kernel_thread: bool,
    number: u32,
    /// Time at which the name was last seen, CLOCK_MONOTONIC ns.
    named_ns: u64,
    seen: u64,
    /// The instance was seen in user code under this name: before that, its exec may be in progress.
    ran: bool,
    details: ProcessDetails,
}

/// Data of a process besides its name.
#[derive(Debug, Clone, Default)]
struct ProcessDetails {
    parent_pid: Option<i32>,
    command: Option<String>,
    exe: Option<u32>,
    cgroup: Option<u32>,
}

/// All instances seen so far.
#[derive(Debug, Default)]
pub(crate) struct InstanceTable {
    known: HashMap<(i32, u64), KnownInstance>,
    next_number: HashMap<[u8; 16], u32>,
    given: u32,
    shared_number: u32,
    clock: u64,
    cgroups: HashMap<String, u32>,
}

impl InstanceTable {
    /// Returns the instance of `task`, which was read at `read_ns`. Also returns true, and adds a row to
    /// `rows`, if the instance is new or has another name.
    ///
    /// Readings come in order per vCPU, but not across vCPUs: an older one must not bring back the name
    /// before an exec.
    pub(crate) fn resolve(
        &mut self,
        task: &TaskSnapshot,
        read_ns: u64,
        rows: &mut Vec<InstanceRow>,
    ) -> (u32, bool) {
        self.clock += 1;
        let key = (task.pid, task.start_ns);
        if let Some(known) = self.known.get_mut(&key) {
            known.seen = self.clock;
            if read_ns < known.named_ns {
                return (known.id, false);
            }
            known.named_ns = read_ns;
            if known.comm == task.process_comm && known.kernel_thread == task.kernel_thread {
                return (known.id, false);
            }
            // An exec changes the name; the first process also turns from a kernel thread into a program.
            known.kernel_thread = task.kernel_thread;
            if known.comm != task.process_comm {
                known.comm = task.process_comm;
                known.ran = false;
                known.number = next_number(&mut self.next_number, &mut self.shared_number, task.process_comm);
            }
            rows.push(row(task, known));
            return (known.id, true);
        }
        // Half at once, so that the cost is spread over many new instances.
        if self.known.len() >= REMEMBERED {
            self.forget_half();
        }
        self.given = self.given.saturating_add(1);
        let known = KnownInstance {
            id: self.given,
            comm: task.process_comm,
            kernel_thread: task.kernel_thread,
            number: next_number(&mut self.next_number, &mut self.shared_number, task.process_comm),
            named_ns: read_ns,
            seen: self.clock,
            ran: false,
            details: ProcessDetails::default(),
        };
        rows.push(row(task, &known));
        self.known.insert(key, known);
        (self.given, true)
    }

    /// Notes that `task` was seen in user code; returns true for the first time under its name. An exec
    /// changes the name before it sets the command line (`begin_new_exec`, `create_elf_tables`), so data read
    /// until now may be of either program.
    pub(crate) fn runs(&mut self, task: &TaskSnapshot) -> bool {
        let known = self.known.get_mut(&(task.pid, task.start_ns));
        known.is_some_and(|known| known.comm == task.process_comm && !std::mem::replace(&mut known.ran, true))
    }

    /// Reads the data of the process of `task` with `walker`.
    pub(crate) fn describe(&mut self, task: &TaskSnapshot, walker: &mut StackWalker, batch: &mut Batch) {
        let process = walker.source().kernel.process(&walker.source().memory, task.task);
        let cgroup = process.cgroup.ok().map(|path| self.cgroup(&path, &mut batch.cgroups));
        let Some(known) = self.known.get_mut(&(task.pid, task.start_ns)) else { return };
        known.details = ProcessDetails {
            parent_pid: process.parent.ok(),
            command: process.argv.ok().and_then(|argv| command(&argv)),
            exe: process.exe.ok().map(|file| walker.file(&file, batch)),
            cgroup,
        };
        batch.instances.push(row(task, known));
    }

    /// Sets the present command line of the process of `task`.
    pub(crate) fn retitle(&mut self, task: &TaskSnapshot, argv: &[String], rows: &mut Vec<InstanceRow>) {
        let Some(known) = self.known.get_mut(&(task.pid, task.start_ns)) else { return };
        let command = command(argv);
        if known.comm == task.process_comm && command.is_some() && known.details.command != command {
            known.details.command = command;
            rows.push(row(task, known));
        }
    }

    /// Returns the row id of a control group.
    fn cgroup(&mut self, path: &str, rows: &mut Vec<CgroupRow>) -> u32 {
        if let Some(&id) = self.cgroups.get(path) {
            return id;
        }
        // Beyond that they share the last row: a guest that makes groups endlessly must not exhaust the
        // host's memory.
        let id = u32::try_from(self.cgroups.len() + 1).unwrap_or(u32::MAX);
        if self.cgroups.len() >= REMEMBERED {
            return id;
        }
        self.cgroups.insert(path.to_owned(), id);
        let clean = |name: Option<&str>| name.map(clean::printable);
        rows.push(CgroupRow {
            id,
            path: clean::printable(path),
            unit: clean(guest_linux::systemd_unit(path)),
            container: clean(guest_linux::container(path)),
        });
        id
    }

    fn forget_half(&mut self) {
        let mut seen: Vec<u64> = self.known.values().map(|known| known.seen).collect();
        let middle = seen.len() / 2;
        let (_, &mut median, _) = seen.select_nth_unstable(middle);
        self.known.retain(|_, known| known.seen >= median);
    }
}

fn next_number(own: &mut HashMap<[u8; 16], u32>, shared: &mut u32, comm: [u8; 16]) -> u32 {
    let counter =
        if own.len() < NAMES || own.contains_key(&comm) { own.entry(comm).or_insert(0) } else { shared };
    let number = *counter;
    *counter = counter.saturating_add(1);
    number
}

/// Returns the command line. A process that has written a title over it has filled the rest with NULs or
/// blanks.
fn command(argv: &[String]) -> Option<String> {
    let line = argv.join(" ").trim_end_matches(' ').to_owned();
    (!line.is_empty()).then_some(line)
}

fn row(task: &TaskSnapshot, known: &KnownInstance) -> InstanceRow {
    InstanceRow {
        id: known.id,
        pid: task.pid,
        start_ns: task.start_ns,
        comm: clean::comm(&known.comm),
        number: known.number,
        kernel_thread: known.kernel_thread,
        parent_pid: known.details.parent_pid,
        command: known.details.command.clone(),
        exe: known.details.exe,
        cgroup: known.details.cgroup,
    }
}

/// Names of threads.
#[derive(Debug, Default)]
pub(crate) struct ThreadNames {
    known: HashMap<(u32, i32), ThreadName>,
}

/// Names of a thread.
#[derive(Debug, PartialEq, Eq)]
struct ThreadName {
    comm: [u8; 16],
    /// By its runtime.
    own: Option<Arc<str>>,
}

impl ThreadNames {
    /// Notes the name of a thread; adds a row to `rows` if it is new.
    pub(crate) fn note(&mut self, instance: u32, task: &TaskSnapshot, rows: &mut Vec<ThreadRow>) {
        let key = (instance, task.tid);
        if self.known.get(&key).is_some_and(|known| known.comm == task.comm) {
            return;
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, ThreadName { comm: task.comm, own: None });
        rows.push(ThreadRow { instance, tid: task.tid, comm: clean::comm(&task.comm) });
    }

    /// Notes the name that the runtime of a thread has for it. It counts where the thread's own name is only
    /// that of its process, which each thread begins with; adds a row to `rows` if it is new.
    pub(crate) fn note_runtime_name(
        &mut self,
        instance: u32,
        task: &TaskSnapshot,
        name: &Arc<str>,
        rows: &mut Vec<ThreadRow>,
    ) {
        let Some(known) = self.known.get_mut(&(instance, task.tid)) else { return };
        let is_default = task.tid != task.pid && task.comm == task.process_comm && known.comm == task.comm;
        if is_default && known.own.as_ref() != Some(name) {
            known.own = Some(Arc::clone(name));
            rows.push(ThreadRow { instance, tid: task.tid, comm: clean::printable(name) });
        }
    }

    /// Returns the name of a thread, printable; empty if it is no longer known.
    pub(crate) fn name(&self, instance: u32, tid: i32) -> String {
        let known = self.known.get(&(instance, tid));
        known.map_or_else(String::new, |known| match &known.own {
            Some(own) => clean::printable(own),
            None => clean::comm(&known.comm),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: i32, tid: i32, start_ns: u64, name: &str) -> TaskSnapshot {
        let mut process_comm = [0; 16];
        process_comm[..name.len()].copy_from_slice(name.as_bytes());
        TaskSnapshot { pid, tid, start_ns, process_comm, comm: process_comm, ..Default::default() }
    }

    fn names(rows: &[InstanceRow]) -> Vec<(u32, String)> {
        rows.iter().map(|r| (r.id, format!("{}#{}", r.comm, r.number))).collect()
    }

    #[test]
    fn threads_share_and_reused_pids_do_not() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        let first = identities.resolve(&task(10, 10, 500, "gzip"), 0, &mut rows).0;
        assert_eq!(identities.resolve(&task(10, 11, 500, "gzip"), 0, &mut rows).0, first);
        let reused = identities.resolve(&task(10, 10, 900, "gzip"), 0, &mut rows).0;
        assert_ne!(first, reused);
        assert_eq!(names(&rows), [(1, "gzip#0".into()), (2, "gzip#1".into())]);
    }

    #[test]
    fn a_runtime_names_threads_that_have_the_name_of_their_process() {
        let (mut threads, mut rows) = (ThreadNames::default(), Vec::new());
        let name: Arc<str> = "worker\n1".into();
        let (leader, thread) = (task(10, 10, 500, "python3"), task(10, 11, 500, "python3"));
        let mut renamed = thread;
        renamed.comm[..6].copy_from_slice(b"native");
        for (task, wanted) in [
            (leader, &[(10, "python3")][..]),
            (thread, &[(11, "python3"), (11, "worker\u{fffd}1")]),
            (thread, &[]),
            (renamed, &[(11, "native3")]),
        ] {
            rows.clear();
            threads.note(1, &task, &mut rows);
            threads.note_runtime_name(1, &task, &name, &mut rows);
            let found: Vec<(i32, &str)> = rows.iter().map(|row| (row.tid, row.comm.as_str())).collect();
            assert_eq!(found, wanted);
        }
        assert_eq!(threads.name(1, 11), "native3");
        threads.note_runtime_name(1, &task(10, 12, 500, "python3"), &name, &mut rows);
        assert_eq!(threads.name(1, 12), "", "a thread that is not known");
    }

    #[test]
    fn exec_renames_and_fork_makes_another() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        identities.resolve(&task(1, 1, 5, "sh"), 0, &mut rows);
        let child = identities.resolve(&task(2, 2, 9, "sh"), 0, &mut rows).0;
        assert_eq!(identities.resolve(&task(2, 2, 9, "gzip"), 0, &mut rows).0, child);
        identities.resolve(&task(3, 3, 12, "sh"), 0, &mut rows);
        let reported = [(1, "sh#0".into()), (2, "sh#1".into()), (2, "gzip#0".into()), (3, "sh#2".into())];
        assert_eq!(names(&rows), reported);
    }

    #[test]
    fn a_title_takes_the_place_of_the_command_line() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        let (backend, other) = (task(2, 2, 9, "postgres"), task(2, 2, 9, "sh"));
        let words = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        identities.retitle(&backend, &words("postgres"), &mut rows);
        assert!(rows.is_empty(), "not known yet");
        identities.resolve(&backend, 0, &mut rows);
        rows.clear();
        for line in ["postgres|-D|/data", "postgres: walwriter ||||", "postgres: walwriter |", "||"] {
            identities.retitle(&backend, &words(line), &mut rows);
        }
        identities.retitle(&other, &words("sh"), &mut rows);
        let reported: Vec<_> = rows.iter().map(|row| (row.id, row.command.as_deref())).collect();
        assert_eq!(reported, [(1, Some("postgres -D /data")), (1, Some("postgres: walwriter"))]);
    }

    #[test]
    fn user_code_is_new_once_under_each_name() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        let (before, after) = (task(2, 2, 9, "sh"), task(2, 2, 9, "gzip"));
        assert!(!identities.runs(&before), "not known yet");
        identities.resolve(&before, 0, &mut rows);
        assert!(identities.runs(&before) && !identities.runs(&before));
        identities.resolve(&after, 1, &mut rows);
        assert!(!identities.runs(&before), "an older sight says nothing of the new program");
        assert!(identities.runs(&after) && !identities.runs(&after));
    }

    #[test]
    fn an_older_sight_from_another_vcpu_brings_no_name_back() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        identities.resolve(&task(2, 2, 9, "gzip"), 200, &mut rows);
        identities.resolve(&task(2, 2, 9, "sh"), 150, &mut rows);
        identities.resolve(&task(2, 2, 9, "gzip"), 250, &mut rows);
        assert_eq!(names(&rows), [(1, "gzip#0".into())]);
    }

    #[test]
    fn many_lives_of_one_name_are_many_instances() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        for n in 0..200 {
            identities.resolve(
                &task(100 + n % 7, 100, u64::try_from(n).expect("positive"), "true"),
                0,
                &mut rows,
            );
        }
        let mut numbers: Vec<u32> = rows.iter().map(|r| r.number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn a_kernel_thread_becomes_a_program() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        let mut init = task(1, 1, 0, "init");
        init.kernel_thread = true;
        identities.resolve(&init, 0, &mut rows);
        init.kernel_thread = false;
        identities.resolve(&init, 0, &mut rows);
        let reported: Vec<_> = rows.iter().map(|r| (r.id, r.number, r.kernel_thread)).collect();
        assert_eq!(reported, [(1, 0, true), (1, 0, false)]);
    }

    #[test]
    fn a_fork_bomb_is_bounded_and_numbers_stay_unique() {
        let (mut identities, mut rows) = (InstanceTable::default(), Vec::new());
        let mut given = std::collections::HashSet::new();
        for n in 0..200_000_i32 {
            // A new name every time, so the names' counters fill up as well; the last names come twice.
            let name = format!("b{}", if n >= 150_000 { n / 2 * 2 } else { n });
            identities.resolve(&task(n, n, 1, &name), 0, &mut rows);
            let last = rows.last().expect("a row");
            assert!(given.insert((last.comm.clone(), last.number)), "{last:?}");
        }
        assert!(identities.known.len() <= REMEMBERED && identities.next_number.len() <= NAMES);
        rows.clear();
        identities.resolve(&task(199_999, 1, 1, "b199998"), 0, &mut rows);
        assert!(rows.is_empty(), "a recently seen instance is still known");
    }
}
