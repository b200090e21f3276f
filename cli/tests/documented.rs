//! Commands of README.md, the tutorial and docs/coming-from.md that read a profile, run as they are typed.
//!
//! Commands that need a guest, a terminal or this machine are parsed only (`src/args/documented.rs`); tests
//! that run such commands are named at [`ELSEWHERE`].

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use profile::rows::{
    Batch, CodeRow, CodeSource, FileRow, FrameKind, FrameRow, InstanceRow, Mode, SampleRow, StackRow,
    VcpuState,
};
use support::made::{with_exact, with_task_scans, with_trips};
use support::{stderr, write_batch};

/// Commands that are run by other tests, which have what they need.
const ELSEWHERE: [(&str, &str); 11] = [
    ("run", "a guest: tests/tests/guests, `output::` for commands in it"),
    ("boot", "a guest: tests/tests/guests/boot.rs"),
    ("attach", "a running VM: tests/tests/guests/attach.rs, watch.rs"),
    ("mem", "a running VM: tests/tests/guests/mem.rs"),
    ("top", "a run in progress: tests/tests/guests/control.rs"),
    ("ctl", "a run in progress: tests/tests/guests/control.rs"),
    ("selftest", "a guest: tests/tests/guests/selftest.rs"),
    ("image", "an image: cli/tests/image_reader.rs"),
    ("doctor", "its exit code is the machine's: cli/tests/profiles.rs"),
    ("agent", "running VMs, which it watches until it is ended: cli/tests/attach/agent.rs"),
    ("fleet", "a lake: cli/tests/fleet.rs"),
];

/// Words of commands for a terminal (cli/tests/interactive.rs has one), and for a recording from the guest's
/// start (tests/tests/guests/boot.rs has one).
const OTHERS: [&str; 3] = ["-i", "--interactive", "guest.boot.svg"];

/// Returns a profile with the names that the documents have, and something in each table.
fn batch() -> Batch {
    let (mut batch, trips, scans) = (with_exact(), with_trips(), with_task_scans());
    batch.meta.extend(trips.meta.into_iter().filter(|(key, _)| key.starts_with("trip")));
    (batch.trips, batch.trip_arguments) = (trips.trips, trips.trip_arguments);
    (batch.trip_texts, batch.trip_calls) = (trips.trip_texts, trips.trip_calls);
    (batch.task_scans, batch.task_scan_states) = (scans.task_scans, scans.task_scan_states);
    for (id, comm) in (3..).zip(["python3", "nginx", "dd", "NAME"]) {
        let (pid, comm) = (200 + i32::try_from(id).unwrap(), comm.to_owned());
        batch.instances.push(InstanceRow { id, pid, comm, ..InstanceRow::default() });
    }
    batch.files.push(FileRow { id: 1, path: "/lib/libc.so.6".to_owned(), ..FileRow::default() });
    let kernel = |id, address, symbol: &str| FrameRow {
        id,
        address,
        kind: FrameKind::Kernel,
        symbol: Some(symbol.to_owned()),
        ..FrameRow::default()
    };
    batch.frames.extend([
        kernel(3, 0xffff_ffff_8200_0000, "clear_page_erms"),
        kernel(4, 0xffff_ffff_8300_0000, "FUNCTION"),
        FrameRow {
            kind: FrameKind::User,
            file: Some(1),
            module: Some("libc.so.6".to_owned()),
            ..kernel(5, 0x2000, "malloc")
        },
    ]);
    for start in [0xffff_ffff_8200_0000, 0xffff_ffff_8300_0000] {
        // push %rbp; mov %rsp, %rbp; nop; ret
        let bytes = vec![0x55, 0x48, 0x89, 0xe5, 0x90, 0xc3];
        batch.code.push(CodeRow { start, file: None, module: None, bytes, read: CodeSource::Memory });
    }
    batch.stacks.extend((3..=5).map(|id| StackRow { id, parent: None, frame: id }));
    let in_guest = |sample: &&mut SampleRow| sample.vcpu_state == VcpuState::Guest;
    for (n, sample) in (0_u32..).zip(batch.samples.iter_mut().filter(in_guest)) {
        sample.instance = Some(1 + n % 6);
        sample.frame = match sample.mode {
            Mode::User => 5,
            _ => 2 + n % 3,
        };
        sample.stack = Some(sample.frame);
    }
    batch
}

/// Returns the commands of vprof in a document, as they are typed: lines of its blocks of code, of which one
/// that ends in a backslash continues, and code in its text and tables.
fn commands(document: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (n, part) in document.split("```").enumerate() {
        if n % 2 == 0 {
            // A table writes a bar with a backslash.
            found.extend(
                part.split('`').skip(1).step_by(2).map(|code| code.replace("\\|", "|").replace('\n', " ")),
            );
        } else {
            let part = part.replace("\\\n", " ");
            found.extend(part.lines().map(|line| line.trim_start_matches("$ ").to_owned()));
        }
    }
    found.retain(|line| line.starts_with("vprof "));
    found
}

/// True if another test runs the command.
fn is_elsewhere(command: &str) -> bool {
    let mut words = command.split_whitespace().skip(1);
    words.next().is_some_and(|name| ELSEWHERE.iter().any(|(other, _)| *other == name))
        || words.any(|word| OTHERS.contains(&word))
}

/// Runs a command in a shell, in a directory with the profiles that the documents name; returns what is
/// wrong.
fn failure(command: &str, profile: &Path) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let names = ["vprof.vprof", "vprof.vprof.old", "before.vprof", "after.vprof", "A", "B"];
    for name in
        names.into_iter().chain(["before.1.vprof", "before.2.vprof", "after.1.vprof", "after.2.vprof"])
    {
        fs::copy(profile, at(name)).unwrap();
    }
    fs::create_dir(at("DIR")).unwrap();
    fs::create_dir(at("tmp")).unwrap();
    let vprof = Path::new(env!("CARGO_BIN_EXE_vprof")).parent().unwrap();
    let path = format!("{}:{}", vprof.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(directory.path())
        .env("PATH", path)
        .env("TMPDIR", at("tmp"))
        .env("VPROF_CONFIG", "")
        .env_remove("DEBUGINFOD_URLS")
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let files = fs::read_dir(directory.path()).unwrap().count();
    let is_silent = output.stdout.is_empty() && files == names.len() + 4 + 2;
    (!output.status.success() || is_silent)
        .then(|| format!("{command}: {}: {}", output.status, stderr(&output)))
}

#[test]
fn every_command_that_reads_a_profile_runs_as_it_is_typed() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let documents = ["README.md", "docs/tutorial.md", "docs/coming-from.md"];
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let all: BTreeSet<String> = documents.into_iter().flat_map(|name| commands(&read(name))).collect();
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("made.vprof");
    write_batch(&profile, &batch());
    let here: Vec<&String> = all.iter().filter(|command| !is_elsewhere(command)).collect();
    let failures: Vec<String> = here.iter().filter_map(|command| failure(command, &profile)).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(here.len() >= 45 && all.len() >= 70, "{} of {}", here.len(), all.len());
    for (name, why) in ELSEWHERE {
        assert!(all.iter().any(|command| command.starts_with(&format!("vprof {name}"))), "{name}: {why}");
    }
}
