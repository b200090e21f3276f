//! `faults`: page faults of one kind, each of which reads the disk, and then many that do not.
//!
//! The program maps a file whose bytes are all the instruction RET. It executes, reads, or writes by write(2)
//! one page after the other: first when none is in memory, then, in fresh mappings, when all are.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::ptr::NonNull;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, set_name, since_boot};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{UsageWho, getrusage};

const USAGE: &str = "faults [--kind text|data|kernel] [--pages N] [--seconds N]
faults at N pages (64) of a file that are not in memory, and for N seconds (2) at pages that are; names itself fault-KIND, and prints how many
faults read the disk";

const PAGE: usize = 4096;
const RET: u8 = 0xc3;

/// Way to touch a page.
enum FaultKind {
    Text,
    Data,
    Kernel(PipeReader, PipeWriter),
}

impl FaultKind {
    fn new(name: &str) -> Result<Self, ProgramError> {
        match name {
            "text" => Ok(Self::Text),
            "data" => Ok(Self::Data),
            "kernel" => {
                let (from, to) = pipe().map_err(ProgramError::system("make a pipe"))?;
                Ok(Self::Kernel(from, to))
            }
            _ => Err(ProgramError::Usage(format!("--kind {name}: there are text, data and kernel"))),
        }
    }

    fn touch(&self, at: NonNull<u8>) -> Result<(), ProgramError> {
        match self {
            Self::Text => {
                // SAFETY: the page is mapped, is executable and is all RET, which is a function that does
                // nothing.
                let function: extern "C" fn() = unsafe { std::mem::transmute(at.as_ptr()) };
                function();
                Ok(())
            }
            Self::Data => {
                // SAFETY: a mapped page that may be read.
                std::hint::black_box(unsafe { at.read_volatile() });
                Ok(())
            }
            Self::Kernel(from, to) => {
                // SAFETY: a mapped page that may be read, of which nobody changes a byte.
                let byte = unsafe { std::slice::from_raw_parts(at.as_ptr(), 1) };
                let (mut from, mut to) = (from, to);
                to.write_all(byte).map_err(ProgramError::system("write to a pipe"))?;
                from.read_exact(&mut [0]).map_err(ProgramError::system("read from a pipe"))
            }
        }
    }
}

/// Maps the file and touches pages that are `stride` apart.
fn pass(kind: &FaultKind, file: &File, pages: usize, stride: usize) -> Result<(), ProgramError> {
    let size = NonZero::new(pages * PAGE).ok_or_else(|| ProgramError::Usage("--pages 0: no page".into()))?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
    // SAFETY: the kernel chooses the address; nothing else is there.
    let mapped = unsafe { mmap(None, size, protection, MapFlags::MAP_PRIVATE, file, 0) };
    let at = mapped.map_err(ProgramError::system("map a file"))?;
    // SAFETY: the whole mapping.
    unsafe { madvise(at, size.get(), MmapAdvise::MADV_RANDOM) }
        .map_err(ProgramError::system("advise on a mapping"))?;
    let touched = (0..pages).step_by(stride).try_for_each(|page| {
        // SAFETY: within the mapping.
        kind.touch(unsafe { at.cast::<u8>().add(page * PAGE) })
    });
    // SAFETY: the whole mapping, which is no longer used.
    unsafe { munmap(at, size.get()) }.map_err(ProgramError::system("unmap a file"))?;
    touched
}

/// Returns the number of page faults with I/O of this process so far.
fn major_faults() -> Result<i64, ProgramError> {
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(ProgramError::system("ask for the resource usage"))?;
    Ok(usage.major_page_faults())
}

/// Creates a file of RET of which no page is in memory.
fn prepare(path: &str, pages: usize) -> Result<File, ProgramError> {
    fs::write(path, vec![RET; pages * PAGE]).map_err(ProgramError::system("write a file"))?;
    let file = File::open(path).map_err(ProgramError::system("open a file"))?;
    file.sync_all().map_err(ProgramError::system("write a file to the disk"))?;
    // SAFETY: the descriptor is open; nothing is passed by address.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    match result {
        0 => Ok(file),
        // The call returns the error.
        errno => Err(ProgramError::system("drop a file from memory")(Errno::from_raw(errno))),
    }
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let name = args.text("kind").unwrap_or("data");
    let (kind, pages) = (FaultKind::new(name)?, args.number("pages")?.unwrap_or(64));
    set_name(&format!("fault-{name}"))?;
    let path = format!("/root/fault-{name}");
    let file = prepare(&path, pages)?;
    let before = major_faults()?;
    pass(&kind, &file, pages, 1)?;
    println!("fault-{name} read the disk {} times", major_faults()? - before);
    let end = since_boot() + seconds(args, 2.0)?;
    while since_boot() < end {
        // The kernel maps up to 16 pages around each.
        pass(&kind, &file, pages, 16)?;
    }
    fs::remove_file(&path).map_err(ProgramError::system("remove a file"))
}

fn main() -> ExitCode {
    main_with(USAGE, &["kind", "pages", "seconds"], run)
}
