//! The fuzz target `dwarf` under libFuzzer.

#![no_main]

use fuzz_targets::{dwarf, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(dwarf::seeds), |bytes: &[u8]| dwarf::test_one_input(bytes));
