//! The checkout that a command works on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Returns the root of the checkout that contains the current directory: xtask may be built in another one.
pub fn root() -> Result<PathBuf> {
    let current = std::env::current_dir().context("cannot find the current directory")?;
    root_above(&current)
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is not in a checkout of vprof: change the directory", current.display()))
}

fn root_above(directory: &Path) -> Option<&Path> {
    // Not any workspace: fuzz/ has its own.
    directory.ancestors().find(|above| above.join("xtask/Cargo.toml").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

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
