//! A Debian that exists only to try a package in it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::installation::quoted;
use crate::sources::{ArchiveMirrors, DebianSuites, MIRROR_VARIABLE};
use crate::tools::{run, tool};

/// Name of the package in the new system's /tmp.
const PACKAGE: &str = "package.deb";
/// Name of the script there.
const SCRIPT: &str = "try.sh";

/// Installs a local Debian package into a minimal Debian 12, and returns what a shell script prints in it.
///
/// # Errors
/// A tool is missing, Debian's archive cannot be reached, the package cannot be installed, the script fails.
pub fn in_clean_debian(package: &Path, script: &str) -> Result<String> {
    let stage = tempfile::tempdir().context("cannot make a directory")?;
    let at = |name: &str| stage.path().join(name);
    let release = DebianSuites::Bookworm;
    let mirrors = ArchiveMirrors::from_machine(Path::new("/etc/apt"), std::env::var(MIRROR_VARIABLE).ok())?;
    fs::copy(package, at(PACKAGE)).with_context(|| format!("cannot read {}", package.display()))?;
    for (name, text) in [(SCRIPT, script), ("said", ""), ("debian.sources", &mirrors.to_deb822(release))] {
        fs::write(at(name), text).with_context(|| format!("cannot write {}", at(name).display()))?;
    }
    let (package, script, said) = (quoted(&at(PACKAGE))?, quoted(&at(SCRIPT))?, quoted(&at("said"))?);
    let mut mmdebstrap = tool("mmdebstrap", "mmdebstrap")?;
    mmdebstrap.args(["--quiet", "--format=null", "--variant=apt"]);
    for hook in [
        format!("copy-in {package} {script} /tmp"),
        format!("chroot \"$1\" apt-get install -y --no-install-recommends /tmp/{PACKAGE} >/dev/null"),
        format!("chroot \"$1\" sh /tmp/{SCRIPT} >{said} 2>&1"),
    ] {
        mmdebstrap.arg(format!("--customize-hook={hook}"));
    }
    run(mmdebstrap.arg(release.name()).arg("/dev/null").arg(at("debian.sources")))
        .context("cannot try the package in Debian")?;
    fs::read_to_string(at("said")).context("cannot read what the script printed")
}
