//! Kernel files: what they are, and how they are put into memory.

use crate::input::files;

/// Memory of the machine: enough for a small kernel.
const MEMORY: usize = 64 << 20;

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![testkit::bz_image(512), files::vmlinux(), files::efi()]
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let good = vmm::check_kernel(bytes).is_ok();
    // The tail is the initrd; its length gives its start.
    let initrd = bytes.get(bytes.len() / 2..).filter(|_| bytes.len().is_multiple_of(3)).map(<[u8]>::to_vec);
    let cmdline = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
    let loaded = vmm::fuzz::load(bytes.to_vec(), initrd, cmdline, MEMORY);
    assert!(good || !loaded, "only a kernel is loaded");
}
