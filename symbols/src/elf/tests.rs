//! Real files, and real files that were damaged.

use std::fs::File;

use proptest::prelude::*;

use super::*;

/// Programs and libraries that a Debian system has.
const REAL: [&str; 3] = ["/bin/bash", "/bin/ls", "/lib/x86_64-linux-gnu/libc.so.6"];

fn real() -> impl Iterator<Item = (&'static str, ElfFile)> {
    REAL.into_iter().filter_map(|path| {
        let Ok(file) = File::open(path) else {
            testkit::missing(&format!("{path}, of any Debian or Ubuntu"));
            return None;
        };
        Some((path, ElfFile::open(Box::new(file)).unwrap()))
    })
}

fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let output = testkit::tool(program)?.args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn headers_and_sections_are_what_readelf_says() {
    for (path, elf) in real() {
        let Some(notes) = tool("readelf", &["-n", path]) else { return };
        let id = notes.split("Build ID: ").nth(1).map(|rest| rest.lines().next().unwrap().trim());
        assert_eq!(elf.build_id().map(ToString::to_string).as_deref(), id, "{path}");

        let Some(table) = tool("readelf", &["-SW", path]) else { return };
        let mut sections = 0;
        for line in table.lines().filter_map(|line| line.split_once("] ")) {
            let words: Vec<&str> = line.1.split_whitespace().collect();
            let [name, kind, address, _, size, ..] = words[..] else { continue };
            let hex = |text| u64::from_str_radix(text, 16).unwrap_or(u64::MAX);
            let Some(section) = elf.sections().find(|section| section.name == name) else { continue };
            assert_eq!((section.address, section.size), (hex(address), hex(size)), "{path} {name}");
            assert_eq!(section.in_file, kind != "NOBITS", "{path} {name}");
            if section.in_file {
                assert_eq!(elf.section(name).unwrap().bytes.len(), section.size);
                sections += 1;
            }
        }
        assert!(sections > 20, "{path}: {sections} sections");
    }
}

#[test]
fn offsets_and_addresses_are_each_other_s_inverse() {
    for (path, elf) in real() {
        for segment in elf.segments() {
            for within in [0, 1, segment.file_size - 1] {
                let address = segment.address + within;
                let offset = elf.offset_of(address).unwrap();
                assert_eq!(offset, segment.offset + within, "{path}");
                assert_eq!(elf.address_of(offset), Some(address), "{path}");
            }
            if segment.executable {
                let page = segment.offset & !0xfff;
                assert_eq!(elf.address_of(page), Some(segment.address - (segment.offset - page)), "{path}");
            }
        }
        assert!(elf.is_executable(elf.entry()) || elf.entry() == 0, "{path}");
        assert_eq!(elf.offset_of(u64::MAX), None);
    }
}

#[test]
fn a_file_without_section_headers_still_has_build_id_and_frames() {
    for (path, elf) in real() {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[40..48].fill(0);
        bytes[58..64].fill(0);
        let stripped = ElfFile::open(Box::new(bytes)).unwrap();
        assert_eq!(stripped.sections().count(), 0);
        assert_eq!(stripped.build_id(), elf.build_id(), "{path}");
        assert_eq!(stripped.eh_frame_hdr(), elf.eh_frame_hdr(), "{path}");
        let (short, long) = (elf.eh_frame().unwrap(), stripped.eh_frame().unwrap());
        assert_eq!(long.address, short.address, "{path}");
        assert!(long.bytes.starts_with(&short.bytes), "{path}");
        assert_eq!(stripped.section(".text"), Err(ElfError::NoSection(".text".into())));
    }
}

#[test]
fn a_section_that_is_held_is_read_once() {
    for (_, elf) in real() {
        let first = elf.section(".dynstr").unwrap();
        let again = elf.section(".dynstr").unwrap();
        assert!(std::sync::Arc::ptr_eq(&first.bytes, &again.bytes));
    }
}

#[test]
fn what_is_no_such_file_has_a_reason() {
    let open = |bytes: &[u8]| ElfFile::open(Box::new(bytes.to_vec())).unwrap_err();
    assert_eq!(open(b""), ElfError::NotElf);
    assert_eq!(open(&[0; 4096]), ElfError::NotElf);
    let mut header = [0u8; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 1, 1, 1]);
    assert_eq!(open(&header), ElfError::NotX86_64, "32 bit");
    header[4] = 2;
    header[18] = 183;
    assert_eq!(open(&header), ElfError::NotX86_64, "another processor");
    header[18] = 62;
    header[16] = 1;
    assert_eq!(open(&header), ElfError::NotLoadable(1), "an object file");
    header[16] = 3;
    header[56] = 0xff;
    header[57] = 0x0f;
    assert_eq!(open(&header), ElfError::TooMany { what: "program headers".into(), count: 0xfff });
}

/// Returns a program with one load segment and compressed debug sections, written by objcopy.
fn compressed(kind: &str) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (std::env::current_exe().unwrap(), dir.path().join("out"));
    let flag = format!("--compress-debug-sections={kind}");
    tool("objcopy", &[&flag, from.to_str()?, to.to_str()?])?;
    Some(std::fs::read(to).unwrap())
}

#[test]
fn compressed_sections_are_what_was_compressed() {
    let plain = ElfFile::open(Box::new(File::open(std::env::current_exe().unwrap()).unwrap())).unwrap();
    for kind in ["zlib-gabi", "zstd"] {
        let Some(bytes) = compressed(kind) else { continue };
        let elf = ElfFile::open(Box::new(bytes)).unwrap();
        for name in [".debug_line", ".debug_abbrev", ".debug_str"] {
            let Ok(expected) = plain.section(name) else { continue };
            let info = elf.sections().find(|section| section.name == name).unwrap();
            assert!(info.size < expected.bytes.len(), "{name} is compressed");
            assert_eq!(elf.section(name).unwrap().bytes, expected.bytes, "{kind} {name}");
        }
    }
}

/// Calls everything that reads; what comes out does not matter.
fn read_everything(elf: &ElfFile) {
    let names: Vec<String> = elf.sections().map(|section| section.name.to_owned()).take(64).collect();
    for name in names {
        let _ = elf.section(&name);
    }
    let _ = (elf.eh_frame(), elf.eh_frame_hdr(), elf.debug_link(), elf.alt_link(), elf.build_id());
    for number in [0, 1, 0x1000, 1 << 40, u64::MAX] {
        let _ = (elf.address_of(number), elf.offset_of(number), elf.bytes_at(number, number));
        let _ = (elf.is_executable(number), elf.section_range(".plt"));
    }
}

proptest! {
    /// Headers are at the start, the section table is at the end: damage there hits hardest.
    #[test]
    fn damage_never_panics(
        which in 0..REAL.len(),
        cut in prop::option::of(any::<prop::sample::Index>()),
        damage in prop::collection::vec((any::<bool>(), 0usize..8192, any::<u8>()), 1..40),
    ) {
        let Ok(mut bytes) = std::fs::read(REAL[which]) else { return Ok(()) };
        let size = bytes.len();
        for (at_end, at, value) in damage {
            let at = if at_end { size - 1 - at } else { at % 1024 };
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(size));
        }
        if let Ok(elf) = ElfFile::open(Box::new(bytes)) {
            read_everything(&elf);
        }
    }

    #[test]
    fn any_bytes_after_a_good_start_never_panic(tail in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 62, 0];
        bytes.extend(tail);
        if let Ok(elf) = ElfFile::open(Box::new(bytes)) {
            read_everything(&elf);
        }
    }
}
