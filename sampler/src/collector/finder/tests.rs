use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use super::*;
use crate::resolve::frames::tests::FakeNames;
use testkit::eventually;

const SOON: Duration = Duration::from_secs(10);

/// Fails `find` and `publish_reader` the given number of times.
#[derive(Debug, Default)]
struct ScriptedGuest {
    find_fails: usize,
    reader_fails: usize,
    finds: Arc<AtomicUsize>,
    reads: Arc<AtomicUsize>,
    module_reads: Arc<AtomicUsize>,
    /// The memory is gone: nothing can be read any longer.
    gone: Arc<AtomicBool>,
    /// Page tables that are known without a candidate.
    tables: Option<(u64, bool)>,
    unwinder: Option<Arc<KernelUnwinder>>,
}

fn code(names: FakeNames) -> KernelCode {
    KernelCode { names: Arc::new(names), kernel: None, unwinder: None }
}

impl GuestKernel for ScriptedGuest {
    fn known_tables(&self) -> Option<(u64, bool)> {
        self.tables
    }
    fn find(&mut self, cr3: u64, five_level: bool) -> Result<FoundKernel, Missing> {
        assert!((0x1000..0x2000).contains(&cr3) && five_level);
        if self.finds.fetch_add(1, Ordering::SeqCst) < self.find_fails {
            return Err(Missing::NoKernelImage);
        }
        let release = Some("6.1.0".to_owned());
        Ok(FoundKernel { release, symbols: 3, missing: Vec::new(), code: code(FakeNames::default()) })
    }
    fn publish_reader(&mut self) -> Result<Vec<String>, Missing> {
        let failed = self.reads.fetch_add(1, Ordering::SeqCst) < self.reader_fails;
        if failed { Err(Missing::NoKernelImage) } else { Ok(Vec::new()) }
    }
    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
    fn code(&mut self) -> Result<Option<KernelCode>, Missing> {
        let first = self.module_reads.fetch_add(1, Ordering::SeqCst) == 0;
        if self.is_gone() {
            return Err(Missing::ModuleList);
        }
        let unwinder = self.unwinder.clone();
        Ok(first.then(|| KernelCode { unwinder, ..code(FakeNames { module: Some("ext4") }) }))
    }
    fn interrupts(&mut self) -> Result<Option<InterruptTables>, Missing> {
        Ok(None)
    }
    fn system_calls(&mut self) -> Result<Vec<Option<String>>, Missing> {
        Ok(vec![Some("read".to_owned())])
    }
    fn list(&mut self) -> Result<Vec<TaskSnapshot>, Missing> {
        Ok(vec![TaskSnapshot::default()])
    }
    fn units(&mut self, _: &[TaskSnapshot]) -> Result<UnitEvents, UnitError> {
        Err(UnitError::NoJournal)
    }
    fn trouble(&mut self) -> KernelTrouble {
        KernelTrouble { died: Some(false), ..KernelTrouble::default() }
    }
    fn tasks(&mut self) -> Result<TaskListing, Missing> {
        if self.is_gone() {
            return Err(Missing::TaskList);
        }
        let books = Ok(AccountingSnapshot { read_ns: 0, processes: Vec::new(), cpus: Vec::new() });
        Ok(TaskListing { tasks: vec![TaskSnapshot::default()], books })
    }
}

fn start(guest: ScriptedGuest) -> (Arc<FinderRequests>, Receiver<FinderEvent>, JoinHandle<()>) {
    let wanted = Arc::new(FinderRequests::default());
    let (sender, news) = channel();
    let finder = KernelFinder::new(guest, Arc::clone(&wanted), sender);
    (wanted, news, std::thread::spawn(move || finder.run()))
}

fn rest(wanted: &FinderRequests, news: &Receiver<FinderEvent>, thread: JoinHandle<()>) -> Vec<String> {
    wanted.stop();
    let kinds = news.iter().map(|news| match news {
        FinderEvent::Kernel(found) => format!("kernel {}", found.release.unwrap_or_default()),
        FinderEvent::Code(_) => "names".to_owned(),
        FinderEvent::Interrupts(_) => "interrupts".to_owned(),
        FinderEvent::SystemCalls(names) => format!("{} system calls", names.len()),
        FinderEvent::Tasks(tasks) => format!("{} tasks", tasks.len()),
        FinderEvent::Books(_) => "books".to_owned(),
        FinderEvent::Trouble(trouble) => format!("{} of trouble", trouble.meta().count()),
        FinderEvent::Units(news) => format!("{} units", news.rows.len()),
        FinderEvent::NoUnits(reason) => reason.to_string(),
        FinderEvent::List(_) => "list".to_owned(),
        FinderEvent::Missing(text) => text,
    });
    let kinds = kinds.collect();
    thread.join().expect("the finder ends by itself");
    kinds
}

