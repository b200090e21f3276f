//! A kernel file, written by code.

/// Returns a bzImage of 64-bit Linux with a setup of 2.5 KiB and `payload` bytes of kernel, all zeros, that
/// is loaded at 16 MiB (Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header"): enough to pass for a
/// kernel until it is booted.
///
/// # Panics
/// The payload is larger than the header can express.
pub fn bz_image(payload: usize) -> Vec<u8> {
    let mut file = vec![0; 5 * 512 + payload];
    let paragraphs = u32::try_from(payload.div_ceil(16)).expect("a small kernel");
    let fields: [(usize, &[u8]); 12] = [
        // setup_sects, syssize, boot_flag, header, version, loadflags
        (0x1f1, &[4]),
        (0x1f4, &paragraphs.to_le_bytes()),
        (0x1fe, &[0x55, 0xaa]),
        (0x202, b"HdrS"),
        (0x206, &[0x0f, 0x02]),
        (0x211, &[1]),
        // initrd_addr_max, kernel_alignment, xloadflags, cmdline_size, pref_address, init_size
        (0x22c, &[0xff, 0xff, 0xff, 0x7f]),
        (0x230, &[0, 0, 0x20, 0]),
        (0x236, &[1, 0]),
        (0x238, &[0xff, 0x07, 0, 0]),
        (0x258, &[0, 0, 0, 1]),
        (0x260, &[0, 0, 0x10, 0]),
    ];
    for (at, bytes) in fields {
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
    file
}
