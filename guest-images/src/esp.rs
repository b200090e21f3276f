//! EFI system partition made from a directory.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result};

use crate::place::make_directory;
use crate::tools::{run, tool};

/// Size of the partition, bytes: enough for a few kernels with their initrds, and for the clusters of FAT32.
const SIZE: u64 = 128 << 20;

/// Makes a sparse file that is a FAT32 file system with the contents of `directory`. Afterwards `directory`
/// is empty, because the guest mounts the partition there. `id` is the volume id, eight hexadecimal digits.
pub(crate) fn make(directory: &Path, image: &Path, id: &str) -> Result<()> {
    let file = File::create(image).with_context(|| format!("cannot write {}", image.display()))?;
    file.set_len(SIZE).with_context(|| format!("cannot make {} {SIZE} bytes long", image.display()))?;
    drop(file);
    run(tool("mkfs.vfat", "dosfstools")?.args(["-F", "32", "-n", "ESP", "-i", id]).arg(image))?;
    let mut copy = tool("mcopy", "mtools")?;
    copy.args(["-s", "-Q", "-i"]).arg(image);
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        copy.arg(entry.with_context(|| format!("cannot list {}", directory.display()))?.path());
    }
    run(copy.arg("::")).context("cannot fill the EFI system partition")?;
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    make_directory(directory)
}
