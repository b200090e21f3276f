//! Real programs of Debian's packages on one disk, with small workloads that measure themselves.
//!
//! ```text
//! Debian packages ------mmdebstrap--> a directory --mke2fs -d--> corpus-bookworm.img
//! guest-images/corpus --its /opt--------^
//! ```
//!
//! The disk is one ext4 without partitions, and its init is systemd. The servers are installed but not
//! started.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debian::DebianRelease;
use crate::installation::{DebianInstallation, quoted};
use crate::manifest::{ProductRecipe, fingerprint};
use crate::place::{DirectoryLock, guest_directory, make_directory};
use crate::sources::DebianSuites;
use crate::{Progress, disk};

/// Packages besides those of every Debian: a bootable system, and the programs that both releases name alike.
const PACKAGES: &str = "linux-image-cloud-amd64,systemd-sysv,dbus,udev,iproute2,procps,gdb,\
    nginx,redis-server,redis-tools,postgresql,nodejs,perl,python3,python3-numpy,golang-go";
/// Packages of Debian 12 alone.
const BOOKWORM: &str = "openjdk-17-jdk-headless,ruby3.1,php8.2-cli,php8.2-opcache,erlang-base,\
    gunicorn,python3-flask,node-express,wrk";
/// Packages of Debian 13 alone.
const TRIXIE: &str =
    "openjdk-21-jdk-headless,openjdk-25-jre-headless,ruby3.3,php8.4-cli,php8.4-opcache,podman,crun";

/// UUID of the file system.
const ROOT_UUID: &str = "6f1d2c3e-5a4b-4c8d-9e7f-767072660006";

/// Free space for the guest's writes, bytes: a small database.
const FREE: u64 = 1 << 30;

/// Script with the settings that an installer would ask for, and the place of the programs. mmdebstrap passes
/// the root's path as `$1`.
const SETTLE: &str = include_str!("../corpus/settle.sh");

/// Names and texts of the programs, which are below `/opt/corpus` in the guest.
const PROGRAMS: &[(&str, &str)] = &[
    ("phases.py", include_str!("../corpus/phases.py")),
    ("arrays.py", include_str!("../corpus/arrays.py")),
    ("Phases.java", include_str!("../corpus/Phases.java")),
    ("phases.js", include_str!("../corpus/phases.js")),
    ("phases.rb", include_str!("../corpus/phases.rb")),
    ("phases.php", include_str!("../corpus/phases.php")),
    ("phases.pl", include_str!("../corpus/phases.pl")),
    ("phases.go", include_str!("../corpus/phases.go")),
    ("phases.erl", include_str!("../corpus/phases.erl")),
    ("phases.sh", include_str!("../corpus/phases.sh")),
    ("service.py", include_str!("../corpus/service.py")),
    ("Service.java", include_str!("../corpus/Service.java")),
    ("service.js", include_str!("../corpus/service.js")),
    ("services.sh", include_str!("../corpus/services.sh")),
    ("servers.sh", include_str!("../corpus/servers.sh")),
];

/// Returns the suites of a release, and its packages in mmdebstrap's form.
fn contents(release: DebianRelease) -> (DebianSuites, String) {
    let (suites, own) = match release {
        DebianRelease::Bookworm => (DebianSuites::Bookworm, BOOKWORM),
        DebianRelease::Trixie => (DebianSuites::Trixie, TRIXIE),
    };
    (suites, format!("{PACKAGES},{own}"))
}

/// Returns a fingerprint of everything that determines the contents of the image.
fn recipe(release: DebianRelease) -> String {
    let (suites, packages) = contents(release);
    let mut parts = vec![
        suites.suites(),
        &packages,
        SETTLE,
        include_str!("corpus.rs"),
        include_str!("installation.rs"),
        include_str!("disk.rs"),
    ];
    parts.extend(PROGRAMS.iter().map(|(_, text)| *text));
    fingerprint(&parts, &[], &[])
}

/// Makes `corpus-RELEASE.img` and returns its path below `target/guest`. A manifest next to the image lists
/// its contents.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, the disk is full.
pub fn corpus(release: DebianRelease, progress: &dyn Progress) -> Result<PathBuf> {
    let lock = DirectoryLock::take()?;
    let name = format!("corpus-{release}.img");
    let image = guest_directory().join(&name);
    let manifest = image.with_extension("manifest.json");
    let fingerprint = recipe(release);
    // The image's package database has the packages.
    let recipe = ProductRecipe {
        manifest,
        products: &[&name],
        fingerprint,
        packages: Vec::new(),
        programs: Vec::new(),
    };
    recipe.provide(&lock, |stage| {
        progress.begin(&format!("installing the corpus of Debian's {release}"));
        let kernel_release = build(release, stage, &stage.join(&name))?;
        progress.end();
        Ok(kernel_release)
    })?;
    Ok(image)
}

/// Makes the disk `image` in the directory `stage`, and returns the kernel's release.
fn build(release: DebianRelease, stage: &Path, image: &Path) -> Result<String> {
    let programs = stage.join("programs");
    make_directory(&programs)?;
    let settle = stage.join("settle.sh");
    let write = |path: &Path, text: &str| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&settle, SETTLE)?;
    for (name, text) in PROGRAMS {
        write(&programs.join(name), text)?;
    }
    let hook = format!("ROOT_UUID={ROOT_UUID} sh {} \"$1\" {}", quoted(&settle)?, quoted(&programs)?);
    let (suites, packages) = contents(release);
    let root = DebianInstallation { release: suites, packages: &packages, hook }.unpack_into(stage)?;
    let file_system = disk::Ext4Options { label: "corpus", uuid: ROOT_UUID, free: FREE, owners: root.owners };
    disk::make(&root.path, image, &file_system)?;
    Ok(root.kernel_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_its_own_recipe() {
        assert_ne!(recipe(DebianRelease::Bookworm), recipe(DebianRelease::Trixie));
    }

    #[test]
    fn every_program_is_in_the_image() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let mut found: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "settle.sh")
            .collect();
        let mut named: Vec<_> = PROGRAMS.iter().map(|(name, _)| (*name).to_owned()).collect();
        found.sort();
        named.sort();
        assert_eq!(found, named);
    }
}
