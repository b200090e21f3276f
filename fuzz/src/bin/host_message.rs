//! The fuzz target `host_message` under libFuzzer.

#![no_main]

use fuzz_targets::{host_message, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(host_message::seeds), |bytes: &[u8]| host_message::test_one_input(bytes));
