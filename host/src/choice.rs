//! Which host a guest can run on here, found out by trying.

use std::path::Path;
use std::time::Duration;

use vmm::KvmError;
use vmm::kvm_check::{self, Capabilities, RingSpeedError, RingSpeeds};

use crate::portable::bundle::{self, Bundle, HOW_TO_BUILD, NotFound};
use crate::portable::outer::Setup;
use crate::portable::qemu::{self, Qemu};
use crate::stage::Stage;

/// Wish for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostChoice {
    /// This machine's KVM if it can run a kernel, else the portable host.
    #[default]
    Auto,
    /// This machine's KVM.
    Kvm,
    /// The portable host.
    Portable,
    /// QEMU's software emulation, without KVM.
    Tcg,
}

/// Findings about this machine's KVM.
#[derive(Debug)]
pub struct Kvm {
    /// Its capabilities, or the reason why it can't be used.
    pub state: Result<Capabilities, KvmError>,
    /// Like `svm`.
    pub kind: &'static str,
    /// Speeds of kernel code, which show if it runs natively; `None` where KVM can't be used.
    pub native: Option<Result<RingSpeeds, RingSpeedError>>,
}

/// Parts of the portable host.
#[derive(Debug)]
pub struct Portable {
    /// QEMU, if it is installed.
    pub qemu: Option<Qemu>,
    /// Kernel and modules, or where they were looked for.
    pub bundle: Result<Bundle, NotFound>,
}

/// The host of a guest.
#[derive(Debug)]
pub enum Host {
    /// On this machine's KVM.
    Kvm,
    /// In the portable host.
    Portable(Setup),
    /// In QEMU's software emulation.
    Tcg(Qemu),
}

/// A host and the reason for it.
#[derive(Debug)]
pub struct Chosen {
    /// The host.
    pub host: Host,
    /// Why it was chosen, as the second half of a sentence.
    pub why: String,
}

/// No host can be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// `--host kvm`, and KVM can't be used.
    #[error("{0}")]
    Kvm(KvmError),
    /// `--host portable`, and a part of it is missing.
    #[error("the portable host can't be used: {0}")]
    Portable(MissingParts),
    /// `--host tcg`, and QEMU is missing.
    #[error("the guest can't be emulated: {0}")]
    Tcg(MissingParts),
    /// `--host auto`, and neither can be used.
    #[error(
        "no usable hypervisor: {kvm}. The portable host can't be used either: {portable}. `vprof doctor` shows more"
    )]
    Neither {
        /// Why KVM can't be used.
        kvm: KvmDoubt,
        /// Why the portable host can't be used.
        portable: MissingParts,
    },
}

/// Why this machine's KVM is not the first choice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvmDoubt {
    /// It can't be used at all; this is why.
    #[error("{0}")]
    Unusable(String),
    /// Its self-test failed.
    #[error("/dev/kvm ({kind}) failed its self-test: {reason}")]
    Failed {
        /// Like `svm`.
        kind: &'static str,
        /// Why.
        reason: String,
    },
    /// It emulates a kernel's code.
    #[error("/dev/kvm ({0}) does not run 64-bit kernel code natively")]
    Emulates(&'static str),
}

/// Parts of the portable host that are missing, with what to type for each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join(", and "))]
pub struct MissingParts(Vec<String>);

impl HostError {
    /// The stage of the run in which it failed.
    pub fn stage(&self) -> Stage {
        Stage::Hypervisor
    }
}

impl Kvm {
    /// Opens /dev/kvm and runs the self-test on it.
    pub fn probe() -> Self {
        let state = kvm_check::open().map(|kvm| kvm_check::capabilities(&kvm));
        let native = state.is_ok().then(kvm_check::native_ring0);
        Self { state, kind: kind(), native }
    }

    /// Returns the reason to use it.
    ///
    /// # Errors
    /// The reason not to.
    pub fn usable(&self) -> Result<String, KvmDoubt> {
        let kind = self.kind;
        match (&self.state, &self.native) {
            (Err(error), _) => Err(KvmDoubt::Unusable(error.to_string())),
            (Ok(_), Some(Ok(test))) if test.native() => {
                Ok(format!("/dev/kvm ({kind}) runs 64-bit kernel code natively"))
            }
            (Ok(_), Some(Err(reason))) => Err(KvmDoubt::Failed { kind, reason: reason.to_string() }),
            (Ok(_), _) => Err(KvmDoubt::Emulates(kind)),
        }
    }
}

