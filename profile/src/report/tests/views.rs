//! Profiles with stacks, inlined functions, threads, control groups, interrupts and system calls.

use super::*;
use crate::rows::{CgroupRow, FileRow, InlinedRow, InterruptRow, StackRow, ThreadRow};

/// Frames, named by the numbers that the samples use.
const MAIN: u32 = 1;
pub(super) const WORK: u32 = 2;
const RECURSE: u32 = 3;
const READ: u32 = 4;
pub(super) const VFS: u32 = 5;
const NO_CFI: u32 = 6;
const NO_STACK: u32 = 7;
const UNNAMED: u32 = 8;
const PROCESS_WORK: u32 = 9;
const DRAIN: u32 = 10;
pub(super) const WORK_LEAF: u32 = 11;
const RECURSE_CALL: u32 = 12;

pub(super) fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub(super) fn frames() -> Vec<FrameRow> {
    let row = |id, address, call, kind, symbol: Option<&str>, module: Option<&str>, offset| FrameRow {
        id,
        address,
        call,
        kind,
        file: (kind == FrameKind::User).then_some(1),
        symbol: symbol.map(str::to_owned),
        module: module.map(str::to_owned),
        offset,
        ..Default::default()
    };
    let (user, kernel, reason) = (FrameKind::User, FrameKind::Kernel, FrameKind::Reason);
    let mut frames = vec![
        row(MAIN, 0x1010, true, user, Some("main"), Some("prog"), 0x10),
        row(WORK, 0x2004, true, user, Some("work"), Some("prog"), 4),
        row(RECURSE, 0x3008, false, user, Some("recurse(int)"), Some("prog"), 8),
        row(READ, 0xffff_ffff_8100_0020, true, kernel, Some("ksys_read"), None, 0x20),
        row(VFS, 0xffff_ffff_8100_0105, false, kernel, Some("vfs_read.isra.0"), None, 5),
        row(NO_CFI, 0, false, reason, Some("no CFI for this code"), Some("user"), 0),
        row(NO_STACK, 0, false, reason, Some("stack is swapped out"), Some("kernel"), 0),
        row(UNNAMED, 0x9000, false, user, None, Some("prog"), 0),
        row(PROCESS_WORK, 0xffff_ffff_8100_1000, true, kernel, Some("process_one_work"), None, 0x30),
        row(DRAIN, 0xffff_ffff_8100_2000, true, kernel, Some("drain_pages"), None, 0x40),
        row(WORK_LEAF, 0x2001, false, user, Some("work"), Some("prog"), 1),
        row(RECURSE_CALL, 0x3006, true, user, Some("recurse(int)"), Some("prog"), 6),
    ];
    let work = &mut frames[WORK_LEAF as usize - 1];
    (work.source, work.line) = (text("work.c"), Some(20));
    frames
}

