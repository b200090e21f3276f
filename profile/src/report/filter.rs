//! Part of a profile that is reported, and order of its rows.

use std::collections::{BTreeSet, HashSet};
use std::str::FromStr;

use rusqlite::Params;
use serde::{Deserialize, Serialize};

use super::code::{Code, Function, matches, module_name};
use super::stacks::{Stacks, has};
use super::subtree::subtree;
use super::sums::Sample;
use super::tables::{Instance, Tables, VcpuTotals, Vm};
use super::{MOST_MODULES, ReportError};
use crate::numbers::seconds;
use crate::rows::{Charged, FrameKind, Mode};
use crate::store::Profile;
use display::clean::printable;
use display::message::UnknownName;
use display::suggest::suggest;

/// The part of a profile that is reported. A condition that is absent restricts nothing; all conditions have
/// to hold.
///
/// The vCPU, the virtual machine, the host and the time choose the samples that shares refer to. All other
/// conditions restrict the rows of a report; their shares still refer to all samples of the vCPUs and time
/// that are not idle, unless they are `relative`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Only these processes: program names (all their instances; `*` stands for any characters), pids,
    /// `name#number`, or `machine/name#number` in a merged profile. Empty for all.
    pub process: Vec<String>,
    /// Only a process and its descendants: as for `process`, or `command` for the run's own (`vprof run IMAGE
    /// -- CMD`).
    pub tree: Option<String>,
    /// Only this instance of a process: `name#number`, or `machine/name#number` in a merged profile.
    pub instance: Option<String>,
    /// Only processes whose control group's path has this part.
    pub cgroup: Option<String>,
    /// Only this thread: its name, or its thread id.
    pub thread: Option<String>,
    /// Only samples with this function on their stack.
    pub symbol: Option<String>,
    /// Only samples that hit code of this module: `kernel` for the kernel image, a kernel module, or the file
    /// name of user code (`*` stands for any characters). With `symbol`, only those with that function of
    /// this module on their stack.
    pub module: Option<String>,
    /// Only these modes; empty for all.
    pub modes: Vec<ModeGroup>,
    /// Only the vCPU of this number, of each virtual machine.
    pub vcpu: Option<u16>,
    /// Only virtual machines of this name in a merged profile (`*` stands for any characters).
    pub vm: Option<String>,
    /// Only virtual machines of hosts of this name in a merged profile (`*` stands for any characters).
    pub host: Option<String>,
    /// Only samples at or after this time since the run's start, ns.
    pub from_ns: Option<u64>,
    /// Only samples before this time since the run's start, ns.
    pub to_ns: Option<u64>,
    /// Shares are of the chosen samples, and not of all of the vCPU and time that are not idle.
    pub relative: bool,
    /// Stacks have the frames of a language's runtime, and not those of the functions that it interprets.
    pub native: bool,
}

/// Condition of SQL on the columns `vcpu` and `time_ns`, with the parameters of [`Filter::vcpu_and_time`].
pub(super) const VCPU_AND_TIME: &str = "(?1 IS NULL OR vcpu IN (SELECT value FROM json_each(?1))) \
     AND (?2 IS NULL OR time_ns >= ?2) AND (?3 IS NULL OR time_ns < ?3)";

/// Condition of SQL on the column `time_ns`, with the parameters of [`Filter::time`].
pub(super) const TIME: &str = "(?1 IS NULL OR time_ns >= ?1) AND (?2 IS NULL OR time_ns < ?2)";

impl Filter {
    /// Returns the parameters of [`VCPU_AND_TIME`].
    pub(super) fn vcpu_and_time(&self, tables: &Tables) -> impl Params {
        let (from_ns, to_ns) = self.bounds();
        (self.vcpus(tables), from_ns, to_ns)
    }

    /// Returns the row ids of the chosen vCPUs as a list of JSON; `None` for all.
    fn vcpus(&self, tables: &Tables) -> Option<String> {
        (self.vcpu.is_some() || self.vm.is_some() || self.host.is_some()).then(|| {
            let chosen = tables.vcpus.iter().filter(|vcpu| self.chooses_vcpu(vcpu, tables));
            let ids: Vec<String> = chosen.map(|vcpu| vcpu.id.to_string()).collect();
            format!("[{}]", ids.join(","))
        })
    }

