//! Debian's kernels.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::debs::{Wanted, unpack};
use crate::modules::Modules;
use crate::sources::Release;

/// Series of Linux kernels in Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Series {
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

impl Series {
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
pub enum Flavour {
    /// For virtual machines in clouds: few drivers.
    #[default]
    Cloud,
    /// For any machine.
    Generic,
    /// `PREEMPT_RT`, for any machine.
    Rt,
}

impl Flavour {
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
pub struct Unknown {
    given: String,
    known: &'static str,
}

impl Unknown {
    pub(crate) fn new(given: &str, known: &'static str) -> Self {
        Self { given: given.to_owned(), known }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no {}: use {}", self.given, self.known)
    }
}

impl std::error::Error for Unknown {}

impl FromStr for Series {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let known = "5.10, 6.1, 6.12 or newest";
        let found = Self::ALL.into_iter().find(|series| series.name() == text);
        found.ok_or_else(|| Unknown { given: text.to_owned(), known })
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Flavour {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let known = "cloud, generic or rt";
        let found = Self::ALL.into_iter().find(|flavour| flavour.name() == text);
        found.ok_or_else(|| Unknown { given: text.to_owned(), known })
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the meta package, and its release, that depends on Debian's newest kernel of a kind.
pub(crate) fn wanted(series: Series, flavour: Flavour) -> Wanted<'static> {
    let plain = match flavour {
        Flavour::Cloud => "linux-image-cloud-amd64",
        Flavour::Generic => "linux-image-amd64",
        Flavour::Rt => "linux-image-rt-amd64",
    };
    match series {
        Series::V5_10 => Wanted::Kernel(Release::Bullseye, plain),
        Series::V6_1 => Wanted::Kernel(Release::Bookworm, plain),
        Series::V6_12 => Wanted::Kernel(
            Release::Bookworm,
            match flavour {
                Flavour::Cloud => "linux-image-6.12-cloud-amd64",
                Flavour::Generic => "linux-image-6.12-amd64",
                Flavour::Rt => "linux-image-6.12-rt-amd64",
            },
        ),
        Series::Newest => Wanted::Kernel(Release::Newest, plain),
    }
}

/// Options of tar that leave out parts which no guest needs: documents, symbol lists, and hundreds of MB of the generic
/// flavours' modules.
const LEFT_OUT: &[&str] = &[
    "--exclude=./boot/[!v]*",
    "--exclude=./usr/share",
    "--exclude=*/System.map",
    "--exclude=*/config",
    "--exclude=*/modules.builtin.modinfo",
    "--exclude=*/modules.order",
    // Of net, core and vmw_vsock stay; of its drivers, those outside of subdirectories, like virtio_net.
    "--exclude=*/kernel/net/[!cv]*",
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
pub(crate) struct Kernel {
    /// Release, as `uname -r` prints it.
    pub(crate) release: String,
    /// Path of the bzImage.
    pub(crate) image: PathBuf,
    /// Modules of the kernel.
    pub(crate) modules: Modules,
}

impl Kernel {
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
        Ok(Self { release: release.clone(), image, modules: Modules::find(&modules.join(release))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_flavours_have_names() {
        for series in Series::ALL {
            assert_eq!(series.to_string().parse(), Ok(series));
        }
        for flavour in Flavour::ALL {
            assert_eq!(flavour.to_string().parse(), Ok(flavour));
        }
        let error = "4.19".parse::<Series>().unwrap_err();
        assert_eq!(error.to_string(), "there is no 4.19: use 5.10, 6.1, 6.12 or newest");
    }
}
