//! Copies of a process by a plan, as the program in the host's kernel makes them (attach/bpf/record.c).

use runtimes::{CopyPlan, CopyStep, NextStep, ProcessMemory, REGISTERS};
use symbols::VirtAddr;

/// Steps that are executed, at most.
const MOST_STEPS: usize = 1536;

/// Parts of a process's memory.
pub struct CopiedMemory(Vec<(u64, Vec<u8>)>);

impl CopiedMemory {
    /// Copies what `plan` leads to from a thread with this FS base.
    pub fn new(plan: &CopyPlan, memory: &impl ProcessMemory, fs_base: u64) -> Self {
        let mut parts = Vec::new();
        let mut registers = [0_u64; REGISTERS];
        registers[0] = fs_base;
        let mut number = 0;
        for _ in 0..MOST_STEPS {
            let Some(step) = plan.steps().get(usize::from(number)) else { break };
            number = execute(step, memory, &mut registers, &mut parts).unwrap_or(step.missing);
        }
        Self(parts)
    }
}

/// Executes a step; returns the number of the next one, `None` if the bytes are not present.
fn execute(
    step: &CopyStep,
    memory: &impl ProcessMemory,
    registers: &mut [u64; REGISTERS],
    parts: &mut Vec<(u64, Vec<u8>)>,
) -> Option<u8> {
    let mut at = 0;
    if let Some(base) = step.base {
        let register = &mut registers[usize::from(base)];
        at = *register & !7;
        if at == 0 {
            return None;
        }
        *register = register.wrapping_add(step.advance.into());
    }
    at = at.wrapping_add(step.offset);
    if step.bytes > 0 {
        if at < 4096 || at >> 63 == 1 {
            return None;
        }
        let bytes = memory.read_bytes(VirtAddr(at), step.bytes.into())?;
        for load in step.loads.iter().flatten() {
            let word = usize::from(load.at);
            let word =
                u64::from_le_bytes(bytes[word..word + 8].try_into().expect("eight bytes")) << load.shift;
            let register = &mut registers[usize::from(load.register)];
            *register = if load.adds { register.wrapping_add(word) } else { word };
        }
        parts.push((at, bytes));
    }
    Some(match step.next {
        NextStep::Always(next) => next,
        NextStep::Compare { registers: [left, right], equal, other } => {
            let [left, right] = [left, right].map(|register| registers[usize::from(register)]);
            if left == right { equal } else { other }
        }
    })
}

impl ProcessMemory for CopiedMemory {
    fn read(&self, at: VirtAddr, into: &mut [u8]) -> Option<()> {
        self.0.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(at.0.checked_sub(*start)?).ok()?;
            into.copy_from_slice(bytes.get(from..from.checked_add(into.len())?)?);
            Some(())
        })
    }
}