/// `main` calls `work`, into whose leaf `hash` and in that `mix` is inlined. 100 busy samples, 10 idle.
pub(in crate::report) fn known() -> Run {
    let mut run = Run::new();
    run.batch.frames = frames();
    let inlined = |depth, symbol: &str, line| InlinedRow {
        frame: WORK_LEAF,
        depth,
        symbol: symbol.to_owned(),
        source: text("mix.h"),
        line: Some(line),
    };
    run.batch.inlined = vec![inlined(0, "mix", 7), inlined(1, "hash", 3)];
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    run.batch.stacks = vec![
        stack(1, None, MAIN),
        stack(2, Some(1), WORK_LEAF),
        stack(3, Some(1), RECURSE_CALL),
        stack(4, Some(3), RECURSE_CALL),
        stack(5, Some(4), RECURSE),
        stack(6, Some(1), READ),
        stack(7, Some(6), VFS),
        stack(8, None, NO_CFI),
        stack(9, Some(8), UNNAMED),
        stack(10, None, NO_STACK),
        stack(11, Some(10), VFS),
        stack(12, None, PROCESS_WORK),
        stack(13, Some(12), DRAIN),
        stack(14, Some(13), VFS),
        // A parent that comes later: a damaged profile must not lead to an endless walk.
        stack(15, Some(16), MAIN),
        stack(16, Some(15), WORK),
    ];
    run.batch.files = vec![FileRow {
        id: 1,
        path: "/usr/bin/prog".to_owned(),
        build_id: text("abcd"),
        read_from: text("image"),
        named_by: text(".dynsym"),
        ..Default::default()
    }];
    run.batch.cgroups = vec![
        CgroupRow {
            id: 1,
            path: "/system.slice/web.service".to_owned(),
            unit: text("web.service"),
            container: None,
        },
        CgroupRow { id: 2, path: "/docker/0123".to_owned(), unit: None, container: text("0123") },
    ];
    for (instance, group) in run.batch.instances.iter_mut().zip([1, 2]) {
        instance.cgroup = Some(group);
        instance.parent_pid = Some(1);
        instance.command = text("gzip -k /big");
        instance.exe = Some(1);
    }
    let thread = |instance, tid, comm: &str| ThreadRow { instance, tid, comm: comm.to_owned() };
    run.batch.threads = vec![thread(1, 10, "gzip"), thread(1, 15, "writer"), thread(3, 2, "kworker/0:1")];
    let interrupt =
        |id, kind: &str, name: &str| InterruptRow { id, kind: kind.to_owned(), name: name.to_owned() };
    run.batch.interrupts = vec![interrupt(1, "hard", "virtio0-req.0"), interrupt(2, "soft", "NET_RX")];
    run.batch.syscalls = vec![(0, "read".to_owned())];
    add(&mut run, 30, Mode::User, (1, 10), (WORK_LEAF, 2), (None, None));
    add(&mut run, 20, Mode::User, (1, 15), (RECURSE, 5), (None, None));
    add(&mut run, 15, Mode::Kernel, (2, 11), (VFS, 7), (Some(0), None));
    add(&mut run, 10, Mode::User, (2, 11), (UNNAMED, 9), (None, None));
    add(&mut run, 5, Mode::Kernel, (2, 11), (VFS, 11), (None, None));
    add(&mut run, 10, Mode::Kernel, (3, 2), (VFS, 14), (None, None));
    add(&mut run, 6, Mode::HardIrq, (1, 10), (VFS, 7), (Some(0), Some(1)));
    add(&mut run, 4, Mode::SoftIrq, (1, 10), (VFS, 0), (None, None));
    add(&mut run, 10, Mode::Idle, (4, 0), (VFS, 0), (None, None));
    run
}

/// Adds samples of a thread (instance, tid) in code (frame, stack; 0 for none), in (system call, interrupt).
pub(super) fn add(
    run: &mut Run,
    count: u64,
    mode: Mode,
    (instance, tid): (u32, i32),
    (frame, stack): (u32, u32),
    (syscall, interrupt): (Option<u32>, Option<u32>),
) {
    let first = run.batch.samples.len();
    run.add(count, 0, mode, Some(instance), frame);
    for sample in &mut run.batch.samples[first..] {
        sample.tid = Some(tid);
        sample.stack = (stack != 0).then_some(stack);
        (sample.syscall, sample.interrupt) = (syscall, interrupt);
    }
}

pub(super) fn ask(run: &Run, filter: &Filter, request: &Request) -> Result<Report, ReportError> {
    let (_directory, path) = run.write();
    Report::read_with(&Profile::open(&path).expect("a profile"), filter, request)
}

