//! Reads a [`Recording`].

use std::collections::{BTreeSet, HashMap, HashSet};

use rusqlite::Connection;
use statistics::estimate::{Tick, Ticks};

use super::{
    About, FrameEntry, Owner, RecordedFile, RecordedFrame, RecordedFunction, RecordedMapping,
    RecordedProcess, RecordedSample, RecordedVcpu, Recording, RecordingRequest, SourceLine, StackNode,
};
use crate::numbers::unsigned;
use crate::report::ReportError;
use crate::report::code::{Code, NONE, small};
use crate::report::filter::Selection;
use crate::report::host::{HostTick, HostTicks, sampled_place};
use crate::report::number_map::NumberMap;
use crate::report::stacks::{DOUBT, Stacks};
use crate::report::sums::Sample;
use crate::report::tables::{Span, Tables, VcpuTotals, read_rates};
use crate::report::tick_log::{guest_ns, ticks};
use crate::rows::Charged;
use crate::rows::{FrameKind, Mode, ThreadPlace, VcpuState};
use crate::store::{Profile, snapshot};

/// Name of the owner of idle samples.
const IDLE: &str = "[idle]";
/// Outermost frame of samples without a stack, in profiles that have stacks.
const NO_STACK: &str = "[no frame: no stack was taken]";
/// Number of samples between two reports of progress.
const TELL_EVERY: u64 = 1 << 16;

impl Recording {
    /// Reads the chosen samples. Calls `progress` from time to time with the number of samples read and the
    /// number in the profile.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(
        profile: &Profile,
        request: &RecordingRequest,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts have the same state of a run in progress.
        let _snapshot = snapshot(connection).map_err(sql)?;
        let tables = Tables::read(connection).map_err(sql)?;
        let code = Code::read(connection, &tables.instances).map_err(sql)?;
        let stacks = Stacks::read(connection, &code, request.filter.native).map_err(sql)?;
        let selection = Selection::new(&request.filter, profile, &tables, &code, &stacks)?;
        let rates = read_rates(connection).map_err(sql)?;
        let spans = Span::read(connection, &rates, &tables, &request.filter).map_err(sql)?;
        let host = match request.host {
            true => HostTicks::read(connection, &request.filter, &tables)
                .map_err(sql)?
                .ok_or(ReportError::NoHost)?,
            false => HostTicks::default(),
        };
        let mut reader = Reader::new(&tables, &code, &stacks, &host);
        let total = tables.vcpus.iter().map(|row| row.samples).sum();
        let mut all = ticks(&tables, &spans, stacks.has_flat());
        let mut chosen: Vec<(Weight, RecordedSample)> = Vec::new();
        let mut counts: HashMap<(u16, VcpuState), u64> = HashMap::new();
        // Ticks outside of the guest that have a sample.
        let mut sampled: HashSet<(u16, u64)> = HashSet::new();
        let mut seen = 0;
        Sample::read(profile, (&request.filter, &tables), (&code, &stacks), |sample| {
            seen += 1;
            if seen % TELL_EVERY == 0 {
                progress(seen, total);
            }
            // Those with stacks stand for it.
            if sample.flat && sample.vcpu_state == Some(VcpuState::Guest) {
                return;
            }
            let tick = all.tick(sample.vcpu, sample.time_ns, sample.vcpu_state == Some(VcpuState::Guest));
            let state = sample.vcpu_state.unwrap_or(VcpuState::Waiting);
            *counts.entry((sample.vcpu, state)).or_default() += 1;
            let weight = if state == VcpuState::Guest { Weight::Tick(tick) } else { Weight::State(state) };
            let key = (sample.vcpu, sample.time_ns);
            let on_host = host.ticks.get(&key);
            let place = sampled_place(state, on_host);
            if let Some(tick) = on_host
                && !matches!(place, ThreadPlace::Guest | ThreadPlace::Halted)
            {
                sampled.insert(key);
                return chosen.push((weight, reader.outside(key, place, tick)));
            }
            let charged = Charged::from_mode(sample.mode, sample.instance, |id| tables.is_ksoftirqd(id));
            let wanted = match (sample.vcpu_state, charged) {
                (Some(VcpuState::Guest), Some(charged)) => selection.chooses(charged, sample),
                (Some(VcpuState::Guest), None) | (Some(VcpuState::Halted), _) => request.idle,
                _ => false,
            };
            if wanted {
                let below = on_host.filter(|tick| tick.place == place);
                chosen.push((weight, reader.sample(sample, charged, below)));
            }
        })
        .map_err(sql)?;
        // In the VMM there are no samples of the guest.
        let alone = host.ticks.iter().filter(|(key, tick)| tick.may_lack_sample() && !sampled.contains(*key));
        for (&key, tick) in alone {
            let waits = tick.place == ThreadPlace::Waiting;
            let state = if waits { VcpuState::Waiting } else { VcpuState::Vmm };
            *counts.entry((key.0, state)).or_default() += 1;
            chosen.push((Weight::State(state), reader.outside(key, tick.place, tick)));
        }
        weigh(&mut chosen, &counts, &spans, &all);
        let mut samples: Vec<RecordedSample> = chosen.into_iter().map(|(_, sample)| sample).collect();
        // Samples of each vCPU come in the order of time.
        samples.sort_by_key(|sample| sample.time_ns);
        progress(seen, seen);
        let mappings = mappings(connection, &reader).map_err(sql)?;
        let chosen = tables.vcpus.iter().filter(|vcpu| request.filter.chooses_vcpu(vcpu, &tables));
        let vcpus = chosen.map(|vcpu| recorded_vcpu(vcpu, &tables)).collect();
        Ok(reader.finish(samples, vcpus, mappings))
    }
}

