//! Demo image: a small Debian on one disk, with programs whose use of the CPU is known.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use guest_programs::{DEMO_LOAD, INIT, MIXED_LOAD, WORKLOADS};

use crate::binary::programs;
use crate::debs::{PackageQuery, PackageStore};
use crate::kernel::{KernelFlavour, KernelSeries, UnpackedKernel, wanted};
use crate::manifest::{PackageFile, ProductRecipe, ProgramFile, fingerprint, sha256_of};
use crate::place::{DirectoryLock, guest_directory};
use crate::rootfs::{self, put, put_directory, read, set_mode, settle};
use crate::{Progress, disk, foreign, initrd};

/// Debian packages of the root file system; apt adds what they depend on.
const PACKAGES: &[&str] = &[
    "bash",
    "coreutils",
    "dash",
    "fzf",
    "grep",
    "gzip",
    "kmod",
    "libstdc++6",
    "openssl",
    "python3-minimal",
    "sed",
];

/// Modules without which the guest cannot reach its disk.
const NEEDED_MODULES: &[&str] = &["virtio_pci", "virtio_blk", "ext4"];
/// Modules that some kernels have built in. ext4 finds its checksum by an alias, so it names no dependency on
/// that module. There are no others, because in the portable host the guest needs 0.1 s to check the
/// signature of each. A command's output has ports of virtio_console.
const USEFUL_MODULES: &[&str] = &["crc32c_generic", "virtio_rng", "virtio_console"];

/// Modules on the disk that the user can load: `insmod` on each line of [`MORE_MODULES_ORDER`].
const MORE_MODULES: &[&str] = &["virtio_net", "virtio_balloon"];
/// Directory of [`MORE_MODULES`].
const MORE_MODULES_DIRECTORY: &str = "usr/lib/modules/more";
/// List of [`MORE_MODULES`], each after its dependencies.
const MORE_MODULES_ORDER: &str = "usr/lib/modules/more/load-order";

/// Workload in `/usr/bin/demo-load`.
const LOAD_SCRIPT: &str = include_str!("demo-load.sh");
/// Workload in `/usr/bin/mixed-load`.
const MIXED_SCRIPT: &str = include_str!("mixed-load.sh");

/// Sources that determine the contents of an image, besides those of every root file system. Images are made
/// again when one changes.
const RECIPE: &[&str] = &[LOAD_SCRIPT, MIXED_SCRIPT, include_str!("demo.rs")];

/// Options of a demo image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DemoOptions {
    /// Series of the kernel.
    pub series: KernelSeries,
    /// Configuration of the kernel.
    pub flavour: KernelFlavour,
}

impl DemoOptions {
    /// Returns the image's name without `.img`: `demo` for the defaults; other options are in the name, like
    /// `demo-6.12-generic`.
    pub fn name(&self) -> String {
        let mut name = String::from("demo");
        if self.series != KernelSeries::default() {
            name.push_str(&format!("-{}", self.series));
        }
        if self.flavour != KernelFlavour::default() {
            name.push_str(&format!("-{}", self.flavour));
        }
        name
    }

    fn file_name(&self) -> String {
        format!("{}.img", self.name())
    }
}

/// Makes a demo image and returns its path, `target/guest/NAME.img`. `NAME.manifest.json` next to the image
/// lists its contents.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, a program does not compile, the disk is full.
pub fn demo(options: &DemoOptions, progress: &dyn Progress) -> Result<PathBuf> {
    let lock = DirectoryLock::take()?;
    let directory = guest_directory();
    let image = directory.join(options.file_name());
    let manifest = directory.join(options.name()).with_added_extension("manifest.json");

    progress.begin("building the guest's programs");
    let binaries = programs()?;
    progress.end();
    let programs = WORKLOADS
        .iter()
        .chain([&INIT])
        .map(|name| Ok(ProgramFile { name: (*name).to_owned(), sha256: sha256_of(&binaries.join(name))? }))
        .collect::<Result<Vec<_>>>()?;

    let mut store = PackageStore::open()?;
    let kernel_inputs = store.fetch(wanted(options.series, options.flavour), progress)?;
    let root_inputs = store.fetch(PackageQuery::Closure(PACKAGES), progress)?;
    let packages: Vec<PackageFile> = root_inputs.iter().chain(&kernel_inputs).cloned().collect();
    let fingerprint = fingerprint(&[RECIPE, rootfs::RECIPE, foreign::SOURCES].concat(), &packages, &programs);
    let file = options.file_name();
    ProductRecipe { manifest, products: &[&file], fingerprint, packages, programs }.provide(
        &lock,
        |stage| {
            progress.begin(&format!("making {}", image.display()));
            let root = stage.join("root");
            let kernel = fill(&root, &store, &root_inputs, &kernel_inputs, &binaries)?;
            disk::make(&root, &stage.join(&file), &file_system())?;
            progress.end();
            Ok(kernel.release)
        },
    )?;
    Ok(image)
}

