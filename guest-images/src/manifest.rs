//! Manifest of an image: its inputs, each with its hash.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::place::{DirectoryLock, make_directory, write_whole};
use crate::tools::{run, tool};

/// Debian package in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFile {
    /// Name of the package.
    pub name: String,
    /// Version, epoch included.
    pub version: String,
    /// Name of the file below `target/guest/debs`.
    pub file: String,
    /// Length of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, hexadecimal, as in Debian's signed package lists.
    pub sha256: String,
}

/// Program of this workspace in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFile {
    /// File name.
    pub name: String,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
}

/// File that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProductFile {
    /// Name, relative to the manifest.
    pub file: String,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256, hexadecimal, of the new file. A guest that runs on an image without `--snapshot` changes the
    /// file.
    pub sha256: String,
}

/// Contents of the `.manifest.json` next to an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageManifest {
    /// Hash that changes whenever an input of the image changes, the recipe included.
    pub fingerprint: String,
    /// Release of the guest's kernel, as `uname -r` prints it.
    pub kernel_release: String,
    /// Files that were made.
    pub products: Vec<ProductFile>,
    /// Debian packages, in the order in which they were unpacked.
    pub packages: Vec<PackageFile>,
    /// Programs of this workspace.
    pub programs: Vec<ProgramFile>,
}

impl ImageManifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// There is no manifest, or it is from another version of this crate.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a manifest of this version", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).context("cannot write a manifest")?;
        text.push(b'\n');
        write_whole(path, &text)
    }

    /// Returns true if the products of the manifest at `path` were made from `fingerprint` and still exist.
    pub(crate) fn is_current(path: &Path, fingerprint: &str) -> bool {
        let directory = path.parent().unwrap_or(Path::new("."));
        Self::read(path).is_ok_and(|manifest| {
            manifest.fingerprint == fingerprint
                && manifest.products.iter().all(|product| {
                    fs::metadata(directory.join(&product.file)).is_ok_and(|meta| meta.len() == product.size)
                })
        })
    }
}

/// Inputs of products, and the place where they go.
#[derive(Debug)]
pub(crate) struct ProductRecipe<'a> {
    /// Path of the manifest, next to the products.
    pub(crate) manifest: PathBuf,
    /// Names of the products, relative to the manifest.
    pub(crate) products: &'a [&'a str],
    /// Hash of all inputs.
    pub(crate) fingerprint: String,
    /// Debian packages, in the order in which they are unpacked.
    pub(crate) packages: Vec<PackageFile>,
    /// Programs of this workspace.
    pub(crate) programs: Vec<ProgramFile>,
}

impl ProductRecipe<'_> {
    /// Makes the products and their manifest, unless they are there already. `make` gets an empty directory,
    /// puts each product into it under its name, and returns the release of the guest's kernel.
    ///
    /// A copy goes into the user's cache under the fingerprint, because making an image takes a minute: the
    /// next checkout with the same inputs only copies it back. A guest may write to its image, so the two
    /// never share a file.
    ///
    /// # Errors
    /// `make` fails, or the disk is full.
    pub(crate) fn provide(
        self,
        lock: &DirectoryLock,
        make: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<()> {
        self.provide_by(&testkit::cache_directory().join("images"), lock, make)
    }

    fn provide_by(
        self,
        cache: &Path,
        lock: &DirectoryLock,
        make: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<()> {
        let Self { manifest, products, fingerprint, packages, programs } = self;
        if ImageManifest::is_current(&manifest, &fingerprint) {
            return Ok(());
        }
        let directory = manifest.parent().unwrap_or(Path::new("."));
        make_directory(directory)?;
        let stage = lock.stage()?;
        let cached = cache.join(&fingerprint);
        let cached_manifest = cached.join(MANIFEST);
        let contents = if ImageManifest::is_current(&cached_manifest, &fingerprint) {
            copy_images(&cached, products, stage.path())?;
            ImageManifest::read(&cached_manifest)?
        } else {
            let kernel_release = make(stage.path())?;
            let products =
                products.iter().map(|name| product(&stage.path().join(name), name)).collect::<Result<_>>()?;
            ImageManifest { fingerprint, kernel_release, products, packages, programs }
        };
        // Another checkout may have made the same product meanwhile.
        let cache_lock = DirectoryLock::take_in(cache)?;
        if !cached_manifest.exists() {
            // The manifest is last: without it the directory counts for nothing.
            make_directory(&cached)?;
            copy_images(stage.path(), products, &cached)?;
            contents.write(&cached_manifest)?;
        }
        drop(cache_lock);
        for name in products {
            let path = directory.join(name);
            fs::rename(stage.path().join(name), &path)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        contents.write(&manifest)
    }
}

/// Name of the manifest in the cache.
const MANIFEST: &str = "manifest.json";

/// Copies images, whose files are mostly holes.
fn copy_images(from: &Path, names: &[&str], to: &Path) -> Result<()> {
    let mut copy = tool("cp", "coreutils")?;
    copy.args(["--sparse=always", "--reflink=auto"]).args(names.iter().map(|name| from.join(name)));
    run(copy.arg(to)).map(drop)
}

/// Returns one hash over all inputs of an image.
pub(crate) fn fingerprint(recipe: &[&str], packages: &[PackageFile], programs: &[ProgramFile]) -> String {
    let mut hash = Sha256::new();
    // The lengths separate neighbouring parts.
    let mut part = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    };
    recipe.iter().copied().for_each(&mut part);
    for package in packages {
        part(&package.file);
        part(&package.sha256);
    }
    for program in programs {
        part(&program.name);
        part(&program.sha256);
    }
    hex(&hash.finalize())
}

/// Returns the SHA-256 of a file in hexadecimal digits.
pub(crate) fn sha256_of(path: &Path) -> Result<String> {
    hash_of(path).with_context(|| format!("cannot read {}", path.display()))
}

fn hash_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&part[..count]),
        }
    }
}

