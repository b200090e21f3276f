//! The fuzz target `go` under libFuzzer.

#![no_main]

use fuzz_targets::{go, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(go::seeds), |bytes: &[u8]| go::test_one_input(bytes));
