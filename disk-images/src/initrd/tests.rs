//! Archives made by code, read back.

use std::io::Write;
use std::process::Stdio;

use proptest::prelude::*;
use testkit::{CpioEntry, cpio_archive as archive, tool};

use super::*;

/// Returns the beginning of a program and `extra` bytes of this value.
fn program(extra: usize, value: u8) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([2, 0, 62, 0]);
    bytes.resize(bytes.len() + extra, value);
    bytes
}

/// Packs bytes.
type Pack = fn(&[u8]) -> Vec<u8>;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn lzma(bytes: &[u8]) -> Vec<u8> {
    let options = lzma_rust2::LzmaOptions::with_preset(1);
    let mut writer = lzma_rust2::LzmaWriter::new_use_header(Vec::new(), &options, None).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x02, 0x21, 0x4c, 0x18];
    for block in bytes.chunks(8 << 20) {
        let packed = lz4_flex::block::compress(block);
        stream.extend(u32::try_from(packed.len()).unwrap().to_le_bytes());
        stream.extend(packed);
    }
    stream
}

/// Forms that an archive may have and another may follow.
const FORMS: [(&str, Pack); 5] =
    [("bare", <[u8]>::to_vec), ("gzip", gzip), ("zstd", zstd), ("xz", xz), ("lz4", lz4)];

/// `bytes` through a program that is a filter; `None` where it is not installed.
fn filtered(program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut child = tool(program)?.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{program} ({})", output.status);
    Some(output.stdout)
}

/// Returns the result, and the bytes of each file by its path.
fn read(packed: &[u8]) -> (Initrd, impl Fn(&str) -> Option<Vec<u8>> + use<>) {
    let mut kept = Vec::new();
    let initrd = Initrd::read(packed, &mut kept);
    let files = initrd.files.clone();
    let get = move |path: &str| {
        let range = files.get(path.trim_start_matches('/').as_bytes())?;
        let index = |at: u64| usize::try_from(at).unwrap();
        kept.get(index(range.start)..index(range.end)).map(<[u8]>::to_vec)
    };
    (initrd, get)
}

#[test]
fn programs_are_found_in_every_compression() {
    let (init, busybox) = (program(300_000, 1), program(7, 2));
    let bare = archive(&[
        CpioEntry { mode: 0o040_755, ..CpioEntry::new("bin", b"") },
        CpioEntry::new("init", &init),
        CpioEntry::new("etc/passwd", b"root"),
        CpioEntry::new("bin/busybox", &busybox),
    ]);
    for (name, pack) in FORMS.into_iter().chain([("lzma", lzma as Pack)]) {
        let (initrd, get) = read(&pack(&bare));
        assert_eq!(initrd.stopped(), None, "{name}");
        assert_eq!(get("/init").as_ref(), Some(&init), "{name}");
        assert_eq!(get("/bin/busybox").as_ref(), Some(&busybox), "{name}");
        assert_eq!(initrd.paths().count(), 2, "{name}");
    }
}

#[test]
fn bzip2_is_read_as_its_own_program_writes_it() {
    let bare =
        archive(&[CpioEntry::new("init", &program(2_000_000, 1)), CpioEntry::new("sh", &program(50, 3))]);
    let Some(packed) = filtered("bzip2", &bare) else { return };
    let (initrd, get) = read(&packed);
    assert_eq!(initrd.stopped(), None);
    assert_eq!(get("/sh"), Some(program(50, 3)));
}

#[test]
fn archives_follow_one_another_bare_and_packed() {
    // Microcode first, as distributions have it, and at last what a boot loader appends.
    let mut whole = archive(&[CpioEntry::new("kernel/x86/microcode/AuthenticAMD.bin", &[9; 4000])]);
    whole.resize(whole.len() + 512, 0);
    whole.extend(gzip(&archive(&[
        CpioEntry::new("init", &program(9, 1)),
        CpioEntry::new("old", &program(9, 1)),
    ])));
    whole.extend([0; 3]);
    whole.extend(zstd(&archive(&[CpioEntry::new("./old", &program(30, 2))])));
    whole.resize(whole.len().next_multiple_of(4), 0);
    whole.extend(archive(&[CpioEntry::new("/last//one", &program(0, 0))]));
    let (initrd, get) = read(&whole);
    assert_eq!(initrd.stopped(), None);
    assert_eq!(get("/init"), Some(program(9, 1)));
    assert_eq!(get("/old"), Some(program(30, 2)), "a later archive wins");
    assert_eq!(get("/last/one"), Some(program(0, 0)));
}

#[test]
fn hard_links_share_the_bytes_of_the_last_of_them() {
    let link = |name, inode, content: &[u8]| CpioEntry { inode, links: 2, ..CpioEntry::new(name, content) };
    let entries = [
        link("a", 7, b""),
        link("x", 8, b""),
        link("b", 7, &program(5, 1)),
        link("y", 8, &program(6, 2)),
        CpioEntry::new("c", &program(0, 0)),
    ];
    let (_, get) = read(&archive(&entries));
    assert_eq!((get("a"), get("b")), (Some(program(5, 1)), Some(program(5, 1))));
    assert_eq!((get("x"), get("y")), (Some(program(6, 2)), Some(program(6, 2))));
}

#[test]
fn only_programs_under_plain_names_are_kept() {
    let module = {
        let mut bytes = program(100, 0);
        bytes[16] = 1;
        bytes
    };
    let link = CpioEntry { mode: 0o120_777, ..CpioEntry::new("link", &program(5, 1)) };
    let (initrd, get) = read(&archive(&[
        CpioEntry::new("gone", &program(1, 1)),
        CpioEntry::new("lib/module.ko", &module),
        CpioEntry::new("../up", &program(1, 1)),
        link,
        CpioEntry::new("gone", b"a script now"),
    ]));
    assert_eq!(initrd.stopped(), None);
    assert_eq!(initrd.paths().count(), 0);
    assert_eq!(get("/gone"), None);
}

