//! Machine code of one function, and the positions of samples in it.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;

use super::code::{Code, Frame, NONE, matches};
use super::filter::{Filter, no_such_symbol};
use super::read::LoadedProfile;
use super::tick_log::TickLog;
use super::view::{RowLists, View, frames};
use super::{Estimate, ReportError, is_emulated};
use crate::naming::is_nameless;
use crate::rows::FrameKind;
use crate::store::Profile;
use display::clean::printable;

/// Largest part of a function's code that is read, bytes. Functions of the kernel have up to 64 KiB.
pub const MOST_CODE: u32 = 256 << 10;
/// Limit of functions whose code is looked for, those with most samples: vprof keeps that of as many.
const MOST_TRIED: usize = 512;
/// Limit of functions of one name that are listed.
const MOST_LISTED: usize = 8;

/// Function to annotate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name, or an address in it that was sampled, or its first one, as `0x...`.
    pub symbol: String,
    /// Kernel module or file name, if several have a function of that name; `kernel` for the kernel image.
    pub module: Option<String>,
}

/// A function with its code and the samples in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Annotation {
    /// The function.
    pub symbol: String,
    /// Kernel module, or file name of user code.
    pub module: Option<String>,
    /// `user` or `kernel`.
    pub kind: String,
    /// True if no symbol covers it: its name only gives its start.
    pub nameless: bool,
    /// True if the host was emulated, so that samples are exact to a block of code only.
    pub emulated: bool,
    /// Address of its first byte; of the ELF file for user code of a file.
    pub start: u64,
    /// Its code, at most [`MOST_CODE`]; `None` if the profile has none.
    pub code: Option<Vec<u8>>,
    /// Source of the code: `guest memory` or `file`.
    pub read: Option<String>,
    /// Samples in it, and in what it called.
    pub own: Estimate,
    /// Samples with it on their stack, each counted once.
    pub total: Estimate,
    /// Samples by address.
    pub hits: BTreeMap<u64, Hit>,
    /// Names of other functions of the same module, by their first address.
    #[serde(skip)]
    pub names: BTreeMap<u64, String>,
}

/// Samples at an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Samples at this instruction.
    pub own: u64,
    /// Samples in what was called by the instruction before this address.
    pub called: u64,
    /// Samples in what has interrupted this instruction: a fault, or an interrupt.
    pub interrupted: u64,
    /// Source file and line, if known.
    pub source: Option<String>,
}

/// Identity of a function among all of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    function: u32,
    file: Option<u32>,
    start: u64,
}

impl Place {
    fn new(code: &Code, at: u32, frame: &Frame) -> Self {
        Self { function: code.own(at), file: frame.file, start: frame.address.wrapping_sub(frame.offset) }
    }
}

impl Annotation {
    /// Reads one function with the samples that `filter` chooses.
    ///
    /// # Errors
    /// See [`ReportError`]: no function of that name, or several.
    pub fn read(profile: &Profile, filter: &Filter, target: &Target) -> Result<Self, ReportError> {
        let loaded = LoadedProfile::read(profile, filter)?;
        let view = loaded.view();
        let place = choose(&view, target)?;
        Self::of_place(profile, &view, place)
    }

