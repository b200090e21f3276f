//! `cargo xtask docs`: the documents as a site, by mdBook.
//!
//! ```text
//! README.md, CHANGELOG.md, docs/  --copied--> target/book/src  --mdbook--> target/site
//! the list of documents in README.md --------> its SUMMARY.md
//! ```
//!
//! The documents keep their places, so that the links between them lead to the same pages on the site.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::progress::ProgressLine;
use crate::workspace;
use guest_images::cargo;

/// Version of mdBook, which the command installs.
const MDBOOK: &str = "0.4.52";
/// Heading of README.md above its list of documents.
const LIST: &str = "## Documentation\n";

/// Arguments of `cargo xtask docs`.
#[derive(Debug, Args)]
pub struct DocsArgs {
    /// Directory of the site
    #[arg(long, default_value = "target/site", value_name = "DIR")]
    out: PathBuf,
}

/// Makes the site, and fails if one of its links leads nowhere.
pub fn run(options: &DocsArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    let root = workspace::root()?;
    let mdbook = line.during("installing mdBook", || installed(&root))?;
    let out = std::path::absolute(&options.out).context("cannot find the current directory")?;
    let dead = build(&root, &mdbook, &out)?;
    for link in &dead {
        eprintln!("{link}");
    }
    if !dead.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!("{}", out.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the program, installed below target/ unless it is there in this version.
fn installed(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin/mdbook");
    let version = Command::new(&program).arg("--version").output();
    if version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(MDBOOK)) {
        return Ok(program);
    }
    let mut install = cargo();
    install.args(["install", "--quiet", "--locked", "--force", "--version", MDBOOK, "--no-default-features"]);
    let status = install.arg("--root").arg(&tools).arg("mdbook").stdin(Stdio::null()).status();
    ensure!(status.context("cannot start cargo")?.success(), "cargo cannot install mdbook {MDBOOK}");
    Ok(program)
}

/// Makes the site and returns its dead links.
fn build(root: &Path, mdbook: &Path, out: &Path) -> Result<Vec<String>> {
    let book = root.join("target/book");
    write_sources(root, &book)?;
    let output = Command::new(mdbook).arg("build").arg("--dest-dir").arg(out).arg(&book).output();
    let output = output.context("cannot start mdbook")?;
    ensure!(output.status.success(), "mdbook failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    dead_links(out)
}

/// Writes the book's configuration, its list of pages, and copies of the documents.
fn write_sources(root: &Path, book: &Path) -> Result<()> {
    let src = book.join("src");
    if src.exists() {
        fs::remove_dir_all(&src).with_context(|| format!("cannot remove {}", src.display()))?;
    }
    copy_tree(&root.join("docs"), &src.join("docs"))?;
    for name in ["README.md", "CHANGELOG.md"] {
        fs::copy(root.join(name), src.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    let readme = fs::read_to_string(root.join("README.md")).context("cannot read README.md")?;
    // A page for addresses that do not exist is for servers, and its links begin at their root.
    let configuration = "[book]\ntitle = \"vprof\"\nlanguage = \"en\"\n\n[output.html]\nno-section-label = true\n\
                         input-404 = \"\"\n\n[output.html.print]\nenable = false\n";
    for (path, text) in
        [(book.join("book.toml"), configuration), (src.join("SUMMARY.md"), &summary(&readme)?)]
    {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Copies the files of a directory and below.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", from.display()))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else {
            fs::copy(&path, &target).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Returns the list of pages: README.md, and the documents that it lists, each once.
fn summary(readme: &str) -> Result<String> {
    let Some((_, list)) = readme.split_once(LIST) else { bail!("README.md has no list of documents") };
    let mut text = String::from("# Summary\n\n[vprof](README.md)\n\n");
    let mut seen = BTreeSet::new();
    for (title, rest) in list.lines().filter_map(|line| line.strip_prefix("- [")?.split_once("](")) {
        let Some((file, _)) = rest.split_once(')') else { continue };
        if file.ends_with(".md") && seen.insert(file) {
            text.push_str(&format!("- [{title}]({file})\n"));
        }
    }
    Ok(text)
}

/// Returns the links of a site to files or anchors that it does not have, as `PAGE: LINK`.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(site, &mut pages)?;
    let mut dead = Vec::new();
    for (path, text) in &pages {
        let directory = path.parent().unwrap_or(site);
        let links = ["href=\"", "src=\""].into_iter().flat_map(|mark| text.split(mark).skip(1));
        for (target, _) in links.filter_map(|rest| rest.split_once('"')) {
            let target = target.replace("&amp;", "&");
            if is_external(&target) {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = if file.is_empty() { path.clone() } else { normal(&directory.join(file)) };
            let to = if to.is_dir() { to.join("index.html") } else { to };
            let has_anchor = |page: &String| page.contains(&format!("id=\"{anchor}\""));
            if !to.exists() || !anchor.is_empty() && !pages.get(&to).is_none_or(has_anchor) {
                let page = path.strip_prefix(site).unwrap_or(path);
                dead.push(format!("{}: dead link {target}", page.display()));
            }
        }
    }
    Ok(dead)
}

/// True for links with a scheme, like `https:`, `mailto:` and `data:`.
fn is_external(target: &str) -> bool {
    let scheme = target.split([':', '/', '#', '?', '.']).next().unwrap_or_default();
    target[scheme.len()..].starts_with(':')
}

/// Returns a path without `..` and `.`.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

/// Reads the pages in a directory and below.
fn read_pages(directory: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
        if path.is_dir() {
            read_pages(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_links_of_a_site_are_found_and_others_are_not() {
        let site = tempfile::tempdir().unwrap();
        fs::create_dir(site.path().join("docs")).unwrap();
        let index = "<h1 id=\"top\"></h1><a href=\"docs/a.html#part\"></a><a href=\"#top\"></a><a href=\"https://x/y\"></a>\
                     <a href=\"docs/gone.html\"></a><a href=\"docs/a.html#nothing\"></a><img src=\"mailto:x\">";
        fs::write(site.path().join("index.html"), index).unwrap();
        fs::write(
            site.path().join("docs/a.html"),
            "<p id=\"part\"><a href=\"../index.html\"></a><a href=\"../\"></a>",
        )
        .unwrap();
        let dead = dead_links(site.path()).unwrap();
        assert_eq!(
            dead,
            ["index.html: dead link docs/gone.html", "index.html: dead link docs/a.html#nothing"]
        );
    }

    /// Every document is on the site.
    #[test]
    fn the_list_of_readme_has_every_document() {
        let root = workspace::root().unwrap();
        let pages = summary(&fs::read_to_string(root.join("README.md")).unwrap()).unwrap();
        for entry in fs::read_dir(root.join("docs")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                assert!(pages.contains(&format!("(docs/{name})")), "README.md does not list docs/{name}");
            }
        }
    }

    #[test]
    #[ignore = "installs mdBook: --all"]
    fn the_site_has_no_dead_links() {
        let root = workspace::root().unwrap();
        let site = tempfile::tempdir().unwrap();
        let dead = build(&root, &installed(&root).unwrap(), site.path()).unwrap();
        assert_eq!(dead, Vec::<String>::new());
        assert!(site.path().join("docs/page.html").is_file());
    }
}
