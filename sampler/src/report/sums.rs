//! One pass over the samples. Only small integers are touched and kept, so a million samples take well under a second.

use std::collections::{BTreeMap, HashMap, HashSet};

use hdrhistogram::Histogram;
use rusqlite::{Row, params};

use super::{Filter, LATE_NS};
use crate::batch::Mode;
use crate::profile::{MODES, Profile, ProfileError};

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

/// Counts of samples by everything that a report shows.
#[derive(Debug)]
pub(super) struct Sums {
    pub vcpus: BTreeMap<u8, [u64; MODE_COUNT]>,
    pub samples: u64,
    pub busy: u64,
    pub charged: HashMap<Charged, Charge>,
    /// By frame id and mode.
    pub frames: HashMap<(u32, Mode), u64>,
    pub late: Histogram<u64>,
    pub late_over: u64,
}

struct Sample {
    vcpu: u8,
    mode: usize,
    instance: Option<u32>,
    frame: u32,
    late_ns: u64,
}

fn sample(row: &Row<'_>) -> rusqlite::Result<Sample> {
    Ok(Sample {
        vcpu: row.get(0)?,
        mode: usize::from(row.get::<_, u8>(1)?),
        instance: row.get(2)?,
        frame: row.get(3)?,
        late_ns: row.get::<_, i64>(4)?.max(0).cast_unsigned(),
    })
}

impl Sums {
    /// Counts the samples of the chosen vCPU and time; of the chosen instances where only those are wanted.
    pub(super) fn read(
        profile: &Profile,
        filter: &Filter,
        chosen: Option<&HashSet<u32>>,
    ) -> Result<Self, ProfileError> {
        let mut sums = Self {
            vcpus: BTreeMap::new(),
            samples: 0,
            busy: 0,
            charged: HashMap::new(),
            frames: HashMap::new(),
            late: Histogram::new_with_bounds(1, u64::MAX >> 1, 3).expect("three digits are allowed"),
            late_over: 0,
        };
        sums.add_all(profile, filter, chosen).map_err(|error| profile.error(&error))?;
        Ok(sums)
    }

    fn add_all(
        &mut self,
        profile: &Profile,
        filter: &Filter,
        chosen: Option<&HashSet<u32>>,
    ) -> rusqlite::Result<()> {
        let bound = |time: Option<u64>| time.map(|time| i64::try_from(time).unwrap_or(i64::MAX));
        let mut statement = profile.connection().prepare(
            "SELECT vcpu, mode, instance, frame, late_ns FROM sample \
             WHERE (?1 IS NULL OR vcpu = ?1) AND (?2 IS NULL OR time_ns >= ?2) AND (?3 IS NULL OR time_ns < ?3)",
        )?;
        let mut rows = statement.query(params![filter.vcpu, bound(filter.from_ns), bound(filter.to_ns)])?;
        while let Some(row) = rows.next()? {
            self.add(&sample(row)?, chosen);
        }
        Ok(())
    }

    fn add(&mut self, sample: &Sample, chosen: Option<&HashSet<u32>>) {
        let mode = MODES.get(sample.mode).map_or(Mode::Unknown, |(mode, _)| *mode);
        self.samples += 1;
        self.vcpus.entry(sample.vcpu).or_default()[sample.mode.min(MODE_COUNT - 1)] += 1;
        self.late.saturating_record(sample.late_ns);
        self.late_over += u64::from(sample.late_ns > LATE_NS);
        let Some(charged) = Charged::of(mode, sample.instance) else { return };
        self.busy += 1;
        let wanted =
            chosen.is_none_or(|chosen| matches!(charged, Charged::Instance(id) if chosen.contains(&id)));
        if !wanted {
            return;
        }
        let charge = self.charged.entry(charged).or_default();
        if mode == Mode::User {
            charge.user += 1;
        } else {
            charge.kernel += 1;
        }
        *self.frames.entry((sample.frame, mode)).or_default() += 1;
    }
}
