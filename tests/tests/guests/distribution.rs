//! An unmodified Debian with systemd: found on its disk, booted, and a command in it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use vprof_tests::{Ext4Image, Guest, Run, images, kernel_of, vprof};

use crate::output;

/// Words that a shell, systemd, the kernel's command line or a terminal would each change in their own way.
const WORDS: &[&str] = &[
    "two words",
    "it's \"quoted\"",
    "$HOME `id` \\n \\$x",
    "100% %h %%",
    "two\nlines",
    "tab\there\r",
    "größer ✓",
    "",
    "*",
    "-n",
    "root=/dev/null",
];

/// Prints its words, each ended by a NUL, and the system's state.
const FIRST: &str = "printf '%s\\0' \"$@\"; systemctl is-active multi-user.target; pwd; \
    echo a complaint >&2; read line || echo no input";
/// Is busy for a while, and fails.
const LAST: &str = "n=0; while [ $n -lt 10000 ]; do n=$((n+1)); case x$n in *7) :;; esac; done; exit 42";

/// Returns the run of a command that prints what [`FIRST`] and `output.rs` print.
pub fn ran() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let script = format!("{FIRST}\n{}{LAST}", output::script());
        let words = ["bash", "-c", &script, "bash"];
        let command = words.iter().chain(WORDS);
        Guest::debian()
            .next_to_others()
            .options(["-F", "50", "--task-rate", "1"])
            .command(command)
            .run()
            .exited(42)
    })
}

/// Returns the output of [`FIRST`].
pub fn first_output() -> String {
    let words: String = WORDS.iter().map(|word| format!("{word}\0")).collect();
    format!("{words}active\n/root\nno input\n")
}

#[test]
fn a_command_has_its_words_its_output_and_its_exit_code() {
    let expected = first_output();
    let found = ran().stdout_bytes.get(..expected.len()).map(String::from_utf8_lossy);
    assert_eq!(found.as_deref(), Some(&*expected));
    assert!(ran().stderr.contains("a complaint\n"), "{}", ran().stderr);
}

#[test]
fn a_command_has_its_times() {
    let times = ran().report().get("command").clone();
    let cpu = |bound: &str| times["cpu"][bound].as_f64().expect("samples");
    let (low, high) = (cpu("time_low_s"), cpu("time_high_s"));
    let wall = times["wall_s"].as_f64().unwrap_or_else(|| panic!("no time by the guest's clock: {times}"));
    let last = ran().number("SELECT max(time_ns) / 1e9 FROM sample");
    assert!(0.0 < high && low < wall * 1.1 && wall < last, "the last sample at {last} s: {times}");
}

#[test]
fn what_is_booted_is_said() {
    let stderr = &ran().stderr;
    assert!(
        stderr.contains("kernel: /debian/")
            && stderr.contains("on partition 1 (vfat), by /loader/entries/debian-"),
        "{stderr}"
    );
    assert!(stderr.contains("root=UUID=6f1d2c3e-5a4b-4c8d-9e7f-767072660002"), "{stderr}");
}

#[test]
fn the_system_came_up_by_itself() {
    let has = |sql: &str| ran().number(sql) > 0.0;
    assert!(has("SELECT count(*) FROM instance WHERE comm = 'systemd' AND pid = 1"));
    // In parentheses it is systemd's child that is about to become it.
    assert!(has("SELECT count(*) FROM instance WHERE comm IN ('agetty', '(agetty)')"));
    assert!(has(
        "SELECT count(*) FROM instance JOIN cgroup ON cgroup.id = cgroup WHERE unit = 'systemd-journald.service'"
    ));
    assert!(has(
        "SELECT count(*) FROM event WHERE kind = 'command' AND text = 'the command ended with status 42'"
    ));
}

#[test]
fn programs_of_a_partition_have_names_from_the_image() {
    let read = ran().query("SELECT DISTINCT read_from FROM file WHERE path LIKE '/usr/bin/bash'");
    assert_eq!(read, [[Value::from("image")]]);
    let rows = ran().user_code("bash", "function").rows();
    let all: i64 = rows.iter().map(|row| row.self_samples).sum();
    let named = rows.iter().filter(|row| !row.name.contains('['));
    let named: i64 = named.map(|row| row.self_samples).sum();
    // bash exports its functions; what it has inlined of libc, and static ones, have no name.
    assert!(all > 40 && named * 3 >= all, "{named} of {all}: {rows:#?}");
}

