//! Disks in qcow2 files, as `qemu-img` makes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use vprof_tests::{Guest, images};

fn qemu_img(arguments: &[&str], paths: &[&Path]) -> String {
    let output = Command::new("qemu-img").args(arguments).args(paths).output().expect("qemu-img starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Converts the demo image to qcow2, with compressed clusters if `compressed`.
fn converted(directory: &Path, compressed: bool) -> PathBuf {
    let image = directory.join("demo.qcow2");
    let mut arguments = vec!["convert", "-O", "qcow2"];
    if compressed {
        arguments.push("-c");
    }
    qemu_img(&arguments, &[&images().join("demo.img"), &image]);
    image
}

#[test]
#[ignore = "two guests: --all"]
fn a_qcow2_image_boots_and_keeps_what_is_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = converted(directory.path(), false);
    let write = "echo kept >/root/note; sync; spin --seconds 2";
    let run = Guest::image(&image).next_to_others().in_place().script(write).run().succeeded();
    let read = run.query("SELECT read_from FROM file WHERE path = '/usr/bin/spin'");
    assert_eq!(read[0][0], "image", "{read:?}");
    qemu_img(&["check"], &[&image]);
    let before = std::fs::read(&image).expect("the image");
    let again = Guest::image(&image).next_to_others();
    let run = again.script("cat /root/note; echo lost >/root/note; sync").run().succeeded();
    assert!(run.stdout.contains("kept"), "{}", run.stdout);
    assert!(std::fs::read(&image).expect("the image") == before, "a snapshot is not written");
}

/// Without KVM, vprof itself reads the image for names; in the portable host, QEMU reads it.
#[test]
#[ignore = "one more image: --all"]
fn compressed_clusters_are_read() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = converted(directory.path(), true);
    let guest = Guest::image(&image).next_to_others().options(["--host", "tcg", "--memory", "256M"]);
    let run = guest.script("spin --seconds 5").run().succeeded();
    assert!(run.report().process("spin").share > 0.0);
    let read = run.query("SELECT read_from FROM file WHERE path = '/usr/bin/spin'");
    assert_eq!(read[0][0], "image", "{read:?}");
}

#[test]
fn a_backing_file_is_not_opened() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let image = directory.path().join("above.qcow2");
    let base = images().join("demo.img");
    let below = std::path::absolute(&base).expect("a path");
    let below = below.to_str().expect("UTF-8");
    qemu_img(&["create", "-q", "-f", "qcow2", "-F", "raw", "-b", below], &[&image]);
    let run = Guest::image(&image).next_to_others().script("true").run().exited(1);
    assert!(
        run.stderr.contains("needs a backing file") && run.stderr.contains("qemu-img convert"),
        "{}",
        run.stderr
    );
}
