//! Store of Debian packages in the user's cache, for all checkouts of the tree.
//!
//! Versions that were resolved once stay the same, so that a checkout finds the images that another one made
//! of them, until the store is deleted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::Progress;
use crate::apt::{AptClient, ListedPackage};
use crate::manifest::{PackageFile, sha256_of};
use crate::place::{DirectoryLock, write_whole};
use crate::sources::DebianSuites;
use crate::tools::{pipe, tool};

/// Packages that a recipe needs from Debian.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PackageQuery<'a> {
    /// Packages of Debian 12 with all their dependencies.
    Closure(&'a [&'a str]),
    /// Kernel on which a meta package of a release depends, without the other dependencies, which only the
    /// installation needs.
    Kernel(DebianSuites, &'a str),
}

impl PackageQuery<'_> {
    /// Returns the key under which the resolved packages are kept. Another list of packages has another key.
    fn key(&self) -> String {
        match self {
            Self::Closure(packages) => packages.join(" "),
            // The key has the suites, because other suites have another kernel.
            Self::Kernel(release, meta) => format!("kernel {} {meta}", release.suites()),
        }
    }

    fn release(&self) -> DebianSuites {
        match self {
            Self::Closure(_) => DebianSuites::Bookworm,
            Self::Kernel(release, _) => *release,
        }
    }
}

/// Packages of each query that was resolved, in `resolved.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ResolvedQueries {
    answers: BTreeMap<String, Vec<PackageFile>>,
}

/// Directory of package files, and the resolved queries.
#[derive(Debug)]
pub(crate) struct PackageStore {
    directory: PathBuf,
    apt_directory: PathBuf,
    resolved: ResolvedQueries,
    apts: BTreeMap<DebianSuites, AptClient>,
    #[expect(dead_code, reason = "held, not read: one process at a time uses the store")]
    lock: DirectoryLock,
}

impl PackageStore {
    /// Opens the store, and waits until no other process uses it.
    pub(crate) fn open() -> Result<Self> {
        Self::open_in(&testkit::cache_directory())
    }

    fn open_in(cache: &Path) -> Result<Self> {
        let directory = cache.join("debs");
        let lock = DirectoryLock::take_in(&directory)?;
        // If the file cannot be read, every query is resolved again.
        let resolved = fs::read(directory.join("resolved.json"))
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        Ok(Self { directory, apt_directory: cache.join("apt"), resolved, apts: BTreeMap::new(), lock })
    }

    /// Returns the path of a package file.
    pub(crate) fn path(&self, input: &PackageFile) -> PathBuf {
        self.directory.join(&input.file)
    }

    /// Returns the paths of package files.
    pub(crate) fn paths(&self, inputs: &[PackageFile]) -> Vec<PathBuf> {
        inputs.iter().map(|input| self.path(input)).collect()
    }

    /// Returns the packages of a query, all of them in the store. Uses the network only for a query that was
    /// never resolved, or whose files are missing.
    pub(crate) fn fetch(
        &mut self,
        wanted: PackageQuery<'_>,
        progress: &dyn Progress,
    ) -> Result<Vec<PackageFile>> {
        let key = wanted.key();
        if let Some(known) = self.resolved.answers.get(&key)
            && known.iter().all(|input| self.holds(input))
        {
            return Ok(known.clone());
        }
        let inputs = self.resolve(wanted, progress)?;
        self.resolved.answers.insert(key, inputs.clone());
        let text = serde_json::to_vec_pretty(&self.resolved).context("cannot write resolved.json")?;
        write_whole(&self.directory.join("resolved.json"), &text)?;
        Ok(inputs)
    }

    fn holds(&self, input: &PackageFile) -> bool {
        fs::metadata(self.path(input)).is_ok_and(|meta| meta.len() == input.size)
    }

    fn resolve(&mut self, wanted: PackageQuery<'_>, progress: &dyn Progress) -> Result<Vec<PackageFile>> {
        let release = wanted.release();
        let apt = match self.apts.remove(&release) {
            Some(apt) => apt,
            None => self.fresh_apt(release, progress)?,
        };
        // The meta package is replaced by the kernel's packages, so that all later steps see the same
        // versions.
        let kernel = match wanted {
            PackageQuery::Kernel(_, meta) => apt.kernel_packages(meta)?,
            PackageQuery::Closure(_) => Vec::new(),
        };
        let kernel: Vec<&str> = kernel.iter().map(String::as_str).collect();
        let listed = match wanted {
            PackageQuery::Closure(packages) => apt.list_closure(packages)?,
            PackageQuery::Kernel(..) => apt.list_alone(&kernel)?,
        };
        let bytes: u64 = listed.iter().map(|listed| listed.size).sum();
        let megabytes = bytes.div_ceil(1_000_000);
        progress.begin(&format!("fetching Debian packages: {} files, {megabytes} MB", listed.len()));
        self.remove_damaged(&listed)?;
        match wanted {
            PackageQuery::Closure(packages) => apt.download_closure(packages, &self.directory)?,
            PackageQuery::Kernel(..) => apt.download_alone(&kernel, &self.directory)?,
        }
        let inputs = listed.iter().map(|listed| self.check(listed)).collect::<Result<Vec<_>>>()?;
        progress.end();
        self.apts.insert(release, apt);
        Ok(inputs)
    }

