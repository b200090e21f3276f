//! A kernel's file, taken apart and checked before a host is started for it.

use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;

use super::boot::Unified;
use super::{ImageError, initrd_check};

/// Where x86-64 kernels are linked to: `__START_KERNEL_map` of arch/x86/include/asm/page_64_types.h (Linux 6.1).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// What a kernel's file holds: of a unified kernel image more than the kernel.
#[derive(Debug)]
pub struct Parts {
    /// bzImage or ELF vmlinux.
    pub kernel: Vec<u8>,
    /// Its initrds, which the kernel gets one after the other.
    pub initrds: Vec<Vec<u8>>,
    /// Words for its command line; `None` where it has none of its own.
    pub options: Option<String>,
}

/// Takes a file apart and checks what is in it.
pub fn take_apart(file: Vec<u8>, path: &Path) -> Result<Parts, ImageError> {
    let parts = if Unified::is(&file) {
        let unified =
            Unified::of(&file).map_err(|reason| ImageError::Kernel { path: path.to_owned(), reason })?;
        unified.initrds.iter().try_for_each(|archive| initrd_check::check(archive, path))?;
        Parts {
            kernel: unified.kernel.to_vec(),
            initrds: unified.initrds.iter().map(|archive| archive.to_vec()).collect(),
            options: unified.options,
        }
    } else {
        Parts { kernel: file, initrds: Vec::new(), options: None }
    };
    check(&parts.kernel, path)?;
    Ok(parts)
}

/// Checks that the bytes are a whole 64-bit x86 kernel: bzImage or ELF vmlinux.
fn check(kernel: &[u8], path: &Path) -> Result<(), ImageError> {
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
    use crate::boot::unified::tests::pe;
    use testkit::bz_image;

    use crate::test_files::elf;

    fn sentence(kernel: &[u8]) -> String {
        check(kernel, Path::new("k")).unwrap_err().to_string()
    }

    #[test]
    fn whole_kernels_pass() {
        check(&bz_image(100_000), Path::new("k")).unwrap();
        check(&elf(0xffff_ffff_8100_0000), Path::new("k")).unwrap();
    }

    #[test]
    fn a_unified_kernel_image_is_taken_apart() {
        let (kernel, archive) = (bz_image(100_000), crate::cpio::Writer::append_to(Vec::new()).finish());
        let file = |kernel: &[u8], archive: &[u8]| {
            pe(&[(".cmdline", b"quiet"), (".linux", kernel), (".ucode", archive), (".initrd", archive)])
        };
        let parts = take_apart(file(&kernel, &archive), Path::new("k")).unwrap();
        assert!(parts.kernel == kernel && parts.initrds == [archive.clone(), archive.clone()]);
        assert_eq!(parts.options.as_deref(), Some("quiet"));
        let wrong = |file| take_apart(file, Path::new("k")).unwrap_err().to_string();
        assert!(wrong(file(&kernel[..50_000], &archive)).starts_with("k: the kernel file is cut off"));
        assert!(wrong(file(&kernel, b"none")).starts_with("k is no initrd"));
        // Any other kernel is all of its file.
        let parts = take_apart(kernel.clone(), Path::new("k")).unwrap();
        assert!(parts.kernel == kernel && parts.initrds.is_empty() && parts.options.is_none());
    }

    #[test]
    fn what_is_wrong_is_said_of_the_file() {
        let kernel = bz_image(100_000);
        assert!(sentence(&kernel[..50_000]).starts_with("k: the kernel file is cut off"));
        assert_eq!(sentence(&elf(0x40_0000)), "k: this is a program, not a kernel");
        assert!(sentence(b"hello").starts_with("k: "));
    }
}
