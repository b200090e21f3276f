//! The fuzz target `control` under libFuzzer.

#![no_main]

use fuzz_targets::{control, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(control::seeds), |bytes: &[u8]| control::test_one_input(bytes));
