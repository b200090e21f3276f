//! A Debian with systemd as anybody would install it: by its own tools, with its own kernel and initrd.
//!
//! ```text
//! Debian packages --mmdebstrap--> rootfs.tar --tar--> a directory --mke2fs -d--> partition 2 --+
//!                                     its /boot/efi --mkfs.vfat, mcopy--> partition 1 ---------+--sfdisk--> debian.img
//! ```
//!
//! Nothing in it knows of vprof. systemd-boot's `kernel-install` writes the boot loader's entry.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::kernel::Unknown;
use crate::manifest::{Manifest, Product, fingerprint, product};
use crate::place::{Lock, guest_directory, make_directory};
use crate::sources::{MIRROR_VARIABLE, Mirrors, Release};
use crate::tools::{output_of, run, tool};
use crate::{Progress, disk, esp, partitions};

/// Which of Debian's releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DebianRelease {
    /// Debian 12.
    #[default]
    Bookworm,
    /// Debian 13.
    Trixie,
}

impl DebianRelease {
    fn suites(self) -> Release {
        match self {
            Self::Bookworm => Release::Bookworm,
            Self::Trixie => Release::Trixie,
        }
    }
}

impl FromStr for DebianRelease {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "bookworm" => Ok(Self::Bookworm),
            "trixie" => Ok(Self::Trixie),
            _ => Err(Unknown::new(text, "bookworm or trixie")),
        }
    }
}

impl fmt::Display for DebianRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suites().name())
    }
}

/// The format of an image's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// Byte by byte as the guest sees it.
    #[default]
    Raw,
    /// qcow2.
    Qcow2,
}

impl FromStr for FileFormat {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => Err(Unknown::new(text, "raw or qcow2")),
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

/// Which Debian image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DebianOptions {
    /// The release.
    pub release: DebianRelease,
    /// The file's format.
    pub format: FileFormat,
}

