//! The fuzz target `journal` under libFuzzer.

#![no_main]

use fuzz_targets::{journal, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(journal::seeds), |bytes: &[u8]| journal::test_one_input(bytes));
