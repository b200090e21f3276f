//! Profiles in which only some samples have stacks.

use super::views::{VFS, WORK_LEAF, frames, text};
use super::*;
use crate::report::{By, CallTree, Direction, Recording, RecordingRequest, Shares, SharesBy, TreeRequest};
use crate::rows::{FLAT, StackRow};

/// A frame of no code.
const REASON: u32 = 20;

/// On vCPU 0, 10 samples in `work` and 10 in `vfs_read`, all called by `main`, and without stacks 60 in
/// `work` and 20 in `vfs_read`, in a system call. Of the second vCPU 20 samples in `work` have stacks.
fn mixed() -> Run {
    let mut run = Run::new();
    run.batch.frames = frames();
    run.batch.frames.push(FrameRow {
        id: REASON,
        kind: FrameKind::Reason,
        symbol: text("no stack was taken"),
        module: text(FLAT),
        ..FrameRow::default()
    });
    let stack = |id, parent, frame| StackRow { id, parent, frame };
    run.batch.stacks = vec![
        stack(1, None, 1),
        stack(2, Some(1), WORK_LEAF),
        stack(3, Some(1), VFS),
        stack(4, None, REASON),
        stack(5, Some(4), WORK_LEAF),
        stack(6, Some(4), VFS),
    ];
    for turn in 0..10 {
        for (count, mode, frame, stack) in [
            (1, Mode::User, WORK_LEAF, 2),
            (6, Mode::User, WORK_LEAF, 5),
            (1, Mode::Kernel, VFS, 3),
            (2, Mode::Kernel, VFS, 6),
        ] {
            let first = run.batch.samples.len();
            run.add(count, 0, mode, Some(1), frame);
            for sample in &mut run.batch.samples[first..] {
                sample.stack = Some(stack);
                sample.syscall = (stack == 3).then_some(turn % 2);
            }
        }
        let first = run.batch.samples.len();
        run.add(2, 1, Mode::User, Some(2), WORK_LEAF);
        run.batch.samples[first..].iter_mut().for_each(|sample| sample.stack = Some(2));
    }
    run
}

fn of_vcpu(vcpu: u16) -> Filter {
    Filter { vcpu: Some(vcpu), ..Filter::default() }
}

fn rows(path: &Path, filter: &Filter, by: By) -> Vec<(String, u64, f64, u64, f64)> {
    let profile = Profile::open(path).unwrap();
    let report = Report::read_with(&profile, filter, &Request::By(vec![by])).unwrap();
    let rows = report.by.unwrap().rows.into_iter();
    rows.map(|row| (row.name, row.own.samples, row.own.share, row.total.samples, row.total.share)).collect()
}

fn is_close(found: f64, wanted: f64) -> bool {
    (found - wanted).abs() < 1e-9
}

#[test]
fn what_was_hit_is_of_all_samples_and_totals_of_those_with_stacks() {
    let (_directory, path) = mixed().write();
    let found = rows(&path, &of_vcpu(0), By::Function);
    let row = |name: &str| found.iter().find(|row| row.0 == name).cloned().unwrap();
    let (_, own, own_share, total, total_share) = row("work");
    assert_eq!((own, total), (70, 10));
    assert!(is_close(own_share, 0.7) && is_close(total_share, 0.5), "{found:?}");
    let (_, own, _, total, total_share) = row("main");
    assert_eq!((own, total), (0, 20));
    assert!(is_close(total_share, 1.0), "{found:?}");
    assert!(is_close(row("vfs_read.isra.0").2, 0.3), "{found:?}");
    assert!(found.iter().all(|row| !row.0.contains("no stack")), "{found:?}");
    // vCPUs count by their times: both have as much.
    let both = rows(&path, &Filter::default(), By::Function);
    let main = both.iter().find(|row| row.0 == "main").unwrap();
    assert!(main.3 == 40 && is_close(main.4, 1.0), "{both:?}");
    let work = both.iter().find(|row| row.0 == "work").unwrap();
    assert!(is_close(work.2, 0.85) && is_close(work.4, 0.75), "{both:?}");
}

