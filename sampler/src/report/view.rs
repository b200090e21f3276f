//! The rows of a [`super::Breakdown`], from the sums of one pass over the samples.

use std::collections::HashMap;

use super::code::{Code, EARLY_BOOT, Entry, Frame, Function, NONE, small};
use super::stacks::Stacks;
use super::sums::{Charged, Doing, Leaf, Sums, ThreadKey};
use super::tables::{Instance, Tables, UNKNOWN};
use super::{By, Estimate, Row};
use crate::batch::{FrameKind, Mode};

/// What rows are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub tables: &'a Tables,
    pub code: &'a Code,
    pub stacks: &'a Stacks,
    pub sums: &'a Sums,
}

/// Own and total samples.
type Counts = (u64, u64);

/// What makes an address another one: address, whether it is a return address, file, instance, function.
type AddressKey = (u64, bool, Option<u32>, Option<u32>, u32);

/// What code rows stand for: an index per entry of [`Code::entries`], [`NONE`] for what counts for no row.
struct Keys {
    slots: Vec<u32>,
    rows: Vec<Row>,
}

impl View<'_> {
    fn row(&self, row: Row, (own, total): Counts) -> Row {
        Row { own: Estimate::of(own, self.sums.busy), total: Estimate::of(total, self.sums.busy), ..row }
    }

    pub(super) fn code_rows(&self, by: By) -> Vec<Row> {
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
        let counts = self.count(&slots, rows.len());
        let hit = rows.into_iter().zip(counts).filter(|(_, (_, total))| *total > 0);
        hit.map(|(row, counts)| self.row(row, counts)).collect()
    }

    /// Keys by name, module and kind.
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

    /// One key per address: several rows of table `frame` may have one.
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

    /// Counts each sample once for each key on its stack, and for the innermost as its own.
    fn count(&self, slots: &[u32], keys: usize) -> Vec<Counts> {
        let mut counts = vec![(0, 0); keys];
        let mut seen = vec![0_usize; keys];
        for (turn, (leaf, &samples)) in self.sums.leaves.iter().enumerate() {
            let hit = self.code.frames[leaf.frame as usize].slots();
            if let Some(count) = counts.get_mut(slots[hit.start] as usize) {
                count.0 += samples;
            }
            for frame in frames(self.stacks, leaf) {
                for &key in &slots[self.code.frames[frame as usize].slots()] {
                    let Some(seen) = seen.get_mut(key as usize) else { continue };
                    if *seen <= turn {
                        *seen = turn + 1;
                        counts[key as usize].1 += samples;
                    }
                }
            }
        }
        counts
    }

    pub(super) fn charged_rows(&self, by: By) -> Vec<Row> {
        let mut counts: HashMap<Who, u64> = HashMap::new();
        for (&charged, charge) in &self.sums.charged {
            let known = |id| self.tables.instances.get(&id);
            let who = match (charged, by) {
                (Charged::Instance(id), By::Process) => known(id)
                    .map_or(Who::Other(Charged::Unknown), |i| Who::Program(i.comm.clone(), i.kernel_thread)),
                (Charged::Instance(id), By::Cgroup) => {
                    let group =
                        known(id).and_then(|i| i.cgroup).filter(|id| self.tables.cgroups.contains_key(id));
                    Who::Cgroup(group)
                }
                (Charged::Instance(id), _) if known(id).is_some() => Who::Instance(id),
                (Charged::Instance(_), _) => Who::Other(Charged::Unknown),
                (other, _) => Who::Other(other),
            };
            *counts.entry(who).or_default() += charge.all();
        }
        counts.into_iter().map(|(who, samples)| self.row(self.who(who), (samples, samples))).collect()
    }

    fn who(&self, who: Who) -> Row {
        match who {
            Who::Program(name, kernel_thread) => {
                Row { name, kind: task_kind(kernel_thread), ..Row::default() }
            }
            Who::Instance(id) => self.tables.instances.get(&id).map_or_else(Row::default, |instance| Row {
                name: instance.name(),
                kind: task_kind(instance.kernel_thread),
                pid: Some(instance.pid),
                ..Row::default()
            }),
            Who::Cgroup(id) => match id.and_then(|id| self.tables.cgroups.get(&id)) {
                Some(group) => Row {
                    name: group.path.clone(),
                    unit: group.unit.clone(),
                    container: group.container.clone(),
                    ..Row::default()
                },
                None => Row { name: "[not read]".to_owned(), ..Row::default() },
            },
            Who::Other(charged) => other(charged),
        }
    }

    pub(super) fn thread_rows(&self) -> Vec<Row> {
        let mut counts: HashMap<ThreadKey, u64> = HashMap::new();
        for (key, samples) in &self.sums.threads {
            let known =
                matches!(key.charged, Charged::Instance(id) if self.tables.instances.contains_key(&id));
            let key = match key.charged {
                Charged::Instance(_) if known => *key,
                Charged::Instance(_) => ThreadKey { charged: Charged::Unknown, tid: None, work: NONE },
                charged => ThreadKey { charged, tid: None, work: NONE },
            };
            *counts.entry(key).or_default() += samples;
        }
        counts.into_iter().map(|(key, samples)| self.row(self.thread(key), (samples, samples))).collect()
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

    pub(super) fn interrupt_rows(&self) -> Vec<Row> {
        let mut counts: HashMap<(String, String), u64> = HashMap::new();
        for (&(mode, id), samples) in &self.sums.interrupts {
            let kind = match mode {
                Mode::SoftIrq => "soft",
                Mode::Nmi => "nmi",
                _ => "hard",
            };
            let known = id.and_then(|id| self.tables.interrupts.get(&id)).cloned();
            let key = known.unwrap_or_else(|| (kind.to_owned(), UNKNOWN.to_owned()));
            *counts.entry(key).or_default() += samples;
        }
        let row = |((kind, name), samples)| {
            self.row(Row { name, kind: Some(kind), ..Row::default() }, (samples, samples))
        };
        counts.into_iter().map(row).collect()
    }

    pub(super) fn syscall_rows(&self) -> Vec<Row> {
        let row = |(&doing, &samples): (&Doing, &u64)| {
            let (name, kind) = match doing {
                Doing::User => ("[user]".to_owned(), "user"),
                Doing::Kernel => ("[no system call]".to_owned(), "kernel"),
                Doing::Syscall(number) => {
                    let name = self.tables.syscalls.get(&number).cloned();
                    (name.unwrap_or_else(|| format!("[system call {number}]")), "kernel")
                }
            };
            self.row(Row { name, kind: Some(kind.to_owned()), ..Row::default() }, (samples, samples))
        };
        self.sums.doing.iter().map(row).collect()
    }
}

