//! The fuzz target `text` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(text::seeds), |bytes: &[u8]| text::test_one_input(bytes));