impl DebianOptions {
    /// The image's file name: `debian.img` for the defaults, else with what differs, like `debian-trixie.qcow2`.
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

/// Besides what every Debian has: what makes it a system that boots, and the boot loader with its tool.
const PACKAGES: &str =
    "linux-image-cloud-amd64,systemd-sysv,dbus,udev,systemd-boot,systemd-boot-efi,iproute2";

/// Identifies the root file system.
const ROOT_UUID: &str = "6f1d2c3e-5a4b-4c8d-9e7f-767072660002";
/// Identifies the EFI system partition: FAT's volume id.
const ESP_ID: &str = "76707266";

/// What an installer would have asked, and what the boot loader's tool must be told where nothing is mounted.
/// mmdebstrap gives the root's path as `$1`.
const SETTLE: &str = include_str!("debian-settle.sh");

/// Everything in this crate that decides what the image holds.
const RECIPE: &[&str] = &[
    SETTLE,
    include_str!("debian.rs"),
    include_str!("disk.rs"),
    include_str!("esp.rs"),
    include_str!("partitions.rs"),
];

/// Makes a Debian image and returns its path below `target/guest`; a manifest beside it says what is in it.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, the disk is full.
pub fn debian(options: &DebianOptions, progress: &dyn Progress) -> Result<PathBuf> {
    let lock = Lock::take()?;
    let directory = guest_directory();
    let raw = DebianOptions { format: FileFormat::Raw, ..*options };
    let image = directory.join(raw.file_name());
    let manifest = image.with_extension("manifest.json");
    let recipe = fingerprint(&[RECIPE, &[options.release.suites().suites()]].concat(), &[], &[]);
    if !Manifest::is_current(&manifest, &recipe) {
        let stage = lock.stage()?;
        let release = build(options.release, stage.path(), progress)?;
        let fresh = stage.path().join("disk");
        let made = product(&fresh, &raw.file_name())?;
        fs::rename(&fresh, &image).with_context(|| format!("cannot write {}", image.display()))?;
        record(&manifest, recipe.clone(), release, made)?;
    }
    match options.format {
        FileFormat::Raw => Ok(image),
        FileFormat::Qcow2 => qcow2_of(&image, options, &lock, progress),
    }
}

/// The raw image in a qcow2 file, made again where the raw one was.
fn qcow2_of(raw: &Path, options: &DebianOptions, lock: &Lock, progress: &dyn Progress) -> Result<PathBuf> {
    let image = guest_directory().join(options.file_name());
    let manifest = image.with_added_extension("manifest.json");
    let of_raw = Manifest::read(&raw.with_extension("manifest.json"))?;
    if Manifest::is_current(&manifest, &of_raw.fingerprint) {
        return Ok(image);
    }
    progress.begin(&format!("making {}", image.display()));
    let stage = lock.stage()?;
    let fresh = stage.path().join("image");
    let mut convert = tool("qemu-img", "qemu-utils")?;
    run(convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(raw).arg(&fresh))?;
    let made = product(&fresh, &options.file_name())?;
    fs::rename(&fresh, &image).with_context(|| format!("cannot write {}", image.display()))?;
    record(&manifest, of_raw.fingerprint, of_raw.kernel_release, made)?;
    progress.end();
    Ok(image)
}

fn record(path: &Path, fingerprint: String, kernel_release: String, made: Product) -> Result<()> {
    // Which packages these are, the image's own package database knows.
    Manifest { fingerprint, kernel_release, products: vec![made], packages: Vec::new(), programs: Vec::new() }
        .write(path)
}

/// Makes `disk` in the directory `stage`; returns the kernel's release.
fn build(release: DebianRelease, stage: &Path, progress: &dyn Progress) -> Result<String> {
    progress.begin(&format!("installing Debian's {release}"));
    let tar = stage.join("rootfs.tar");
    install(release, stage, &tar)?;
    progress.end();
    progress.begin("making the Debian image");
    let root = stage.join("root");
    make_directory(&root)?;
    // The kernel makes /dev itself; device files could be unpacked by root only.
    let mut unpack = tool("tar", "tar")?;
    unpack.args(["-x", "--no-same-owner", "--preserve-permissions", "--exclude=./dev/*", "-C"]).arg(&root);
    run(unpack.arg("-f").arg(&tar))?;
    let owners = owners(&output_of(tool("tar", "tar")?.args(["--numeric-owner", "-tvf"]).arg(&tar))?);
    fs::remove_file(&tar).with_context(|| format!("cannot remove {}", tar.display()))?;
    let kernel = kernel_release(&root)?;

    let esp = stage.join("esp");
    esp::make(&root.join("boot/efi"), &esp, ESP_ID)?;
    let file_system = disk::Ext4 { label: "debian", uuid: ROOT_UUID, free: 512 << 20, owners };
    let root_image = stage.join("rootfs");
    disk::make(&root, &root_image, &file_system)?;
    partitions::join(&stage.join("disk"), &esp, &root_image)?;
    progress.end();
    Ok(kernel)
}

/// Debian's own installation into an archive.
fn install(release: DebianRelease, stage: &Path, tar: &Path) -> Result<()> {
    let mirrors = Mirrors::of_machine(Path::new("/etc/apt"), std::env::var(MIRROR_VARIABLE).ok())?;
    let sources = stage.join("debian.sources");
    let settle = stage.join("settle.sh");
    let write = |path: &Path, text: &str| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&sources, &mirrors.to_deb822(release.suites()))?;
    write(&settle, SETTLE)?;
    let mut mmdebstrap = tool("mmdebstrap", "mmdebstrap")?;
    mmdebstrap.args(["--quiet", "--format=tar", "--variant=important"]);
    mmdebstrap.arg(format!("--include={PACKAGES}"));
    let hook = format!("ROOT_UUID={ROOT_UUID} ESP_ID={ESP_ID} sh {} \"$1\"", quoted(&settle)?);
    mmdebstrap.arg(format!("--customize-hook={hook}"));
    mmdebstrap.arg(release.to_string()).arg(tar).arg(&sources);
    run(&mut mmdebstrap).map(drop).context("cannot install Debian")
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.contains('\'') => Ok(format!("'{text}'")),
        _ => bail!("{} has a name that a shell cannot be told", path.display()),
    }
}

/// Who owns what in the listing of an archive, besides root.
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

/// The release of the one kernel that is installed.
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
}
