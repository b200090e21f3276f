//! The fuzz target `initrd` under libFuzzer.

#![no_main]

use fuzz_targets::{initrd, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(initrd::seeds), |bytes: &[u8]| initrd::test_one_input(bytes));
