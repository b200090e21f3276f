//! Locks of disks, against other runs of vprof and against other VMMs: two machines that write one file
//! system destroy it.
//!
//! vprof holds two kinds of locks as long as the file is open:
//!
//! - flock(2), shared or exclusive, against other runs of vprof, earlier versions included.
//! - The bytes that QEMU locks (block/file-posix.c, QEMU 7.2), by fcntl(2) with open file description
//!   locks. A user of an image has a read lock on byte 100 + n for each permission n that it needs, and on
//!   byte 200 + n for each permission n that others must not have. It then checks that the bytes of the
//!   contrary are free. libvirt starts QEMU; Cloud Hypervisor locks the same way, but the whole file.
//!
//! flock and fcntl locks do not exclude each other.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// First byte of the permissions that the holder needs.
const NEEDED: i64 = 100;
/// First byte of the permissions that others must not have.
const DENIED: i64 = 200;
/// Permissions, by their numbers: consistent reading, writing, resizing.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Maximum time of the search for a holder.
const SEARCH: Duration = Duration::from_millis(500);
/// Maximum number of descriptors that the search checks.
const DESCRIPTORS: usize = 200_000;

/// Another program uses the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskInUse {
    /// The program, if it was found.
    pub holder: Option<Holder>,
}

/// Program that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Name, as the kernel has it.
    pub name: String,
}

/// Locks a disk that is open in `file`. It stays locked until the last copy of the descriptor is closed. A
/// file system without locks locks nothing.
///
/// # Errors
/// Another program uses the disk in a way that does not go with this one: both may read.
pub fn lock(file: &File, writes: bool) -> Result<(), DiskInUse> {
    let locked = if writes { file.try_lock() } else { file.try_lock_shared() };
    let in_use = || DiskInUse { holder: holder(file) };
    if matches!(locked, Err(TryLockError::WouldBlock)) {
        return Err(in_use());
    }
    let needed: &[i64] = if writes { &[READ, WRITE, RESIZE] } else { &[READ] };
    // A reader sees a file that nobody changes.
    let denied = [WRITE, RESIZE];
    let own = needed.iter().map(|n| NEEDED + n).chain(denied.map(|n| DENIED + n));
    // Locked first and checked afterwards, so that of two programs at least one finds the other.
    for byte in own {
        if !take(file, byte) {
            return Err(in_use());
        }
    }
    let contrary = needed.iter().map(|n| DENIED + n).chain(denied.map(|n| NEEDED + n));
    for byte in contrary {
        if is_taken(file, byte, writes) {
            return Err(in_use());
        }
    }
    Ok(())
}

/// Returns a lock of one byte.
fn byte_lock(kind: i32, byte: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes a read lock on one byte. Returns false if another program has a write lock there.
fn take(file: &File, byte: i64) -> bool {
    let wanted = byte_lock(libc::F_RDLCK, byte);
    !matches!(fcntl(file, FcntlArg::F_OFD_SETLK(&wanted)), Err(Errno::EAGAIN | Errno::EACCES))
}

/// Returns true if another program has a lock on this byte. A read lock of the whole file is that of a
/// reader, which goes with another.
fn is_taken(file: &File, byte: i64, writes: bool) -> bool {
    let mut found = byte_lock(libc::F_WRLCK, byte);
    if fcntl(file, FcntlArg::F_OFD_GETLK(&mut found)).is_err() {
        return false;
    }
    match i32::from(found.l_type) {
        libc::F_UNLCK => false,
        libc::F_RDLCK if (found.l_start, found.l_len) == (0, 0) => writes,
        _ => true,
    }
}

/// Finds a process with a lock on the file. The kernel does not report whose lock of an open file description
/// it is, but shows the locks of each descriptor. Without the permission to look at the process there is no
/// name.
fn holder(file: &File) -> Option<Holder> {
    let file = file.metadata().ok()?;
    let deadline = Instant::now() + SEARCH;
    let mut left = DESCRIPTORS;
    for process in fs::read_dir("/proc").ok()?.filter_map(Result::ok) {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.filter_map(Result::ok) {
            left = left.checked_sub(1)?;
            if Instant::now() > deadline {
                return None;
            }
            let same = fs::metadata(descriptor.path())
                .is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()));
            if same && has_lock(&process.path(), &descriptor.file_name()) {
                let name = fs::read(process.path().join("comm")).unwrap_or_default();
                return Some(Holder { pid, name: display::clean::utf8(name.trim_ascii_end()) });
            }
        }
    }
    None
}

/// Returns true if a descriptor has locks (proc_pid_fdinfo(5)).
fn has_lock(process: &Path, descriptor: &std::ffi::OsStr) -> bool {
    let info = fs::read_to_string(process.join("fdinfo").join(descriptor)).unwrap_or_default();
    info.lines().any(|line| line.starts_with("lock:"))
}

