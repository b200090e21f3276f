//! The fuzz target `tables` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, tables};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(tables::seeds), |bytes: &[u8]| tables::test_one_input(bytes));
