//! Files written by code: kernels, programs.

use gimli::write::{
    Address, AttributeValue, Dwarf, EndianVec, LineProgram, LineString, Range, RangeList, Sections, Unit,
};
use gimli::{Encoding, Format, LineEncoding, LittleEndian};
use testkit::elf::{EXECUTABLE, ElfImage, ElfSection, LoadSegment, section_type, symbol};
use testkit::{CpioEntry, cpio_archive};

/// Puts `bytes` at `at`.
fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns an ELF kernel with one segment of 64 bytes at 16 MiB.
pub fn vmlinux() -> Vec<u8> {
    let address = 0x100_0000;
    let segment = LoadSegment {
        offset: ElfImage::CONTENT,
        virt: address,
        phys: address,
        file_bytes: 64,
        memory_bytes: 128,
        ..LoadSegment::default()
    };
    let (kind, segment) = (EXECUTABLE, Some(segment));
    ElfImage { kind, entry: address, segment, content: &[0; 64], ..ElfImage::default() }.to_bytes()
}

/// Returns the head of an EFI program for 64-bit ARM.
pub fn efi() -> Vec<u8> {
    let mut file = vec![0; 1200];
    put(&mut file, 0, b"MZ");
    put(&mut file, 0x3c, &0x80u32.to_le_bytes());
    put(&mut file, 0x80, b"PE\0\0\x64\xaa");
    file
}

/// Address and length of the code of [`elf`], bytes.
pub const TEXT: (u64, u64) = (0x1000, 0x1000);

/// Returns a shared library with these sections and one executable segment at [`TEXT`].
pub fn elf(sections: &[ElfSection<'_>]) -> Vec<u8> {
    let (address, bytes) = TEXT;
    let segment = LoadSegment {
        offset: 0,
        virt: address,
        phys: address,
        file_bytes: bytes,
        memory_bytes: bytes,
        alignment: 0x1000,
    };
    ElfImage { segment: Some(segment), sections, ..ElfImage::default() }.to_bytes()
}

/// Returns a library with symbols of every kind, a PLT with its relocations, notes and links to debug files.
pub fn library() -> Vec<u8> {
    let strings = b"\0malloc\0_ZN4shop4Till3sumEi\0label\0resolver\0write.part.0\0";
    let symbols = [
        symbol(0, 0, 0, 0, 0),
        symbol(1, 0x12, 0, 0, 0),
        symbol(8, 0x12, 1, 0x1100, 0x40),
        symbol(28, 0x10, 1, 0x1200, 0),
        symbol(34, 0x1a, 1, 0x1300, 0x20),
        symbol(43, 2, 1, 0x1310, 0x10),
    ]
    .concat();
    // Two relocations R_X86_64_JUMP_SLOT of symbol 1.
    let rela: Vec<u8> = [0x3018u64, 0x3020]
        .into_iter()
        .flat_map(|at| [at, 1 << 32 | 7, 0])
        .flat_map(u64::to_le_bytes)
        .collect();
    // `jmp *GOT(%rip)`, `push`, `jmp`; with `endbr64` in the second section.
    let mut plt = [0xff, 0x25, 0, 0, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0].repeat(3);
    for (entry, got) in [(1u32, 0x3018u32), (2, 0x3020)] {
        let at = entry as usize * 16;
        put(&mut plt, at + 2, &(got - (0x1000 + entry * 16 + 6)).to_le_bytes());
    }
    let mut second = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0, 0, 0, 0, 0x66, 0x0f, 0x1f, 0x44, 0, 0].to_vec();
    put(&mut second, 6, &(0x3018u32 - 0x104a).to_le_bytes());
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[7; 20]].concat();
    let link = [&b"lib.debug\0\0\0"[..], &[1, 2, 3, 4]].concat();
    let shared = [&b"../shared.debug\0"[..], &[9; 20]].concat();
    let builder = symbols::fixture::cfi::Builder::new().function(0x1100, &[]).function(0x1200, &[]);
    let header = builder.header();
    elf(&[
        ElfSection::new(".text", section_type::BITS, &[0x90; 64]).with_address(0x1100),
        ElfSection::new(".dynsym", section_type::DYNSYM, &symbols).with_address(0x400).with_link(3),
        ElfSection::new(".dynstr", section_type::STRTAB, strings).with_address(0x600),
        ElfSection::new(".symtab", section_type::SYMTAB, &symbols).with_link(5),
        ElfSection::new(".strtab", section_type::STRTAB, strings),
        ElfSection::new(".rela.plt", section_type::RELA, &rela).with_address(0x700).with_link(2),
        ElfSection::new(".plt", section_type::BITS, &plt).with_address(0x1000),
        ElfSection::new(".plt.sec", section_type::BITS, &second).with_address(0x1040),
        ElfSection::new(".note.gnu.build-id", section_type::NOTE, &note).with_address(0x300),
        ElfSection::new(".gnu_debuglink", section_type::BITS, &link),
        ElfSection::new(".gnu_debugaltlink", section_type::BITS, &shared),
        ElfSection::new(".eh_frame_hdr", section_type::BITS, &header.bytes).with_address(header.address),
        ElfSection::new(".eh_frame", section_type::BITS, &builder.eh_frame)
            .with_address(symbols::fixture::cfi::EH_FRAME),
    ])
}

