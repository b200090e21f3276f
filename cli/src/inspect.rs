//! `vprof image inspect`: the contents of a disk image, and how `vprof run` would boot it.

use disk_images::{ImageInspection, NamedFile};
use display::clean::escaped;
use display::units;
use host::reader;

use crate::args::{ConsoleDevice, InspectArgs};
use crate::cmdline::cmdline;
use crate::errors::{Error, ExitCode};
use crate::output::{write_json, write_text};

/// Runs the command.
pub fn command(args: &InspectArgs) -> Result<ExitCode, Error> {
    let cmdline = |words: String| cmdline(Some(&words), ConsoleDevice::Serial, None);
    let mut inspection = reader::inspect(&NamedFile::image(&args.image)?, args.format, args.seccomp)?;
    let is_known =
        inspection.volumes.iter().any(|volume| volume.contents.is_some() || volume.error.is_some());
    if inspection.partition_table.is_none() && inspection.damage.is_none() && !is_known {
        return Err(Error::NotADisk(args.image.clone()));
    }
    inspection.run.cmdline = inspection.run.cmdline.map(cmdline);
    if args.json {
        write_json(&inspection)?;
    } else {
        write_text(&text(&inspection))?;
    }
    Ok(ExitCode::Done)
}

/// Formats the inspection as text.
fn text(inspection: &ImageInspection) -> String {
    let mut lines = Vec::new();
    let size = inspection.bytes.map_or_else(|| "size not known".to_owned(), units::bytes);
    let table = inspection.partition_table.as_deref().unwrap_or("no partition table");
    lines.push(format!(
        "{}: {}, {size}, {}",
        escaped(&inspection.image),
        escaped(&inspection.format),
        escaped(table)
    ));
    if let Some(damage) = &inspection.damage {
        lines.push(format!("  damaged: {}", escaped(damage)));
    }
    for volume in &inspection.volumes {
        let mut words = vec![match volume.partition {
            Some(number) => format!("  partition {number}:"),
            None => "  the disk:".to_owned(),
        }];
        words.push(escaped(volume.contents.as_deref().unwrap_or("unknown contents")).into_owned());
        words.extend(volume.bytes.map(units::bytes));
        words.extend(volume.label.as_ref().map(|label| format!("label {}", escaped(label))));
        words.extend(volume.uuid.as_ref().map(|uuid| format!("UUID {}", escaped(uuid))));
        words.extend(volume.partition_uuid.as_ref().map(|uuid| format!("PARTUUID {}", escaped(uuid))));
        words.extend(volume.dirty.then(|| "not unmounted".to_owned()));
        words.extend(volume.journal_error.as_ref().map(|error| {
            format!("its journal can't be replayed ({}), so files may be older", escaped(error))
        }));
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
            format!("vprof run: {}\n  command line: {}", escaped(&inspection.run.sentence), escaped(cmdline))
        }
        None => format!("vprof run: {}", escaped(&inspection.run.sentence)),
    });
    lines.push(String::new());
    lines.join("\n")
}