    /// True if a vCPU is chosen by its number, its virtual machine and its host.
    pub(super) fn chooses_vcpu(&self, vcpu: &VcpuTotals, tables: &Tables) -> bool {
        self.vcpu.is_none_or(|number| number == vcpu.number)
            && (self.vm.is_none() && self.host.is_none()
                || vcpu.vm.and_then(|id| tables.vms.get(&id)).is_some_and(|vm| self.chooses_vm(vm)))
    }

    fn chooses_vm(&self, vm: &Vm) -> bool {
        self.vm.as_ref().is_none_or(|wanted| is_called(&vm.name, wanted))
            && self.host.as_ref().is_none_or(|wanted| is_called(vm.host(), wanted))
    }

    /// Returns the parameters of [`TIME`].
    pub(super) fn time(&self) -> impl Params {
        self.bounds()
    }

    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let bound = |time: Option<u64>| time.map(|time| i64::try_from(time).unwrap_or(i64::MAX));
        (bound(self.from_ns), bound(self.to_ns))
    }

    /// True if at most vCPUs, virtual machines, hosts and the time are chosen.
    pub fn is_of_all(&self) -> bool {
        let Self { relative, native, .. } = *self;
        *self == Self { relative, native, ..self.of_time() }
    }

    /// Returns the part of the filter that chooses the samples which shares refer to.
    pub(super) fn of_time(&self) -> Self {
        let Self { vcpu, from_ns, to_ns, .. } = *self;
        let (vm, host) = (self.vm.clone(), self.host.clone());
        Self { vcpu, vm, host, from_ns, to_ns, ..Self::default() }
    }
}

/// Groups of modes for the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModeGroup {
    /// User code.
    User,
    /// Kernel code outside of interrupts, early boot included.
    Kernel,
    /// Hard interrupts, soft interrupts and NMIs.
    Irq,
    /// Hard interrupts and NMIs.
    HardIrq,
    /// Soft interrupts.
    SoftIrq,
}

impl ModeGroup {
    fn has(self, mode: Mode) -> bool {
        match mode {
            Mode::User => self == Self::User,
            Mode::Kernel | Mode::Boot | Mode::Unknown => self == Self::Kernel,
            Mode::HardIrq | Mode::Nmi => matches!(self, Self::Irq | Self::HardIrq),
            Mode::SoftIrq => matches!(self, Self::Irq | Self::SoftIrq),
            Mode::Idle => false,
        }
    }
}

/// Meaning of a [`Filter`] in one profile.
#[derive(Debug, Default)]
pub(super) struct Selection {
    instances: Option<HashSet<u32>>,
    threads: Option<HashSet<(u32, i32)>>,
    modes: Vec<ModeGroup>,
    symbol: Option<OnStack>,
    /// By index of a frame: true for one of the chosen module.
    module: Option<Vec<bool>>,
}

/// Stacks with a function: by index of the stack, and of the frame for samples without a stack.
#[derive(Debug)]
struct OnStack {
    stacks: Vec<bool>,
    frames: Vec<bool>,
}

impl Selection {
    /// Finds what the filter names.
    ///
    /// # Errors
    /// The filter names something that the profile does not have.
    pub(super) fn new(
        filter: &Filter,
        profile: &Profile,
        tables: &Tables,
        code: &Code,
        stacks: &Stacks,
    ) -> Result<Self, ReportError> {
        let mut selection = Self::of_tasks(filter, profile, tables)?;
        selection.modes.clone_from(&filter.modes);
        if let Some(wanted) = &filter.symbol {
            let functions = functions(code, wanted, filter.module.as_deref())?;
            let frames =
                (0..code.frames.len()).map(|n| has(code, super::code::small(n), &functions)).collect();
            selection.symbol = Some(OnStack { stacks: stacks.with(code, &functions), frames });
        } else if let Some(wanted) = &filter.module {
            let is_wanted = |n| is_module(code.innermost(super::code::small(n)), wanted);
            let frames: Vec<bool> = (0..code.frames.len()).map(is_wanted).collect();
            if !frames.contains(&true) {
                return Err(no_such_module(wanted, code));
            }
            selection.module = Some(frames);
        }
        Ok(selection)
    }

