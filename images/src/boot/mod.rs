//! What a disk's own boot loader would boot.
//!
//! | asked in this order | where |
//! |---|---|
//! | boot loader specification | `loader/entries/*.conf` on any volume, or in `/boot`; unified kernel images `EFI/Linux/*.efi` |
//! | GRUB | `grub.cfg` in `boot/grub`, `boot/grub2`, `grub`, `grub2` |
//! | extlinux | `extlinux.conf` in `boot/extlinux`, `extlinux`, `boot/syslinux`, `syslinux` |
//! | links and names | `/boot/vmlinuz`, `/vmlinuz`, the newest `/boot/vmlinuz-*` |
//!
//! These files come with the disk: they are bounded in size and number, understood as far as distributions write them,
//! and anything else in them is passed over.

mod bls;
mod extlinux;
mod grub;
mod plain;
pub mod unified;

use super::volume::{Files, Volume};
pub use unified::Unified;

/// A configuration file beyond this is not read, bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// Entries that are kept of one configuration, at most.
const MAX_ENTRIES: usize = 256;

/// Initrds of one entry, at most.
const MAX_INITRDS: usize = 64;
/// Length of the words of an entry, at most, bytes: Linux takes 2048 (COMMAND_LINE_SIZE of arch/x86).
const MAX_WORDS: usize = 16 << 10;

/// A kernel that could be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Index of the volume that has the kernel.
    pub volume: usize,
    /// Its path there.
    pub kernel: String,
    /// The initrds' paths there, which the kernel gets one after the other.
    pub initrds: Vec<String>,
    /// Words for its command line; `None` where nothing tells them.
    pub options: Option<String>,
    /// The kernel is a unified image: initrd and options are in it.
    pub unified: bool,
    /// What it calls itself, if it does.
    pub title: Option<String>,
    /// What named it: a file, or how it was found.
    pub source: String,
}

/// One way to find entries.
type Look = fn(&[Volume]) -> Vec<Entry>;

/// Everything that could be booted, the boot loader's own choice first.
pub fn entries(volumes: &[Volume]) -> Vec<Entry> {
    let looks: [Look; 4] = [bls::entries, grub::entries, extlinux::entries, plain::entries];
    let mut found: Vec<Entry> = Vec::new();
    for entry in looks.iter().flat_map(|look| look(volumes)) {
        let known = |known: &Entry| known.volume == entry.volume && known.kernel == entry.kernel;
        // What is found by its name alone says less than a configuration that has it.
        if entry.options.is_some() || !found.iter().any(known) {
            found.push(entry);
        }
    }
    found
}

/// The volumes that can be read.
fn readable(volumes: &[Volume]) -> impl Iterator<Item = (usize, &dyn Files)> {
    volumes.iter().enumerate().filter_map(|(index, volume)| Some((index, volume.readable()?)))
}

/// A configuration file as text.
fn config(files: &dyn Files, path: &str) -> Option<String> {
    let bytes = files.is_file(path).then(|| files.read(path, MAX_CONFIG).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Which volume has this file: the one that the configuration is on, else any other.
fn find_file(volumes: &[Volume], first: usize, path: &str) -> Option<usize> {
    let has = |index: &usize| {
        volumes.get(*index).and_then(Volume::readable).is_some_and(|files| files.is_file(path))
    };
    std::iter::once(first).chain(0..volumes.len()).find(has)
}

/// A version in an order that puts 6.12 after 6.1: numbers as numbers.
fn version(name: &str) -> Vec<(u64, &str)> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).map(|part| (part.parse().unwrap_or(0), part)).collect()
}

/// Cuts a text to what words of an entry may have.
fn bounded(mut text: String) -> String {
    if text.len() > MAX_WORDS {
        text.truncate(text.floor_char_boundary(MAX_WORDS));
    }
    text
}

/// A path from the volume's root, however it was written.
fn rooted(path: &str) -> String {
    format!("/{}", path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests;