#[test]
fn a_known_kernel_needs_no_candidate() {
    let guest = ScriptedGuest { tables: Some((0x1000, true)), ..Default::default() };
    let (wanted, news, thread) = start(guest);
    assert!(matches!(news.recv_timeout(SOON), Ok(FinderEvent::Kernel(_))));
    rest(&wanted, &news, thread);
}

#[test]
fn finds_after_failures_then_follows() {
    let guest = ScriptedGuest { find_fails: 3, reader_fails: 2, ..Default::default() };
    let (finds, reads) = (Arc::clone(&guest.finds), Arc::clone(&guest.reads));
    let (wanted, news, thread) = start(guest);
    let begin = Instant::now();
    let found = eventually("kernel", SOON, || {
        wanted.candidate(0x1000, true);
        match news.try_recv() {
            Ok(FinderEvent::Kernel(found)) => Some(found),
            _ => None,
        }
    });
    assert_eq!((found.release.as_deref(), finds.load(Ordering::SeqCst)), (Some("6.1.0"), 4));
    // Pauses of 5, 10 and 20 ms are between the attempts.
    assert!(begin.elapsed() >= Duration::from_millis(35));
    eventually("third reading", SOON, || (reads.load(Ordering::SeqCst) >= 3).then_some(()));
    let kinds = rest(&wanted, &news, thread);
    assert_eq!(kinds[..2], ["1 system calls", "names"]);
    let (last, kinds) = kinds.split_last().expect("words");
    assert_eq!(last, "1 of trouble");
    assert!(kinds[2..].chunks(2).all(|kinds| kinds == ["1 tasks", "books"]), "{kinds:?}");
}

#[test]
fn a_guest_that_is_gone_with_its_process_lacks_nothing() {
    let guest = ScriptedGuest::default();
    let gone = Arc::clone(&guest.gone);
    let (wanted, news, thread) = start(guest);
    wanted.candidate(0x1000, true);
    let mut before = Vec::new();
    eventually("tasks", SOON, || {
        before.extend(news.try_recv().ok());
        before.iter().any(|news| matches!(news, FinderEvent::Tasks(_))).then_some(())
    });
    gone.store(true, Ordering::SeqCst);
    wanted.modules();
    // The finder has time for a reading, because a guest that is gone gives no sign of one.
    std::thread::sleep(MODULES_AT_MOST * 3);
    let said = rest(&wanted, &news, thread);
    assert!(said.iter().all(|text| !text.contains("could not be read")), "{said:?}");
    assert!(before.iter().all(|news| !matches!(news, FinderEvent::Missing(_))));
}

#[test]
fn lists_that_cannot_be_read_of_a_guest_that_is_there_are_reported() {
    let text = Missing::TaskList.to_string();
    let mut finder = KernelFinder::new(ScriptedGuest::default(), Arc::default(), channel().0);
    finder.found = true;
    let failed: Result<(), _> = Err(Missing::TaskList);
    assert!(finder.tasks.note(failed, TASKS_PERIOD).is_none());
    finder.report_failures(true);
    assert!(finder.reported.contains(&text));
}

#[test]
fn why_nothing_is_known_of_units_is_reported_once() {
    let wanted = Arc::new(FinderRequests::default());
    let (sender, news) = channel();
    let finder = KernelFinder::new(ScriptedGuest::default(), Arc::clone(&wanted), sender).follow_units(true);
    wanted.candidate(0x1000, true);
    let thread = std::thread::spawn(move || finder.run());
    // Three periods, in each of which the finder could report the reason again.
    std::thread::sleep(UNITS_PERIOD * 3);
    let reported = rest(&wanted, &news, thread);
    let reasons = reported.iter().filter(|text| text.as_str() == "no process systemd-journald was seen");
    assert_eq!(reasons.count(), 1, "{reported:?}");
}

#[test]
fn tasks_are_listed_often_while_somebody_waits_for_one() {
    let (wanted, news, thread) = start(ScriptedGuest::default());
    wanted.task_lists(true);
    wanted.candidate(0x1000, true);
    let mut lists = 0;
    while lists < 3 {
        let news = news.recv_timeout(Duration::from_secs(10)).expect("news");
        lists += usize::from(matches!(news, FinderEvent::List(_)));
    }
    rest(&wanted, &news, thread);
}

#[test]
fn the_last_candidate_is_tried_at_the_end() {
    let (wanted, news, thread) = start(ScriptedGuest::default());
    wanted.candidate(0x1fff, true);
    assert_eq!(rest(&wanted, &news, thread)[0], "kernel 6.1.0");
}

