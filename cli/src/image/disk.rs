//! Finds kernel and initrd in a disk image, without mounting it.

use std::error::Error;
use std::path::Path;

use ext4_view::{Ext4, Ext4Read};

use super::contents::Contents;
use super::{ImageError, MAX_FILE, initrd, kernel};
use crate::render::units;

/// The root file system of an image.
#[derive(Debug)]
pub struct Volume {
    fs: Ext4,
}

/// What an image brings.
#[derive(Debug)]
pub struct Found {
    pub kernel: Vec<u8>,
    pub initrd: Option<Vec<u8>>,
    /// Where the kernel is, for people.
    pub origin: String,
}

struct Reader(Contents);

impl Ext4Read for Reader {
    fn read(&mut self, start: u64, dst: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        self.0.read_exact_at(dst, start).map_err(Into::into)
    }
}

/// Checks that the image is as long as its file system says, and opens the file system.
pub fn check(image: &Contents, path: &Path) -> Result<Volume, ImageError> {
    let read = |source| ImageError::Read { what: "the image", path: path.to_owned(), source };
    // A block device is as long as it is.
    let length = image.size().map_err(read)?.unwrap_or(u64::MAX);
    let mut block = [0; 0x400];
    let truncated = |needed: u64| ImageError::Truncated {
        path: path.to_owned(),
        detail: format!(
            "its file system is {} large, but the image has {}",
            units::bytes(needed),
            units::bytes(length)
        ),
    };
    image.read_exact_at(&mut block, 1024).map_err(|_| truncated(2048))?;
    let word = |offset: usize| {
        u32::from_le_bytes([block[offset], block[offset + 1], block[offset + 2], block[offset + 3]])
    };
    // Documentation/filesystems/ext4/super.rst: s_blocks_count_lo 0x4, s_log_block_size 0x18,
    // s_feature_incompat 0x60 (64BIT is 0x80), s_blocks_count_hi 0x150.
    let high = if word(0x60) & 0x80 != 0 { word(0x150) } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(word(4));
    let needed = 1_u64
        .checked_shl(word(0x18).saturating_add(10))
        .and_then(|size| blocks.checked_mul(size))
        .unwrap_or(u64::MAX);
    if needed > length {
        return Err(truncated(needed));
    }
    let fs = load(image).map_err(|reason| ImageError::FileSystem { path: path.to_owned(), reason })?;
    Ok(Volume { fs })
}

/// The file system that starts at the first byte of `image`.
pub(super) fn load(image: &Contents) -> Result<Ext4, String> {
    Ext4::load(Box::new(Reader(image.clone()))).map_err(|error| error.to_string())
}

impl Volume {
    /// Reads the kernel, and the initrd that belongs to it if there is one.
    pub fn find(&self, image: &Path) -> Result<Found, ImageError> {
        let fail = |reason: String| ImageError::FileSystem { path: image.to_owned(), reason };
        let Some(kernel_path) = self.kernel_path() else {
            return Err(ImageError::NoKernel {
                path: image.to_owned(),
                looked: "/boot/vmlinuz, /vmlinuz and /boot/vmlinuz-*".to_owned(),
            });
        };
        let inside = |source| ImageError::Inside { image: image.to_owned(), source: Box::new(source) };
        let kernel = self.read(&kernel_path).map_err(fail)?;
        if kernel.is_empty() {
            return Err(inside(ImageError::Empty {
                path: kernel_path.into(),
                wanted: "an image with a whole kernel, or one with --kernel",
            }));
        }
        kernel::check(&kernel, Path::new(&kernel_path)).map_err(inside)?;
        let initrd = match self.initrd_path(&kernel_path) {
            None => None,
            Some(path) => {
                let bytes = self.read(&path).map_err(fail)?;
                initrd::check(&bytes, Path::new(&path)).map_err(inside)?;
                Some(bytes)
            }
        };
        Ok(Found { kernel, initrd, origin: format!("{kernel_path} in {}", image.display()) })
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        let size = self.fs.metadata(path).map_err(|e| format!("{path}: {e}"))?.len();
        if size > MAX_FILE {
            return Err(format!("{path} is {} large", units::bytes(size)));
        }
        self.fs.read(path).map_err(|e| format!("{path}: {e}"))
    }

    fn is_file(&self, path: &str) -> bool {
        // Follows symbolic links; whatever is wrong with the path, it is no file that could be booted.
        self.fs.metadata(path).is_ok_and(|m| m.file_type().is_regular_file())
    }

    /// The kernel's path with symbolic links resolved: its name then carries the version.
    fn kernel_path(&self) -> Option<String> {
        ["/boot/vmlinuz", "/vmlinuz"]
            .into_iter()
            .map(str::to_owned)
            .find(|path| self.is_file(path))
            .or_else(|| self.newest("vmlinuz-"))
            .map(|path| self.resolved(path))
    }

    fn resolved(&self, path: String) -> String {
        match self.fs.canonicalize(path.as_str()) {
            Ok(real) => String::from_utf8_lossy(real.as_ref()).into_owned(),
            Err(_) => path,
        }
    }

    fn newest(&self, prefix: &str) -> Option<String> {
        let entries = self.fs.read_dir("/boot").ok()?;
        let names = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().as_str().ok().map(str::to_owned))
            // Debian and Fedora keep a kernel for rescue; it is never the newest.
            .filter(|name| name.starts_with(prefix) && !name.contains("rescue"));
        names.max_by(|a, b| version(a).cmp(&version(b))).map(|name| format!("/boot/{name}"))
    }

    /// The initrd of the same version, under the names that distributions use, else the one the links name.
    fn initrd_path(&self, kernel: &str) -> Option<String> {
        let (directory, name) = kernel.rsplit_once('/')?;
        let mut candidates = Vec::new();
        if let Some(version) = name.strip_prefix("vmlinuz-") {
            for form in [("initrd.img-", ""), ("initramfs-", ".img"), ("initramfs-", ""), ("initrd-", "")] {
                candidates.push(format!("{directory}/{}{version}{}", form.0, form.1));
            }
        }
        for name in ["initrd.img", "initrd", "initramfs.img", "initramfs"] {
            candidates.push(format!("/boot/{name}"));
        }
        candidates.push("/initrd.img".to_owned());
        candidates.into_iter().find(|path| self.is_file(path))
    }
}

/// A version in an order that puts 6.12 after 6.1: numbers as numbers.
fn version(name: &str) -> Vec<(u64, &str)> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(|part| (part.parse().unwrap_or(0), part)).collect()
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_sort_by_number() {
        assert!(version("vmlinuz-6.12.1-cloud") > version("vmlinuz-6.1.176-cloud"));
        assert!(version("vmlinuz-6.1.0-10") > version("vmlinuz-6.1.0-9"));
    }
}
