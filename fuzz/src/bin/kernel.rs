//! The fuzz target `kernel` under libFuzzer.

#![no_main]

use fuzz_targets::{kernel, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(kernel::seeds), |bytes: &[u8]| kernel::test_one_input(bytes));
