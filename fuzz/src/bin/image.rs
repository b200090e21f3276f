//! The fuzz target `image` under libFuzzer.

#![no_main]

use fuzz_targets::{image, offer_seeds};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offer_seeds(image::seeds), |bytes: &[u8]| image::test_one_input(bytes));
