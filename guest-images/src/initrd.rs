//! Initial RAM file systems.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use guest_programs::LOAD_ORDER;

use crate::archive::CpioArchive;
use crate::modules::KernelModule;

/// Returns the beginning of every initramfs of this project: mount points, the console, and modules in the
/// order of loading.
pub(crate) fn base(modules: &[KernelModule]) -> io::Result<CpioArchive> {
    let mut archive = CpioArchive::new();
    for directory in ["dev", "proc", "sys", "run", "newroot"] {
        archive.directory(directory, 0o755)?;
    }
    archive.directory("tmp", 0o1777)?;
    // The kernel opens the console for init before anything is mounted
    // (Documentation/admin-guide/devices.txt).
    archive.character_device("dev/console", 0o600, 5, 1)?;
    archive.character_device("dev/null", 0o666, 1, 3)?;
    let mut order = String::new();
    for module in modules {
        let path = format!("/lib/modules/{}.ko", module.name);
        archive.file(&path, 0o644, &module.contents)?;
        order.push_str(&path);
        order.push('\n');
    }
    archive.file(LOAD_ORDER, 0o644, order.as_bytes())?;
    Ok(archive)
}

/// Compresses with gzip, which every Linux can unpack. Equal inputs give equal bytes.
pub(crate) fn compress(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn modules_are_listed_in_order() {
        let module = |name: &str| KernelModule { name: name.into(), contents: name.as_bytes().to_vec() };
        let archive = base(&[module("virtio"), module("virtio_blk")]).unwrap().finish().unwrap();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&compress(&archive).unwrap()[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, archive);
        let list = b"/lib/modules/virtio.ko\n/lib/modules/virtio_blk.ko\n";
        assert!(archive.windows(list.len()).any(|window| window == list));
    }
}
