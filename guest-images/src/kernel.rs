//! Debian's kernels.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::debs::unpack;
use crate::modules::Modules;

/// A series of Linux kernels that Debian 12 offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Series {
    /// Debian 12's own.
    #[default]
    V6_1,
    /// Debian 13's, which Debian 12 gets as an additional package.
    V6_12,
}

/// A configuration of Debian's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavour {
    /// For virtual machines in clouds: few drivers.
    #[default]
    Cloud,
    /// For any machine.
    Generic,
}

/// A series or a flavour that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    given: String,
    known: &'static str,
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
        match text {
            "6.1" => Ok(Self::V6_1),
            "6.12" => Ok(Self::V6_12),
            _ => Err(Unknown { given: text.to_owned(), known: "6.1 or 6.12" }),
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        })
    }
}

impl FromStr for Flavour {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        match text {
            "cloud" => Ok(Self::Cloud),
            "generic" => Ok(Self::Generic),
            _ => Err(Unknown { given: text.to_owned(), known: "cloud or generic" }),
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cloud => "cloud",
            Self::Generic => "generic",
        })
    }
}

/// The meta package behind which Debian keeps the newest kernel of a kind.
pub(crate) fn meta_package(series: Series, flavour: Flavour) -> &'static str {
    match (series, flavour) {
        (Series::V6_1, Flavour::Cloud) => "linux-image-cloud-amd64",
        (Series::V6_1, Flavour::Generic) => "linux-image-amd64",
        (Series::V6_12, Flavour::Cloud) => "linux-image-6.12-cloud-amd64",
        (Series::V6_12, Flavour::Generic) => "linux-image-6.12-amd64",
    }
}

/// Parts of `/lib/modules/RELEASE/kernel` that guests may need; the generic flavour has hundreds of MB of others.
const MODULE_DIRECTORIES: &[&str] =
    &["arch", "crypto", "fs", "lib", "virt", "drivers/block", "drivers/char", "drivers/virtio"];

/// A kernel package, unpacked.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// What `uname -r` says.
    pub(crate) release: String,
    /// The bzImage.
    pub(crate) image: PathBuf,
    /// Its modules.
    pub(crate) modules: Modules,
}

impl Kernel {
    /// Unpacks a kernel package into `root`.
    pub(crate) fn unpack(deb: &Path, root: &Path) -> Result<Self> {
        let mut options = vec!["--wildcards", "./boot/vmlinuz-*", "*lib/modules/*/modules.builtin"];
        let directories: Vec<String> =
            MODULE_DIRECTORIES.iter().map(|name| format!("*lib/modules/*/kernel/{name}")).collect();
        options.extend(directories.iter().map(String::as_str));
        unpack(deb, root, &options)?;
        let boot = root.join("boot");
        let names = fs::read_dir(&boot)
            .with_context(|| format!("{} holds no directory /boot", deb.display()))?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let releases: Vec<String> =
            names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
        let [release] = &releases[..] else {
            bail!("{} holds {} files /boot/vmlinuz-*, not one", deb.display(), releases.len());
        };
        let modules = [root.join("lib/modules"), root.join("usr/lib/modules")]
            .into_iter()
            .map(|modules| modules.join(release))
            .find(|modules| modules.is_dir())
            .with_context(|| format!("{} holds no modules of its kernel {release}", deb.display()))?;
        Ok(Self {
            release: release.clone(),
            image: boot.join(format!("vmlinuz-{release}")),
            modules: Modules::find(&modules)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_and_flavours_have_names() {
        for series in [Series::V6_1, Series::V6_12] {
            assert_eq!(series.to_string().parse(), Ok(series));
        }
        for flavour in [Flavour::Cloud, Flavour::Generic] {
            assert_eq!(flavour.to_string().parse(), Ok(flavour));
        }
        let error = "5.10".parse::<Series>().unwrap_err();
        assert_eq!(error.to_string(), "there is no 5.10: use 6.1 or 6.12");
    }
}