/// Returns the output of `vprof image inspect` for Debian's image.
fn inspected() -> Value {
    let image = images().join("debian.img");
    let output =
        Command::new(vprof()).args(["image", "inspect", "--json"]).arg(image).output().expect("vprof starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn an_image_is_inspected() {
    let found = inspected();
    assert_eq!(
        (&found["partition_table"], &found["run"]["boots"]),
        (&Value::from("GPT"), &Value::from(true))
    );
    let contents: Vec<_> =
        found["volumes"].as_array().expect("volumes").iter().map(|v| &v["contents"]).collect();
    assert_eq!(contents, ["vfat", "ext4"]);
    assert_eq!(found["kernels"].as_array().map(Vec::len), Some(2));
}

/// Makes a unified kernel image of the demo image's kernel and initrd, with systemd's own stub.
fn unified_kernel_image(directory: &Path) -> PathBuf {
    let start = inspected()["volumes"][1]["start"].as_u64().expect("a place");
    let debian = Ext4Image::open_at(&images().join("debian.img"), start).expect("its root file system");
    let stub = directory.join("stub");
    let bytes = debian.read("/usr/lib/systemd/boot/efi/linuxx64.efi.stub").expect("systemd-boot-efi");
    std::fs::write(&stub, bytes).expect("room for it");
    let (kernel, initrd) = kernel_of(&images().join("demo.img"), directory);
    let words = directory.join("words");
    std::fs::write(&words, "root=/dev/vda rw words.of=its-own\0").expect("room for it");
    let unified = directory.join("linux.efi");
    let mut objcopy = Command::new("objcopy");
    // Anywhere after the stub's own sections, and apart from each other: firmware would load them there.
    for (section, file, at) in [
        (".cmdline", &words, "0x10000000"),
        (".linux", &kernel, "0x20000000"),
        (".initrd", &initrd, "0x30000000"),
    ] {
        objcopy.arg("--add-section").arg(format!("{section}={}", file.display()));
        objcopy.args(["--change-section-vma", &format!("{section}={at}")]);
    }
    let made = objcopy.args([&stub, &unified]).status().expect("objcopy starts");
    assert!(made.success());
    unified
}

#[test]
#[ignore = "one more way to give a kernel: --all"]
fn a_unified_kernel_image_brings_its_initrd_and_its_words() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unified = unified_kernel_image(directory.path());
    let run = Guest::demo()
        .next_to_others()
        .options(["--kernel".as_ref(), unified.as_os_str()])
        .script("cat /proc/cmdline; spin --seconds 1")
        .run()
        .succeeded();
    assert!(run.stdout.contains("words.of=its-own"), "{}", run.stdout);
    assert!(run.report().process("spin").share > 0.0);
}

#[test]
#[ignore = "one more way to fail: --all"]
fn a_command_is_not_waited_for_in_emergency_mode() {
    let run = Guest::debian()
        .next_to_others()
        .options(["-F", "200", "--append", "systemd.unit=emergency.target"])
        .command(["true"])
        .run()
        .exited(1);
    assert!(run.stderr.contains("it came up in emergency or rescue mode"), "{}", run.stderr);
}

#[test]
#[ignore = "one more distribution, in qcow2: --all"]
fn the_next_release_in_qcow2_runs_a_command() {
    let run = Guest::debian_trixie()
        .next_to_others()
        .options(["-F", "200"])
        .command(["cat", "/etc/os-release"])
        .run()
        .succeeded();
    assert!(run.stdout.contains("VERSION_CODENAME=trixie\n"), "{}", run.stdout);
    assert_eq!(run.report().get("missing").as_array().map(Vec::len), Some(0));
    let read = run.query("SELECT DISTINCT read_from FROM file WHERE path LIKE '/usr/lib/systemd/systemd'");
    assert_eq!(read, [[Value::from("image")]]);
}
