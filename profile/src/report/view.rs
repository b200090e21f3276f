//! The rows of a [`super::Breakdown`], from one pass over the samples.

use std::collections::HashMap;
use std::hash::Hash;

use super::code::{Code, EARLY_BOOT, Entry, Frame, Function, NONE, small};
use super::stacks::Stacks;
use super::sums::{Leaf, SampleContext, Sums, TaskActivity, ThreadKey};
use super::tables::{Instance, Tables, UNKNOWN};
use super::{By, Estimate, Row};
use crate::rows::Charged;
use crate::rows::{FrameKind, Mode};

/// Source of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub tables: &'a Tables,
    pub code: &'a Code,
    pub stacks: &'a Stacks,
    pub sums: &'a Sums,
}

/// Rows, and the estimate of samples that belong to none.
type Rows = (Vec<Row>, Estimate);

/// Identity of an address: address, true for a return address, file, instance, function.
type AddressKey = (u64, bool, Option<u32>, Option<u32>, u32);

/// Code of rows: an index per entry of [`Code::entries`], [`NONE`] for an entry that counts for no row.
struct Keys {
    slots: Vec<u32>,
    rows: Vec<Row>,
}

impl View<'_> {
    /// Estimates by the key of each context, and for contexts without a key.
    pub(super) fn by_context<K: Copy + Eq + Hash>(
        &self,
        key: impl Fn(&SampleContext) -> Option<K>,
    ) -> (Vec<(K, Estimate)>, Estimate) {
        let (keys, places) = grouped(&self.sums.contexts.list, key);
        let found = self
            .sums
            .tick_log
            .estimates(keys.len() + 1, |hit| std::slice::from_ref(&places[hit.context as usize]));
        with_last(keys, found)
    }

    /// Estimates by the key of each leaf.
    pub(super) fn by_leaf<K: Copy + Eq + Hash>(
        &self,
        key: impl Fn(&Leaf) -> Option<K>,
    ) -> (Vec<(K, Estimate)>, Estimate) {
        let (keys, places) = grouped(&self.sums.leaves.list, key);
        let found = self
            .sums
            .tick_log
            .estimates(keys.len() + 1, |hit| std::slice::from_ref(&places[hit.leaf as usize]));
        with_last(keys, found)
    }

    pub(super) fn code_rows(&self, by: By) -> Rows {
        let Keys { slots, rows } = match by {
            By::Instruction => self.instruction_keys(),
            By::Line => self.keys(|entry, function| match self.code.lines.get(entry.line as usize) {
                Some(at) => match at.line {
                    Some(line) => format!("{}:{line}", at.source),
                    None => at.source.clone(),
                },
                None => format!("[{}]", module_name(function)),
            }),
            By::Module => self.keys(|_, function| module_name(function).to_owned()),
            _ => self.keys(|_, function| function.symbol.clone()),
        };
        let (estimates, outside) = self.of_code(&slots, rows.len());
        let hit = rows.into_iter().zip(estimates).filter(|(_, (_, total))| total.samples > 0);
        (hit.map(|(row, (own, total))| Row { own, total, ..row }).collect(), outside)
    }

    /// Returns keys by name, module and kind.
    fn keys(&self, name: impl Fn(Entry, &Function) -> String) -> Keys {
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut ids: HashMap<(String, Option<String>, FrameKind), u32> = HashMap::new();
        let mut keys = Keys { slots: Vec::with_capacity(self.code.entries.len()), rows: Vec::new() };
        for &entry in &self.code.entries {
            let function = &self.code.functions[entry.function as usize];
            if function.kind == FrameKind::Reason {
                keys.slots.push(NONE);
                continue;
            }
            let key = *known.entry((entry.function, entry.line)).or_insert_with(|| {
                let name = name(entry, function);
                let rows = &mut keys.rows;
                *ids.entry((name.clone(), function.module.clone(), function.kind)).or_insert_with(|| {
                    let kind = Some(function.kind.name().to_owned());
                    rows.push(Row { name, kind, module: function.module.clone(), ..Row::default() });
                    small(rows.len() - 1)
                })
            });
            keys.slots.push(key);
        }
        keys
    }

    /// Returns one key per address: several rows of table `frame` may have one.
    fn instruction_keys(&self) -> Keys {
        let mut known: HashMap<AddressKey, u32> = HashMap::new();
        let mut keys = Keys { slots: vec![NONE; self.code.entries.len()], rows: Vec::new() };
        for frame in self.code.frames.iter().filter(|frame| frame.kind != FrameKind::Reason) {
            let slots = frame.slots();
            let own = self.code.entries[slots.end - 1].function;
            let key = (frame.address, frame.call, frame.file, frame.instance, own);
            keys.slots[slots.start] = *known.entry(key).or_insert_with(|| {
                keys.rows.push(self.instruction(frame, &self.code.functions[own as usize]));
                small(keys.rows.len() - 1)
            });
        }
        keys
    }

    fn instruction(&self, frame: &Frame, function: &Function) -> Row {
        let instance = frame.instance.and_then(|id| self.tables.instances.get(&id));
        let place = if frame.named {
            format!("{}+{:#x}", function.symbol, frame.offset)
        } else if matches!(function.symbol.as_str(), UNKNOWN | EARLY_BOOT) {
            function.symbol.clone()
        } else {
            format!("{:#x}", frame.address)
        };
        Row {
            name: if frame.call { format!("call before {place}") } else { place },
            kind: Some(function.kind.name().to_owned()),
            module: function.module.clone(),
            address: Some(format!("{:#x}", frame.address)),
            process: instance.map(Instance::name),
            pid: instance.map(|instance| instance.pid),
            ..Row::default()
        }
    }

    /// Estimates own samples and total of each key, and the samples without an own key. Each sample counts
    /// once for each key on its stack.
    fn of_code(&self, slots: &[u32], keys: usize) -> (Vec<(Estimate, Estimate)>, Estimate) {
        // Rows: the own ones, the total ones, those outside.
        let mut rows = RowLists::default();
        let mut seen = vec![0_usize; keys];
        for (turn, (leaf, _)) in self.sums.leaves.list.iter().enumerate() {
            let own = slots[self.code.frames[leaf.frame as usize].slots().start];
            rows.push(if (own as usize) < keys { own } else { small(2 * keys) });
            for frame in frames(self.stacks, leaf) {
                for &key in &slots[self.code.frames[frame as usize].slots()] {
                    let Some(seen) = seen.get_mut(key as usize) else { continue };
                    if *seen <= turn {
                        *seen = turn + 1;
                        rows.push(small(keys) + key);
                    }
                }
            }
            rows.end();
        }
        let mut own = self.sums.tick_log.estimates(2 * keys + 1, |hit| rows.of_leaf(hit.leaf));
        let outside = own.pop().unwrap_or_default();
        let total = own.split_off(keys);
        (own.into_iter().zip(total).collect(), outside)
    }

    pub(super) fn charged_rows(&self, by: By) -> Rows {
        let mut programs: HashMap<(&str, bool), u32> = HashMap::new();
        for instance in self.tables.instances.values() {
            let next = small(programs.len());
            programs.entry((&instance.comm, instance.kernel_thread)).or_insert(next);
        }
        let names: HashMap<u32, (&str, bool)> = programs.iter().map(|(&name, &id)| (id, name)).collect();
        let (found, outside) = self.by_context(|context| {
            let known = |id| self.tables.instances.get(&id);
            Some(match (context.thread.charged, by) {
                (Charged::Instance(id), By::Process) => known(id)
                    .and_then(|i| programs.get(&(i.comm.as_str(), i.kernel_thread)))
                    .map_or(OwnerKey::Other(Charged::Unknown), |&program| OwnerKey::Program(program)),
                (Charged::Instance(id), By::Cgroup) => {
                    let group =
                        known(id).and_then(|i| i.cgroup).filter(|id| self.tables.cgroups.contains_key(id));
                    OwnerKey::Cgroup(group)
                }
                (Charged::Instance(id), _) if known(id).is_some() => OwnerKey::Instance(id),
                (Charged::Instance(_), _) => OwnerKey::Other(Charged::Unknown),
                (other, _) => OwnerKey::Other(other),
            })
        });
        (both(found, |who| self.who(who, &names)), outside)
    }

    fn who(&self, who: OwnerKey, programs: &HashMap<u32, (&str, bool)>) -> Row {
        match who {
            OwnerKey::Program(id) => programs.get(&id).map_or_else(Row::default, |&(name, kernel_thread)| {
                Row { name: name.to_owned(), kind: task_kind(kernel_thread), ..Row::default() }
            }),
            OwnerKey::Instance(id) => {
                self.tables.instances.get(&id).map_or_else(Row::default, |instance| Row {
                    name: instance.name(),
                    kind: task_kind(instance.kernel_thread),
                    pid: Some(instance.pid),
                    command: instance.command.clone(),
                    ..Row::default()
                })
            }
            OwnerKey::Cgroup(id) => match id.and_then(|id| self.tables.cgroups.get(&id)) {
                Some(group) => Row {
                    name: group.path.clone(),
                    unit: group.unit.clone(),
                    container: group.container.clone(),
                    ..Row::default()
                },
                None => Row { name: "[not read]".to_owned(), ..Row::default() },
            },
            OwnerKey::Other(charged) => other(charged),
        }
    }

    pub(super) fn thread_rows(&self) -> Rows {
        let (found, outside) = self.by_context(|context| {
            let key = context.thread;
            let known =
                matches!(key.charged, Charged::Instance(id) if self.tables.instances.contains_key(&id));
            Some(match key.charged {
                Charged::Instance(_) if known => key,
                Charged::Instance(_) => ThreadKey { charged: Charged::Unknown, tid: None, work: NONE },
                charged => ThreadKey { charged, tid: None, work: NONE },
            })
        });
        (both(found, |key| self.thread(key)), outside)
    }

    fn thread(&self, key: ThreadKey) -> Row {
        let Charged::Instance(id) = key.charged else { return other(key.charged) };
        let Some(instance) = self.tables.instances.get(&id) else { return other(Charged::Unknown) };
        let own = key.tid.and_then(|tid| self.tables.threads.get(&(id, tid)));
        let mut name = own.unwrap_or(&instance.comm).clone();
        if let Some(work) = self.code.functions.get(key.work as usize) {
            name = format!("{name} ({})", work.symbol);
        }
        Row {
            name,
            kind: task_kind(instance.kernel_thread),
            process: Some(instance.name()),
            pid: Some(instance.pid),
            tid: key.tid,
            ..Row::default()
        }
    }

    pub(super) fn interrupt_rows(&self) -> Rows {
        let (found, outside) = self.by_context(|context| {
            let (mode, id) = context.interrupt()?;
            let kind = match mode {
                Mode::SoftIrq => "soft",
                Mode::Nmi => "nmi",
                _ => "hard",
            };
            let known = id.and_then(|id| self.tables.interrupts.get(&id));
            Some(known.map_or((kind, UNKNOWN), |(kind, name)| (kind.as_str(), name.as_str())))
        });
        let row = |(kind, name): (&str, &str)| Row {
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            ..Row::default()
        };
        (both(found, row), outside)
    }

    pub(super) fn syscall_rows(&self) -> Rows {
        let (found, outside) = self.by_context(SampleContext::activity);
        let row = |activity| {
            let (name, kind) = match activity {
                TaskActivity::User => ("[user]".to_owned(), "user"),
                TaskActivity::Kernel => ("[no system call]".to_owned(), "kernel"),
                TaskActivity::Syscall(number) => {
                    let name = self.tables.syscalls.get(&number).cloned();
                    (name.unwrap_or_else(|| format!("[system call {number}]")), "kernel")
                }
            };
            Row { name, kind: Some(kind.to_owned()), ..Row::default() }
        };
        (both(found, row), outside)
    }
}

