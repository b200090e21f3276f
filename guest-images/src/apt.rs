//! apt with a private state: the machine's package database is neither read nor changed, and root is not
//! needed.
//!
//! The state is private by one configuration file, named by `APT_CONFIG`, which apt reads first
//! (apt.conf(5)). That file puts lists, cache and an empty dpkg status below one directory, and takes the
//! sources from [`ArchiveMirrors`]. Of the machine's configuration it keeps only the access to the network,
//! and so leaves out hooks that expect root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::place::make_directory;
use crate::sources::{ArchiveMirrors, DebianSuites, MIRROR_VARIABLE};
use crate::tools::{output_of, run, tool};

/// Parts of the machine's apt configuration that set the access to the network.
const KEPT: &[&str] =
    &["Acquire::http::", "Acquire::https::", "Acquire::ForceIPv", "Acquire::Check-", "Acquire::Retries"];

/// Preferences with the same priority for all suites, so that the newest version wins. By default apt would
/// ignore backports (apt_preferences(5), `NotAutomatic`).
const PREFERENCES: &str = "Package: *\nPin: release o=Debian*\nPin-Priority: 500\n";

/// apt with a private state.
#[derive(Debug)]
pub(crate) struct AptClient {
    directory: PathBuf,
    mirrors: ArchiveMirrors,
    release: DebianSuites,
}

/// Package file as the signed package lists describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedPackage {
    /// Name of apt's copy of the file: `name_version_architecture.deb`.
    pub(crate) file: String,
    /// Length in bytes.
    pub(crate) size: u64,
    /// SHA-256 in hexadecimal digits.
    pub(crate) sha256: String,
}

impl AptClient {
    /// Creates the state for a release below `directory`.
    pub(crate) fn new(directory: &Path, release: DebianSuites) -> Result<Self> {
        let apt = Self {
            directory: directory.to_owned(),
            mirrors: ArchiveMirrors::from_machine(
                Path::new("/etc/apt"),
                std::env::var(MIRROR_VARIABLE).ok(),
            )?,
            release,
        };
        for part in ["lists/partial", "empty", "sources", "none/partial", "log"] {
            make_directory(&directory.join(part))?;
        }
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("status", "")?;
        write("sources/debian.sources", &apt.mirrors.to_deb822(release))?;
        write("preferences", PREFERENCES)?;
        let network = output_of(tool("apt-config", "apt")?.arg("dump"))?;
        write("apt.conf", &configuration(directory, &network))?;
        Ok(apt)
    }

    fn command(&self, name: &str) -> Result<Command> {
        let mut command = tool(name, "apt")?;
        command.env("APT_CONFIG", self.directory.join("apt.conf")).env("DEBIAN_FRONTEND", "noninteractive");
        Ok(command)
    }

    /// Fetches the package lists.
    pub(crate) fn update(&self) -> Result<()> {
        run(self.command("apt-get")?.args(["-q", "update"])).map(drop).with_context(|| {
            format!(
                "cannot read the package lists of Debian's {} from {}: check the network, and apt's proxy if there is one",
                self.release.name(),
                self.mirrors.main.uri
            )
        })
    }

    /// Returns the packages of the kernel on which a meta package like linux-image-cloud-amd64 depends now.
    ///
    /// Until Linux 7.1 the kernel is one package. Since then that package depends on others with parts of the
    /// kernel.
    pub(crate) fn kernel_packages(&self, meta: &str) -> Result<Vec<String>> {
        const IMAGE: &str = "linux-image-";
        let depends = self.depends_of(meta)?;
        let image = depends
            .into_iter()
            .find(|name| name.starts_with(IMAGE))
            .with_context(|| format!("Debian's package {meta} names no kernel that it depends on"))?;
        let suffix = image.trim_start_matches(IMAGE);
        let mut packages = self.depends_of(&image)?;
        packages.retain(|name| name.strip_suffix(suffix).is_some_and(|kind| kind.ends_with('-')));
        packages.push(image);
        Ok(packages)
    }

