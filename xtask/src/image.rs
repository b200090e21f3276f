//! `cargo xtask image`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use guest_images::{
    DebianOptions, DebianRelease, DemoOptions, FileFormat, KernelFlavour, KernelSeries, corpus, debian, demo,
    kvm_host, portable_host,
};

use crate::deps;
use crate::progress::ProgressLine;

/// Image to make.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// A disk with a kernel, a small Debian and programs whose use of the CPU is known
    Demo(DemoImageArgs),
    /// An unmodified Debian with systemd on a disk with partitions, installed by Debian's own tools
    Debian(DebianImageArgs),
    /// A Debian with servers and language runtimes, and workloads that measure themselves
    Corpus(CorpusImageArgs),
    /// A small Debian with QEMU and KVM, in which tests run virtual machines that are not vprof's
    KvmHost,
    /// Kernel and modules of the emulated host that offers a real /dev/kvm
    PortableHost,
}

/// Kernel of a demo image.
#[derive(Debug, Args)]
pub struct DemoImageArgs {
    /// Series of the guest's kernel: 5.10, 6.1, 6.12 or newest
    #[arg(long, default_value_t)]
    kernel: KernelSeries,
    /// Configuration of the guest's kernel: cloud, generic or rt
    #[arg(long, default_value_t)]
    flavour: KernelFlavour,
}

/// Release and format of a Debian image.
#[derive(Debug, Args)]
pub struct DebianImageArgs {
    /// Debian's release: bookworm or trixie
    #[arg(long, default_value_t)]
    release: DebianRelease,
    /// Format of the file: raw or qcow2
    #[arg(long, default_value_t)]
    format: FileFormat,
}

/// Which image of real programs.
#[derive(Debug, Args)]
pub struct CorpusImageArgs {
    /// Debian's release: bookworm or trixie
    #[arg(long, default_value_t)]
    release: DebianRelease,
}

/// Makes the image, if something in it changed, and prints its path.
pub fn run(image: &ImageCommand) -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !deps::ensure(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let path = match image {
        ImageCommand::Demo(DemoImageArgs { kernel, flavour }) => {
            demo(&DemoOptions { series: *kernel, flavour: *flavour }, &line)?
        }
        ImageCommand::Debian(DebianImageArgs { release, format }) => {
            debian(&DebianOptions { release: *release, format: *format }, &line)?
        }
        ImageCommand::Corpus(CorpusImageArgs { release }) => corpus(*release, &line)?,
        ImageCommand::KvmHost => kvm_host(&line)?,
        ImageCommand::PortableHost => portable_host(&line)?,
    };
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}
