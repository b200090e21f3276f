//! Check of a qcow2 file before imago opens it, because imago trusts the file's tables.
//!
//! Every cluster must be used once, be inside of the file, and be counted. An image that breaks this rule is
//! damaged or malicious, and is refused.
//!
//! ```text
//! header ──▶ L1 table ──▶ L2 tables ──▶ clusters of the disk
//!        └─▶ refcount table ──▶ refcount blocks: number of uses of each cluster of the file
//! ```
//!
//! Layout: docs/interop/qcow2.txt of QEMU 7.2. All numbers are big endian.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Most clusters of a file: 2 TiB of the usual 64 KiB.
const MAX_CLUSTERS: u64 = 1 << 25;
/// Most bytes of the L1 table and of the refcount table, as in QEMU.
const MAX_TABLE: u64 = 32 << 20;
/// Sizes of clusters: 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Bits 9 to 55 of an entry are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bit 62 of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// Bytes of a sector, the unit of a compressed cluster's length.
const SECTOR: u64 = 512;
/// Mark of a cluster with one user. Other numbers count the compressed clusters that share the cluster.
const EXCLUSIVE: u8 = u8::MAX;

/// Fault of a qcow2 file, in words that follow "can't read the qcow2 image:".
#[derive(Debug, thiserror::Error)]
pub enum Qcow2Fault {
    /// The file cannot be read.
    #[error("{}", display::message::Reason(.0))]
    Read(io::Error),
    /// imago refuses the file.
    #[error("{0}")]
    Open(io::Error),
    /// The file has more clusters than vprof reads.
    #[error("it has {0} clusters, more than {MAX_CLUSTERS}")]
    Clusters(u64),
    /// The header is cut off, or its values are impossible.
    #[error("{0}")]
    Qcow2Header(&'static str),
    /// vprof does not know this version of the format.
    #[error("version {0} of the format is not known")]
    Version(u32),
    /// vprof does not support a feature of the image.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A part, like "an L2 table", is outside of the file.
    #[error("{0} is outside of the file")]
    Outside(&'static str),
    /// A part does not begin at a multiple of the cluster size.
    #[error("{0} is not at a multiple of the cluster size")]
    Misaligned(&'static str),
    /// A part is at the place of another one.
    #[error("{0} is at the place of something else")]
    Overlap(&'static str),
    /// A table has more than `MAX_TABLE` bytes.
    #[error("{0} is larger than 32 MiB")]
    TableSize(&'static str),
    /// The L1 table does not cover the disk.
    #[error("its L1 table is too short for its size")]
    ShortTable,
    /// The refcounts are missing.
    #[error("it has no refcount table")]
    NoRefcounts,
    /// A cluster could be given away a second time.
    #[error("a cluster that is used counts as free")]
    Uncounted,
}

/// Fields of the header that the check needs.
struct Qcow2Header {
    cluster_bits: u32,
    size: u64,
    l1_entries: u64,
    l1: u64,
    refcounts: u64,
    refcount_clusters: u64,
    /// Binary logarithm of the bits of a refcount.
    refcount_order: u32,
}

/// Checks the tables of `file`.
pub(super) fn check(file: &File) -> Result<(), Qcow2Fault> {
    let length = file.metadata().map_err(Qcow2Fault::Read)?.len();
    let header = Qcow2Header::read(file)?;
    let clusters = length.div_ceil(header.cluster());
    if clusters > MAX_CLUSTERS {
        return Err(Qcow2Fault::Clusters(clusters));
    }
    let count = usize::try_from(clusters).map_err(|_| Qcow2Fault::Clusters(clusters))?;
    let mut check = TableCheck { file, header, used: vec![0; count] };
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

impl Qcow2Header {
    fn read(file: &File) -> Result<Self, Qcow2Fault> {
        let mut bytes = [0; 104];
        let least = file.read_at(&mut bytes, 0).map_err(Qcow2Fault::Read)?;
        if least < 72 {
            return Err(Qcow2Fault::Qcow2Header("its header is cut off"));
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
            return Err(Qcow2Fault::Version(version));
        }
        if !CLUSTER_BITS.contains(&header.cluster_bits) || header.size > 1 << 62 {
            return Err(Qcow2Fault::Qcow2Header("its header makes no sense"));
        }
        if be_u32(&bytes, 32) != 0 {
            return Err(Qcow2Fault::Unsupported("it is encrypted"));
        }
        if be_u32(&bytes, 60) != 0 {
            return Err(Qcow2Fault::Unsupported("it holds internal snapshots, which are not supported"));
        }
        // Incompatible features: 1 dirty, 2 corrupt, 4 external data, 8 other compression, 16 extended L2
        // entries.
        let features = if version == 2 { 0 } else { be_u64(&bytes, 72) };
        // An external data file passes here: the caller reports it with its name.
        let reason = if features & 2 != 0 {
            "it is marked as corrupt"
        } else if features & 1 != 0 {
            "it was not closed properly"
        } else if features & 8 != 0 {
            "it is compressed in another way than by zlib"
        } else if features & !0b111 != 0 {
            "it has features that are not supported"
        } else if !(3..=6).contains(&header.refcount_order) {
            "its refcounts have an unusual size"
        } else {
            return Ok(header);
        };
        Err(Qcow2Fault::Unsupported(reason))
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

/// State of a check.
struct TableCheck<'a> {
    file: &'a File,
    header: Qcow2Header,
    /// Use of each cluster of the file: 0, [`EXCLUSIVE`], or the number of compressed clusters in it.
    used: Vec<u8>,
}

impl TableCheck<'_> {
    /// Returns the entries of a table of `count` numbers at `offset`. Entries past the end of the file are
    /// zero.
    fn table(&self, offset: u64, count: u64) -> Result<Vec<u64>, Qcow2Fault> {
        let size = usize::try_from(count.saturating_mul(8)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; size];
        let mut done = 0;
        while done < size {
            let into = bytes.get_mut(done..).unwrap_or_default();
            match self.file.read_at(into, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Qcow2Fault::Read(error)),
            }
        }
        Ok(bytes.chunks_exact(8).map(|entry| be_u64(entry, 0)).collect())
    }

    /// Returns the use of the cluster that has the byte at `offset`.
    fn slot(&mut self, offset: u64, what: &'static str) -> Result<&mut u8, Qcow2Fault> {
        let cluster = usize::try_from(offset >> self.header.cluster_bits).unwrap_or(usize::MAX);
        self.used.get_mut(cluster).ok_or(Qcow2Fault::Outside(what))
    }

    /// Marks the cluster at `offset` as used by `what` alone.
    fn exclusive(&mut self, offset: u64, what: &'static str) -> Result<(), Qcow2Fault> {
        if !offset.is_multiple_of(self.header.cluster()) {
            return Err(Qcow2Fault::Misaligned(what));
        }
        let slot = self.slot(offset, what)?;
        if *slot != 0 {
            return Err(Qcow2Fault::Overlap(what));
        }
        *slot = EXCLUSIVE;
        Ok(())
    }

    /// Marks all clusters of `bytes` bytes from `offset` on as used by `what` alone.
    fn run(&mut self, offset: u64, bytes: u64, what: &'static str) -> Result<(), Qcow2Fault> {
        if bytes > MAX_TABLE {
            return Err(Qcow2Fault::TableSize(what));
        }
        (0..bytes.div_ceil(self.header.cluster())).try_for_each(|index| {
            let offset = offset.checked_add(index * self.header.cluster());
            self.exclusive(offset.unwrap_or(u64::MAX), what)
        })
    }

    /// Checks the L1 table, all L2 tables and all clusters of the disk.
    fn l1(&mut self) -> Result<(), Qcow2Fault> {
        let (l1, entries) = (self.header.l1, self.header.l1_entries);
        self.run(l1, entries * 8, "the L1 table")?;
        let per_table = self.header.cluster() / 8;
        let covered = u128::from(entries) * u128::from(per_table) * u128::from(self.header.cluster());
        if covered < u128::from(self.header.size) {
            return Err(Qcow2Fault::ShortTable);
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

    /// Marks the cluster, or the compressed cluster, of an L2 entry.
    fn cluster(&mut self, entry: u64) -> Result<(), Qcow2Fault> {
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
            // The format rounds the length up to sectors, so the last one may end past the end of the file.
            if at > offset && self.slot(at, "").is_err() {
                break;
            }
            let slot = self.slot(at, "a compressed cluster")?;
            if *slot == EXCLUSIVE {
                return Err(Qcow2Fault::Overlap("a compressed cluster"));
            }
            *slot = slot.saturating_add(1).min(EXCLUSIVE - 1);
            at = (at | (self.header.cluster() - 1)) + 1;
        }
        Ok(())
    }

    /// Checks the refcount table and returns the offsets of all refcount blocks in order; 0 for a missing
    /// block.
    fn refcount_blocks(&mut self) -> Result<Vec<u64>, Qcow2Fault> {
        let (offset, clusters) = (self.header.refcounts, self.header.refcount_clusters);
        let bytes = clusters.saturating_mul(self.header.cluster());
        if clusters == 0 {
            return Err(Qcow2Fault::NoRefcounts);
        }
        self.run(offset, bytes, "the refcount table")?;
        let blocks: Vec<u64> = self.table(offset, bytes / 8)?.iter().map(|entry| entry & OFFSET).collect();
        for &block in blocks.iter().filter(|block| **block != 0) {
            self.exclusive(block, "a refcount block")?;
        }
        Ok(blocks)
    }

    /// Checks that every cluster in use has a refcount: otherwise imago would give the cluster away a second
    /// time.
    fn counted(&self, blocks: &[u64]) -> Result<(), Qcow2Fault> {
        let width = 1_u64 << self.header.refcount_order >> 3;
        let per_block = self.header.cluster() / width;
        for (number, used) in self.used.chunks(usize::try_from(per_block).unwrap_or(usize::MAX)).enumerate() {
            let block = blocks.get(number).copied().unwrap_or(0);
            if block == 0 {
                if used.iter().any(|used| *used != 0) {
                    return Err(Qcow2Fault::Uncounted);
                }
                continue;
            }
            let words = self.table(block, self.header.cluster() / 8)?;
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            let counts = bytes.chunks_exact(usize::try_from(width).unwrap_or(1));
            if used.iter().zip(counts).any(|(used, count)| *used != 0 && count.iter().all(|byte| *byte == 0))
            {
                return Err(Qcow2Fault::Uncounted);
            }
        }
        Ok(())
    }
}
