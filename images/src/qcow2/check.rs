//! Checks a qcow2 file before imago gets it, which trusts its tables: every cluster is used once, lies inside of the file
//! and is counted. An image in which that does not hold was damaged or made to harm, and is refused.
//!
//! ```text
//! header ──▶ L1 table ──▶ L2 tables ──▶ clusters of the disk
//!        └─▶ refcount table ──▶ refcount blocks: how often each cluster of the file is used
//! ```
//!
//! Layout: docs/interop/qcow2.txt of QEMU 7.2. All numbers are big endian.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Clusters of a file, at most: 2 TiB of the usual 64 KiB.
const MAX_CLUSTERS: u64 = 1 << 25;
/// Bytes of the L1 table and of the refcount table, at most, as in QEMU.
const MAX_TABLE: u64 = 32 << 20;
/// Sizes of clusters: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Bits 9 to 55 of an entry are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bit 62 of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// A compressed cluster's length is counted in sectors of this many bytes.
const SECTOR: u64 = 512;
/// A cluster that is used by one and cannot be shared; other numbers count compressed clusters in it.
const EXCLUSIVE: u8 = u8::MAX;

/// Why an image is refused, in a few words.
type Reason = String;

/// What is used of the header.
struct Header {
    cluster_bits: u32,
    size: u64,
    l1_entries: u64,
    l1: u64,
    refcounts: u64,
    refcount_clusters: u64,
    /// Bits of a refcount are 2 to this power.
    refcount_order: u32,
}

/// Checks the tables of `file`.
pub(super) fn check(file: &File) -> Result<(), Reason> {
    let read = |error: io::Error| text::message::Reason(&error).to_string();
    let length = file.metadata().map_err(read)?.len();
    let header = Header::read(file)?;
    let clusters = length.div_ceil(header.cluster());
    if clusters > MAX_CLUSTERS {
        return Err(format!("it has {clusters} clusters, more than {MAX_CLUSTERS}"));
    }
    let count = usize::try_from(clusters).map_err(|_| "it is too large".to_owned())?;
    let mut check = Check { file, header, used: vec![0; count] };
    check.exclusive(0, "the header")?;
    check.l1()?;
    let counts = check.refcount_blocks()?;
    check.counted(&counts)
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_be_bytes)
}

