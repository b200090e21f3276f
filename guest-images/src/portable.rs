//! Bundle of the emulated host: a Debian kernel and an initramfs with KVM's modules, but without an init.
//!
//! The launcher appends the archive with `/init`, which is the static `vprof`, so that a new `vprof` needs no
//! new bundle. The archive is not compressed, because the emulated CPU would unpack it slowly.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::debs::PackageStore;
use crate::kernel::{KernelFlavour, KernelSeries, UnpackedKernel, wanted};
use crate::manifest::{ProductRecipe, fingerprint};
use crate::place::{DirectoryLock, guest_directory, make_directory, write_whole};
use crate::{Progress, initrd};

/// Modules for `/dev/kvm` on the emulated AMD machine, and for its disks, its ports and a network.
const NEEDED_MODULES: &[&str] = &["kvm_amd", "virtio_pci", "virtio_blk", "virtio_console", "virtio_net"];
/// Module with entropy for programs that need it early.
const USEFUL_MODULES: &[&str] = &["virtio_rng"];

/// Files of the bundle that a launcher needs: the kernel, and the initial file system.
pub const PORTABLE_HOST_FILES: [&str; 2] = ["vmlinuz", "initrd.img"];

/// Everything in this crate that determines the contents of the bundle.
const RECIPE: &[&str] = &[
    include_str!("portable.rs"),
    include_str!("archive.rs"),
    include_str!("initrd.rs"),
    include_str!("kernel.rs"),
    include_str!("modules.rs"),
];

/// Makes the portable host's bundle and returns its directory, `target/guest/portable-host`, which has
/// `vmlinuz`, `initrd.img` and `manifest.json`.
///
/// `initrd.img` is an uncompressed cpio archive, a multiple of 4 bytes long, with
/// [`guest_programs::LOAD_ORDER`] and the modules in that list, mount points and `/dev/console`. A launcher
/// appends an archive with `/init`.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, the disk is full.
pub fn portable_host(progress: &dyn Progress) -> Result<PathBuf> {
    let lock = DirectoryLock::take()?;
    let bundle = guest_directory().join("portable-host");
    let mut store = PackageStore::open()?;
    let packages = store.fetch(wanted(KernelSeries::V6_1, KernelFlavour::Cloud), progress)?;
    let fingerprint = fingerprint(RECIPE, &packages, &[]);
    let recipe = ProductRecipe {
        manifest: bundle.join("manifest.json"),
        products: &PORTABLE_HOST_FILES,
        fingerprint,
        packages: packages.clone(),
        programs: Vec::new(),
    };
    recipe.provide(&lock, |stage| {
        progress.begin("making the portable host");
        let root = stage.join("root");
        make_directory(&root)?;
        let kernel = UnpackedKernel::unpack(&store.paths(&packages), &root)?;
        let modules = kernel.modules.load_order(NEEDED_MODULES, USEFUL_MODULES)?;
        let initrd = initrd::base(&modules).and_then(|archive| archive.finish());
        let image = fs::read(&kernel.image).context("cannot read the unpacked kernel")?;
        let [kernel_name, initrd_name] = PORTABLE_HOST_FILES;
        write_whole(&stage.join(kernel_name), &image)?;
        write_whole(&stage.join(initrd_name), &initrd.context("cannot make the initrd")?)?;
        progress.end();
        Ok(kernel.release)
    })?;
    Ok(bundle)
}