    /// Finds the tasks that the filter names, by process, instance, control group and thread; the other
    /// conditions do not choose tasks.
    ///
    /// # Errors
    /// The filter names something that the profile does not have.
    pub(super) fn of_tasks(filter: &Filter, profile: &Profile, tables: &Tables) -> Result<Self, ReportError> {
        check(filter, tables)?;
        let mut selection = Self::default();
        if !filter.process.is_empty() {
            let names = || tables.instances.values().map(|i| i.comm.as_str()).collect();
            let mut found = HashSet::new();
            for wanted in &filter.process {
                let called = |name: &str| {
                    instances(tables, |i| {
                        is_process((&i.comm, i.pid, i.number), name) || tables.instance_name(i) == name
                    })
                };
                let own = called(wanted);
                // A name may have a comma, so the option takes no list.
                if own.is_empty() && wanted.split(',').any(|one| !called(one).is_empty()) {
                    let advice = "give each name its own --process".to_owned();
                    return Err(ReportError::NoSuch { what: "process", wanted: printable(wanted), advice });
                }
                if own.is_empty() {
                    return Err(no_such("process", wanted, names(), "--by process"));
                }
                found.extend(own);
            }
            selection.instances = Some(found);
        }
        if let Some(wanted) = &filter.tree {
            let names = || tables.instances.values().map(|i| i.comm.as_str()).collect();
            selection
                .narrow(subtree(tables, wanted), || no_such("process", wanted, names(), "--by process"))?;
        }
        if let Some(wanted) = &filter.instance {
            let found = instances(tables, |i| {
                is_numbered((&i.comm, i.number), wanted) || tables.instance_name(i) == *wanted
            });
            let names: Vec<String> = tables.instances.values().map(|i| tables.instance_name(i)).collect();
            let names = || names.iter().map(String::as_str).collect();
            selection.narrow(found, || no_such("instance", wanted, names(), "--by instance"))?;
        }
        if let Some(wanted) = &filter.cgroup {
            let belongs =
                |id: &u32| tables.cgroup_of(*id).is_some_and(|group| group.path.contains(wanted.as_str()));
            let found = tables.instances.keys().copied().filter(belongs).collect();
            let names = || tables.cgroups.values().map(|group| group.path.as_str()).collect();
            selection.narrow(found, || no_such("control group", wanted, names(), "--by cgroup"))?;
        }
        if let Some(wanted) = &filter.thread {
            selection.threads = Some(threads(profile, tables, wanted)?);
        }
        Ok(selection)
    }

    /// True if the task, by instance row id and thread id, is chosen.
    pub(super) fn has_task(&self, (instance, tid): (u32, i32)) -> bool {
        self.instances.as_ref().is_none_or(|ids| ids.contains(&instance))
            && self.threads.as_ref().is_none_or(|ids| ids.contains(&(instance, tid)))
    }

    /// Returns true if no task is left out.
    pub(super) fn has_all_tasks(&self) -> bool {
        self.instances.is_none() && self.threads.is_none()
    }

    /// Keeps the instances that are in `found`, too.
    fn narrow(&mut self, found: HashSet<u32>, none: impl FnOnce() -> ReportError) -> Result<(), ReportError> {
        if found.is_empty() {
            return Err(none());
        }
        self.instances = Some(match self.instances.take() {
            Some(earlier) => earlier.intersection(&found).copied().collect(),
            None => found,
        });
        Ok(())
    }

    /// Returns true if only a sample's stack shows whether it is chosen.
    pub(super) fn needs_stacks(&self) -> bool {
        self.symbol.is_some()
    }

