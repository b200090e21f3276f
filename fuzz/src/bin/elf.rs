//! The fuzz target `elf` under libFuzzer.

#![no_main]

use fuzz_targets::{elf, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(elf::seeds), |bytes: &[u8]| elf::test_one_input(bytes));
