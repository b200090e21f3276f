//! Recipes for the guests that vprof is shown and tested with.
//!
//! Nothing here needs root, a mount or a running guest: packages come from Debian's archive through a private apt
//! state, files are unpacked into a directory, and `mke2fs -d` turns the directory into a disk.
//!
//! ```text
//! Debian packages --apt-get, own state--> target/guest/debs --dpkg-deb--> a directory --mke2fs -d--> demo.img
//! this workspace  --cargo, static------> target/*/release   ------------------^
//! ```
//!
//! | made | what it is |
//! |---|---|
//! | [`demo`] | `target/guest/demo.img`, a whole-disk ext4 with kernel, initrd and a small Debian; `demo.manifest.json` beside it |
//! | [`debian`] | `target/guest/debian.img`, an unmodified Debian with systemd on a disk with partitions, installed by Debian's own tools |
//! | [`corpus`] | `target/guest/corpus-bookworm.img`, a Debian with real programs and workloads that measure themselves; `corpus-trixie.img` |
//! | [`portable_host`] | `target/guest/portable-host/`, kernel and modules for the emulated host that offers a real `/dev/kvm` |
//! | [`kvm_host`] | `target/guest/kvm-host.img`, a small Debian with QEMU and KVM, in which other VMMs run guests |
//! | [`static_binary`] | a program of this workspace that runs as the only file of an initramfs |
//!
//! Everything is made again only when something it is made of has changed. Several processes may ask for the same
//! thing at once: one makes it, the others wait.
//!
//! # An initrd of these images
//! A gzip-compressed cpio archive (`newc`) with `/init` ([`guest_programs`]' `guest-init`), the kernel modules and
//! their order in [`guest_programs::LOAD_ORDER`]. A launcher hands the guest a command by appending a second,
//! uncompressed archive, made by [`command_archive`], at an offset that is a multiple of four.

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

pub use archive::{ALIGNMENT, Archive, command_archive};
pub use binary::static_binary;
pub use corpus::corpus;
pub use debian::{DebianOptions, DebianRelease, FileFormat, debian};
pub use demo::{DemoOptions, demo};
pub use kernel::{Flavour, Series, Unknown};
pub use kvm_host::kvm_host;
pub use manifest::{Input, Manifest};
pub use place::guest_directory;
pub use portable::portable_host;
pub use tools::find_program;

/// Hears about steps that take long enough for a person to wonder.
pub trait Progress {
    /// A step begins, like "building the guest's programs". The step before, if any, has ended.
    fn begin(&self, step: &str);
    /// The last step has ended.
    fn end(&self);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str) {}
    fn end(&self) {}
}