    /// True if a sample with this owner is chosen.
    pub(super) fn chooses(&self, charged: Charged, sample: &Sample) -> bool {
        let Self { instances, threads, modes, symbol, module } = self;
        let instance = match charged {
            Charged::Instance(id) => Some(id),
            _ => None,
        };
        let at = |list: &[bool], place: u32| list.get(place as usize).copied().unwrap_or(false);
        (modes.is_empty() || modes.iter().any(|group| group.has(sample.mode)))
            && instances.as_ref().is_none_or(|ids| instance.is_some_and(|id| ids.contains(&id)))
            && threads
                .as_ref()
                .is_none_or(|ids| instance.zip(sample.tid).is_some_and(|thread| ids.contains(&thread)))
            && symbol.as_ref().is_none_or(|on| at(&on.stacks, sample.stack) || at(&on.frames, sample.frame))
            && module.as_ref().is_none_or(|frames| at(frames, sample.frame))
    }
}

fn instances(tables: &Tables, is: impl Fn(&Instance) -> bool) -> HashSet<u32> {
    tables.instances.iter().filter(|(_, instance)| is(instance)).map(|(&id, _)| id).collect()
}

fn is_numbered((comm, number): (&str, u32), wanted: &str) -> bool {
    let numbered = wanted.rsplit_once('#').and_then(|(comm, n)| Some((comm, n.parse::<u32>().ok()?)));
    numbered == Some((comm, number))
}

/// True if `wanted` is the name of the process, a pattern of it, its id, or its name with its instance
/// number.
pub(crate) fn is_process((comm, pid, number): (&str, i32, u32), wanted: &str) -> bool {
    comm == wanted
        || wanted.parse() == Ok(pid)
        || is_numbered((comm, number), wanted)
        || is_pattern_of(wanted, comm)
}

/// Returns true if `wanted` is the name, or a pattern of it: `*` stands for any characters.
pub fn is_called(name: &str, wanted: &str) -> bool {
    name == wanted || is_pattern_of(wanted, name)
}

