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