    /// Returns the functions with most own samples among those whose code the profile has: at most
    /// `most`, most samples first.
    pub(super) fn hottest(profile: &Profile, view: &View<'_>, most: usize) -> Result<Vec<Self>, ReportError> {
        let mut own: BTreeMap<Place, u64> = BTreeMap::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            let frame = &view.code.frames[leaf.frame as usize];
            if frame.named && frame.kind != FrameKind::Reason {
                *own.entry(Place::new(view.code, leaf.frame, frame)).or_default() += samples;
            }
        }
        let mut places: Vec<(Place, u64)> = own.into_iter().collect();
        places.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        let mut found = Vec::new();
        for (place, _) in places.into_iter().take(MOST_TRIED) {
            if found.len() == most {
                break;
            }
            let module = view.code.functions[place.function as usize].module.as_deref();
            let code = read_code(profile.connection(), place, module);
            if code.map_err(|error| profile.error(&error))?.is_some() {
                found.push(Self::of_place(profile, view, place)?);
            }
        }
        Ok(found)
    }

    fn of_place(profile: &Profile, view: &View<'_>, place: Place) -> Result<Self, ReportError> {
        let function = &view.code.functions[place.function as usize];
        let found = read_code(profile.connection(), place, function.module.as_deref());
        let (code, read) = found.map_err(|error| profile.error(&error))?.unzip();
        let mut annotation = Self {
            symbol: function.symbol.clone(),
            module: function.module.clone(),
            kind: function.kind.name().to_owned(),
            nameless: is_nameless(Some(&function.symbol), function.module.as_deref(), place.start, 0),
            emulated: view.tables.meta.get("host").is_some_and(|host| is_emulated(host)),
            start: place.start,
            code,
            read,
            own: Estimate::default(),
            total: Estimate::default(),
            hits: BTreeMap::new(),
            names: names(view.code, place),
        };
        annotation.count(view, place);
        Ok(annotation)
    }

    fn count(&mut self, view: &View<'_>, place: Place) {
        let is = |at: u32| Place::new(view.code, at, &view.code.frames[at as usize]) == place;
        let chosen: Vec<bool> = (0..view.code.frames.len()).map(|at| is(super::code::small(at))).collect();
        // Rows: the function's own samples, and its total.
        let mut rows = RowLists::default();
        let mut seen = Vec::new();
        for &(leaf, samples) in &view.sums.leaves.list {
            seen.clear();
            if chosen[leaf.frame as usize] {
                rows.push(0);
                self.hit(view.code, leaf.frame).own += samples;
                seen.push(view.code.frames[leaf.frame as usize].address);
            }
            let on_stack = frames(view.stacks, &leaf).filter(|&at| at != leaf.frame && chosen[at as usize]);
            for at in on_stack {
                let address = view.code.frames[at as usize].address;
                if !seen.contains(&address) {
                    let hit = self.hit(view.code, at);
                    let count = if view.code.frames[at as usize].call {
                        &mut hit.called
                    } else {
                        &mut hit.interrupted
                    };
                    *count += samples;
                    seen.push(address);
                }
            }
            if !seen.is_empty() {
                rows.push(1);
            }
            rows.end();
        }
        let estimates = |log: &TickLog| log.estimates(2, |hit| rows.get(hit.leaf));
        let (own, total) = (estimates(&view.sums.tick_log), estimates(view.sums.stack_log()));
        if let ([own, _], [_, total]) = (&own[..], &total[..]) {
            (self.own, self.total) = (*own, *total);
        }
    }

    fn hit(&mut self, code: &Code, at: u32) -> &mut Hit {
        let frame = &code.frames[at as usize];
        let hit = self.hits.entry(frame.address).or_default();
        if hit.source.is_none() {
            let line = code.entries[frame.slots()].first().map_or(NONE, |entry| entry.line);
            hit.source = code.lines.get(line as usize).map(|at| match at.line {
                Some(line) => format!("{}:{line}", at.source),
                None => at.source.clone(),
            });
        }
        hit
    }
}