/// Rows as name, own and total samples.
pub(super) fn by(run: &Run, by: By, filter: &Filter) -> (Vec<(String, u64, u64)>, u64) {
    let report = ask(run, filter, &Request::By(vec![by])).expect("a report");
    let breakdown = report.by.expect("what was asked for");
    let own: u64 = breakdown.rows.iter().map(|row| row.own.samples).sum();
    assert_eq!(own + breakdown.outside.samples, report.chosen_samples, "{by:?}");
    for row in &breakdown.rows {
        assert!(
            row.own.samples <= row.total.samples && row.total.samples <= report.chosen_samples,
            "{row:?}"
        );
        assert!(row.own.share_low <= row.own.share && row.own.share <= row.own.share_high);
        assert_eq!(row.total.share, row.total.samples as f64 / report.busy_samples as f64);
    }
    let rows = breakdown.rows.into_iter().map(|row| (row.name, row.own.samples, row.total.samples));
    (rows.collect(), breakdown.outside.samples)
}

fn rows(expected: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    expected.iter().map(|&(name, own, total)| (name.to_owned(), own, total)).collect()
}

#[test]
fn functions_count_once_per_sample_and_inlined_ones_for_themselves() {
    let (found, outside) = by(&known(), By::Function, &Filter::default());
    let expected = [
        ("vfs_read.isra.0", 40, 40),
        ("mix", 30, 30),
        ("recurse(int)", 20, 20),
        ("[prog]", 10, 10),
        ("main", 0, 71),
        ("hash", 0, 30),
        ("work", 0, 30),
        ("ksys_read", 0, 21),
        ("drain_pages", 0, 10),
        ("process_one_work", 0, 10),
    ];
    assert_eq!((found, outside), (rows(&expected), 0));
}

/// Result of a query over the stacks that searches their text.
#[test]
fn totals_agree_with_the_stacks_as_text() {
    let run = known();
    let (found, _) = by(&run, By::Function, &Filter::default());
    let (_directory, path) = run.write();
    let profile = Profile::open(&path).expect("a profile");
    for symbol in ["main", "recurse(int)", "ksys_read", "work", "process_one_work"] {
        let sql = format!(
            "SELECT count(*) FROM sample s JOIN v_stacks v ON v.id = s.stack WHERE ';' || text || ';' LIKE '%;{symbol};%'"
        );
        let row = found.iter().find(|(name, ..)| name == symbol).expect("a row");
        let total = i64::try_from(row.2).expect("small");
        assert_eq!(profile.query(&sql).expect("an answer").rows, [[Value::Integer(total)]], "{symbol}");
    }
}

#[test]
fn code_by_instruction_line_and_module() {
    let run = known();
    let (instructions, _) = by(&run, By::Instruction, &Filter::default());
    assert!(instructions.contains(&("vfs_read.isra.0+0x5".to_owned(), 40, 40)), "{instructions:?}");
    assert!(instructions.contains(&("work+0x1".to_owned(), 30, 30)));
    assert!(instructions.contains(&("call before recurse(int)+0x6".to_owned(), 0, 20)));
    assert!(instructions.contains(&("0x9000".to_owned(), 10, 10)));
    let (lines, _) = by(&run, By::Line, &Filter::default());
    let expected = [
        ("[kernel]", 40, 40),
        ("[prog]", 30, 81),
        ("mix.h:7", 30, 30),
        ("mix.h:3", 0, 30),
        ("work.c:20", 0, 30),
    ];
    assert_eq!(lines, rows(&expected));
    let (modules, _) = by(&run, By::Module, &Filter::default());
    assert_eq!(modules, rows(&[("prog", 60, 81), ("kernel", 40, 40)]));
}

#[test]
fn tasks_by_process_instance_thread_and_control_group() {
    let run = known();
    let all = Filter::default();
    let others = [("[hard interrupts]", 6, 6), ("[soft interrupts]", 4, 4)];
    let with = |mine: &[(&str, u64, u64)]| rows(&[mine, &others].concat());
    assert_eq!(by(&run, By::Process, &all).0, with(&[("gzip", 80, 80), ("kthreadd", 10, 10)]));
    assert_eq!(
        by(&run, By::Instance, &all).0,
        with(&[("gzip#0", 50, 50), ("gzip#1", 30, 30), ("kthreadd#0", 10, 10)])
    );
    assert_eq!(
        by(&run, By::Thread, &all).0,
        // Thread 11 of the second gzip has no separate row.
        with(&[
            ("gzip", 30, 30),
            ("gzip", 30, 30),
            ("writer", 20, 20),
            ("kworker/0:1 (drain_pages)", 10, 10)
        ])
    );
    assert_eq!(
        by(&run, By::Cgroup, &all).0,
        with(&[("/system.slice/web.service", 50, 50), ("/docker/0123", 30, 30), ("[not read]", 10, 10)])
    );
}

