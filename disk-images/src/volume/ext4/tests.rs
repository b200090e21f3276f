//! File systems made by mke2fs, with journals by debugfs, against what e2fsck makes of them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;

use super::blocks::JournalBlocks;
use super::superblock::ExtSuperblock;
use super::*;
use crate::contents::part_of;
use crate::volume::DiskVolume;

/// Blocks of which the tests write copies: none of them is in use.
const FREE: u64 = 6000;

/// Image of a file system that a test makes.
struct TestImage {
    directory: TempDir,
    block: usize,
}

impl TestImage {
    /// Makes a file system of 8,192 blocks with the file /boot/old.
    fn new(kind: &str, block: usize) -> Self {
        let image = Self { directory: tempfile::tempdir().unwrap(), block };
        let root = image.path("root");
        std::fs::create_dir_all(root.join("boot")).unwrap();
        std::fs::write(root.join("boot/old"), b"old").unwrap();
        File::create(image.path("image")).unwrap().set_len(8192 * block as u64).unwrap();
        let mut arguments = vec!["-q", "-F", "-b"];
        let size = block.to_string();
        arguments.push(&size);
        arguments.extend(kind.split(' '));
        arguments.extend(["-d", root.to_str().unwrap()]);
        image.tool("mke2fs", &arguments, "image");
        image
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tool(&self, name: &str, arguments: &[&str], image: &str) {
        let output = Command::new(name)
            .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
            .args(arguments)
            .arg(self.path(image))
            .output()
            .expect("e2fsprogs is installed: cargo xtask deps");
        let errors = String::from_utf8_lossy(&output.stderr);
        // After its version, debugfs writes only complaints.
        let complaints = errors.lines().filter(|line| name == "debugfs" && !line.starts_with("debugfs "));
        assert!(output.status.success() && complaints.count() == 0, "{name} {arguments:?}: {errors}");
    }

    /// Runs commands of debugfs.
    fn debugfs(&self, commands: &[String], image: &str) {
        std::fs::write(self.path("commands"), commands.join("\n")).unwrap();
        self.tool("debugfs", &["-w", "-f", self.path("commands").to_str().unwrap()], image);
    }

    /// Returns the command that writes copies of blocks as a transaction. `-c` omits its commit block.
    fn transaction(&self, copies: &[(u64, Vec<u8>)], option: &str) -> String {
        let name = format!("transaction{}", std::fs::read_dir(self.directory.path()).unwrap().count());
        let bytes: Vec<u8> = copies.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        std::fs::write(self.path(&name), bytes).unwrap();
        let blocks: Vec<String> = copies.iter().map(|(block, _)| block.to_string()).collect();
        format!("jw -b {} {option} {}", blocks.join(","), self.path(&name).display())
    }

    /// Returns a block that is full of `byte`.
    fn full(&self, byte: u8) -> Vec<u8> {
        vec![byte; self.block]
    }

    /// Writes transactions with all that matters, of which [`check_transactions`] knows the outcome.
    fn write_transactions(&self, open: &str) {
        let escaped = [&[0xc0, 0x3b, 0x39, 0x98][..], &self.full(3)[4..]].concat();
        let copies = |copies: &[(u64, u8)]| -> Vec<(u64, Vec<u8>)> {
            copies.iter().map(|(block, byte)| (FREE + block, self.full(*byte))).collect()
        };
        let first = [copies(&[(0, 1), (1, 2), (5, 9)]), vec![(FREE + 2, escaped)]].concat();
        self.debugfs(
            &[
                open.to_owned(),
                self.transaction(&first, ""),
                self.transaction(&copies(&[(0, 4), (3, 5)]), ""),
                // debugfs can't revoke and write blocks in one transaction.
                format!("jw -r {},{}", FREE + 1, FREE + 3),
                self.transaction(&copies(&[(4, 6)]), ""),
                self.transaction(&copies(&[(3, 7)]), ""),
                self.transaction(&copies(&[(5, 8)]), "-c"),
                "jc".to_owned(),
            ],
            "image",
        );
    }

    /// Checks the blocks that [`write_transactions`] wrote.
    fn check_transactions(&self, reader: &ExtReader) {
        for (block, byte) in [(0, 4), (1, 0), (3, 7), (4, 6), (5, 9), (6, 0)] {
            assert!(self.read(reader, FREE + block) == self.full(byte), "block {block} is not {byte}");
        }
        let escaped = self.read(reader, FREE + 2);
        assert_eq!(escaped[..8], [0xc0, 0x3b, 0x39, 0x98, 3, 3, 3, 3]);
    }

    fn part(&self) -> DiskPart {
        part_of(&std::fs::read(self.path("image")).unwrap())
    }

    /// Returns a reader of the file system, whose journal can be replayed.
    fn replayed(&self) -> ExtReader {
        let ext = ExtPart::new(self.part());
        assert!(ext.unreplayed.is_none(), "{:?}", ext.unreplayed);
        ext.reader()
    }

    fn read(&self, reader: &ExtReader, block: u64) -> Vec<u8> {
        let mut bytes = self.full(0xee);
        reader.read_at(block * self.block as u64, &mut bytes).unwrap();
        bytes
    }

    /// Checks that vprof reads all blocks as they are after e2fsck has replayed the journal, but superblocks.
    fn check_by_e2fsck(&self, reader: &ExtReader) {
        std::fs::copy(self.path("image"), self.path("checked")).unwrap();
        self.tool("e2fsck", &["-y", "-E", "journal_only"], "checked");
        let checked = std::fs::read(self.path("checked")).unwrap();
        let superblock = 1024 / self.block;
        let journal = usize::try_from(self.journal_blocks().offset(0).unwrap()).unwrap() / self.block;
        for (number, block) in checked.chunks_exact(self.block).enumerate() {
            if number != superblock && number != journal {
                assert!(self.read(reader, number as u64) == block, "block {number} differs");
            }
        }
    }

    fn journal_blocks(&self) -> JournalBlocks {
        let part = self.part();
        JournalBlocks::find(&part, &ExtSuperblock::read(&part).unwrap()).unwrap()
    }

    /// Changes bytes of a block of the journal.
    fn change_journal(&self, block: u32, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.path("image")).unwrap();
        file.write_all_at(bytes, self.journal_blocks().offset(block).unwrap() + at).unwrap();
    }

