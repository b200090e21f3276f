//! The rows of a [`super::Breakdown`], from one pass over the samples.

use std::collections::HashMap;
use std::hash::Hash;

use super::code::{Code, EARLY_BOOT, Entry, Frame, Function, NONE, module_name, small};
use super::number_map::NumberMap;
use super::stacks::Stacks;
use super::sums::{Leaf, SampleContext, Sums, TaskActivity, ThreadKey};
use super::tables::{Instance, Tables, UNKNOWN};
use super::tick_log::TickLog;
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

/// Rows by one key, without estimates, and the row of each entry of [`Code::entries`], or for a key that is
/// not code of each context. The index of an item that counts for no row is outside of `rows`.
struct RowKeys {
    slots: Vec<u32>,
    rows: Vec<Row>,
}

/// Rows by several keys together.
struct JoinedKeys {
    /// As in [`RowKeys`]. An item that counts for no row of some key counts for none.
    slots: Vec<u32>,
    /// Row of each key.
    rows: Vec<Vec<u32>>,
}

impl JoinedKeys {
    fn new<'a>(keys: impl Iterator<Item = &'a RowKeys>) -> Self {
        let keys: Vec<&RowKeys> = keys.collect();
        let mut joined = Self { slots: Vec::new(), rows: Vec::new() };
        let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
        for item in 0..keys.first().map_or(0, |first| first.slots.len()) {
            let members: Vec<u32> = keys.iter().map(|key| key.slots[item]).collect();
            let is_row = keys.iter().zip(&members).all(|(key, row)| (*row as usize) < key.rows.len());
            joined.slots.push(match is_row {
                true => *known.entry(members).or_insert_with_key(|members| {
                    joined.rows.push(members.clone());
                    small(joined.rows.len() - 1)
                }),
                false => NONE,
            });
        }
        joined
    }
}

/// Combines the positions of keys with their rows.
fn named(positions: &[usize], rows: &[u32]) -> Vec<(usize, u32)> {
    positions.iter().copied().zip(rows.iter().copied()).collect()
}