/// The frames of a sample, innermost first: its stack, or what it hit where no stack tells of that.
pub(super) fn frames(stacks: &Stacks, leaf: &Leaf) -> impl Iterator<Item = u32> {
    let innermost = stacks.get(leaf.stack).map_or(NONE, |node| node.frame);
    let hit = (innermost != leaf.frame).then_some(leaf.frame);
    hit.into_iter().chain(stacks.frames(leaf.stack))
}

/// Who is charged, by what a row stands for.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Who {
    Program(String, bool),
    Instance(u32),
    Cgroup(Option<u32>),
    Other(Charged),
}

fn task_kind(kernel_thread: bool) -> Option<String> {
    Some(if kernel_thread { "kernel_thread" } else { "process" }.to_owned())
}

/// The row of what is charged to no process.
fn other(charged: Charged) -> Row {
    let (name, kind) = match charged {
        Charged::HardIrq => ("[hard interrupts]", "interrupt"),
        Charged::SoftIrq => ("[soft interrupts]", "interrupt"),
        Charged::Boot => (EARLY_BOOT, "boot"),
        Charged::Unknown | Charged::Instance(_) => (UNKNOWN, "unknown"),
    };
    Row { name: name.to_owned(), kind: Some(kind.to_owned()), ..Row::default() }
}

fn module_name(function: &Function) -> &str {
    match (&function.module, function.kind) {
        (Some(module), _) => module,
        (None, FrameKind::User) => UNKNOWN,
        (None, _) => "kernel",
    }
}