#[test]
fn what_came_before_the_damage_counts() {
    let whole =
        archive(&[CpioEntry::new("init", &program(40, 1)), CpioEntry::new("second", &program(4000, 2))]);
    let (initrd, get) = read(&whole[..2000]);
    assert_eq!(initrd.stopped(), Some(InitrdError::CutOff));
    assert_eq!((get("init"), get("second")), (Some(program(40, 1)), None));
    let noise: Vec<u8> =
        (0..4000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    let packed = gzip(&archive(&[CpioEntry::new("init", &program(40, 1)), CpioEntry::new("noise", &noise)]));
    assert_eq!(read(&packed[..packed.len() - 900]).0.stopped(), Some(InitrdError::Stream(Compression::Gzip)));
    assert_eq!(read(b"neither of them").0.stopped(), Some(InitrdError::Unknown));
    assert_eq!(read(&[0; 5000]).0.stopped(), None);
    assert_eq!(read(b"").0.stopped(), None);
}

/// Returns an archive with the beginning of a file of 3 GiB, in 2 MiB. Zeros between archives would do as
/// well, but are skipped one by one, for which a program without optimization takes a minute.
fn bomb() -> Vec<u8> {
    /// Place of a file's size in its header, digits of base 16 (initramfs buffer format, `c_filesize`).
    const SIZE: std::ops::Range<usize> = 54..62;
    let mut entry = archive(&[CpioEntry::new("zeros", b"")]);
    entry[SIZE].copy_from_slice(b"c0000000");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&entry).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..=2 << 10).for_each(|_| packed.write_all(&zeros).unwrap());
    packed.finish().unwrap()
}

#[test]
fn bounds_are_reasons() {
    let row = |name: String| CpioEntry::new(&name, &program(0, 0));
    let many: Vec<_> = (0..4200).map(|n| row(format!("{n}{}", "x".repeat(4000)))).collect();
    assert_eq!(read(&archive(&many)).0.stopped(), Some(InitrdError::TooLarge("16 MiB of names")));
    let long = row("x".repeat(5000));
    assert_eq!(read(&archive(&[long])).0.stopped(), Some(InitrdError::Archive));
    let streams = gzip(&archive(&[])).repeat(65);
    assert_eq!(read(&streams).0.stopped(), Some(InitrdError::TooLarge("64 compressed streams")));
    let entries = gzip(&archive(&vec![CpioEntry::new("x", b""); 1 << 18]));
    assert_eq!(read(&entries).0.stopped(), Some(InitrdError::TooLarge("262,144 entries")));
    assert_eq!(read(&bomb()).0.stopped(), Some(InitrdError::TooLarge("2 GiB unpacked")));
}

#[test]
fn a_full_disk_is_a_reason() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let initrd = Initrd::read(&archive(&[CpioEntry::new("init", &program(9, 1))])[..], Full);
    assert_eq!(initrd.stopped(), Some(InitrdError::NotKept));
    assert_eq!(initrd.find("/init"), None);
}

fn entry() -> impl Strategy<Value = CpioEntry> {
    let name = "[a-z]{1,5}(/[a-z]{1,5}){0,2}";
    let content = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        (0_usize..300, any::<u8>()).prop_map(|(extra, value)| program(extra, value)),
    ];
    (name, content).prop_map(|(name, content)| CpioEntry::new(&name, &content))
}

fn form() -> impl Strategy<Value = (&'static str, Pack)> {
    proptest::sample::select(FORMS.to_vec())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        archives in proptest::collection::vec((proptest::collection::vec(entry(), 0..6), form()), 1..4),
        padding in 0_usize..3,
    ) {
        let mut whole = Vec::new();
        let mut truth = std::collections::BTreeMap::new();
        for (entries, (form, pack)) in &archives {
            whole.resize(whole.len().next_multiple_of(4) + 4 * padding, 0);
            whole.extend(pack(&archive(entries)));
            // Legacy frames of LZ4 end with a word of zero alone: the sign of gzip is the length of a block
            // as well.
            if *form == "lz4" {
                whole.extend([0; 4]);
            }
            for entry in entries {
                truth.insert(entry.name.clone(), entry.content.clone());
            }
        }
        truth.retain(|_, content| is_program(content));
        let (initrd, get) = read(&whole);
        prop_assert_eq!(initrd.stopped(), None);
        prop_assert_eq!(initrd.paths().count(), truth.len());
        for (name, content) in truth {
            prop_assert_eq!(get(&name), Some(content));
        }
    }

    #[test]
    fn damage_ends_in_a_reason(
        entries in proptest::collection::vec(entry(), 1..4),
        (_, pack) in form(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut packed = pack(&archive(&entries));
        for (at, value) in damage {
            let at = at.index(packed.len());
            packed[at] = value;
        }
        packed.truncate(cut.index(packed.len()) + 1);
        let mut kept = Vec::new();
        let initrd = Initrd::read(&packed[..], &mut kept);
        for path in initrd.paths() {
            let range = initrd.files.get(path).cloned().unwrap();
            prop_assert!(range.start < range.end && range.end <= kept.len() as u64);
        }
    }

    #[test]
    fn noise_is_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..300), sign in 0..7_usize) {
        let signs: [&[u8]; 7] =
            [b"", b"070701", &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0", b"BZh9", &[0x5d, 0, 0]];
        let whole = [signs[sign], &bytes].concat();
        let (initrd, _) = read(&whole);
        prop_assert_eq!(initrd.paths().count(), 0);
    }
}
