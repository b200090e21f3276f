//! `cargo xtask pictures`: the pictures of the documents, from one run of the demo guest.
//!
//! ```text
//! vprof run --top, its screen at the end ----> docs/pictures/top.png
//! its profile ----vprof report -i------------> docs/pictures/report.png
//!             ----vprof export --------------> docs/pictures/page.png
//! ```
//!
//! Chromium draws all of them: the screen of a terminal becomes HTML first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use guest_images::DemoOptions;
use testkit::Terminal;

use crate::demo::GuestTools;
use crate::progress::ProgressLine;
use crate::{deps, workspace};

/// Directory of the pictures, in the checkout.
const PICTURES: &str = "docs/pictures";
/// Largest picture, bytes: the pictures are part of every clone.
const LARGEST: u64 = 150_000;
/// Time for a guest to boot and to run its load, in an emulated host too.
const PATIENCE: Duration = Duration::from_secs(600);

/// Name of the profile, which the pictures show.
const PROFILE: &str = "vprof.vprof";

/// Rows and columns of the terminal, the size for which its screens are designed.
const TERMINAL: (u16, u16) = (24, 80);
/// Size of a terminal's picture, px: [`TERMINAL`] in the font of [`STYLE`], with its margins.
const TERMINAL_PICTURE: (u32, u32) = (747, 456);
/// Size of the page's picture, px: the width of a small desktop, and a height that [`LARGEST`] allows.
const PAGE_PICTURE: (u32, u32) = (1280, 840);
/// Style of a terminal's screen.
const STYLE: &str = "body{margin:0;background:#16181d;color:#d5d8de}\
                     pre{margin:12px;font:15px/18px 'DejaVu Sans Mono',monospace}";

/// Records the demo and draws its pictures.
pub fn run() -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure_for_tests(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let image = guest_images::demo(&DemoOptions::default(), &line)?;
    let tools = GuestTools::build(&line)?;
    let stage = tempfile::tempdir().context("cannot make a directory")?;
    let pictures = workspace::root()?.join(PICTURES);
    fs::create_dir_all(&pictures).with_context(|| format!("cannot make {}", pictures.display()))?;
    let recording = Recording { tools, image, profile: stage.path().join(PROFILE) };

    let top = line.during("recording the demo", || recording.top())?;
    let report = recording.report()?;
    let page = recording.page()?;
    line.during("drawing", || {
        for (name, screen) in [("top.png", top), ("report.png", report)] {
            let html = stage.path().join(name).with_extension("html");
            let text =
                format!("<!doctype html><meta charset=utf-8><style>{STYLE}</style><pre>{screen}</pre>");
            fs::write(&html, text).with_context(|| format!("cannot write {}", html.display()))?;
            draw(&html, &pictures.join(name), TERMINAL_PICTURE)?;
        }
        draw(&page, &pictures.join("page.png"), PAGE_PICTURE)
    })?;
    println!("{}", pictures.display());
    Ok(ExitCode::SUCCESS)
}

/// A run of the demo guest.
#[derive(Debug)]
struct Recording {
    tools: GuestTools,
    image: PathBuf,
    profile: PathBuf,
}

impl Recording {
    fn vprof(&self) -> Command {
        let mut command = Command::new(&self.tools.vprof);
        self.tools.set_environment(&mut command);
        command
    }

    /// Records the demo from its boot on, and returns the screen of `vprof top` at the end of the run.
    fn top(&self) -> Result<String> {
        let mut command = self.vprof();
        // The page shows the image as it is named here.
        let (directory, name) = (self.image.parent(), self.image.file_name());
        command.current_dir(directory.context("an image has a directory")?);
        command.arg("run").arg(name.context("an image has a name")?);
        command.args(["--snapshot", "--top", "-o"]).arg(&self.profile);
        // The last line of a run that has ended (`cli/src/top`).
        screen(command, "q quits")
    }

    /// Returns the first screen of `vprof report -i`.
    fn report(&self) -> Result<String> {
        let mut command = self.vprof();
        command.current_dir(self.profile.parent().context("a profile has a directory")?);
        command.args(["report", "-i", PROFILE]);
        screen(command, "[1 process]")
    }

