//! Division of the time of tasks on a CPU, estimated by their samples: events only give its length.

use std::collections::HashMap;

use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use statistics::estimate::{Share, share};

use super::{Key, Stacks, key};
use crate::report::tables::hardirq_bits;
use crate::rows::PageFaultKind;

/// A part of a whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuPart {
    /// Samples in it.
    pub samples: u64,
    /// The estimate, 0 to 1.
    pub share: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The parts of a task's time on a CPU; `user`, `system`, `trap` and `soft` add up to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CpuParts {
    /// Samples of all parts.
    pub samples: u64,
    /// User code.
    pub user: CpuPart,
    /// The kernel outside of what follows: system calls, all work of kernel threads, and the entry and exit
    /// of hard interrupts before and after their events.
    pub system: CpuPart,
    /// Handlers of exceptions of the processor: page faults and the like, from user code or from the kernel's
    /// own.
    pub trap: CpuPart,
    /// Of `trap`: page faults at a program's next instruction.
    pub text_fault: CpuPart,
    /// Of `trap`: page faults at memory that an instruction of a program reads or writes.
    pub data_fault: CpuPart,
    /// Of `trap`: page faults of the kernel at memory of the program.
    pub kernel_fault: CpuPart,
    /// Soft interrupts that were served during that time.
    pub soft: CpuPart,
}

/// Kinds of page faults, in the order of [`PartCounts::faults`].
const FAULTS: [PageFaultKind; 3] = [PageFaultKind::Text, PageFaultKind::Data, PageFaultKind::Kernel];

/// Samples by part.
#[derive(Debug, Clone, Copy, Default)]
struct PartCounts {
    user: u64,
    system: u64,
    trap: u64,
    soft: u64,
    /// Of `trap`: of text, of data, of the kernel.
    faults: [u64; 3],
}

impl PartCounts {
    /// Returns intervals as for independent samples. They are the widest that the sampling clock can make of
    /// these samples, except for tasks in step with it (docs/statistics.md).
    fn parts(self) -> CpuParts {
        let Self { user, system, trap, soft, faults } = self;
        let all = user + system + trap + soft;
        let part = |samples| {
            let Share { share, low, high } = share(samples, all);
            CpuPart { samples, share, low, high }
        };
        let [text_fault, data_fault, kernel_fault] = faults.map(part);
        CpuParts {
            samples: all,
            user: part(user),
            system: part(system),
            trap: part(trap),
            text_fault,
            data_fault,
            kernel_fault,
            soft: part(soft),
        }
    }
}

/// Reads the parts of each task that has samples within `span`, ns since the run's start.
pub(super) fn read(
    connection: &Connection,
    stacks: &Stacks,
    span: (u64, u64),
) -> rusqlite::Result<HashMap<Key, CpuParts>> {
    let traps = stacks.in_exceptions();
    let hardirq_bits = hardirq_bits(connection)?;
    let mut counts: HashMap<Key, PartCounts> = HashMap::new();
    let mut statement = connection.prepare(
        "SELECT s.instance, s.tid, m.name, s.stack, s.fault FROM sample s JOIN mode m ON m.id = s.mode \
         WHERE (m.name IN ('user', 'kernel', 'softirq') OR m.name = 'hardirq' AND s.preempt_count & ?3 = 0) \
         AND s.vcpu_state = 'guest' AND s.instance IS NOT NULL AND s.tid IS NOT NULL AND s.time_ns BETWEEN ?1 AND ?2",
    )?;
    let [from, to] = [span.0, span.1].map(|ns| i64::try_from(ns).unwrap_or(i64::MAX));
    let mut rows = statement.query(params![from, to, hardirq_bits])?;
    while let Some(row) = rows.next()? {
        let counts = counts.entry(key(row, 0)?).or_default();
        let in_trap = row.get::<_, Option<i64>>(3)?.is_some_and(|stack| traps.contains(&stack));
        let count = match row.get_ref(2)?.as_str()? {
            "user" => &mut counts.user,
            "softirq" => &mut counts.soft,
            _ if in_trap => &mut counts.trap,
            _ => &mut counts.system,
        };
        *count += 1;
        if in_trap && let Some(kind) = row.get::<_, Option<String>>(4)? {
            let of = FAULTS.iter().zip(&mut counts.faults).find(|(fault, _)| fault.name() == kind);
            if let Some((_, count)) = of {
                *count += 1;
            }
        }
    }
    Ok(counts.into_iter().map(|(key, counts)| (key, counts.parts())).collect())
}