/// Returns the distinct keys of these items, and for each item the index of its key: one past the end if it
/// has none.
fn grouped<T, K: Copy + Eq + Hash>(items: &[(T, u64)], key: impl Fn(&T) -> Option<K>) -> (Vec<K>, Vec<u32>) {
    let mut keys = Vec::new();
    let mut known: HashMap<K, u32> = HashMap::new();
    let mut place = |key| {
        *known.entry(key).or_insert_with(|| {
            keys.push(key);
            small(keys.len() - 1)
        })
    };
    let mut places: Vec<u32> = items.iter().map(|(item, _)| key(item).map_or(NONE, &mut place)).collect();
    let none = small(keys.len());
    places.iter_mut().filter(|place| **place == NONE).for_each(|place| *place = none);
    (keys, places)
}

/// Returns keys with their estimates, and the last estimate, which has no key.
fn with_last<K>(keys: Vec<K>, mut found: Vec<Estimate>) -> (Vec<(K, Estimate)>, Estimate) {
    let last = found.pop().unwrap_or_default();
    (keys.into_iter().zip(found).collect(), last)
}

/// Returns rows without callees, so that their own time is all.
fn both<K>(found: Vec<(K, Estimate)>, row: impl Fn(K) -> Row) -> Vec<Row> {
    found.into_iter().map(|(key, estimate)| Row { own: estimate, total: estimate, ..row(key) }).collect()
}

