//! CFI written by code, walked on a stack written by code.

mod ends;
mod hostile;
mod rules;
mod tables;
mod without_cfi;

use std::collections::BTreeMap;

use super::{CodeMapping, CodeMappings, ImageCode, UserEnd, UserFrame, UserUnwinder};
use crate::address::VirtAddr;
use crate::fixture::cfi as builder;
use crate::registers::{Registers, StackMemory};
use builder::Builder;

/// Load address of the file of these tests.
const BIAS: u64 = 0x5555_0000_0000;
/// Address of code made at run time.
const JIT: u64 = 0x7000_0000_0000;
/// The stack pointer at the start of a walk.
const RSP: u64 = 0x7fff_0000_1000;

/// Words by address; all others were not copied.
#[derive(Debug, Clone, Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    not_present: Option<u64>,
}

impl Words {
    fn new(words: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self { words: words.into_iter().collect(), not_present: None }
    }
}

impl StackMemory for Words {
    fn read_u64(&self, at: u64) -> Option<u64> {
        self.words.get(&at).copied()
    }
    fn is_not_present(&self, at: u64) -> bool {
        self.not_present == Some(at)
    }
}

/// One file of 64 KiB of code, of which `code` is known, and one page made at run time.
#[derive(Debug)]
struct Process<'a> {
    file: ImageCode<'a>,
    code: Vec<(u64, Vec<u8>)>,
}

impl CodeMappings for Process<'_> {
    fn find(&self, VirtAddr(address): VirtAddr) -> Option<CodeMapping<'_>> {
        match address {
            BIAS..0x5555_0001_0000 => Some(CodeMapping { id: 1, bias: BIAS, code: self.file }),
            JIT..0x7000_0000_1000 => Some(CodeMapping { id: 0, bias: 0, code: ImageCode::Anonymous }),
            _ => None,
        }
    }
    fn code(&self, VirtAddr(address): VirtAddr, into: &mut [u8]) -> Option<()> {
        self.code.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            into.copy_from_slice(bytes.get(offset..offset + into.len())?);
            Some(())
        })
    }
}

/// Registers at `rip` with this stack pointer and frame pointer.
fn registers(rip: u64, rsp: u64, rbp: u64) -> Registers {
    let mut registers = Registers { rip, ..Registers::default() };
    registers.gpr[Registers::RSP] = rsp;
    registers.gpr[Registers::RBP] = rbp;
    registers
}

fn walk_with(process: &Process<'_>, registers: &Registers, stack: &Words) -> (Vec<UserFrame>, UserEnd) {
    let mut frames = Vec::new();
    let end = UserUnwinder::new().walk(registers, stack, process, 32, |frame| frames.push(frame));
    (frames, end)
}

/// Walks with `builder`'s tables and without knowing any code.
fn walk(builder: Builder, registers: &Registers, stack: &Words) -> (Vec<UserFrame>, UserEnd) {
    let table = builder.table();
    walk_with(&Process { file: ImageCode::Cfi(&table), code: Vec::new() }, registers, stack)
}

fn addresses(frames: &[UserFrame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.at.address.0).collect()
}
