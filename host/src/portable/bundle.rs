//! Finds the portable host's files: a kernel with KVM's modules, built by `cargo xtask image portable-host`.

use std::path::{Path, PathBuf};

/// Name of the environment's variable with a directory that holds the bundle.
pub const VARIABLE: &str = "VPROF_PORTABLE_HOST";
/// Command that builds the bundle.
pub const HOW_TO_BUILD: &str = "cargo xtask image portable-host";

/// The bundle's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Its directory.
    pub directory: PathBuf,
    /// The inner host's kernel.
    pub kernel: PathBuf,
    /// Its initial file system: modules, no init.
    pub initrd: PathBuf,
}

/// No bundle where it was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFound {
    /// Directories that were searched.
    pub looked: Vec<PathBuf>,
}

/// Looks for the bundle: in the directory given, else in the one that the environment names, else near the
/// program. A named directory is the only one that is searched.
///
/// # Errors
/// It is nowhere.
pub fn find(given: Option<&Path>) -> Result<Bundle, NotFound> {
    let named = given
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from));
    let candidates = match named {
        Some(directory) => vec![directory],
        None => std::env::current_exe().map(|exe| near(&exe)).unwrap_or_default(),
    };
    match candidates.iter().find_map(|directory| in_directory(directory)) {
        Some(bundle) => Ok(bundle),
        None => Err(NotFound { looked: candidates }),
    }
}

/// Places of the bundle relative to the program: installed next to it, or in the source tree of its build.
fn near(exe: &Path) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    let Some(directory) = exe.parent() else { return candidates };
    if let Some(prefix) = directory.parent() {
        candidates.push(prefix.join("share/vprof/portable-host"));
    }
    for ancestor in directory.ancestors() {
        let name = ancestor.join("target/guest/portable-host");
        if ancestor.join("target/guest").is_dir() || name.is_dir() {
            candidates.push(name);
        }
    }
    candidates
}

fn in_directory(directory: &Path) -> Option<Bundle> {
    let bundle = Bundle {
        directory: directory.to_owned(),
        kernel: directory.join("vmlinuz"),
        initrd: directory.join("initrd.img"),
    };
    (bundle.kernel.is_file() && bundle.initrd.is_file()).then_some(bundle)
}

impl NotFound {
    /// Returns the searched directories, for a sentence.
    pub fn places(&self) -> String {
        let places: Vec<_> = self.looked.iter().map(|p| display::message::Shown(p).to_string()).collect();
        if places.is_empty() { "nowhere to look".to_owned() } else { places.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_is_found_upward_from_the_program() {
        let tree = tempfile::tempdir().unwrap();
        let bundle = tree.path().join("target/guest/portable-host");
        std::fs::create_dir_all(&bundle).unwrap();
        let exe = tree.path().join("target/release/vprof");
        let candidates = near(&exe);
        assert!(candidates.contains(&tree.path().join("target/share/vprof/portable-host")));
        assert_eq!(candidates.iter().find_map(|c| in_directory(c)), None);
        std::fs::write(bundle.join("vmlinuz"), b"k").unwrap();
        std::fs::write(bundle.join("initrd.img"), b"i").unwrap();
        let found = near(&exe).iter().find_map(|c| in_directory(c)).unwrap();
        assert_eq!(found.directory, bundle);
    }

    #[test]
    fn a_named_directory_is_the_only_one() {
        let empty = tempfile::tempdir().unwrap();
        let error = find(Some(empty.path())).unwrap_err();
        assert_eq!(error.looked, [empty.path()]);
        assert_eq!(error.places(), empty.path().to_string_lossy());
    }
}
