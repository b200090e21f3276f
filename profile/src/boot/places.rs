//! Position of a kernel in its boot, by the outer frames of a stack.

use std::collections::HashMap;

use rusqlite::Connection;

/// Function of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub symbol: String,
    pub module: Option<String>,
    pub kernel: bool,
}

/// Position by the outer frames of a stack. Frame ids are those of the profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BootPosition {
    pub start_kernel: bool,
    /// Function that `start_kernel` called.
    pub early: Option<i64>,
    pub kernel_init: bool,
    /// Function that the outermost `do_one_initcall` called.
    pub initcall: Option<i64>,
    /// Which of the two callers the innermost frame is.
    last: LastCaller,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LastCaller {
    #[default]
    Other,
    StartKernel,
    Initcall,
}

impl BootPosition {
    /// Returns the position with one frame more, further in.
    fn within(self, frame: i64, function: &Function) -> Self {
        let mut place = Self { last: LastCaller::Other, ..self };
        if !function.kernel {
            return place;
        }
        match self.last {
            LastCaller::StartKernel => place.early = Some(frame),
            LastCaller::Initcall if self.initcall.is_none() => place.initcall = Some(frame),
            _ => {}
        }
        match function.symbol.as_str() {
            "start_kernel" => (place.start_kernel, place.last) = (true, LastCaller::StartKernel),
            "kernel_init" => place.kernel_init = true,
            "do_one_initcall" => place.last = LastCaller::Initcall,
            _ => {}
        }
        place
    }
}

/// Frames and stacks of a profile.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub functions: HashMap<i64, Function>,
    stacks: HashMap<i64, (Option<i64>, i64)>,
    places: HashMap<i64, BootPosition>,
}

impl Code {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut code = Self::default();
        let mut statement = connection.prepare("SELECT id, symbol, module, kind, address FROM frame")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (module, kind): (Option<String>, String) = (row.get(2)?, row.get(3)?);
            let symbol: Option<String> = row.get(1)?;
            let address: i64 = row.get(4)?;
            let symbol = symbol.or_else(|| module.clone()).unwrap_or_else(|| format!("{address:#x}"));
            code.functions.insert(row.get(0)?, Function { symbol, module, kernel: kind == "kernel" });
        }
        // A parent has the smaller id; a parent of a damaged profile with a larger one is ignored.
        let mut statement = connection.prepare("SELECT id, parent, frame FROM stack ORDER BY id")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (id, parent, frame): (i64, Option<i64>, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let parent = parent.filter(|parent| code.stacks.contains_key(parent));
            let outer = parent.and_then(|parent| code.places.get(&parent)).copied().unwrap_or_default();
            let place = code.functions.get(&frame).map_or(outer, |function| outer.within(frame, function));
            code.places.insert(id, place);
            code.stacks.insert(id, (parent, frame));
        }
        Ok(code)
    }

    pub(super) fn place(&self, stack: Option<i64>) -> BootPosition {
        stack.and_then(|stack| self.places.get(&stack)).copied().unwrap_or_default()
    }

    /// Returns the frames of a stack, the outermost first.
    pub(super) fn frames(&self, stack: Option<i64>) -> Vec<i64> {
        let mut frames = Vec::new();
        let mut next = stack.and_then(|stack| self.stacks.get(&stack));
        // Each parent precedes its child, so this ends.
        while let Some((parent, frame)) = next {
            frames.push(*frame);
            next = parent.and_then(|parent| self.stacks.get(&parent));
        }
        frames.reverse();
        frames
    }

    pub(super) fn name(&self, frame: i64) -> &str {
        self.functions.get(&frame).map_or("", |function| function.symbol.as_str())
    }
}
