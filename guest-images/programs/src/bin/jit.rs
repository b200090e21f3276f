//! `jit`: a process that runs code which it has written into memory. The names for profilers are in
//! `/tmp/perf-PID.map` (tools/perf/Documentation/jit-interface.txt): lines of `START SIZE NAME`, hexadecimal.
//!
//! ```text
//! main -> run_compiled -> jit_outer -> jit_inner      the last two in anonymous memory, with frame pointers
//! ```

use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use guest_programs::{ProgramArgs, ProgramError, main_with, seconds, since_boot, thread_cpu};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect};

const USAGE: &str = "jit [--seconds N]
writes jit_outer and jit_inner into memory, names them in /tmp/perf-PID.map and runs them for N seconds (10); prints
their addresses and the CPU time";

/// Code of a function that counts its argument down: `push rbp; mov rbp, rsp; L: dec rdi; jnz L; pop rbp;
/// ret`.
const INNER: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3];
/// Code of a function that calls `INNER`: `push rbp; mov rbp, rsp; call INNER; pop rbp; ret`. The distance is
/// written later.
const OUTER: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0x5d, 0xc3];
/// Offset of the distance in [`OUTER`], and the offset that the distance is relative to.
const DISTANCE: std::ops::Range<usize> = 5..9;
/// Offset of `INNER` in the mapping; `OUTER` is at its start.
const INNER_AT: usize = 64;
/// One page holds both.
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Argument of one call, which counts down between two readings of the clock.
const COUNT: u64 = 1_000_000;

type CompiledFunction = extern "C" fn(u64);

/// Maps a page, writes both functions, and makes them executable. The page stays as long as the process.
fn compile() -> Result<(CompiledFunction, usize), ProgramError> {
    let mut code = [0; 4096];
    code[..OUTER.len()].copy_from_slice(OUTER);
    let distance = u8::try_from(INNER_AT - DISTANCE.end).unwrap_or(0);
    code[DISTANCE.start] = distance;
    code[INNER_AT..INNER_AT + INNER.len()].copy_from_slice(INNER);
    let writable = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new private mapping, at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(None, PAGE, writable, MapFlags::MAP_PRIVATE) }
        .map_err(ProgramError::system("map memory"))?;
    // SAFETY: the page was just mapped writable, is 4096 bytes long, and nobody else knows it.
    unsafe { page.cast::<[u8; 4096]>().write(code) };
    // SAFETY: no Rust object is in the page.
    unsafe { mprotect(page, PAGE.get(), ProtFlags::PROT_READ | ProtFlags::PROT_EXEC) }
        .map_err(ProgramError::system("make memory executable"))?;
    let start = page.addr().get();
    // SAFETY: the bytes at the start of the page are a function of this type: it takes a number in RDI,
    // changes nothing but RDI and flags, keeps RBP and returns. The page is never unmapped.
    let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, CompiledFunction>(page.as_ptr()) };
    Ok((function, start))
}

/// Returns the lines of the map file.
fn map(start: usize) -> String {
    let mut text = String::new();
    for (name, at, code) in [("jit_outer", start, OUTER), ("jit_inner", start + INNER_AT, INNER)] {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{at:x} {:x} {name}", code.len());
    }
    text
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn run_compiled(function: CompiledFunction) {
    function(COUNT);
    std::hint::black_box("run_compiled");
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let deadline = since_boot() + seconds(args, 10.0)?;
    let (function, start) = compile()?;
    fs::write(format!("/tmp/perf-{}.map", std::process::id()), map(start))
        .map_err(ProgramError::system("write the map in /tmp"))?;
    while since_boot() < deadline {
        run_compiled(function);
    }
    print!("{}", map(start));
    println!("jit_inner used {:.6} s", thread_cpu().as_secs_f64());
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds"], run)
}
