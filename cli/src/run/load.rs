//! Threads that do nothing but use the host's CPUs, beside a guest: how tests make a host busy, in the portable host as
//! well.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub struct HostLoad {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl HostLoad {
    /// Starts so many threads.
    pub fn start(count: u8) -> io::Result<Self> {
        let mut load = Self { over: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let over = Arc::clone(&load.over);
            let spin = move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            load.threads.push(std::thread::Builder::new().name("load".to_owned()).spawn(spin)?);
        }
        Ok(load)
    }
}

impl Drop for HostLoad {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_ends_with_its_owner() {
        let load = HostLoad::start(2).unwrap();
        let over = Arc::clone(&load.over);
        assert_eq!((load.threads.len(), Arc::strong_count(&over)), (2, 4));
        drop(load);
        assert_eq!(Arc::strong_count(&over), 1);
    }
}