/// Returns the function that `target` names.
fn choose(view: &View<'_>, target: &Target) -> Result<Place, ReportError> {
    let code = view.code;
    let address = target.symbol.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let mut places: Vec<(bool, Place)> = Vec::new();
    for (at, frame) in code.frames.iter().enumerate().filter(|(_, f)| f.named && f.kind != FrameKind::Reason)
    {
        let place = Place::new(code, super::code::small(at), frame);
        let function = &code.functions[place.function as usize];
        let module = function.module.as_deref().unwrap_or("kernel");
        let wanted = match address {
            Some(address) => place.start == address || frame.address == address,
            None => matches(&function.symbol, &target.symbol),
        };
        if wanted && target.module.as_deref().is_none_or(|wanted| wanted == module) {
            places.push((function.symbol == target.symbol || Some(place.start) == address, place));
        }
    }
    // The exact name takes precedence over names that only begin with it, and a first address over others.
    if places.iter().any(|(exact, _)| *exact) {
        places.retain(|(exact, _)| *exact);
    }
    let mut places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
    places.sort_unstable();
    places.dedup();
    match places.as_slice() {
        [place] => Ok(*place),
        [] => Err(none(view, target)),
        several => {
            Err(ReportError::Ambiguous { wanted: printable(&target.symbol), found: list(code, several) })
        }
    }
}

fn none(view: &View<'_>, target: &Target) -> ReportError {
    let code = view.code;
    let named = code.named(&target.symbol);
    if !named.contains(&true) {
        return no_such_symbol(&target.symbol, code);
    }
    let mut into = Vec::new();
    let mut modules = Vec::new();
    for (at, frame) in code.frames.iter().enumerate() {
        let entries = &code.entries[frame.slots()];
        let own = &code.functions[code.own(super::code::small(at)) as usize];
        let Some(entry) = entries.iter().find(|entry| named[entry.function as usize]) else { continue };
        let function = &code.functions[entry.function as usize];
        let module = function.module.clone().unwrap_or_else(|| "kernel".to_owned());
        if target.module.as_ref().is_some_and(|wanted| *wanted != module) {
            modules.push(module);
        } else {
            into.push(own.symbol.clone());
        }
    }
    for names in [&mut into, &mut modules] {
        names.sort();
        names.dedup();
        names.truncate(MOST_LISTED);
    }
    let advice = if into.is_empty() {
        format!("--module may be {}", modules.join(", "))
    } else {
        format!("the compiler has copied it into {}: annotate that function", into.join(", "))
    };
    let what = "separate code for";
    ReportError::NoSuch { what, wanted: printable(&target.symbol), advice: printable(&advice) }
}

/// Lists functions of one name by module and address.
fn list(code: &Code, places: &[Place]) -> String {
    let name = |place: &Place| {
        let function = &code.functions[place.function as usize];
        let module = function.module.as_deref().unwrap_or("kernel");
        format!("{} of {module} at {:#x}", function.symbol, place.start)
    };
    let mut names: Vec<String> = places.iter().take(MOST_LISTED).map(name).collect();
    if places.len() > MOST_LISTED {
        names.push(format!("{} more", places.len() - MOST_LISTED));
    }
    printable(&names.join("; "))
}

/// Returns first addresses of the sampled functions of the same module.
fn names(code: &Code, of: Place) -> BTreeMap<u64, String> {
    let kind = code.functions[of.function as usize].kind;
    let same = |frame: &&Frame| frame.named && frame.kind == kind && frame.file == of.file;
    let frames = code.frames.iter().filter(same);
    frames
        .map(|frame| {
            let slots = frame.slots();
            let own = code.entries[slots.end - 1].function;
            (frame.address.wrapping_sub(frame.offset), code.functions[own as usize].symbol.clone())
        })
        .collect()
}

/// Reads the code from the function's start to the end of what was kept.
fn read_code(
    connection: &Connection,
    place: Place,
    module: Option<&str>,
) -> rusqlite::Result<Option<(Vec<u8>, String)>> {
    // A function's row begins at or shortly before it; of several the nearest is the best.
    let sql = "SELECT substr(bytes, ?1 - start + 1, ?4), read FROM code \
               WHERE start <= ?1 AND ?1 - start < length(bytes) \
               AND file IS ?2 AND (?2 IS NOT NULL OR module IS ?3) ORDER BY start DESC LIMIT 1";
    let start = place.start.cast_signed();
    let values = params![start, place.file, module, MOST_CODE];
    connection.query_row(sql, values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
}