/// Returns the options of the disk's file system.
fn file_system() -> disk::Ext4Options<'static> {
    let uuid = "6f1d2c3e-5a4b-4c8d-9e7f-767072660001";
    disk::Ext4Options { label: "vprof", uuid, free: 128 << 20, owners: HashMap::new() }
}

/// Creates the files of the root file system.
fn fill(
    root: &Path,
    store: &PackageStore,
    root_inputs: &[PackageFile],
    kernel_inputs: &[PackageFile],
    binaries: &Path,
) -> Result<UnpackedKernel> {
    rootfs::unpack_packages(&store.paths(root_inputs), root)?;
    let kernel = UnpackedKernel::unpack(&store.paths(kernel_inputs), root)?;
    rootfs::put_boot(root, &kernel, &initrd_of(&kernel, binaries)?)?;
    put_more_modules(root, &kernel)?;
    for name in WORKLOADS {
        put(&root.join("usr/bin").join(name), 0o755, &read(&binaries.join(name))?)?;
    }
    for (path, script) in [(DEMO_LOAD, LOAD_SCRIPT), (MIXED_LOAD, MIXED_SCRIPT)] {
        put(&root.join(path.trim_start_matches('/')), 0o755, script.as_bytes())?;
    }
    for path in foreign::compile(root)? {
        set_mode(&path, 0o755)?;
    }
    settle(root)?;
    Ok(kernel)
}

/// Adds the modules that are not in the initrd.
fn put_more_modules(root: &Path, kernel: &UnpackedKernel) -> Result<()> {
    let loaded = kernel.modules.load_order(NEEDED_MODULES, USEFUL_MODULES)?;
    let modules = kernel.modules.load_order(&[], MORE_MODULES)?;
    put_directory(&root.join(MORE_MODULES_DIRECTORY), 0o755)?;
    let mut order = String::new();
    for module in modules.iter().filter(|module| !loaded.contains(module)) {
        let path = format!("{MORE_MODULES_DIRECTORY}/{}.ko", module.name);
        put(&root.join(&path), 0o644, &module.contents)?;
        order.push_str(&format!("/{path}\n"));
    }
    put(&root.join(MORE_MODULES_ORDER), 0o644, order.as_bytes())
}

/// Returns the initrd: init, modules, and one workload for guests without a disk.
fn initrd_of(kernel: &UnpackedKernel, binaries: &Path) -> Result<Vec<u8>> {
    let modules = kernel.modules.load_order(NEEDED_MODULES, USEFUL_MODULES)?;
    let init = read(&binaries.join(INIT))?;
    let spin = read(&binaries.join("spin"))?;
    let make = || {
        let mut archive = initrd::base(&modules)?;
        archive.file("init", 0o755, &init)?;
        archive.file("usr/bin/spin", 0o755, &spin)?;
        archive.directory("root", 0o700)?;
        initrd::compress(&archive.finish()?)
    };
    make().context("cannot make the initrd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_named_by_what_differs() {
        let name = |series, flavour| DemoOptions { series, flavour }.name();
        assert_eq!(name(KernelSeries::V6_1, KernelFlavour::Cloud), "demo");
        assert_eq!(name(KernelSeries::V6_12, KernelFlavour::Cloud), "demo-6.12");
        assert_eq!(name(KernelSeries::V6_1, KernelFlavour::Generic), "demo-generic");
        assert_eq!(name(KernelSeries::V6_12, KernelFlavour::Generic), "demo-6.12-generic");
        assert_eq!(name(KernelSeries::Newest, KernelFlavour::Rt), "demo-newest-rt");
    }
}