/// A list of rows for each leaf, in its order.
#[derive(Debug, Default)]
pub(super) struct RowLists {
    rows: Vec<u32>,
    ends: Vec<u32>,
}

impl RowLists {
    /// Adds a row to the list of the next leaf.
    pub(super) fn push(&mut self, row: u32) {
        self.rows.push(row);
    }

    /// Completes the list.
    pub(super) fn end(&mut self) {
        self.ends.push(small(self.rows.len()));
    }

    /// Returns the rows of a leaf.
    pub(super) fn of_leaf(&self, leaf: u32) -> &[u32] {
        let end = self.ends.get(leaf as usize).map_or(0, |end| *end as usize);
        let start =
            (leaf as usize).checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |end| *end as usize);
        self.rows.get(start..end).unwrap_or_default()
    }
}

/// Returns the frames of a sample, innermost first: its stack, preceded by its own frame if the stack begins
/// with another.
pub(super) fn frames(stacks: &Stacks, leaf: &Leaf) -> impl Iterator<Item = u32> {
    let innermost = stacks.get(leaf.stack).map_or(NONE, |node| node.frame);
    let hit = (innermost != leaf.frame).then_some(leaf.frame);
    hit.into_iter().chain(stacks.frames(leaf.stack))
}

/// Owner of time, by the kind of row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OwnerKey {
    /// By the index of its name.
    Program(u32),
    Instance(u32),
    Cgroup(Option<u32>),
    Other(Charged),
}

fn task_kind(kernel_thread: bool) -> Option<String> {
    Some(if kernel_thread { "kernel_thread" } else { "process" }.to_owned())
}

/// Returns the row of an owner that is not a process.
fn other(charged: Charged) -> Row {
    let kind = match charged {
        Charged::HardIrq | Charged::SoftIrq => "interrupt",
        Charged::Boot => "boot",
        Charged::Unknown | Charged::Instance(_) => "unknown",
    };
    Row { name: charged.name().to_owned(), kind: Some(kind.to_owned()), ..Row::default() }
}

fn module_name(function: &Function) -> &str {
    match (&function.module, function.kind) {
        (Some(module), _) => module,
        (None, FrameKind::User) => UNKNOWN,
        (None, _) => "kernel",
    }
}
