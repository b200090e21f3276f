//! Tree of stacks in memory.
//!
//! A parent precedes its children, so each walk outwards ends, even in a damaged profile.
//!
//! The profile has both the frames of a managed language and those of its runtime, which run them. A tree has
//! one kind of them:
//!
//! ```text
//! profile   main, run, eval, a, b, call, eval, c, add, sin
//! managed   main,            a, b,             c,      sin    without those of the runtime's file
//! native    main, run, eval,       call, eval,    add, sin
//! ```
//!
//! Functions of Java and JavaScript, and those of Ruby and PHP that are compiled, run in code that the
//! runtime generates, which has no file: the runtime's file is that of the next frame outwards which has one,
//! and all generated code inside of it is the runtime's.

use std::collections::{BTreeMap, HashMap, HashSet};

use rusqlite::Connection;

use super::code::{Code, Frame, NONE, UNKNOWN_FRAME, small};
use super::number_map::NumberMap;
use crate::rows::{FLAT, FrameKind};

/// The kernel function that calls the work functions of kernel worker threads (kernel/workqueue.c, Linux
/// 6.1).
const WORK_CALLER: &str = "process_one_work";
/// Limit of frames per stack. No walk takes so many; only a damaged profile has them.
pub(super) const MOST_FRAMES: usize = 4_096;
/// `frame.module` of functions that may run in generated code.
const GENERATING: [&str; 4] = ["java", "javascript", "ruby", "php"];
/// `frame.module` of a reason that ended a walk over user code.
const USER: &str = "user";
/// `frame.module` of a doubt about the frames of user code: the walk reached the end.
pub(super) const DOUBT: &str = "doubt";

/// A row of table `stack`: a frame and its callers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The caller, or [`NONE`].
    pub parent: u32,
    /// The frame.
    pub frame: u32,
    /// The function that a worker thread was working on, or [`NONE`].
    pub work: u32,
    /// The function that gives the reason why kernel frames are missing, or [`NONE`].
    pub kernel_broken: u32,
    /// The function that gives the reason why user frames are missing, or [`NONE`].
    pub user_broken: u32,
    /// True if no stack was taken because of how the sample was taken.
    pub flat: bool,
    /// True if not all user frames follow from unwind tables.
    pub doubtful: bool,
    /// True if there are kernel frames.
    pub kernel: bool,
    /// True if there are user frames, or a reason why not.
    pub user: bool,
    /// The caller of a managed frame that is called from here, or [`NONE`]: without the frames of the same
    /// file that precede it.
    managed_caller: u32,
    /// Runtime that runs the managed frames up to here.
    runtime: Option<Runtime>,
    /// File of the next user frame outwards, or of this one, that has a file.
    file: Option<u32>,
}

/// Native code of a managed language.
#[derive(Debug, Clone, Copy)]
struct Runtime {
    file: Option<u32>,
    /// It runs its functions in code without a file.
    generates: bool,
}

impl Runtime {
    /// Returns true if a native frame with this file is the runtime's.
    fn has(self, file: Option<u32>) -> bool {
        if file.is_some() { file == self.file } else { self.generates }
    }
}

/// All stacks of a profile.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    nodes: Vec<Node>,
    index: NumberMap<u32, u32>,
    /// Row ids of stacks whose innermost frame is left out.
    shortened: HashSet<u32>,
}

/// Returns the frame from which work functions are called: the frame of [`WORK_CALLER`] which calls most
/// functions. `WORK_CALLER` also calls helpers, each from another address.
fn work_caller(rows: &[(u32, Option<u32>, u32)], code: &Code) -> Option<u32> {
    let calls = |frame: u32| {
        let function = &code.functions[code.own(frame) as usize];
        function.kind == FrameKind::Kernel && function.module.is_none() && function.symbol == WORK_CALLER
    };
    let callers: HashMap<u32, u32> =
        rows.iter().filter(|(.., frame)| calls(*frame)).map(|&(id, _, frame)| (id, frame)).collect();
    let mut called: BTreeMap<u32, HashSet<u32>> = BTreeMap::new();
    for (_, parent, frame) in rows {
        if let Some(caller) = parent.and_then(|parent| callers.get(&parent)) {
            called.entry(*caller).or_default().insert(code.own(*frame));
        }
    }
    called.into_iter().max_by_key(|(_, functions)| functions.len()).map(|(frame, _)| frame)
}

