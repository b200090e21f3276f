//! A small Debian with QEMU, and a kernel with KVM: a host for virtual machines of other VMMs on any AMD
//! processor with SVM, also an emulated one.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use guest_programs::INIT;

use crate::binary::programs;
use crate::debs::{PackageQuery, PackageStore};
use crate::kernel::{KernelFlavour, KernelSeries, UnpackedKernel, wanted};
use crate::manifest::{PackageFile, ProductRecipe, ProgramFile, fingerprint, sha256_of};
use crate::place::{DirectoryLock, guest_directory};
use crate::{Progress, disk, initrd, rootfs};

/// Name of the image without `.img`.
const NAME: &str = "kvm-host";
/// Debian packages of the root file system; apt adds what they depend on.
const PACKAGES: &[&str] = &["coreutils", "dash", "grep", "mount", "qemu-system-x86", "util-linux"];
/// Modules for `/dev/kvm` on an AMD machine, and for the host's disks and ports.
const NEEDED_MODULES: &[&str] = &["virtio_pci", "virtio_blk", "ext4", "kvm_amd", "virtio_console"];
/// Modules that some kernels have built in. ext4 finds its checksum by an alias, so it names no dependency on
/// that module.
const USEFUL_MODULES: &[&str] = &["crc32c_generic", "virtio_rng"];

/// Makes the image of a host with KVM and QEMU and returns its path, `target/guest/kvm-host.img`, a
/// whole-disk ext4.
///
/// `kvm-host.manifest.json` next to the image lists its contents. Init is that of [`demo`](crate::demo()),
/// and needs a command.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, a program does not compile, the disk is full.
pub fn kvm_host(progress: &dyn Progress) -> Result<PathBuf> {
    let lock = DirectoryLock::take()?;
    let directory = guest_directory();
    let image = directory.join(NAME).with_added_extension("img");
    let manifest = directory.join(NAME).with_added_extension("manifest.json");

    progress.begin("building the guest's programs");
    let init = programs()?.join(INIT);
    progress.end();
    let programs = vec![ProgramFile { name: INIT.to_owned(), sha256: sha256_of(&init)? }];
    let mut store = PackageStore::open()?;
    let kernel_inputs = store.fetch(wanted(KernelSeries::default(), KernelFlavour::default()), progress)?;
    let root_inputs = store.fetch(PackageQuery::Closure(PACKAGES), progress)?;
    let packages: Vec<PackageFile> = root_inputs.iter().chain(&kernel_inputs).cloned().collect();
    let fingerprint =
        fingerprint(&[&[include_str!("kvm_host.rs")], rootfs::RECIPE].concat(), &packages, &programs);
    let file = format!("{NAME}.img");
    ProductRecipe { manifest, products: &[&file], fingerprint, packages, programs }.provide(
        &lock,
        |stage| {
            progress.begin(&format!("making {}", image.display()));
            let root = stage.join("root");
            rootfs::unpack_packages(&store.paths(&root_inputs), &root)?;
            let kernel = UnpackedKernel::unpack(&store.paths(&kernel_inputs), &root)?;
            rootfs::put_boot(&root, &kernel, &initrd_of(&kernel, &rootfs::read(&init)?)?)?;
            rootfs::settle(&root)?;
            let uuid = "6f1d2c3e-5a4b-4c8d-9e7f-767072660003";
            let file_system = disk::Ext4Options { label: NAME, uuid, free: 32 << 20, owners: HashMap::new() };
            disk::make(&root, &stage.join(&file), &file_system)?;
            progress.end();
            Ok(kernel.release)
        },
    )?;
    Ok(image)
}

/// Returns the initrd: init and modules. It is not compressed, because an emulated CPU would unpack it
/// slowly.
fn initrd_of(kernel: &UnpackedKernel, init: &[u8]) -> Result<Vec<u8>> {
    let modules = kernel.modules.load_order(NEEDED_MODULES, USEFUL_MODULES)?;
    let make = || {
        let mut archive = initrd::base(&modules)?;
        archive.file("init", 0o755, init)?;
        archive.finish()
    };
    make().context("cannot make the initrd")
}