impl Header {
    fn read(file: &File) -> Result<Self, Reason> {
        let mut bytes = [0; 104];
        let least = file.read_at(&mut bytes, 0).map_err(|error| text::message::Reason(&error).to_string())?;
        if least < 72 {
            return Err("its header is cut off".to_owned());
        }
        let version = be_u32(&bytes, 4);
        let header = Self {
            cluster_bits: be_u32(&bytes, 20),
            size: be_u64(&bytes, 24),
            l1_entries: be_u32(&bytes, 36).into(),
            l1: be_u64(&bytes, 40),
            refcounts: be_u64(&bytes, 48),
            refcount_clusters: be_u32(&bytes, 56).into(),
            refcount_order: if version == 2 { 4 } else { be_u32(&bytes, 96) },
        };
        if !matches!(version, 2 | 3) {
            return Err(format!("version {version} of the format is not known"));
        }
        if !CLUSTER_BITS.contains(&header.cluster_bits) || header.size > 1 << 62 {
            return Err("its header makes no sense".to_owned());
        }
        if be_u32(&bytes, 32) != 0 {
            return Err("it is encrypted".to_owned());
        }
        if be_u32(&bytes, 60) != 0 {
            return Err("it holds internal snapshots, which are not supported".to_owned());
        }
        // Incompatible features: 1 dirty, 2 corrupt, 4 external data, 8 other compression, 16 extended L2 entries.
        let features = if version == 2 { 0 } else { be_u64(&bytes, 72) };
        let reason = match () {
            () if features & 2 != 0 => "it is marked as corrupt",
            () if features & 1 != 0 => "it was not closed properly",
            () if features & 8 != 0 => "it is compressed in another way than by zlib",
            () if features & !0b111 != 0 => "it has features that are not supported",
            () if !(3..=6).contains(&header.refcount_order) => "its refcounts have an unusual size",
            () => return Ok(header),
        };
        Err(reason.to_owned())
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

struct Check<'a> {
    file: &'a File,
    header: Header,
    /// For each cluster of the file: unused, [`EXCLUSIVE`], or how many compressed clusters are in it.
    used: Vec<u8>,
}

impl Check<'_> {
    /// The entries of a table of `count` numbers at `offset`; what lies behind the end of the file is zero.
    fn table(&self, offset: u64, count: u64) -> Result<Vec<u64>, Reason> {
        let size = usize::try_from(count.saturating_mul(8)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        let mut done = 0;
        while done < size {
            let into = bytes.get_mut(done..).unwrap_or_default();
            match self.file.read_at(into, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(text::message::Reason(&error).to_string()),
            }
        }
        Ok(bytes.chunks_exact(8).map(|entry| be_u64(entry, 0)).collect())
    }

    fn slot(&mut self, offset: u64, what: &str) -> Result<&mut u8, Reason> {
        let cluster = usize::try_from(offset >> self.header.cluster_bits).unwrap_or(usize::MAX);
        self.used.get_mut(cluster).ok_or_else(|| format!("{what} lies outside of the file"))
    }

    /// The cluster at `offset` belongs to `what` alone.
    fn exclusive(&mut self, offset: u64, what: &str) -> Result<(), Reason> {
        if !offset.is_multiple_of(self.header.cluster()) {
            return Err(format!("{what} lies beside its place"));
        }
        let slot = self.slot(offset, what)?;
        if *slot != 0 {
            return Err(format!("{what} lies where something else is"));
        }
        *slot = EXCLUSIVE;
        Ok(())
    }

    fn run(&mut self, offset: u64, bytes: u64, what: &str) -> Result<(), Reason> {
        if bytes > MAX_TABLE {
            return Err(format!("{what} is larger than 32 MiB"));
        }
        (0..bytes.div_ceil(self.header.cluster())).try_for_each(|index| {
            let offset = offset.checked_add(index * self.header.cluster());
            self.exclusive(offset.unwrap_or(u64::MAX), what)
        })
    }

    /// The L1 table, all L2 tables and all clusters of the disk.
    fn l1(&mut self) -> Result<(), Reason> {
        let (l1, entries) = (self.header.l1, self.header.l1_entries);
        self.run(l1, entries * 8, "the L1 table")?;
        let per_table = self.header.cluster() / 8;
        let covered = u128::from(entries) * u128::from(per_table) * u128::from(self.header.cluster());
        if covered < u128::from(self.header.size) {
            return Err("its L1 table is too short for its size".to_owned());
        }
        for entry in self.table(l1, entries)? {
            let l2 = entry & OFFSET;
            if l2 == 0 {
                continue;
            }
            self.exclusive(l2, "an L2 table")?;
            for entry in self.table(l2, per_table)? {
                self.cluster(entry)?;
            }
        }
        Ok(())
    }

    /// What an L2 entry leads to.
    fn cluster(&mut self, entry: u64) -> Result<(), Reason> {
        if entry & COMPRESSED == 0 {
            let offset = entry & OFFSET;
            return if offset == 0 { Ok(()) } else { self.exclusive(offset, "a cluster") };
        }
        let bits = 62 - (self.header.cluster_bits - 8);
        let offset = entry & ((1 << bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> bits;
        let end = (offset / SECTOR + sectors + 1) * SECTOR;
        let mut at = offset;
        while at < end {
            // The last may be said to reach beyond the end of the file.
            if at > offset && self.slot(at, "").is_err() {
                break;
            }
            let slot = self.slot(at, "a compressed cluster")?;
            if *slot == EXCLUSIVE {
                return Err("a compressed cluster lies where something else is".to_owned());
            }
            *slot = slot.saturating_add(1).min(EXCLUSIVE - 1);
            at = (at | (self.header.cluster() - 1)) + 1;
        }
        Ok(())
    }

    /// Offsets of all refcount blocks, in order; 0 for none.
    fn refcount_blocks(&mut self) -> Result<Vec<u64>, Reason> {
        let (offset, clusters) = (self.header.refcounts, self.header.refcount_clusters);
        let bytes = clusters.saturating_mul(self.header.cluster());
        if clusters == 0 {
            return Err("it has no refcount table".to_owned());
        }
        self.run(offset, bytes, "the refcount table")?;
        let blocks: Vec<u64> = self.table(offset, bytes / 8)?.iter().map(|entry| entry & OFFSET).collect();
        for &block in blocks.iter().filter(|block| **block != 0) {
            self.exclusive(block, "a refcount block")?;
        }
        Ok(blocks)
    }

    /// Every cluster that is used is counted, so that it is not given away a second time.
    fn counted(&self, blocks: &[u64]) -> Result<(), Reason> {
        let width = 1_u64 << self.header.refcount_order >> 3;
        let per_block = self.header.cluster() / width;
        let uncounted = || "a cluster that is used counts as free".to_owned();
        for (number, used) in self.used.chunks(usize::try_from(per_block).unwrap_or(usize::MAX)).enumerate() {
            let block = blocks.get(number).copied().unwrap_or(0);
            if block == 0 {
                if used.iter().any(|used| *used != 0) {
                    return Err(uncounted());
                }
                continue;
            }
            let words = self.table(block, self.header.cluster() / 8)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let counts = bytes.chunks_exact(usize::try_from(width).unwrap_or(1));
            if used.iter().zip(counts).any(|(used, count)| *used != 0 && count.iter().all(|byte| *byte == 0))
            {
                return Err(uncounted());
            }
        }
        Ok(())
    }
}
