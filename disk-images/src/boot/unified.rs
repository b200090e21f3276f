//! Unified kernel images: one PE file with kernel, initrd and command line (uapi-group.org, "Unified Kernel
//! Image"; PE: Microsoft's "PE Format").

use goblin::pe::header::{COFF_MACHINE_X86_64, Header};
use goblin::pe::section_table::SectionTable;

/// Bytes of the PE signature and of the COFF header after it.
const HEADERS: usize = 4 + 20;

/// Contents of a unified kernel image.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnifiedImage<'a> {
    /// Kernel, a bzImage: section `.linux`.
    pub kernel: &'a [u8],
    /// Initrds: sections `.ucode` and `.initrd`, those that are not empty.
    pub initrds: Vec<&'a [u8]>,
    /// Command line: section `.cmdline`.
    pub options: Option<String>,
    /// Title: `PRETTY_NAME` in section `.osrel`.
    pub title: Option<String>,
    /// Version: `IMAGE_VERSION` in section `.osrel`, or else section `.uname`; empty if there is neither.
    pub version: String,
    /// Sort key: `IMAGE_ID`, or else `ID`, in section `.osrel`.
    pub sort_key: Option<String>,
}

/// Reason for which a file is not a unified kernel image for x86-64.
#[derive(Debug, thiserror::Error)]
pub enum UnifiedError {
    /// The file has no PE headers.
    #[error("it is not a PE file ({0})")]
    NotPe(goblin::error::Error),
    /// The file is for another architecture.
    #[error("it is for another architecture than x86-64")]
    Architecture,
    /// The table of sections is damaged.
    #[error("its sections can't be read ({0})")]
    Sections(goblin::error::Error),
    /// The file ends before the section of this name does.
    #[error("its section {0} ends past the end of the file")]
    CutOff(String),
    /// The file has no kernel.
    #[error("it has no section .linux")]
    NoKernel,
}

impl<'a> UnifiedImage<'a> {
    /// Parses a file. Of several profiles the first is taken, which is the default of boot loaders as well.
    ///
    /// # Errors
    /// The file is not a unified kernel image for x86-64, or it is cut off.
    pub fn parse(file: &'a [u8]) -> Result<Self, UnifiedError> {
        let sections = sections(file)?;
        let (mut image, mut microcode, mut initrd) = (Self::default(), None, None);
        let (mut release, mut uname, mut profiles) = (String::new(), String::new(), 0);
        for section in &sections {
            // A section that is larger in memory continues with zeros; one that is larger in the file, with
            // padding.
            let length = section.size_of_raw_data.min(section.virtual_size) as usize;
            let start = section.pointer_to_raw_data as usize;
            let name = name(section);
            if name == b".profile" {
                profiles += 1;
            }
            // The sections of a profile follow its `.profile`, so the second one ends the first profile.
            if profiles > 1 {
                break;
            }
            let wanted: [&[u8]; 6] = [b".linux", b".ucode", b".initrd", b".cmdline", b".osrel", b".uname"];
            if !wanted.contains(&name) {
                continue;
            }
            let bytes = start
                .checked_add(length)
                .and_then(|end| file.get(start..end))
                .ok_or_else(|| UnifiedError::CutOff(String::from_utf8_lossy(name).into_owned()))?;
            let text = || String::from_utf8_lossy(bytes).trim_matches(['\0', '\n', ' ']).to_owned();
            match name {
                b".linux" => image.kernel = bytes,
                b".ucode" => microcode = Some(bytes),
                b".initrd" => initrd = Some(bytes),
                b".cmdline" => image.options = Some(text()),
                b".osrel" => release = text(),
                _ => uname = text(),
            }
        }
        if image.kernel.is_empty() {
            return Err(UnifiedError::NoKernel);
        }
        // Linux searches microcode only at the beginning of the initrd.
        image.initrds = [microcode, initrd].into_iter().flatten().filter(|bytes| !bytes.is_empty()).collect();
        image.title = field(&release, "PRETTY_NAME");
        image.version = field(&release, "IMAGE_VERSION").unwrap_or(uname);
        image.sort_key = field(&release, "IMAGE_ID").or_else(|| field(&release, "ID"));
        Ok(image)
    }

    /// Returns true for the beginning of a unified kernel image.
    pub fn is_unified(beginning: &[u8]) -> bool {
        sections(beginning).is_ok_and(|sections| sections.iter().any(|section| name(section) == b".linux"))
    }
}

