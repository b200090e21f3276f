//! Switches between processes: lmbench's `lat_ctx`.
//!
//! A token goes round a ring of processes through pipes. Each process with the token sums its own array. The
//! cost of reading and writing the token and of summing, without a switch, is measured in a single process
//! with as many pipes and arrays, and subtracted.

use std::cell::Cell;
use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::time::Duration;

use guest_programs::{ProgramError, fork_child, wait_for};

use crate::measure::{least, print};

/// Sizes of the arrays of the usual tables, KiB.
const SIZES: [usize; 6] = [0, 4, 8, 16, 32, 64];

fn array(kib: usize) -> Vec<u64> {
    vec![1; kib << 7]
}

fn sum(array: &[u64]) {
    black_box(array.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
}

fn pipes(count: usize) -> Result<Vec<(PipeReader, PipeWriter)>, ProgramError> {
    (0..count).map(|_| pipe().map_err(ProgramError::system("make a pipe"))).collect()
}

fn send(mut pipe: &PipeWriter) -> Result<(), ProgramError> {
    pipe.write_all(&[1; 4]).map_err(ProgramError::system("write to a pipe"))
}

/// Reads the token; `false` at the end, when the writer is gone.
fn receive(mut pipe: &PipeReader) -> Result<bool, ProgramError> {
    let mut token = [0; 4];
    match pipe.read_exact(&mut token) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(ProgramError::system("read from a pipe")(error)),
    }
}

/// Measures passing a token through a pipe and summing an array without a switch, ns.
fn handing_over(count: usize, kib: usize, length: Duration) -> Result<f64, ProgramError> {
    let (pipes, arrays) = (pipes(count)?, vec![array(kib); count]);
    let round = least(length, || {
        pipes.iter().zip(&arrays).try_for_each(|((reader, writer), array)| {
            send(writer)?;
            receive(reader)?;
            sum(array);
            Ok(())
        })
    })?;
    Ok(round / count as f64)
}

/// Runs process `index`, which passes the token from its pipe to the next one.
fn pass_on(pipes: Vec<(PipeReader, PipeWriter)>, index: usize, kib: usize) -> Result<(), ProgramError> {
    let next = (index + 1) % pipes.len();
    let (mut from, mut to) = (None, None);
    // All other ends are closed, so that the exit of the first process ends all others, one after the other.
    for (at, (reader, writer)) in pipes.into_iter().enumerate() {
        if at == index {
            from = Some(reader);
        }
        if at == next {
            to = Some(writer);
        }
    }
    let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
    let array = array(kib);
    while receive(&from)? {
        sum(&array);
        send(&to)?;
    }
    Ok(())
}

/// Measures the time of a token from one process to the next in a ring, with the switch, ns.
fn ring(count: usize, kib: usize, length: Duration) -> Result<f64, ProgramError> {
    // Each child uses its inherited pipes, and the parent still has all of them.
    let pipes = Cell::new(pipes(count)?);
    let children: Vec<_> =
        (1..count).map(|index| fork_child(|| pass_on(pipes.take(), index, kib))).collect::<Result<_, _>>()?;
    let mut ends = pipes.take().into_iter();
    let (Some((from, _)), Some((_, to))) = (ends.next(), ends.next()) else {
        return Err(ProgramError::Usage("--processes: a ring has at least two".into()));
    };
    drop(ends);
    let array = array(kib);
    let round = least(length, || {
        send(&to)?;
        receive(&from)?;
        sum(&array);
        Ok(())
    })?;
    drop((from, to));
    children.into_iter().try_for_each(wait_for)?;
    Ok(round / count as f64)
}

pub fn measure(length: Duration, rings: &[usize]) -> Result<(), ProgramError> {
    for kib in SIZES {
        for &count in rings {
            let handing_over = handing_over(count, kib, length / 4)?;
            print(&format!("switch_{kib}k_{count}"), ring(count, kib, length)? - handing_over);
        }
    }
    Ok(())
}
