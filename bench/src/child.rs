//! Measurements in separate processes, each with its own peak of memory.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

/// Runs `bench WHAT PATH` and reads the numbers that [`report`] printed, the peak of memory last.
pub fn run<const N: usize>(what: &str, path: &Path) -> anyhow::Result<[u64; N]> {
    let output =
        Command::new(std::env::current_exe()?).args([OsStr::new(what), path.as_os_str()]).output()?;
    let text = String::from_utf8(output.stdout)?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|numbers| anyhow::anyhow!("{N} numbers expected: {numbers:?}"))
}

/// Prints numbers for [`run`], and the peak of memory.
pub fn report(numbers: &[u64]) -> anyhow::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    let kib: u64 = line.split_whitespace().nth(1).context("VmHWM has no value")?.parse()?;
    let words: Vec<String> = numbers.iter().chain([&(kib * 1024)]).map(ToString::to_string).collect();
    println!("{}", words.join(" "));
    Ok(())
}
