//! Files and mappings: lmbench's `lat_fs`, `lat_mmap`, `lat_sig prot`, `lat_pagefault`, `bw_file_rd` and
//! `bw_mmap_rd`.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use guest_programs::{ProgramError, since_boot};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::measure::{CALLS, least, least_of, print, print_rate};

/// Files that are created and deleted in one round.
const FILES: u32 = 50;
/// Sizes of the files in the usual table, KiB.
const SIZES: [usize; 4] = [0, 1, 4, 10];
/// Size of the file that is mapped and read, bytes.
const SIZE: usize = 4 << 20;
const PAGE: usize = 4096;
/// Stride of `lat_mmap`, which touches a tenth of the file: 16 KiB times ten.
const STRIDE: usize = 160 << 10;

/// Directory that is removed when dropped.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new() -> Result<Self, ProgramError> {
        let path = Path::new("/root/latency").to_owned();
        fs::create_dir_all(&path).map_err(ProgramError::system("make a directory"))?;
        Ok(Self(path))
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // Remains of the directory do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates files of a size and deletes them; measures both separately.
fn make_and_delete(length: Duration, directory: &Path, kib: usize) -> Result<(), ProgramError> {
    let content = vec![1; kib << 10];
    let paths: Vec<PathBuf> = (0..FILES).map(|n| directory.join(n.to_string())).collect();
    let make = || {
        paths.iter().try_for_each(|path| {
            let mut file = File::create(path).map_err(ProgramError::system("make a file"))?;
            file.write_all(&content).map_err(ProgramError::system("write a file"))
        })
    };
    let delete = || {
        paths.iter().try_for_each(|path| fs::remove_file(path).map_err(ProgramError::system("delete a file")))
    };
    let timed = |what: &dyn Fn() -> Result<(), ProgramError>| {
        let start = since_boot();
        what()?;
        Ok(since_boot() - start)
    };
    let made = least_of(length, || {
        let time = timed(&make)?;
        delete()?;
        Ok(time)
    })?;
    let deleted = least_of(length, || {
        make()?;
        timed(&delete)
    })?;
    print(&format!("create_{kib}k"), made / f64::from(FILES));
    print(&format!("delete_{kib}k"), deleted / f64::from(FILES));
    Ok(())
}

fn map(file: &File) -> Result<NonNull<libc::c_void>, ProgramError> {
    let length = NonZero::new(SIZE).ok_or_else(|| ProgramError::Usage("an empty mapping".into()))?;
    // SAFETY: the kernel chooses the address; nothing else is there.
    let mapped = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0) };
    mapped.map_err(ProgramError::system("map a file"))
}

fn unmap(at: NonNull<libc::c_void>) -> Result<(), ProgramError> {
    // SAFETY: a whole mapping of `map`, without remaining references.
    unsafe { munmap(at, SIZE) }.map_err(ProgramError::system("unmap a file"))
}

/// Reads a byte of each of the mapping's pages that are `stride` apart.
fn touch(at: NonNull<libc::c_void>, stride: usize) {
    for offset in (0..SIZE).step_by(stride) {
        // SAFETY: within the readable mapping of a file of this size.
        std::hint::black_box(unsafe { at.cast::<u8>().add(offset).read_volatile() });
    }
}

/// Returns the number of page faults without I/O of this process so far.
fn faults() -> Result<i64, ProgramError> {
    let usage =
        getrusage(UsageWho::RUSAGE_SELF).map_err(ProgramError::system("ask for the resource usage"))?;
    Ok(usage.minor_page_faults())
}

/// Page whose protection is violated, and the number of violations left.
static PAGE_AT: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Lets the refused write be tried again; only the last attempt succeeds.
extern "C" fn on_fault(_: libc::c_int) {
    if LEFT.fetch_sub(1, Ordering::Relaxed) == 1
        && let Some(page) = NonNull::new(PAGE_AT.load(Ordering::Relaxed))
    {
        // SAFETY: a separate page that stays mapped. If this fails, the next write ends the program late,
        // when LEFT wraps.
        let _ = unsafe { mprotect(page, PAGE, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) };
    }
}

