//! `hostile`: what a program can do to make a profile of its guest large, or wrong.

use std::arch::naked_asm;
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{ProgramArgs, ProgramError, burn, fork_child, main_with, seconds, since_boot};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{OutputFlags, SetArg, tcgetattr, tcsetattr};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv};

const USAGE: &str = "hostile --what console|stacks|tasks|processes|mappings [--seconds N]
for N seconds (60): writes empty lines, spins on false stacks, has tasks with false names, starts processes that end at
once, or maps and unmaps files";

/// This program, which `processes` starts again.
const SELF: &str = "/proc/self/exe";
/// Newlines of one write: what a terminal passes on at once (`tty_write`, drivers/tty/tty_io.c, Linux 6.1).
const LINES: usize = 2 << 10;
/// Frames of a false stack: vprof copies 40 KiB.
const FRAMES: usize = 2_560;
/// Tasks at once.
const TASKS: usize = 200;
/// Mappings at once.
const MAPPINGS: usize = 4_000;
const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Numbers without a pattern (xorshift64; Marsaglia, 2003).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn console(deadline: Duration) -> Result<(), ProgramError> {
    let mut output = io::stdout();
    if output.is_terminal() {
        // Otherwise the terminal passes each line on by itself.
        let mut settings =
            tcgetattr(&output).map_err(ProgramError::system("read the terminal's settings"))?;
        settings.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&output, SetArg::TCSANOW, &settings)
            .map_err(ProgramError::system("change the terminal's settings"))?;
    }
    let lines = [b'\n'; LINES];
    while since_boot() < deadline {
        output.write_all(&lines).map_err(ProgramError::system("write to the console"))?;
    }
    Ok(())
}

/// Spins for ever on the stack at RDI, with a chain of frame pointers from its first word on, and writes
/// return addresses without a pattern, from RDX on, into its frames. RSI is the first number. Has no unwind
/// table, and never returns: following its instructions leads nowhere.
#[unsafe(naked)]
unsafe extern "C" fn spin_on(stack: *mut [u64; 2], number: u64, code: u64) -> ! {
    naked_asm!(
        "mov rsp, rdi",
        "mov rbp, rdi",
        "2: mov rcx, rsi",
        "shl rcx, 13",
        "xor rsi, rcx",
        "mov rcx, rsi",
        "shr rcx, 7",
        "xor rsi, rcx",
        "mov rcx, rsi",
        "shl rcx, 17",
        "xor rsi, rcx",
        // One of 2,048 frames, and an address in 256 KiB of code.
        "mov ecx, esi",
        "and ecx, 2047",
        "shl ecx, 4",
        "mov rax, rsi",
        "shr rax, 46",
        "add rax, rdx",
        "mov [rsp + rcx + 8], rax",
        "jmp 2b",
    )
}

fn stacks(deadline: Duration) -> Result<(), ProgramError> {
    let mut numbers = Numbers(88_172_645_463_325_252);
    while since_boot() < deadline {
        let number = numbers.next();
        let child = fork_child(|| {
            let mut frames = vec![[0_u64; 2]; FRAMES];
            let base = frames.as_mut_ptr();
            for (place, frame) in frames.iter_mut().enumerate() {
                let next = if place + 1 < FRAMES { base.wrapping_add(place + 1).addr() } else { 0 };
                *frame = [next as u64, main as *const () as u64];
            }
            // SAFETY: the frames are writable and are not freed, since the function does not return. Nothing
            // of Rust runs after it.
            unsafe { spin_on(base, number, main as *const () as u64 & !0xfff) }
        })?;
        std::thread::sleep(Duration::from_millis(50));
        // Both fail only for a child that is gone.
        let _gone = kill(child, Signal::SIGKILL).and_then(|()| waitpid(child, None).map(drop));
    }
    Ok(())
}

/// Changes its name again and again, to names that mean something to others.
fn rename(deadline: Duration, number: u64) -> Result<(), ProgramError> {
    let mut numbers = Numbers(number | 1);
    while since_boot() < deadline {
        let number = numbers.next();
        let bytes = match number % 5 {
            0 => format!("=A1+{number:x}"),
            1 => format!("\x1b[2J{number:x}"),
            2 => format!("kworker/{number:x}"),
            3 => format!("\u{202e}{number:x}"),
            _ => format!("[{number:x}];\r\n"),
        };
        let name = CString::new(bytes).map_err(|_| ProgramError::Usage("a name cannot hold a NUL".into()))?;
        prctl::set_name(&name).map_err(ProgramError::system("set the process name"))?;
        numbers.0 = burn(20_000, number);
    }
    Ok(())
}

/// Has many tasks at once that rename themselves, and as many that have ended and that nobody waits for.
fn tasks(deadline: Duration) -> Result<(), ProgramError> {
    let mut children = Vec::new();
    for number in 0..TASKS as u64 {
        children.push(fork_child(|| rename(deadline, number))?);
        children.push(fork_child(|| Ok(()))?);
    }
    children.into_iter().try_for_each(guest_programs::wait_for)
}

fn processes(deadline: Duration) -> Result<(), ProgramError> {
    let mut living: VecDeque<Pid> = VecDeque::new();
    let words = [SELF, "--what", "console", "--seconds", "0"].map(CString::new);
    let words: Vec<CString> = words
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|_| ProgramError::Usage("a word cannot hold a NUL".into()))?;
    let mut started = 0_u64;
    while since_boot() < deadline {
        // Every other one is another program.
        let runs = started.is_multiple_of(2);
        started += 1;
        living.push_back(fork_child(|| {
            if runs {
                execv(&words[0], &words).map_err(ProgramError::system("run this program again"))?;
            }
            Ok(())
        })?);
        if living.len() > 16
            && let Some(oldest) = living.pop_front()
        {
            guest_programs::wait_for(oldest)?;
        }
    }
    living.into_iter().try_for_each(guest_programs::wait_for)
}

fn mappings(deadline: Duration) -> Result<(), ProgramError> {
    let own = File::open("/proc/self/exe").map_err(ProgramError::system("open this program"))?;
    let mut numbers = Numbers(362_436_069);
    let mut mapped = VecDeque::new();
    while since_boot() < deadline {
        let access = match numbers.next() % 3 {
            0 => ProtFlags::PROT_READ,
            1 => ProtFlags::PROT_READ | ProtFlags::PROT_EXEC,
            _ => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new private mapping, at an address that the kernel chooses.
        let at = unsafe { mmap(None, PAGE, access, MapFlags::MAP_PRIVATE, &own, 0) };
        mapped.push_back(at.map_err(ProgramError::system("map this program"))?);
        if mapped.len() > MAPPINGS
            && let Some(oldest) = mapped.pop_front()
        {
            // SAFETY: the mapping is this loop's, and nothing refers to it.
            unsafe { munmap(oldest, PAGE.get()) }.map_err(ProgramError::system("unmap this program"))?;
        }
    }
    Ok(())
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let deadline = since_boot() + seconds(args, 60.0)?;
    match args.text("what") {
        Some("console") => console(deadline),
        Some("stacks") => stacks(deadline),
        Some("tasks") => tasks(deadline),
        Some("processes") => processes(deadline),
        Some("mappings") => mappings(deadline),
        _ => Err(ProgramError::Usage("--what is console, stacks, tasks, processes or mappings".into())),
    }
}

fn main() -> ExitCode {
    main_with(USAGE, &["what", "seconds"], run)
}
