//! Time of vCPUs in the guest and in the host, by the stacks of the host at ticks.
//!
//! These stacks have their own tables: no report on the guest reads them, and its shares do not depend on
//! them.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use statistics::estimate::Tallies;

use super::code::{NONE, small};
use super::filter::{VCPU_AND_TIME, check_vcpus};
use super::number_map::NumberMap;
use super::stacks::MOST_FRAMES;
use super::tables::{Span, Tables, read_rates};
use super::{Estimate, Filter, ReportError};
use crate::numbers::{seconds, unsigned};
use crate::rows::{FrameKind, ThreadPlace, VcpuState};
use crate::store::{Profile, snapshot};

/// A row of table `host_frame`.
#[derive(Debug, Clone)]
pub(super) struct HostFrame {
    pub kind: FrameKind,
    pub address: u64,
    pub call: bool,
    pub offset: u64,
    /// Name; in brackets for code without one, and for a reason.
    pub symbol: String,
    pub module: Option<String>,
}

/// A row of table `host_stack`, with indexes instead of row ids.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostNode {
    /// The caller, or [`NONE`].
    pub parent: u32,
    pub frame: u32,
}

/// A row of table `host_sample`.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostTick {
    pub place: ThreadPlace,
    pub on_cpu: bool,
    /// Index of its stack, or [`NONE`].
    pub stack: u32,
}

impl HostTick {
    /// Returns true if the tick may have no sample: in the VMM, on a CPU, blocked, or waiting for a CPU.
    pub(super) fn may_lack_sample(&self) -> bool {
        matches!(self.place, ThreadPlace::Vmm | ThreadPlace::Waiting)
    }
}

/// Returns the place of a thread at a tick with a sample, by the state of the vCPU.
pub(super) fn sampled_place(state: VcpuState, tick: Option<&HostTick>) -> ThreadPlace {
    match state {
        VcpuState::Guest if tick.is_some_and(|tick| tick.place == ThreadPlace::Kvm) => ThreadPlace::Kvm,
        VcpuState::Guest => ThreadPlace::Guest,
        VcpuState::Vmm => ThreadPlace::Vmm,
        VcpuState::Waiting => ThreadPlace::Waiting,
        VcpuState::Halted => ThreadPlace::Halted,
    }
}

/// Ticks with stacks of the host.
#[derive(Debug, Default)]
pub(super) struct HostTicks {
    pub frames: Vec<HostFrame>,
    /// A caller precedes its callees.
    pub stacks: Vec<HostNode>,
    /// By vCPU and time.
    pub ticks: BTreeMap<(u16, u64), HostTick>,
}

/// Name of code without a symbol.
fn nameless(kind: FrameKind, symbol: Option<String>, module: Option<&str>, address: u64) -> String {
    match (kind, symbol, module) {
        (FrameKind::Reason, symbol, _) => format!("[no frame: {}]", symbol.unwrap_or_default()),
        (_, Some(symbol), _) => symbol,
        (_, None, Some(module)) => format!("[{}]", module.trim_matches(['[', ']'])),
        (_, None, None) => format!("{address:#x}"),
    }
}

impl HostTicks {
    /// Reads the ticks of the chosen vCPU and time; `None` if the profile has none at all.
    pub(super) fn read(
        connection: &Connection,
        filter: &Filter,
        tables: &Tables,
    ) -> rusqlite::Result<Option<Self>> {
        if connection.query_row("SELECT 1 FROM host_sample LIMIT 1", [], |_| Ok(())).optional()?.is_none() {
            return Ok(None);
        }
        let (frames, frame_index) = read_frames(connection)?;
        let mut found = Self { frames, stacks: Vec::new(), ticks: BTreeMap::new() };
        let mut index: NumberMap<u32, u32> = NumberMap::default();
        let mut statement = connection.prepare("SELECT id, parent, frame FROM host_stack ORDER BY id")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // Callers come first, so that no stack of a damaged profile is a cycle.
            let parent = row.get::<_, Option<u32>>(1)?.and_then(|id| index.get(&id).copied());
            let Some(&frame) = frame_index.get(&row.get(2)?) else { continue };
            index.insert(row.get(0)?, small(found.stacks.len()));
            found.stacks.push(HostNode { parent: parent.unwrap_or(NONE), frame });
        }
        let mut statement = connection.prepare(&format!(
            "SELECT vcpu, time_ns, place, on_cpu, stack FROM host_sample WHERE {VCPU_AND_TIME}"
        ))?;
        let mut rows = statement.query(filter.vcpu_and_time(tables))?;
        while let Some(row) = rows.next()? {
            let Some(place) = row.get_ref(2)?.as_str().ok().and_then(ThreadPlace::from_name) else {
                continue;
            };
            let stack = row.get::<_, Option<u32>>(4)?.and_then(|id| index.get(&id).copied());
            let tick = HostTick { place, on_cpu: row.get(3)?, stack: stack.unwrap_or(NONE) };
            found.ticks.insert((row.get(0)?, unsigned(row, 1)?), tick);
        }
        Ok(Some(found))
    }

    /// Returns the frames of a stack, innermost first.
    fn frames_of(&self, stack: u32) -> impl Iterator<Item = &HostFrame> {
        let mut next = self.stacks.get(stack as usize);
        std::iter::from_fn(move || {
            let node = next?;
            next = self.stacks.get(node.parent as usize);
            self.frames.get(node.frame as usize)
        })
        .take(MOST_FRAMES)
    }
}

