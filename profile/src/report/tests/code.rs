//! Callers, callees and annotated code.

use super::views::{VFS, WORK, WORK_LEAF, add, ask, by, frames, known, text};
use super::*;
use crate::rows::{CodeRow, CodeSource, StackRow};

fn tree(run: &Run, symbol: &str, direction: Direction, depth: u32) -> Result<CallTree, ReportError> {
    let request = TreeRequest { symbol: symbol.to_owned(), module: None, direction, depth };
    let report = ask(run, &Filter::default(), &Request::Tree(request))?;
    Ok(report.tree.expect("what was asked for"))
}

fn shape(tree: &CallTree) -> Vec<(u32, &str, u64)> {
    tree.nodes.iter().map(|node| (node.depth, node.symbol.as_str(), node.estimate.samples)).collect()
}

#[test]
fn callers_and_callees() {
    let run = known();
    let callers = tree(&run, "vfs_read", Direction::Callers, 10).expect("a tree");
    let expected = [
        (0, "vfs_read.isra.0", 40),
        (1, "ksys_read", 21),
        (2, "main", 21),
        (1, "drain_pages", 10),
        (2, "process_one_work", 10),
        (1, "[stack is swapped out]", 5),
    ];
    assert_eq!(shape(&callers), expected);
    assert_eq!((callers.total.samples, callers.total.share), (40, 0.4));
    assert_eq!((callers.nodes[1].estimate.share, callers.nodes[1].part), (0.21, 21.0 / 40.0));
    let callees = tree(&run, "main", Direction::Callees, 3).expect("a tree");
    let expected = [
        (0, "main", 71),
        (1, "work", 30),
        (2, "hash", 30),
        (3, "mix", 30),
        (1, "ksys_read", 21),
        (2, "vfs_read.isra.0", 21),
        (1, "recurse(int)", 20),
        (2, "recurse(int)", 20),
        (3, "recurse(int)", 20),
    ];
    assert_eq!(shape(&callees), expected);
    // Recursion counts once, and its callers are those from outside.
    let callers = tree(&run, "recurse", Direction::Callers, 1).expect("a tree");
    assert_eq!(shape(&callers), [(0, "recurse(int)", 20), (1, "main", 20)]);
    assert!(tree(&run, "nothing", Direction::Callers, 1).is_err());
}

#[test]
fn small_branches_are_left_out() {
    let mut run = known();
    add(&mut run, 9_000, Mode::User, (1, 10), (WORK_LEAF, 2), (None, None));
    let callees = tree(&run, "main", Direction::Callees, 1).expect("a tree");
    assert_eq!((shape(&callees).len(), callees.left_out), (2, 2));
}

#[test]
fn damaged_stacks_end() {
    let mut run = known();
    add(&mut run, 1, Mode::User, (1, 10), (WORK, 16), (None, None));
    let (found, _) = by(&run, By::Function, &Filter::default());
    assert!(found.contains(&("work".to_owned(), 1, 31)), "{found:?}");
}

fn annotate(run: &Run, symbol: &str, module: Option<&str>) -> Result<Annotation, ReportError> {
    let (_directory, path) = run.write();
    let target = Target { symbol: symbol.to_owned(), module: module.map(str::to_owned) };
    Annotation::read(&Profile::open(&path).expect("a profile"), &Filter::default(), &target)
}