/// Returns the sections of a PE file for x86-64.
fn sections(file: &[u8]) -> Result<Vec<SectionTable>, UnifiedError> {
    let header = Header::parse(file).map_err(UnifiedError::NotPe)?;
    let coff = &header.coff_header;
    if coff.machine != COFF_MACHINE_X86_64 {
        return Err(UnifiedError::Architecture);
    }
    let pointer = usize::try_from(header.dos_header.pe_pointer).unwrap_or(usize::MAX);
    let mut at = pointer.saturating_add(HEADERS).saturating_add(coff.size_of_optional_header.into());
    coff.sections(file, &mut at).map_err(UnifiedError::Sections)
}

/// Returns a section's name without its padding.
fn name(section: &SectionTable) -> &[u8] {
    section.name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Returns a field of os-release(5) without its quotes.
fn field(release: &str, key: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))?;
    let value = value.trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a PE file for x86-64 with these sections, each padded to 512 bytes.
    pub fn pe(sections: &[(&str, &[u8])]) -> Vec<u8> {
        // A DOS header whose e_lfanew is the offset right after it.
        let mut file = b"MZ".to_vec();
        file.resize(0x3c, 0);
        file.extend(0x40_u32.to_le_bytes());
        file.extend(b"PE\0\0");
        let count = u16::try_from(sections.len()).unwrap();
        file.extend([COFF_MACHINE_X86_64, count].map(u16::to_le_bytes).concat());
        // Time, symbols, their number; no optional header; an executable.
        file.extend([0_u8; 12]);
        file.extend([0_u16, 2].map(u16::to_le_bytes).concat());
        let mut at = u32::try_from((file.len() + 40 * sections.len()).next_multiple_of(512)).unwrap();
        for (name, bytes) in sections {
            let mut field = name.as_bytes().to_vec();
            field.resize(8, 0);
            file.extend(field);
            let length = u32::try_from(bytes.len()).unwrap();
            let padded = length.next_multiple_of(512);
            file.extend([length, at, padded, at].map(u32::to_le_bytes).concat());
            file.extend([0_u8; 16]);
            at += padded;
        }
        for (_, bytes) in sections {
            file.resize(file.len().next_multiple_of(512), 0);
            file.extend(*bytes);
        }
        file.resize(file.len().next_multiple_of(512), 0);
        file
    }

    #[test]
    fn sections_are_told_apart() {
        let release = b"ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n";
        let file = pe(&[
            (".text", b"stub"),
            (".osrel", release),
            (".uname", b"6.12.1-amd64\0"),
            (".cmdline", b"root=UUID=1 ro\n\0"),
            (".initrd", b"archive"),
            (".linux", b"kernel"),
            (".ucode", b"microcode"),
        ]);
        let image = UnifiedImage::parse(&file).unwrap();
        assert_eq!(
            (image.kernel, &image.initrds[..]),
            (&b"kernel"[..], &[&b"microcode"[..], b"archive"][..])
        );
        assert_eq!(image.options.as_deref(), Some("root=UUID=1 ro"));
        assert_eq!(image.title.as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
        assert_eq!((image.version.as_str(), image.sort_key.as_deref()), ("6.12.1-amd64", Some("debian")));
    }

    #[test]
    fn of_several_profiles_the_first_is_taken() {
        let file = pe(&[
            (".linux", b"kernel"),
            (".cmdline", b"base"),
            (".profile", b"ID=main"),
            (".cmdline", b"main"),
            (".profile", b"ID=reset"),
            (".cmdline", b"reset"),
        ]);
        assert_eq!(UnifiedImage::parse(&file).unwrap().options.as_deref(), Some("main"));
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let reason = |file: &[u8]| UnifiedImage::parse(file).unwrap_err().to_string();
        assert!(reason(b"").starts_with("it is not a PE file"));
        assert!(reason(&[0; 4096]).starts_with("it is not a PE file"));
        assert_eq!(reason(&pe(&[(".text", b"stub")])), "it has no section .linux");
        let mut other = pe(&[(".linux", b"kernel")]);
        other[0x44..0x46].copy_from_slice(&0xaa64_u16.to_le_bytes());
        assert_eq!(reason(&other), "it is for another architecture than x86-64");
        let whole = pe(&[(".linux", &[7; 4096])]);
        assert_eq!(reason(&whole[..2048]), "its section .linux ends past the end of the file");
    }

    proptest! {
        #[test]
        fn any_file_is_taken_apart_or_refused(at in 0usize..1024, bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            let mut file = pe(&[(".linux", b"kernel"), (".cmdline", b"quiet")]);
            let end = (at + bytes.len()).min(file.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
            if let Ok(image) = UnifiedImage::parse(&file) {
                prop_assert!(image.kernel.len() <= file.len());
            }
            let _ = UnifiedImage::parse(&bytes);
        }
    }
}
