//! `cargo xtask package`: a tarball and a Debian package with all that `cargo xtask install` installs.
//!
//! ```text
//! vprof-VERSION-x86_64-linux.tar.xz    vprof-VERSION/bin/vprof, share/..., licences
//! vprof_VERSION_amd64.deb              /usr/bin/vprof, /usr/share/...
//! ```
//!
//! tar and dpkg-deb write them. All times are that of the last commit, so that the same sources give the same
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use guest_images::portable_host;

use crate::compile::{VprofBuild, VprofKind};
use crate::docs::copy_tree;
use crate::install::{MANUAL, copy_bundle, install_program};
use crate::progress::ProgressLine;
use crate::{deps, workspace};

/// Version of the packages: that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Documents of both packages next to `docs/`.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
/// Directory of the Debian package's documents, as Debian's policy names it (12.3).
const DEBIAN_DOCUMENTS: &str = "usr/share/doc/vprof";

/// Unit of `vprof agent` for systemd.
const UNIT: &str = include_str!("vprof-agent.service");
/// Its place in the tarball, under the prefix.
const UNIT_IN_TARBALL: &str = "share/vprof/vprof-agent.service";
/// Its place in the Debian package, under the prefix. It is not enabled.
const UNIT_IN_DEB: &str = "lib/systemd/system/vprof-agent.service";

/// Directory of zsh in which Debian's packages have completions: Debian's zsh searches no `site-functions`
/// but that of /usr/local.
const DEBIAN_ZSH: &str = "vendor-completions";

/// Maintainer of the Debian package. dpkg wants a name and an address (deb-control(5)); vprof has no address,
/// and RFC 2606 (section 2) keeps `.invalid` for addresses that do not exist.
const MAINTAINER: &str = "The vprof developers <vprof@localhost.invalid>";

/// Arguments of `cargo xtask package`.
#[derive(Debug, Args)]
pub struct PackageArgs {
    /// Directory of the tarball and the Debian package
    #[arg(long, default_value = "target/package", value_name = "DIR")]
    out: PathBuf,
}

/// Makes the packages and prints their paths.
pub fn run(options: &PackageArgs) -> Result<ExitCode> {
    let line = ProgressLine::new();
    let build = VprofBuild::start(VprofKind::Full, &line)?;
    if !deps::ensure_for_demo(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    let bundle = portable_host(&line)?;
    let sources = Sources { root: workspace::root()?, vprof: build.finish(&line)?, bundle };
    for package in line.during("packing", || sources.pack(&options.out))? {
        println!("{}", package.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Contents of the packages.
#[derive(Debug)]
pub struct Sources {
    /// The checkout, whose documents are packed.
    pub root: PathBuf,
    /// The static program.
    pub vprof: PathBuf,
    /// Directory of the portable host.
    pub bundle: PathBuf,
}

impl Sources {
    /// Writes the tarball and the Debian package into a directory, and returns their paths.
    ///
    /// # Errors
    /// The program cannot write its manual pages, the disk is full, tar or dpkg-deb is missing.
    pub fn pack(&self, out: &Path) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let stage = tempfile::tempdir().context("cannot make a directory")?;
        let time = self.commit_time()?;
        let tarball = out.join(format!("vprof-{VERSION}-x86_64-linux.tar.xz"));
        self.tarball(stage.path(), &time, &tarball)?;
        let deb = out.join(format!("vprof_{VERSION}_amd64.deb"));
        self.deb(&stage.path().join("deb"), &time, &deb)?;
        Ok([tarball, deb])
    }

    /// Time of the last commit, s since 1970.
    fn commit_time(&self) -> Result<String> {
        let log = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&self.root))?;
        Ok(log.trim().to_owned())
    }

    fn install(&self, prefix: &Path) -> Result<()> {
        install_program(&self.vprof, prefix)?;
        copy_bundle(&self.bundle, prefix).map(drop)
    }

    /// Copies the documents, as the links and the picture of README.md need them, and writes the licences.
    fn documents(&self, directory: &Path) -> Result<()> {
        copy_tree(&self.root.join("docs"), &directory.join("docs"))?;
        for name in DOCUMENTS {
            let copied = fs::copy(self.root.join(name), directory.join(name));
            copied.with_context(|| format!("cannot copy {name}"))?;
        }
        write(&directory.join("copyright"), COPYRIGHT)
    }

    fn tarball(&self, stage: &Path, time: &str, tarball: &Path) -> Result<()> {
        let name = format!("vprof-{VERSION}");
        let prefix = stage.join(&name);
        self.install(&prefix)?;
        write(&prefix.join(UNIT_IN_TARBALL), UNIT)?;
        self.documents(&prefix)?;
        let mut tar = Command::new("tar");
        tar.args(["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg(format!("--mtime=@{time}")).arg("--file").arg(tarball).arg("-C").arg(stage).arg(&name);
        output(&mut tar).map(drop)
    }

    fn deb(&self, root: &Path, time: &str, deb: &Path) -> Result<()> {
        let prefix = root.join("usr");
        self.install(&prefix)?;
        write(&prefix.join(UNIT_IN_DEB), UNIT)?;
        compress_pages(&prefix.join(MANUAL))?;
        let zsh = prefix.join("share/zsh");
        fs::rename(zsh.join("site-functions"), zsh.join(DEBIAN_ZSH))
            .context("cannot move the completions of zsh")?;
        self.documents(&root.join(DEBIAN_DOCUMENTS))?;
        let kib = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(&prefix))?;
        let kib = kib.split_whitespace().next().context("du prints a size")?.to_owned();
        write(&root.join("DEBIAN/control"), &control(&kib))?;
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "--build"]).arg(root).arg(deb);
        output(build.env("SOURCE_DATE_EPOCH", time)).map(drop)
    }
}