#[test]
fn code_is_annotated() {
    let mut run = known();
    let code = |start, file, bytes: &[u8]| CodeRow {
        start,
        file,
        module: None,
        bytes: bytes.to_vec(),
        read: if file.is_some() { CodeSource::File } else { CodeSource::Memory },
    };
    run.batch.code = vec![
        code(0x2ff0, Some(1), &[0x90; 0x20]),
        code(0x3000, Some(2), &[0xcc; 0x20]),
        code(0xffff_ffff_8100_0100, None, &[0xc3; 9]),
    ];
    let recurse = annotate(&run, "recurse", None).expect("a function");
    assert_eq!((recurse.start, recurse.code.map(|bytes| bytes.len())), (0x3000, Some(0x10)));
    assert_eq!((recurse.read.as_deref(), recurse.own.samples, recurse.total.samples), (Some("file"), 20, 20));
    assert_eq!(recurse.hits[&0x3008], Hit { own: 20, ..Hit::default() });
    assert_eq!(recurse.hits[&0x3006], Hit { called: 20, ..Hit::default() });
    assert_eq!(recurse.names[&0x2000], "work");
    let vfs = annotate(&run, "0xffffffff81000100", None).expect("a function");
    assert_eq!((vfs.symbol.as_str(), vfs.code), ("vfs_read.isra.0", Some(vec![0xc3; 9])));
    let work = annotate(&run, "work", Some("prog")).expect("a function");
    assert_eq!((work.code, work.own.samples, work.total.samples), (None, 30, 30));
    assert_eq!(work.hits[&0x2001].source.as_deref(), Some("mix.h:7"));
}

#[test]
fn what_interrupts_an_instruction_counts_at_its_address() {
    let mut run = known();
    // A page fault of `recurse` at its own instruction, which calls nothing.
    run.batch.stacks.push(StackRow { id: 20, parent: Some(5), frame: VFS });
    add(&mut run, 7, Mode::Kernel, (1, 10), (VFS, 20), (None, None));
    let recurse = annotate(&run, "recurse", None).expect("a function");
    assert_eq!(recurse.hits[&0x3008], Hit { own: 20, interrupted: 7, ..Hit::default() });
    assert_eq!(recurse.hits[&0x3006], Hit { called: 27, ..Hit::default() });
    assert!(recurse.emulated, "the run is one of the portable host");
    // Any sampled address names the function.
    assert_eq!(annotate(&run, "0x3006", None).expect("a function").symbol, "recurse(int)");
    assert!(annotate(&run, "0x3007", None).is_err());
}

#[test]
fn functions_of_one_name_are_one_tree_that_says_so() {
    let mut run = known();
    assert_eq!(tree(&run, "main", Direction::Callees, 1).expect("a tree").modules, ["prog"]);
    assert_eq!(tree(&run, "vfs_read", Direction::Callees, 1).expect("a tree").modules, ["kernel"]);
    let other = FrameRow { id: 90, module: text("other"), address: 0x77, file: None, ..frames()[0].clone() };
    run.batch.frames.push(other);
    run.batch.stacks.push(StackRow { id: 20, parent: None, frame: 90 });
    add(&mut run, 9, Mode::User, (1, 10), (90, 20), (None, None));
    let both = tree(&run, "main", Direction::Callees, 1).expect("a tree");
    assert_eq!(both.modules, ["other", "prog"]);
    let root = &both.nodes[0];
    assert_eq!((root.symbol.as_str(), root.module.as_deref(), root.estimate.samples), ("main", None, 80));
}

#[test]
fn what_can_not_be_annotated_is_told() {
    let mut run = known();
    let error =
        |run: &Run, symbol: &str, module| annotate(run, symbol, module).expect_err("a reason").to_string();
    assert_eq!(
        error(&run, "mix", None),
        "the profile has no separate code for mix: the compiler has copied it into work: annotate that function"
    );
    assert_eq!(
        error(&run, "work", Some("libc")),
        "the profile has no separate code for work: --module may be prog"
    );
    assert!(error(&run, "wrk", None).ends_with("no function wrk: near are work"));
    let module = text("other");
    run.batch.frames.push(FrameRow {
        id: 90,
        module,
        address: 0x77,
        offset: 1,
        file: None,
        ..frames()[1].clone()
    });
    assert_eq!(
        error(&run, "work", None),
        "several functions are called work: work of prog at 0x2000; work of other at 0x76; choose with --module, \
         or give the address instead"
    );
}