/// Returns a stripped library whose only symbols are in a `.gnu_debugdata`.
pub fn with_small_file() -> Vec<u8> {
    use std::io::Write;
    let strings = b"\0static_function\0";
    let symbols = [symbol(0, 0, 0, 0, 0), symbol(1, 2, 1, 0x1100, 0x40)].concat();
    let small = elf(&[
        ElfSection::new(".text", section_type::BITS, &[]).with_address(0x1100),
        ElfSection::new(".symtab", section_type::SYMTAB, &symbols).with_link(3),
        ElfSection::new(".strtab", section_type::STRTAB, strings),
    ]);
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1))
        .expect("a writer into memory");
    writer.write_all(&small).expect("room in memory");
    let packed = writer.finish().expect("room in memory");
    elf(&[
        ElfSection::new(".text", section_type::BITS, &[0x90; 64]).with_address(0x1100),
        ElfSection::new(".gnu_debugdata", section_type::BITS, &packed),
    ])
}

/// Returns a library with DWARF of this version: a unit with two functions, one inlined twice over, and their
/// lines.
pub fn with_dwarf(version: u16) -> Vec<u8> {
    let sections = dwarf(version);
    let mut named = vec![ElfSection::new(".text", section_type::BITS, &[0x90; 64]).with_address(0x1100)];
    named.extend(sections.iter().map(|(name, bytes)| ElfSection::new(name, section_type::BITS, bytes)));
    elf(&named)
}

/// Returns a library with DWARF whose sections are compressed by zlib, in the old form `.zdebug_*`.
pub fn with_compressed_dwarf() -> Vec<u8> {
    use std::io::Write;
    let sections: Vec<_> = dwarf(4)
        .into_iter()
        .map(|(name, bytes)| {
            let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(&bytes).expect("room in memory");
            let packed = packer.finish().expect("room in memory");
            let size = bytes.len() as u64;
            // The old way: "ZLIB" and the size, in a section `.zdebug_*` (GNU binutils).
            let old = [&b"ZLIB"[..], &size.to_be_bytes(), &packed].concat();
            (name.replace(".debug", ".zdebug"), old)
        })
        .collect();
    let named: Vec<_> =
        sections.iter().map(|(name, bytes)| ElfSection::new(name, section_type::BITS, bytes)).collect();
    elf(&named)
}