/// Control file of the Debian package (deb-control(5)). The program is static, so it depends on nothing.
fn control(installed_kib: &str) -> String {
    format!(
        "Package: vprof\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {installed_kib}\nSuggests: qemu-system-x86, passt\nSection: devel\nPriority: optional\n\
         Description: statistical profiler of Linux virtual machines, from the host\n \
         It samples every vCPU of a virtual machine and shows the guest's processes,\n \
         functions and call stacks. It needs no agent in the guest, no symbol files\n \
         and no PMU. The package has the portable host, in which guests run where KVM\n \
         is not usable; that needs QEMU.\n"
    )
}

/// Licences of both packages' files, in the format of Debian's policy (copyright-format 1.0).
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: vprof

Files: *
Copyright: the vprof developers
License: Apache-2.0 or Expat
 The files LICENSE-APACHE and LICENSE-MIT have the texts.

Files: */share/vprof/portable-host/*
Copyright: the authors of Linux
License: GPL-2
 Linux and its modules from Debian's package linux-image-cloud-amd64, which vprof
 starts in QEMU and does not contain. Debian has their sources, in the package
 linux. On Debian systems, /usr/share/common-licenses/GPL-2 has the text.
";

/// Compresses manual pages, as Debian's policy has it (12.1).
fn compress_pages(directory: &Path) -> Result<()> {
    let mut gzip = Command::new("gzip");
    gzip.args(["-9", "--no-name"]);
    for page in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        gzip.arg(page.context("cannot list the manual pages")?.path());
    }
    output(&mut gzip).map(drop)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().context("a file has a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs a command to its end and returns what it prints.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    ensure!(
        output.status.success(),
        "{name} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use guest_images::{PORTABLE_HOST_FILES, in_clean_debian};

    use super::*;

    /// A program that writes one manual page and completions, and a bundle.
    fn made_up(directory: &Path) -> Sources {
        let vprof = directory.join("vprof");
        let script =
            "#!/bin/sh\nif [ $1 = man ]; then mkdir -p $2; echo page > $2/vprof.1; else echo $2; fi\n";
        fs::write(&vprof, script).unwrap();
        fs::set_permissions(&vprof, fs::Permissions::from_mode(0o755)).unwrap();
        let bundle = directory.join("bundle");
        fs::create_dir(&bundle).unwrap();
        for name in PORTABLE_HOST_FILES {
            fs::write(bundle.join(name), name).unwrap();
        }
        Sources { root: workspace::root().unwrap(), vprof, bundle }
    }

    #[test]
    fn both_packages_have_all_that_is_installed() {
        let directory = tempfile::tempdir().unwrap();
        let sources = made_up(directory.path());
        let [tarball, deb] = sources.pack(&directory.path().join("out")).unwrap();
        let in_tarball = output(Command::new("tar").arg("-tf").arg(&tarball)).unwrap();
        let in_deb = output(Command::new("dpkg-deb").arg("--contents").arg(&deb)).unwrap();
        for name in [
            "bin/vprof",
            "share/vprof/portable-host/vmlinuz",
            "share/vprof/portable-host/initrd.img",
            "share/bash-completion/completions/vprof",
            "share/man/man1/vprof.1",
        ] {
            let at_end = |list: &str, path: String| {
                list.lines().any(|line| line.ends_with(&path) || line.ends_with(&format!("{path}.gz")))
            };
            assert!(at_end(&in_tarball, format!("vprof-{VERSION}/{name}")), "{name}: {in_tarball}");
            assert!(at_end(&in_deb, format!("./usr/{name}")), "{name}: {in_deb}");
        }
        for name in ["LICENSE-MIT", "copyright", "docs/page.md", "docs/pictures/page.png"] {
            assert!(in_tarball.contains(&format!("vprof-{VERSION}/{name}\n")), "{name}: {in_tarball}");
            assert!(in_deb.contains(&format!("/{DEBIAN_DOCUMENTS}/{name}\n")), "{name}: {in_deb}");
        }
        assert!(in_tarball.contains(&format!("vprof-{VERSION}/{UNIT_IN_TARBALL}\n")), "{in_tarball}");
        assert!(in_deb.contains(&format!("./usr/{UNIT_IN_DEB}\n")), "{in_deb}");
        assert!(in_tarball.contains("share/zsh/site-functions/_vprof\n"), "{in_tarball}");
        assert!(in_deb.contains("share/zsh/vendor-completions/_vprof\n"), "{in_deb}");
        let field = |name| output(Command::new("dpkg-deb").arg("--field").arg(&deb).arg(name)).unwrap();
        assert_eq!((field("Package").trim(), field("Depends").trim()), ("vprof", ""));
        // The same sources give the same bytes.
        let again = sources.pack(&directory.path().join("again")).unwrap();
        for (first, second) in [tarball, deb].iter().zip(&again) {
            assert!(fs::read(first).unwrap() == fs::read(second).unwrap(), "{}", first.display());
        }
    }

    #[test]
    #[ignore = "a Debian: --all"]
    fn the_package_works_in_a_clean_debian() {
        let directory = tempfile::tempdir().unwrap();
        let line = ProgressLine::new();
        let vprof = guest_images::static_binary("vprof").unwrap();
        let sources =
            Sources { root: workspace::root().unwrap(), vprof, bundle: portable_host(&line).unwrap() };
        let [_, deb] = sources.pack(directory.path()).unwrap();
        // The variable would name the portable host of this checkout.
        let script = "unset VPROF_PORTABLE_HOST; vprof --version; vprof doctor; echo \"exit $?\"; zcat /usr/share/man/man1/vprof.1.gz | head -1";
        let said = in_clean_debian(&deb, script).unwrap();
        assert!(said.contains(&format!("vprof {VERSION}")), "{said}");
        // There is no KVM in it, and no QEMU for the portable host, which it finds.
        assert!(said.contains("exit 4") && said.contains("QEMU"), "{said}");
        assert!(!said.contains("cargo xtask image"), "the portable host was not found: {said}");
    }
}