#[test]
fn interrupts_and_system_calls() {
    let run = known();
    let (irqs, outside) = by(&run, By::Irq, &Filter::default());
    assert_eq!((irqs, outside), (rows(&[("virtio0-req.0", 6, 6), ("[unknown]", 4, 4)]), 90));
    let (calls, outside) = by(&run, By::Syscall, &Filter::default());
    let expected = [("[user]", 60, 60), ("[no system call]", 15, 15), ("read", 15, 15)];
    assert_eq!((calls, outside), (rows(&expected), 10));
}

/// Rows of several keys as their names, own and total samples, and the samples outside.
fn by_keys(run: &Run, keys: &[By], filter: &Filter) -> (Vec<(String, u64, u64)>, u64) {
    let report = ask(run, filter, &Request::By(keys.to_vec())).expect("a report");
    let breakdown = report.by.expect("what was asked for");
    assert_eq!(breakdown.keys().collect::<Vec<_>>(), keys);
    let own: u64 = breakdown.rows.iter().map(|row| row.own.samples).sum();
    assert_eq!(own + breakdown.outside.samples, report.chosen_samples, "{keys:?}");
    let row = |row: &Row| {
        let names: Vec<String> = (0..keys.len()).map(|position| row.by_key(position).name).collect();
        (names.join(" / "), row.own.samples, row.total.samples)
    };
    (breakdown.rows.iter().map(row).collect(), breakdown.outside.samples)
}

#[test]
fn rows_of_several_keys_have_a_name_of_each() {
    let run = known();
    let all = Filter::default();
    let user = only(|f| f.modes = vec![ModeGroup::User]);
    let functions = [
        ("gzip#0 / mix", 30, 30),
        ("gzip#0 / recurse(int)", 20, 20),
        ("gzip#1 / [prog]", 10, 10),
        ("gzip#0 / main", 0, 50),
        ("gzip#0 / hash", 0, 30),
        ("gzip#0 / work", 0, 30),
    ];
    assert_eq!(by_keys(&run, &[By::Instance, By::Function], &user), (rows(&functions), 0));
    // The names are in the order of the keys, whatever is code.
    let interrupts = [
        ("kernel / [hard interrupts] / virtio0-req.0", 6, 6),
        ("kernel / [soft interrupts] / [unknown]", 4, 4),
        ("prog / [hard interrupts] / virtio0-req.0", 0, 6),
    ];
    let found = by_keys(&run, &[By::Module, By::Process, By::Irq], &all);
    assert_eq!(found, (rows(&interrupts), 90));
    let calls = [
        ("[user] / gzip#0", 50, 50),
        ("read / gzip#1", 15, 15),
        ("[no system call] / kthreadd#0", 10, 10),
        ("[user] / gzip#1", 10, 10),
        ("[no system call] / gzip#1", 5, 5),
    ];
    assert_eq!(by_keys(&run, &[By::Syscall, By::Instance], &all), (rows(&calls), 10));
    // Two keys of code are those of one place: no function has a line of another one.
    let lines = [
        ("mix / mix.h:7", 30, 30),
        ("hash / mix.h:3", 0, 30),
        ("main / [prog]", 0, 30),
        ("work / work.c:20", 0, 30),
    ];
    let thread = only(|f| f.thread = text("gzip"));
    assert_eq!(by_keys(&run, &[By::Function, By::Line], &thread), (rows(&lines), 0));
}

