//! Inside a guest of `vprof selftest`: this program as init, and as the workloads, which measure themselves.
//!
//! ```text
//! init -> st-shares   half 50 %, third 30 %, fifth 20 % of its CPU time, by its thread's CPU clock
//!      -> st-kernel   a third of that time, nearly all in the kernel
//!      -> st-ping, st-pong   switch to each other through two pipes, and count their context switches
//!      -> st-rounds   as much work as fits into a CPU time
//! ```
//!
//! Each prints lines `selftest KEY VALUE` on the console.

use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::tcdrain;
use serde::{Deserialize, Serialize};

use super::work::{WorkTurns, burn, process_cpu, since_boot, start_child, voluntary_switches, wait_for};

/// File with init's [`GuestLoad`]. A guest with this file is one of the self-test.
pub const LOAD_FILE: &str = "/vprof/selftest";
/// First characters of a console line with a measured value.
pub const MARK: &str = "selftest ";
/// Key of the time that init slept, s.
pub const SLEPT: &str = "slept";
/// Key of the time after that, by the guest's monotonic clock, s.
pub const AWAKE: &str = "awake";
/// Key of the time at which all programs have succeeded, by the same clock: the last line.
pub const DONE: &str = "done";

/// Name of the process that divides its time.
pub const SHARES: &str = "st-shares";
/// Name of the process that works in the kernel.
pub const KERNEL: &str = "st-kernel";
/// Names of the processes that switch to each other.
pub const PLAYERS: [&str; 2] = ["st-ping", "st-pong"];
/// Name of the process that counts its work.
pub const ROUNDS: &str = "st-rounds";
/// Functions of [`SHARES`] with their shares of its time, per cent.
pub const FUNCTIONS: [(&str, u32); 3] = [("half", 50), ("third", 30), ("fifth", 20)];

/// Length of the shortest turn of a function, per per cent of its share.
const SLICE: Duration = Duration::from_micros(400);

/// Workload of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLoad {
    /// Sleep before the work, ms; vprof finds the kernel in this time.
    pub sleep_ms: u64,
    /// CPU time of [`SHARES`], ms; of [`KERNEL`] a third of it.
    pub shares_ms: u64,
    /// Round trips of the switches between [`PLAYERS`].
    pub switches: u32,
    /// CPU time of [`ROUNDS`], ms.
    pub rounds_ms: u64,
}

/// True in the init process of a guest of the self-test.
pub fn is_guest() -> bool {
    std::process::id() == 1 && Path::new(LOAD_FILE).exists()
}

/// Runs the load and turns the machine off; never returns.
pub fn main() -> ! {
    if let Err(error) = work() {
        say("error", error);
    }
    // The output may still be in the serial port's queue; the machine would end before it is printed.
    let _ = tcdrain(io::stdout());
    let _ = reboot(RebootMode::RB_POWER_OFF);
    // A guest without ACPI ends by a reset.
    let _ = reboot(RebootMode::RB_AUTOBOOT);
    loop {
        std::thread::park();
    }
}

#[expect(clippy::print_stdout, reason = "the output of a guest's first process is its console")]
fn say(key: &str, value: impl std::fmt::Display) {
    println!("{MARK}{key} {value}");
}

fn work() -> io::Result<()> {
    prepare_system()?;
    let load: GuestLoad = serde_json::from_slice(&fs::read(LOAD_FILE)?)?;
    let begun = since_boot();
    std::thread::sleep(Duration::from_millis(load.sleep_ms));
    let awake = since_boot();
    say(SLEPT, (awake - begun).as_secs_f64());
    say(AWAKE, awake.as_secs_f64());
    if load.shares_ms > 0 {
        let time = Duration::from_millis(load.shares_ms);
        wait_for(start_child(SHARES, || divide(time))?)?;
        wait_for(start_child(KERNEL, || call_kernel(time / 3))?)?;
    }
    if load.switches > 0 {
        play(load.switches)?;
    }
    if load.rounds_ms > 0 {
        wait_for(start_child(ROUNDS, || count_rounds(Duration::from_millis(load.rounds_ms)))?)?;
    }
    say(DONE, since_boot().as_secs_f64());
    Ok(())
}

