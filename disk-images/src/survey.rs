//! Survey of a disk before a boot: its partitions, their file systems, and candidates for the root.

use std::path::Path;

use display::clean::escaped;
use display::units;

use super::ImageError;
use super::boot::{self, BootEntry};
use super::contents::DiskPart;
use super::partition::{self, DiskPartition, PartitionKind, PartitionTable, TableError};
use super::volume::DiskVolume;

/// Contents of a disk: its partitions and their volumes, or its only volume.
#[derive(Debug)]
pub struct DiskSurvey {
    /// Partition table; `None` for a disk that is one volume.
    pub table: Option<PartitionTable>,
    /// Contents of each partition, in the table's order.
    pub volumes: Vec<DiskVolume>,
}

impl DiskSurvey {
    /// Surveys a disk. `path` is for error messages.
    ///
    /// # Errors
    /// The disk cannot be read, its partition table cannot be used, or a file system is cut off.
    pub fn from_disk(disk: &DiskPart, path: &Path) -> Result<Self, ImageError> {
        let table = partition::read(disk).map_err(|error| match error {
            TableError::Read(source) => ImageError::Read { what: "the image", path: path.to_owned(), source },
            TableError::Damaged(reason) => ImageError::PartitionTable { path: path.to_owned(), reason },
        })?;
        let parts = match &table {
            Some(table) => table.partitions.iter().map(|p| disk.part(p.start, p.length)).collect(),
            None => vec![disk.clone()],
        };
        let survey = Self { table, volumes: parts.into_iter().map(DiskVolume::open).collect() };
        survey.check_whole(path)?;
        Ok(survey)
    }