/// A row by its owner and its code, with the estimates of its own samples and of its total.
type PairRow = ((u32, u32), Estimate, Estimate);

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
        self.leaf_estimates(&self.sums.tick_log, key)
    }

    /// Estimates by the key of each leaf with its stack, from samples with stacks.
    pub(super) fn by_stack<K: Copy + Eq + Hash>(
        &self,
        key: impl Fn(&Leaf) -> Option<K>,
    ) -> (Vec<(K, Estimate)>, Estimate) {
        self.leaf_estimates(self.sums.stack_log(), |leaf| key(leaf).filter(|_| !leaf.flat))
    }

    fn leaf_estimates<K: Copy + Eq + Hash>(
        &self,
        log: &TickLog,
        key: impl Fn(&Leaf) -> Option<K>,
    ) -> (Vec<(K, Estimate)>, Estimate) {
        let (keys, places) = grouped(&self.sums.leaves.list, key);
        let found = log.estimates(keys.len() + 1, |hit| std::slice::from_ref(&places[hit.leaf as usize]));
        with_last(keys, found)
    }

    /// Returns one row for each combination of these keys that a sample hit, or that is on a stack.
    pub(super) fn rows(&self, keys: &[By]) -> Rows {
        let (code, contexts): (Vec<usize>, Vec<usize>) =
            (0..keys.len()).partition(|position| keys[*position].is_code());
        let log =
            if keys.iter().any(|by| by.needs_stacks()) { self.sums.stack_log() } else { &self.sums.tick_log };
        let keys: Vec<RowKeys> = keys.iter().map(|by| self.row_keys(*by)).collect();
        let at = |positions: &[usize]| JoinedKeys::new(positions.iter().map(|position| &keys[*position]));
        let joined = |members: &[(usize, u32)]| {
            let mut members = members.to_vec();
            members.sort_unstable();
            Row::joined(members.iter().map(|(position, row)| &keys[*position].rows[*row as usize]))
        };
        match (code.is_empty(), contexts.is_empty()) {
            (true, _) => {
                let owners = at(&contexts);
                let (estimates, outside) = self.of_contexts(&owners.slots, owners.rows.len(), log);
                let hit = owners.rows.iter().zip(estimates).filter(|(_, own)| own.samples > 0);
                let rows =
                    hit.map(|(members, own)| Row { own, total: own, ..joined(&named(&contexts, members)) });
                (rows.collect(), outside)
            }
            (false, true) => {
                let functions = at(&code);
                let (estimates, outside) = self.of_code(&functions.slots, functions.rows.len());
                let is_hit = |(own, total): &(Estimate, Estimate)| own.samples > 0 || total.samples > 0;
                let hit = functions.rows.iter().zip(estimates).filter(|(_, both)| is_hit(both));
                let row = |(members, (own, total)): (&Vec<u32>, _)| Row {
                    own,
                    total,
                    ..joined(&named(&code, members))
                };
                (hit.map(row).collect(), outside)
            }
            (false, false) => {
                let (owners, functions) = (at(&contexts), at(&code));
                let (pairs, outside) = self.of_pairs(&owners, &functions, log);
                let row = |((owner, function), own, total): ((u32, u32), Estimate, Estimate)| {
                    let mut members = named(&contexts, &owners.rows[owner as usize]);
                    members.extend(named(&code, &functions.rows[function as usize]));
                    Row { own, total, ..joined(&members) }
                };
                (pairs.into_iter().map(row).collect(), outside)
            }
        }
    }

    /// Returns the rows by one key.
    fn row_keys(&self, by: By) -> RowKeys {
        match by {
            By::Function => self.code_keys(|_, function| function.symbol.clone()),
            By::Instruction => self.instruction_keys(),
            By::Line => self.code_keys(|entry, function| match self.code.lines.get(entry.line as usize) {
                Some(at) => match at.line {
                    Some(line) => format!("{}:{line}", at.source),
                    None => at.source.clone(),
                },
                None => format!("[{}]", module_name(function)),
            }),
            By::Module => self.code_keys(|_, function| module_name(function).to_owned()),
            By::Process | By::Instance | By::Cgroup => self.charged_keys(by),
            By::Thread => self.thread_keys(),
            By::Irq => self.interrupt_keys(),
            By::Syscall => self.syscall_keys(),
            By::Vm => self.vm_keys(),
            By::Host => self.host_keys(),
        }
    }

    /// Returns keys by name, module and kind.
    fn code_keys(&self, name: impl Fn(Entry, &Function) -> String) -> RowKeys {
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut ids: HashMap<(String, Option<String>, FrameKind), u32> = HashMap::new();
        let mut keys = RowKeys { slots: Vec::with_capacity(self.code.entries.len()), rows: Vec::new() };
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
    fn instruction_keys(&self) -> RowKeys {
        let mut known: HashMap<AddressKey, u32> = HashMap::new();
        let mut keys = RowKeys { slots: vec![NONE; self.code.entries.len()], rows: Vec::new() };
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
            process: instance.map(|instance| self.tables.instance_name(instance)),
            pid: instance.map(|instance| instance.pid),
            ..Row::default()
        }
    }

    /// Estimates own samples and total of each key, and the samples without an own key. Each sample with a
    /// stack counts once for each key on it.
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
        let estimates = |log: &TickLog| log.estimates(2 * keys + 1, |hit| rows.get(hit.leaf));
        let mut own = estimates(&self.sums.tick_log);
        let outside = own.pop().unwrap_or_default();
        let mut total = own.split_off(keys);
        if self.sums.has_flat() {
            total = estimates(self.sums.stack_log()).split_off(keys);
        }
        (own.into_iter().zip(total).collect(), outside)
    }

    /// Estimates each row of contexts, and the samples of none.
    fn of_contexts(&self, slots: &[u32], rows: usize, log: &TickLog) -> (Vec<Estimate>, Estimate) {
        let places: Vec<u32> = slots.iter().map(|slot| (*slot).min(small(rows))).collect();
        let none = [small(rows)];
        let place = |context: u32| places.get(context as usize).map_or(&none[..], std::slice::from_ref);
        let mut found = log.estimates(rows + 1, |hit| place(hit.context));
        let outside = found.pop().unwrap_or_default();
        (found, outside)
    }

    /// Estimates own samples and total of each pair of an owner and code, and the samples without an own
    /// pair. Each sample counts once for each pair of its owner with code on its stack.
    fn of_pairs(&self, owners: &JoinedKeys, code: &JoinedKeys, log: &TickLog) -> (Vec<PairRow>, Estimate) {
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let mut known: NumberMap<(u32, u32), u32> = NumberMap::default();
        // Row 0 is the samples outside; of the rows of each pair the first is its own one, then its total.
        let mut row = |pair| {
            let number = *known.entry(pair).or_insert_with(|| {
                pairs.push(pair);
                small(pairs.len() - 1)
            });
            1 + 2 * number
        };
        let mut lists = RowLists::default();
        let mut places: NumberMap<(u32, u32), u32> = NumberMap::default();
        let mut seen = vec![0_usize; code.rows.len()];
        for hit in log.hits() {
            if places.contains_key(&hit) {
                continue;
            }
            let turn = places.len();
            places.insert(hit, small(turn));
            let (leaf, _) = &self.sums.leaves.list[hit.0 as usize];
            let owner = owners.slots[hit.1 as usize];
            let own = code.slots[self.code.frames[leaf.frame as usize].slots().start];
            let has_owner = (owner as usize) < owners.rows.len();
            let is_row = has_owner && (own as usize) < code.rows.len();
            lists.push(if is_row { row((owner, own)) } else { 0 });
            for frame in frames(self.stacks, leaf).filter(|_| has_owner) {
                for &key in &code.slots[self.code.frames[frame as usize].slots()] {
                    let Some(seen) = seen.get_mut(key as usize) else { continue };
                    if *seen <= turn {
                        *seen = turn + 1;
                        lists.push(row((owner, key)) + 1);
                    }
                }
            }
            lists.end();
        }
        let list = |leaf, context| places.get(&(leaf, context)).map_or(&[][..], |turn| lists.get(*turn));
        let estimates = |log: &TickLog| log.estimates(1 + 2 * pairs.len(), |hit| list(hit.leaf, hit.context));
        let own = estimates(log);
        let total = self.sums.has_flat().then(|| estimates(self.sums.stack_log()));
        let total = total.as_ref().unwrap_or(&own);
        let at = |list: &[Estimate], place: usize| list.get(place).copied().unwrap_or_default();
        let row = |(number, pair): (usize, &(u32, u32))| {
            (*pair, at(&own, 1 + 2 * number), at(total, 2 + 2 * number))
        };
        (pairs.iter().enumerate().map(row).collect(), at(&own, 0))
    }

    /// Returns one row per program, as [`Self::rows`] does.
    pub(super) fn program_rows(&self) -> Vec<Row> {
        self.rows(&[By::Process]).0
    }

    /// Returns the rows of a key of contexts.
    fn context_keys<K: Copy + Eq + Hash>(
        &self,
        key: impl Fn(&SampleContext) -> Option<K>,
        row: impl Fn(K) -> Row,
    ) -> RowKeys {
        let (keys, slots) = grouped(&self.sums.contexts.list, key);
        RowKeys { slots, rows: keys.into_iter().map(row).collect() }
    }

    fn charged_keys(&self, by: By) -> RowKeys {
        let mut programs: HashMap<(&str, bool), u32> = HashMap::new();
        for instance in self.tables.instances.values() {
            let next = small(programs.len());
            programs.entry((&instance.comm, instance.kernel_thread)).or_insert(next);
        }
        let names: HashMap<u32, (&str, bool)> = programs.iter().map(|(&name, &id)| (id, name)).collect();
        let key = |context: &SampleContext| {
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
        };
        self.context_keys(key, |who| self.who(who, &names))
    }

    fn who(&self, who: OwnerKey, programs: &HashMap<u32, (&str, bool)>) -> Row {
        match who {
            OwnerKey::Program(id) => programs.get(&id).map_or_else(Row::default, |&(name, kernel_thread)| {
                Row { name: name.to_owned(), kind: task_kind(kernel_thread), ..Row::default() }
            }),
            OwnerKey::Instance(id) => {
                self.tables.instances.get(&id).map_or_else(Row::default, |instance| Row {
                    name: self.tables.instance_name(instance),
                    kind: task_kind(instance.kernel_thread),
                    pid: Some(instance.pid),
                    command: instance.command.clone(),
                    ..self.vm_row(instance)
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

    fn thread_keys(&self) -> RowKeys {
        let has_flat = self.sums.has_flat();
        let key = |context: &SampleContext| {
            // The stack shows the work.
            let work = if has_flat { NONE } else { context.thread.work };
            let key = ThreadKey { work, ..context.thread };
            let known =
                matches!(key.charged, Charged::Instance(id) if self.tables.instances.contains_key(&id));
            Some(match key.charged {
                Charged::Instance(_) if known => key,
                Charged::Instance(_) => ThreadKey { charged: Charged::Unknown, tid: None, work: NONE },
                charged => ThreadKey { charged, tid: None, work: NONE },
            })
        };
        self.context_keys(key, |key| self.thread(key))
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
            process: Some(self.tables.instance_name(instance)),
            pid: Some(instance.pid),
            tid: key.tid,
            ..self.vm_row(instance)
        }
    }

    /// Returns a row with the virtual machine of a process only.
    fn vm_row(&self, instance: &Instance) -> Row {
        let vm = instance.vm.and_then(|id| self.tables.vms.get(&id));
        Row { vm: vm.map(|vm| vm.name.clone()), host: vm.and_then(|vm| vm.host.clone()), ..Row::default() }
    }

    /// Returns virtual machines: runs of one name on one host are of one.
    fn vm_keys(&self) -> RowKeys {
        let key = |context: &SampleContext| {
            let vm = self.tables.vms.get(&context.vm?)?;
            Some((vm.name.as_str(), vm.host.as_deref()))
        };
        let row = |(name, host): (&str, Option<&str>)| Row {
            name: name.to_owned(),
            vm: Some(name.to_owned()),
            host: host.map(str::to_owned),
            ..Row::default()
        };
        self.context_keys(key, row)
    }

    fn host_keys(&self) -> RowKeys {
        let key = |context: &SampleContext| Some(self.tables.vms.get(&context.vm?)?.host());
        let row = |name: &str| Row { name: name.to_owned(), host: Some(name.to_owned()), ..Row::default() };
        self.context_keys(key, row)
    }

    fn interrupt_keys(&self) -> RowKeys {
        let key = |context: &SampleContext| {
            let (mode, id) = context.interrupt()?;
            let kind = match mode {
                Mode::SoftIrq => "soft",
                Mode::Nmi => "nmi",
                _ => "hard",
            };
            let known = id.and_then(|id| self.tables.interrupts.get(&id));
            Some(known.map_or((kind, UNKNOWN), |(kind, name)| (kind.as_str(), name.as_str())))
        };
        let row = |(kind, name): (&str, &str)| Row {
            name: name.to_owned(),
            kind: Some(kind.to_owned()),
            ..Row::default()
        };
        self.context_keys(key, row)
    }

    fn syscall_keys(&self) -> RowKeys {
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
        self.context_keys(SampleContext::activity, row)
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

/// A list of rows for each leaf, or each other item, in its order.
#[derive(Debug, Default)]
pub(super) struct RowLists {
    rows: Vec<u32>,
    ends: Vec<u32>,
}

impl RowLists {
    /// Adds a row to the list of the next item.
    pub(super) fn push(&mut self, row: u32) {
        self.rows.push(row);
    }

    /// Completes the list.
    pub(super) fn end(&mut self) {
        self.ends.push(small(self.rows.len()));
    }

    /// Returns the rows of an item.
    pub(super) fn get(&self, item: u32) -> &[u32] {
        let end = self.ends.get(item as usize).map_or(0, |end| *end as usize);
        let start =
            (item as usize).checked_sub(1).and_then(|at| self.ends.get(at)).map_or(0, |end| *end as usize);
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
