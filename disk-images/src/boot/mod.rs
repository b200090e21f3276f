//! Kernels that a disk's boot loader would boot.
//!
//! | searched in this order | files |
//! |---|---|
//! | boot loader specification | `loader/entries/*.conf` on any volume, or in `/boot` |
//! | unified kernel images | `EFI/Linux/*.efi`, sorted among those entries |
//! | GRUB | `grub.cfg` in `boot/grub`, `boot/grub2`, `grub`, `grub2` |
//! | extlinux | `extlinux.conf` in `boot/extlinux`, `extlinux`, `boot/syslinux`, `syslinux` |
//! | links and names | `/boot/vmlinuz`, `/vmlinuz`, the newest `/boot/vmlinuz-*` |
//!
//! These files are foreign input: their sizes and numbers are limited. They are parsed as far as
//! distributions use their languages; everything else in them is skipped.

mod bls;
mod extlinux;
mod grub;
mod plain;
pub mod unified;

use super::volume::{DiskVolume, VolumeFiles};
pub use unified::{UnifiedError, UnifiedImage};

/// Largest configuration file that is read, bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Most entries that are kept of one configuration.
const MAX_ENTRIES: usize = 256;
/// Most initrds of one entry.
const MAX_INITRDS: usize = 64;
/// Longest words of an entry, bytes. Linux' limit is 2048 (COMMAND_LINE_SIZE of arch/x86).
const MAX_WORDS: usize = 16 << 10;

/// Kernel that could be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootEntry {
    /// Index of the volume that has the kernel.
    pub volume: usize,
    /// Path of the kernel on the volume.
    pub kernel: String,
    /// Paths of the initrds on the volume, in the order in which the kernel gets them.
    pub initrds: Vec<String>,
    /// Words for the kernel's command line; `None` if no configuration has them.
    pub options: Option<String>,
    /// True for a unified image, which contains initrd and options.
    pub unified: bool,
    /// Title of the entry.
    pub title: Option<String>,
    /// Origin of the entry: a file, or the way by which it was found.
    pub source: String,
}

/// Function that finds entries of one kind.
type EntryFinder = fn(&[DiskVolume]) -> Vec<BootEntry>;

/// Returns everything that could be booted, the boot loader's own choice first.
pub fn entries(volumes: &[DiskVolume]) -> Vec<BootEntry> {
    let finders: [EntryFinder; 4] = [bls::entries, grub::entries, extlinux::entries, plain::entries];
    let mut found: Vec<BootEntry> = Vec::new();
    for entry in finders.iter().flat_map(|find| find(volumes)) {
        let known = |known: &BootEntry| known.volume == entry.volume && known.kernel == entry.kernel;
        // An entry that was found by its name alone is useless next to a configuration that has the same
        // kernel.
        if entry.options.is_some() || !found.iter().any(known) {
            found.push(entry);
        }
    }
    found
}

/// Returns the volumes that can be read, with their indexes.
fn readable(volumes: &[DiskVolume]) -> impl Iterator<Item = (usize, &dyn VolumeFiles)> {
    volumes.iter().enumerate().filter_map(|(index, volume)| Some((index, volume.readable()?)))
}

/// Reads a configuration file as text.
fn config(files: &dyn VolumeFiles, path: &str) -> Option<String> {
    let bytes = files.is_file(path).then(|| files.read(path, MAX_CONFIG).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the volume that has this file: `first`, which has the configuration, or else any other.
fn find_file(volumes: &[DiskVolume], first: usize, path: &str) -> Option<usize> {
    let has = |index: &usize| {
        volumes.get(*index).and_then(DiskVolume::readable).is_some_and(|files| files.is_file(path))
    };
    std::iter::once(first).chain(0..volumes.len()).find(has)
}

/// Returns a key that sorts versions by their numbers: 6.12 comes after 6.1.
fn version(name: &str) -> Vec<(u64, &str)> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(|part| (part.parse().unwrap_or(0), part)).collect()
}

/// Cuts the words of an entry at [`MAX_WORDS`].
fn bounded(mut text: String) -> String {
    if text.len() > MAX_WORDS {
        text.truncate(text.floor_char_boundary(MAX_WORDS));
    }
    text
}

/// Returns a path with exactly one leading slash.
fn rooted(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests;
