//! The fuzz target `processes` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, processes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(processes::seeds), |bytes: &[u8]| processes::test_one_input(bytes));
