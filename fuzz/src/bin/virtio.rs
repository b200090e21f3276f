//! The fuzz target `virtio` under libFuzzer.

#![no_main]

use fuzz_targets::{offer_seeds, virtio};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(virtio::seeds), |bytes: &[u8]| virtio::test_one_input(bytes));