#[test]
fn a_row_of_several_keys_adds_up_over_the_keys_that_are_left_out() {
    let run = known();
    let (pairs, _) = by_keys(&run, &[By::Process, By::Function], &Filter::default());
    let (single, _) = by(&run, By::Function, &Filter::default());
    for (name, own, total) in single {
        let ending = format!(" / {name}");
        let sum = |of: fn(&(String, u64, u64)) -> u64| {
            pairs.iter().filter(|pair| pair.0.ends_with(&ending)).map(of).sum::<u64>()
        };
        assert_eq!((sum(|pair| pair.1), sum(|pair| pair.2)), (own, total), "{name}");
    }
}

#[test]
fn relative_shares_are_of_the_chosen_samples() {
    let run = known();
    let filter = |relative| Filter { process: vec!["gzip".to_owned()], relative, ..Filter::default() };
    let of = |relative| ask(&run, &filter(relative), &Request::By(vec![By::Instance])).expect("a report");
    let (whole, part) = (of(false), of(true));
    assert_eq!((part.busy_samples, part.chosen_samples), (100, 80));
    let row = |report: &Report| report.by.as_ref().expect("rows").rows[0].own;
    let (absolute, relative) = (row(&whole), row(&part));
    assert_eq!((absolute.share, relative.share), (0.5, 0.625));
    assert!(relative.share_low < 0.625 && 0.625 < relative.share_high);
    // Times stay the same.
    assert_eq!(relative.time_s, absolute.time_s);
    let sum: f64 = part.programs.iter().map(|program| program.estimate.share).sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
}

#[test]
fn a_module_chooses_samples_that_hit_it_or_the_function_of_that_name() {
    let mut run = known();
    // A second function `work`, in another file.
    run.batch.frames.push(FrameRow {
        id: 20,
        address: 0x5000,
        kind: FrameKind::User,
        file: Some(1),
        symbol: text("work"),
        module: text("libwork.so.1"),
        ..Default::default()
    });
    run.batch.stacks.push(StackRow { id: 20, parent: Some(1), frame: 20 });
    add(&mut run, 7, Mode::User, (1, 10), (20, 20), (None, None));
    let chosen = |symbol: Option<&str>, module: &str| {
        let filter = Filter { symbol: symbol.and_then(text), module: text(module), ..Filter::default() };
        ask(&run, &filter, &Request::Summary).map(|report| report.chosen_samples)
    };
    assert_eq!(chosen(None, "libwork.so.1").expect("a report"), 7);
    assert_eq!(chosen(None, "lib*").expect("a report"), 7);
    assert_eq!(chosen(None, "prog").expect("a report"), 60);
    assert_eq!(chosen(None, "kernel").expect("a report"), 40);
    assert_eq!(chosen(Some("work"), "prog").expect("a report"), 30);
    assert_eq!(chosen(Some("work"), "libwork.so.1").expect("a report"), 7);
    let error = chosen(None, "libwrk.so.1").expect_err("no module").to_string();
    assert!(error.contains("no module libwrk.so.1: near are libwork.so.1"), "{error}");
    let error = chosen(Some("work"), "kernel").expect_err("no function").to_string();
    assert!(error.contains("called work: --module may be libwork.so.1, prog"), "{error}");
    let tree = |module: Option<&str>| {
        let (symbol, direction) = ("work".to_owned(), Direction::Callers);
        let request = TreeRequest { symbol, module: module.and_then(text), direction, depth: 8 };
        let report = ask(&run, &Filter::default(), &Request::Tree(request)).expect("a report");
        let tree = report.tree.expect("a tree");
        (tree.modules, tree.total.samples)
    };
    assert_eq!(tree(None), (vec!["libwork.so.1".to_owned(), "prog".to_owned()], 37));
    assert_eq!(tree(Some("libwork.so.1")), (vec!["libwork.so.1".to_owned()], 7));
}