fn dwarf(version: u16) -> Vec<(&'static str, Vec<u8>)> {
    let encoding = Encoding { format: Format::Dwarf32, version, address_size: 8 };
    let text = |text: &[u8]| LineString::String(text.to_vec());
    let mut lines =
        LineProgram::new(encoding, LineEncoding::default(), text(b"/src"), None, text(b"shop.c"), None);
    let directory = lines.default_directory();
    let [own, header] = [&b"shop.c"[..], b"till.h"].map(|name| lines.add_file(text(name), directory, None));
    lines.begin_sequence(Some(Address::Constant(0x1100)));
    for (offset, file, line) in [(0, own, 10), (8, header, 20), (16, header, 30), (32, own, 11)] {
        let row = lines.row();
        (row.address_offset, row.file, row.line) = (offset, file, line);
        lines.generate_row();
    }
    lines.end_sequence(0x100);
    let mut unit = Unit::new(encoding, lines);
    let ranges = unit
        .ranges
        .add(RangeList(vec![Range::StartLength { begin: Address::Constant(0x1100), length: 0x100 }]));
    let root = unit.root();
    let name = |name: &str| AttributeValue::String(name.as_bytes().to_vec());
    unit.get_mut(root).set(gimli::DW_AT_name, name("shop.c"));
    unit.get_mut(root).set(gimli::DW_AT_ranges, AttributeValue::RangeListRef(ranges));
    unit.get_mut(root).set(gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(0)));
    let place = |unit: &mut Unit, entry, start: u64, length: u64| {
        unit.get_mut(entry).set(gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(start)));
        unit.get_mut(entry).set(gimli::DW_AT_high_pc, AttributeValue::Udata(length));
    };
    let origin = unit.add(root, gimli::DW_TAG_subprogram);
    unit.get_mut(origin).set(gimli::DW_AT_linkage_name, name("_ZN4shop5twiceEi"));
    unit.get_mut(origin).set(gimli::DW_AT_inline, AttributeValue::Inline(gimli::DW_INL_inlined));
    let function = unit.add(root, gimli::DW_TAG_subprogram);
    unit.get_mut(function).set(gimli::DW_AT_name, name("sum"));
    place(&mut unit, function, 0x1100, 0x80);
    let mut outer = function;
    for (start, length) in [(0x1108, 0x20), (0x1110, 0x10)] {
        let inlined = unit.add(outer, gimli::DW_TAG_inlined_subroutine);
        unit.get_mut(inlined).set(gimli::DW_AT_abstract_origin, AttributeValue::UnitRef(origin));
        unit.get_mut(inlined).set(gimli::DW_AT_call_line, AttributeValue::Udata(12));
        unit.get_mut(inlined).set(gimli::DW_AT_call_file, AttributeValue::FileIndex(Some(own)));
        place(&mut unit, inlined, start, length);
        outer = inlined;
    }
    let other = unit.add(root, gimli::DW_TAG_subprogram);
    unit.get_mut(other).set(gimli::DW_AT_name, name("main"));
    place(&mut unit, other, 0x1180, 0x40);

    let mut dwarf = Dwarf::new();
    dwarf.units.add(unit);
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    dwarf.write(&mut sections).expect("a unit that is right");
    let mut all = Vec::new();
    sections
        .for_each(|id, bytes| {
            if !bytes.slice().is_empty() {
                all.push((id.name(), bytes.slice().to_vec()));
            }
            Ok::<(), gimli::write::Error>(())
        })
        .expect("nothing that can fail");
    all
}

/// Returns a library with these bytes as Go's table.
pub fn with_go_table(bytes: &[u8]) -> Vec<u8> {
    elf(&[
        ElfSection::new(".text", section_type::BITS, &[0x90; 64]).with_address(0x1100),
        ElfSection::new(".gopclntab", section_type::BITS, bytes),
    ])
}

/// Returns a cpio archive with a program under two names, a script and a directory.
pub fn archive() -> Vec<u8> {
    let program = library();
    let entry = |name, mode, links, content: &[u8]| CpioEntry {
        mode,
        links,
        inode: 7,
        ..CpioEntry::new(name, content)
    };
    cpio_archive(&[
        entry("bin", 0o040_755, 2, &[]),
        entry("bin/one", 0o100_755, 2, &[]),
        entry("bin/two", 0o100_755, 2, &program),
        entry("./init", 0o100_755, 1, &program),
        entry("etc/script", 0o100_644, 1, b"#!/bin/sh\n"),
    ])
}

/// Compresses bytes to gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).expect("room in memory");
    packer.finish().expect("room in memory")
}

/// Compresses bytes to xz.
pub fn xz(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1))
        .expect("a writer into memory");
    writer.write_all(bytes).expect("room in memory");
    writer.finish().expect("room in memory")
}

/// Compresses bytes to zstd.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Compresses bytes to one legacy frame of LZ4.
pub fn lz4(bytes: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(bytes);
    [
        &[0x02, 0x21, 0x4c, 0x18][..],
        &u32::try_from(packed.len()).expect("a small file").to_le_bytes(),
        &packed,
    ]
    .concat()
}
