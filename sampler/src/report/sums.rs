//! One pass over the samples. Only small integers are touched and kept, so a million samples take well under a second.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rusqlite::{Row, params};

use super::LATE_NS;
use super::code::{BOOT_FRAME, Code, NONE};
use super::filter::{Filter, Selection};
use super::numbers::NumberMap;
use super::stacks::Stacks;
use crate::batch::{FrameKind, Mode};
use crate::profile::{MODES, Profile};

/// Number of modes.
pub(super) const MODE_COUNT: usize = MODES.len();

/// User and other samples.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Charge {
    pub user: u64,
    pub kernel: u64,
}

impl Charge {
    pub(super) fn all(self) -> u64 {
        self.user + self.kernel
    }

    pub(super) fn add(&mut self, other: Self) {
        self.user += other.user;
        self.kernel += other.kernel;
    }
}

/// Who is charged for a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Charged {
    Instance(u32),
    HardIrq,
    SoftIrq,
    Boot,
    Unknown,
}

impl Charged {
    /// `None` for idleness. Interrupts are not charged to the process that they hit.
    fn of(mode: Mode, instance: Option<u32>) -> Option<Self> {
        match (mode, instance) {
            (Mode::Idle, _) => None,
            (Mode::HardIrq | Mode::Nmi, _) => Some(Self::HardIrq),
            (Mode::SoftIrq, _) => Some(Self::SoftIrq),
            (Mode::Boot, _) => Some(Self::Boot),
            (Mode::User | Mode::Kernel, Some(instance)) => Some(Self::Instance(instance)),
            (Mode::User | Mode::Kernel | Mode::Unknown, _) => Some(Self::Unknown),
        }
    }
}

/// The code that a sample hit: places of a frame and of its stack ([`NONE`] without one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Leaf {
    pub frame: u32,
    pub stack: u32,
    pub mode: Mode,
}

/// A thread, with what a kernel worker was working on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ThreadKey {
    pub charged: Charged,
    pub tid: Option<i32>,
    /// Place of a function, or [`NONE`].
    pub work: u32,
}

/// What a sample of a task was doing for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    /// User code.
    User,
    /// A system call.
    Syscall(u32),
    /// Kernel code without a system call, as page faults and kernel threads are.
    Kernel,
}

/// Counts of samples by everything that a report shows.
#[derive(Debug)]
pub(super) struct Sums {
    pub vcpus: BTreeMap<u8, [u64; MODE_COUNT]>,
    pub samples: u64,
    pub busy: u64,
    /// Not idle, and chosen by the whole filter.
    pub chosen: u64,
    pub charged: NumberMap<Charged, Charge>,
    pub leaves: NumberMap<Leaf, u64>,
    pub threads: NumberMap<ThreadKey, u64>,
    /// By mode and `interrupt.id`.
    pub interrupts: NumberMap<(Mode, Option<u32>), u64>,
    pub doing: NumberMap<Doing, u64>,
    pub late: Histogram<u64>,
    pub late_over: u64,
}

/// A row of table `sample`, with places instead of row ids.
#[derive(Debug)]
pub(super) struct Sample {
    vcpu: u8,
    pub mode: Mode,
    instance: Option<u32>,
    pub frame: u32,
    late_ns: u64,
    pub stack: u32,
    pub tid: Option<i32>,
    syscall: Option<u32>,
    interrupt: Option<u32>,
}

impl Sample {
    fn of(row: &Row<'_>, code: &Code, stacks: &Stacks) -> rusqlite::Result<Self> {
        let mode = usize::from(row.get::<_, u8>(1)?);
        let mode = MODES.get(mode).map_or(Mode::Unknown, |(mode, _)| *mode);
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
            tid: row.get(6)?,
            syscall: row.get(7)?,
            interrupt: row.get(8)?,
        })
    }
}

impl Sums {
    /// Counts the samples of the chosen vCPU and time, and of those what `selection` chooses.
    pub(super) fn read(
        profile: &Profile,
        filter: &Filter,
        selection: &Selection,
        code: &Code,
        stacks: &Stacks,
    ) -> rusqlite::Result<Self> {
        let mut sums = Self {
            vcpus: BTreeMap::new(),
            samples: 0,
            busy: 0,
            chosen: 0,
            charged: NumberMap::default(),
            leaves: NumberMap::default(),
            threads: NumberMap::default(),
            interrupts: NumberMap::default(),
            doing: NumberMap::default(),
            late: Histogram::new_with_bounds(1, u64::MAX >> 1, 3).expect("three digits are allowed"),
            late_over: 0,
        };
        let bound = |time: Option<u64>| time.map(|time| i64::try_from(time).unwrap_or(i64::MAX));
        let mut statement = profile.connection().prepare(
            "SELECT vcpu, mode, instance, frame, late_ns, stack, tid, syscall, interrupt FROM sample \
             WHERE (?1 IS NULL OR vcpu = ?1) AND (?2 IS NULL OR time_ns >= ?2) AND (?3 IS NULL OR time_ns < ?3)",
        )?;
        let mut rows = statement.query(params![filter.vcpu, bound(filter.from_ns), bound(filter.to_ns)])?;
        while let Some(row) = rows.next()? {
            sums.add(&Sample::of(row, code, stacks)?, selection, stacks);
        }
        Ok(sums)
    }

    fn add(&mut self, sample: &Sample, selection: &Selection, stacks: &Stacks) {
        let Sample { mode, frame, stack, tid, .. } = *sample;
        self.samples += 1;
        let slot = MODES.iter().position(|(known, _)| *known == mode).unwrap_or(MODE_COUNT - 1);
        self.vcpus.entry(sample.vcpu).or_default()[slot] += 1;
        self.late.saturating_record(sample.late_ns);
        self.late_over += u64::from(sample.late_ns > LATE_NS);
        let Some(charged) = Charged::of(mode, sample.instance) else { return };
        self.busy += 1;
        if !selection.chooses(charged, sample) {
            return;
        }
        self.chosen += 1;
        let user = u64::from(mode == Mode::User);
        self.charged.entry(charged).or_default().add(Charge { user, kernel: 1 - user });
        *self.leaves.entry(Leaf { frame, stack, mode }).or_default() += 1;
        let task = matches!(charged, Charged::Instance(_));
        let work = stacks.get(stack).filter(|_| task).map_or(NONE, |node| node.work);
        let thread = ThreadKey { charged, tid: tid.filter(|_| task), work };
        *self.threads.entry(thread).or_default() += 1;
        match mode {
            Mode::HardIrq | Mode::SoftIrq | Mode::Nmi => {
                *self.interrupts.entry((mode, sample.interrupt)).or_default() += 1;
            }
            Mode::User => *self.doing.entry(Doing::User).or_default() += 1,
            Mode::Kernel => {
                let doing = sample.syscall.map_or(Doing::Kernel, Doing::Syscall);
                *self.doing.entry(doing).or_default() += 1;
            }
            Mode::Idle | Mode::Boot | Mode::Unknown => {}
        }
    }
}
