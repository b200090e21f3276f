//! The fuzz target `kernel_stack` under libFuzzer.

#![no_main]

use fuzz_targets::{kernel_stack, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(kernel_stack::seeds), |bytes: &[u8]| kernel_stack::test_one_input(bytes));