/// Time that a sample represents.
#[derive(Debug, Clone, Copy)]
enum Weight {
    /// That of a tick in the guest.
    Tick(Tick),
    /// An equal part of the vCPU's exact time in this state.
    State(VcpuState),
}

/// Sets the time that each sample represents, which is known once all ticks are read.
fn weigh(
    chosen: &mut [(Weight, RecordedSample)],
    counts: &HashMap<(u16, VcpuState), u64>,
    spans: &[Span],
    ticks: &Ticks,
) {
    let vcpus: BTreeSet<u16> = chosen.iter().map(|(_, sample)| sample.vcpu).collect();
    let of_vcpu = |vcpu: u16| {
        let span = spans.iter().find(|span| span.vcpu == vcpu);
        let of_state = move |state: VcpuState| {
            let exact_ns = span.map_or(0, |span| match state {
                VcpuState::Guest => span.guest_ns,
                VcpuState::Halted => span.halted_ns,
                VcpuState::Vmm => span.vmm_ns,
                VcpuState::Waiting => span.waiting_ns,
            });
            exact_ns as f64 / counts.get(&(vcpu, state)).copied().unwrap_or(0).max(1) as f64
        };
        (vcpu, (ticks.stands_for(vcpu, guest_ns(vcpu, spans, ticks)), of_state))
    };
    let weights: NumberMap<u16, _> = vcpus.into_iter().map(of_vcpu).collect();
    for (weight, sample) in chosen {
        if let Some((of_tick, of_state)) = weights.get(&sample.vcpu) {
            sample.weight_ns = match weight {
                Weight::Tick(tick) => of_tick(*tick),
                Weight::State(state) => of_state(*state),
            };
        }
    }
}

/// Contents of a profile that were found so far.
struct Reader<'a> {
    tables: &'a Tables,
    code: &'a Code,
    host: &'a HostTicks,
    /// Index of the first stack of the host.
    first_host: u32,
    nodes: Vec<StackNode>,
    owners: Vec<Owner>,
    known_owners: NumberMap<(u32, i32), u32>,
    /// Stacks of samples whose own frame is not the innermost of their stack, by frame and stack.
    added: NumberMap<(u32, u32), u32>,
    /// By row id.
    processes: NumberMap<u32, u32>,
    files: NumberMap<u32, u32>,
    interrupts: NumberMap<u32, u32>,
    /// The stack with the note that there is none.
    no_stack: Option<u32>,
    /// The same for ticks outside of the guest.
    no_host_stack: Option<u32>,
}

