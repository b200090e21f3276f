//! Names of interrupts, by the functions on the kernel's stack.

use std::collections::HashMap;

use guest_linux::InterruptTables;

use crate::task_state::InterruptSource;
use profile::rows::{InterruptRow, Mode};

/// Prefix of vectors' entry functions (arch/x86/include/asm/idtentry.h, since 5.8).
const VECTOR_ENTRY: &str = "sysvec_";
/// Prefixes before that: of the entries in assembler, of the functions' inner parts, and of those of FRED
/// (arch/x86/include/asm/idtentry.h, 6.9).
const ENTRY_PARTS: [&str; 4] = ["asm_", "__", "instr_", "fred_"];
/// Functions that serve device interrupts, whatever their handler (arch/x86/entry/entry_64.S,
/// arch/x86/kernel/irq.c, arch/x86/entry/entry_fred.c).
const DEVICE_ENTRIES: [&str; 6] = [
    "common_interrupt",
    "__common_interrupt",
    "do_IRQ",
    "asm_common_interrupt",
    "irq_entries_start",
    "fred_extint",
];
/// Functions that serve vectors without an owner (arch/x86/kernel/apic/apic.c).
const SPURIOUS_ENTRIES: [&str; 4] =
    ["spurious_interrupt", "__spurious_interrupt", "asm_spurious_interrupt", "spurious_entries_start"];
/// Name of such an interrupt.
const SPURIOUS: &str = "spurious interrupt";
/// Name of a device interrupt whose device is not known.
const ANY_DEVICE: &str = "device interrupt";
/// Functions that serve soft interrupts (kernel/softirq.c; the second since 6.9).
const SOFT_ENTRIES: [&str; 2] = ["__do_softirq", "handle_softirqs"];
/// Functions that the handlers of soft interrupts jump to as their last act, and the interrupts' names. Such
/// a handler is on no stack (kernel/rcu/tree.c, kernel/sched/fair.c, block/blk-mq.c and kernel/time/timer.c
/// of 5.10 to 6.12).
const SOFT_TAILS: [(&str, &str); 8] = [
    ("rcu_core", "RCU"),
    ("rebalance_domains", "SCHED"),
    ("sched_balance_domains", "SCHED"),
    ("_nohz_idle_balance", "SCHED"),
    ("nohz_idle_balance", "SCHED"),
    ("blk_complete_reqs", "BLOCK"),
    ("__run_timers", "TIMER"),
    ("run_timer_base", "TIMER"),
];

/// Interrupt that a function on the stack shows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StackClue {
    Hard(String),
    /// Some device interrupt: the handler shows the device.
    Device,
    Soft(String),
    /// Some soft interrupt.
    AnySoft,
}

/// Returns the name of the vector whose entry function this is.
fn vector_of(symbol: &str) -> Option<&str> {
    let inner = ENTRY_PARTS.iter().find_map(|part| symbol.strip_prefix(part)).unwrap_or(symbol);
    inner.strip_prefix(VECTOR_ENTRY).map(base)
}

/// Returns the name without the compiler's suffix of function copies, like `.isra.0`.
fn base(symbol: &str) -> &str {
    symbol.split_once('.').map_or(symbol, |(base, _)| base)
}

/// Returns true if a hard interrupt enters the kernel by this function, or is served by it.
pub(super) fn is_hard_entry(symbol: &str) -> bool {
    vector_of(symbol).is_some() || DEVICE_ENTRIES.contains(&symbol) || SPURIOUS_ENTRIES.contains(&symbol)
}

/// Returns true if this function serves soft interrupts.
pub(super) fn is_soft_entry(symbol: &str) -> bool {
    SOFT_ENTRIES.contains(&symbol)
}

/// Names of interrupts.
#[derive(Debug, Default)]
pub(crate) struct InterruptNames {
    /// By start address of the handler.
    handlers: HashMap<u64, StackClue>,
    /// Names of the lines of vectors, by CPU and vector.
    lines: HashMap<(u32, u8), String>,
    rows: HashMap<(&'static str, String), u32>,
}

impl InterruptNames {
    /// Sets the present handlers. If one function serves several devices, its name lists them all.
    pub(crate) fn update(&mut self, interrupts: &InterruptTables) {
        let mut devices: HashMap<u64, Vec<&str>> = HashMap::new();
        for action in interrupts.lines.iter().flatten().flat_map(|line| &line.actions) {
            let functions = [Some(action.handler), action.thread];
            for function in functions.into_iter().flatten() {
                devices.entry(function.0).or_default().push(&action.name);
            }
        }
        self.handlers.clear();
        for (handler, names) in devices {
            self.handlers.insert(handler, StackClue::Hard(display::clean::printable(&names.join(", "))));
        }
        for softirq in interrupts.softirqs.iter().flatten() {
            if let Some(handler) = softirq.handler {
                self.handlers.insert(handler.0, StackClue::Soft(display::clean::printable(&softirq.name)));
            }
        }
        self.update_lines(interrupts);
    }

