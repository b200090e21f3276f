//! Disk with a partition table and two file systems.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::tools::{run, tool};

/// Alignment of partitions, bytes, which is that of all partitioning tools.
const ALIGNMENT: u64 = 1 << 20;
/// Space for the second partition table at the disk's end, bytes: 33 sectors, rounded up.
const END: u64 = ALIGNMENT;
const SECTOR: u64 = 512;

/// Makes a sparse disk with a GUID partition table: the EFI system partition, then the root file system.
pub(crate) fn join(disk: &Path, esp: &Path, root: &Path) -> Result<()> {
    let length = |path: &Path| -> Result<u64> {
        Ok(fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len())
    };
    let (esp_size, root_size) = (length(esp)?, length(root)?);
    let esp_at = ALIGNMENT;
    let root_at = (esp_at + esp_size).next_multiple_of(ALIGNMENT);
    let size = root_at + root_size.next_multiple_of(ALIGNMENT) + END;
    let mut file = File::create(disk).with_context(|| format!("cannot write {}", disk.display()))?;
    file.set_len(size).with_context(|| format!("cannot make {} {size} bytes long", disk.display()))?;

    // U is an alias of the EFI system partition's GUID (sfdisk(8), "Parsing partition types"). The other GUID
    // is the type of Linux' root for x86-64.
    let script = format!(
        "label: gpt\nlabel-id: 6F1D2C3E-5A4B-4C8D-9E7F-767072660003\n\
         start={}, size={}, type=U, uuid=6F1D2C3E-5A4B-4C8D-9E7F-767072660004\n\
         start={}, size={}, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, uuid=6F1D2C3E-5A4B-4C8D-9E7F-767072660005\n",
        esp_at / SECTOR,
        esp_size / SECTOR,
        root_at / SECTOR,
        root_size / SECTOR
    );
    let mut input = tempfile::tempfile().context("cannot make a temporary file")?;
    input.write_all(script.as_bytes()).context("cannot write a temporary file")?;
    input.rewind().context("cannot rewind a temporary file")?;
    let mut sfdisk = tool("sfdisk", "fdisk")?;
    run(sfdisk.args(["--quiet", "--no-reread", "--no-tell-kernel"]).arg(disk).stdin(Stdio::from(input)))
        .context("cannot make a partition table")?;

    for (part, at) in [(esp, esp_at), (root, root_at)] {
        copy_sparse(part, &mut file, at).with_context(|| format!("cannot write {}", disk.display()))?;
    }
    Ok(())
}

/// Copies a file to an offset of another that reads as zeros there, and skips blocks of zeros.
fn copy_sparse(from: &Path, to: &mut File, at: u64) -> Result<()> {
    let mut from_file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    let mut block = vec![0; 64 << 10];
    let mut offset = at;
    loop {
        let count = from_file.read(&mut block).with_context(|| format!("cannot read {}", from.display()))?;
        if count == 0 {
            return Ok(());
        }
        let bytes = &block[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            to.seek(SeekFrom::Start(offset))?;
            to.write_all(bytes)?;
        }
        offset += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_follow_a_partition_table() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut esp = vec![0; 2 << 20];
        esp[..4].copy_from_slice(b"esp!");
        fs::write(at("esp"), &esp).unwrap();
        fs::write(at("root"), vec![b'r'; 1 << 20]).unwrap();
        join(&at("disk"), &at("esp"), &at("root")).unwrap();
        let disk = fs::read(at("disk")).unwrap();
        assert_eq!(disk.len(), 5 << 20);
        assert_eq!(&disk[512..520], b"EFI PART");
        assert_eq!(disk[1 << 20..3 << 20], esp);
        assert!(disk[3 << 20..4 << 20].iter().all(|byte| *byte == b'r'));
        run(tool("sfdisk", "fdisk").unwrap().arg("--verify").arg(at("disk"))).unwrap();
    }
}
