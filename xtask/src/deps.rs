//! Debian packages that the commands need on this machine.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use guest_images::find_program;
use testkit::{FILES, InstalledSign, PROGRAMS, TestNeed};

use crate::progress::ProgressLine;

/// Packages for the demo guest and the portable host.
const DEMO: &[TestNeed] = &[
    TestNeed { package: "apt", sign: InstalledSign::Program("apt-get"), purpose: "fetches Debian packages" },
    TestNeed {
        package: "dpkg",
        sign: InstalledSign::Program("dpkg-deb"),
        purpose: "unpacks Debian packages",
    },
    TestNeed { package: "tar", sign: InstalledSign::Program("tar"), purpose: "unpacks Debian packages" },
    TestNeed {
        package: "debian-archive-keyring",
        sign: InstalledSign::File("/usr/share/keyrings/debian-archive-keyring.gpg"),
        purpose: "checks Debian packages",
    },
    TestNeed { package: "xz-utils", sign: InstalledSign::Program("xz"), purpose: "unpacks kernel modules" },
    TestNeed { package: "e2fsprogs", sign: InstalledSign::Program("mke2fs"), purpose: "makes disk images" },
    TestNeed { package: "gcc", sign: InstalledSign::Program("gcc"), purpose: "links programs" },
    TestNeed {
        package: "g++",
        sign: InstalledSign::Program("g++"),
        purpose: "compiles a guest's C++ program",
    },
    TestNeed {
        package: "libc6-dev",
        sign: InstalledSign::File("/usr/lib/x86_64-linux-gnu/libc.a"),
        purpose: "makes programs static",
    },
    TestNeed {
        package: "qemu-system-x86",
        sign: InstalledSign::Program("qemu-system-x86_64"),
        purpose: "is the portable host where KVM cannot run a kernel",
    },
];

/// Packages for the other images.
const IMAGES: &[TestNeed] = &[
    TestNeed {
        package: "mmdebstrap",
        sign: InstalledSign::Program("mmdebstrap"),
        purpose: "installs a Debian",
    },
    TestNeed { package: "fdisk", sign: InstalledSign::Program("sfdisk"), purpose: "makes partition tables" },
    TestNeed {
        package: "dosfstools",
        sign: InstalledSign::Program("mkfs.vfat"),
        purpose: "makes EFI system partitions",
    },
    TestNeed {
        package: "mtools",
        sign: InstalledSign::Program("mcopy"),
        purpose: "fills EFI system partitions",
    },
    TestNeed {
        package: "qemu-utils",
        sign: InstalledSign::Program("qemu-img"),
        purpose: "makes a test's qcow2 image",
    },
];

/// Runs `cargo xtask deps`.
pub fn run() -> Result<ExitCode> {
    let line = ProgressLine::new();
    if !ensure_for_tests(&line)? {
        return Ok(ExitCode::FAILURE);
    }
    println!("every package needed is installed");
    Ok(ExitCode::SUCCESS)
}

/// Ensures that the packages for the demo guest and the portable host are installed. As root it installs
/// missing packages; otherwise it prints the command to type and returns `false`.
pub fn ensure_for_demo(line: &ProgressLine) -> Result<bool> {
    met(DEMO.iter(), line)
}

/// Does the same for the packages of all images.
pub fn ensure(line: &ProgressLine) -> Result<bool> {
    met(DEMO.iter().chain(IMAGES), line)
}

/// Does the same for all packages that tests need.
pub fn ensure_for_tests(line: &ProgressLine) -> Result<bool> {
    met(DEMO.iter().chain(IMAGES).chain(PROGRAMS).chain(FILES), line)
}

fn met<'a>(needs: impl Iterator<Item = &'a TestNeed>, line: &ProgressLine) -> Result<bool> {
    let needs: Vec<&TestNeed> = needs.collect();
    // apt may remove an installed package that conflicts with a new one (qemu-utils from backports with
    // qemu-system-x86): such a package is installed in the second round.
    for _ in 0..2 {
        let missing = unmet(&needs);
        if missing.is_empty() {
            return Ok(true);
        }
        eprintln!("missing Debian packages:");
        for need in &missing {
            eprintln!("  {:<24}{}", need.package, need.purpose);
        }
        let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
        packages.sort_unstable();
        packages.dedup();
        if find_program("apt-get").is_none() {
            bail!("this machine has no apt-get: vprof's images are built on Debian and Ubuntu");
        }
        if !is_root()? {
            eprintln!(
                "to install them, type:\n  sudo apt-get install -y --no-install-recommends {}",
                packages.join(" ")
            );
            return Ok(false);
        }
        let step = format!("installing {}", packages.join(" "));
        line.during(&step, || install(&packages))?;
    }
    let still: Vec<&str> = unmet(&needs).iter().map(|need| need.package).collect();
    if !still.is_empty() {
        bail!("apt-get installed the packages, but {} is not there: try to reinstall it", still.join(" "));
    }
    Ok(true)
}

/// Returns the needs that are not met.
fn unmet<'a>(needs: &[&'a TestNeed]) -> Vec<&'a TestNeed> {
    needs.iter().copied().filter(|need| !need.is_met()).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    // Package lists may be missing, as in a fresh container, or too old: then they are fetched and the
    // installation is tried again.
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    if apt_get(&arguments).is_ok() {
        return Ok(());
    }
    apt_get(&["update"]).context("cannot fetch the lists of packages: check the network")?;
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .arg("-q")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot start apt-get")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("E:")).collect();
    bail!("apt-get {} failed ({}): {}", arguments.join(" "), output.status, errors.join("; "))
}

/// True for root. The program `id` reports it without an unsafe call.
fn is_root() -> Result<bool> {
    let output = Command::new("id").arg("-u").output().context("cannot start id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}
