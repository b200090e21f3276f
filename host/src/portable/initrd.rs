//! The initial file system of the portable host: its modules, this very program as init, and the job.

use std::os::fd::OwnedFd;

use disk_images::contents::ImageFormat;
use disk_images::{BootPayload, cpio};
use vmm::DiskMode;

use super::bundle::Bundle;
use super::{PortableError, ProgramError, exe, start_error};
use crate::process::memory_file;
use crate::protocol::Job;
use crate::protocol::portable::{INITRD_FILE, JOB_FILE, KERNEL_FILE};
use crate::spec::{DiskSpec, MachineSpec, RunSpec};

/// An archive in anonymous memory: nothing is left behind however this process ends.
#[derive(Debug)]
pub struct Initrd {
    /// The memory, as QEMU can open it.
    pub fd: OwnedFd,
    /// Its size, bytes.
    pub bytes: u64,
}

/// Makes the bundle's initial file system with this program and its job in it.
pub fn make(bundle: &Bundle, spec: &RunSpec, payload: &BootPayload) -> Result<Initrd, PortableError> {
    let modules = std::fs::read(&bundle.initrd)
        .map_err(|source| PortableError::Bundle { path: bundle.initrd.clone(), source })?;
    let program = exe::own()?;
    let machine = &spec.machine;
    let devices: Vec<_> = (0..machine.disks.len()).map(device_name).collect();
    // Formats and snapshots are QEMU's: its temporary file, not the inner host's memory, takes the writes.
    let inside = |(path, disk): (&String, &DiskSpec)| DiskSpec {
        path: path.into(),
        format: ImageFormat::Raw,
        mode: if disk.mode == DiskMode::ReadOnly { DiskMode::ReadOnly } else { DiskMode::ReadWrite },
    };
    let job = Job {
        run: RunSpec {
            machine: MachineSpec {
                disks: devices.iter().zip(&machine.disks).map(inside).collect(),
                network: machine.network.as_ref().map(|network| network.inside()),
                ..machine.clone()
            },
            ..spec.clone()
        },
        has_initrd: payload.initrd.is_some(),
        devices: devices.iter().map(Into::into).collect(),
    };
    let job = serde_json::to_vec(&job).map_err(ProgramError::Job)?;
    let mut archive = cpio::ArchiveWriter::append_to(modules);
    for directory in ["dev", "proc", "sys", "tmp", "vprof"] {
        archive.directory(directory);
    }
    program.write(&mut archive);
    archive.file(JOB_FILE.trim_start_matches('/'), 0o644, &job);
    archive.file(KERNEL_FILE.trim_start_matches('/'), 0o644, &payload.kernel);
    if let Some(initrd) = &payload.initrd {
        archive.file(INITRD_FILE.trim_start_matches('/'), 0o644, initrd);
    }
    let archive = archive.finish();
    let fd = memory_file(c"vprof-initrd", &archive).map_err(start_error("make its initial file system"))?;
    Ok(Initrd { fd, bytes: archive.len() as u64 })
}

/// The name that virtio-blk gives the disk at this place: vda ... vdz, vdaa ...
fn device_name(index: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = index + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b"abcdefghijklmnopqrstuvwxyz"[rest % 26]));
        rest /= 26;
    }
    format!("/dev/vd{}", letters.iter().rev().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_named_as_linux_names_them() {
        let names: Vec<_> = [0, 25, 26, 27, 51, 52, 701, 702].into_iter().map(device_name).collect();
        assert_eq!(
            names,
            [
                "/dev/vda",
                "/dev/vdz",
                "/dev/vdaa",
                "/dev/vdab",
                "/dev/vdaz",
                "/dev/vdba",
                "/dev/vdzz",
                "/dev/vdaaa"
            ]
        );
    }
}
