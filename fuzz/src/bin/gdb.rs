//! The fuzz target `gdb` under libFuzzer.

#![no_main]

use fuzz_targets::{gdb, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(gdb::seeds), |bytes: &[u8]| gdb::test_one_input(bytes));
