//! `vprof image inspect`: what a disk has, and what `vprof run` would do with it.

use serde::Serialize;
use text::clean::escaped;
use text::units;

use super::contents::Part;
use super::survey::Survey;
use super::{ImageError, choice, open_disk, sniff};
use crate::args::InspectArgs;
use crate::errors::{Error, ExitCode};
use crate::image::boot::Entry;
use crate::report::{write_json, write_text};

/// What is told of an image.
#[derive(Debug, Serialize)]
struct Inspection {
    image: String,
    /// `raw` or `qcow2`.
    format: &'static str,
    bytes: Option<u64>,
    /// `GPT`, `MBR`, or none where the disk is one volume.
    partition_table: Option<&'static str>,
    /// What is wrong with the partition table although it could be read.
    damage: Option<String>,
    volumes: Vec<VolumeShown>,
    kernels: Vec<KernelShown>,
    run: RunShown,
}

/// A partition, or the whole disk.
#[derive(Debug, Serialize)]
struct VolumeShown {
    partition: Option<u32>,
    start: u64,
    bytes: Option<u64>,
    /// Like `ext4`, `LUKS`; none for nothing known.
    contents: Option<&'static str>,
    uuid: Option<String>,
    label: Option<String>,
    partition_uuid: Option<String>,
    /// It was not unmounted.
    dirty: bool,
    /// vprof reads its files.
    readable: bool,
    /// Why not, where it should be readable.
    error: Option<String>,
}

/// A kernel that was found.
#[derive(Debug, Serialize)]
struct KernelShown {
    partition: Option<u32>,
    kernel: String,
    initrds: Vec<String>,
    title: Option<String>,
    /// The words of its entry for the kernel's command line.
    options: Option<String>,
    /// What named it.
    source: String,
}

/// What `vprof run` would do.
#[derive(Debug, Serialize)]
struct RunShown {
    boots: bool,
    /// The kernel's command line, before --append.
    cmdline: Option<String>,
    /// In words: what is chosen and why, or why nothing can be.
    sentence: String,
}

/// Runs the command.
pub fn command(args: &InspectArgs) -> Result<ExitCode, Error> {
    let inspection = inspect(args)?;
    if args.json {
        write_json(&inspection)?;
    } else {
        write_text(&text(&inspection))?;
    }
    Ok(ExitCode::Done)
}

fn inspect(args: &InspectArgs) -> Result<Inspection, ImageError> {
    let path = &args.image;
    let disk = open_disk(path)?;
    match sniff::content(&disk, path)? {
        sniff::Content::Foreign { found, advice } => {
            return Err(ImageError::Foreign { path: path.clone(), found, advice });
        }
        sniff::Content::BzImage | sniff::Content::Elf if disk.is_raw() => {
            return Err(ImageError::Foreign {
                path: path.clone(),
                found: "no disk image".to_owned(),
                advice: "give a disk image; `vprof run` takes a kernel as it is".to_owned(),
            });
        }
        _ => {}
    }
    let survey = Survey::of(&disk, path)?;
    let run = match choice::choose(&survey, path) {
        Ok(choice) => RunShown {
            boots: true,
            cmdline: Some(crate::run::spec::cmdline(
                Some(&choice.words),
                crate::args::ConsoleDevice::Serial,
                None,
            )),
            sentence: choice.sentence,
        },
        Err(error) => RunShown { boots: false, cmdline: None, sentence: error.to_string() },
    };
    Ok(Inspection {
        image: path.display().to_string(),
        format: if disk.is_raw() { "raw" } else { "qcow2" },
        bytes: disk.length(),
        partition_table: survey.table.as_ref().map(|table| table.scheme.name()),
        damage: survey.table.as_ref().and_then(|table| table.damage.clone()),
        volumes: volumes(&survey, &disk),
        kernels: survey.entries().into_iter().map(|entry| kernel(&survey, entry)).collect(),
        run,
    })
}

fn volumes(survey: &Survey, disk: &Part) -> Vec<VolumeShown> {
    let shown = |(index, volume): (usize, &super::volume::Volume)| {
        let partition = survey.partition(index);
        let signature = volume.signature.clone().unwrap_or_default();
        VolumeShown {
            partition: partition.map(|partition| partition.number),
            start: partition.map_or(0, |partition| partition.start),
            bytes: partition.map(|partition| partition.length).or(disk.length()),
            contents: volume.name(),
            uuid: signature.uuid,
            label: signature.label,
            partition_uuid: partition.map(|partition| partition.uuid.clone()),
            dirty: signature.dirty,
            readable: volume.readable().is_some(),
            error: volume.files.as_ref().and_then(|files| files.as_ref().err().cloned()),
        }
    };
    survey.volumes.iter().enumerate().map(shown).collect()
}

fn kernel(survey: &Survey, entry: Entry) -> KernelShown {
    KernelShown {
        partition: survey.partition(entry.volume).map(|partition| partition.number),
        kernel: entry.kernel,
        initrds: entry.initrds,
        title: entry.title,
        options: entry.options,
        source: entry.source,
    }
}

/// The same for people.
fn text(inspection: &Inspection) -> String {
    let mut lines = Vec::new();
    let size = inspection.bytes.map_or_else(|| "size not known".to_owned(), units::bytes);
    let table = inspection.partition_table.unwrap_or("no partition table");
    lines.push(format!("{}: {}, {size}, {table}", escaped(&inspection.image), inspection.format));
    if let Some(damage) = &inspection.damage {
        lines.push(format!("  damaged: {damage}"));
    }
    for volume in &inspection.volumes {
        let mut words = vec![match volume.partition {
            Some(number) => format!("  partition {number}:"),
            None => "  the disk:".to_owned(),
        }];
        words.push(volume.contents.unwrap_or("unknown contents").to_owned());
        words.extend(volume.bytes.map(units::bytes));
        words.extend(volume.label.as_ref().map(|label| format!("label {}", escaped(label))));
        words.extend(volume.uuid.as_ref().map(|uuid| format!("UUID {}", escaped(uuid))));
        words.extend(volume.partition_uuid.as_ref().map(|uuid| format!("PARTUUID {uuid}")));
        words.extend(volume.dirty.then(|| "not unmounted".to_owned()));
        words.extend(volume.error.as_ref().map(|error| format!("can't be read: {}", escaped(error))));
        lines.push(words.join("  "));
    }
    for kernel in &inspection.kernels {
        let place = kernel.partition.map(|number| format!(" on partition {number}")).unwrap_or_default();
        let title =
            kernel.title.as_deref().map(|title| format!(" \"{}\"", escaped(title))).unwrap_or_default();
        lines.push(format!(
            "  kernel: {}{place}, by {}{title}",
            escaped(&kernel.kernel),
            escaped(&kernel.source)
        ));
        for initrd in &kernel.initrds {
            lines.push(format!("    initrd:  {}", escaped(initrd)));
        }
        if let Some(options) = kernel.options.as_deref().filter(|options| !options.is_empty()) {
            lines.push(format!("    options: {}", escaped(options)));
        }
    }
    lines.push(match &inspection.run.cmdline {
        Some(cmdline) => {
            format!("vprof run: {}\n  command line: {}", inspection.run.sentence, escaped(cmdline))
        }
        None => format!("vprof run: {}", inspection.run.sentence),
    });
    lines.push(String::new());
    lines.join("\n")
}
