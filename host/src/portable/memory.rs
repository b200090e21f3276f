//! Memory of this machine, compared with what a guest wants.

use super::PortableError;

/// Checks that there is enough memory: the portable host finds out about too little only by being killed.
///
/// # Errors
/// There is too little.
pub fn check(asked: u64) -> Result<(), PortableError> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match host_memory(&text) {
        Some(have) if asked > have => Err(PortableError::Memory { asked, have }),
        _ => Ok(()),
    }
}

/// RAM and swap by `/proc/meminfo`, bytes.
fn host_memory(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find(|l| l.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    kib("MemTotal:")?.checked_add(kib("SwapTotal:").unwrap_or(0))?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_memory_is_ram_and_swap() {
        let text = "MemTotal:       1000 kB\nMemFree: 10 kB\nSwapTotal:  24 kB\n";
        assert_eq!(host_memory(text), Some(1_048_576));
        assert_eq!(host_memory("nonsense"), None);
        assert!(host_memory(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap() > 1 << 20);
    }
}