impl Stacks {
    /// Reads table `stack`, with the frames of runtimes (`native`) or of the functions that they interpret.
    pub(super) fn read(connection: &Connection, code: &Code, native: bool) -> rusqlite::Result<Self> {
        let mut statement = connection.prepare("SELECT id, parent, frame FROM stack ORDER BY id")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, code.frame(row.get(2)?))))?;
        let rows: Vec<(u32, Option<u32>, u32)> = rows.collect::<rusqlite::Result<_>>()?;
        let caller = work_caller(&rows, code);
        let mut stacks = Self::default();
        for (id, parent, frame) in rows {
            let mut parent = parent.map_or(NONE, |id| stacks.find(id));
            let outer = stacks.get(parent).copied();
            let mut runtime = outer.and_then(|outer| outer.runtime);
            let Frame { kind, file, .. } = code.frames[frame as usize];
            let is_managed = kind == FrameKind::Managed;
            let is_of_runtime = kind == FrameKind::User && runtime.is_some_and(|runtime| runtime.has(file));
            if (native && is_managed) || (!native && is_of_runtime) {
                stacks.index.insert(id, parent);
                stacks.shortened.insert(id);
                continue;
            }
            if is_managed {
                let file = || outer.and_then(|outer| outer.file);
                let module = code.functions[code.own(frame) as usize].module.as_deref();
                let generates = || module.is_some_and(|module| GENERATING.contains(&module));
                let ran_by = runtime.unwrap_or_else(|| Runtime { file: file(), generates: generates() });
                parent = match outer {
                    Some(_) if ran_by.generates => stacks.outside(ran_by, parent, code),
                    _ => outer.map_or(NONE, |outer| outer.managed_caller),
                };
                runtime = Some(ran_by);
            }
            let node = Node { runtime, ..stacks.node(parent, frame, code, caller) };
            let place = small(stacks.nodes.len());
            stacks.index.insert(id, place);
            stacks.nodes.push(Node { managed_caller: stacks.managed_caller(place, &node, code), ..node });
        }
        Ok(stacks)
    }

    /// Returns true if the innermost frame of the stack with this row id is left out.
    pub(super) fn is_shortened(&self, id: u32) -> bool {
        self.shortened.contains(&id)
    }

    /// Returns the index of the first node, outwards from that with index `place`, that is not the runtime's.
    fn outside(&self, runtime: Runtime, mut place: u32, code: &Code) -> u32 {
        while let Some(node) = self.get(place) {
            let frame = &code.frames[node.frame as usize];
            if frame.kind != FrameKind::User || !runtime.has(frame.file) {
                break;
            }
            place = node.parent;
        }
        place
    }

    /// Returns [`Node::managed_caller`] of the node that will have the index `place`.
    fn managed_caller(&self, place: u32, node: &Node, code: &Code) -> u32 {
        let frame = &code.frames[node.frame as usize];
        let Some(file) = frame.file.filter(|_| frame.kind == FrameKind::User) else { return place };
        match self.get(node.parent) {
            Some(caller) if code.frames[caller.frame as usize].file == Some(file) => caller.managed_caller,
            _ => node.parent,
        }
    }

    fn node(&self, parent: u32, frame: u32, code: &Code, caller: Option<u32>) -> Node {
        let mut node = match self.get(parent) {
            Some(caller) => Node { parent, frame, ..*caller },
            None => Node {
                parent: NONE,
                frame,
                work: NONE,
                kernel_broken: NONE,
                user_broken: NONE,
                flat: false,
                doubtful: false,
                kernel: false,
                user: false,
                managed_caller: NONE,
                runtime: None,
                file: None,
            },
        };
        let found = &code.frames[frame as usize];
        if found.kind == FrameKind::User && found.file.is_some() {
            node.file = found.file;
        }
        let own = code.own(frame);
        let function = &code.functions[own as usize];
        match function.kind {
            FrameKind::Kernel => node.kernel |= frame != UNKNOWN_FRAME,
            FrameKind::User | FrameKind::Managed => node.user = true,
            FrameKind::Reason if function.module.as_deref() == Some(USER) => {
                node.user = true;
                node.user_broken = own;
            }
            FrameKind::Reason if function.module.as_deref() == Some(DOUBT) => {
                node.user = true;
                node.doubtful = true;
            }
            FrameKind::Reason if function.module.as_deref() == Some(FLAT) => node.flat = true,
            FrameKind::Reason => node.kernel_broken = own,
        }
        if self.get(parent).is_some_and(|parent| Some(parent.frame) == caller) {
            node.work = own;
        }
        node
    }

    /// Returns the index of the stack with this row id, or [`NONE`].
    pub(super) fn find(&self, id: u32) -> u32 {
        self.index.get(&id).copied().unwrap_or(NONE)
    }

    /// Returns true if some samples have no stack because of how they were taken.
    pub(super) fn has_flat(&self) -> bool {
        self.nodes.iter().any(|node| node.flat)
    }

    /// Returns all stacks, a caller before its callees.
    pub(super) fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a stack by its index.
    pub(super) fn get(&self, place: u32) -> Option<&Node> {
        self.nodes.get(place as usize)
    }

    /// Returns the frames of a stack, innermost first.
    pub(super) fn frames(&self, place: u32) -> impl Iterator<Item = u32> {
        let mut next = self.get(place);
        std::iter::from_fn(move || {
            let node = next?;
            next = self.get(node.parent);
            Some(node.frame)
        })
        .take(MOST_FRAMES)
    }

    /// Returns for each stack whether one of these functions is on it, inlined or not.
    pub(super) fn with(&self, code: &Code, functions: &[bool]) -> Vec<bool> {
        let mut with: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let above = with.get(node.parent as usize).copied().unwrap_or(false);
            with.push(above || has(code, node.frame, functions));
        }
        with
    }
}

/// True if one of these functions is at a frame.
pub(super) fn has(code: &Code, frame: u32, functions: &[bool]) -> bool {
    code.entries[code.frames[frame as usize].slots()].iter().any(|entry| functions[entry.function as usize])
}
