//! `open`: the page, and what shows it.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use support::{refused, stderr, stdout, vprof, write_profile};

/// A directory with a profile, a directory of programs and one of temporary files.
struct Session(tempfile::TempDir);

impl Session {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        write_profile(&directory.path().join("vprof.vprof"));
        fs::create_dir(directory.path().join("bin")).unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        Self(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Installs an `xdg-open` that notes its argument and ends with this code.
    fn browser(&self, code: u8) {
        let opener = self.file("bin/xdg-open");
        let note = self.file("opened");
        let script = format!("#!/bin/sh\nprintf %s \"$1\" > '{}'\nexit {code}\n", note.display());
        fs::write(&opener, script).unwrap();
        fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn open(&self, display: &str, more: &[&str]) -> Output {
        let mut command = vprof(["open"].iter().chain(more));
        command.current_dir(self.0.path()).env("PATH", self.file("bin")).env("TMPDIR", self.file("tmp"));
        command.env_remove("WAYLAND_DISPLAY").env("DISPLAY", display).output().unwrap()
    }

    /// Returns the pages among the temporary files.
    fn pages(&self) -> Vec<PathBuf> {
        fs::read_dir(self.file("tmp")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn assert_page(path: &Path) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.contains("id=\"profile\""), "{}", &text[..100]);
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_browser_gets_a_page_that_stays() {
    let session = Session::new();
    session.browser(0);
    let output = session.open(":0", &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let pages = session.pages();
    assert_eq!(pages.len(), 1);
    assert_page(&pages[0]);
    assert_eq!(fs::read_to_string(session.file("opened")).unwrap(), pages[0].to_str().unwrap());
    assert_eq!(stdout(&output), format!("The browser shows {}\n", pages[0].display()));
}

#[test]
fn without_a_browser_a_sentence_has_the_path() {
    let session = Session::new();
    let missing = session.open(":0", &[]);
    assert!(stdout(&missing).contains("xdg-utils) is not installed. The page is /"), "{}", stdout(&missing));
    session.browser(3);
    let none = session.open(":0", &[]);
    assert!(stdout(&none).starts_with("xdg-open found no browser. The page is /"), "{}", stdout(&none));
    fs::remove_file(session.file("opened")).unwrap();
    let text = stdout(&session.open("", &["-o", "my.html"]));
    let page = session.file("my.html");
    assert_eq!(text, format!("This session has no display. The page is {}\n", page.display()));
    assert_page(&page);
    assert!(!session.file("opened").exists(), "nothing is started without a display");
    refused(&session.open("", &["-o", "my.html"]), 1, &["my.html exists", "--force"]);
    assert!(session.open("", &["-o", "my.html", "--force"]).status.success());
}

#[test]
fn a_page_that_cannot_be_written_leaves_no_file() {
    let session = Session::new();
    session.browser(0);
    refused(&session.open(":0", &["missing.vprof"]), 1, &["missing.vprof does not exist"]);
    refused(&session.open(":0", &["--base", "missing.vprof"]), 1, &["missing.vprof does not exist"]);
    refused(&session.open(":0", &["-o", "-"]), 2, &["standard output", "give a file with -o"]);
    refused(&session.open(":0", &["-o", "none/page.html"]), 1, &["none"]);
    refused(&session.open(":0", &["-o", "vprof.vprof", "--force"]), 1, &["vprof.vprof"]);
    let alone = session.open(":0", &["--force"]);
    assert!(alone.status.code() == Some(2) && stderr(&alone).contains("--output"), "{}", stderr(&alone));
    assert_eq!(session.pages(), [] as [PathBuf; 0]);
    fs::remove_dir(session.file("tmp")).unwrap();
    refused(&session.open(":0", &[]), 1, &["can't write a file in", "tmp", "TMPDIR"]);
    assert!(!session.file("opened").exists());
}
