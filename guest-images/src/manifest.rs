//! Manifest of an image: its inputs, each with its hash.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::place::write_whole;

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
pub(crate) fn product(path: &Path, name: &str) -> Result<ProductFile> {
    let size = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    Ok(ProductFile { file: name.to_owned(), size, sha256: sha256_of(path)? })
}

fn hex(bytes: &[u8]) -> String {
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
}
