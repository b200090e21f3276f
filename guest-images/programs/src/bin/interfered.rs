//! `interfered`: an infinite loop that writes down its CPU time four times a second, on a CPU that has to
//! serve other people's packets for a while: figure 2 of S. McCanne and C. Torek, *A Randomized Sampling
//! Clock for CPU Utilization Estimation and Code Profiling* (USENIX Winter 1993).
//!
//! The paper's interrupts came from a network in promiscuous mode. Here a child on CPU 1 sends datagrams over
//! the loopback device to a socket that nobody reads, and the kernel is set to receive them on CPU 0 (receive
//! packet steering): an interrupt from CPU 1 raises the soft interrupt NET_RX there.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{
    ProgramArgs, ProgramError, burn, fork_child, main_with, pin, process_times, raise_loopback, seconds,
    set_name, since_boot, wait_for,
};

const USAGE: &str = "interfered [--seconds N]
loops on CPU 0 for N seconds (9); in the middle third a child on CPU 1 sends datagrams whose soft interrupts CPU 0
serves; prints time, and user and system time by getrusage, every 250 ms, and how many datagrams were sent";

/// Time between two lines of the log.
const EVERY: Duration = Duration::from_millis(250);
/// Rounds of work between two readings of the clock, some 20 us on a 3 GHz CPU.
const ROUNDS: u32 = 20_000;
/// Datagrams between two readings of the clock.
const BURST: u64 = 16;
/// File with the mask of the CPUs that receive packets of the loopback device
/// (Documentation/networking/scaling.rst, RPS).
const STEERING: &str = "/sys/class/net/lo/queues/rx-0/rps_cpus";

/// Sends datagrams to itself between two points in time, and returns their number.
fn storm(from: Duration, to: Duration) -> Result<u64, ProgramError> {
    raise_loopback()?;
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(ProgramError::system("make a socket"))?;
    let port = socket.local_addr().map_err(ProgramError::system("ask for the port"))?.port();
    socket.connect(("127.0.0.1", port)).map_err(ProgramError::system("connect a socket"))?;
    fs::write(STEERING, "1").map_err(ProgramError::system("steer packets to CPU 0"))?;
    pin(1)?;
    let mut sent = 0;
    std::thread::sleep(from.saturating_sub(since_boot()));
    while since_boot() < to {
        for _ in 0..BURST {
            socket.send(&[0; 64]).map_err(ProgramError::system("send a datagram"))?;
        }
        sent += BURST;
    }
    Ok(sent)
}

fn run(args: &ProgramArgs) -> Result<(), ProgramError> {
    let length = seconds(args, 9.0)?;
    println!("interfered starts");
    let start = since_boot();
    let child = fork_child(|| {
        set_name("storm")?;
        let sent = storm(start + length / 3, start + length * 2 / 3)?;
        println!("storm sent {sent} datagrams");
        Ok(())
    })?;
    pin(0)?;
    let (user_before, system_before) = process_times()?;
    let mut text = String::new();
    let (mut due, mut state) = (start, 1);
    while due <= start + length {
        while since_boot() < due {
            state = burn(ROUNDS, state);
        }
        let (user, system) = process_times()?;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "at {:.1} user {:.3} system {:.3}",
            (since_boot() - start).as_secs_f64() * 1e3,
            (user - user_before).as_secs_f64() * 1e3,
            (system - system_before).as_secs_f64() * 1e3
        );
        due += EVERY;
    }
    black_box(state);
    wait_for(child)?;
    print!("{text}");
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["seconds"], run)
}
