//! The checkout that a command works on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Returns the root of the checkout that contains the current directory: xtask may be built in another one.
pub fn root() -> Result<PathBuf> {
    let current = std::env::current_dir().context("cannot find the current directory")?;
    root_above(&current)
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is not in a checkout of vprof: change the directory", current.display()))
}

fn root_above(directory: &Path) -> Option<&Path> {
    // Not any workspace: fuzz/ and lab/ have their own.
    directory.ancestors().find(|above| above.join("xtask/Cargo.toml").is_file())
}

/// Returns the directory of what cargo builds of a checkout.
pub fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Adds the choice of the workspace `lab` to a call of cargo. Its programs are built next to those of the
/// main workspace, so that dependencies are built once for both.
pub fn choose_lab(cargo: &mut Command) -> Result<()> {
    let root = root()?;
    cargo.arg("--manifest-path").arg(root.join("lab/Cargo.toml")).arg("--target-dir").arg(target(&root));
    Ok(())
}

/// Returns a document with other text between the lines of its two marks.
pub fn between(document: &str, marks: [&str; 2], text: &str) -> Result<String> {
    let [begin, end] = marks.map(|mark| document.find(mark));
    let (begin, end) = (begin.context(marks[0].to_owned())?, end.context(marks[1].to_owned())?);
    ensure!(begin < end, "{} is behind {}", marks[0], marks[1]);
    Ok(format!("{}\n\n{}\n\n{}", &document[..begin + marks[0].len()], text.trim(), &document[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_between_marks_is_replaced() {
        let marks = ["<!-- a -->", "<!-- b -->"];
        let document = format!("head\n{}\nold\n{}\ntail\n", marks[0], marks[1]);
        let new = between(&document, marks, "new\n").unwrap();
        assert_eq!(new, "head\n<!-- a -->\n\nnew\n\n<!-- b -->\ntail\n");
        assert_eq!(between(&new, marks, "new").unwrap(), new);
        assert!(between("none", marks, "").is_err());
        assert!(between("<!-- b --><!-- a -->", marks, "").is_err());
    }

    #[test]
    fn the_nearest_checkout_is_found_from_any_directory_in_it() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("worktrees/a");
        for root in [outer.path(), &inner] {
            std::fs::create_dir_all(root.join("xtask")).unwrap();
            std::fs::create_dir_all(root.join("fuzz/src")).unwrap();
            std::fs::write(root.join("xtask/Cargo.toml"), "").unwrap();
            std::fs::write(root.join("fuzz/Cargo.toml"), "[workspace]\n").unwrap();
        }
        assert_eq!(root_above(&inner.join("fuzz/src")), Some(inner.as_path()));
        assert_eq!(root_above(&inner), Some(inner.as_path()));
        assert_eq!(root_above(&outer.path().join("fuzz")), Some(outer.path()));
        assert_eq!(root_above(Path::new("/")), None);
    }
}
