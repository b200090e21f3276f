//! The fuzz target `managed` under libFuzzer.

#![no_main]

use fuzz_targets::{managed, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(managed::seeds), |bytes: &[u8]| managed::test_one_input(bytes));