/// Measures a write to a read-only page, with the signal and its handler.
fn protection_fault(length: Duration) -> Result<f64, ProgramError> {
    let size = NonZero::new(PAGE).ok_or_else(|| ProgramError::Usage("an empty mapping".into()))?;
    // SAFETY: the kernel chooses the address; nothing else is there.
    let page = unsafe { mmap_anonymous(None, size, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE) };
    let page = page.map_err(ProgramError::system("map a page"))?;
    PAGE_AT.store(page.as_ptr(), Ordering::Relaxed);
    let action = SigAction::new(SigHandler::Handler(on_fault), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler uses atomics and makes one system call.
    let before =
        unsafe { sigaction(Signal::SIGSEGV, &action) }.map_err(ProgramError::system("handle SIGSEGV"))?;
    let round = least(length, || {
        // SAFETY: the mapping of one page.
        unsafe { mprotect(page, PAGE, ProtFlags::PROT_READ) }
            .map_err(ProgramError::system("protect a page"))?;
        LEFT.store(CALLS, Ordering::Relaxed);
        // SAFETY: the page is mapped. The write to the read-only page is the subject of the measurement, and
        // the handler deals with it.
        unsafe { page.cast::<u8>().write_volatile(1) };
        Ok(())
    })?;
    // SAFETY: restores the previous handler.
    unsafe { sigaction(Signal::SIGSEGV, &before) }.map_err(ProgramError::system("handle SIGSEGV"))?;
    Ok(round / f64::from(CALLS))
}

/// Returns the sum of the words of a block, so that the bytes are read from memory as well.
fn sum(block: &[u8]) -> u64 {
    block
        .chunks_exact(8)
        .fold(0, |sum, word| sum.wrapping_add(word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))))
}

/// Reads the open file from its start to its end.
fn read_all(file: &mut File, block: &mut [u8]) -> Result<(), ProgramError> {
    file.seek(SeekFrom::Start(0)).map_err(ProgramError::system("read a file"))?;
    loop {
        match file.read(block).map_err(ProgramError::system("read a file"))? {
            0 => return Ok(()),
            count => drop(std::hint::black_box(sum(block.get(..count).unwrap_or_default()))),
        }
    }
}

fn sum_mapped(at: NonNull<libc::c_void>) {
    // SAFETY: the whole mapping, which may be read; nobody changes the file.
    std::hint::black_box(sum(unsafe { std::slice::from_raw_parts(at.cast::<u8>().as_ptr(), SIZE) }));
}

pub fn measure(length: Duration) -> Result<(), ProgramError> {
    let scratch = ScratchDirectory::new()?;
    for kib in SIZES {
        make_and_delete(length, &scratch.0, kib)?;
    }
    let path = scratch.0.join("mapped");
    fs::write(&path, vec![1; SIZE]).map_err(ProgramError::system("write a file"))?;
    let open = || File::open(&path).map_err(ProgramError::system("open a file"));
    let mut file = open()?;
    let mapping = least(length, || {
        let at = map(&file)?;
        touch(at, STRIDE);
        unmap(at)
    })?;
    print("mmap", mapping);
    print("protection_fault", protection_fault(length)?);

    // The kernel maps some pages around each touched one, so faults are counted instead of pages.
    let (mut rounds, before) = (0.0, faults()?);
    let touched = least_of(length, || {
        let at = map(&file)?;
        let start = since_boot();
        touch(at, PAGE);
        let time = since_boot() - start;
        rounds += 1.0;
        unmap(at)?;
        Ok(time)
    })?;
    print("page_fault", touched * rounds / (faults()? - before) as f64);

    let mut block = vec![0; 64 << 10];
    print_rate("reread", SIZE, least(length, || read_all(&mut file, &mut block))?);
    let opened = least(length, || read_all(&mut open()?, &mut block))?;
    print_rate("open_reread", SIZE, opened);
    let at = map(&file)?;
    let mapped = least(length, || {
        sum_mapped(at);
        Ok(())
    })?;
    unmap(at)?;
    print_rate("mmap_reread", SIZE, mapped);
    let opened = least(length, || {
        let at = map(&open()?)?;
        sum_mapped(at);
        unmap(at)
    })?;
    print_rate("mmap_open_reread", SIZE, opened);
    Ok(())
}