    fn fresh_apt(&self, release: DebianSuites, progress: &dyn Progress) -> Result<AptClient> {
        progress.begin(&format!("reading the package lists of Debian's {}", release.name()));
        let apt = AptClient::new(&self.apt_directory.join(release.name()), release)?;
        apt.update()?;
        progress.end();
        Ok(apt)
    }

    /// Removes files with wrong contents. apt compares only name and length, and would keep them.
    fn remove_damaged(&self, listed: &[ListedPackage]) -> Result<()> {
        for listed in listed {
            let path = self.directory.join(&listed.file);
            if path.exists() && sha256_of(&path)? != listed.sha256 {
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Compares a downloaded file with its hash in the signed lists.
    fn check(&self, listed: &ListedPackage) -> Result<PackageFile> {
        let path = self.directory.join(&listed.file);
        let sha256 = sha256_of(&path)?;
        ensure!(
            sha256 == listed.sha256,
            "{} has the SHA-256 {sha256}, Debian's lists say {}: remove it and try again",
            path.display(),
            listed.sha256
        );
        let (name, version) = name_and_version(&listed.file)?;
        Ok(PackageFile { name, version, file: listed.file.clone(), size: listed.size, sha256 })
    }
}

/// Splits `name_version_architecture.deb`. apt writes the colon of an epoch as `%3a`.
fn name_and_version(file: &str) -> Result<(String, String)> {
    let mut parts = file.split('_');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(name), Some(version), Some(_), None) => Ok((name.to_owned(), version.replace("%3a", ":"))),
        _ => bail!("{file} is not named like a Debian package"),
    }
}

/// Unpacks a package into `root`. Existing symbolic links to directories (`/lib` to `/usr/lib`) stay.
///
/// `tar_options` select the files that are unpacked.
pub(crate) fn unpack(deb: &Path, root: &Path, tar_options: &[&str]) -> Result<()> {
    let mut contents = tool("dpkg-deb", "dpkg")?;
    contents.arg("--fsys-tarfile").arg(deb);
    let mut tar = tool("tar", "tar")?;
    // Owners are set in the image later. Modes must not depend on the umask.
    tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "--preserve-permissions", "-C"]);
    tar.arg(root).args(tar_options);
    pipe(&mut contents, &mut tar).with_context(|| format!("cannot unpack {}", deb.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_hold_name_and_version() {
        let (name, version) = name_and_version("zlib1g_1%3a1.2.13.dfsg-1_amd64.deb").unwrap();
        assert_eq!((name.as_str(), version.as_str()), ("zlib1g", "1:1.2.13.dfsg-1"));
        assert!(name_and_version("zlib1g.deb").is_err());
    }

    #[test]
    fn what_was_resolved_needs_no_network() {
        let directory = tempfile::tempdir().unwrap();
        let debs = directory.path().join("debs");
        fs::create_dir(&debs).unwrap();
        fs::write(debs.join("a_1_amd64.deb"), b"abc").unwrap();
        let input = PackageFile {
            name: "a".into(),
            version: "1".into(),
            file: "a_1_amd64.deb".into(),
            size: 3,
            sha256: "00".into(),
        };
        let resolved = ResolvedQueries { answers: [("a b".to_owned(), vec![input.clone()])].into() };
        fs::write(debs.join("resolved.json"), serde_json::to_vec(&resolved).unwrap()).unwrap();
        let mut store = PackageStore::open_in(directory.path()).unwrap();
        assert_eq!(
            store.fetch(PackageQuery::Closure(&["a", "b"]), &crate::SilentProgress).unwrap(),
            std::slice::from_ref(&input)
        );
        assert!(!directory.path().join("apt").exists());
        fs::write(debs.join("a_1_amd64.deb"), b"ab").unwrap();
        assert!(!store.holds(&input));
    }
}
