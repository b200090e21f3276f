//! Processes of tests.

use std::ops::{Deref, DerefMut};
use std::process::Child;

/// A process that is killed, and waited for, when this is dropped.
#[derive(Debug)]
pub struct OwnProcess(pub Child);

impl Deref for OwnProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for OwnProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Returns how much of this process's mapping with an address is in its page tables, KB
/// (proc_pid_smaps(5)).
///
/// # Panics
/// There is no such mapping.
#[must_use]
pub fn resident_kb(address: usize) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("the list of mappings");
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(number(from)?..number(to)?)
    };
    let after = text.lines().skip_while(|line| !range(line).is_some_and(|range| range.contains(&address)));
    let resident = after.filter_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")).next();
    resident.and_then(|kb| kb.parse().ok()).expect("a mapping with this address")
}