    /// Writes the page and returns its path.
    fn page(&self) -> Result<PathBuf> {
        let page = self.profile.with_extension("html");
        let status = self.vprof().arg("export").arg(&self.profile).arg("-o").arg(&page).status();
        let status = status.context("cannot start vprof")?;
        ensure!(status.success(), "vprof export failed: {status}");
        Ok(page)
    }
}

/// Returns a program's screen when it shows a text, as HTML, and ends the program by `q`.
fn screen(command: Command, sign: &str) -> Result<String> {
    let mut terminal = Terminal::start(command, TERMINAL.0, TERMINAL.1);
    let start = Instant::now();
    while !terminal.text().contains(sign) {
        ensure!(start.elapsed() < PATIENCE, "no \"{sign}\" on the screen:\n{}", terminal.text());
        thread::sleep(Duration::from_millis(200));
    }
    let html = terminal.html();
    terminal.press("q");
    let (status, text) = terminal.end();
    ensure!(status.success(), "vprof failed ({status}): {text}");
    Ok(html)
}

/// Draws a file of HTML in light colours, in a window of this size (px).
fn draw(html: &Path, png: &Path, (width, height): (u32, u32)) -> Result<()> {
    let profile = tempfile::tempdir().context("cannot make a directory")?;
    let mut chromium = Command::new("chromium");
    // Its sandbox does not start for root, as in containers; the pages are our own.
    chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    // Virtual time passes only while the page has nothing to do, so its script ends on a slow machine too.
    chromium.arg("--virtual-time-budget=10000").arg(format!("--window-size={width},{height}"));
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    chromium.arg(format!("--screenshot={}", png.display())).arg(format!("file://{}", html.display()));
    let output = chromium.stdin(Stdio::null()).output().context("cannot start chromium")?;
    let size = fs::metadata(png).map(|file| file.len());
    let size = size.with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("chromium did not draw {}: {}", html.display(), said.trim())
    })?;
    ensure!(size <= LARGEST, "{} has {size} bytes, more than {LARGEST}", png.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Width and height of a PNG, px: the first fields of its first chunk (PNG, third edition, 11.2.1).
    fn size(png: &[u8]) -> (u32, u32) {
        let field = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
        assert_eq!((&png[..8], &png[12..16]), (&b"\x89PNG\r\n\x1a\n"[..], &b"IHDR"[..]));
        (field(16), field(20))
    }

    #[test]
    fn each_picture_is_small_and_in_a_document() {
        let root = workspace::root().unwrap();
        for entry in fs::read_dir(root.join(PICTURES)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let (document, expected) = match name.as_str() {
                "page.png" => ("page.md", PAGE_PICTURE),
                "top.png" => ("top.md", TERMINAL_PICTURE),
                "report.png" => ("browse.md", TERMINAL_PICTURE),
                _ => panic!("cargo xtask pictures does not draw {name}"),
            };
            let png = fs::read(root.join(PICTURES).join(&name)).unwrap();
            assert!(png.len() as u64 <= LARGEST, "{name}: {} bytes", png.len());
            assert_eq!(size(&png), expected, "{name}");
            let text = fs::read_to_string(root.join("docs").join(document)).unwrap();
            assert!(text.contains(&format!("](pictures/{name})")), "docs/{document} does not show {name}");
        }
        assert!(root.join(PICTURES).join("page.png").is_file(), "README.md shows it");
    }

    #[test]
    fn chromium_draws_a_page_in_the_size_that_is_asked_for() {
        if testkit::tool("chromium").is_none() {
            return;
        }
        let stage = tempfile::tempdir().unwrap();
        let (html, png) = (stage.path().join("a.html"), stage.path().join("a.png"));
        fs::write(&html, "<!doctype html><body style='background:#123456'>").unwrap();
        draw(&html, &png, (320, 200)).unwrap();
        assert_eq!(size(&fs::read(&png).unwrap()), (320, 200));
    }
}
