//! Stacks as text: `process;main;work;read 1234`, outermost first.
//!
//! Read by flamegraph.pl, inferno, speedscope and many more. Frames are separated by semicolons and the
//! number by the last blank, so semicolons within names become escapes, as do line ends.

use std::collections::HashMap;
use std::io::Write;

use display::clean::escaped_with;
use profile::report::{CallStack, Recording};
use profile::rows::FrameKind;

use crate::names::symbol;
use crate::sums::{StackParts, Sum, SummedStack, Sums};
use crate::{Count, ExportError, Request, Root};

/// Mark of code of the kernel at the end of a name.
pub(crate) const KERNEL_MARK: &str = "_[k]";
/// Mark of what is not a function, like a program. Names have no control characters.
pub(crate) const ROOT_MARK: &str = "\u{1}";

/// Text of each frame of a recording in a folded line.
pub(crate) struct Names<'a> {
    recording: &'a Recording,
    functions: Vec<String>,
    /// True to mark code of the kernel, as FlameGraph's palettes need it.
    marked: bool,
}

impl<'a> Names<'a> {
    pub(crate) fn new(recording: &'a Recording, marked: bool) -> Self {
        let name = |function| escaped_with(symbol(function), &[';']).into_owned();
        Self { recording, functions: recording.functions.iter().map(name).collect(), marked }
    }

    /// Appends the frames of a stack, outermost first, each with a semicolon before it unless it is the
    /// first.
    pub(crate) fn append(&self, stack: u32, line: &mut String) {
        for entry in self.recording.functions_of(stack) {
            if !line.is_empty() {
                line.push(';');
            }
            let place = entry.function as usize;
            line.push_str(self.functions.get(place).map_or("[unknown]", String::as_str));
            if self.marked {
                let kind = self.recording.functions.get(place).map(|function| function.kind);
                line.push_str(if kind == Some(FrameKind::Kernel) { KERNEL_MARK } else { "" });
            }
        }
    }
}

/// Returns all stacks as text with their numbers, in the order of text.
pub(crate) fn lines(recording: &Recording, (root, count): (Root, Count), marked: bool) -> Vec<(String, u64)> {
    let sums = Sums::new(recording, root);
    let names = Names::new(recording, marked);
    let mark = if marked { ROOT_MARK } else { "" };
    let text = |name: &String| format!("{}{mark}", escaped_with(name, &[';']));
    let roots: Vec<Vec<String>> = sums.roots.iter().map(|names| names.iter().map(text).collect()).collect();
    // Stacks of different addresses may have the same names.
    let mut all: HashMap<String, Sum> = HashMap::with_capacity(sums.stacks.len());
    for SummedStack { root: of_root, parts: StackParts { host, guest }, sum } in &sums.stacks {
        let of_root = roots.get(*of_root as usize).map_or(&[][..], Vec::as_slice);
        let between = if root == Root::Vcpu { 1 } else { of_root.len() };
        let (outer, inner) = of_root.split_at_checked(between).unwrap_or((of_root, &[]));
        let mut line = outer.join(";");
        if let Some(host) = host {
            names.append(*host, &mut line);
        }
        for name in inner {
            line.push(';');
            line.push_str(name);
        }
        if let Some(stack) = guest {
            names.append(*stack, &mut line);
        }
        all.entry(line).or_default().add(*sum);
    }
    let mut lines: Vec<(String, u64)> =
        all.into_iter().map(|(line, sum)| (line, sum.number(count))).collect();
    lines.sort_unstable();
    lines
}

/// Writes the format.
pub(crate) fn write(
    recording: &Recording,
    request: &Request,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    for (line, number) in lines(recording, (request.root, request.count), false) {
        writeln!(out, "{line} {number}")?;
    }
    Ok(())
}

/// Writes the stacks of calls with the numbers of these, below the program unless stacks have no root.
pub(crate) fn write_calls(calls: &[CallStack], root: Root, out: &mut dyn Write) -> Result<(), ExportError> {
    for CallStack { comm, stack, calls } in calls {
        let program = Some(comm).filter(|_| root != Root::None);
        let names = program.into_iter().chain(stack.iter().rev());
        let line: Vec<_> = names.map(|name| escaped_with(name, &[';'])).collect();
        writeln!(out, "{} {calls}", line.join(";"))?;
    }
    Ok(())
}
