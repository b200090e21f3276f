//! `cargo xtask image`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use guest_images::{
    DebianOptions, DebianRelease, DemoOptions, FileFormat, KernelFlavour, KernelSeries, corpus, debian, demo,
    kvm_host, portable_host,
};

use crate::deps;
use crate::progress::Line;

/// Which image.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// A disk with a kernel, a small Debian and programs whose use of the CPU is known
    Demo(Demo),
    /// An unmodified Debian with systemd on a disk with partitions, installed by Debian's own tools
    Debian(Debian),
    /// A Debian with servers and language runtimes, and workloads that measure themselves
    Corpus(Corpus),
    /// A small Debian with QEMU and KVM, in which tests run virtual machines that are not vprof's
    KvmHost,
    /// Kernel and modules of the emulated host that offers a real /dev/kvm
    PortableHost,
}

/// Which demo image.
#[derive(Debug, Args)]
pub struct Demo {
    /// Series of the guest's kernel: 5.10, 6.1, 6.12 or newest
    #[arg(long, default_value_t)]
    kernel: KernelSeries,
    /// Configuration of the guest's kernel: cloud, generic or rt
    #[arg(long, default_value_t)]
    flavour: KernelFlavour,
}

/// Which Debian image.
#[derive(Debug, Args)]
pub struct Debian {
    /// Debian's release: bookworm or trixie
    #[arg(long, default_value_t)]
    release: DebianRelease,
    /// Format of the file: raw or qcow2
    #[arg(long, default_value_t)]
    format: FileFormat,
}

/// Which image of real programs.
#[derive(Debug, Args)]
pub struct Corpus {
    /// Debian's release: bookworm or trixie
    #[arg(long, default_value_t)]
    release: DebianRelease,
}

/// Makes the image, if something in it changed, and prints its path.
pub fn run(image: &Image) -> Result<ExitCode> {
    let line = Line::new();
    if !deps::ensure(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let path = match image {
        Image::Demo(Demo { kernel, flavour }) => {
            demo(&DemoOptions { series: *kernel, flavour: *flavour }, &line)?
        }
        Image::Debian(Debian { release, format }) => {
            debian(&DebianOptions { release: *release, format: *format }, &line)?
        }
        Image::Corpus(Corpus { release }) => corpus(*release, &line)?,
        Image::KvmHost => kvm_host(&line)?,
        Image::PortableHost => portable_host(&line)?,
    };
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}
