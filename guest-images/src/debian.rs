//! A Debian with systemd in its usual installation: by its own tools, with its own kernel and initrd.
//!
//! ```text
//! Debian packages --mmdebstrap--> rootfs.tar --tar--> a directory --mke2fs -d--> partition 2 --+
//!                                  its /boot/efi --mkfs.vfat, mcopy--> partition 1 ------------+
//! both partitions --sfdisk--> debian.img
//! ```
//!
//! The image has no traces of vprof. systemd-boot's `kernel-install` writes the boot loader's entry.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};

use crate::installation::{DebianInstallation, quoted};
use crate::kernel::UnknownName;
use crate::manifest::{ImageManifest, ProductRecipe, fingerprint};
use crate::place::{DirectoryLock, guest_directory};
use crate::sources::DebianSuites;
use crate::tools::{run, tool};
use crate::{Progress, disk, esp, partitions};

/// Release of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DebianRelease {
    /// Debian 12.
    #[default]
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl DebianRelease {
    fn suites(self) -> DebianSuites {
        match self {
            Self::Bookworm => DebianSuites::Bookworm,
            Self::Trixie => DebianSuites::Trixie,
        }
    }
}

impl FromStr for DebianRelease {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "bookworm" => Ok(Self::Bookworm),
            "trixie" => Ok(Self::Trixie),
            _ => Err(UnknownName::new(text, "bookworm or trixie")),
        }
    }
}

impl fmt::Display for DebianRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suites().name())
    }
}

/// Format of an image's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// The bytes of the disk as the guest sees them.
    #[default]
    Raw,
    /// qcow2.
    Qcow2,
}

impl FromStr for FileFormat {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => Err(UnknownName::new(text, "raw or qcow2")),
        }
    }
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

/// Options of a Debian image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DebianOptions {
    /// Release of Debian.
    pub release: DebianRelease,
    /// Format of the file.
    pub format: FileFormat,
}

impl DebianOptions {
    /// Returns the image's file name: `debian.img` for the defaults; other options are in the name, like
    /// `debian-trixie.qcow2`.
    pub fn file_name(&self) -> String {
        let release = match self.release {
            DebianRelease::Bookworm => String::new(),
            other => format!("-{other}"),
        };
        let extension = match self.format {
            FileFormat::Raw => "img",
            FileFormat::Qcow2 => "qcow2",
        };
        format!("debian{release}.{extension}")
    }
}

/// Packages besides those of every Debian: a bootable system, and the boot loader with its tool.
const PACKAGES: &str =
    "linux-image-cloud-amd64,systemd-sysv,dbus,udev,systemd-boot,systemd-boot-efi,iproute2";

/// UUID of the root file system.
const ROOT_UUID: &str = "6f1d2c3e-5a4b-4c8d-9e7f-767072660002";
/// FAT's volume id of the EFI system partition.
const ESP_ID: &str = "76707266";

/// Script with the settings that an installer would ask for, and those that the boot loader's tool needs
/// because nothing is mounted. mmdebstrap passes the root's path as `$1`.
const SETTLE: &str = include_str!("debian-settle.sh");

/// Everything in this crate that determines the contents of the image.
const RECIPE: &[&str] = &[
    SETTLE,
    include_str!("debian.rs"),
    include_str!("disk.rs"),
    include_str!("esp.rs"),
    include_str!("installation.rs"),
    include_str!("partitions.rs"),
];

/// Makes a Debian image and returns its path below `target/guest`. A manifest next to the image lists its
/// contents.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, the disk is full.
pub fn debian(options: &DebianOptions, progress: &dyn Progress) -> Result<PathBuf> {
    let lock = DirectoryLock::take()?;
    let directory = guest_directory();
    let raw = DebianOptions { format: FileFormat::Raw, ..*options };
    let image = directory.join(raw.file_name());
    let manifest = image.with_extension("manifest.json");
    let fingerprint = fingerprint(&[RECIPE, &[options.release.suites().suites()]].concat(), &[], &[]);
    let file = raw.file_name();
    recipe(manifest, &[&file], fingerprint)
        .provide(&lock, |stage| build(options.release, stage, &stage.join(&file), progress))?;
    match options.format {
        FileFormat::Raw => Ok(image),
        FileFormat::Qcow2 => qcow2_of(&image, options, &lock, progress),
    }
}

/// Converts the raw image to qcow2, unless the qcow2 file was made from the same raw image.
fn qcow2_of(
    raw: &Path,
    options: &DebianOptions,
    lock: &DirectoryLock,
    progress: &dyn Progress,
) -> Result<PathBuf> {
    let image = guest_directory().join(options.file_name());
    let manifest = image.with_added_extension("manifest.json");
    let of_raw = ImageManifest::read(&raw.with_extension("manifest.json"))?;
    let file = options.file_name();
    let fingerprint = fingerprint(&["qcow2", &of_raw.fingerprint], &[], &[]);
    recipe(manifest, &[&file], fingerprint).provide(lock, |stage| {
        progress.begin(&format!("making {}", image.display()));
        let mut convert = tool("qemu-img", "qemu-utils")?;
        run(convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(stage.join(&file)))?;
        progress.end();
        Ok(of_raw.kernel_release)
    })?;
    Ok(image)
}

/// Returns the recipe of an image whose package database has its packages.
fn recipe<'a>(manifest: PathBuf, products: &'a [&'a str], fingerprint: String) -> ProductRecipe<'a> {
    ProductRecipe { manifest, products, fingerprint, packages: Vec::new(), programs: Vec::new() }
}

/// Makes the image `disk` with the help of an empty directory, and returns the kernel's release.
fn build(release: DebianRelease, stage: &Path, disk: &Path, progress: &dyn Progress) -> Result<String> {
    progress.begin(&format!("installing Debian's {release}"));
    let settle = stage.join("settle.sh");
    fs::write(&settle, SETTLE).with_context(|| format!("cannot write {}", settle.display()))?;
    let hook = format!("ROOT_UUID={ROOT_UUID} ESP_ID={ESP_ID} sh {} \"$1\"", quoted(&settle)?);
    let installation = DebianInstallation { release: release.suites(), packages: PACKAGES, hook };
    let root = installation.unpack_into(stage)?;
    progress.end();
    progress.begin("making the Debian image");
    let esp = stage.join("esp");
    esp::make(&root.path.join("boot/efi"), &esp, ESP_ID)?;
    let file_system =
        disk::Ext4Options { label: "debian", uuid: ROOT_UUID, free: 512 << 20, owners: root.owners };
    let root_image = stage.join("rootfs");
    disk::make(&root.path, &root_image, &file_system)?;
    partitions::join(disk, &esp, &root_image)?;
    progress.end();
    Ok(root.kernel_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_what_differs() {
        let name = |release, format| DebianOptions { release, format }.file_name();
        assert_eq!(name(DebianRelease::Bookworm, FileFormat::Raw), "debian.img");
        assert_eq!(name(DebianRelease::Trixie, FileFormat::Qcow2), "debian-trixie.qcow2");
    }

    #[test]
    fn releases_and_formats_are_read_as_they_are_written() {
        for release in [DebianRelease::Bookworm, DebianRelease::Trixie] {
            assert_eq!(release.to_string().parse(), Ok(release));
        }
        for format in [FileFormat::Raw, FileFormat::Qcow2] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "sid".parse::<DebianRelease>().unwrap_err().to_string();
        assert_eq!(error, "there is no sid: use bookworm or trixie");
    }
}
