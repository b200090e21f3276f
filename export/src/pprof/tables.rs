//! Texts, functions, locations and mappings of a pprof profile, each once.

use std::collections::HashMap;

use display::clean::escaped;
use profile::report::{RecordedFrame, Recording};

use super::proto::{Function, Line, Location, Mapping};
use crate::mapped::MappedContent;
use crate::names::symbol;

/// The table of texts.
#[derive(Debug)]
pub(crate) struct Strings {
    pub list: Vec<String>,
    /// Length of all texts, bytes.
    pub bytes: usize,
    places: HashMap<String, i64>,
}

impl Default for Strings {
    fn default() -> Self {
        Self { list: vec![String::new()], bytes: 0, places: HashMap::from([(String::new(), 0)]) }
    }
}

impl Strings {
    /// Returns the index of a text.
    pub(crate) fn place(&mut self, text: &str) -> i64 {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        let place = i64::try_from(self.list.len()).unwrap_or(0);
        self.bytes += text.len();
        self.list.push(text.to_owned());
        self.places.insert(text.to_owned(), place);
        place
    }
}

/// Locations with what they refer to; the ids of all count from 1.
#[derive(Debug)]
pub(crate) struct Code<'a> {
    recording: &'a Recording,
    /// By frame; 0: none yet.
    of_frame: Vec<u64>,
    locations: Vec<Location>,
    functions: Vec<Function>,
    /// By function, and the text of its source file.
    known_functions: HashMap<(u32, i64), u64>,
    mappings: Vec<(MappedContent, Mapping)>,
    known_mappings: HashMap<MappedContent, usize>,
}

impl<'a> Code<'a> {
    pub(crate) fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            of_frame: vec![0; recording.frames.len()],
            locations: Vec::new(),
            functions: Vec::new(),
            known_functions: HashMap::new(),
            mappings: Vec::new(),
            known_mappings: HashMap::new(),
        }
    }

    /// Returns the id of a frame's location.
    pub(crate) fn location(&mut self, place: u32, strings: &mut Strings) -> u64 {
        let known = self.of_frame.get(place as usize).copied().unwrap_or(0);
        let (0, Some(frame)) = (known, self.recording.frames.get(place as usize)) else { return known };
        let line = self.lines(place, strings);
        // An address within the call, by which readers find the line of the call.
        let address = frame.address.saturating_sub(u64::from(frame.call));
        let mapping_id = self.mapping(frame, address, &line);
        let id = self.locations.len() as u64 + 1;
        self.locations.push(Location { id, mapping_id, address, line });
        if let Some(of_frame) = self.of_frame.get_mut(place as usize) {
            *of_frame = id;
        }
        id
    }

    fn lines(&mut self, place: u32, strings: &mut Strings) -> Vec<Line> {
        let recording = self.recording;
        let mut lines = Vec::new();
        for entry in recording.entries_of(place) {
            let at = entry.line.and_then(|line| recording.lines.get(line as usize));
            let filename = at.map_or(0, |at| strings.place(&escaped(&at.source)));
            let next = self.functions.len() as u64 + 1;
            let function_id = *self.known_functions.entry((entry.function, filename)).or_insert(next);
            if function_id == next {
                let name = recording.functions.get(entry.function as usize).map_or("[unknown]", symbol);
                let name = strings.place(&escaped(name));
                self.functions.push(Function { id: next, name, system_name: name, filename });
            }
            lines.push(Line { function_id, line: at.and_then(|at| at.line).unwrap_or(0).into() });
        }
        lines
    }

    /// Returns the id of the mapping of an address, which grows to include it; 0 for reasons.
    fn mapping(&mut self, frame: &RecordedFrame, address: u64, lines: &[Line]) -> u64 {
        let Some(mapped) = MappedContent::new(self.recording, frame) else { return 0 };
        let next = self.mappings.len();
        let place = *self.known_mappings.entry(mapped.clone()).or_insert(next);
        if place == next {
            let id = next as u64 + 1;
            let memory_start = address;
            self.mappings.push((mapped, Mapping { id, memory_start, ..Mapping::default() }));
        }
        let Some((mapped, mapping)) = self.mappings.get_mut(place) else { return 0 };
        // Addresses of a file count from 0; other addresses are those in memory.
        let from = if matches!(mapped, MappedContent::File(_)) { 0 } else { address & !0xfff };
        mapping.memory_start = mapping.memory_start.min(from);
        mapping.memory_limit = mapping.memory_limit.max((address | 0xfff).saturating_add(1));
        mapping.has_functions = true;
        mapping.has_inline_frames |= lines.len() > 1;
        mapping.has_line_numbers |= lines.iter().any(|line| line.line > 0);
        mapping.has_filenames |= mapping.has_line_numbers;
        mapping.id
    }

    /// Returns the three tables.
    pub(crate) fn finish(self, strings: &mut Strings) -> (Vec<Mapping>, Vec<Location>, Vec<Function>) {
        let Self { recording, locations, functions, mappings, .. } = self;
        let mappings = mappings.into_iter().map(|(mapped, mut mapping)| {
            let (name, build_id) = mapped.name(recording);
            mapping.filename = strings.place(&escaped(&name));
            mapping.build_id = strings.place(&escaped(build_id.unwrap_or_default()));
            mapping
        });
        (mappings.collect(), locations, functions)
    }
}