#[cfg(test)]
mod tests {
    use std::io::{self, BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A raw disk of 1 MiB.
    fn disk() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    fn open(disk: &tempfile::NamedTempFile, writes: bool) -> Result<File, DiskInUse> {
        let file = File::options().read(true).write(writes).open(disk.path()).unwrap();
        lock(&file, writes).map(|()| file)
    }

    #[test]
    fn writers_are_alone_and_readers_are_not() {
        let disk = disk();
        let reader = open(&disk, false).unwrap();
        let other = open(&disk, false).unwrap();
        open(&disk, true).unwrap_err();
        drop((reader, other));
        let writer = open(&disk, true).unwrap();
        let copy = writer.try_clone().unwrap();
        drop(writer);
        open(&disk, false).unwrap_err();
        drop(copy);
        open(&disk, true).unwrap();
    }

    #[test]
    fn a_lock_of_the_whole_file_counts() {
        let disk = disk();
        let whole = |kind| libc::flock { l_start: 0, l_len: 0, ..byte_lock(kind, 0) };
        let other = File::options().read(true).write(true).open(disk.path()).unwrap();
        fcntl(&other, FcntlArg::F_OFD_SETLK(&whole(libc::F_RDLCK))).unwrap();
        open(&disk, false).unwrap();
        open(&disk, true).unwrap_err();
        fcntl(&other, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))).unwrap();
        open(&disk, false).unwrap_err();
    }

    /// QEMU with the disk as its guest's, stopped before its first instruction.
    struct Qemu(Child);

    impl Qemu {
        /// Starts QEMU and waits until it has opened the disk; the error has its messages.
        fn start(mut program: Command, disk: &Path, options: &str) -> io::Result<Self> {
            let drive = format!("if=none,id=d,format=raw,file={}{options}", disk.display());
            program.args([
                "-M",
                "none",
                "-display",
                "none",
                "-S",
                "-qmp",
                "stdio",
                "-nodefaults",
                "-drive",
                &drive,
            ]);
            // Without a device a drive asks for no permissions.
            program.args(["-M", "q35", "-device", "virtio-blk-pci,drive=d", "-accel", "tcg"]);
            let mut child =
                program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            // It answers in its main loop, when all its devices are there.
            let ask = b"{\"execute\": \"qmp_capabilities\"}\n";
            child.stdin.as_mut().unwrap().write_all(ask).unwrap();
            let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
            if lines.any(|line| line.contains("return")) {
                return Ok(Self(child));
            }
            let output = child.wait_with_output().unwrap();
            Err(io::Error::other(String::from_utf8_lossy(&output.stderr)))
        }
    }

    impl Drop for Qemu {
        fn drop(&mut self) {
            let _ended = self.0.kill();
            let _waited = self.0.wait();
        }
    }

    #[test]
    fn qemu_and_vprof_exclude_each_other() {
        const QEMU: &str = "qemu-system-x86_64";
        let disk = disk();
        let start = |options: &str| Some(Qemu::start(testkit::tool(QEMU)?, disk.path(), options));
        let Some(qemu) = start("") else { return };
        let qemu = qemu.unwrap();
        for writes in [true, false] {
            let holder = open(&disk, writes).unwrap_err().holder.expect("its descriptors are ours to see");
            assert_eq!((holder.pid, holder.name.as_str()), (qemu.0.id(), "qemu-system-x86"));
        }
        drop(qemu);
        // What only reads goes with what only reads.
        let qemu = start(",readonly=on").unwrap().unwrap();
        open(&disk, true).unwrap_err();
        open(&disk, false).unwrap();
        drop(qemu);
        for (writes, options, refused) in [
            (true, "", true),
            (true, ",readonly=on", true),
            (false, "", true),
            (false, ",readonly=on", false),
        ] {
            let _ours = open(&disk, writes).unwrap();
            let qemu = start(options).unwrap();
            let message = qemu.as_ref().err().map(io::Error::to_string).unwrap_or_default();
            assert_eq!(qemu.is_err(), refused, "vprof writes: {writes}, QEMU{options}: {message}");
            assert!(!refused || message.contains("lock"), "{message}");
        }
    }

    #[test]
    fn qemus_tools_do_not_write_a_disk_of_vprofs() {
        let Some(mut io) = testkit::tool("qemu-io") else { return };
        let disk = disk();
        let _ours = open(&disk, true).unwrap();
        let output = io.args(["-f", "raw", "-c", "write -P 7 0 512"]).arg(disk.path()).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        let start = std::fs::read(disk.path()).unwrap();
        assert!(start[..512].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_tool_of_qemu_that_has_the_disk_keeps_vprof_out() {
        let Some(mut io) = testkit::tool("qemu-io") else { return };
        let disk = disk();
        io.args(["-f", "raw"]).arg(disk.path());
        let mut io = io.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Its answer shows that the disk is open.
        io.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        BufReader::new(io.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        let in_use = open(&disk, true).unwrap_err();
        drop(io.stdin.take());
        io.wait().unwrap();
        assert_eq!(in_use.holder.map(|holder| holder.name).as_deref(), Some("qemu-io"));
        open(&disk, true).unwrap();
    }
}