fn read_frames(connection: &Connection) -> rusqlite::Result<(Vec<HostFrame>, NumberMap<u32, u32>)> {
    let (mut frames, mut index) = (Vec::new(), NumberMap::default());
    let sql = "SELECT id, kind, address, call, symbol, module, offset FROM host_frame ORDER BY id";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let kind = match row.get_ref(1)?.as_str().unwrap_or_default() {
            "user" => FrameKind::User,
            "reason" => FrameKind::Reason,
            _ => FrameKind::Kernel,
        };
        let (address, module): (i64, Option<String>) = (row.get(2)?, row.get(5)?);
        let address = address.cast_unsigned();
        index.insert(row.get(0)?, small(frames.len()));
        frames.push(HostFrame {
            kind,
            address,
            call: row.get(3)?,
            offset: row.get::<_, i64>(6)?.cast_unsigned(),
            symbol: nameless(kind, row.get(4)?, module.as_deref(), address),
            module: module.filter(|_| kind != FrameKind::Reason),
        });
    }
    Ok((frames, index))
}

/// Time of vCPUs, in the guest and in the host. All shares are of the vCPUs' time except for pauses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Time of all chosen vCPUs, without pauses, s.
    pub run_s: f64,
    /// Number of ticks.
    pub ticks: u64,
    /// Ticks outside of the guest that have no stack of the host.
    pub without_stack: u64,
    /// Ticks outside of the guest that have one.
    pub stacks: u64,
    /// Those of them that lack their outermost functions.
    pub cut_stacks: u64,
    /// Places of the vCPUs' threads. The shares add up to 1.
    pub places: Vec<PlaceTime>,
    /// Functions of the host, most time first. A function is in the time of a halted guest only as far as it
    /// was on a CPU.
    pub functions: Vec<HostFunction>,
}

/// Time of the vCPUs' threads in a place.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlaceTime {
    /// The place.
    pub place: ThreadPlace,
    /// Time in it.
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// A function of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFunction {
    /// Name; in brackets for code without one.
    pub symbol: String,
    /// Kernel module, or file name of the VMM's code.
    pub module: Option<String>,
    /// `kernel`, `user`, or `reason` where frames are missing.
    pub kind: String,
    /// Time in it.
    #[serde(rename = "self")]
    pub own: Estimate,
    /// Time in it and in its callees.
    pub total: Estimate,
}

/// A tick of a vCPU's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedTick {
    /// vCPU.
    pub vcpu: u16,
    /// Time since the run's start, ns.
    pub time_ns: u64,
    /// Place of the thread.
    pub place: ThreadPlace,
}

/// Function of the host: kind, symbol, module.
type FunctionKey<'a> = (FrameKind, &'a str, Option<&'a str>);
/// Tallies of a function: own, and with its callees.
type FunctionTallies = (Tallies, Tallies);

