use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::fixture::journal::JournalWriter;

const BOOT: [u8; 16] = [7; 16];
const STARTING: &[u8] = b"MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5";
const STARTED: &[u8] = b"MESSAGE_ID=39f53479d3a045ac8e11786248231fbf";
const FAILED: &[u8] = b"MESSAGE_ID=be02cf6855d2428ba40df7e9d022f03d";
const FINISHED: &[u8] = b"MESSAGE_ID=b07a249cd024414a82dd00cd181378ff";

/// A file of which a part is not in memory.
struct Holey<'a> {
    bytes: &'a [u8],
    hole: std::ops::Range<u64>,
    reads: Cell<usize>,
}

impl JournalBytes for Holey<'_> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        self.reads.set(self.reads.get() + 1);
        let end = offset.checked_add(into.len() as u64)?;
        if self.hole.start < end && offset < self.hole.end {
            return None;
        }
        // The last page has zeros after the file's end, as in a page cache.
        let start = usize::try_from(offset).ok().filter(|&start| start < self.bytes.len())?;
        let from = self.bytes.get(start..(start + into.len()).min(self.bytes.len()))?;
        into.fill(0);
        into.get_mut(..from.len())?.copy_from_slice(from);
        Some(())
    }
}

fn whole(bytes: &[u8]) -> Holey<'_> {
    Holey { bytes, hole: u64::MAX..u64::MAX, reads: Cell::new(0) }
}

fn read(messages: &mut UnitMessages, journal: &mut Journal, bytes: &impl JournalBytes) -> Vec<(u64, String)> {
    let found = messages.read(journal, bytes).expect("a journal");
    found.into_iter().map(|message| (message.monotonic_ns / 1_000, shown(&message.step))).collect()
}

fn shown(step: &UnitStep) -> String {
    match step {
        UnitStep::Starting(unit) => format!("starting {unit}"),
        UnitStep::Started(unit) => format!("started {unit}"),
        UnitStep::Failed(unit, result) => format!("{unit}: {result}"),
        UnitStep::Finished(StartupTimes { kernel_ns, initrd_ns, userspace_ns }) => {
            format!("finished {kernel_ns} {initrd_ns:?} {userspace_ns}")
        }
    }
}

/// Returns a boot's journal with much else in it.
fn boot(compact: bool) -> JournalWriter {
    let mut w = JournalWriter::new(compact, BOOT);
    w.object(4, 0, &[0; 100]);
    w.entry((1_000_010, 10), &[b"_PID=1", b"MESSAGE=hello"]);
    w.entry((1_000_020, 20), &[b"_PID=1", STARTING, b"UNIT=a.service", b"JOB_TYPE=start"]);
    // Somebody else who says the same.
    w.entry((1_000_025, 25), &[b"_PID=12", STARTED, b"UNIT=a.service", b"JOB_RESULT=done"]);
    w.field(&[b"MESSAGE=".as_slice(), &[b'x'; 9_000]].concat(), 0);
    w.field(b"\x28\xb5\x2f\xfd", 4);
    // Sent 15 us before journald took it.
    let sent = b"_SOURCE_REALTIME_TIMESTAMP=1000025";
    w.entry((1_000_040, 40), &[STARTED, b"_PID=1", b"UNIT=a.service", b"JOB_TYPE=start", sent]);
    w.object(6, 0, &[0; 64]);
    w.entry((1_000_050, 50), &[b"_PID=1", STARTED, b"UNIT=old.service", b"JOB_TYPE=stop"]);
    w.entry((1_000_060, 60), &[b"_PID=1", FAILED, b"UNIT=b.mount", b"JOB_RESULT=timeout"]);
    let times: [&[u8]; 3] = [b"KERNEL_USEC=11", b"INITRD_USEC=22", b"USERSPACE_USEC=33"];
    w.entry((1_000_070, 70), &[b"_PID=1", FINISHED, times[0], times[1], times[2]]);
    w
}

const BOOTED: [(u64, &str); 4] = [
    (20, "starting a.service"),
    (25, "started a.service"),
    (60, "b.mount: timeout"),
    (66, "finished 11000 Some(22000) 33000"),
];

