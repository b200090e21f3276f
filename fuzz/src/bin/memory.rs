//! The fuzz target `memory` under libFuzzer.

#![no_main]

use fuzz_targets::{memory, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(memory::seeds), |bytes: &[u8]| memory::test_one_input(bytes));