#[test]
fn what_was_never_found_is_reported_once() {
    let guest = ScriptedGuest { find_fails: usize::MAX, ..Default::default() };
    let finds = Arc::clone(&guest.finds);
    let (wanted, news, thread) = start(guest);
    eventually("second attempt", SOON, || {
        wanted.candidate(0x1000, true);
        (finds.load(Ordering::SeqCst) >= 2).then_some(())
    });
    assert_eq!(rest(&wanted, &news, thread), [Missing::NoKernelImage.to_string()]);

    let (wanted, news, thread) = start(ScriptedGuest::default());
    let kinds = rest(&wanted, &news, thread);
    assert_eq!(kinds, ["no kernel was found: no code of a 64-bit kernel was sampled"]);
}

#[test]
fn a_reader_that_never_comes_is_reported_at_the_end() {
    let guest = ScriptedGuest { reader_fails: usize::MAX, ..Default::default() };
    let reads = Arc::clone(&guest.reads);
    let (wanted, news, thread) = start(guest);
    wanted.candidate(0x1000, true);
    eventually("second attempt", SOON, || (reads.load(Ordering::SeqCst) >= 2).then_some(()));
    let kinds = rest(&wanted, &news, thread);
    assert_eq!(kinds.iter().filter(|kind| **kind == Missing::NoKernelImage.to_string()).count(), 1);
}

#[test]
fn modules_are_read_on_request_but_not_too_often() {
    let guest = ScriptedGuest::default();
    let reads = Arc::clone(&guest.module_reads);
    let (wanted, news, thread) = start(guest);
    wanted.candidate(0x1000, true);
    let begin = Instant::now();
    eventually("third reading", SOON, || {
        wanted.modules();
        (reads.load(Ordering::SeqCst) >= 3).then_some(())
    });
    assert!(begin.elapsed() >= 2 * MODULES_AT_MOST, "{:?}", begin.elapsed());
    // Far sooner than by itself.
    assert!(begin.elapsed() < MODULES_PERIOD, "{:?}", begin.elapsed());
    rest(&wanted, &news, thread);
}

#[test]
fn a_walk_that_meets_unknown_code_gets_the_code_that_is_there_then() {
    let guest = guest_linux::fixture::Config::new(guest_linux::fixture::Style::V6_12).build();
    let kernel = Kernel::find(&guest.memory, guest.cr3, guest.five_level).expect("a kernel");
    let unwinder = Arc::new(kernel.unwinder(&guest.memory, &guest_linux::Modules::default()));
    let scripted = ScriptedGuest { unwinder: Some(Arc::clone(&unwinder)), ..Default::default() };
    let reads = Arc::clone(&scripted.module_reads);
    let (wanted, news, thread) = start(scripted);
    wanted.candidate(0x1000, true);
    eventually("first reading", SOON, || (reads.load(Ordering::SeqCst) > 0).then_some(()));
    let present = wanted.present().expect("code");
    assert!(Arc::ptr_eq(&present.unwinder, &unwinder));
    assert!(reads.load(Ordering::SeqCst) >= 2, "a reading from before the walk may lack the module");
    rest(&wanted, &news, thread);
    assert!(wanted.present().is_none(), "nobody reads it any longer");
}

#[test]
fn generated_code_is_named_from_when_it_is_there() {
    use guest_linux::fixture::{Config, Style, generated::PROGRAM};
    use vm_memory::{Bytes, GuestAddress};

    let mut guest = Config::new(Style::V6_12).build();
    let start = guest.generated(PROGRAM.0);
    let program = guest_linux::VirtAddr(start + 8);
    let size = guest.memory.0.len();
    let memory = vmm::GuestMemoryMmap::from_ranges(&[(GuestAddress(0), size)]).expect("memory");
    memory.write_slice(&guest.memory.0, GuestAddress(0)).expect("as much memory");
    let mut linux = LinuxGuest::new(memory.clone().into(), crate::record::GuestCells::default(), 2, Some(0));
    let found = linux.find(guest.cr3, guest.five_level).expect("a kernel");
    assert_eq!(found.code.names.name(program), None, "lists are read with the modules");
    let code = linux.code().expect("modules").expect("others than before");
    let name = code.names.name(program).expect("a BPF program");
    assert_eq!((name.symbol.as_deref(), name.offset), (Some("bpf_prog_6deef7357e7b4530_fixture"), 8));
    assert!(linux.code().expect("modules").is_none(), "nothing has changed");
    let unwinder = code.unwinder.expect("stacks are wanted");
    // The modules have not changed: their tables are kept.
    guest.set_program(b"bpf_prog_other\0", start, start + 16);
    memory.write_slice(&guest.memory.0, GuestAddress(0)).expect("as much memory");
    let code = linux.code().expect("modules").expect("another program");
    assert_eq!(code.names.name(program).and_then(|name| name.symbol), Some("bpf_prog_other".to_owned()));
    assert!(code.unwinder.is_some_and(|other| other.rules() == unwinder.rules()));
}
