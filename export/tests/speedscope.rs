//! Exports in speedscope's own importers.

mod npm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use export::{Count, Format, Request};
use npm::Package;
use profile::{Profile, made_up};
use serde_json::Value;

const SPEEDSCOPE: Package = Package {
    name: "speedscope@1.25.0",
    integrity: "sha512-cpf9HWTZf1ijLXBJrk87Ve/54tnYx6rlf0gUThvn3ook6h63hLXVOQiMf44PT+XoV503cPfvfiT5gP5vojp6Ag==",
};

const SAMPLES: u64 = 2_000;

/// The script of its page.
fn bundle() -> Option<PathBuf> {
    let files = fs::read_dir(SPEEDSCOPE.fetched()?.join("dist/release")).expect("its release");
    let script = files.map(|file| file.expect("a file").path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("speedscope-") && name.ends_with(".js")
    });
    Some(script.expect("the script is in the package"))
}

#[test]
fn speedscope_reads_what_it_is_said_to_read() {
    let Some(bundle) = bundle() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made-up.vprof");
    made_up::write_profile(&path, SAMPLES, 100);
    let profile = Profile::open(&path).expect("a profile");
    let formats = [Format::Folded, Format::PerfScript, Format::Pprof, Format::Speedscope];
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
        // From a location in pprof with inlined functions speedscope takes the outermost only.
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
    assert_eq!(weight(3), SAMPLES as f64, "speedscope");
    let names: Vec<_> = found[3].as_array().into_iter().flatten().map(|profile| &profile["name"]).collect();
    assert_eq!(names, ["vCPU 0", "vCPU 1"]);
    // Two vCPUs, each with this time in the guest.
    let ns = 2.0 * SAMPLES as f64 * 498_000.0;
    assert!((weight(2) - ns).abs() < SAMPLES as f64, "pprof: {}", weight(2));
}
