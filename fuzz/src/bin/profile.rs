//! The fuzz target `profile` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(profile::seeds), |bytes: &[u8]| profile::test_one_input(bytes));
