//! Contents of a disk image, for `vprof image inspect`.

use serde::{Deserialize, Serialize};

use crate::boot::BootEntry;
use crate::contents::{DiskPart, ImageFormat};
use crate::survey::DiskSurvey;
use crate::volume::DiskVolume;
use crate::{ImageError, NamedFile, choice, open_disk, sniff};

/// Contents of a disk image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInspection {
    /// Path of the image.
    pub image: String,
    /// `raw` or `qcow2`.
    pub format: String,
    /// Size of the disk, bytes.
    pub bytes: Option<u64>,
    /// `GPT` or `MBR`; none if the disk is one volume.
    pub partition_table: Option<String>,
    /// Damage of a partition table that is readable all the same.
    pub damage: Option<String>,
    /// Partitions, or the whole disk.
    pub volumes: Vec<VolumeSummary>,
    /// Kernels on the disk.
    pub kernels: Vec<KernelSummary>,
    /// Choice of `vprof run`.
    pub run: RunSummary,
}

/// Partition, or the whole disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSummary {
    /// Number of the partition; `None` for the whole disk.
    pub partition: Option<u32>,
    /// First byte on the disk.
    pub start: u64,
    /// Size of the partition or the disk, bytes.
    pub bytes: Option<u64>,
    /// Name of the contents, like `ext4` or `LUKS`; none if they are unknown.
    pub contents: Option<String>,
    /// UUID of the file system.
    pub uuid: Option<String>,
    /// Label of the file system.
    pub label: Option<String>,
    /// UUID of the partition.
    pub partition_uuid: Option<String>,
    /// True if the file system was not unmounted.
    pub dirty: bool,
    /// Reason for which its journal was not replayed, so that files may be older than the last change.
    pub journal_error: Option<String>,
    /// True if vprof can read the files.
    pub readable: bool,
    /// Reason for which vprof cannot read a file system that it knows.
    pub error: Option<String>,
}

/// Kernel on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSummary {
    /// Number of the partition; `None` for the whole disk.
    pub partition: Option<u32>,
    /// Path of the kernel.
    pub kernel: String,
    /// Paths of its initrds.
    pub initrds: Vec<String>,
    /// Title of its entry.
    pub title: Option<String>,
    /// Words of its entry for the kernel's command line.
    pub options: Option<String>,
    /// Configuration that names the kernel.
    pub source: String,
}

/// Choice of `vprof run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// True if a kernel was chosen.
    pub boots: bool,
    /// Words of a boot loader's entry for the kernel's command line, `root=` among them.
    pub cmdline: Option<String>,
    /// Choice and its reason, or the reason for which nothing can be booted.
    pub sentence: String,
}

/// Inspects a disk image, whose format is that of its first bytes unless `format` is given.
///
/// # Errors
/// The file is not a disk image, or it cannot be read.
pub fn inspect(image: &NamedFile, format: Option<ImageFormat>) -> Result<ImageInspection, ImageError> {
    let disk = open_disk(image, format)?;
    let path = image.path.as_path();
    match sniff::content(&disk, path)? {
        sniff::FileContent::Foreign { found, advice } => {
            return Err(ImageError::Foreign { path: path.to_owned(), found, advice });
        }
        sniff::FileContent::BzImage | sniff::FileContent::Elf if disk.is_raw() => {
            return Err(ImageError::Foreign {
                path: path.to_owned(),
                found: "not a disk image".to_owned(),
                advice: "give a disk image; `vprof run` takes a kernel as it is".to_owned(),
            });
        }
        _ => {}
    }
    let survey = DiskSurvey::from_disk(&disk, path)?;
    let entries = survey.entries();
    let run = match choice::choose(&survey, entries.first(), path) {
        Ok(choice) => RunSummary { boots: true, cmdline: Some(choice.words), sentence: choice.sentence },
        Err(error) => RunSummary { boots: false, cmdline: None, sentence: error.to_string() },
    };
    Ok(ImageInspection {
        image: path.display().to_string(),
        format: if disk.is_raw() { "raw" } else { "qcow2" }.to_owned(),
        bytes: disk.length(),
        partition_table: survey.table.as_ref().map(|table| table.scheme.name().to_owned()),
        damage: survey.table.as_ref().and_then(|table| table.damage.as_ref()).map(ToString::to_string),
        volumes: volumes(&survey, &disk),
        kernels: entries.into_iter().map(|entry| kernel(&survey, entry)).collect(),
        run,
    })
}

fn volumes(survey: &DiskSurvey, disk: &DiskPart) -> Vec<VolumeSummary> {
    let shown = |(index, volume): (usize, &DiskVolume)| {
        let partition = survey.partition(index);
        let signature = volume.signature.clone().unwrap_or_default();
        VolumeSummary {
            partition: partition.map(|partition| partition.number),
            start: partition.map_or(0, |partition| partition.start),
            bytes: partition.map(|partition| partition.length).or(disk.length()),
            contents: volume.name().map(str::to_owned),
            uuid: signature.uuid,
            label: signature.label,
            partition_uuid: partition.map(|partition| partition.uuid.clone()),
            dirty: signature.dirty,
            journal_error: volume.unreplayed.as_ref().map(ToString::to_string),
            readable: volume.readable().is_some(),
            error: volume.files.as_ref().and_then(|files| files.as_ref().err().map(ToString::to_string)),
        }
    };
    survey.volumes.iter().enumerate().map(shown).collect()
}

fn kernel(survey: &DiskSurvey, entry: BootEntry) -> KernelSummary {
    KernelSummary {
        partition: survey.partition(entry.volume).map(|partition| partition.number),
        kernel: entry.kernel,
        initrds: entry.initrds,
        title: entry.title,
        options: entry.options,
        source: entry.source,
    }
}
