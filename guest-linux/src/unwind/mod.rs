//! Call stacks of the kernel, unwound from a copy of its stacks.
//!
//! ```text
//! registers -> address -> ORC rule: the caller's stack pointer, address and RBP -> caller -> ...
//!                |                                                     `-> pt_regs: an interrupt, an exception,
//!                |                                                         a system call; of user mode: the end
//!                |-> generated code: the rule of what it is a copy of, or its frame pointer
//!                `-> no rule: frame pointer, where a kernel keeps one
//! ```
//!
//! ORC is the table that Linux unwinds itself by: for each run of instructions one rule of six bytes. The
//! image has one (`__start_orc_unwind_ip`: where each rule starts to hold, relative to its own place;
//! `__start_orc_unwind`: the rules), and so has every module (`module.arch`). Rules were laid out in three
//! ways, distinguished by BTF, and name registers by one of two sets of numbers, distinguished by which
//! number nearly all rules have; neither by version:
//!
//! | kernels      | kind                                                                         | exact address      |
//! |--------------|------------------------------------------------------------------------------|--------------------|
//! | until 6.2    | `type:2` call, regs, partial regs; undefined stack pointer with `end`: bottom | regs, partial regs |
//! | 6.3          | the same                                                                     | `signal:1`         |
//! | since 6.4    | `type:3` undefined, bottom, call, regs, partial regs                          | `signal:1`         |
//!
//! Sources: arch/x86/include/asm/orc_types.h and arch/x86/kernel/unwind_orc.c of Linux 5.10, 6.1, 6.3, 6.12
//! and 7.3; arch/x86/kernel/unwind_frame.c and arch/x86/include/asm/frame.h for frame pointers.
//!
//! Tables are the guest's, so nothing in them is believed: at most [`MAX_RULES`] rules are kept, a walk takes
//! no more steps than it may push frames, and the stack pointer may only go down where stacks are switched, a
//! few times.

mod frame_pointer;
mod generated;
mod rule;
mod table;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;

use crate::frame::{KernelWalkError, WalkEnd};
use crate::generated::GeneratedCode;
use crate::kallsyms::table::SymbolTable;
use crate::layout::OrcLayout;
use crate::memory::PhysicalMemory;
use crate::missing::Missing;
use crate::module::Modules;
use crate::stack::{StackCopy, entry_code};
use crate::view::View;
use rule::{RuleFormat, UnwindRule};
use symbols::{AddressKind, CodeAddr, Registers, StackMemory};
use table::{RuleBudget, RuleTable};

/// Rules that are kept of image and modules together, at most, of 12 bytes each; distribution kernels have
/// 400,000 to 900,000.
pub const MAX_RULES: usize = 1 << 21;

/// Functions whose address replaces the return address on the stack, while the guest traces returns
/// (arch/x86/kernel/ftrace_64.S, arch/x86/kernel/rethook.c, arch/x86/kernel/kprobes/core.c).
const RETURN_HOOKS: [&str; 4] =
    ["return_to_handler", "arch_rethook_trampoline", "__kretprobe_trampoline", "kretprobe_trampoline"];

/// Tables of the modules; without ORC only what is code.
fn module_tables<M: PhysicalMemory>(
    view: &View<'_, M>,
    format: Option<&RuleFormat>,
    modules: &Modules,
    budget: &mut RuleBudget,
) -> Vec<RuleTable> {
    match format {
        Some(format) => modules
            .orc_tables()
            .filter_map(|(text, orc)| RuleTable::from_module(view, format, text, orc, budget))
            .collect(),
        None => modules
            .iter()
            .filter_map(|(_, start, size)| Some(RuleTable::empty((start.0, start.0.checked_add(size)?))))
            .collect(),
    }
}

/// Unwinds kernel stacks; immutable, shared between threads.
#[derive(Debug)]
pub struct KernelUnwinder {
    image: (u64, u64),
    /// Table and format of the image's rules, which never change.
    orc: Result<(Arc<RuleTable>, RuleFormat), Missing>,
    /// By start address.
    modules: Arc<Vec<RuleTable>>,
    generated: Arc<GeneratedCode>,
    /// Start and end of the entry code; empty if not known.
    entry: (u64, u64),
    hooks: [u64; RETURN_HOOKS.len()],
    /// `__switch_to_asm`.
    switch: u64,
    /// `__x86_indirect_thunk_array`.
    thunks: u64,
}

