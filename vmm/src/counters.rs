//! KVM's own counters of a vCPU, through its binary statistics (Documentation/virt/kvm/api.rst, 4.133, Linux
//! 5.14).
//!
//! ```text
//! header: flags, name_size, num_desc, id_offset, desc_offset, data_offset   (six u32)
//! descriptors at desc_offset: flags u32, exponent i16, size u16, offset u32, bucket_size u32, name
//! values at data_offset + offset: u64 each
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// `KVM_GET_STATS_FD`, `_IO(KVMIO, 0xce)` in `linux/kvm.h`; kvm-ioctls has no call for it.
const KVM_GET_STATS_FD: libc::c_ulong = 0xaece;
/// Bytes of the header.
const HEADER: usize = 24;
/// Bytes of a descriptor before its name.
const DESCRIPTOR: usize = 16;
/// More counters than any KVM has (Linux 6.18: about 60).
const MOST: usize = 1_024;
/// Longer than any name.
const LONGEST_NAME: usize = 256;

/// Behaviour of a counter (`KVM_STATS_TYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Cumulative,
    /// Present value.
    Instant,
    /// The largest that was seen.
    Peak,
}

/// Counter of a vCPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// KVM's name, like `halt_wait_ns`.
    pub name: String,
    /// Behaviour of the counter.
    pub kind: Kind,
    /// Offset of the value from the first value, bytes.
    offset: usize,
}

/// The counters of one vCPU, each a single number (KVM's histograms are left out).
#[derive(Debug)]
pub struct Counters {
    file: File,
    list: Vec<Counter>,
    values_at: u64,
    buffer: Vec<u8>,
}

impl Counters {
    /// Opens KVM's counters of a vCPU's descriptor.
    pub(crate) fn open(vcpu: &impl AsRawFd) -> io::Result<Self> {
        // SAFETY: the request takes no argument and gives back a new descriptor.
        let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Self::read_layout(unsafe { File::from_raw_fd(fd) })
    }

    /// Reads the counters of a descriptor that the vCPU's VMM has opened for them.
    ///
    /// # Errors
    /// The descriptor is not one of counters.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        Self::read_layout(descriptor.into())
    }

    fn read_layout(file: File) -> io::Result<Self> {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        let field = |index: usize| word(&header, index * 4);
        let (name_size, count) = (small(field(1))?, small(field(2))?);
        if name_size > LONGEST_NAME || count > MOST {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut bytes = vec![0; count * (DESCRIPTOR + name_size)];
        file.read_exact_at(&mut bytes, field(4).into())?;
        let list: Vec<_> = bytes.chunks(DESCRIPTOR + name_size).filter_map(counter).collect();
        let end = list.iter().map(|counter| counter.offset + 8).max().unwrap_or(0);
        if end > MOST * LONGEST_NAME * 8 {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Self { file, list, values_at: field(5).into(), buffer: vec![0; end] })
    }

    /// Returns the counters, in KVM's order.
    pub fn list(&self) -> &[Counter] {
        &self.list
    }

    /// Returns the present values, in the order of [`Self::list`]. Names that end in `_ns` are nanoseconds,
    /// all others counts.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn read(&mut self) -> io::Result<impl Iterator<Item = u64>> {
        self.file.read_exact_at(&mut self.buffer, self.values_at)?;
        let buffer = &self.buffer;
        Ok(self.list.iter().map(|counter| {
            let bytes = buffer.get(counter.offset..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        }))
    }

    /// Returns a reader of the sum of the counters with these names, for another thread; `None` if none of
    /// them exists.
    pub fn sum_of(&self, names: &[&str]) -> Option<CounterSum> {
        let named = self.list.iter().filter(|counter| names.contains(&counter.name.as_str()));
        let at: Vec<u64> = named.map(|counter| self.values_at + counter.offset as u64).collect();
        let file = self.file.try_clone().ok()?;
        (!at.is_empty()).then_some(CounterSum { file, at })
    }
}

/// Reads the sum of a few counters of one vCPU, again and again.
#[derive(Debug)]
pub struct CounterSum {
    file: File,
    /// Offset of each value in the file.
    at: Vec<u64>,
}

impl CounterSum {
    /// Returns the present sum; `None` if the descriptor cannot be read. Allocates nothing.
    pub fn read(&self) -> Option<u64> {
        self.at.iter().try_fold(0_u64, |sum, at| {
            let mut value = [0; 8];
            self.file.read_exact_at(&mut value, *at).ok()?;
            Some(sum.saturating_add(u64::from_ne_bytes(value)))
        })
    }
}

/// Reads a number of a descriptor or header; all are in the host's byte order.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

fn small(number: u32) -> io::Result<usize> {
    usize::try_from(number).map_err(io::Error::other)
}

/// Parses a descriptor; `None` unless its counter is a single number.
fn counter(bytes: &[u8]) -> Option<Counter> {
    let kind = match word(bytes, 0) & 0xf {
        0 => Kind::Cumulative,
        1 => Kind::Instant,
        2 => Kind::Peak,
        _ => return None,
    };
    let size = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?);
    let name = bytes.get(DESCRIPTOR..)?.split(|byte| *byte == 0).next()?;
    let offset = small(word(bytes, 8)).ok()?;
    (size == 1).then(|| Counter { name: String::from_utf8_lossy(name).into_owned(), kind, offset })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Makes a file as KVM lays it out, with two counters and a histogram of four buckets.
    fn file(names: [&str; 3], values: &[u64]) -> File {
        let mut bytes = Vec::new();
        let count = u32::try_from(names.len()).unwrap();
        for word in [0, 16, count, 24, 40, 40 + count * 32] {
            bytes.extend_from_slice(&u32::to_ne_bytes(word));
        }
        bytes.extend_from_slice(&[b'x'; 16]);
        for (index, name) in (0..).zip(names) {
            let histogram = name == "hist";
            bytes.extend_from_slice(&u32::to_ne_bytes(if histogram { 4 } else { index & 1 }));
            bytes.extend_from_slice(&i16::to_ne_bytes(-9));
            bytes.extend_from_slice(&u16::to_ne_bytes(if histogram { 4 } else { 1 }));
            bytes.extend_from_slice(&u32::to_ne_bytes(index * 8));
            bytes.extend_from_slice(&[0; 4]);
            let mut text = [0; 16];
            text[..name.len()].copy_from_slice(name.as_bytes());
            bytes.extend_from_slice(&text);
        }
        for value in values {
            bytes.extend_from_slice(&value.to_ne_bytes());
        }
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    #[test]
    fn single_numbers_are_read_and_histograms_left_out() {
        let mut counters =
            Counters::read_layout(file(["exits", "blocking", "hist"], &[7, 1, 2, 3, 4, 5])).unwrap();
        let kinds: Vec<_> = counters.list().iter().map(|c| (c.name.as_str(), c.kind)).collect();
        assert_eq!(kinds, [("exits", Kind::Cumulative), ("blocking", Kind::Instant)]);
        assert_eq!(counters.read().unwrap().collect::<Vec<_>>(), [7, 1]);
        let sum = |names: &[&str]| counters.sum_of(names).and_then(|sum| sum.read());
        assert_eq!(
            [sum(&["blocking"]), sum(&["blocking", "exits"]), sum(&["hist"])],
            [Some(1), Some(8), None]
        );
    }

    #[test]
    fn a_short_file_is_an_error() {
        assert!(Counters::read_layout(tempfile::tempfile().unwrap()).is_err());
        let mut counters = Counters::read_layout(file(["a", "b", "hist"], &[])).unwrap();
        assert!(counters.read().is_err());
    }
}