fn expected() -> Vec<(u64, String)> {
    BOOTED.map(|(us, text)| (us, text.to_owned())).to_vec()
}

#[test]
fn messages_of_the_first_process_are_read_from_both_formats() {
    for compact in [false, true] {
        let journal = boot(compact);
        let (mut messages, mut state) = (UnitMessages::new(BOOT), Journal::default());
        assert_eq!(read(&mut messages, &mut state, &whole(journal.bytes())), expected());
        let again = whole(journal.bytes());
        assert_eq!(read(&mut messages, &mut state, &again), []);
        assert!(again.reads.get() <= 2, "only what is new: {}", again.reads.get());
        // journald has copied all of it into another file.
        assert_eq!(read(&mut messages, &mut Journal::default(), &whole(journal.bytes())), []);
    }
}

#[test]
fn what_was_said_before_journald_ran_is_read_from_the_kernels_log() {
    let mut journal = JournalWriter::new(true, BOOT);
    let mut say = |us: u64, pid: &[u8], text: &str| {
        let (text, at) = (format!("MESSAGE={text}"), format!("_SOURCE_MONOTONIC_TIMESTAMP={us}"));
        let of: [&[u8]; 2] = [b"_TRANSPORT=kernel", b"SYSLOG_IDENTIFIER=systemd"];
        // journald takes all of it at once, later.
        journal.entry((9_000 + us, 5_000 + us), &[of[0], of[1], pid, text.as_bytes(), at.as_bytes()]);
    };
    say(10, b"SYSLOG_PID=1", "Reached target swap.target - Swaps.");
    say(11, b"SYSLOG_PID=1", "Reached target Local File Systems.");
    say(12, b"SYSLOG_PID=12", "Started a.service - A.");
    say(13, b"SYSLOG_PID=1", "Starting a-b@c.service...");
    say(14, b"SYSLOG_PID=1", "Mounted dev-hugepages.mount - Huge Pages File System.");
    say(15, b"SYSLOG_PID=1", "Started .service, systemd 252.39-1 running in system mode");
    say(16, b"SYSLOG_PID=1", "Created slice system-getty.slice - Slice /system/getty.");
    journal.entry((19_000, 9_000), &[b"_PID=1", STARTED, b"UNIT=z.target"]);
    let found = read(&mut UnitMessages::new(BOOT), &mut Journal::default(), &whole(journal.bytes()));
    let expected = [
        (10, "started swap.target"),
        (13, "starting a-b@c.service"),
        (14, "started dev-hugepages.mount"),
        (16, "started system-getty.slice"),
        (9_000, "started z.target"),
    ];
    assert_eq!(found, expected.map(|(us, text)| (us, text.to_owned())));
}

#[test]
fn an_entry_counts_once_the_header_knows_it() {
    let mut journal = boot(false);
    let (mut messages, mut state) = (UnitMessages::new(BOOT), Journal::default());
    read(&mut messages, &mut state, &whole(journal.bytes()));
    let fields: [&[u8]; 3] = [b"_PID=1", STARTED, b"UNIT=c.target"];
    journal.unlinked((1_000_080, 80), &fields);
    assert_eq!(read(&mut messages, &mut state, &whole(journal.bytes())), []);
    journal.link((1_000_080, 80));
    assert_eq!(
        read(&mut messages, &mut state, &whole(journal.bytes())),
        [(80, "started c.target".to_owned())]
    );
}

#[test]
fn another_boot_is_left_out_and_its_pages_need_not_be_there() {
    let mut journal = JournalWriter::new(true, [1; 16]);
    for us in 0..400 {
        let name = format!("UNIT=old-{us}.service");
        journal.entry((us, us), &[b"_PID=1", STARTED, name.as_bytes()]);
    }
    let hole = 4_096..(journal.end() as u64).next_multiple_of(4_096) - 4_096;
    journal.boot(BOOT);
    let (mut messages, mut state) = (UnitMessages::new(BOOT), Journal::default());
    let bytes = journal.bytes().to_vec();
    // Found at the first call, left out at the second.
    for _ in 0..2 {
        assert_eq!(read(&mut messages, &mut state, &Holey { hole: hole.clone(), ..whole(&bytes) }), []);
    }
    // The value of its own file is among those that are not there.
    journal.entry((1_000, 500), &[b"_PID=1 ", b"_PID=1", b"UNIT=new.target", STARTED]);
    let bytes = journal.bytes().to_vec();
    let first = read(&mut messages, &mut state, &Holey { hole, ..whole(&bytes) });
    assert_eq!(first, [(500, "started new.target".to_owned())]);
}

