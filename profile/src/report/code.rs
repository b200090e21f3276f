//! Code of a profile in memory: frames with their functions and source lines.
//!
//! A frame has one entry for its own function, and one for each function that the compiler has copied into it
//! there, the innermost first. Functions and lines are stored once, so that all counting works on small
//! numbers.

use std::collections::HashMap;

use rusqlite::Connection;

use super::number_map::NumberMap;
use super::tables::{Instance, UNKNOWN};
use crate::naming::is_nameless;
use crate::rows::FrameKind;

/// No function, line, frame or stack.
pub(super) const NONE: u32 = u32::MAX;
/// The frame of samples whose own frame is missing in the profile.
pub(super) const UNKNOWN_FRAME: u32 = 0;
/// The frame of samples in unnamed code before the kernel has tasks.
pub(super) const BOOT_FRAME: u32 = 1;
/// Name of [`BOOT_FRAME`].
pub(super) const EARLY_BOOT: &str = "[early boot]";
/// Limit of inlined functions of one frame.
const MOST_INLINED: usize = 256;

/// A function; or the reason of a stack's end, according to `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Function {
    pub symbol: String,
    pub module: Option<String>,
    pub kind: FrameKind,
}

/// A source line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub source: String,
    pub line: Option<u32>,
}

/// One function at a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Index of the function.
    pub function: u32,
    /// Index of the line, or [`NONE`].
    pub line: u32,
}

/// A row of table `frame`.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub address: u64,
    pub call: bool,
    pub kind: FrameKind,
    pub instance: Option<u32>,
    pub file: Option<u32>,
    pub offset: u64,
    /// True if a symbol is known, or a name that gives the start of its function.
    pub named: bool,
    /// True if no symbol is known, and at most the start of its function.
    pub nameless: bool,
    /// Index of its first entry; `count` is at least one.
    first: u32,
    entries: u32,
}

impl Frame {
    /// Returns the indexes of its entries in [`Code::entries`], innermost first.
    pub(super) fn slots(&self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first + self.entries as usize
    }
}

/// All frames of a profile.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub frames: Vec<Frame>,
    pub entries: Vec<Entry>,
    pub functions: Vec<Function>,
    pub lines: Vec<Line>,
    index: NumberMap<u32, u32>,
}

/// Inlined functions of a frame: symbol and line, innermost first.
type Inlined = HashMap<u32, Vec<(String, Option<Line>)>>;

/// Numbers of equal things.
#[derive(Debug)]
struct Interner<T>(HashMap<T, u32>);

impl<T: std::hash::Hash + Eq + Clone> Interner<T> {
    fn id(&mut self, list: &mut Vec<T>, thing: T) -> u32 {
        if let Some(&id) = self.0.get(&thing) {
            return id;
        }
        let id = small(list.len());
        list.push(thing.clone());
        self.0.insert(thing, id);
        id
    }
}

/// Converts an index. There are less than 2^32 of anything here, since each has a row in the profile.
pub(super) fn small(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE - 1)
}

impl Code {
    /// Reads tables `frame` and `inlined`.
    pub(super) fn read(
        connection: &Connection,
        instances: &HashMap<u32, Instance>,
    ) -> rusqlite::Result<Self> {
        let mut inlined = read_inlined(connection)?;
        let mut code = Self::default();
        let (mut functions, mut lines) = (Interner(HashMap::new()), Interner(HashMap::new()));
        // Two frames that are not in the table come first, so that [`UNKNOWN_FRAME`] and [`BOOT_FRAME`] are
        // constants.
        for name in [UNKNOWN, EARLY_BOOT] {
            let kind = FrameKind::Kernel;
            let function =
                functions.id(&mut code.functions, Function { symbol: name.to_owned(), module: None, kind });
            let (address, offset, named) = (0, 0, false);
            let frame = Frame {
                address,
                call: false,
                kind,
                instance: None,
                file: None,
                offset,
                named,
                nameless: true,
                first: 0,
                entries: 0,
            };
            code.push(frame, [Entry { function, line: NONE }]);
        }
        let mut statement = connection.prepare(
            "SELECT id, address, call, kind, instance, file, symbol, module, offset, source, line FROM frame",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let id: u32 = row.get(0)?;
            let symbol: Option<String> = row.get(6)?;
            let module: Option<String> = row.get(7)?;
            let address = row.get::<_, i64>(1)?.cast_unsigned();
            let offset = row.get::<_, i64>(8)?.cast_unsigned();
            let frame = Frame {
                address,
                call: row.get(2)?,
                kind: kind(row.get_ref(3)?.as_str()?),
                instance: row.get(4)?,
                file: row.get(5)?,
                offset,
                named: symbol.is_some(),
                nameless: is_nameless(symbol.as_deref(), module.as_deref(), address, offset),
                first: 0,
                entries: 0,
            };
            let function = name(&frame, symbol, module, instances);
            // A copied function has no module in the table: its code is in that of the function around it.
            let module = function.module.clone();
            let own = line(row.get(9)?, row.get(10)?);
            let mut entries = Vec::with_capacity(1);
            for (symbol, at) in inlined.remove(&id).unwrap_or_default() {
                let function = Function { symbol, module: module.clone(), kind: frame.kind };
                entries.push((function, at));
            }
            entries.push((function, own));
            let entries: Vec<Entry> = entries
                .into_iter()
                .map(|(function, at)| Entry {
                    function: functions.id(&mut code.functions, function),
                    line: at.map_or(NONE, |at| lines.id(&mut code.lines, at)),
                })
                .collect();
            code.index.insert(id, small(code.frames.len()));
            code.push(frame, entries);
        }
        Ok(code)
    }