#[test]
fn owners_are_of_all_samples_and_system_calls_of_those_with_stacks() {
    let (_directory, path) = mixed().write();
    let processes = rows(&path, &of_vcpu(0), By::Process);
    assert_eq!(processes.iter().map(|row| row.1).sum::<u64>(), 100);
    let calls = rows(&path, &of_vcpu(0), By::Syscall);
    assert_eq!(calls.iter().map(|row| row.1).sum::<u64>(), 20, "{calls:?}");
    let user = calls.iter().find(|row| row.0 == "[user]").unwrap();
    assert!(is_close(user.2, 0.5) && calls.iter().all(|row| row.0 != "[no system call]"), "{calls:?}");
    let report = read(&path, &Filter::default());
    assert_eq!((report.busy_samples, report.flat_samples), (120, 80));
    assert_eq!((report.stacks.user.walks, report.stacks.kernel.walks), (40, 10), "no walk has failed");
    assert!((shares(&report)[0] - 1.0).abs() < 1e-9 && (shares(&report)[1] - 1.0).abs() < 1e-9);
    let user = report.vcpus[0].times.user;
    assert!(user.samples == 70 && is_close(user.time_s, 0.7 * 1.9), "{user:?}");
}

#[test]
fn a_function_on_the_stack_chooses_among_samples_with_stacks() {
    let (_directory, path) = mixed().write();
    for (name, samples, share) in [("main", 20, 1.0), ("work", 10, 0.5)] {
        let report = read(&path, &Filter { symbol: text(name), ..of_vcpu(0) });
        assert_eq!((report.busy_samples, report.chosen_samples, report.flat_samples), (20, samples, 80));
        let found: f64 = report.processes.iter().map(|process| process.estimate.share).sum();
        assert!(is_close(found, share), "{name}: {found}");
    }
}

#[test]
fn trees_and_exports_have_the_time_of_all_samples() {
    let (_directory, path) = mixed().write();
    let profile = Profile::open(&path).unwrap();
    let wanted =
        TreeRequest { symbol: "work".to_owned(), module: None, direction: Direction::Callers, depth: 4 };
    let report = Report::read_with(&profile, &of_vcpu(0), &Request::Tree(wanted)).unwrap();
    let tree: CallTree = report.tree.unwrap();
    assert!(tree.total.samples == 10 && is_close(tree.total.share, 0.5), "{tree:?}");
    assert!(is_close(tree.nodes[1].part, 1.0) && tree.nodes[1].symbol == "main", "{tree:?}");
    let recording = Recording::read(&profile, &RecordingRequest::default(), &mut |_, _| ()).unwrap();
    assert_eq!(recording.samples.len(), 40);
    for vcpu in [0, 1] {
        let own = recording.samples.iter().filter(|sample| sample.vcpu == vcpu);
        let ns: f64 = own.map(|sample| sample.weight_ns).sum();
        assert!((ns - 1.9e9).abs() < 1.0, "{vcpu}: {ns}");
    }
    let stacks = Shares::read(&profile, &of_vcpu(0), SharesBy::Stack).unwrap();
    let found: Vec<_> = stacks.rows.iter().map(|(key, found)| (key.name.as_str(), found.share)).collect();
    assert!(found.len() == 2 && found.iter().all(|(_, share)| is_close(*share, 0.5)), "{found:?}");
    assert_eq!(stacks.busy_samples, 20);
}

#[test]
fn intervals_of_totals_are_those_of_fewer_samples() {
    let (_directory, path) = mixed().write();
    let profile = Profile::open(&path).unwrap();
    let report = Report::read_with(&profile, &of_vcpu(0), &Request::By(vec![By::Function])).unwrap();
    let rows = report.by.unwrap().rows;
    let work = rows.iter().find(|row| row.name == "work").unwrap();
    let expected = statistics::estimate::share(10, 20);
    assert!(is_close(work.total.share_low, expected.low) && is_close(work.total.share_high, expected.high));
    assert!(work.own.share_high - work.own.share_low < 0.21, "{work:?}");
}
