//! A journal of systemd: what it has of units, as it grows.

use std::cell::Cell;

use guest_linux::fixture::journal::JournalWriter;
use guest_linux::journal::{Journal, JournalBytes, UnitMessages, UnitStep};

const BOOT: [u8; 16] = [7; 16];

/// A file as far as it is in memory.
struct JournalBuffer<'a> {
    bytes: &'a [u8],
    reads: Cell<usize>,
}

impl JournalBytes for JournalBuffer<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.reads.set(self.reads.get() + 1);
        let start = usize::try_from(offset).ok().filter(|&start| start < self.bytes.len())?;
        let end = start.checked_add(into.len())?.min(self.bytes.len());
        let from = self.bytes.get(start..end)?;
        into.fill(0);
        into[..from.len()].copy_from_slice(from);
        Some(())
    }
}

fn seed(compact: bool) -> Vec<u8> {
    let mut w = JournalWriter::new(compact, BOOT);
    w.object(4, 0, &[0; 40]);
    let ids = [
        "7d4958e842da4a758f6c1cdc7b36dcc5",
        "39f53479d3a045ac8e11786248231fbf",
        "be02cf6855d2428ba40df7e9d022f03d",
    ];
    for (us, id) in (10..).zip(ids) {
        let sent = format!("_SOURCE_REALTIME_TIMESTAMP={us}");
        let id = format!("MESSAGE_ID={id}");
        let fields: [&[u8]; 5] =
            [b"_PID=1", id.as_bytes(), b"UNIT=a.target", b"JOB_TYPE=start", sent.as_bytes()];
        w.entry((us + 3, us), &fields);
    }
    let id: &[u8] = b"MESSAGE_ID=b07a249cd024414a82dd00cd181378ff";
    w.entry((90, 90), &[b"_PID=1", id, b"KERNEL_USEC=10", b"INITRD_USEC=20", b"USERSPACE_USEC=30"]);
    w.bytes().to_vec()
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![seed(false), seed(true)]
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let (mut messages, mut journal) = (UnitMessages::new(BOOT), Journal::default());
    let mut all = 0;
    for part in [bytes.len() / 2, bytes.len(), bytes.len()] {
        let file = JournalBuffer { bytes: &bytes[..part], reads: Cell::new(0) };
        for message in messages.read(&mut journal, &file).unwrap_or_default() {
            all += 1;
            if let UnitStep::Starting(unit) | UnitStep::Started(unit) | UnitStep::Failed(unit, _) =
                message.step
            {
                assert!(unit.len() <= 320 && unit.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            }
        }
        // An item takes 4 bytes and up to 4 pages, and all items are read twice.
        assert!(file.reads.get() <= 8 + 4 * bytes.len(), "{} reads", file.reads.get());
    }
    assert!(all <= bytes.len() / 64, "an entry takes 64 bytes");
}
