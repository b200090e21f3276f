//! The content of the memory around an address of code: a file, the kernel, or other memory.

use profile::report::{RecordedFrame, Recording};
use profile::rows::FrameKind;

/// Content of the memory around an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum MappedContent {
    /// The kernel's image.
    Kernel,
    /// A module of the kernel.
    Module(String),
    /// A file, by its index in the recording.
    File(u32),
    /// Code without a file, of a process if it is known.
    Anonymous(Option<u32>),
}

impl MappedContent {
    /// Returns the content around a frame; `None` for a reason why frames are missing.
    pub(crate) fn new(recording: &Recording, frame: &RecordedFrame) -> Option<Self> {
        let own = recording.entries.get(frame.entries()).and_then(|entries| entries.last());
        let function = own.and_then(|own| recording.functions.get(own.function as usize));
        let module = function.and_then(|function| function.module.clone());
        match (frame.kind, frame.file) {
            (FrameKind::Reason, _) => None,
            (FrameKind::User | FrameKind::Managed, Some(file)) => Some(Self::File(file)),
            (FrameKind::User | FrameKind::Managed, None) => Some(Self::Anonymous(frame.process)),
            (FrameKind::Kernel, _) => Some(module.map_or(Self::Kernel, Self::Module)),
        }
    }

    /// Returns its name and, if it is known, its build-id.
    pub(crate) fn name<'a>(&self, recording: &'a Recording) -> (String, Option<&'a str>) {
        match self {
            Self::Kernel => ("[kernel.kallsyms]".to_owned(), None),
            Self::Module(module) => (format!("[{module}]"), None),
            Self::Anonymous(process) => {
                let process = process.and_then(|place| recording.processes.get(place as usize));
                let name = process.map_or_else(String::new, |process| format!(" {}", process.instance()));
                (format!("[anonymous{name}]"), None)
            }
            Self::File(file) => match recording.files.get(*file as usize) {
                Some(file) => (file.path.clone(), file.build_id.as_deref()),
                None => ("[unknown]".to_owned(), None),
            },
        }
    }
}
