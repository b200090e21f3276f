//! One pass over the samples. It touches and keeps only small integers, so a million samples take well under
//! a second.

use std::collections::BTreeMap;
use std::hash::Hash;

use hdrhistogram::Histogram;
use rusqlite::Row;
use statistics::RateHistory;
use statistics::estimate::Tallies;

use super::TickCounts;
use super::code::{BOOT_FRAME, Code, NONE, small};
use super::filter::{Filter, Selection, VCPU_AND_TIME};
use super::number_map::NumberMap;
use super::stacks::Stacks;
use super::tables::{Span, Tables, VcpuTotals, read_rates};
use super::tick_log::TickLog;
use crate::numbers::unsigned;
use crate::rows::{Charged, FrameKind, LATE_NS, Mode, VcpuState};
use crate::store::Profile;

/// Number of modes.
pub(super) const MODE_COUNT: usize = Mode::ALL.len();

/// Code of a sample: indexes of its frame and of its stack ([`NONE`] without one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Leaf {
    pub frame: u32,
    pub stack: u32,
    pub mode: Mode,
    /// No stack was taken because of how the sample was taken.
    pub flat: bool,
}

/// A thread, with the work item of a kernel worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ThreadKey {
    pub charged: Charged,
    pub tid: Option<i32>,
    /// Index of the work function, or [`NONE`].
    pub work: u32,
}

/// Activity of a sample's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TaskActivity {
    /// User code.
    User,
    /// A system call.
    Syscall(u32),
    /// Kernel code without a system call, as page faults and kernel threads are.
    Kernel,
}

/// Context of a sample, besides its code: thread, mode, system call, interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SampleContext {
    pub thread: ThreadKey,
    pub mode: Mode,
    /// Virtual machine, in a merged profile.
    pub vm: Option<u32>,
    syscall: Option<u32>,
    interrupt: Option<u32>,
}

impl SampleContext {
    /// Returns the activity of its task; `None` in interrupts, and before there are tasks.
    pub(super) fn activity(&self) -> Option<TaskActivity> {
        match self.mode {
            Mode::User => Some(TaskActivity::User),
            Mode::Kernel => Some(self.syscall.map_or(TaskActivity::Kernel, TaskActivity::Syscall)),
            _ => None,
        }
    }

    /// Returns mode and `interrupt.id`, in an interrupt.
    pub(super) fn interrupt(&self) -> Option<(Mode, Option<u32>)> {
        matches!(self.mode, Mode::HardIrq | Mode::SoftIrq | Mode::Nmi).then_some((self.mode, self.interrupt))
    }
}

/// Distinct items of the chosen samples, each with its number of samples.
#[derive(Debug)]
pub(super) struct InternedCounts<T> {
    pub list: Vec<(T, u64)>,
    places: NumberMap<T, u32>,
}

impl<T: Copy + Eq + Hash> InternedCounts<T> {
    fn new() -> Self {
        Self { list: Vec::new(), places: NumberMap::default() }
    }

    fn count(&mut self, item: T) -> u32 {
        let place = *self.places.entry(item).or_insert_with(|| {
            self.list.push((item, 0));
            small(self.list.len() - 1)
        });
        self.list[place as usize].1 += 1;
        place
    }
}

/// Number of times that a vCPU's time is divided into.
pub(super) const TIMES: usize = 6;

/// Returns the index of the field of [`super::ModeTimes`] that a mode counts for.
fn slot_of(mode: Mode) -> usize {
    match mode {
        Mode::User => 0,
        Mode::Kernel | Mode::Boot | Mode::Unknown => 1,
        Mode::HardIrq => 2,
        Mode::SoftIrq => 3,
        Mode::Nmi => 4,
        Mode::Idle => 5,
    }
}

/// Sums of one vCPU.
#[derive(Debug, Default)]
pub(super) struct VcpuSums {
    /// All samples.
    pub samples: u64,
    /// Samples in the guest, or in which it was halted, by mode.
    pub modes: [u64; MODE_COUNT],
    /// Samples in the guest, by [`slot_of`].
    pub tallies: [Tallies; TIMES],
    /// Samples in which the guest was halted.
    pub halted: u64,
    /// Samples during work of the VMM; the rest of `samples` waited for a CPU of the host.
    pub vmm: u64,
    /// Exact time halted, ns.
    pub halted_ns: u64,
}