impl HostReport {
    /// Reads the report over the vCPU and the time that `filter` chooses. Its other parts choose nothing.
    ///
    /// # Errors
    /// [`ReportError::NoHost`] if the profile has no stacks of the host; the filter names a vCPU that does
    /// not exist.
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        Ok(Self::read_with_ticks(profile, filter)?.0)
    }

    /// Reads the report and the ticks that it counts, by vCPU and time.
    ///
    /// # Errors
    /// As [`HostReport::read`].
    pub fn read_with_ticks(
        profile: &Profile,
        filter: &Filter,
    ) -> Result<(Self, Vec<PlacedTick>), ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        let _snapshot = snapshot(connection).map_err(sql)?;
        let tables = Tables::read(connection).map_err(sql)?;
        check_vcpus(filter, &tables)?;
        let host = HostTicks::read(connection, filter, &tables).map_err(sql)?.ok_or(ReportError::NoHost)?;
        let rates = read_rates(connection).map_err(sql)?;
        let spans = Span::read(connection, &rates, &tables, filter).map_err(sql)?;
        let places = places(connection, (filter, &tables), &host).map_err(sql)?;
        let ticks = places.iter().map(|(&(vcpu, time_ns), &place)| PlacedTick { vcpu, time_ns, place });
        let ticks = ticks.collect();
        Ok((Self::new(&tables, &spans, &host, &places), ticks))
    }

    fn new(
        tables: &Tables,
        spans: &[Span],
        host: &HostTicks,
        places: &BTreeMap<(u16, u64), ThreadPlace>,
    ) -> Self {
        // All ticks divide all time of a vCPU, so that guest and host have one axis.
        let mut ticks = tables.ticks();
        for span in spans {
            ticks.divide(span.vcpu, span.run_segments.iter().copied());
            ticks.change_mean(span.vcpu, span.means.iter().copied());
        }
        let mut of_place: [Tallies; 5] = Default::default();
        let mut of_function: HashMap<FunctionKey<'_>, FunctionTallies> = HashMap::new();
        let (mut without_stack, mut stacks, mut cut_stacks) = (0, 0, 0);
        for (&(vcpu, time_ns), &place) in places {
            let tick = ticks.tick(vcpu, time_ns, true);
            of_place[place as usize].add(&ticks, tick);
            let Some(found) = host.ticks.get(&(vcpu, time_ns)) else { continue };
            // The host executes nothing while the guest runs, or sleeps.
            if place == ThreadPlace::Guest || place == ThreadPlace::Halted && !found.on_cpu {
                continue;
            }
            let mut frames = host.frames_of(found.stack).peekable();
            let has_stack = frames.peek().is_some_and(|frame| frame.kind != FrameKind::Reason);
            without_stack += u64::from(!has_stack);
            stacks += u64::from(has_stack);
            // A function that calls itself counts once.
            let mut on_stack = Vec::new();
            let mut outermost = FrameKind::Kernel;
            for frame in frames {
                outermost = frame.kind;
                let key = (frame.kind, frame.symbol.as_str(), frame.module.as_deref());
                if on_stack.contains(&key) {
                    continue;
                }
                let (own, total) = of_function.entry(key).or_default();
                if on_stack.is_empty() {
                    own.add(&ticks, tick);
                }
                total.add(&ticks, tick);
                on_stack.push(key);
            }
            cut_stacks += u64::from(has_stack && outermost == FrameKind::Reason);
        }
        let times: Vec<(u16, u64)> = spans.iter().map(|span| (span.vcpu, span.run_ns)).collect();
        let estimate = |tallies: &Tallies| {
            let found = ticks.estimate(&times, tallies);
            Estimate::new(found.samples, found.share, found.time)
        };
        let function =
            |((kind, symbol, module), (own, total)): (FunctionKey<'_>, FunctionTallies)| HostFunction {
                symbol: symbol.to_owned(),
                module: module.map(str::to_owned),
                kind: kind.name().to_owned(),
                own: estimate(&own),
                total: estimate(&total),
            };
        let mut functions: Vec<HostFunction> = of_function.into_iter().map(function).collect();
        functions.sort_by(|a, b| {
            let names = |function: &HostFunction| (function.symbol.clone(), function.module.clone());
            b.own
                .share
                .total_cmp(&a.own.share)
                .then(b.total.share.total_cmp(&a.total.share))
                .then_with(|| names(a).cmp(&names(b)))
        });
        Self {
            run_s: seconds(times.iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns))),
            ticks: ticks.inside(),
            without_stack,
            stacks,
            cut_stacks,
            places: ThreadPlace::ALL
                .map(|place| PlaceTime { place, estimate: estimate(&of_place[place as usize]) })
                .to_vec(),
            functions,
        }
    }
}

/// Returns the place of the thread at each tick: those with a sample, and those in the VMM, which have none.
fn places(
    connection: &Connection,
    (filter, tables): (&Filter, &Tables),
    host: &HostTicks,
) -> rusqlite::Result<BTreeMap<(u16, u64), ThreadPlace>> {
    let in_vmm = host.ticks.iter().filter(|(_, tick)| tick.may_lack_sample());
    let mut places: BTreeMap<_, _> = in_vmm.map(|(key, tick)| (*key, tick.place)).collect();
    let mut statement =
        connection.prepare(&format!("SELECT vcpu, time_ns, vcpu_state FROM sample WHERE {VCPU_AND_TIME}"))?;
    let mut rows = statement.query(filter.vcpu_and_time(tables))?;
    while let Some(row) = rows.next()? {
        let key = (row.get(0)?, unsigned(row, 1)?);
        let state = row.get_ref(2)?.as_str().ok().and_then(VcpuState::from_name);
        let state = state.unwrap_or(VcpuState::Waiting);
        places.insert(key, sampled_place(state, host.ticks.get(&key)));
    }
    Ok(places)
}