#[test]
fn processes_tell_where_they_belong() {
    let report = ask(&known(), &Filter::default(), &Request::Summary).expect("a report");
    let gzip = &report.processes[0];
    assert_eq!((gzip.parent_pid, gzip.command.as_deref()), (Some(1), Some("gzip -k /big")));
    assert_eq!((gzip.exe.as_deref(), gzip.unit.as_deref()), (Some("/usr/bin/prog"), Some("web.service")));
    assert_eq!(gzip.cgroup.as_deref(), Some("/system.slice/web.service"));
    assert_eq!(report.processes[1].container.as_deref(), Some("0123"));
    let threads: Vec<_> =
        gzip.threads.iter().map(|t| (t.tid, t.comm.as_deref(), t.estimate.samples)).collect();
    assert_eq!(threads, [(10, Some("gzip"), 30), (15, Some("writer"), 20)]);
    assert!(report.by.is_none() && report.tree.is_none());
}

#[test]
fn quality_of_walks_and_names() {
    let report = ask(&known(), &Filter::default(), &Request::Summary).expect("a report");
    let broken = |ends: &crate::report::WalkEnds| {
        ends.broken.iter().map(|b| (b.reason.clone(), b.walks)).collect::<Vec<_>>()
    };
    let StackWalks { kernel, user } = &report.stacks;
    // 15 + 5 + 10 + 6 kernel walks; the four samples in soft interrupts have no stack.
    assert_eq!((kernel.walks, kernel.complete), (36, 31));
    assert_eq!(broken(kernel), [("stack is swapped out".to_owned(), 5)]);
    assert_eq!((user.walks, user.complete), (30 + 20 + 15 + 10 + 6, 71));
    assert_eq!(broken(user), [("no CFI for this code".to_owned(), 10)]);
    assert!((user.complete_share - 71.0 / 81.0).abs() < 1e-12);
    let code = &report.user_code;
    assert_eq!((code.samples, code.unnamed, code.files.len()), (60, 10, 1));
    assert_eq!((code.files[0].build_id.as_deref(), code.files[0].unnamed), (Some("abcd"), 10));
}

/// A filter with one part.
fn only(set: impl FnOnce(&mut Filter)) -> Filter {
    let mut filter = Filter::default();
    set(&mut filter);
    filter
}

#[test]
fn filters_restrict_and_combine() {
    let run = known();
    let chosen = |set: &dyn Fn(&mut Filter)| {
        let report = ask(&run, &only(set), &Request::Summary).expect("a report");
        assert_eq!(report.busy_samples, 100);
        let own: u64 = report.functions.iter().map(|f| f.estimate.samples).sum();
        assert_eq!(own, report.chosen_samples);
        report.chosen_samples
    };
    assert_eq!(chosen(&|_| ()), 100);
    assert_eq!(chosen(&|f| f.instance = text("gzip#1")), 30);
    assert_eq!(chosen(&|f| f.cgroup = text("web")), 50);
    assert_eq!(chosen(&|f| f.thread = text("writer")), 20);
    assert_eq!(chosen(&|f| f.thread = text("11")), 30);
    assert_eq!(chosen(&|f| f.symbol = text("main")), 71);
    // Also without the arguments or the compiler's suffix, inlined, and where there is no stack.
    assert_eq!(chosen(&|f| f.symbol = text("recurse")), 20);
    assert_eq!(chosen(&|f| f.symbol = text("hash")), 30);
    assert_eq!(chosen(&|f| f.symbol = text("vfs_read")), 40);
    assert_eq!(chosen(&|f| f.modes = vec![ModeGroup::User]), 60);
    assert_eq!(chosen(&|f| f.modes = vec![ModeGroup::Kernel, ModeGroup::Irq]), 40);
    assert_eq!(chosen(&|f| f.modes = vec![ModeGroup::HardIrq]), 6);
    assert_eq!(chosen(&|f| f.modes = vec![ModeGroup::SoftIrq]), 4);
    assert_eq!(chosen(&|f| (f.process, f.symbol) = (vec!["gzip".to_owned()], text("ksys_read"))), 15);
    assert_eq!(chosen(&|f| (f.process, f.modes) = (vec!["gzip".to_owned()], vec![ModeGroup::Irq])), 0);
    assert_eq!(chosen(&|f| (f.process, f.cgroup) = (vec!["kthreadd".to_owned()], text("web"))), 0);
}

