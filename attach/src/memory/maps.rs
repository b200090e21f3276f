//! Mappings of a process that may be a guest's memory.

use std::fs::File;
use std::io;

use crate::maps::MappingLine;
use crate::process::read_again;

/// Size of the smallest mapping that is considered, bytes: a Linux guest needs more.
const LEAST: u64 = 16 << 20;
/// Maximum number of mappings that are read; a VMM has some hundreds.
const MOST: usize = 65_536;

/// Writable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Device, inode, and offset in the file; `None` for anonymous memory.
    file: Option<((u64, u64), u64, u64)>,
}

impl ProcessMapping {
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns true if `next` begins at the end of this mapping, in memory and in the file of both.
    fn continues_in(&self, next: &Self) -> bool {
        let same_file = match (self.file, next.file) {
            (None, None) => true,
            (Some((device, inode, offset)), Some((other, number, at))) => {
                (device, inode) == (other, number) && offset.checked_add(self.bytes()) == Some(at)
            }
            _ => false,
        };
        self.end == next.start && same_file
    }
}

/// Reads the mappings of a process that may be guest memory, largest first: each mapping, and adjacent ones
/// joined. `maps` is its open `/proc/PID/maps`.
pub(crate) fn read(maps: &File) -> io::Result<Vec<ProcessMapping>> {
    Ok(candidates(&read_again(maps)?))
}

fn candidates(maps: &str) -> Vec<ProcessMapping> {
    let single: Vec<ProcessMapping> = maps.lines().take(MOST).filter_map(parse).collect();
    let mut found: Vec<ProcessMapping> = Vec::new();
    let mut run: Option<ProcessMapping> = None;
    for mapping in &single {
        found.push(*mapping);
        run = Some(match run {
            Some(before) if before.continues_in(mapping) => {
                let joined = ProcessMapping { end: mapping.end, ..before };
                found.push(joined);
                joined
            }
            _ => *mapping,
        });
    }
    found.retain(|mapping| mapping.bytes() >= LEAST);
    found.sort_by_key(|mapping| (std::cmp::Reverse(mapping.bytes()), mapping.start));
    found.dedup();
    found
}

/// Parses a line of /proc/PID/maps. `None` unless it is writable memory without a name from the kernel.
fn parse(line: &str) -> Option<ProcessMapping> {
    let MappingLine { start, end, permissions, offset, device, inode, name } = MappingLine::parse(line)?;
    // [heap], [stack]; [anon:...] is a name that the process gave, and may be the guest's memory.
    let special = name.starts_with('[') && !name.starts_with("[anon");
    let file = (inode != 0).then_some((device, inode, offset));
    (permissions.starts_with("rw") && !special).then_some(ProcessMapping { start, end, file })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn mapping(start: u64, bytes: u64) -> ProcessMapping {
        ProcessMapping { start, end: start + bytes, file: None }
    }

    #[test]
    fn large_writable_mappings_are_candidates_alone_and_together() {
        let maps = "\
55d0c0000000-55d0c4000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0040000000 rw-p 00000000 00:00 0 
7f0040000000-7f0050000000 rw-p 00000000 00:00 0 
7f0060000000-7f0070000000 r--p 00000000 00:00 0 
7f0080000000-7f0090000000 rw-s 00000000 00:01 77                         /memfd:ram (deleted)
7f0090000000-7f00a0000000 rw-s 10000000 00:01 77                         /memfd:ram (deleted)
7f00a0000000-7f00b0000000 rw-s 00000000 00:01 78                         /memfd:other (deleted)
nonsense
";
        let found: Vec<(u64, u64)> = candidates(maps).iter().map(|m| (m.start, m.bytes() >> 20)).collect();
        assert_eq!(
            found,
            [
                (0x7f00_0000_0000, 1280),
                (0x7f00_0000_0000, 1024),
                (0x7f00_8000_0000, 512),
                (0x7f00_4000_0000, 256),
                (0x7f00_8000_0000, 256),
                (0x7f00_9000_0000, 256),
                (0x7f00_a000_0000, 256)
            ]
        );
    }
}