    fn push(&mut self, mut frame: Frame, entries: impl IntoIterator<Item = Entry>) {
        let first = self.entries.len();
        self.entries.extend(entries);
        frame.first = small(first);
        frame.entries = small(self.entries.len() - first);
        self.frames.push(frame);
    }

    /// Returns the index of the frame with this row id, [`UNKNOWN_FRAME`] if there is none.
    pub(super) fn frame(&self, id: u32) -> u32 {
        self.index.get(&id).copied().unwrap_or(UNKNOWN_FRAME)
    }

    /// Returns the innermost function at a frame.
    pub(super) fn innermost(&self, frame: u32) -> &Function {
        let frame = &self.frames[frame as usize];
        &self.functions[self.entries[frame.first as usize].function as usize]
    }

    /// Returns the function that a frame's code was compiled into: the outermost at that frame.
    pub(super) fn own(&self, frame: u32) -> u32 {
        let slots = self.frames[frame as usize].slots();
        self.entries[slots.end - 1].function
    }

    /// Returns for each function whether `wanted` names it.
    pub(super) fn named(&self, wanted: &str) -> Vec<bool> {
        let is = |f: &Function| f.kind != FrameKind::Reason && matches(&f.symbol, wanted);
        self.functions.iter().map(is).collect()
    }

    /// Returns the names of functions, without names in brackets.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let named = |f: &&Function| f.kind != FrameKind::Reason && !f.symbol.starts_with('[');
        self.functions.iter().filter(named).map(|f| f.symbol.as_str())
    }
}

/// True if `wanted` is the name of a function, or its name without the arguments of a demangled name, or
/// without the suffix that a compiler gives to a part of a function (`.isra.0`, `.cold`).
pub(super) fn matches(symbol: &str, wanted: &str) -> bool {
    !wanted.is_empty()
        && symbol.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['(', '.']))
}

/// Returns the name of a function's module; `kernel` for the kernel image.
pub(super) fn module_name(function: &Function) -> &str {
    match (&function.module, function.kind) {
        (Some(module), _) => module,
        (None, FrameKind::User | FrameKind::Managed) => UNKNOWN,
        (None, _) => "kernel",
    }
}

fn read_inlined(connection: &Connection) -> rusqlite::Result<Inlined> {
    let mut inlined = Inlined::new();
    let mut statement =
        connection.prepare("SELECT frame, symbol, source, line FROM inlined ORDER BY frame, depth")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let list = inlined.entry(row.get(0)?).or_default();
        if list.len() < MOST_INLINED {
            list.push((row.get(1)?, line(row.get(2)?, row.get(3)?)));
        }
    }
    Ok(inlined)
}

fn kind(name: &str) -> FrameKind {
    match name {
        "user" => FrameKind::User,
        "managed" => FrameKind::Managed,
        "reason" => FrameKind::Reason,
        _ => FrameKind::Kernel,
    }
}

fn line(source: Option<String>, line: Option<u32>) -> Option<Line> {
    source.map(|source| Line { source, line })
}

/// Returns the name of a frame's own function. Code without a name has that of its module; user code without
/// a module that of its program; kernel code without either its address.
fn name(
    frame: &Frame,
    symbol: Option<String>,
    module: Option<String>,
    instances: &HashMap<u32, Instance>,
) -> Function {
    let program = || {
        let comm = frame.instance.and_then(|id| instances.get(&id)).map(|instance| instance.comm.clone());
        comm.unwrap_or_else(|| UNKNOWN.to_owned())
    };
    let named = symbol.or_else(|| module.as_ref().map(|module| format!("[{module}]")));
    match frame.kind {
        FrameKind::User => Function {
            symbol: named.unwrap_or_else(|| "[user]".to_owned()),
            module: Some(module.unwrap_or_else(program)),
            kind: FrameKind::User,
        },
        kind => Function { symbol: named.unwrap_or_else(|| format!("{:#x}", frame.address)), module, kind },
    }
}
