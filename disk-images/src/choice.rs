//! Choice of the kernel of a disk, of its words, and the sentence that explains both.

use std::path::{Path, PathBuf};

use super::boot::BootEntry;
use super::kernel::{self, KernelParts};
use super::survey::DiskSurvey;
use super::volume::VolumeError;
use super::{ImageError, MAX_FILE, initrd_check};
use display::clean::escaped;

/// Kernel, initrd and words that are chosen from a disk.
#[derive(Debug)]
pub struct BootChoice {
    /// Kernel file.
    pub kernel: Vec<u8>,
    /// Initrds, one after the other.
    pub initrd: Option<Vec<u8>>,
    /// Words for the kernel's command line, `root=` among them.
    pub words: String,
    /// Place of the kernel, for the profile.
    pub origin: String,
    /// Choice and its reason in one line.
    pub sentence: String,
}

/// Takes the first of the survey's entries, as the disk's own boot loader would.
pub fn choose(
    survey: &DiskSurvey,
    first: Option<&BootEntry>,
    image: &Path,
) -> Result<BootChoice, ImageError> {
    let Some(entry) = first else {
        return Err(ImageError::NoKernel { path: image.to_owned(), searched: survey.search_report() });
    };
    let inside = |source| ImageError::Inside { image: image.to_owned(), source: Box::new(source) };
    let file = read(survey, entry, &entry.kernel, image)?;
    if file.is_empty() {
        return Err(inside(ImageError::Empty {
            path: PathBuf::from(&entry.kernel),
            wanted: "an image with a whole kernel, or one with --kernel",
        }));
    }
    let KernelParts { kernel, mut initrds, .. } =
        kernel::take_apart(file, Path::new(&entry.kernel)).map_err(inside)?;
    for path in &entry.initrds {
        let archive = read(survey, entry, path, image)?;
        initrd_check::check(&archive, Path::new(path)).map_err(inside)?;
        initrds.push(archive);
    }
    let initrd = initrd_check::joined(initrds);
    let words = words(survey, entry.options.as_deref(), initrd.is_some());
    let sentence = sentence(survey, entry, initrd.is_some(), &words);
    let origin = format!("{} in {}", entry.kernel, image.display());
    Ok(BootChoice { kernel, initrd, words, origin, sentence })
}

fn read(survey: &DiskSurvey, entry: &BootEntry, path: &str, image: &Path) -> Result<Vec<u8>, ImageError> {
    let fail = |reason| ImageError::FileSystem {
        path: image.to_owned(),
        name: survey.volumes.get(entry.volume).and_then(|volume| volume.name()).unwrap_or("unknown"),
        reason,
    };
    let files = survey.volumes.get(entry.volume).and_then(|volume| volume.readable());
    let files = files.ok_or_else(|| fail(VolumeError::NoFiles))?;
    files.read(path, MAX_FILE).map_err(fail)
}

