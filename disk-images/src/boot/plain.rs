//! Kernels found by the file names that distributions use.

use super::{BootEntry, readable, version};
use crate::volume::{DiskVolume, VolumeFiles};

/// Returns the kernel of each volume that has one under a usual link or name.
pub fn entries(volumes: &[DiskVolume]) -> Vec<BootEntry> {
    readable(volumes)
        .filter_map(|(volume, files)| {
            let (kernel, source) = kernel_path(files)?;
            let initrds = initrd_path(files, &kernel).into_iter().collect();
            Some(BootEntry { volume, kernel, initrds, options: None, unified: false, title: None, source })
        })
        .collect()
}

/// Returns the kernel's path with symbolic links resolved, because the real name has the version, and the
/// link or pattern by which the kernel was found.
fn kernel_path(files: &dyn VolumeFiles) -> Option<(String, String)> {
    let named = ["/boot/vmlinuz", "/vmlinuz"].into_iter().map(str::to_owned).find(|path| files.is_file(path));
    match named {
        Some(link) => Some((files.resolved(link.clone()), link)),
        // A volume that is mounted at /boot has its kernels in its root directory.
        None => ["/boot", ""].into_iter().find_map(|directory| newest(files, directory)),
    }
}

fn newest(files: &dyn VolumeFiles, directory: &str) -> Option<(String, String)> {
    let names = files.names(if directory.is_empty() { "/" } else { directory });
    let kernels = names
        .into_iter()
        // Debian and Fedora keep a kernel for rescue; it is never the newest.
        .filter(|name| name.starts_with("vmlinuz-") && !name.contains("rescue"))
        .filter(|name| files.is_file(&format!("{directory}/{name}")));
    let name = kernels.max_by(|a, b| version(a).cmp(&version(b)))?;
    let path = files.resolved(format!("{directory}/{name}"));
    Some((path, format!("the newest {directory}/vmlinuz-*")))
}

/// Returns the initrd of the same version under a name that distributions use, or else the one of the usual
/// links.
fn initrd_path(files: &dyn VolumeFiles, kernel: &str) -> Option<String> {
    let (directory, name) = kernel.rsplit_once('/')?;
    let mut candidates = Vec::new();
    if let Some(version) = name.strip_prefix("vmlinuz-") {
        for form in [("initrd.img-", ""), ("initramfs-", ".img"), ("initramfs-", ""), ("initrd-", "")] {
            candidates.push(format!("{directory}/{}{version}{}", form.0, form.1));
        }
    }
    for name in ["initrd.img", "initrd", "initramfs.img", "initramfs"] {
        candidates.push(format!("/boot/{name}"));
    }
    candidates.push("/initrd.img".to_owned());
    candidates.into_iter().find(|path| files.is_file(path))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_sort_by_number() {
        assert!(version("vmlinuz-6.12.1-cloud") > version("vmlinuz-6.1.176-cloud"));
        assert!(version("vmlinuz-6.1.0-10") > version("vmlinuz-6.1.0-9"));
    }
}