    /// Makes a file system whose last change, a file and a directory, is only in the journal.
    fn with_new_file(kind: &str, open: &str) -> Self {
        let image = Self::new(kind, 1024);
        let new = image.path("new");
        std::fs::write(&new, vec![b'n'; 5000]).unwrap();
        std::fs::copy(image.path("image"), image.path("changed")).unwrap();
        let change = [format!("write {} boot/new", new.display()), "mkdir added".to_owned()];
        // debugfs names each inode that it allocates on its standard output.
        image.debugfs(&change, "changed");
        let [before, after] = ["image", "changed"].map(|name| std::fs::read(image.path(name)).unwrap());
        let blocks = (0..).zip(before.chunks_exact(1024).zip(after.chunks_exact(1024)));
        let changed: Vec<(u64, Vec<u8>)> = blocks
            .filter(|(_, (before, after))| before != after)
            .map(|(number, (_, after))| (number, after.to_vec()))
            .collect();
        let transaction = image.transaction(&changed, "");
        image.debugfs(&[open.to_owned(), transaction, "jc".to_owned()], "image");
        image
    }
}

const CENTOS_7: &str = "-t ext4 -O ^metadata_csum,^64bit";

/// Kinds of file systems, bytes of a block, and the command that opens the journal.
const KINDS: &[(&str, usize, &str)] = &[
    ("-t ext3", 1024, "jo"),
    ("-t ext3", 4096, "jo"),
    (CENTOS_7, 4096, "jo"),
    ("-t ext4 -O ^metadata_csum,64bit", 1024, "jo"),
    (CENTOS_7, 1024, "jo -c -v 2"),
    ("-t ext4 -O metadata_csum,^64bit", 2048, "jo -c -v 3"),
    ("-t ext4 -O metadata_csum,64bit", 4096, "jo -c -v 2"),
    ("-t ext4 -O metadata_csum,64bit", 1024, "jo -c -v 3"),
    ("-t ext4 -O metadata_csum,64bit,fast_commit", 1024, "jo -c -v 3"),
];

#[test]
fn journals_are_replayed_as_by_e2fsck() {
    for (kind, block, open) in KINDS {
        println!("{kind}, {block}, {open}");
        let image = TestImage::new(kind, *block);
        image.write_transactions(open);
        let reader = image.replayed();
        image.check_transactions(&reader);
        // e2fsck 1.47 refuses the transaction with debugfs's revoke block if the journal has checksums.
        if *open == "jo" {
            image.check_by_e2fsck(&reader);
        }
    }
}

