//! The fuzz target `boot` under libFuzzer.

#![no_main]

use fuzz_targets::{boot, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(boot::seeds), |bytes: &[u8]| boot::test_one_input(bytes));
