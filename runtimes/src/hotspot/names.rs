//! Names, files and lines of methods.

use symbols::VirtAddr;

use super::Member;
use super::compressed::{CompressedReader, parse_lines};
use super::layout::{HotspotLayout, MethodLayout};
use super::scopes::MethodPoint;
use crate::ProcessMemory;
use crate::frames::ManagedFrame;

/// Bytes of a class's or method's name, at most.
const MAX_NAME: u64 = 4096;
/// Bytes of a line table that are read, at most: 5 for each line of a method that is as long as one can be.
const MAX_LINES: u64 = 128 << 10;
/// Bytes of a line table that are read at once.
const CHUNK: u64 = 512;
/// Method that native code implements (JVM specification, table 4.6-A).
const ACC_NATIVE: u64 = 0x100;

/// Method of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JavaMethod {
    /// Class and method: `java.util.HashMap.get`.
    pub name: String,
    /// Source file without its directories; `None` for classes without one.
    pub file: Option<String>,
    /// Bytecode indices and lines, by index.
    lines: Vec<(u32, u32)>,
}

impl JavaMethod {
    /// Returns the line that `frame` of this method executes; `None` where it is not known.
    pub fn line(&self, frame: &ManagedFrame) -> Option<u32> {
        let index = frame.instruction?;
        let after = self.lines.partition_point(|&(start, _)| start <= index);
        Some(self.lines.get(after.checked_sub(1)?)?.1)
    }
}

/// Words of a method that lead to its names.
#[derive(Debug, Clone, Copy)]
pub(super) struct MethodWords {
    const_method: VirtAddr,
    class: VirtAddr,
    class_name: VirtAddr,
    name: VirtAddr,
    source: Option<VirtAddr>,
    code_size: u64,
    identity: u32,
    /// The method is native code.
    pub is_native: bool,
}

impl MethodWords {
    /// Reads the words of the `Method` at `method`; `None` unless its structures lead to each other as those
    /// of a method do.
    pub(super) fn read(memory: &impl ProcessMemory, layout: &MethodLayout, method: VirtAddr) -> Option<Self> {
        if !method.0.is_multiple_of(8) {
            return None;
        }
        let const_method = layout.const_method.pointer(memory, method)?;
        let value = |member: Member| member.read(memory, const_method);
        let pool = VirtAddr(value(layout.constants)?);
        let class = layout.pool_holder.pointer(memory, pool)?;
        if layout.class_constants.pointer(memory, class)? != pool {
            return None;
        }
        let length = layout.pool_length.read(memory, pool)?;
        let entry = |index: u64| {
            let entries = pool.checked_add(layout.pool_size.into())?;
            let at = entries.checked_add(index.checked_mul(8)?)?;
            memory.read_u64(at).filter(|_| index > 0 && index < length).map(VirtAddr)
        };
        let name = entry(value(layout.name_index)?)?;
        let signature = entry(value(layout.signature_index)?)?;
        let class_name = layout.class_name.pointer(memory, class)?;
        let source = match (layout.pool_source, layout.class_source) {
            (Some(member), _) => member.read(memory, pool)?,
            (None, Some(member)) => member.read(memory, class)?,
            (None, None) => 0,
        };
        let code_size = value(layout.code_size)?;
        let parts = [const_method, pool, class, class_name, name, signature, VirtAddr(code_size)];
        Some(Self {
            const_method,
            class,
            class_name,
            name,
            source: entry(source),
            code_size,
            identity: hash(&parts)?,
            is_native: layout.access_flags.read(memory, method)? & ACC_NATIVE != 0,
        })
    }

    /// Returns the frame of this method at `point`. A bytecode that the method does not have is not known.
    pub(super) fn frame(&self, point: MethodPoint) -> ManagedFrame {
        let bytecode = point.bytecode.filter(|&index| !self.is_native && u64::from(index) < self.code_size);
        ManagedFrame { code: point.method, instruction: bytecode, identity: self.identity }
    }

    /// Returns the index of the bytecode at `at`; `None` if it is not the method's.
    pub(super) fn bytecode(&self, layout: &MethodLayout, at: VirtAddr) -> Option<u32> {
        let first = self.const_method.checked_add(layout.const_method_size.into())?;
        let index = at.offset_from(first).filter(|&index| index < self.code_size)?;
        u32::try_from(index).ok()
    }
}

/// Reads the method of `frame`; `None` if it cannot be read, or if its memory has another method by now.
pub(super) fn read_method(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    frame: &ManagedFrame,
) -> Option<JavaMethod> {
    let methods = &layout.method;
    let words = MethodWords::read(memory, methods, frame.code)?;
    let class = class_name(&symbol(memory, methods, words.class_name)?);
    let name = symbol(memory, methods, words.name)?;
    let file = words.source.and_then(|source| symbol(memory, methods, source));
    let lines = read_lines(memory, layout, &words).unwrap_or_default();
    // Read last: a method that was replaced meanwhile is noticed, too.
    let after = MethodWords::read(memory, methods, frame.code)?;
    let is_same = after.identity == frame.identity && after.class == words.class;
    is_same.then(|| JavaMethod { name: format!("{class}.{name}"), file, lines })
}

/// Returns the name of a class as Java writes it, of `java/util/Map$Entry` or, for hidden classes,
/// `Main$$Lambda+0x00007f0001000400`.
fn class_name(internal: &str) -> String {
    let name = internal.replace('/', ".");
    match name.rsplit_once("+0x") {
        Some((class, number)) if number.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{class}/0x{number}")
        }
        _ => name,
    }
}

/// Reads a `Symbol`.
fn symbol(memory: &impl ProcessMemory, layout: &MethodLayout, at: VirtAddr) -> Option<String> {
    let length = layout.symbol_length.read(memory, at).filter(|&length| length > 0)?;
    let body = at.checked_add(layout.symbol_body.into())?;
    let bytes = memory.read_bytes(body, length.min(MAX_NAME))?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the lines of a method: its table follows its bytecode.
fn read_lines(
    memory: &impl ProcessMemory,
    layout: &HotspotLayout,
    words: &MethodWords,
) -> Option<Vec<(u32, u32)>> {
    let methods = &layout.method;
    if methods.flags.read(memory, words.const_method)? & methods.has_lines == 0 {
        return None;
    }
    let code = words.const_method.checked_add(methods.const_method_size.into())?;
    let start = code.checked_add(words.code_size)?;
    let mut bytes = Vec::new();
    // Its length is not known: it ends in itself.
    while (bytes.len() as u64) < MAX_LINES {
        let at = start.checked_add(bytes.len() as u64)?;
        // The table may end just before a page that is not present.
        bytes.extend(memory.read_bytes(at, CHUNK - at.0 % CHUNK)?);
        let lines = parse_lines(CompressedReader::new(&bytes, layout.no_zero_bytes));
        if lines.is_some() {
            return lines;
        }
    }
    None
}

/// Returns the hash of the words that identify a method.
fn hash(parts: &[VirtAddr]) -> Option<u32> {
    let mut hash = 0_u64;
    for part in parts {
        // Multiplication by 2^64 divided by the golden ratio spreads close addresses.
        hash = (hash ^ part.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 32;
    }
    u32::try_from(hash & 0xffff_ffff).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_names_that_java_writes() {
        for (internal, wanted) in [
            ("java/util/Map$Entry", "java.util.Map$Entry"),
            ("Main$$Lambda+0x00007f0001000400", "Main$$Lambda/0x00007f0001000400"),
            ("a/B+0xyz", "a.B+0xyz"),
            ("Main", "Main"),
        ] {
            assert_eq!(class_name(internal), wanted);
        }
    }
}
