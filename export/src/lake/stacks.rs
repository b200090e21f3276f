//! Stacks as text, and their numbers.

use std::collections::HashMap;

use display::clean::{cut, escaped_with};
use profile::report::Recording;
use profile::rows::FrameKind;

use super::keys::LONGEST_NAME;
use super::rows::StackRow;
use super::window::hash;
use super::{CommonColumns, OTHER};
use crate::names::symbol;

/// Longest text of a stack, bytes: the 127 frames of `vprof attach` with names of 250 bytes.
const LONGEST_STACK: usize = 32 << 10;
/// Functions of a stack by which the rows are in order: more make files no smaller.
const MOST_CALLERS: usize = 64;
/// Outermost frame of a stack that is longer.
const CUT: &str = "[more frames]";

/// Stacks of a recording by their text. The text itself is made again where it is needed: a guest could make
/// up more of it than fits in memory.
pub(super) struct StackTexts<'a> {
    recording: &'a Recording,
    /// Names of functions.
    names: Vec<String>,
    /// By stack of the recording.
    numbers: HashMap<u32, i64>,
    /// A stack of the recording with each number.
    stacks: HashMap<i64, u32>,
}

/// Text of a stack.
#[derive(Debug, Default, PartialEq, Eq)]
struct StackText {
    /// Innermost first, separated by semicolons.
    frames: String,
    depth: u64,
    /// Reasons why frames are missing or doubtful.
    reasons: Vec<u32>,
}

impl<'a> StackTexts<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        let name = |function| cut(&escaped_with(symbol(function), &[';']), LONGEST_NAME);
        let names = recording.functions.iter().map(name).collect();
        Self { recording, names, numbers: HashMap::new(), stacks: HashMap::new() }
    }

    /// Returns the number of a stack: equal texts have the same on all hosts.
    pub(super) fn number(&mut self, stack: u32) -> i64 {
        if let Some(number) = self.numbers.get(&stack) {
            return *number;
        }
        let number = number_of(&self.text(stack).frames);
        self.numbers.insert(stack, number);
        self.stacks.entry(number).or_insert(stack);
        number
    }

    /// Returns the row of a number that [`Self::number`] has returned, or of [`other`].
    pub(super) fn row<'r>(&self, number: i64, common: &CommonColumns<'r>) -> StackRow<'r> {
        let text = match self.stacks.get(&number) {
            Some(stack) => self.text(*stack),
            None => StackText { frames: OTHER.to_owned(), depth: 1, reasons: Vec::new() },
        };
        let reasons: Vec<&str> = text.reasons.iter().filter_map(|function| self.name(*function)).collect();
        StackRow {
            t: common.t,
            host: common.host,
            stack: number,
            depth: text.depth,
            doubtful: (!reasons.is_empty()).into(),
            reason: reasons.join(";"),
            frames: text.frames,
        }
    }

    /// Returns the outermost functions of a number's stack, the outermost first; none of [`other`].
    pub(super) fn callers(&self, number: i64) -> Vec<u32> {
        let stack = self.stacks.get(&number);
        let functions = stack.into_iter().flat_map(|stack| self.recording.functions_of(*stack));
        functions.take(MOST_CALLERS).map(|entry| entry.function).collect()
    }

    fn name(&self, function: u32) -> Option<&str> {
        self.names.get(function as usize).map(String::as_str)
    }

    fn text(&self, stack: u32) -> StackText {
        let mut text = StackText::default();
        for frame in self.recording.frames_of(stack) {
            for entry in self.recording.entries_of(frame) {
                let name = self.name(entry.function).unwrap_or(OTHER);
                if !text.frames.is_empty() {
                    text.frames.push(';');
                }
                text.depth += 1;
                if text.frames.len() + name.len() > LONGEST_STACK {
                    text.frames.push_str(CUT);
                    return text;
                }
                text.frames.push_str(name);
                let function = self.recording.functions.get(entry.function as usize);
                if function.is_some_and(|function| function.kind == FrameKind::Reason) {
                    text.reasons.push(entry.function);
                }
            }
        }
        text
    }
}

/// Returns the number of the stack of rows named [`OTHER`].
pub(super) fn other() -> i64 {
    number_of(OTHER)
}

/// Returns the number of a text. It is of a cryptographic hash: a guest cannot make up two stacks that have
/// the same.
fn number_of(text: &str) -> i64 {
    hash(&[text]).cast_signed()
}