impl KernelUnwinder {
    /// Reads the tables.
    pub(crate) fn new<M: PhysicalMemory>(
        view: &View<'_, M>,
        symbols: Option<&SymbolTable>,
        layout: Result<OrcLayout, Missing>,
        modules: &Modules,
    ) -> Self {
        let symbol = |name: &str| symbols.and_then(|symbols| symbols.address_of(name));
        let mut budget = RuleBudget::new(MAX_RULES);
        let orc = layout.and_then(|layout| {
            let place = |name: &str| symbol(name).ok_or_else(|| Missing::NoSymbol(name.into()));
            let addresses = (place("__start_orc_unwind_ip")?, place("__stop_orc_unwind_ip")?);
            let rules = (place("__start_orc_unwind")?, place("__stop_orc_unwind")?);
            let (table, format) =
                RuleTable::from_image(view, layout, addresses, rules, &mut budget).ok_or(Missing::BadOrc)?;
            Ok((Arc::new(table), format))
        });
        Self {
            image: view.image.range(),
            modules: Arc::new(module_tables(
                view,
                orc.as_ref().ok().map(|(_, format)| format),
                modules,
                &mut budget,
            )),
            generated: Arc::default(),
            orc,
            entry: symbols.map(entry_code).unwrap_or_default(),
            hooks: RETURN_HOOKS.map(|name| symbol(name).unwrap_or(0)),
            switch: symbol("__switch_to_asm").unwrap_or(u64::MAX),
            thunks: symbol("__x86_indirect_thunk_array").unwrap_or(u64::MAX),
        }
    }

    /// Returns the same for other modules; what is known of the image is not read again.
    pub(crate) fn with_modules<M: PhysicalMemory>(&self, view: &View<'_, M>, modules: &Modules) -> Self {
        let image = self.orc.as_ref().ok();
        let mut budget = RuleBudget::new(MAX_RULES.saturating_sub(image.map_or(0, |(table, _)| table.len())));
        let modules = module_tables(view, image.map(|(_, format)| format), modules, &mut budget);
        Self {
            orc: self.orc.clone(),
            modules: Arc::new(modules),
            generated: Arc::clone(&self.generated),
            ..*self
        }
    }

    /// Returns the same for other generated code.
    pub fn with_generated(&self, generated: Arc<GeneratedCode>) -> Self {
        Self { orc: self.orc.clone(), modules: Arc::clone(&self.modules), generated, ..*self }
    }

    /// Returns the reason why there are no ORC tables, so that frame pointers are used; `None` where there
    /// are.
    pub fn missing(&self) -> Option<&Missing> {
        self.orc.as_ref().err()
    }

    /// Returns the number of rules known, of image and modules together.
    pub fn rules(&self) -> usize {
        self.orc.as_ref().map_or(0, |(table, _)| table.len())
            + self.modules.iter().map(RuleTable::len).sum::<usize>()
    }

    /// Unwinds from `registers`, those of an interrupted kernel, calling `push` for each frame, innermost
    /// first; `limit` frames at most.
    pub fn walk(
        &self,
        registers: &Registers,
        stack: &impl StackMemory,
        limit: usize,
        push: impl FnMut(CodeAddr),
    ) -> WalkEnd {
        self.walk_from((registers, AddressKind::Exact), stack, limit, push)
    }

    /// Unwinds the kernel stack in `copy`, as [`KernelUnwinder::walk`] does; pushes nothing for a sample in
    /// user mode. Where entry code has no rules, and where a stack that came from user mode just ends, the
    /// user's registers are found by their place on the task's stack.
    pub fn walk_copy(&self, copy: &StackCopy, limit: usize, push: impl FnMut(CodeAddr)) -> WalkEnd {
        if let Some(user) = copy.task_pt_regs().filter(|_| copy.is_user_mode()) {
            return WalkEnd::User(user);
        }
        let mut frames = 0usize;
        let mut push = push;
        let end = self.walk_from((copy.registers(), copy.first()), copy, limit, |frame| {
            frames += 1;
            push(frame);
        });
        let user = match end {
            WalkEnd::Complete | WalkEnd::Broken(KernelWalkError::EntryCode)
                if frames <= 1 && self.is_entry(copy) =>
            {
                copy.entry_registers()
            }
            WalkEnd::Complete => copy.task_pt_regs(),
            _ => None,
        };
        user.map_or(end, WalkEnd::User)
    }

    fn is_entry(&self, copy: &StackCopy) -> bool {
        self.in_entry_code(copy.registers().rip)
    }

    /// Returns true for the code by which the kernel is entered and left (`.entry.text`).
    fn in_entry_code(&self, at: u64) -> bool {
        (self.entry.0..self.entry.1).contains(&at)
    }

    /// Returns the rule that holds at `at`; `None` outside of all code with rules.
    fn rule_at(&self, at: u64) -> Option<UnwindRule> {
        let image = self.orc.as_ref().ok().map(|(table, _)| &**table);
        let table = image.filter(|table| table.contains(at)).or_else(|| self.module_at(at));
        table?.find(at)
    }

    fn module_at(&self, at: u64) -> Option<&RuleTable> {
        let after = self.modules.partition_point(|table| table.start() <= at);
        self.modules.get(after.checked_sub(1)?).filter(|table| table.contains(at))
    }

    /// Returns true for an address in the image or in a module.
    fn is_code(&self, at: u64) -> bool {
        (self.image.0..self.image.1).contains(&at) || self.module_at(at).is_some()
    }
}
