//! An initrd: archives in a row, bare and compressed.

use disk_images::initrd::Initrd;

use crate::input::files;

/// Returns inputs to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let bare = files::archive();
    let packed = [files::gzip(&bare), files::xz(&bare), files::zstd(&bare), files::lz4(&bare)];
    let all = packed.iter().fold(bare.clone(), |all, next| {
        let mut all = [all.as_slice(), next].concat();
        all.resize(all.len().next_multiple_of(4), 0);
        all
    });
    packed.into_iter().chain([bare, all]).collect()
}

/// Runs the target on one input of the fuzzer.
pub fn test_one_input(bytes: &[u8]) {
    let mut kept = Vec::new();
    let initrd = Initrd::read(bytes, &mut kept);
    for path in initrd.paths() {
        let path = String::from_utf8_lossy(path);
        assert!(path.len() < 3 * 4096, "a name is bounded");
        if let Some(range) = initrd.find(&path) {
            assert!(range.start < range.end && range.end <= kept.len() as u64);
            let start = usize::try_from(range.start).expect("inside of what is kept");
            assert!(kept[start..].starts_with(b"\x7fELF"), "only programs are kept");
        }
    }
    let _ = initrd.stopped().map(|why| why.to_string());
}