/// Counts of samples by everything that a report shows.
#[derive(Debug)]
pub(super) struct Sums {
    pub vcpus: BTreeMap<u16, VcpuSums>,
    pub samples: u64,
    pub ticks: TickCounts,
    /// Samples in the guest that are not idle.
    pub busy: u64,
    /// Samples that the whole filter chooses: in the guest, not idle.
    pub chosen: u64,
    pub leaves: InternedCounts<Leaf>,
    pub contexts: InternedCounts<SampleContext>,
    pub tick_log: TickLog,
    /// The ticks of samples that show what their stacks are, if others do not.
    stack_log: Option<TickLog>,
    /// Samples in the guest that are not idle and not among these ticks.
    pub flat: u64,
    pub late: Histogram<u64>,
    pub late_over: u64,
    /// The longest time in which a vCPU was not sampled, ns.
    pub unsampled_ns: u64,
    /// Time of the whole run in which vCPUs were sampled, of all vCPUs together, ns.
    pub all_sampled_ns: u64,
}

/// A row of table `sample`, with indexes instead of row ids.
#[derive(Debug)]
pub(super) struct Sample {
    pub vcpu: u16,
    pub mode: Mode,
    pub instance: Option<u32>,
    pub frame: u32,
    late_ns: u64,
    pub time_ns: u64,
    pub vcpu_state: Option<VcpuState>,
    pub stack: u32,
    /// No stack was taken because of how the sample was taken.
    pub flat: bool,
    pub tid: Option<i32>,
    pub syscall: Option<u32>,
    pub interrupt: Option<u32>,
}

impl Sample {
    /// Calls `each` with the samples of the chosen vCPU and time, those of a vCPU in the order of time.
    pub(super) fn read(
        profile: &Profile,
        (filter, tables): (&Filter, &Tables),
        (code, stacks): (&Code, &Stacks),
        mut each: impl FnMut(&Self),
    ) -> rusqlite::Result<()> {
        // The order of ids is that of time for each vCPU.
        let mut statement = profile.connection().prepare(&format!(
            "SELECT vcpu, mode, instance, frame, late_ns, stack, tid, syscall, interrupt, time_ns, vcpu_state FROM sample \
             WHERE {VCPU_AND_TIME} ORDER BY id",
        ))?;
        let mut rows = statement.query(filter.vcpu_and_time(tables))?;
        while let Some(row) = rows.next()? {
            let mut sample = Self::from_row(row, code, stacks)?;
            // Its frame is left out of its stack: it counts for the next one.
            let stack: Option<u32> = row.get(5)?;
            if stack.is_some_and(|id| stacks.is_shortened(id))
                && let Some(node) = stacks.get(sample.stack)
            {
                sample.frame = node.frame;
            }
            if stacks.get(sample.stack).is_some_and(|node| node.flat) {
                (sample.flat, sample.stack) = (true, NONE);
            }
            each(&sample);
        }
        Ok(())
    }

    fn from_row(row: &Row<'_>, code: &Code, stacks: &Stacks) -> rusqlite::Result<Self> {
        let mode = Mode::from_id(row.get(1)?);
        let mut frame = code.frame(row.get(3)?);
        if mode == Mode::Boot {
            let hit = &code.frames[frame as usize];
            let unnamed = hit.kind == FrameKind::Kernel && !hit.named;
            let module = code.innermost(frame).module.is_some();
            frame = if unnamed && !module { BOOT_FRAME } else { frame };
        }
        Ok(Self {
            vcpu: row.get(0)?,
            mode,
            instance: row.get(2)?,
            frame,
            late_ns: row.get::<_, i64>(4)?.max(0).cast_unsigned(),
            stack: row.get::<_, Option<u32>>(5)?.map_or(NONE, |id| stacks.find(id)),
            flat: false,
            tid: row.get(6)?,
            syscall: row.get(7)?,
            interrupt: row.get(8)?,
            time_ns: unsigned(row, 9)?,
            vcpu_state: row.get_ref(10)?.as_str().ok().and_then(VcpuState::from_name),
        })
    }
}

/// Returns the time of the run in which vCPUs were sampled, of all vCPUs together, ns. One that was added
/// while the VM ran has only the times without samples since then.
fn sampled_ns(rates: &RateHistory, tables: &Tables) -> u64 {
    let sampled =
        |row: &VcpuTotals| row.states.wall().saturating_sub(rates.unsampled_ns(row.id, tables.run_of(row)));
    tables.vcpus.iter().map(sampled).fold(0, u64::saturating_add)
}