    /// Updates the lines. A line that is gone keeps its last name: its interrupts are reported later.
    fn update_lines(&mut self, interrupts: &InterruptTables) {
        let name = |irq: u32| {
            let line = interrupts.lines.iter().flatten().find(|line| line.irq == irq)?;
            let names: Vec<&str> = line.actions.iter().map(|action| action.name.as_str()).collect();
            (!names.is_empty()).then(|| display::clean::printable(&names.join(", ")))
        };
        for vector in interrupts.vectors.iter().flatten() {
            if let Some(name) = name(vector.irq) {
                self.lines.insert((vector.cpu, vector.vector), name);
            }
        }
    }

    /// Returns the row id of a hard interrupt on `vcpu` by its source. `symbol` is the function that called
    /// its handler. `None` while its name is not known, unless this is the `last` chance.
    pub(crate) fn source(
        &mut self,
        vcpu: usize,
        source: InterruptSource,
        symbol: Option<&str>,
        last: bool,
        rows: &mut Vec<InterruptRow>,
    ) -> Option<u32> {
        let known = match source {
            InterruptSource::Vector(vector) => {
                u32::try_from(vcpu).ok().and_then(|cpu| self.lines.get(&(cpu, vector)).cloned())
            }
            InterruptSource::Entry(_) => symbol.map(|symbol| match vector_of(symbol) {
                Some(vector) => vector.to_owned(),
                None if DEVICE_ENTRIES.contains(&symbol) => ANY_DEVICE.to_owned(),
                None => base(symbol).to_owned(),
            }),
            InterruptSource::Unknown => None,
        };
        let name = known.or_else(|| {
            last.then(|| match source {
                InterruptSource::Vector(vector) => format!("vector {vector}"),
                InterruptSource::Entry(_) | InterruptSource::Unknown => "hard interrupt".to_owned(),
            })
        })?;
        Some(self.row("hard", name, rows))
    }

    fn row(&mut self, kind: &'static str, name: String, rows: &mut Vec<InterruptRow>) -> u32 {
        let next = u32::try_from(self.rows.len()).map_or(u32::MAX, |rows| rows.saturating_add(1));
        *self.rows.entry((kind, name)).or_insert_with_key(|(_, name)| {
            rows.push(InterruptRow { id: next, kind: kind.to_owned(), name: name.clone() });
            next
        })
    }

    /// Returns the row id of the interrupt that is served, by the functions on the kernel's stack, innermost
    /// first: start address and symbol.
    pub(crate) fn served<'a>(
        &mut self,
        mode: Mode,
        functions: impl Iterator<Item = (u64, &'a str)>,
        rows: &mut Vec<InterruptRow>,
    ) -> Option<u32> {
        let (kind, name) = match mode {
            Mode::Nmi => ("nmi", "NMI".to_owned()),
            Mode::HardIrq => ("hard", self.hard(functions)?),
            Mode::SoftIrq => ("soft", self.soft(functions)?),
            _ => return None,
        };
        Some(self.row(kind, name, rows))
    }

    fn clue(&self, (start, symbol): (u64, &str)) -> Option<StackClue> {
        let by_symbol = || {
            if let Some(vector) = vector_of(symbol) {
                Some(StackClue::Hard(vector.to_owned()))
            } else if DEVICE_ENTRIES.contains(&symbol) {
                Some(StackClue::Device)
            } else if SPURIOUS_ENTRIES.contains(&symbol) {
                Some(StackClue::Hard(SPURIOUS.to_owned()))
            } else if let Some((_, name)) = SOFT_TAILS.iter().find(|(function, _)| *function == base(symbol))
            {
                Some(StackClue::Soft((*name).to_owned()))
            } else {
                is_soft_entry(symbol).then_some(StackClue::AnySoft)
            }
        };
        self.handlers.get(&start).cloned().or_else(by_symbol)
    }

