//! Exports as speedscope's own importers read them.
//!
//! speedscope comes from npm, by the machine's own settings, and is kept in cargo's directory for tests. Without node, npm or
//! network the test says so, and is skipped.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use export::{Count, Format, Request};
use sampler::{Profile, bench};
use serde_json::Value;

/// The package, and what npm says of its content.
const PACKAGE: &str = "speedscope@1.25.0";
const INTEGRITY: &str =
    "sha512-cpf9HWTZf1ijLXBJrk87Ve/54tnYx6rlf0gUThvn3ook6h63hLXVOQiMf44PT+XoV503cPfvfiT5gP5vojp6Ag==";

const SAMPLES: u64 = 2_000;

fn skipped(why: &str) {
    // Not eprintln!, which tests keep to themselves.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

fn output(command: &mut Command) -> Option<Output> {
    command.output().inspect_err(|error| skipped(&format!("{:?}: {error}", command.get_program()))).ok()
}

/// The page's script of speedscope, fetched where it is not there yet.
fn bundle() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PACKAGE);
    let find = || {
        let files = fs::read_dir(directory.join("package/dist/release")).ok()?;
        files.filter_map(|file| Some(file.ok()?.path())).find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("speedscope-") && name.ends_with(".js")
        })
    };
    if let Some(found) = find() {
        return Some(found);
    }
    fs::create_dir_all(&directory).expect("a directory");
    let packed = output(Command::new("npm").args(["pack", PACKAGE, "--json"]).current_dir(&directory))?;
    if !packed.status.success() {
        skipped("npm can't fetch speedscope: no network?");
        return None;
    }
    let said: Value = serde_json::from_slice(&packed.stdout).expect("JSON of npm pack");
    assert_eq!(said[0]["integrity"], INTEGRITY, "npm has another {PACKAGE}");
    let file = said[0]["filename"].as_str().expect("a file");
    let unpacked = output(Command::new("tar").args(["xzf", file]).current_dir(&directory))?;
    assert!(unpacked.status.success());
    Some(find().expect("the script is in the package"))
}

#[test]
fn speedscope_reads_what_it_is_said_to_read() {
    if output(Command::new("node").arg("--version")).is_none() {
        return;
    }
    let Some(bundle) = bundle() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    bench::write_profile_with_stacks(&path, false, SAMPLES, 100).expect("a profile");
    let profile = Profile::open(&path).expect("a profile");
    let formats = [Format::Folded, Format::PerfScript, Format::Pprof];
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/speedscope.js")).arg(bundle);
    for format in formats {
        let request = Request { count: Count::Samples, ..Request::new(format) };
        let mut bytes = Vec::new();
        export::write(&profile, &request, &mut bytes, &mut |_, _| {}).expect("an export");
        let file = directory.path().join(format.name());
        fs::write(&file, bytes).expect("room");
        command.arg(file);
    }
    let output = command.output().expect("node");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let found: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(found.len(), formats.len());
    for (format, profiles) in formats.iter().zip(&found) {
        let profiles = profiles.as_array().expect("profiles");
        assert!(!profiles.is_empty(), "{format}");
        let frames = |profile: &Value| profile["frames"].as_array().expect("frames").clone();
        let all: Vec<String> =
            profiles.iter().flat_map(frames).map(|name| name.as_str().unwrap_or("").to_owned()).collect();
        // Of a location in pprof with inlined functions speedscope takes the outermost only.
        let inlined = (*format != Format::Pprof).then_some("user_inlined_0");
        for wanted in ["user_function_50", "kernel_function_50"].into_iter().chain(inlined) {
            assert!(all.iter().any(|name| name.starts_with(wanted)), "{format}: no {wanted} in {all:?}");
        }
    }
    let weight = |n: usize| {
        found[n]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|profile| profile["weight"].as_f64())
            .sum::<f64>()
    };
    assert_eq!(weight(0), SAMPLES as f64, "folded");
    // Two vCPUs, each of which was in the guest for so long.
    let ns = 2.0 * SAMPLES as f64 * 498_000.0;
    assert!((weight(2) - ns).abs() < SAMPLES as f64, "pprof: {}", weight(2));
}