    /// Checks that no file system is longer than its partition or the disk: such an image was cut off.
    fn check_whole(&self, path: &Path) -> Result<(), ImageError> {
        for (index, volume) in self.volumes.iter().enumerate() {
            let needed = volume.signature.as_ref().and_then(|signature| signature.length);
            if let (Some(needed), Some(length)) = (needed, volume.part.length())
                && needed > length
            {
                let (what, has) = match self.number(index) {
                    None => ("its file system".to_owned(), "the image has"),
                    Some(number) => (format!("the file system of partition {number}"), "the partition has"),
                };
                return Err(ImageError::Truncated {
                    path: path.to_owned(),
                    detail: format!(
                        "{what} is {} large, but {has} {}",
                        units::bytes(needed),
                        units::bytes(length)
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns the partition of a volume.
    pub fn partition(&self, volume: usize) -> Option<&DiskPartition> {
        self.table.as_ref()?.partitions.get(volume)
    }

    fn number(&self, volume: usize) -> Option<u32> {
        self.partition(volume).map(|partition| partition.number)
    }

    /// Returns the place of a volume in words, like `partition 2 (ext4)`.
    pub fn place(&self, volume: usize) -> String {
        let name = self.volumes.get(volume).and_then(DiskVolume::name).unwrap_or("unknown contents");
        match self.number(volume) {
            Some(number) => format!("partition {number} ({name})"),
            None => format!("the disk ({name})"),
        }
    }

    /// Returns the kernels that could be booted, the loader's own choice first.
    pub fn entries(&self) -> Vec<BootEntry> {
        boot::entries(&self.volumes)
    }

    /// Returns the volume that is most likely the root: by its partition's type, else by its files, else the
    /// largest that does not belong to a boot loader.
    pub fn root(&self) -> Option<usize> {
        let all = || 0..self.volumes.len();
        let typed = |index: &usize| self.partition(*index).is_some_and(|p| p.kind == PartitionKind::Root);
        let has_system = |index: &usize| {
            let files = self.volumes.get(*index).and_then(DiskVolume::readable);
            files.is_some_and(|files| ROOT_FILES.iter().any(|path| files.is_file(path)))
        };
        let is_candidate = |index: &usize| {
            let name = self.volumes.get(*index).and_then(DiskVolume::name);
            name.is_some_and(|name| !matches!(name, "vfat" | "swap" | "jbd" | "LVM" | "Linux RAID"))
        };
        let length = |index: &usize| self.volumes.get(*index).and_then(|volume| volume.part.length());
        let largest = || all().filter(is_candidate).max_by_key(length);
        all().find(typed).or_else(|| all().find(has_system)).or_else(largest)
    }

    /// Returns the volume that a `root=` word means, if it is on this disk.
    pub fn root_named(&self, value: &str) -> Option<usize> {
        let (key, id) = value.split_once('=').unwrap_or(("", value));
        let id = id.trim_matches('"');
        let find = |is: &dyn Fn(usize) -> bool| (0..self.volumes.len()).find(|index| is(*index));
        let signature = |index: usize| self.volumes.get(index).and_then(|volume| volume.signature.as_ref());
        let same =
            |found: &Option<String>| found.as_ref().is_some_and(|found| found.eq_ignore_ascii_case(id));
        match key {
            "UUID" => find(&|index| signature(index).is_some_and(|s| same(&s.uuid))),
            "LABEL" => find(&|index| signature(index).is_some_and(|s| s.label.as_deref() == Some(id))),
            "PARTUUID" => {
                find(&|index| self.partition(index).is_some_and(|p| p.uuid.eq_ignore_ascii_case(id)))
            }
            _ => {
                let number = partition_number(value)?;
                find(&|index| self.number(index) == Some(number))
            }
        }
    }

    /// Returns a `root=` word for a volume. A kernel without an initrd finds a partition by its id, but not a
    /// file system.
    pub fn root_word(&self, volume: usize, has_initrd: bool) -> String {
        let uuid = self.volumes.get(volume).and_then(|volume| volume.signature.as_ref()?.uuid.clone());
        match (self.partition(volume), uuid) {
            (None, _) => "root=/dev/vda".to_owned(),
            (Some(_), Some(uuid)) if has_initrd => format!("root=UUID={uuid}"),
            (Some(partition), _) => format!("root=PARTUUID={}", partition.uuid),
        }
    }

    /// Returns the explanation for a missing kernel: the places that were searched, and those that could not
    /// be.
    pub fn search_report(&self) -> String {
        let places = |wanted: &dyn Fn(&DiskVolume) -> bool| -> Vec<String> {
            (0..self.volumes.len())
                .filter(|index| self.volumes.get(*index).is_some_and(wanted))
                .map(|index| self.place(index))
                .collect()
        };
        let readable = places(&|volume| volume.readable().is_some());
        let mut text = if readable.is_empty() {
            "there is no file system that vprof reads (ext4, vfat)".to_owned()
        } else {
            format!(
                "looked for loader/entries, EFI/Linux/*.efi, grub.cfg, extlinux.conf, /boot/vmlinuz, /vmlinuz and /boot/vmlinuz-* on {}",
                readable.join(", ")
            )
        };
        let closed =
            places(&|volume| volume.readable().is_none() && volume.name().is_some_and(|n| n != "swap"));
        if !closed.is_empty() {
            text.push_str(&format!("; vprof can't look into {}", closed.join(", ")));
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            if let Some(Err(reason)) = &volume.files {
                text.push_str(&format!("; {}: {}", self.place(index), escaped(&reason.to_string())));
            }
        }
        if let Some(damage) = self.table.as_ref().and_then(|table| table.damage.as_ref()) {
            text.push_str(&format!("; the partition table is damaged: {damage}"));
        }
        if self.volumes.iter().any(|volume| volume.signature.as_ref().is_some_and(|s| s.is_encrypted())) {
            text.push_str(" (LUKS is encrypted)");
        }
        text
    }
}

/// Files of which a root file system has at least one.
const ROOT_FILES: &[&str] =
    &["/usr/lib/os-release", "/etc/os-release", "/sbin/init", "/usr/lib/systemd/systemd"];

/// Returns the partition's number in a name like `/dev/sda2` or `/dev/nvme0n1p2`.
fn partition_number(device: &str) -> Option<u32> {
    let name = device.strip_prefix("/dev/")?;
    if name.contains('/') {
        return None;
    }
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name.get(name.len() - digits..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::partition_number;

    #[test]
    fn numbers_of_partitions_end_their_names() {
        assert_eq!(partition_number("/dev/sda2"), Some(2));
        assert_eq!(partition_number("/dev/nvme0n1p12"), Some(12));
        assert_eq!(partition_number("/dev/mapper/vg-root1"), None);
        assert_eq!(partition_number("/dev/vda"), None);
        assert_eq!(partition_number("sda1"), None);
        assert_eq!(partition_number("/dev/sda99999999999999999999"), None);
    }
}