/// True if `pattern` has a `*`, and is `name` with each `*` instead of any characters.
fn is_pattern_of(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return false };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(place) => name = &name[place + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

/// Returns threads by name, or by thread id, named or not.
fn threads(profile: &Profile, tables: &Tables, wanted: &str) -> Result<HashSet<(u32, i32)>, ReportError> {
    let mut found: HashSet<(u32, i32)> =
        tables.threads.iter().filter(|(_, comm)| *comm == wanted).map(|(&key, _)| key).collect();
    if let Ok(tid) = wanted.parse::<i32>() {
        let sql = "SELECT DISTINCT instance FROM sample WHERE tid = ? AND instance IS NOT NULL";
        let ids = profile
            .connection()
            .prepare(sql)
            .and_then(|mut sql| sql.query_map([tid], |row| row.get(0))?.collect::<Result<Vec<u32>, _>>());
        let ids = ids.map_err(|error| profile.error(&error))?;
        found.extend(ids.into_iter().map(|instance| (instance, tid)));
        found.extend(tables.threads.keys().filter(|(_, known)| *known == tid));
    }
    if found.is_empty() {
        let names = tables.threads.values().map(String::as_str).collect();
        return Err(no_such("thread", wanted, names, "--by thread"));
    }
    Ok(found)
}

/// Checks that the profile has the chosen vCPUs.
pub(super) fn check_vcpus(filter: &Filter, tables: &Tables) -> Result<(), ReportError> {
    let names = |of: fn(&Vm) -> &str| tables.vms.values().map(of).collect();
    let has = |filter: &Filter| tables.vms.values().any(|vm| filter.chooses_vm(vm));
    match (&filter.vm, &filter.host) {
        (None, None) => {}
        _ if tables.vms.is_empty() => return Err(ReportError::NotMerged),
        (_, Some(host)) if !has(&Filter { host: filter.host.clone(), ..Filter::default() }) => {
            return Err(no_such("host", host, names(Vm::host), "--by host"));
        }
        (Some(vm), _) if !has(filter) => {
            return Err(no_such("virtual machine", vm, names(|vm| &vm.name), "--by vm"));
        }
        _ => {}
    }
    let Some(vcpu) = filter.vcpu else { return Ok(()) };
    let any = Filter { vcpu: None, ..filter.of_time() };
    let known: Vec<u16> =
        tables.vcpus.iter().filter(|row| any.chooses_vcpu(row, tables)).map(|row| row.number).collect();
    let count = known.iter().max().map_or(0, |last| usize::from(*last) + 1);
    if known.contains(&vcpu) { Ok(()) } else { Err(ReportError::NoSuchVcpu { vcpu, count }) }
}

fn check(filter: &Filter, tables: &Tables) -> Result<(), ReportError> {
    check_vcpus(filter, tables)?;
    let duration_s = tables.duration_s();
    if filter.from_ns.is_some_and(|from| seconds(from) > duration_s) {
        return Err(ReportError::AfterEnd(duration_s));
    }
    match (filter.from_ns, filter.to_ns) {
        (from, Some(to)) if to <= from.unwrap_or(0) => Err(ReportError::EmptyRange),
        _ => Ok(()),
    }
}

/// Returns the error for a name that does not exist: with the nearest names, or the command that lists them.
pub(crate) fn no_such(what: &'static str, wanted: &str, names: Vec<&str>, list: &str) -> ReportError {
    let near = suggest(wanted, names.into_iter());
    let advice = if near.is_empty() {
        format!("`vprof report FILE {list}` lists them")
    } else {
        format!("near are {}", near.join(", "))
    };
    ReportError::NoSuch { what, wanted: printable(wanted), advice: printable(&advice) }
}

/// Returns for each function whether it has this name, and belongs to this module if one is given.
///
/// # Errors
/// There is no such function.
pub(super) fn functions(code: &Code, wanted: &str, module: Option<&str>) -> Result<Vec<bool>, ReportError> {
    let mut functions = code.named(wanted);
    if !functions.contains(&true) {
        return Err(no_such_symbol(wanted, code));
    }
    let Some(module) = module else { return Ok(functions) };
    let mut others = BTreeSet::new();
    for (function, is_wanted) in code.functions.iter().zip(&mut functions) {
        if *is_wanted && !is_module(function, module) {
            others.insert(module_name(function));
            *is_wanted = false;
        }
    }
    if !functions.contains(&true) {
        let others: Vec<&str> = others.into_iter().take(MOST_MODULES).collect();
        return Err(ReportError::NoSuch {
            what: "function of that module called",
            wanted: printable(wanted),
            advice: printable(&format!("--module may be {}", others.join(", "))),
        });
    }
    Ok(functions)
}

/// True if the function belongs to the module of this name, or to one that fits the pattern.
fn is_module(function: &Function, wanted: &str) -> bool {
    let name = module_name(function);
    function.kind != FrameKind::Reason && (name == wanted || is_pattern_of(wanted, name))
}

fn no_such_module(wanted: &str, code: &Code) -> ReportError {
    let functions = code.functions.iter().filter(|function| function.kind != FrameKind::Reason);
    let modules: BTreeSet<&str> = functions.map(module_name).collect();
    no_such("module", wanted, modules.into_iter().collect(), "--by module")
}

pub(super) fn no_such_symbol(wanted: &str, code: &Code) -> ReportError {
    let without = code.names().filter(|name| !matches(name, wanted));
    no_such("function", wanted, without.collect(), "--by function -n 0")
}

/// Order of the rows of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Most samples first; their own samples if rows have a total, too.
    #[default]
    Samples,
    /// Most samples in total first, those in callees included.
    Total,
    /// Name of the row.
    Name,
    /// Process id; rows without one stay in the order of samples.
    Pid,
    /// Most user time first; among functions, user code first.
    User,
    /// Most kernel time first; among functions, kernel code first.
    Kernel,
}

impl Sort {
    /// All orders with their names on the command line.
    pub const ALL: [(&'static str, Sort); 7] = [
        ("self", Sort::Samples),
        ("samples", Sort::Samples),
        ("total", Sort::Total),
        ("name", Sort::Name),
        ("pid", Sort::Pid),
        ("user", Sort::User),
        ("kernel", Sort::Kernel),
    ];
}

impl FromStr for Sort {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        UnknownName::find(name, Self::ALL)
    }
}
