//! Plans of copies: what samples copy of processes besides their stacks, in memory that this process writes
//! and the kernel's program reads.
//!
//! The program takes a plan as it finds it. One that is changed at that moment makes it copy other memory, or
//! none; what it copies is what the guest has there in any case.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use aya::maps::Map;
use runtimes::{CopyPlan, CopyStep, NextStep, REGISTERS, WordLoad};

use super::area::ArrayMapping;
use super::refusal::BpfRefusal;
use super::shared::{PLAN_PROBES, RawLoad, RawPlan, RawStep};
use super::vm::SampledVm;

/// Bits of a root that distinguish processes: an address of a page, without the bit by which page-table
/// isolation distinguishes two tables of one process (as in attach/bpf/record.c).
const ROOT: u64 = 0x000f_ffff_ffff_e000;

/// Least and largest number of plans, and plans for each vCPU. Powers of two.
const LEAST_PLANS: usize = 64;
const MOST_PLANS: usize = 512;
const VCPU_PLANS: usize = 64;

/// Returns the number of plans for a machine with that many vCPUs, a power of two: processes take turns on
/// its CPUs.
pub(super) fn plans_for(vcpus: usize) -> usize {
    vcpus.saturating_mul(VCPU_PLANS).clamp(LEAST_PLANS, MOST_PLANS).next_power_of_two()
}

/// Plans by the page tables of their processes. One thread at a time changes them.
pub(super) struct PlanTable(Mutex<ArrayMapping<RawPlan>>);

impl fmt::Debug for PlanTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanTable").finish_non_exhaustive()
    }
}

/// Handle by which samples of the host's kernel copy more of processes' memory than stacks. Clones are of the
/// same machine.
#[derive(Debug, Clone)]
pub struct ProcessCopies(Arc<PlanTable>);

impl SampledVm {
    /// Returns the handle by which samples copy more of processes' memory.
    pub(crate) fn copies(&self) -> ProcessCopies {
        ProcessCopies(Arc::clone(self.programs.plans()))
    }
}

impl ProcessCopies {
    /// Sets or removes what samples copy in the process whose page tables are at this physical address. Never
    /// waits for a sample. There is room for 64 plans for each vCPU, at most 512, and the last one that was
    /// set has some.
    pub fn set(&self, root: u64, plan: Option<&CopyPlan>) {
        self.0.set(root, plan);
    }
}

impl PlanTable {
    /// Makes the table of a map with `plans` elements, a power of two.
    pub(super) fn new(map: &Map, plans: usize) -> Result<Self, BpfRefusal> {
        Ok(Self(Mutex::new(ArrayMapping::writable(map, plans)?)))
    }

    fn set(&self, root: u64, plan: Option<&CopyPlan>) {
        let root = root & ROOT;
        let area = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let places: Vec<*mut RawPlan> = places(root, area.len())
            .filter_map(|place| area.element(place))
            .map(<*const _>::cast_mut)
            .collect();
        // SAFETY: the root is in the mapping, which lives longer, and aligned; only atomics write it.
        let root_of = |place: *mut RawPlan| unsafe { AtomicU64::from_ptr(&raw mut (*place).root) };
        let has =
            |wanted: u64| places.iter().find(|place| root_of(**place).load(Ordering::Relaxed) == wanted);
        let Some(&place) = has(root).or_else(|| has(0)).or(places.first()) else { return };
        root_of(place).store(0, Ordering::Relaxed);
        let Some(plan) = plan else { return };
        fence(Ordering::Release);
        // SAFETY: the steps are in the mapping, aligned, and written under the lock alone; the kernel reads
        // any bytes.
        unsafe {
            (&raw mut (*place).step).write_volatile(raw(plan));
        }
        root_of(place).store(root, Ordering::Release);
    }
}

/// Returns the places in which the program searches for a plan, of that many, a power of two.
fn places(root: u64, plans: usize) -> impl Iterator<Item = usize> {
    let first = usize::try_from(root.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0);
    (0..PLAN_PROBES).map(move |probe| first.wrapping_add(probe) & plans.wrapping_sub(1))
}

/// Returns the steps as the program has them.
pub(super) fn raw(plan: &CopyPlan) -> [RawStep; CopyPlan::MAX_STEPS] {
    let mut steps = [RawStep::default(); CopyPlan::MAX_STEPS];
    for (raw, step) in steps.iter_mut().zip(plan.steps()) {
        *raw = raw_step(step);
    }
    steps
}

fn raw_step(step: &CopyStep) -> RawStep {
    let (registers, equal, other) = match step.next {
        NextStep::Always(next) => ([0; 2], next, next),
        NextStep::Compare { registers, equal, other } => (registers, equal, other),
    };
    let [left, right] = registers;
    let none = u8::try_from(REGISTERS).unwrap_or(u8::MAX);
    let load = step.loads.map(|load| {
        load.map_or_else(RawLoad::default, |WordLoad { register, at, shift, adds }| RawLoad {
            used: 1,
            into: register,
            shift,
            adds: adds.into(),
            at: u32::from(at) / 8,
        })
    });
    RawStep {
        offset: step.offset,
        bytes: step.bytes.into(),
        base: step.base.unwrap_or(none),
        advance: step.advance,
        left,
        right,
        equal,
        other,
        missing: step.missing,
        unused: [0; 5],
        load,
    }
}

#[cfg(test)]
mod tests {
    use runtimes::RuntimeBinary;
    use runtimes::fixture::{self, php};

    use super::super::area::anonymous_array;
    use super::*;

    /// Returns the plan that the program finds for a process.
    fn found(table: &PlanTable, root: u64) -> Option<RawPlan> {
        let area = table.0.lock().unwrap();
        // SAFETY: in the mapping, and nothing writes it meanwhile.
        let plans = places(root, area.len()).map(|place| unsafe { area.element(place).unwrap().read() });
        plans.into_iter().find(|plan| plan.root == root)
    }

    #[test]
    fn a_plan_is_found_by_the_page_tables_of_its_process() {
        assert_eq!([0, 1, 3, 8, 64].map(plans_for), [64, 64, 256, 512, 512]);
        for plans in [64, 512] {
            check(plans);
        }
    }

    fn check(plans: usize) {
        let table = PlanTable(Mutex::new(anonymous_array(plans)));
        let copies = |binary: RuntimeBinary, memory| binary.plan(&memory, 0).unwrap().0.copies().unwrap();
        let python = copies(RuntimeBinary::Python(fixture::binary((3, 11))), fixture::python((3, 11)));
        let php = copies(RuntimeBinary::Php(php::binary()), php::php((8, 2)));
        let plan = |plan: &CopyPlan, root| Some(RawPlan { root, step: raw(plan) });
        let roots: Vec<u64> = (1..=4 * plans as u64).map(|number| number * 0x4000).collect();
        for &root in &roots {
            assert_eq!(found(&table, root), None);
            table.set(root, Some(&python));
            assert_eq!(found(&table, root), plan(&python, root), "the last one has room");
        }
        let kept = || roots.iter().filter(|root| found(&table, **root).is_some()).count();
        let before = kept();
        assert!(before > plans * 9 / 10, "{before} of {plans}");
        let last = 4 * plans as u64 * 0x4000;
        // With the bits of a CR3, and the second table of page-table isolation.
        table.set(last | 1 << 63 | 0x1fff, Some(&php));
        assert_eq!(found(&table, last), plan(&php, last), "replaced");
        table.set(last, None);
        assert_eq!(found(&table, last), None);
        table.set(last, None);
        assert_eq!(kept(), before - 1, "no other one");
    }
}