impl<'a> Reader<'a> {
    fn new(tables: &'a Tables, code: &'a Code, stacks: &Stacks, host: &'a HostTicks) -> Self {
        let node = |node: &crate::report::stacks::Node| StackNode {
            parent: (node.parent != NONE).then_some(node.parent),
            frame: node.frame,
        };
        let mut nodes: Vec<StackNode> = stacks.all().iter().map(node).collect();
        let no_stack = (!nodes.is_empty()).then(|| small(nodes.len()));
        if no_stack.is_some() {
            // `finish` adds the frame after all others.
            nodes.push(StackNode { parent: None, frame: small(code.frames.len()) });
        }
        let first_host = small(nodes.len());
        // `finish` adds their frames, after the one of samples without a stack.
        let first_frame = small(code.frames.len()).saturating_add(1);
        nodes.extend(host.stacks.iter().map(|node| StackNode {
            parent: (node.parent != NONE).then(|| first_host.saturating_add(node.parent)),
            frame: first_frame.saturating_add(node.frame),
        }));
        Self {
            tables,
            code,
            host,
            first_host,
            nodes,
            owners: Vec::new(),
            known_owners: NumberMap::default(),
            added: NumberMap::default(),
            processes: places(tables.instances.keys()),
            files: places(tables.files.keys()),
            interrupts: places(tables.interrupts.keys()),
            no_stack,
            no_host_stack: None,
        }
    }

    /// Returns a sample whose weight is not known yet, with the stack of the host of its tick.
    fn sample(
        &mut self,
        sample: &Sample,
        charged: Option<Charged>,
        below: Option<&HostTick>,
    ) -> RecordedSample {
        let halted = sample.vcpu_state == Some(VcpuState::Halted);
        let idle = halted || charged.is_none();
        RecordedSample {
            time_ns: sample.time_ns,
            weight_ns: 0.0,
            owner: self.owner(charged.filter(|_| !idle), sample.tid),
            stack: self.stack(sample),
            host_stack: below.and_then(|tick| self.host_stack(tick)),
            syscall: sample.syscall.filter(|_| sample.mode == Mode::Kernel),
            interrupt: sample.interrupt.and_then(|id| self.interrupts.get(&id).copied()),
            mode: if idle { Mode::Idle } else { sample.mode },
            vcpu: sample.vcpu,
        }
    }

    /// Returns the sample of a tick outside of the guest, with the stack of the host.
    fn outside(
        &mut self,
        (vcpu, time_ns): (u16, u64),
        place: ThreadPlace,
        tick: &HostTick,
    ) -> RecordedSample {
        RecordedSample {
            time_ns,
            weight_ns: 0.0,
            owner: self.host_owner(place),
            stack: self.host_stack(tick).unwrap_or_else(|| self.no_host_stack()),
            host_stack: None,
            syscall: None,
            interrupt: None,
            mode: Mode::Unknown,
            vcpu,
        }
    }

    /// Returns the stack of the host of a tick.
    fn host_stack(&self, tick: &HostTick) -> Option<u32> {
        (tick.stack != NONE).then(|| self.first_host.saturating_add(tick.stack))
    }

    /// Returns the stack with the note that there is none.
    fn no_host_stack(&mut self) -> u32 {
        *self.no_host_stack.get_or_insert_with(|| {
            self.nodes.push(StackNode { parent: None, frame: small(self.code.frames.len()) });
            small(self.nodes.len() - 1)
        })
    }

    fn host_owner(&mut self, place: ThreadPlace) -> u32 {
        let key = (NONE - 5 - place as u32, -1);
        *self.known_owners.entry(key).or_insert_with(|| {
            let name = place.owner();
            self.owners.push(Owner { process: None, tid: None, name, place: Some(place) });
            small(self.owners.len() - 1)
        })
    }

