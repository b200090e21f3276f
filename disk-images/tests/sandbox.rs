//! Reading of disk images inside the sandboxes: each thread that reads images reads those of every format.
//! Each case is in a separate process, this program started again, because a filter stays for good.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use disk_images::NamedFile;
use disk_images::contents::{DiskContents, ImageFormat};
use sandbox::{
    AttachedSandbox, REPORT_BYTES, Reach, RefusedCall, ResourceLimits, SandboxConfig, SyscallPolicy,
    ThreadKind,
};
use vmm::DiskFile;

/// Environment variable with the place of a child.
const PLACE: &str = "WALLS_PLACE";
/// Environment variable with the image that a child reads.
const IMAGE: &str = "WALLS_IMAGE";
/// Exit status of a child that has read its image.
const READ: i32 = 40;
/// Content of the only program on the images.
const PROGRAM: &[u8] = b"its bytes";

/// Reads the image at a path, within the sandbox of one place.
type SandboxEntry = fn(&Path);

/// Places from which images are read, by name.
const PLACES: [(&str, SandboxEntry); 4] = [
    ("reader", inspect_as_reader),
    ("disk", serve_disk),
    ("sampler", read_program_of_guest),
    ("attached sampler", read_program_of_attached),
];

/// Returns the end of the pipe for the report of a refused call, which is a child's standard input.
fn report() -> std::os::fd::OwnedFd {
    io::stdin().as_fd().try_clone_to_owned().unwrap()
}

fn enter_guest_wall() {
    let directory = std::env::temp_dir();
    sandbox::enter(SandboxConfig { policy: SyscallPolicy::Refuse, directory, report: report() }).unwrap();
}

/// Does the work in a thread of this kind.
fn as_thread(kind: ThreadKind, work: impl FnOnce() + Send + 'static) {
    let behind_wall = move || {
        sandbox::enter_thread(kind);
        work();
    };
    std::thread::spawn(behind_wall).join().unwrap();
}

fn open(file: File, writable: bool) -> DiskContents {
    let format = ImageFormat::from_file(&file).unwrap();
    DiskContents::open(file, format, writable, Path::new("disk")).unwrap()
}

/// The reader of images, which also looks into FAT.
fn inspect_as_reader(image: &Path) {
    let image = NamedFile { path: image.to_owned(), file: File::open(image).unwrap() };
    let limits = ResourceLimits { memory_bytes: 8 << 30, file_bytes: 1 << 20, cpu_seconds: 60 };
    sandbox::enter_reader(SyscallPolicy::Refuse, limits, report()).unwrap();
    let inspection = disk_images::inspect(&image, None).unwrap();
    assert!(inspection.volumes.iter().any(|volume| volume.contents.as_deref() == Some("ext4")));
}

/// A disk of a guest, which is read, written and made durable.
fn serve_disk(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    enter_guest_wall();
    let contents = open(file, true);
    let disk = contents.to_disk().unwrap();
    as_thread(ThreadKind::Disk, move || {
        let mut block = [0; 4096];
        contents.read_exact_at(&mut block, 8192).unwrap();
        match disk {
            DiskFile::Raw(file) => {
                std::os::unix::fs::FileExt::write_all_at(&file, &block, 8192).unwrap();
                file.sync_data().unwrap();
            }
            DiskFile::Formatted(disk) => {
                disk.write_at(8192, &block).unwrap();
                disk.flush().unwrap();
            }
        }
    });
}

/// Reads a program, and looks for one that is not there.
fn read_program(disk: DiskContents) {
    let files = disk_images::files::open(vec![disk])();
    files.prepare();
    assert!(files.open("/bin/other").is_none());
    let mut bytes = [0; PROGRAM.len()];
    files.open("/bin/program").unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, PROGRAM);
}

fn read_program_of_guest(image: &Path) {
    let file = File::open(image).unwrap();
    enter_guest_wall();
    let disk = open(file, false);
    as_thread(ThreadKind::Sampler, move || read_program(disk));
}

fn read_program_of_attached(image: &Path) {
    let file = File::open(image).unwrap();
    let (policy, reach) = (SyscallPolicy::Refuse, Reach::Stub { process: None });
    sandbox::enter_attached(AttachedSandbox { policy, reach, capabilities: 0, report: report() }).unwrap();
    let disk = open(file, false);
    as_thread(ThreadKind::Sampler, move || read_program(disk));
}

/// The child's part: does nothing unless it was started for a case.
#[test]
fn child() {
    let (Ok(place), Some(image)) = (std::env::var(PLACE), std::env::var_os(IMAGE)) else { return };
    let (_, read) = PLACES.into_iter().find(|(name, _)| *name == place).unwrap();
    read(&PathBuf::from(image));
    std::process::exit(READ);
}

/// Reads an image from a place; returns the exit status, and the sentence on a refused call.
fn outcome(place: &str, image: &Path) -> (Option<i32>, Option<String>) {
    let (mut reader, writer) = io::pipe().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    child.env(PLACE, place).env(IMAGE, image).stdin(writer);
    let status = child.status().unwrap();
    // The command holds the writing end.
    drop(child);
    let mut report = [0; REPORT_BYTES];
    let refused = reader.read_exact(&mut report).is_ok();
    (status.code(), refused.then(|| RefusedCall::from_report(report).to_string()))
}

/// Runs a tool of the machine; `None` if it is not there and may be missing.
fn run(name: &str, arguments: &[&str], paths: &[&Path], input: &str) -> Option<()> {
    let mut tool = testkit::tool(name)?;
    let mut child =
        tool.args(arguments).args(paths).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{name} {arguments:?}");
    Some(())
}

/// Makes a disk that is one ext4 file system, and one with a FAT and an ext4 partition.
fn raw_disks(directory: &Path) -> Option<[PathBuf; 2]> {
    const MIB: usize = 1 << 20;
    let file = |name: &str| directory.join(name);
    let (root, whole, fat) = (file("root"), file("whole.img"), file("fat.img"));
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/program"), PROGRAM).unwrap();
    for path in [&whole, &fat] {
        File::create(path).unwrap().set_len(4 * MIB as u64).unwrap();
    }
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-d"], &[&root, &whole], "")?;
    run("mkfs.vfat", &[], &[&fat], "")?;
    let parts = [&fat, &whole].map(|part| std::fs::read(part).unwrap());
    let partitioned = file("partitioned.img");
    std::fs::write(
        &partitioned,
        [&vec![0; MIB], &parts[0], &parts[1], &vec![0; MIB]].map(Vec::as_slice).concat(),
    )
    .unwrap();
    let table = "label: gpt\nstart=1MiB, size=4MiB, type=uefi\nstart=5MiB, size=4MiB, type=linux\n";
    run("sfdisk", &["-q"], &[&partitioned], table)?;
    Some([whole, partitioned])
}

#[test]
fn every_thread_that_reads_images_reads_every_format() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disks) = raw_disks(directory.path()) else { return };
    let mut images = disks.to_vec();
    for raw in disks {
        for (compression, extension) in [(None, "qcow2"), (Some("-c"), "compressed.qcow2")] {
            let image = raw.with_extension(extension);
            let arguments: Vec<_> =
                ["convert", "-f", "raw", "-O", "qcow2"].into_iter().chain(compression).collect();
            let Some(()) = run("qemu-img", &arguments, &[&raw, &image], "") else { return };
            images.push(image);
        }
    }
    for image in images {
        for (place, _) in PLACES {
            assert_eq!(outcome(place, &image), (Some(READ), None), "{place}: {}", image.display());
        }
    }
}