/// Returns the entry's words with a `root=` that is valid in this machine, whose disk is vda whatever its
/// name was before.
pub fn words(survey: &DiskSurvey, options: Option<&str>, has_initrd: bool) -> String {
    let Some(options) = options.map(str::trim) else {
        return match survey.root() {
            Some(root) => format!("{} rw", survey.root_word(root, has_initrd)),
            // Nothing indicates the root: the whole disk is the default.
            None => "root=/dev/vda rw".to_owned(),
        };
    };
    let root = root_value(options);
    let volume = match root {
        Some(value) if !is_foreign_device(value) => None,
        Some(value) => survey.root_named(value),
        None => survey.root(),
    };
    // Linux takes the last `root=`, so one that is added overrides that of the entry.
    let added = volume.map(|volume| survey.root_word(volume, has_initrd));
    [Some(options.to_owned()), added]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the value of the last `root=`.
fn root_value(words: &str) -> Option<&str> {
    words.split_whitespace().filter_map(|word| word.strip_prefix("root=")).next_back()
}

/// Returns true for a device name that depends on the machine and does not exist in this one.
fn is_foreign_device(value: &str) -> bool {
    value.strip_prefix("/dev/").is_some_and(|name| {
        !name.starts_with("vd")
            && ["sd", "hd", "xvd", "nvme", "mmcblk"].iter().any(|kind| name.starts_with(kind))
    })
}

/// Returns one line with the kernel, the origin of its entry, the root, and notes on the root.
fn sentence(survey: &DiskSurvey, entry: &BootEntry, has_initrd: bool, words: &str) -> String {
    let initrd = if has_initrd { "" } else { " without an initrd" };
    let title = entry.title.as_deref().map(|title| format!(", {}", escaped(title))).unwrap_or_default();
    let mut text = format!(
        "kernel: {}{initrd} on {}, by {}{title}; {}",
        escaped(&entry.kernel),
        survey.place(entry.volume),
        escaped(&entry.source),
        root_value(words).map_or_else(|| "no root=".to_owned(), |root| format!("root={}", escaped(root)))
    );
    if let Some(note) = survey.table.as_ref().and_then(|table| table.damage.as_ref()) {
        text.push_str(&format!("; its partition table is damaged: {note}"));
    }
    for note in root_notes(survey, words) {
        text.push_str("; ");
        text.push_str(&note);
    }
    text
}

/// Returns the volume that the words name as root, or else the most likely one.
fn root_of(survey: &DiskSurvey, words: &str) -> Option<usize> {
    root_value(words).and_then(|value| survey.root_named(value)).or_else(|| survey.root())
}

/// Returns true if the root that the words name has systemd as its init; `None` if vprof cannot read the
/// root.
pub fn has_systemd(survey: &DiskSurvey, words: &str) -> Option<bool> {
    let files = survey.volumes.get(root_of(survey, words)?)?.readable()?;
    Some(["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].iter().any(|path| files.is_file(path)))
}

/// Returns notes for the user on the root that the words name, and on journals that were not replayed.
pub fn root_notes(survey: &DiskSurvey, words: &str) -> Vec<String> {
    let mut notes: Vec<String> = (survey.volumes.iter().enumerate())
        .filter_map(|(index, volume)| {
            let (place, reason) = (survey.place(index), volume.unreplayed.as_ref()?);
            let reason = reason.to_string();
            Some(format!(
                "the journal of {place} can't be replayed ({}), so its files may be older",
                escaped(&reason)
            ))
        })
        .collect();
    let Some(root) = root_of(survey, words) else { return notes };
    let (Some(volume), place) = (survey.volumes.get(root), survey.place(root)) else { return notes };
    let signature = volume.signature.as_ref();
    if signature.is_some_and(|signature| signature.is_encrypted()) {
        notes.push(format!("{place} is encrypted: the guest asks for its passphrase on the console"));
    }
    match &volume.files {
        None => notes.push(format!(
            "vprof does not read {place}: programs' code is read from the guest's memory alone"
        )),
        Some(Err(reason)) => {
            notes.push(format!("vprof can't read {place}: {}", escaped(&reason.to_string())))
        }
        Some(Ok(_)) => {}
    }
    if signature.is_some_and(|signature| signature.dirty) {
        notes.push(format!("{place} was not unmounted: the guest's kernel puts its journal in order first"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_root_counts() {
        assert_eq!(root_value("a root=1 b root=2 c"), Some("2"));
        assert_eq!(root_value("noroot=1 quiet"), None);
    }

    #[test]
    fn names_of_other_machines_disks_are_foreign() {
        for (name, foreign) in [
            ("/dev/sda1", true),
            ("/dev/nvme0n1p2", true),
            ("/dev/xvda1", true),
            ("/dev/vda1", false),
            ("/dev/mapper/vg-root", false),
            ("UUID=x", false),
            ("/dev/disk/by-uuid/x", false),
        ] {
            assert_eq!(is_foreign_device(name), foreign, "{name}");
        }
    }
}
