//! Checks a kernel before a host is started for it.

use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;

use super::ImageError;

/// Where x86-64 kernels are linked to: `__START_KERNEL_map` of arch/x86/include/asm/page_64_types.h (Linux 6.1).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Checks that the bytes are a whole 64-bit x86 kernel: bzImage or ELF vmlinux.
pub fn check(kernel: &[u8], path: &Path) -> Result<(), ImageError> {
    vmm::check_kernel(kernel)
        .map_err(|reason| ImageError::Kernel { path: path.to_owned(), reason: reason.to_string() })?;
    // An ordinary static program has all that a vmlinux has, but for its addresses.
    match Elf::parse(kernel) {
        Ok(elf) if !elf.program_headers.iter().any(|p| p.p_type == PT_LOAD && p.p_vaddr >= KERNEL_MAP) => {
            Err(ImageError::Kernel {
                path: path.to_owned(),
                reason: "this is a program, not a kernel".to_owned(),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::test_files::{bzimage, elf};

    fn sentence(kernel: &[u8]) -> String {
        check(kernel, Path::new("k")).unwrap_err().to_string()
    }

    #[test]
    fn whole_kernels_pass() {
        check(&bzimage(100_000), Path::new("k")).unwrap();
        check(&elf(0xffff_ffff_8100_0000), Path::new("k")).unwrap();
    }

    #[test]
    fn what_is_wrong_is_said_of_the_file() {
        let kernel = bzimage(100_000);
        assert!(sentence(&kernel[..50_000]).starts_with("k: the kernel file is cut off"));
        assert_eq!(sentence(&elf(0x40_0000)), "k: this is a program, not a kernel");
        assert!(sentence(b"hello").starts_with("k: "));
    }
}