    fn owner(&mut self, charged: Option<Charged>, tid: Option<i32>) -> u32 {
        let process = match charged {
            Some(Charged::Instance(id)) => self.processes.get(&id).copied(),
            _ => None,
        };
        let tid = tid.filter(|_| process.is_some());
        let kind = match (process, charged) {
            (Some(process), _) => process,
            (None, None) => NONE,
            (None, Some(Charged::HardIrq)) => NONE - 1,
            (None, Some(Charged::SoftIrq)) => NONE - 2,
            (None, Some(Charged::Boot)) => NONE - 3,
            (None, Some(Charged::Unknown | Charged::Instance(_))) => NONE - 4,
        };
        // Thread ids are never negative.
        let key = (kind, tid.unwrap_or(-1));
        if let Some(&known) = self.known_owners.get(&key) {
            return known;
        }
        let thread = match (charged, tid) {
            (Some(Charged::Instance(id)), Some(tid)) => self.tables.threads.get(&(id, tid)),
            _ => None,
        };
        let comm = match charged {
            Some(Charged::Instance(id)) => self.tables.instances.get(&id).map(|instance| &instance.comm),
            _ => None,
        };
        let other = charged.map_or(IDLE, Charged::name);
        let name = thread.or(comm).map_or_else(|| other.to_owned(), String::clone);
        let place = small(self.owners.len());
        self.owners.push(Owner { process, tid, name, place: None });
        self.known_owners.insert(key, place);
        place
    }

    /// Returns its stack, with its own frame added if the stack begins with another.
    fn stack(&mut self, sample: &Sample) -> u32 {
        if self.nodes.get(sample.stack as usize).is_some_and(|node| node.frame == sample.frame) {
            return sample.stack;
        }
        *self.added.entry((sample.frame, sample.stack)).or_insert_with(|| {
            let parent = match sample.stack {
                NONE if sample.mode == Mode::Boot => None,
                NONE => self.no_stack,
                stack => Some(stack),
            };
            self.nodes.push(StackNode { parent, frame: sample.frame });
            small(self.nodes.len() - 1)
        })
    }

    fn finish(
        self,
        samples: Vec<RecordedSample>,
        vcpus: Vec<RecordedVcpu>,
        mappings: Vec<RecordedMapping>,
    ) -> Recording {
        let Self { tables, code, .. } = &self;
        let place = |known: &NumberMap<u32, u32>, id: Option<u32>| id.and_then(|id| known.get(&id).copied());
        let frame = |frame: &crate::report::code::Frame| {
            let slots = frame.slots();
            RecordedFrame {
                kind: frame.kind,
                address: frame.address,
                call: frame.call,
                file: place(&self.files, frame.file),
                process: place(&self.processes, frame.instance),
                offset: frame.offset,
                first: small(slots.start),
                count: small(slots.len()),
            }
        };
        let mut frames: Vec<RecordedFrame> = code.frames.iter().map(frame).collect();
        let entry = |entry: &crate::report::code::Entry| FrameEntry {
            function: entry.function,
            line: (entry.line != NONE).then_some(entry.line),
        };
        let mut entries: Vec<FrameEntry> = code.entries.iter().map(entry).collect();
        let mut functions: Vec<RecordedFunction> = code.functions.iter().map(function).collect();
        let first = small(entries.len());
        entries.push(FrameEntry { function: small(functions.len()), line: None });
        functions.push(RecordedFunction {
            symbol: NO_STACK.to_owned(),
            module: None,
            kind: FrameKind::Reason,
        });
        frames.push(RecordedFrame {
            kind: FrameKind::Reason,
            address: 0,
            call: false,
            file: None,
            process: None,
            offset: 0,
            first,
            count: 1,
        });
        for frame in &self.host.frames {
            let entry = FrameEntry { function: small(functions.len()), line: None };
            functions.push(RecordedFunction {
                symbol: frame.symbol.clone(),
                module: frame.module.clone(),
                kind: frame.kind,
            });
            frames.push(RecordedFrame {
                kind: frame.kind,
                address: frame.address,
                call: frame.call,
                file: None,
                process: None,
                offset: frame.offset,
                first: small(entries.len()),
                count: 1,
            });
            entries.push(entry);
        }
        let line =
            |line: &crate::report::code::Line| SourceLine { source: line.source.clone(), line: line.line };
        Recording {
            about: about(tables),
            vcpus,
            samples,
            processes: in_order(&self.processes, |id| process(tables, id)),
            frames,
            entries,
            functions,
            lines: code.lines.iter().map(line).collect(),
            files: in_order(&self.files, |id| {
                let file = tables.files.get(&id)?;
                Some(RecordedFile { path: file.path.clone(), build_id: file.build_id.clone() })
            }),
            mappings,
            interrupts: in_order(&self.interrupts, |id| tables.interrupts.get(&id).cloned()),
            syscalls: tables.syscalls.iter().map(|(number, name)| (*number, name.clone())).collect(),
            events: tables.events.clone(),
            owners: self.owners,
            stacks: self.nodes,
        }
    }
}