#[test]
fn what_is_only_in_the_journal_is_found() {
    for (kind, open) in [
        ("-t ext3", "jo"),
        (CENTOS_7, "jo"),
        ("-t ext4 -O ^metadata_csum,64bit", "jo -c -v 2"),
        ("-t ext4 -O metadata_csum,64bit", "jo -c -v 3"),
    ] {
        let image = TestImage::with_new_file(kind, open);
        let volume = DiskVolume::open(image.part());
        assert!(volume.unreplayed.is_none() && volume.signature.as_ref().unwrap().dirty, "{kind}");
        let files = volume.files.unwrap().unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(files.names("/"), [".", "..", "added", "boot", "lost+found"], "{kind}");
        assert_eq!(files.names("/boot"), [".", "..", "new", "old"], "{kind}");
        assert_eq!(files.read("/boot/new", 5000).unwrap(), [b'n'; 5000], "{kind}");
        assert_eq!(files.read("/boot/old", 10).unwrap(), b"old", "{kind}");
    }
}

#[test]
fn a_log_continues_at_its_beginning() {
    let image = TestImage::new("-t ext3", 1024);
    image.write_transactions("jo");
    let blocks = image.journal_blocks();
    // 5 descriptors, 9 copies, a revoke block, 5 commits.
    let (count, used) = (blocks.count(), 20);
    let log: Vec<Vec<u8>> = (1..=used).map(|number| blocks.read(number).unwrap()).collect();
    for before in [1, 2, 5, 11, used - 1] {
        for number in 1..=used {
            image.change_journal(number, 0, &[0; 1024]);
        }
        for (number, block) in (count - before..count).chain(1..).zip(&log) {
            image.change_journal(number, 0, block);
        }
        image.change_journal(0, 0x1c, &(count - before).to_be_bytes());
        let reader = image.replayed();
        image.check_transactions(&reader);
        image.check_by_e2fsck(&reader);
        for number in count - before..count {
            image.change_journal(number, 0, &[0; 1024]);
        }
    }
}

#[test]
fn a_journal_of_the_first_version_has_no_features() {
    let image = TestImage::new("-t ext3", 1024);
    image.debugfs(
        &["jo".to_owned(), image.transaction(&[(FREE, image.full(1))], ""), "jc".to_owned()],
        "image",
    );
    image.change_journal(0, 4, &3_u32.to_be_bytes());
    image.change_journal(0, 0x24, &[0xff; 100]);
    assert_eq!(image.read(&image.replayed(), FREE), image.full(1));
}

#[test]
fn block_numbers_of_64_bits_are_read_whole() {
    let image = TestImage::new("-t ext4 -O ^metadata_csum,64bit", 1024);
    image.write_transactions("jo");
    // t_blocknr_high of the first tag in the first descriptor.
    image.change_journal(1, 12 + 8, &1_u32.to_be_bytes());
    let reader = image.replayed();
    assert_eq!(image.read(&reader, FREE), image.full(4), "the second transaction's");
    image.change_journal(7, 12 + 8, &1_u32.to_be_bytes());
    assert_eq!(image.read(&image.replayed(), FREE), image.full(0), "no copy belongs there any more");
}

#[test]
fn a_log_ends_where_a_checksum_is_wrong() {
    // Descriptor, copy and commit of the second transaction; the revoke block of the third.
    for (block, expected) in [(7, 1), (8, 1), (10, 1), (11, 4)] {
        for version in [2, 3] {
            let image = TestImage::new("-t ext4 -O metadata_csum,64bit", 1024);
            image.write_transactions(&format!("jo -c -v {version}"));
            image.change_journal(block, 100, &[0x55]);
            let reader = image.replayed();
            assert_eq!(image.read(&reader, FREE), image.full(expected), "{block} {version}");
            assert_eq!(image.read(&reader, FREE + 1), image.full(2), "{block} {version}");
        }
    }
}