#[test]
fn wrong_names_are_told_with_near_ones() {
    let run = known();
    let error = |set: &dyn Fn(&mut Filter)| {
        ask(&run, &only(set), &Request::Summary).expect_err("nothing of that name").to_string()
    };
    assert_eq!(error(&|f| f.symbol = text("main2")), "the profile has no function main2: near are main");
    assert_eq!(
        error(&|f| f.symbol = text("\x1b[2J")),
        "the profile has no function \u{fffd}[2J: `vprof report FILE --by function -n 0` lists them"
    );
    assert_eq!(
        error(&|f| f.cgroup = text("/docker/0124")),
        "the profile has no control group /docker/0124: near are /docker/0123"
    );
    assert_eq!(error(&|f| f.thread = text("riter")), "the profile has no thread riter: near are writer");
    assert!(error(&|f| f.instance = text("gzip#7")).contains("no instance gzip#7: near are gzip#0, gzip#1"));
}

#[test]
fn a_helper_of_the_worker_is_no_work() {
    let mut run = known();
    // A call at another address: the second function called from the first address identifies the caller of
    // work functions.
    let helper = FrameRow { id: 100, offset: 0x90, ..run.batch.frames[PROCESS_WORK as usize - 1].clone() };
    run.batch.frames.push(FrameRow { address: helper.address + 0x60, ..helper });
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    run.batch.stacks.extend([stack(20, Some(12), READ), stack(21, None, 100), stack(22, Some(21), VFS)]);
    let sample =
        run.batch.samples.iter_mut().find(|sample| sample.stack == Some(14)).expect("a worker's sample");
    sample.stack = Some(22);
    let (_directory, path) = run.write();
    let report = Report::read_with(
        &Profile::open(&path).expect("a profile"),
        &Filter::default(),
        &Request::By(vec![By::Thread]),
    )
    .expect("a report");
    let rows = report.by.expect("rows").rows;
    let workers: Vec<_> =
        rows.iter().filter(|row| row.name.starts_with("kworker")).map(|row| row.name.as_str()).collect();
    assert_eq!(workers, ["kworker/0:1 (drain_pages)", "kworker/0:1"]);
}

#[test]
fn writing_to_a_serial_port_counts_each_stack_once() {
    let mut run = known();
    let before = run.batch.samples.len();
    assert_eq!(read(&run.write().1, &Filter::default()).serial, Estimate::default());
    let driver = |id, symbol: &str, kind| FrameRow {
        id,
        address: 0xffff_ffff_8100_3000 + u64::from(id),
        kind,
        symbol: text(symbol),
        ..Default::default()
    };
    run.batch.frames.extend([
        driver(30, "serial8250_tx_chars", FrameKind::Kernel),
        driver(31, "io_serial_out.isra.0", FrameKind::Kernel),
        // A program's function of this name is another one.
        FrameRow { instance: Some(1), ..driver(32, "io_serial_in", FrameKind::User) },
    ]);
    run.batch.stacks.push(StackRow { id: 30, parent: None, frame: 30 });
    run.batch.stacks.push(StackRow { id: 31, parent: Some(30), frame: 31 });
    run.add(6, 0, Mode::HardIrq, Some(1), 31);
    for sample in &mut run.batch.samples[before..] {
        sample.stack = Some(31);
    }
    // Without a stack, the frame alone shows it.
    run.add(3, 0, Mode::Kernel, Some(1), 30);
    run.add(4, 0, Mode::User, Some(1), 32);
    let (_directory, path) = run.write();
    assert_eq!(read(&path, &Filter::default()).serial.samples, 9);
    let kernel = Filter { modes: vec![ModeGroup::Kernel], ..Filter::default() };
    assert_eq!(read(&path, &kernel).serial.samples, 3);
}
