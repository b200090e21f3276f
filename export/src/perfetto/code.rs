//! Interned data of a trace: names, frames and stacks, each once and before the first packet that refers to
//! it.

use std::collections::HashMap;

use display::clean::escaped;
use profile::report::{RecordedFrame, Recording, ThreadPlace};

use super::proto::{Callstack, Frame, InternedData, InternedString, Mapping};
use crate::mapped::MappedContent;
use crate::names::symbol;

/// Texts with their numbers, which count from 1.
#[derive(Debug, Default)]
struct Texts(HashMap<Vec<u8>, u64>);

impl Texts {
    /// Returns the number of a text, which is added to `new` if it has none yet.
    fn place(&mut self, text: &[u8], new: &mut Vec<InternedString>) -> u64 {
        if let Some(&known) = self.0.get(text) {
            return known;
        }
        let iid = self.0.len() as u64 + 1;
        self.0.insert(text.to_vec(), iid);
        new.push(InternedString { iid, str: text.to_vec() });
        iid
    }
}

/// The interned data, and the part of it that no packet has yet.
#[derive(Debug)]
pub(super) struct Code<'a> {
    recording: &'a Recording,
    functions: Texts,
    paths: Texts,
    build_ids: Texts,
    sources: Texts,
    mappings: HashMap<MappedContent, u64>,
    /// Numbers of the frames of each of the recording's frames, the outermost first.
    frames: Vec<Vec<u64>>,
    frame_count: u64,
    /// Numbers of the recording's stacks; 0 for one that has none yet.
    stacks: Vec<u64>,
    /// Numbers of stacks of the host, and of the frames that are their places.
    host_stacks: HashMap<(ThreadPlace, u32), u64>,
    places: HashMap<ThreadPlace, u64>,
    stack_count: u64,
    new: InternedData,
}

impl<'a> Code<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        Self {
            recording,
            functions: Texts::default(),
            paths: Texts::default(),
            build_ids: Texts::default(),
            sources: Texts::default(),
            mappings: HashMap::new(),
            frames: vec![Vec::new(); recording.frames.len()],
            frame_count: 0,
            stacks: vec![0; recording.stacks.len()],
            host_stacks: HashMap::new(),
            places: HashMap::new(),
            stack_count: 0,
            new: InternedData::default(),
        }
    }

    /// Returns the number of a stack; one of the host has the thread's place as its outermost frame.
    pub(super) fn stack(&mut self, stack: u32, place: Option<ThreadPlace>) -> u64 {
        let known = match place {
            Some(place) => self.host_stacks.get(&(place, stack)),
            None => self.stacks.get(stack as usize),
        };
        if let Some(&known) = known.filter(|known| **known > 0) {
            return known;
        }
        let mut frames: Vec<u32> = self.recording.frames_of(stack).collect();
        frames.reverse();
        let mut frame_ids = Vec::with_capacity(frames.len() + 1);
        frame_ids.extend(place.map(|place| self.place_frame(place)));
        for frame in frames {
            self.add_frame(frame);
            frame_ids.extend(self.frames.get(frame as usize).into_iter().flatten());
        }
        self.stack_count += 1;
        if let Some(place) = place {
            self.host_stacks.insert((place, stack), self.stack_count);
        } else if let Some(number) = self.stacks.get_mut(stack as usize) {
            *number = self.stack_count;
        }
        self.new.callstacks.push(Callstack { iid: self.stack_count, frame_ids });
        self.stack_count
    }

    /// Returns the number of the frame of a place.
    fn place_frame(&mut self, place: ThreadPlace) -> u64 {
        if let Some(&known) = self.places.get(&place) {
            return known;
        }
        let name = place.owner();
        let function_name_id = self.functions.place(name.as_bytes(), &mut self.new.function_names);
        let mapping_id = self.mapping_of(MappedContent::Anonymous(None));
        self.frame_count += 1;
        let iid = self.frame_count;
        self.new.frames.push(Frame { iid, function_name_id, mapping_id, ..Frame::default() });
        self.places.insert(place, iid);
        iid
    }

    /// Takes the data that no packet has yet; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<InternedData> {
        (self.new != InternedData::default()).then(|| std::mem::take(&mut self.new))
    }

    /// Numbers the functions of a frame: a frame of a trace for each, that of an inlined function with the
    /// address of the function that it is in.
    fn add_frame(&mut self, place: u32) {
        let recording = self.recording;
        let Some(frame) = recording.frames.get(place as usize) else { return };
        if self.frames.get(place as usize).is_none_or(|known| !known.is_empty()) {
            return;
        }
        let mapping_id = self.mapping(frame);
        // An address within the call, by which readers find the line of the call.
        let rel_pc = frame.address.saturating_sub(u64::from(frame.call));
        let mut numbers = Vec::new();
        for entry in recording.entries_of(place).iter().rev() {
            let name = recording.functions.get(entry.function as usize).map_or("[unknown]", symbol);
            let function_name_id =
                self.functions.place(escaped(name).as_bytes(), &mut self.new.function_names);
            let at = entry.line.and_then(|line| recording.lines.get(line as usize));
            let source_path_iid = at.map_or(0, |at| {
                self.sources.place(escaped(&at.source).as_bytes(), &mut self.new.source_paths)
            });
            let line_number = at.and_then(|at| at.line).unwrap_or(0);
            self.frame_count += 1;
            let iid = self.frame_count;
            self.new.frames.push(Frame {
                iid,
                function_name_id,
                mapping_id,
                rel_pc,
                source_path_iid,
                line_number,
            });
            numbers.push(iid);
        }
        if let Some(known) = self.frames.get_mut(place as usize) {
            *known = numbers;
        }
    }

    /// Returns the number of the mapping of a frame. Reasons have one too: readers drop a frame without.
    fn mapping(&mut self, frame: &RecordedFrame) -> u64 {
        let content = MappedContent::new(self.recording, frame);
        self.mapping_of(content.unwrap_or(MappedContent::Anonymous(None)))
    }

    fn mapping_of(&mut self, content: MappedContent) -> u64 {
        let next = self.mappings.len() as u64 + 1;
        let iid = *self.mappings.entry(content.clone()).or_insert(next);
        if iid == next {
            let (name, build_id) = content.name(self.recording);
            // Readers put a `/` before each part.
            let path = escaped(name.trim_start_matches('/'));
            let path = self.paths.place(path.as_bytes(), &mut self.new.mapping_paths);
            let build_id = build_id
                .and_then(bytes_of_hex)
                .map_or(0, |bytes| self.build_ids.place(&bytes, &mut self.new.build_ids));
            self.new.mappings.push(Mapping { iid, build_id, path_string_ids: vec![path] });
        }
        iid
    }
}

/// Returns the bytes of a hexadecimal number; `None` if it is not one.
fn bytes_of_hex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}
