//! The fuzz target `accounting` under libFuzzer.

#![no_main]

use fuzz_targets::{accounting, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(accounting::seeds), |bytes: &[u8]| accounting::test_one_input(bytes));