/// Returns the kind of KVM, by the processor's flags and the loaded module.
fn kind() -> &'static str {
    let loaded = |module: &str| Path::new("/sys/module").join(module).is_dir();
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    let flag = |name: &str| flags.split_ascii_whitespace().any(|f| f == name);
    if loaded("kvm_pvm") {
        "pvm"
    } else if loaded("kvm_intel") || flag("vmx") {
        "vmx"
    } else if loaded("kvm_amd") || flag("svm") {
        "svm"
    } else {
        "other"
    }
}

impl Portable {
    /// Looks for the parts.
    pub fn find(directory: Option<&Path>) -> Self {
        Self { qemu: qemu::find(), bundle: bundle::find(directory) }
    }

    /// Checks that all parts are there.
    ///
    /// # Errors
    /// Some are missing.
    pub fn usable(&self) -> Result<(), MissingParts> {
        let mut missing = Vec::new();
        if self.qemu.is_none() {
            missing.push(no_qemu());
        }
        if let Err(not_found) = &self.bundle {
            missing.push(format!(
                "its kernel is not in {} (build it with `{HOW_TO_BUILD}`, or name its directory with --portable-host)",
                not_found.places()
            ));
        }
        if missing.is_empty() { Ok(()) } else { Err(MissingParts(missing)) }
    }

    fn setup(self, silence: Duration) -> Result<Setup, MissingParts> {
        self.usable()?;
        match (self.qemu, self.bundle) {
            (Some(qemu), Ok(bundle)) => Ok(Setup { qemu, bundle, silence }),
            _ => Err(MissingParts(vec!["a part of it is missing".to_owned()])),
        }
    }
}

fn no_qemu() -> String {
    format!("{} is not in PATH (Debian, Ubuntu: `sudo apt install qemu-system-x86`)", qemu::PROGRAM)
}

/// Chooses the host: what was asked for, or the first that can be used.
///
/// # Errors
/// It can't be used.
pub fn choose(choice: HostChoice, directory: Option<&Path>, silence: Duration) -> Result<Chosen, HostError> {
    let portable = || Portable::find(directory).setup(silence);
    match choice {
        HostChoice::Kvm => {
            let kvm = Kvm::probe();
            let doubt = kvm.usable().err();
            kvm.state.map_err(HostError::Kvm)?;
            let why = match doubt {
                None => "asked for with --host".to_owned(),
                Some(doubt) => format!("asked for with --host, although {doubt}"),
            };
            Ok(Chosen { host: Host::Kvm, why })
        }
        HostChoice::Portable => {
            let setup = portable().map_err(HostError::Portable)?;
            Ok(Chosen { host: Host::Portable(setup), why: "asked for with --host".to_owned() })
        }
        HostChoice::Tcg => {
            let qemu = qemu::find().ok_or_else(|| HostError::Tcg(MissingParts(vec![no_qemu()])))?;
            Ok(Chosen { host: Host::Tcg(qemu), why: "asked for with --host".to_owned() })
        }
        HostChoice::Auto => match Kvm::probe().usable() {
            Ok(why) => Ok(Chosen { host: Host::Kvm, why }),
            Err(doubt) => match portable() {
                Ok(setup) => Ok(Chosen { host: Host::Portable(setup), why: doubt.to_string() }),
                Err(portable) => Err(HostError::Neither { kvm: doubt, portable }),
            },
        },
    }
}

impl Chosen {
    /// One line for standard error.
    pub fn sentence(&self) -> String {
        match &self.host {
            Host::Kvm => format!("host: kvm: {}", self.why),
            Host::Tcg(qemu) => {
                format!("host: tcg: {} (QEMU {}, slower than this machine)", self.why, qemu.version)
            }
            Host::Portable(setup) => format!(
                "host: portable: {} (QEMU {}, slower than this machine)",
                self.why, setup.qemu.version
            ),
        }
    }

    /// `kvm`, `portable` or `tcg`, as reports have it.
    pub fn name(&self) -> &'static str {
        match self.host {
            Host::Kvm => "kvm",
            Host::Portable(_) => "portable",
            Host::Tcg(_) => "tcg",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_to_type() {
        let portable =
            Portable { qemu: None, bundle: Err(NotFound { looked: vec!["/a".into(), "/b".into()] }) };
        let sentence = portable.usable().unwrap_err().to_string();
        assert!(sentence.contains("apt install qemu-system-x86"), "{sentence}");
        assert!(sentence.contains("/a, /b") && sentence.contains(HOW_TO_BUILD), "{sentence}");
    }

    #[test]
    fn a_kvm_that_is_missing_or_emulates_is_not_used() {
        let missing = Kvm { state: Err(KvmError::Missing), kind: "other", native: None };
        assert!(missing.usable().unwrap_err().to_string().contains("/dev/kvm does not exist"));
    }
}