    fn hard<'a>(&self, functions: impl Iterator<Item = (u64, &'a str)>) -> Option<String> {
        functions.filter_map(|function| self.clue(function)).find_map(|clue| match clue {
            StackClue::Hard(name) => Some(name),
            StackClue::Device => Some(ANY_DEVICE.to_owned()),
            StackClue::Soft(_) | StackClue::AnySoft => None,
        })
    }

    fn soft<'a>(&self, functions: impl Iterator<Item = (u64, &'a str)>) -> Option<String> {
        functions.filter_map(|function| self.clue(function)).find_map(|clue| match clue {
            StackClue::Soft(name) => Some(name),
            StackClue::AnySoft => Some("soft interrupt".to_owned()),
            StackClue::Hard(_) | StackClue::Device => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use guest_linux::{InterruptAction, InterruptLine, InterruptVector, Softirq, VirtAddr};

    use super::*;

    fn names() -> InterruptNames {
        let action = |name: &str, handler| InterruptAction {
            name: name.to_owned(),
            handler: VirtAddr(handler),
            thread: None,
        };
        let softirq =
            |name: &str, handler| Softirq { name: name.to_owned(), handler: Some(VirtAddr(handler)) };
        let mut names = InterruptNames::default();
        names.update(&InterruptTables {
            lines: Ok(vec![
                InterruptLine { irq: 24, actions: vec![action("virtio0-req.0", 0x100)] },
                InterruptLine { irq: 25, actions: vec![action("virtio1-input", 0x100)] },
            ]),
            softirqs: Ok(vec![softirq("NET_RX", 0x200)]),
            vectors: Ok(vec![InterruptVector { cpu: 1, vector: 35, irq: 25 }]),
        });
        names
    }

    #[test]
    fn the_innermost_function_with_a_clue_decides() {
        let (mut names, mut rows) = (names(), Vec::new());
        let mut name = |mode, functions: &[(u64, &str)]| {
            names.served(mode, functions.iter().copied(), &mut rows);
            rows.last().map(|row| format!("{}: {}", row.kind, row.name))
        };
        let timer = [(1, "hrtimer_interrupt"), (2, "sysvec_apic_timer_interrupt"), (3, "__do_softirq")];
        assert_eq!(name(Mode::HardIrq, &timer).as_deref(), Some("hard: apic_timer_interrupt"));
        let disk = [(0x100, "vring_interrupt"), (4, "common_interrupt")];
        assert_eq!(name(Mode::HardIrq, &disk).as_deref(), Some("hard: virtio0-req.0, virtio1-input"));
        let net = [(5, "napi_poll"), (0x200, "net_rx_action"), (3, "__do_softirq")];
        assert_eq!(name(Mode::SoftIrq, &net).as_deref(), Some("soft: NET_RX"));
        assert_eq!(name(Mode::SoftIrq, &[(3, "__do_softirq")]).as_deref(), Some("soft: soft interrupt"));
        let tail = [(6, "load_balance"), (7, "_nohz_idle_balance.isra.0"), (3, "handle_softirqs")];
        assert_eq!(name(Mode::SoftIrq, &tail).as_deref(), Some("soft: SCHED"));
        assert_eq!(name(Mode::Nmi, &[]).as_deref(), Some("nmi: NMI"));
        let entered = [(7, "error_entry"), (8, "asm_sysvec_apic_timer_interrupt")];
        assert_eq!(names.served(Mode::HardIrq, entered.into_iter(), &mut rows), Some(1), "as in the handler");
        assert_eq!(rows.len(), 6);
        assert_eq!(names.served(Mode::Kernel, disk.into_iter(), &mut rows), None);
        assert_eq!(names.served(Mode::HardIrq, [(9, "schedule")].into_iter(), &mut rows), None);
        assert_eq!(names.served(Mode::Nmi, std::iter::empty(), &mut rows), Some(6), "a row is made once");
        for (symbol, name) in [
            ("irq_entries_start", "device interrupt"),
            ("asm_common_interrupt", "device interrupt"),
            ("spurious_entries_start", "spurious interrupt"),
        ] {
            let id = names.served(Mode::HardIrq, [(1, symbol)].into_iter(), &mut rows);
            let row = rows.iter().find(|row| Some(row.id) == id);
            assert_eq!(row.map(|row| row.name.as_str()), Some(name));
        }
    }

    #[test]
    fn what_raises_an_interrupt_names_it() {
        let (mut names, mut rows) = (names(), Vec::new());
        let mut name = |vcpu, source, symbol, last| {
            let id = names.source(vcpu, source, symbol, last, &mut rows)?;
            rows.iter().find(|row| row.id == id).map(|row| row.name.clone())
        };
        let (entry, vector) = (InterruptSource::Entry(5), InterruptSource::Vector(35));
        for symbol in [
            "sysvec_apic_timer_interrupt",
            "fred_sysvec_apic_timer_interrupt",
            "__sysvec_apic_timer_interrupt.cold",
        ] {
            assert_eq!(name(0, entry, Some(symbol), false).as_deref(), Some("apic_timer_interrupt"));
        }
        assert_eq!(name(0, entry, Some("common_interrupt"), false).as_deref(), Some("device interrupt"));
        assert_eq!(name(0, entry, Some("irq_enter"), false).as_deref(), Some("irq_enter"));
        assert_eq!(name(1, vector, None, false).as_deref(), Some("virtio1-input"));
        // Each CPU has its own vectors.
        assert_eq!(
            (name(0, vector, None, false), name(0, InterruptSource::Unknown, None, false)),
            (None, None)
        );
        assert_eq!(name(0, vector, None, true).as_deref(), Some("vector 35"));
        assert_eq!(name(0, InterruptSource::Unknown, None, true).as_deref(), Some("hard interrupt"));
    }
}
