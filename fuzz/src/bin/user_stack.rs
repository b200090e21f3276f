//! The fuzz target `user_stack` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, user_stack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(user_stack::seeds), |bytes: &[u8]| user_stack::test_one_input(bytes));
