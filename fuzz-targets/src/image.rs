//! A disk image: its format, partition tables, file systems, and what boot loaders on it say.
//!
//! ```text
//! | 0: a file as it is     | bytes                     |
//! | 1: a table of files    | path 0 bytes 0 path ...   |   boot loaders' configurations without a disk
//! | n: a sound disk, n & 1: checksums of its partition table are put right | changes of 8 bytes each |
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::{LazyLock, Once};

use disk_images::contents::{DiskContents, ImageFormat};
use disk_images::{BootRequest, NamedFile, fuzz, inspect, load};

use crate::input::{self, disks};

/// Changes of one disk, at most: more only hide each other.
const CHANGES: usize = 24;
/// Bytes between files of a table: no configuration has it.
const BETWEEN: u8 = 0;

/// A sound disk, and where it is not empty.
struct SoundDisk {
    bytes: Vec<u8>,
    used: Vec<usize>,
}

static SOUND: LazyLock<Vec<SoundDisk>> = LazyLock::new(|| {
    let (fat, ext4, gpt) = (disks::fat(), disks::ext4(), disks::gpt());
    let packed = [disks::qcow2(&ext4), disks::qcow2(&gpt)];
    let disks = [fat, ext4, gpt, disks::mbr(), disks::journaled()].into_iter().chain(packed);
    let used = |bytes: &[u8]| (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let directory = input::directory();
    let path = directory.path().join("disk");
    disks
        .map(|bytes| {
            fs::write(&path, &bytes).expect("room for a small file");
            let image = NamedFile::image(&path).expect("an image");
            let found = inspect(&image, None).expect("a disk without damage");
            assert!(found.kernels.len() >= 2, "two boot loaders of a sound disk boot it: {found:#?}");
            SoundDisk { used: used(&bytes), bytes }
        })
        .collect()
});

/// Ignores panics of fatfs and imago, because `images` catches them and returns an error: libFuzzer's hook
/// would abort.
fn ignore_caught_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let caught = |place: &std::panic::Location<'_>| {
            ["/fatfs-", "/imago-"].iter().any(|name| place.file().contains(name))
        };
        if !panic.location().is_some_and(caught) {
            hook(panic);
        }
    }));
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    static HOOK: Once = Once::new();
    HOOK.call_once(ignore_caught_panics);
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind {
        0 => check_disk(bytes),
        1 => check_files(bytes),
        kind => check_disk(&changed(kind, bytes)),
    }
}

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut table = vec![1];
    for (path, bytes) in disks::configurations() {
        // A kernel's bytes are of no use here, and long.
        let bytes = if path.ends_with("vmlinuz") || path.ends_with("img") { Vec::new() } else { bytes };
        table.extend([path.as_bytes(), &[BETWEEN], &bytes, &[BETWEEN]].concat());
    }
    let whole = [disks::fat(), disks::ext4()].map(|disk| [vec![0], disk].concat());
    let changed = (2..).take(2 * SOUND.len()).map(|kind: u8| [&[kind][..], &[0; 16]].concat());
    whole.into_iter().chain([table]).chain(changed).collect()
}

/// Returns a sound disk with changes: kind, place, value. A change is mostly where the disk is not empty.
fn changed(kind: u8, changes: &[u8]) -> Vec<u8> {
    let kind = usize::from(kind) - 2;
    let sound = &SOUND[kind / 2 % SOUND.len()];
    let mut disk = sound.bytes.clone();
    for change in changes.chunks_exact(8).take(CHANGES) {
        let [how, a, b, c, value @ ..] = change else { continue };
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        let at = if how & 1 == 0 { sound.used[at % sound.used.len()] } else { at % disk.len() };
        let from = [value[0], value[1], value[2], 0];
        match how >> 1 & 3 {
            0 => disk[at] = value[0],
            1 => disk[at..].iter_mut().zip(value).for_each(|(byte, new)| *byte = *new),
            2 => disk[at..].iter_mut().zip(value.iter().rev()).for_each(|(byte, new)| *byte = *new),
            _ => {
                let from = u32::from_le_bytes(from) as usize % disk.len();
                let copy = disk[from..disk.len().min(from + usize::from(value[3]))].to_vec();
                disk[at..].iter_mut().zip(copy).for_each(|(byte, new)| *byte = new);
            }
        }
    }
    if kind & 1 == 1 {
        disks::sum_gpt(&mut disk);
    }
    disk
}

fn check_disk(disk: &[u8]) {
    let directory = input::directory();
    let path = &directory.path().join("disk");
    fs::write(path, disk).expect("room for a small file");
    let image = || NamedFile { path: path.clone(), file: File::open(path).expect("the file") };
    let inspected = inspect(&image(), None);
    let loaded = load(BootRequest { image: image(), format: None, kernel: None, initrd: None });
    if let (Ok(inspected), Ok(loaded)) = (&inspected, &loaded) {
        assert!(!loaded.is_disk || inspected.run.boots, "one choice for both");
    }
    // What a thread keeps of a disk goes with it. libFuzzer would take memory that is kept for a leak, and
    // search all memory for what leads to it after each run.
    std::thread::scope(|scope| {
        scope.spawn(|| check_names(path));
    });
}

/// Reads files of the disk as a running guest's programs are read.
fn check_names(path: &Path) {
    let own = File::open(path).expect("the file");
    let format = ImageFormat::from_file(&own).expect("a readable file");
    let Ok(contents) = DiskContents::open(own, format, false, path) else { return };
    let files = disk_images::files::open(vec![contents])();
    for path in ["/boot/vmlinuz", "/usr/boot/vmlinuz", "/loader/entries/../loader.conf"] {
        let Some(file) = files.open(path) else { continue };
        let mut bytes = [0; 512];
        let _ = file.read_at(0, &mut bytes);
    }
}

fn check_files(bytes: &[u8]) {
    let mut parts = bytes.split(|byte| *byte == BETWEEN);
    let mut files = BTreeMap::new();
    while let (Some(path), Some(bytes)) = (parts.next(), parts.next()) {
        if files.len() < 64 {
            files.insert(String::from_utf8_lossy(path).into_owned(), bytes.to_vec());
        }
    }
    let paths: Vec<String> = files.keys().cloned().collect();
    let found = fuzz::bootable(files);
    assert!(found.kernels.iter().all(|kernel| paths.contains(kernel)), "a kernel is a file");
    assert!(found.initrds.iter().all(|initrds| initrds.len() <= 64), "initrds are bounded");
    assert!(found.words.iter().all(|words| words.len() <= 17 << 10), "words are bounded");
}
