//! A reader of standard output that closes it early.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_has_gone_ends_a_check_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut lint = Command::new(env!("CARGO_BIN_EXE_xtask"));
    lint.args(["lint", "README.md"]).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = lint.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}
