//! Installation of Debian by its own tools into a directory.
//!
//! ```text
//! Debian packages --mmdebstrap--> an archive --tar--> a directory, and the owners of its files
//! ```

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::place::make_directory;
use crate::sources::{ArchiveMirrors, DebianSuites, MIRROR_VARIABLE};
use crate::tools::{output_of, run, tool};

/// Installation by mmdebstrap.
#[derive(Debug)]
pub(crate) struct DebianInstallation<'a> {
    /// Release of Debian.
    pub(crate) release: DebianSuites,
    /// Packages besides those that every Debian has, separated by commas.
    pub(crate) packages: &'a str,
    /// Shell command that completes the new system, whose root is `$1`.
    pub(crate) hook: String,
}

/// Files of an installed system.
#[derive(Debug)]
pub(crate) struct InstalledRoot {
    /// Root directory of the system.
    pub(crate) path: PathBuf,
    /// User and group of files, by path below the root, that do not belong to root.
    pub(crate) owners: HashMap<PathBuf, (u32, u32)>,
    /// Release of the only kernel, as `uname -r` prints it.
    pub(crate) kernel_release: String,
}

impl DebianInstallation<'_> {
    /// Installs the system into a directory below `stage`.
    ///
    /// # Errors
    /// A tool is missing, Debian's archive cannot be reached, the hook fails, the disk is full.
    pub(crate) fn unpack_into(&self, stage: &Path) -> Result<InstalledRoot> {
        let archive = stage.join("rootfs.tar");
        self.install(stage, &archive)?;
        let path = stage.join("root");
        make_directory(&path)?;
        // The kernel makes /dev itself, and only root could unpack device files.
        let mut unpack = tool("tar", "tar")?;
        unpack.args(["-x", "--no-same-owner", "--preserve-permissions", "--exclude=./dev/*", "-C"]);
        run(unpack.arg(&path).arg("-f").arg(&archive))?;
        let owners = owners(&output_of(tool("tar", "tar")?.args(["--numeric-owner", "-tvf"]).arg(&archive))?);
        fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))?;
        let kernel_release = kernel_release(&path)?;
        Ok(InstalledRoot { path, owners, kernel_release })
    }

    /// Installs Debian into an archive.
    fn install(&self, stage: &Path, archive: &Path) -> Result<()> {
        let mirrors =
            ArchiveMirrors::from_machine(Path::new("/etc/apt"), std::env::var(MIRROR_VARIABLE).ok())?;
        let sources = stage.join("debian.sources");
        fs::write(&sources, mirrors.to_deb822(self.release))
            .with_context(|| format!("cannot write {}", sources.display()))?;
        let mut mmdebstrap = tool("mmdebstrap", "mmdebstrap")?;
        mmdebstrap.args(["--quiet", "--format=tar", "--variant=important"]);
        mmdebstrap.arg(format!("--include={}", self.packages));
        mmdebstrap.arg(format!("--customize-hook={}", self.hook));
        mmdebstrap.arg(self.release.name()).arg(archive).arg(&sources);
        run(&mut mmdebstrap).map(drop).context("cannot install Debian")
    }
}

/// Returns a path as a word of a shell.
///
/// # Errors
/// The path is not UTF-8 or contains a single quote.
pub(crate) fn quoted(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.contains('\'') => Ok(format!("'{text}'")),
        _ => bail!("cannot pass the path {} to a shell: it has a quote or is not UTF-8", path.display()),
    }
}

/// Returns user and group of the files in the listing of an archive that do not belong to root.
fn owners(listing: &str) -> HashMap<PathBuf, (u32, u32)> {
    listing.lines().filter_map(owner).filter(|(_, owner)| *owner != (0, 0)).collect()
}

/// Reads `MODE USER/GROUP SIZE DATE TIME ./PATH`, to which a link adds ` -> TARGET`.
fn owner(line: &str) -> Option<(PathBuf, (u32, u32))> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ')?;
        rest = after;
        Some(word)
    };
    let (mode, owner) = (word()?, word()?);
    let (_size, _date, _time) = (word()?, word()?, word()?);
    let (user, group) = owner.split_once('/')?;
    let path = if mode.starts_with('l') { rest.split(" -> ").next()? } else { rest };
    let path = path.trim_start().trim_start_matches("./").trim_end_matches('/');
    Some((path.into(), (user.parse().ok()?, group.parse().ok()?)))
}

/// Returns the release of the only installed kernel.
fn kernel_release(root: &Path) -> Result<String> {
    let modules = root.join("usr/lib/modules");
    let mut entries = fs::read_dir(&modules).with_context(|| format!("cannot list {}", modules.display()))?;
    let first = entries.next().context("Debian was installed without a kernel")?;
    Ok(first.context("cannot list the kernel's modules")?.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_read_from_a_listing() {
        let listing = "\
            drwxr-xr-x 0/0               0 2026-01-01 10:00 ./etc/\n\
            drwxr-sr-x 0/999             0 2026-01-01 10:00 ./var/log/journal/\n\
            -rw-r----- 0/42            123 2026-01-01 10:00 ./etc/with space\n\
            lrwxrwxrwx 7/8               0 2026-01-01 10:00 ./a -> b -> c\n";
        let expected = [("var/log/journal", (0, 999)), ("etc/with space", (0, 42)), ("a", (7, 8))];
        assert_eq!(owners(listing), expected.map(|(path, owner)| (path.into(), owner)).into());
    }

    #[test]
    fn a_path_with_a_quote_is_refused() {
        assert_eq!(quoted(Path::new("/a b")).unwrap(), "'/a b'");
        assert!(quoted(Path::new("/it's")).is_err());
    }
}
