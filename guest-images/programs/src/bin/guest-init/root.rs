//! Mounts: the kernel's file systems, the root disk, and file systems in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::{chdir, chroot};

use crate::SetupError;

/// Mount point of the disk before it becomes the root.
const NEW_ROOT: &str = "/newroot";
/// Longest wait until a virtio disk on the bus becomes a block device.
const DISK_LIMIT: Duration = Duration::from_secs(20);

fn mount_new(kind: &str, at: &str, flags: MsFlags, options: Option<&str>) -> Result<(), SetupError> {
    // On a read-only file system the directory exists already, or else the mount reports the error.
    let _ = fs::create_dir_all(at);
    match mount(Some(kind), at, Some(kind), flags, options) {
        Ok(()) | Err(Errno::EBUSY) => Ok(()),
        Err(errno) => Err(SetupError::Mount { what: kind.to_owned(), at: at.to_owned(), errno }),
    }
}

/// Mounts `/proc`, `/sys` with the control groups and the tracer, and `/dev`.
pub fn mount_kernel_file_systems() -> Result<(), SetupError> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount_new("proc", "/proc", plain | MsFlags::MS_NODEV, None)?;
    mount_new("sysfs", "/sys", plain | MsFlags::MS_NODEV, None)?;
    // A kernel without control groups has no mount point for them, and needs none.
    let _ = mount_new("cgroup2", "/sys/fs/cgroup", plain | MsFlags::MS_NODEV, None);
    // The same is true of kernels without a tracer.
    let _ = mount_new("tracefs", "/sys/kernel/tracing", plain | MsFlags::MS_NODEV, None);
    mount_new("devtmpfs", "/dev", plain, Some("mode=0755"))
}

/// Mounts terminals, and the directories whose contents should not outlive the guest.
pub fn mount_memory_file_systems() -> Result<(), SetupError> {
    let private = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount_new("devpts", "/dev/pts", private | MsFlags::MS_NOEXEC, Some("gid=5,mode=620,ptmxmode=666"))?;
    for (at, mode) in [("/dev/shm", "mode=1777"), ("/run", "mode=0755"), ("/tmp", "mode=1777")] {
        mount_new("tmpfs", at, private, Some(mode))?;
    }
    Ok(())
}

/// Makes the root disk the root of the file system. Without a disk the initramfs stays the root.
pub fn enter_disk() -> Result<(), SetupError> {
    let cmdline = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let Some(disk) = find_disk(&cmdline)? else {
        return Ok(());
    };
    // The initramfs holds only modules that are loaded by now, and the guest can use its memory.
    let _ = fs::remove_dir_all("/lib/modules");
    mount_disk(&disk, cmdline.split_whitespace().any(|word| word == "ro"))?;
    for kept in ["/dev", "/proc", "/sys"] {
        let target = format!("{NEW_ROOT}{kept}");
        let _ = fs::create_dir_all(&target);
        mount(Some(kept), target.as_str(), None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .map_err(|errno| SetupError::Move { what: kept, errno })?;
    }
    let switch = || -> nix::Result<()> {
        chdir(NEW_ROOT)?;
        mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
        chroot(".")?;
        chdir("/")
    };
    switch().map_err(|errno| SetupError::Root { disk, errno })
}

/// Returns the disk that the command line names, else the first virtio disk, else none.
fn find_disk(cmdline: &str) -> Result<Option<PathBuf>, SetupError> {
    let named = cmdline.split_whitespace().rev().find_map(|word| word.strip_prefix("root=/dev/"));
    if named.is_none() && !has_virtio_disk() {
        return Ok(None);
    }
    let start = Instant::now();
    loop {
        let disk = match named {
            Some(name) => Path::new("/dev").join(name).exists().then(|| name.to_owned()),
            None => first_disk(),
        };
        if let Some(disk) = disk {
            return Ok(Some(Path::new("/dev").join(disk)));
        }
        if start.elapsed() > DISK_LIMIT {
            let wanted = named.map_or_else(|| "the virtio disk".to_owned(), |name| format!("/dev/{name}"));
            return Err(SetupError::NoDisk { wanted, limit: DISK_LIMIT });
        }
        sleep(Duration::from_millis(5));
    }
}

/// Returns true if a virtio-blk device is on the PCI bus. Its device id is 0x1001 (transitional), or 0x1040
/// plus the device type 2 (Virtio 1.2, 4.1.2).
fn has_virtio_disk() -> bool {
    let is = |path: &Path, file: &str, values: &[&str]| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| values.contains(&text.trim()))
    };
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else {
        return false;
    };
    devices.flatten().any(|device| {
        let path = device.path();
        is(&path, "vendor", &["0x1af4"]) && is(&path, "device", &["0x1001", "0x1042"])
    })
}

fn first_disk() -> Option<String> {
    let names = fs::read_dir("/sys/block").ok()?.flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("vd"))
        // vdb comes before vdaa.
        .min_by_key(|name| (name.len(), name.clone()))
}

fn mount_disk(disk: &Path, read_only: bool) -> Result<(), SetupError> {
    let _ = fs::create_dir_all(NEW_ROOT);
    let try_mount = |flags| mount(Some(disk), NEW_ROOT, Some("ext4"), flags, None::<&str>);
    let result = if read_only { Err(Errno::EROFS) } else { try_mount(MsFlags::MS_NOATIME) };
    match result {
        // The disk itself may be read-only as well.
        Err(Errno::EROFS | Errno::EACCES) => try_mount(MsFlags::MS_NOATIME | MsFlags::MS_RDONLY),
        other => other,
    }
    .map_err(|errno| SetupError::Disk { disk: disk.to_owned(), errno })
}