    fn depends_of(&self, package: &str) -> Result<Vec<String>> {
        let text = output_of(self.command("apt-cache")?.args(["depends", "--important", package]))?;
        Ok(text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
    }

    /// Lists the files of `packages` and of all their dependencies, as for an empty system.
    pub(crate) fn list_closure(&self, packages: &[&str]) -> Result<Vec<ListedPackage>> {
        let mut command = self.command("apt-get")?;
        // The archive directory is empty, because apt lists only packages that are not in it yet.
        command.args(["-qq", "--print-uris", "-o"]).arg(self.archives("none")).arg("install").args(packages);
        parse_uris(&output_of(&mut command)?)
    }

    /// Lists the files of `packages` alone.
    pub(crate) fn list_alone(&self, packages: &[&str]) -> Result<Vec<ListedPackage>> {
        let mut command = self.command("apt-get")?;
        parse_uris(&output_of(command.args(["-qq", "--print-uris", "download"]).args(packages))?)
    }

    /// Downloads `packages` and all their dependencies into `to`.
    pub(crate) fn download_closure(&self, packages: &[&str], to: &Path) -> Result<()> {
        make_directory(&to.join("partial"))?;
        let mut command = self.command("apt-get")?;
        command.args(["-qq", "-y", "--download-only", "-o"]);
        command.arg(format!("Dir::Cache::archives={}/", to.display())).arg("install").args(packages);
        run(&mut command).map(drop)
    }

    /// Downloads `packages` alone into `to`.
    pub(crate) fn download_alone(&self, packages: &[&str], to: &Path) -> Result<()> {
        make_directory(to)?;
        run(self.command("apt-get")?.args(["-qq", "download"]).args(packages).current_dir(to)).map(drop)
    }

    fn archives(&self, name: &str) -> String {
        format!("Dir::Cache::archives={}/", self.directory.join(name).display())
    }
}

/// Returns the private configuration. `machine` is the output of `apt-config dump` on this machine.
fn configuration(directory: &Path, machine: &str) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let mut text = String::new();
    for line in machine.lines().filter(|line| KEPT.iter().any(|kept| line.starts_with(kept))) {
        text.push_str(line);
        text.push('\n');
    }
    for (name, value) in [
        ("Dir::State", at("")),
        ("Dir::State::lists", at("lists")),
        ("Dir::State::status", at("status")),
        ("Dir::State::extended_states", at("extended_states")),
        ("Dir::Cache", at("")),
        ("Dir::Log", at("log")),
        ("Dir::Etc::sourcelist", "/dev/null".into()),
        ("Dir::Etc::sourceparts", at("sources")),
        ("Dir::Etc::main", "/dev/null".into()),
        ("Dir::Etc::parts", at("empty")),
        ("Dir::Etc::preferences", at("preferences")),
        ("Dir::Etc::preferencesparts", at("empty")),
        ("APT::Architecture", "amd64".into()),
        ("APT::Architectures::", "amd64".into()),
        ("APT::Install-Recommends", "false".into()),
        ("APT::Update::Error-Mode", "any".into()),
        ("APT::Keep-Downloaded-Packages", "true".into()),
        // apt that runs as root would download as another user, who cannot write below the workspace.
        ("APT::Sandbox::User", "root".into()),
        // A suite's release may change while these lists are kept.
        ("Acquire::AllowReleaseInfoChange", "true".into()),
        ("Acquire::Languages", "none".into()),
        ("Acquire::GzipIndexes", "true".into()),
        // --print-uris prints this one of the lists' hashes.
        ("Acquire::ForceHash", "SHA256".into()),
    ] {
        text.push_str(&format!("{name} \"{value}\";\n"));
    }
    text
}

/// Reads lines of `'URI' FILE SIZE SHA256:DIGITS`, which `apt-get --print-uris` writes.
fn parse_uris(text: &str) -> Result<Vec<ListedPackage>> {
    let mut listed = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('\'')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, file, size, hash] = words[..] else {
            bail!("cannot parse apt-get's description of a package: {line}");
        };
        let digits = hash.strip_prefix("SHA256:").filter(|digits| digits.len() == 64);
        let (Some(digits), Ok(size)) = (digits, size.parse()) else {
            bail!("apt-get gave no length or no SHA-256 for a package: {line}");
        };
        if file.contains('/') || !file.ends_with(".deb") {
            bail!("apt-get named a file that is not a package: {line}");
        }
        listed.push(ListedPackage { file: file.to_owned(), size, sha256: digits.to_owned() });
    }
    if listed.is_empty() {
        bail!("apt-get listed no package");
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read() {
        let digits = "ab".repeat(32);
        let text = format!("'http://m/pool/a_1%3a2-3_amd64.deb' a_1%3a2-3_amd64.deb 1234 SHA256:{digits}\n");
        let listed = parse_uris(&text).unwrap();
        assert_eq!(
            listed,
            [ListedPackage { file: "a_1%3a2-3_amd64.deb".into(), size: 1234, sha256: digits }]
        );
    }

    #[test]
    fn strange_uris_are_refused() {
        let digits = "0".repeat(64);
        for text in [
            String::new(),
            "E: Unable to locate package".into(),
            "'http://m/a.deb' a.deb 1 MD5Sum:00".into(),
            "'http://m/a.deb' a.deb".into(),
            format!("'http://m/a.deb' ../a.deb 1 SHA256:{digits}"),
            format!("'http://m/a' a 1 SHA256:{digits}"),
            format!("'http://m/a.deb' a.deb many SHA256:{digits}"),
        ] {
            assert!(parse_uris(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_the_network_part_of_the_machine_is_kept() {
        let machine = "Acquire::http::Proxy \"http://proxy:3128\";\n\
                       DPkg::Post-Invoke:: \"rm -f x\";\nAcquire::Languages \"de\";\n";
        let text = configuration(Path::new("/x/apt"), machine);
        assert!(text.contains("Proxy \"http://proxy:3128\""));
        assert!(!text.contains("Post-Invoke"));
        assert!(!text.contains("\"de\""));
        assert!(text.contains("Dir::State::status \"/x/apt/status\";"));
    }
}