#[test]
fn a_clock_that_was_set_meanwhile_does_not_turn_the_order_round() {
    let mut journal = JournalWriter::new(false, BOOT);
    let entry = |w: &mut JournalWriter, us: u64, unit: &str, sent: u64| {
        let sent = format!("_SOURCE_REALTIME_TIMESTAMP={sent}");
        w.entry(
            (5_000_000_000 + us, us),
            &[b"_PID=1", STARTED, format!("UNIT={unit}").as_bytes(), sent.as_bytes()],
        );
    };
    entry(&mut journal, 1_000, "a", 5_000_000_900);
    // Sent before the message before it, later than it was taken, and years ago.
    entry(&mut journal, 1_100, "b", 5_000_000_100);
    entry(&mut journal, 1_200, "c", 6_000_000_000);
    entry(&mut journal, 1_300, "d", 7);
    let times: Vec<u64> =
        read(&mut UnitMessages::new(BOOT), &mut Journal::default(), &whole(journal.bytes()))
            .into_iter()
            .map(|message| message.0)
            .collect();
    assert_eq!(times, [900, 900, 1_200, 1_300]);
}

#[test]
fn what_is_not_a_journal_has_a_reason() {
    let journal = boot(false);
    let read = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = journal.bytes().to_vec();
        change(&mut bytes);
        UnitMessages::new(BOOT).read(&mut Journal::default(), &whole(&bytes)).map(|found| found.len())
    };
    assert_eq!(read(&|_| ()), Ok(4));
    assert_eq!(read(&|bytes| bytes[0] = b'l'), Err(JournalError::NotAJournal));
    assert_eq!(read(&|bytes| bytes.truncate(0)), Err(JournalError::NoHeader));
    assert_eq!(read(&|bytes| bytes[12] |= 0x20), Err(JournalError::UnknownFeatures(0x2c)));
    assert_eq!(read(&|bytes| bytes[88] = 3), Err(JournalError::Damaged(88)));
    assert_eq!(read(&|bytes| bytes[143] = 1), Err(JournalError::Damaged(136)));
    // The first object has no size.
    assert_eq!(read(&|bytes| bytes[280] = 0), Err(JournalError::Damaged(272)));
}

/// Returns a journal whose bytes were changed, and the rest of what a guest can do.
fn any_journal() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12)).prop_map(
        |(compact, changes)| {
            let mut bytes = boot(compact).bytes().to_vec();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn hostile_bytes_end_and_stay_within_bounds(bytes in any_journal(), calls in 1_usize..4) {
        let (mut messages, mut journal) = (UnitMessages::new(BOOT), Journal::default());
        let source = whole(&bytes);
        for _ in 0..calls {
            for message in messages.read(&mut journal, &source).unwrap_or_default() {
                if let UnitStep::Started(unit) | UnitStep::Starting(unit) = message.step {
                    prop_assert!(unit.len() <= LONGEST_FIELD && unit.bytes().all(|b| (b' '..=b'~').contains(&b)));
                }
            }
        }
        prop_assert!(source.reads.get() < 4_000, "{} reads", source.reads.get());
    }

    #[test]
    fn whatever_order_pages_arrive_in_nothing_is_told_twice(cut in 300_usize..4_000) {
        let whole_file = boot(false);
        let (mut messages, mut journal) = (UnitMessages::new(BOOT), Journal::default());
        let mut all = Vec::new();
        let hole = cut as u64..u64::MAX;
        let bytes = whole_file.bytes();
        all.extend(messages.read(&mut journal, &Holey { hole, ..whole(bytes) }).unwrap_or_default());
        all.extend(messages.read(&mut journal, &whole(bytes)).expect("a journal"));
        prop_assert_eq!(all.len(), 4);
    }
}
