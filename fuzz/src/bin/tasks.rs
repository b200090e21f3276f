//! The fuzz target `tasks` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, tasks};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(tasks::seeds), |bytes: &[u8]| tasks::test_one_input(bytes));
