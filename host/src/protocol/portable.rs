//! Messages of the two halves of the portable host.
//!
//! The `vprof` inside runs the guest; the `vprof` outside writes the profile and faces the user. Between them
//! is a virtio-serial port, a plain stream of bytes, on which each message is a [frame](super::frame).

use std::path::PathBuf;

use profile::Batch;
use profile::session::SessionStatus;
use profile::watch::WatchReport;
use serde::{Deserialize, Serialize, Serializer};

use crate::spec::{Outcome, RunSpec};
use crate::stage::Stage;
use control::SessionChange;

/// Name of the virtio-serial port.
pub const PORT: &str = "vprof.0";
/// The job, in the inner host's initial file system.
pub const JOB_FILE: &str = "/vprof/run.json";
/// The guest's kernel, there.
pub const KERNEL_FILE: &str = "/vprof/kernel";
/// The guest's initrd, there.
pub const INITRD_FILE: &str = "/vprof/initrd";
/// Lists the modules to load, one path a line, in order.
pub const MODULE_ORDER: &str = "/lib/modules/load-order";

/// Content of [`JOB_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The run, with disks as the inner host names them.
    pub run: RunSpec,
    /// [`INITRD_FILE`] exists.
    pub has_initrd: bool,
    /// Device files of the disks that the inner host has to wait for.
    pub devices: Vec<PathBuf>,
}

/// Output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputStream {
    /// Its standard output.
    Output,
    /// Its standard error.
    Errors,
}

impl OutputStream {
    /// All of them, each at its index.
    pub const ALL: [Self; 2] = [Self::Output, Self::Errors];

    /// Returns its place in a list of both.
    pub fn index(self) -> usize {
        match self {
            Self::Output => 0,
            Self::Errors => 1,
        }
    }
}

/// From the inner `vprof` to the outer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromHost {
    /// The inner host is up.
    Hello {
        /// Its kernel's release.
        kernel: String,
        /// Version of the inner `vprof`, which has to be the outer's.
        version: String,
    },
    /// Present step before the guest runs.
    Preparing(String),
    /// Rows of the profile.
    Batch(Box<Batch>),
    /// Output of the guest's console.
    Console(Vec<u8>),
    /// Output of a command that does not go to the console.
    Output(OutputStream, Vec<u8>),
    /// State of sampling; sent about four times a second.
    Status(SessionStatus),
    /// The guest has ended, all batches are sent and all disks are written.
    End(Outcome),
    /// The run failed.
    Error {
        /// The stage of the run in which it failed.
        stage: Stage,
        /// The reason in one sentence.
        sentence: String,
    },
    /// A sentence for a person, at once.
    Note(String),
    /// A report of the watch, on rows that were sent before.
    Report(WatchReport),
}

/// [`FromHost::Batch`] without a copy of the rows: both have the same bytes.
#[derive(Debug, Clone, Copy)]
pub struct BatchMessage<'a>(pub &'a Batch);

impl Serialize for BatchMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Place of [`FromHost::Batch`] among the variants, by which postcard knows it.
        const BATCH: u32 = 2;
        serializer.serialize_newtype_variant("FromHost", BATCH, "Batch", self.0)
    }
}

/// From the outer `vprof` to the inner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToHost {
    /// End the run.
    Stop,
    /// Bytes for the guest's console.
    ConsoleInput(Vec<u8>),
    /// Change something while the guest runs.
    Control(SessionChange),
    /// Numbers of bytes that the readers of a command's output have taken, by [`OutputStream`].
    OutputRead([u64; 2]),
}

#[cfg(test)]
mod tests {
    use profile::rows::EventRow;

    use super::*;
    use crate::protocol::{Decoder, encode};

    #[test]
    fn a_batch_by_reference_is_the_same_message() {
        let text = "it runs".to_owned();
        let events = vec![EventRow { time_ns: 7, kind: "mark".to_owned(), text }];
        let batch = Batch { meta: vec![("a".to_owned(), "b".to_owned())], events, ..Batch::default() };
        let frame = encode(&BatchMessage(&batch)).unwrap();
        assert_eq!(frame, encode(&FromHost::Batch(Box::new(batch.clone()))).unwrap());
        let mut decoder = Decoder::default();
        decoder.push(&frame);
        match decoder.next_message().unwrap() {
            Some(FromHost::Batch(received)) => assert_eq!(*received, batch),
            other => panic!("{other:?}"),
        }
    }
}
