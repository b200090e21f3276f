//! `latency`: what a system call and a switch between processes cost, measured as lmbench's `lat_syscall null` and
//! `lat_ctx` do (L. McVoy and C. Staelin, *lmbench: Portable Tools for Performance Analysis*, USENIX 1996, sections 6.3
//! and 6.6).
//!
//! A token goes round a ring of processes through pipes. What reading and writing it costs without a switch is
//! measured in a single process, through as many pipes, and subtracted.

use std::cell::Cell;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::ExitCode;
use std::time::Duration;

use guest_programs::{Args, Error, fork_child, main_with, pin, seconds, since_boot, wait_for};

const USAGE: &str = "latency [--processes N,N,...] [--seconds N] [--cpu N]
measures, each for N seconds (0.5) on one CPU, a null system call, and a switch in rings of N processes (2 to 64);
prints each in ns, the least of ten means";

/// Rings of the usual tables.
const RINGS: &str = "2,4,8,16,32,64";
/// Between two looks at the clock.
const CALLS: u32 = 64;

/// Parts that each measurement is divided into; the least of their means counts, as in lmbench, so that what else
/// goes on disturbs it little.
const PARTS: u32 = 10;

/// One round of something takes this long on average.
fn mean(length: Duration, mut round: impl FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
    let mut least = Duration::MAX;
    for _ in 0..PARTS {
        let start = since_boot();
        let mut rounds = 0u32;
        let part = loop {
            round()?;
            rounds = rounds.saturating_add(1);
            let gone = since_boot() - start;
            if gone >= length / PARTS {
                break gone / rounds;
            }
        };
        least = least.min(part);
    }
    Ok(least)
}

fn null_call(length: Duration) -> Result<Duration, Error> {
    let calls = mean(length, || {
        for _ in 0..CALLS {
            std::hint::black_box(nix::unistd::getppid());
        }
        Ok(())
    })?;
    Ok(calls / CALLS)
}

fn pipes(count: usize) -> Result<Vec<(PipeReader, PipeWriter)>, Error> {
    (0..count).map(|_| pipe().map_err(Error::system("make a pipe"))).collect()
}

fn send(mut pipe: &PipeWriter) -> Result<(), Error> {
    pipe.write_all(&[1; 4]).map_err(Error::system("write to a pipe"))
}

/// `false` at the end, when nobody writes any more.
fn receive(mut pipe: &PipeReader) -> Result<bool, Error> {
    let mut token = [0; 4];
    match pipe.read_exact(&mut token) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(Error::system("read from a pipe")(error)),
    }
}

/// Passing a token through a pipe costs this without a switch.
fn handing_over(count: usize, length: Duration) -> Result<Duration, Error> {
    let pipes = pipes(count)?;
    let round = mean(length, || {
        pipes.iter().try_for_each(|(reader, writer)| {
            send(writer)?;
            receive(reader).map(drop)
        })
    })?;
    Ok(round / divisor(count))
}

fn divisor(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Process `index` hands what comes from its pipe to the next one.
fn pass_on(pipes: Vec<(PipeReader, PipeWriter)>, index: usize) -> Result<(), Error> {
    let next = (index + 1) % pipes.len();
    let (mut from, mut to) = (None, None);
    // All other ends are closed, so that the end of the first process is the end of all, one after the other.
    for (at, (reader, writer)) in pipes.into_iter().enumerate() {
        if at == index {
            from = Some(reader);
        }
        if at == next {
            to = Some(writer);
        }
    }
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    while receive(&from)? {
        send(&to)?;
    }
    Ok(())
}

/// A token's way from one process to the next in a ring takes this long, switch and all.
fn ring(count: usize, length: Duration) -> Result<Duration, Error> {
    // A child takes what it inherits; the parent still has all of it then.
    let pipes = Cell::new(pipes(count)?);
    let children: Vec<_> =
        (1..count).map(|index| fork_child(|| pass_on(pipes.take(), index))).collect::<Result<_, _>>()?;
    let mut ends = pipes.take().into_iter();
    let (Some((from, _)), Some((_, to))) = (ends.next(), ends.next()) else {
        return Err(Error::Usage("--processes: a ring has at least two".into()));
    };
    drop(ends);
    let round = mean(length, || {
        send(&to)?;
        receive(&from).map(drop)
    })?;
    drop((from, to));
    children.into_iter().try_for_each(wait_for)?;
    Ok(round / divisor(count))
}

fn run(args: &Args) -> Result<(), Error> {
    pin(args.number("cpu")?.unwrap_or(0))?;
    let length = seconds(args, 0.5)?;
    let text = args.text("processes").unwrap_or(RINGS);
    let rings: Option<Vec<usize>> =
        text.split(',').map(|n| n.parse().ok().filter(|n| (2..=256).contains(n))).collect();
    let Some(rings) = rings else {
        return Err(Error::Usage(format!("--processes {text}: rings of 2 to 256 are known")));
    };
    println!("null call {} ns", null_call(length)?.as_nanos());
    for count in rings {
        let handing_over = handing_over(count, length / 4)?;
        let switch = ring(count, length)?.saturating_sub(handing_over);
        println!("switch of {count} {} ns, handing over {} ns", switch.as_nanos(), handing_over.as_nanos());
    }
    Ok(())
}

fn main() -> ExitCode {
    main_with(USAGE, &["processes", "seconds", "cpu"], run)
}