fn prepare_system() -> io::Result<()> {
    for (kind, place) in [("proc", "/proc"), ("devtmpfs", "/dev")] {
        // A kernel with CONFIG_DEVTMPFS_MOUNT does not do this for an initramfs.
        mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)?;
    }
    let console = OpenOptions::new().read(true).write(true).open("/dev/console")?;
    nix::unistd::dup2_stdin(console.as_fd())?;
    nix::unistd::dup2_stdout(console.as_fd())?;
    nix::unistd::dup2_stderr(console.as_fd())?;
    Ok(())
}

/// WorkTurns of the three functions.
struct WorkSplit {
    half: WorkTurns,
    third: WorkTurns,
    fifth: WorkTurns,
}

#[inline(never)]
fn half(turns: &mut WorkTurns) {
    turns.take();
    black_box("half");
}

#[inline(never)]
fn third(turns: &mut WorkTurns) {
    turns.take();
    black_box("third");
}

#[inline(never)]
fn fifth(turns: &mut WorkTurns) {
    turns.take();
    black_box("fifth");
}

#[inline(never)]
fn left(half_turns: &mut WorkTurns) {
    half(half_turns);
    // This keeps the call from being a jump, which would leave the function off the stack.
    black_box("left");
}

#[inline(never)]
fn right(third_turns: &mut WorkTurns, fifth_turns: &mut WorkTurns) {
    third(third_turns);
    fifth(fifth_turns);
    black_box("right");
}

/// [`SHARES`].
fn divide(time: Duration) -> io::Result<()> {
    let [half, third, fifth] = FUNCTIONS.map(|(_, percent)| WorkTurns::new(SLICE * percent));
    let mut work = WorkSplit { half, third, fifth };
    while process_cpu() < time {
        left(&mut work.half);
        right(&mut work.third, &mut work.fifth);
    }
    for ((name, _), turns) in FUNCTIONS.iter().zip([work.half, work.third, work.fifth]) {
        say(name, turns.used.as_secs_f64());
    }
    say(SHARES, process_cpu().as_secs_f64());
    Ok(())
}

/// [`KERNEL`].
fn call_kernel(time: Duration) -> io::Result<()> {
    let mut zero = fs::File::open("/dev/zero")?;
    let mut page = vec![0; 256 << 10];
    while process_cpu() < time {
        zero.read_exact(&mut page)?;
    }
    say(KERNEL, process_cpu().as_secs_f64());
    Ok(())
}

/// [`PLAYERS`].
fn play(rounds: u32) -> io::Result<()> {
    let ((from_ping, to_pong), (from_pong, to_ping)) = (io::pipe()?, io::pipe()?);
    let [ping, pong] = PLAYERS;
    let first = start_child(ping, || pass_on(ping, rounds, &from_pong, &to_pong, true))?;
    let second = start_child(pong, || pass_on(pong, rounds, &from_ping, &to_ping, false))?;
    wait_for(first)?;
    wait_for(second)
}

/// Sends a byte and waits for its answer, or the other way round; then prints its own context switches.
fn pass_on(
    name: &str,
    rounds: u32,
    mut from: &io::PipeReader,
    mut to: &io::PipeWriter,
    serves: bool,
) -> io::Result<()> {
    let mut byte = [0];
    for _ in 0..rounds {
        if serves {
            to.write_all(&byte)?;
        }
        from.read_exact(&mut byte)?;
        if !serves {
            to.write_all(&byte)?;
        }
    }
    say(name, voluntary_switches()?);
    Ok(())
}

/// [`ROUNDS`].
fn count_rounds(time: Duration) -> io::Result<()> {
    let (start, mut rounds, mut state) = (since_boot(), 0_u64, 1);
    // Wall time: the time of a sample is not CPU time of the guest.
    while since_boot() - start < time {
        state = burn(state);
        rounds += 1;
    }
    black_box(state);
    let took = (since_boot() - start).as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
    say(ROUNDS, rounds as f64 / took);
    Ok(())
}

/// Parses the values on the console of a guest, by key.
pub fn parse_console(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let (_, pair) = line.split_once(MARK)?;
            let (key, value) = pair.trim_end().split_once(' ')?;
            Some((key.to_owned(), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_among_other_lines() {
        let text =
            "[    0.1] booting\r\nselftest half 1.5\r\n[    2.0] clock: selftest done 2.25\r\nselftest\r\n";
        let pairs = [("half", "1.5"), ("done", "2.25")];
        assert_eq!(parse_console(text), pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn shares_make_a_whole() {
        assert_eq!(FUNCTIONS.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
    }
}
