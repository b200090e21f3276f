//! Recipes for the guests of vprof's demonstrations and tests.
//!
//! No recipe needs root, a mount or a running guest: packages come from Debian's archive through a private
//! apt state, files are unpacked into a directory, and `mke2fs -d` turns the directory into a disk.
//!
//! ```text
//! Debian packages --apt-get, own state-> target/guest/debs --dpkg-deb--> a directory --mke2fs-> demo.img
//! this workspace  --cargo, static------> target/*/release  -----------------^
//! ```
//!
//! | recipe | product |
//! |---|---|
//! | [`demo()`] | `target/guest/demo.img`: a small Debian with kernel and initrd, a whole-disk ext4 |
//! | [`debian()`] | `target/guest/debian.img`: an unmodified Debian with systemd, installed by Debian's own tools |
//! | [`corpus()`] | `target/guest/corpus-RELEASE.img`: a Debian with real programs that measure themselves |
//! | [`portable_host()`] | `target/guest/portable-host/`: kernel and modules of the emulated host with `/dev/kvm` |
//! | [`kvm_host()`] | `target/guest/kvm-host.img`: a small Debian with QEMU and KVM, in which other VMMs run guests |
//! | [`static_binary`] | a program of this workspace that runs as the only file of an initramfs |
//!
//! The disk of `debian` has partitions, that of `corpus` has none; its releases are bookworm and trixie. A
//! manifest like `demo.manifest.json` is next to each image.
//!
//! A product is made again only when one of its inputs has changed. If several processes need the same
//! product, one makes it and the others wait.
//!
//! # An initrd of these images
//! A gzip-compressed cpio archive (`newc`) with `/init` ([`guest_programs`]' `guest-init`), the kernel
//! modules and their order in [`guest_programs::LOAD_ORDER`]. To give the guest a command, a launcher appends
//! a second, uncompressed archive, made by [`command_archive`], at an offset that is a multiple of 4.

mod apt;
mod archive;
mod binary;
mod corpus;
mod debian;
mod debs;
mod demo;
mod disk;
mod esp;
mod foreign;
mod initrd;
mod installation;
mod kernel;
mod kvm_host;
mod manifest;
mod modules;
mod partitions;
mod place;
mod portable;
mod rootfs;
mod sources;
mod tools;
mod trial;

pub use archive::{ALIGNMENT, CpioArchive, command_archive};
pub use binary::{cargo, static_binary};
pub use corpus::corpus;
pub use debian::{DebianOptions, DebianRelease, FileFormat, debian};
pub use demo::{DemoOptions, demo};
pub use kernel::{KernelFlavour, KernelSeries, UnknownName};
pub use kvm_host::kvm_host;
pub use manifest::{ImageManifest, PackageFile};
pub use place::guest_directory;
pub use portable::{PORTABLE_HOST_FILES, portable_host};
pub use tools::find_program;
pub use trial::in_clean_debian;

/// Receiver of reports on steps that take long enough for the user to wonder.
pub trait Progress {
    /// Reports the begin of a step, like "building the guest's programs". The previous step, if any, has
    /// ended.
    fn begin(&self, step: &str);
    /// Reports the end of the last step.
    fn end(&self);
}

/// Receiver that ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilentProgress;

impl Progress for SilentProgress {
    fn begin(&self, _: &str) {}
    fn end(&self) {}
}
