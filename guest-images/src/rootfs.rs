//! Root file systems made of Debian packages whose installation scripts do not run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debs::unpack;
use crate::kernel::UnpackedKernel;
use crate::place::make_directory;

/// Everything in this crate that determines a whole-disk image of such a file system.
pub(crate) const RECIPE: &[&str] = &[
    include_str!("archive.rs"),
    include_str!("debs.rs"),
    include_str!("disk.rs"),
    include_str!("initrd.rs"),
    include_str!("kernel.rs"),
    include_str!("modules.rs"),
    include_str!("rootfs.rs"),
];

/// Options of tar that leave out parts of Debian packages which no guest reads.
const LEFT_OUT: &[&str] = &[
    "--exclude=./usr/share/doc",
    "--exclude=./usr/share/info",
    "--exclude=./usr/share/lintian",
    "--exclude=./usr/share/locale",
    "--exclude=./usr/share/man",
    "--exclude=./usr/share/bug",
];

/// Unpacks packages into an empty directory.
pub(crate) fn unpack_packages(debs: &[PathBuf], root: &Path) -> Result<()> {
    // Packages of Debian 12 still have /bin and /lib, so the merged /usr must exist before they are unpacked.
    for directory in ["bin", "sbin", "lib", "lib64"] {
        put_directory(&root.join("usr").join(directory), 0o755)?;
        let link = root.join(directory);
        symlink(format!("usr/{directory}"), &link)
            .with_context(|| format!("cannot make the link {}", link.display()))?;
    }
    debs.iter().try_for_each(|deb| unpack(deb, root, LEFT_OUT))
}

/// Moves an unpacked kernel to `/boot/vmlinuz`, and writes its initrd next to it.
pub(crate) fn put_boot(root: &Path, kernel: &UnpackedKernel, initrd: &[u8]) -> Result<()> {
    let boot = root.join("boot");
    put_directory(&boot, 0o755)?;
    fs::rename(&kernel.image, boot.join("vmlinuz")).context("cannot name the kernel /boot/vmlinuz")?;
    put(&boot.join("initrd.img"), 0o644, initrd)
}

/// Writes the files of the packages' installation scripts, which did not run, as far as programs need those
/// files.
pub(crate) fn settle(root: &Path) -> Result<()> {
    for directory in ["dev", "proc", "sys", "run", "etc", "mnt", "usr/local", "usr/local/bin"] {
        put_directory(&root.join(directory), 0o755)?;
    }
    for (directory, mode) in [("root", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)] {
        put_directory(&root.join(directory), mode)?;
    }
    for (file, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        ),
        ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
        ("etc/hostname", "vprof-guest\n"),
        ("etc/hosts", "127.0.0.1 localhost vprof-guest\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ] {
        put(&root.join(file), 0o644, text.as_bytes())?;
    }
    let sh = root.join("usr/bin/sh");
    if sh.symlink_metadata().is_err() {
        symlink("dash", &sh).context("cannot make the link /bin/sh")?;
    }
    Ok(())
}

/// Returns the bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file with this mode.
pub(crate) fn put(path: &Path, mode: u32, contents: &[u8]) -> Result<()> {
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))?;
    set_mode(path, mode)
}

/// Makes a directory with this mode, independent of the umask.
pub(crate) fn put_directory(path: &Path, mode: u32) -> Result<()> {
    make_directory(path)?;
    set_mode(path, mode)
}

/// Sets the mode of a file, independent of the umask.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}