#[test]
fn files_are_read_without_a_journal_that_cannot_be_replayed() {
    let unreplayed = |image: &TestImage| {
        let volume = DiskVolume::open(image.part());
        let files = volume.files.unwrap().unwrap();
        assert_eq!(files.names("/boot"), [".", "..", "old"]);
        volume.unreplayed.unwrap().to_string()
    };
    let image = TestImage::with_new_file("-t ext3", "jo");
    image.change_journal(0, 0x28, &0x100_u32.to_be_bytes());
    assert_eq!(unreplayed(&image), "it has unknown features (0x100)");
    image.change_journal(0, 0, &[0]);
    assert_eq!(unreplayed(&image), "its superblock is damaged");

    let image = TestImage::with_new_file("-t ext4 -O metadata_csum,64bit", "jo -c -v 3");
    image.change_journal(0, 0x40, &[9]);
    assert_eq!(unreplayed(&image), "its superblock is damaged");

    let image = TestImage::with_new_file(CENTOS_7, "jo");
    image.debugfs(&["sif <8> size 0x7fffffffff".to_owned()], "image");
    assert_eq!(unreplayed(&image), "it has more than 1048576 blocks");
    image.debugfs(&["sif <8> size 1024000".to_owned()], "image");
    assert_eq!(unreplayed(&image), "its superblock is damaged", "it is longer than its inode");
    image.debugfs(&["sif <8> flags 0".to_owned()], "image");
    assert_eq!(unreplayed(&image), "the map of its blocks is damaged");
    image.debugfs(&["ssv journal_inum 0".to_owned()], "image");
    assert_eq!(unreplayed(&image), "it is on another device");
    image.debugfs(&["feature ^has_journal".to_owned()], "image");
    assert_eq!(unreplayed(&image), "there is none");
}

#[test]
fn an_external_journal_is_no_file_system() {
    let directory = tempfile::tempdir().unwrap();
    let image = TestImage { directory, block: 1024 };
    File::create(image.path("image")).unwrap().set_len(4 << 20).unwrap();
    image.tool("mke2fs", &["-q", "-F", "-b", "1024", "-O", "journal_dev"], "image");
    let volume = DiskVolume::open(image.part());
    assert!(volume.name() == Some("jbd") && volume.files.is_none());
}

#[test]
fn copies_count_until_a_guest_has_replayed_them() {
    let image = TestImage::new("-t ext3", 1024);
    image.write_transactions("jo");
    let file = Arc::new(File::options().read(true).write(true).open(image.path("image")).unwrap());
    let contents = crate::contents::DiskContents::Raw(Arc::clone(&file));
    let reader = ExtPart::new(DiskPart::whole(contents).unwrap()).reader();
    image.check_transactions(&reader);
    // As Linux does: blocks, then the superblock with an empty log.
    file.write_all_at(&image.full(0x77), FREE * 1024).unwrap();
    image.check_transactions(&reader);
    image.change_journal(0, 0x1c, &[0; 4]);
    assert_eq!(image.read(&reader, FREE), image.full(0x77));
}

#[test]
fn pieces_of_blocks_are_covered() {
    let image = TestImage::new("-t ext3", 1024);
    image.write_transactions("jo");
    let reader = image.replayed();
    let whole: Vec<u8> = (FREE - 1..FREE + 6).flat_map(|block| image.read(&reader, block)).collect();
    for (from, to) in [(0, 7168), (1000, 5000), (3071, 3074), (3073, 3077), (2048, 2048), (4000, 4001)] {
        let mut bytes = vec![0; to - from];
        reader.read_at((FREE - 1) * 1024 + from as u64, &mut bytes).unwrap();
        assert!(bytes == whole[from..to], "{from} {to}");
    }
}

proptest! {
    #[test]
    fn damage_is_tolerated(changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..20), of in 0_usize..2) {
        thread_local! {
            static WHOLE: [(Vec<u8>, Vec<u64>); 2] = [("-t ext3", "jo"), (CENTOS_7, "jo -c -v 2")].map(|(kind, open)| {
                let image = TestImage::with_new_file(kind, open);
                let superblock = ExtSuperblock::read(&image.part()).unwrap();
                let inode = superblock.journal_inode(&image.part()).unwrap();
                let bytes = std::fs::read(image.path("image")).unwrap();
                let inode = bytes.windows(inode.len()).position(|bytes| bytes == inode).unwrap() as u64;
                let block = |number| image.journal_blocks().offset(number).unwrap();
                // Superblock, descriptor, inode, block of pointers, the journal's superblock, its log.
                (bytes, vec![1024, 2048, inode, block(11) + 1024, block(0), block(1), block(2)])
            });
        }
        let (mut image, places) = WHOLE.with(|whole| whole[of].clone());
        for (at, byte) in changes {
            let place = usize::try_from(places[at as usize % places.len()]).unwrap();
            image[place + at as usize / places.len() % 256] = byte;
        }
        let volume = DiskVolume::open(part_of(&image));
        prop_assert!(volume.readable().is_none_or(|files| files.names("/").len() <= MOST_NAMES));
    }
}
