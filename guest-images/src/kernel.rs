//! Debian's kernels.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::debs::{PackageQuery, unpack};
use crate::modules::KernelModules;
use crate::sources::DebianSuites;

/// Series of Linux kernels in Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelSeries {
    /// Series of Debian 11.
    V5_10,
    /// Series of Debian 12.
    #[default]
    V6_1,
    /// Series of Debian 13, which Debian 12 has as an additional package.
    V6_12,
    /// Newest release in Debian's archive; release candidates do not count.
    Newest,
}

impl KernelSeries {
    /// All series, the oldest first.
    pub const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::Newest];

    fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        }
    }
}

/// Configuration of Debian's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelFlavour {
    /// For virtual machines in clouds: few drivers.
    #[default]
    Cloud,
    /// For any machine.
    Generic,
    /// `PREEMPT_RT`, for any machine.
    Rt,
}

impl KernelFlavour {
    /// All flavours.
    pub const ALL: [Self; 3] = [Self::Cloud, Self::Generic, Self::Rt];

    fn name(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Generic => "generic",
            Self::Rt => "rt",
        }
    }
}

/// Name of a series, a flavour or another option that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    given: String,
    known: &'static str,
}

impl UnknownName {
    pub(crate) fn new(given: &str, known: &'static str) -> Self {
        Self { given: given.to_owned(), known }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no {}: use {}", self.given, self.known)
    }
}

impl std::error::Error for UnknownName {}

impl FromStr for KernelSeries {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "5.10, 6.1, 6.12 or newest";
        let found = Self::ALL.into_iter().find(|series| series.name() == text);
        found.ok_or_else(|| UnknownName { given: text.to_owned(), known })
    }
}

impl fmt::Display for KernelSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KernelFlavour {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = "cloud, generic or rt";
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| UnknownName { given: text.to_owned(), known })
    }
}

impl fmt::Display for KernelFlavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the meta package, and its release, that depends on Debian's newest kernel of a kind.
pub(crate) fn wanted(series: KernelSeries, flavour: KernelFlavour) -> PackageQuery<'static> {
    let plain = match flavour {
        KernelFlavour::Cloud => "linux-image-cloud-amd64",
        KernelFlavour::Generic => "linux-image-amd64",
        KernelFlavour::Rt => "linux-image-rt-amd64",
    };
    match series {
        KernelSeries::V5_10 => PackageQuery::Kernel(DebianSuites::Bullseye, plain),
        KernelSeries::V6_1 => PackageQuery::Kernel(DebianSuites::Bookworm, plain),
        KernelSeries::V6_12 => PackageQuery::Kernel(
            DebianSuites::Bookworm,
            match flavour {
                KernelFlavour::Cloud => "linux-image-6.12-cloud-amd64",
                KernelFlavour::Generic => "linux-image-6.12-amd64",
                KernelFlavour::Rt => "linux-image-6.12-rt-amd64",
            },
        ),
        KernelSeries::Newest => PackageQuery::Kernel(DebianSuites::Newest, plain),
    }
}

/// Options of tar that leave out parts which no guest needs: documents, symbol lists, and hundreds of MB of
/// the generic flavours' modules.
const LEFT_OUT: &[&str] = &[
    "--exclude=./boot/[!v]*",
    "--exclude=./usr/share",
    "--exclude=*/System.map",
    "--exclude=*/config",
    "--exclude=*/modules.builtin.modinfo",
    "--exclude=*/modules.order",
    // Of net, core stays; of its drivers, those outside of subdirectories, like virtio_net.
    "--exclude=*/kernel/net/[!c]*",
    "--exclude=*/kernel/net/c[!o]*",
    "--exclude=*/kernel/drivers/net/*/*",
    "--exclude=*/kernel/sound",
    // Of the other drivers, block, bus, char, virt, virtio and few others stay.
    "--exclude=*/kernel/drivers/[!bcnv]*",
    "--exclude=*/kernel/drivers/n[!e]*",
    "--exclude=*/kernel/drivers/bluetooth",
    "--exclude=*/kernel/drivers/comedi",
    "--exclude=*/kernel/drivers/crypto",
    "--exclude=*/kernel/drivers/video",
];

/// Kernel that was unpacked from its packages.
#[derive(Debug)]
pub(crate) struct UnpackedKernel {
    /// Release, as `uname -r` prints it.
    pub(crate) release: String,
    /// Path of the bzImage.
    pub(crate) image: PathBuf,
    /// Modules of the kernel.
    pub(crate) modules: KernelModules,
}

impl UnpackedKernel {
    /// Unpacks the packages of one kernel into `root`.
    pub(crate) fn unpack(debs: &[PathBuf], root: &Path) -> Result<Self> {
        for deb in debs {
            unpack(deb, root, LEFT_OUT)?;
        }
        let package = debs.last().map(|deb| deb.display().to_string()).unwrap_or_default();
        let modules = [root.join("lib/modules"), root.join("usr/lib/modules")]
            .into_iter()
            .find(|modules| modules.is_dir())
            .with_context(|| format!("{package} holds no modules"))?;
        let releases: Vec<String> = fs::read_dir(&modules)
            .with_context(|| format!("cannot list {}", modules.display()))?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let [release] = &releases[..] else {
            bail!("{package} holds modules of {} kernels, not of one", releases.len());
        };
        // Linux 7.1 and later have the image at the second path.
        let image = [root.join(format!("boot/vmlinuz-{release}")), modules.join(release).join("vmlinuz")]
            .into_iter()
            .find(|image| image.is_file())
            .with_context(|| format!("{package} holds no image of its kernel {release}"))?;
        Ok(Self { release: release.clone(), image, modules: KernelModules::find(&modules.join(release))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_flavours_have_names() {
        for series in KernelSeries::ALL {
            assert_eq!(series.to_string().parse(), Ok(series));
        }
        for flavour in KernelFlavour::ALL {
            assert_eq!(flavour.to_string().parse(), Ok(flavour));
        }
        let error = "4.19".parse::<KernelSeries>().unwrap_err();
        assert_eq!(error.to_string(), "there is no 4.19: use 5.10, 6.1, 6.12 or newest");
    }
}
