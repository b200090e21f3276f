//! `vprof report --interactive` on a terminal.

mod support;

use support::{refused, run, vprof, write_profile};
use testkit::Terminal;

#[test]
fn a_report_is_looked_through_by_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vprof.vprof");
    write_profile(&path);
    let mut command = vprof(["report", "-i"]);
    command.current_dir(directory.path());
    let mut terminal = Terminal::start(command, 24, 80);
    let text = terminal.until("programs", |text| text.contains("calm"));
    // Names of the guest do not control the terminal.
    assert!(text.contains("evil\\x1b[2J"), "{text}");
    assert!(text.contains("75.0 %") && text.contains("[1 process]"), "{text}");
    terminal.press("/calm\r\r");
    let text = terminal.until("functions", |text| text.contains("all > calm"));
    assert!(text.contains("do_work") && text.contains("100 of 400 samples"), "{text}");
    terminal.press("\r");
    terminal.until("callees", |text| text.contains("callees of do_work"));
    terminal.press("\r");
    terminal.until("code", |text| text.contains("> code of do_work") && text.contains("0xffffffff81000000"));
    // The escape key alone.
    terminal.press("\x1b");
    terminal.until("callees again", |text| text.contains("callees of do_work") && !text.contains("code of"));
    terminal.press("q");
    let (status, text) = terminal.end();
    assert!(status.success(), "{text}");
}

#[test]
fn a_pipe_is_not_looked_through() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vprof.vprof");
    write_profile(&path);
    refused(
        &run([std::ffi::OsStr::new("report"), path.as_os_str(), "-i".as_ref()]),
        2,
        &["--interactive", "terminal"],
    );
}