/// Returns the manifest's entry for a new file; `name` is the file's final name.
fn product(path: &Path, name: &str) -> Result<ProductFile> {
    let size = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    Ok(ProductFile { file: name.to_owned(), size, sha256: sha256_of(path)? })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(file: &str) -> PackageFile {
        PackageFile { name: "a".into(), version: "1".into(), file: file.into(), size: 3, sha256: "00".into() }
    }

    fn program(name: &str) -> ProgramFile {
        ProgramFile { name: name.into(), sha256: "11".into() }
    }

    #[test]
    fn every_input_changes_the_fingerprint() {
        let all = [
            fingerprint(&["r"], &[input("f")], &[program("p")]),
            fingerprint(&["s"], &[input("f")], &[program("p")]),
            fingerprint(&["r"], &[input("g")], &[program("p")]),
            fingerprint(&["r"], &[input("f")], &[program("q")]),
            fingerprint(&["r"], &[input("f"), input("f")], &[program("p")]),
            fingerprint(&["r"], &[], &[program("p")]),
            fingerprint(&["r", "r"], &[], &[]),
            fingerprint(&["rr"], &[], &[]),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(all[0], fingerprint(&["r"], &[input("f")], &[program("p")]));
    }

    #[test]
    fn a_missing_or_cut_product_is_not_current() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("x.img");
        let path = directory.path().join("x.manifest.json");
        fs::write(&image, b"abc").unwrap();
        let product = product(&image, "x.img").unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(product.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let manifest = ImageManifest {
            fingerprint: "f".into(),
            kernel_release: "6.1".into(),
            products: vec![product],
            packages: vec![input("f")],
            programs: vec![program("p")],
        };
        assert!(!ImageManifest::is_current(&path, "f"));
        manifest.write(&path).unwrap();
        assert_eq!(ImageManifest::read(&path).unwrap(), manifest);
        assert!(ImageManifest::is_current(&path, "f"));
        assert!(!ImageManifest::is_current(&path, "g"));
        fs::write(&image, b"ab").unwrap();
        assert!(!ImageManifest::is_current(&path, "f"));
        fs::remove_file(&image).unwrap();
        assert!(!ImageManifest::is_current(&path, "f"));
    }

    #[test]
    fn a_product_is_made_once_for_all_checkouts() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("cache");
        let provide = |checkout: &str, fingerprint: &str, contents: &str| {
            let guest = directory.path().join(checkout);
            let lock = DirectoryLock::take_in(&guest).unwrap();
            let recipe = ProductRecipe {
                manifest: guest.join("sub/x.manifest.json"),
                products: &["x.img"],
                fingerprint: fingerprint.to_owned(),
                packages: vec![input("f")],
                programs: Vec::new(),
            };
            let make = |stage: &Path| {
                fs::write(stage.join("x.img"), contents)?;
                Ok("6.1".to_owned())
            };
            recipe.provide_by(&cache, &lock, make).unwrap();
            fs::read_to_string(guest.join("sub/x.img")).unwrap()
        };
        assert_eq!(provide("a", "1", "first"), "first");
        assert_eq!(provide("a", "1", "again"), "first");
        // What a guest writes stays in its checkout.
        fs::write(directory.path().join("a/sub/x.img"), "FIRST").unwrap();
        assert_eq!(provide("b", "1", "again"), "first");
        assert_eq!(provide("b", "2", "other inputs"), "other inputs");
        let manifest = ImageManifest::read(&directory.path().join("b/sub/x.manifest.json")).unwrap();
        assert_eq!((manifest.fingerprint.as_str(), manifest.kernel_release.as_str()), ("2", "6.1"));
    }
}