impl Sums {
    /// Counts the samples of the chosen vCPU and time, and of those what `selection` chooses.
    pub(super) fn read(
        profile: &Profile,
        filter: &Filter,
        selection: &Selection,
        tables: &Tables,
        (code, stacks): (&Code, &Stacks),
    ) -> rusqlite::Result<Self> {
        let rates = read_rates(profile.connection())?;
        let spans = Span::read(profile.connection(), &rates, tables, filter)?;
        let mixed = stacks.has_flat();
        let by_stack = selection.needs_stacks();
        let mut sums = Self {
            vcpus: BTreeMap::new(),
            samples: 0,
            ticks: TickCounts::default(),
            busy: 0,
            chosen: 0,
            leaves: InternedCounts::new(),
            contexts: InternedCounts::new(),
            tick_log: TickLog::new(tables, &spans, mixed && by_stack),
            stack_log: (mixed && !by_stack).then(|| TickLog::new(tables, &spans, true)),
            flat: 0,
            late: Histogram::new_with_bounds(1, u64::MAX >> 1, 3).expect("three digits are allowed"),
            late_over: 0,
            unsampled_ns: spans.iter().map(|span| span.unsampled_ns).max().unwrap_or(0),
            all_sampled_ns: sampled_ns(&rates, tables),
        };
        Sample::read(profile, (filter, tables), (code, stacks), |sample| {
            sums.add(sample, (selection, filter.relative), (tables, stacks))
        })?;
        for span in &spans {
            sums.vcpus.entry(span.vcpu).or_default().halted_ns = span.halted_ns;
        }
        for log in std::iter::once(&mut sums.tick_log).chain(&mut sums.stack_log) {
            log.close(sums.vcpus.keys().copied(), &spans);
        }
        Ok(sums)
    }

    /// Counts a sample. If shares are `relative`, they are of the samples that `selection` chooses.
    fn add(
        &mut self,
        sample: &Sample,
        (selection, relative): (&Selection, bool),
        (tables, stacks): (&Tables, &Stacks),
    ) {
        let Sample { vcpu, mode, frame, stack, tid, .. } = *sample;
        self.samples += 1;
        self.ticks.count(sample.vcpu_state);
        self.late.saturating_record(sample.late_ns);
        self.late_over += u64::from(sample.late_ns > LATE_NS);
        let guest = sample.vcpu_state == Some(VcpuState::Guest);
        let flat = guest && sample.flat;
        let charged = Charged::from_mode(mode, sample.instance, |id| tables.is_ksoftirqd(id));
        self.flat += u64::from(flat && charged.is_some());
        // Whether it is chosen, is not known.
        if flat && selection.needs_stacks() {
            self.vcpus.entry(vcpu).or_default().samples += 1;
            return;
        }
        let chosen = charged.filter(|charged| selection.chooses(*charged, sample));
        let is_part = if relative { chosen.is_some() } else { charged.is_some() };
        let tick = self.tick_log.tick(vcpu, sample.time_ns, guest, is_part);
        let stack_log = self.stack_log.as_mut().filter(|_| !flat);
        let stack_tick = stack_log.map(|log| log.tick(vcpu, sample.time_ns, guest, is_part));
        let slot = usize::from(mode.id());
        let own = self.vcpus.entry(vcpu).or_default();
        own.samples += 1;
        if !guest {
            let halted = u64::from(sample.vcpu_state == Some(VcpuState::Halted));
            own.modes[slot] += halted;
            own.halted += halted;
            own.vmm += u64::from(sample.vcpu_state == Some(VcpuState::Vmm));
            return;
        }
        own.modes[slot] += 1;
        self.tick_log.add(tick, &mut own.tallies[slot_of(mode)]);
        self.busy += u64::from(charged.is_some());
        let Some(charged) = chosen else { return };
        self.chosen += 1;
        let leaf = self.leaves.count(Leaf { frame, stack, mode, flat });
        let task = matches!(charged, Charged::Instance(_));
        let work = stacks.get(stack).filter(|_| task).map_or(NONE, |node| node.work);
        let thread = ThreadKey { charged, tid: tid.filter(|_| task), work };
        let Sample { syscall, interrupt, .. } = *sample;
        let context =
            self.contexts.count(SampleContext { thread, mode, vm: tables.vm_of(vcpu), syscall, interrupt });
        self.tick_log.hit(tick, leaf, context);
        if let (Some(log), Some(tick)) = (&mut self.stack_log, stack_tick) {
            log.hit(tick, leaf, context);
        }
    }

    /// Returns the ticks of samples with stacks: what a stack shows is estimated from these.
    pub(super) fn stack_log(&self) -> &TickLog {
        self.stack_log.as_ref().unwrap_or(&self.tick_log)
    }

    /// Returns true if some samples count for what they hit, and not for what is on stacks.
    pub(super) fn has_flat(&self) -> bool {
        self.stack_log.is_some()
    }
}