/// Returns indexes for row ids, in their order.
fn places<'a>(ids: impl Iterator<Item = &'a u32>) -> NumberMap<u32, u32> {
    let mut ids: Vec<u32> = ids.copied().collect();
    ids.sort_unstable();
    ids.into_iter().enumerate().map(|(place, id)| (id, small(place))).collect()
}

/// Returns the items in the order of their indexes.
fn in_order<T>(places: &NumberMap<u32, u32>, thing: impl Fn(u32) -> Option<T>) -> Vec<T> {
    let mut ids: Vec<(u32, u32)> = places.iter().map(|(&id, &place)| (place, id)).collect();
    ids.sort_unstable();
    ids.into_iter().filter_map(|(_, id)| thing(id)).collect()
}

fn function(function: &crate::report::code::Function) -> RecordedFunction {
    if function.kind != FrameKind::Reason {
        let (symbol, module, kind) = (function.symbol.clone(), function.module.clone(), function.kind);
        return RecordedFunction { symbol, module, kind };
    }
    let what = if function.module.as_deref() == Some(DOUBT) { "doubtful frames" } else { "no frame" };
    RecordedFunction {
        symbol: format!("[{what}: {}]", function.symbol),
        module: None,
        kind: FrameKind::Reason,
    }
}

fn recorded_vcpu(vcpu: &VcpuTotals, tables: &Tables) -> RecordedVcpu {
    let vm = vcpu.vm.and_then(|id| tables.vms.get(&id));
    RecordedVcpu {
        id: vcpu.id,
        number: vcpu.number,
        vm: vm.map(|vm| vm.name.clone()),
        host: vm.and_then(|vm| vm.host.clone()),
        run_ns: tables.run_of(vcpu),
    }
}

fn process(tables: &Tables, id: u32) -> Option<RecordedProcess> {
    let instance = tables.instances.get(&id)?;
    let group = tables.cgroup_of(id);
    Some(RecordedProcess {
        comm: instance.comm.clone(),
        number: instance.number,
        vm: tables.vm_name(instance.vm),
        pid: instance.pid,
        kernel_thread: instance.kernel_thread,
        parent_pid: instance.parent_pid,
        command: instance.command.clone(),
        exe: instance.exe.and_then(|file| tables.files.get(&file)).map(|file| file.path.clone()),
        cgroup: group.map(|group| group.path.clone()),
        unit: group.and_then(|group| group.unit.clone()),
        container: group.and_then(|group| group.container.clone()),
    })
}

fn about(tables: &Tables) -> About {
    let text = |key: &str| tables.meta.get(key).cloned();
    About {
        version: text("version").unwrap_or_default(),
        host: text("host").unwrap_or_else(|| "unknown".to_owned()),
        kernel: text("kernel"),
        complete: text("complete").is_some_and(|value| value == "1"),
        started_unix_ns: tables.parsed("started_unix_ns"),
        duration_ns: tables.parsed("duration_ns"),
        rate_hz: tables.parsed("rate_hz"),
        meta: tables.meta.clone(),
    }
}

fn mappings(connection: &Connection, reader: &Reader<'_>) -> rusqlite::Result<Vec<RecordedMapping>> {
    let sql = "SELECT instance, start, end, file, file_offset FROM mapping ORDER BY instance, start";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut mappings = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(&process) = reader.processes.get(&row.get(0)?) else { continue };
        let file: Option<u32> = row.get(3)?;
        mappings.push(RecordedMapping {
            process,
            start: row.get::<_, i64>(1)?.cast_unsigned(),
            end: row.get::<_, i64>(2)?.cast_unsigned(),
            file: file.and_then(|id| reader.files.get(&id).copied()),
            file_offset: unsigned(row, 4)?,
        });
    }
    Ok(mappings)
}
