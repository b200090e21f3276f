//! Kernel files: parsed and checked before a machine is started for them.

use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;

use super::boot::{UnifiedError, UnifiedImage};
use super::{ImageError, initrd_check};

/// Lowest virtual address of an x86-64 kernel: `__START_KERNEL_map` of arch/x86/include/asm/page_64_types.h
/// (Linux 6.1).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Contents of a kernel file. A unified kernel image has more than the kernel.
#[derive(Debug)]
pub struct KernelParts {
    /// Kernel: bzImage or ELF vmlinux.
    pub kernel: Vec<u8>,
    /// Initrds in the order in which the kernel gets them.
    pub initrds: Vec<Vec<u8>>,
    /// Words for the kernel's command line; `None` if the file has none.
    pub options: Option<String>,
}

/// Reason for which vprof cannot boot a kernel file.
#[derive(Debug, thiserror::Error)]
pub enum KernelFault {
    /// The kernel is not a whole 64-bit x86 kernel.
    #[error(transparent)]
    Kernel(#[from] vmm::KernelError),
    /// The unified kernel image cannot be used.
    #[error(transparent)]
    UnifiedImage(#[from] UnifiedError),
    /// The file is an ordinary program.
    #[error("this is a program, not a kernel")]
    Program,
}

/// Splits a kernel file into its parts and checks them. `path` is for error messages.
pub fn take_apart(file: Vec<u8>, path: &Path) -> Result<KernelParts, ImageError> {
    let parts = if UnifiedImage::is_unified(&file) {
        let unified = UnifiedImage::parse(&file).map_err(|reason| refused(path, reason))?;
        unified.initrds.iter().try_for_each(|archive| initrd_check::check(archive, path))?;
        KernelParts {
            kernel: unified.kernel.to_vec(),
            initrds: unified.initrds.iter().map(|archive| archive.to_vec()).collect(),
            options: unified.options,
        }
    } else {
        KernelParts { kernel: file, initrds: Vec::new(), options: None }
    };
    check(&parts.kernel, path)?;
    Ok(parts)
}

/// Checks that the bytes are a whole 64-bit x86 kernel: bzImage or ELF vmlinux.
fn check(kernel: &[u8], path: &Path) -> Result<(), ImageError> {
    vmm::check_kernel(kernel).map_err(|reason| refused(path, reason))?;
    // An ordinary static program differs from a vmlinux only by its addresses.
    match Elf::parse(kernel) {
        Ok(elf) if !elf.program_headers.iter().any(|p| p.p_type == PT_LOAD && p.p_vaddr >= KERNEL_MAP) => {
            Err(refused(path, KernelFault::Program))
        }
        _ => Ok(()),
    }
}

/// Returns the error for a kernel file with this fault.
fn refused(path: &Path, reason: impl Into<KernelFault>) -> ImageError {
    ImageError::Kernel { path: path.to_owned(), reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot::unified::tests::pe;
    use testkit::bz_image;
    use testkit::elf::{EXECUTABLE, ElfImage, LoadSegment};

    /// Returns an executable with one segment at this virtual address.
    fn elf(address: u64) -> Vec<u8> {
        let bytes = ElfImage::CONTENT;
        let segment = LoadSegment {
            virt: address,
            phys: 0x10_0000,
            file_bytes: bytes,
            memory_bytes: bytes,
            alignment: 0x1000,
            ..LoadSegment::default()
        };
        let (kind, segment) = (EXECUTABLE, Some(segment));
        ElfImage { kind, entry: address, segment, ..ElfImage::default() }.to_bytes()
    }

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
        let (kernel, archive) =
            (bz_image(100_000), crate::cpio::ArchiveWriter::append_to(Vec::new()).finish());
        let file = |kernel: &[u8], archive: &[u8]| {
            pe(&[(".cmdline", b"quiet"), (".linux", kernel), (".ucode", archive), (".initrd", archive)])
        };
        let parts = take_apart(file(&kernel, &archive), Path::new("k")).unwrap();
        assert!(parts.kernel == kernel && parts.initrds == [archive.clone(), archive.clone()]);
        assert_eq!(parts.options.as_deref(), Some("quiet"));
        let wrong = |file| take_apart(file, Path::new("k")).unwrap_err().to_string();
        assert!(wrong(file(&kernel[..50_000], &archive)).starts_with("k: the kernel file is cut off"));
        assert!(wrong(file(&kernel, b"none")).starts_with("k is not an initrd"));
        // Any other kernel is all of its file.
        let parts = take_apart(kernel.clone(), Path::new("k")).unwrap();
        assert!(parts.kernel == kernel && parts.initrds.is_empty() && parts.options.is_none());
    }

    #[test]
    fn faults_are_reported_with_the_file() {
        let kernel = bz_image(100_000);
        assert!(sentence(&kernel[..50_000]).starts_with("k: the kernel file is cut off"));
        assert_eq!(sentence(&elf(0x40_0000)), "k: this is a program, not a kernel");
        assert!(sentence(b"hello").starts_with("k: "));
    }
}
