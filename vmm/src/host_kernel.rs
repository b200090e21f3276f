//! Calls and features of the host's kernel that not every Linux has: since when they exist, and what vprof
//! does without them. docs/hosts.md has the same table for users; a test compares.

use std::fmt;
use std::fs;
use std::io;

/// Call or feature of the host's kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelFeature {
    /// Name.
    pub name: &'static str,
    /// First release of Linux that has it.
    pub since: &'static str,
    /// Behaviour of vprof without it, as a sentence without its end.
    pub without: &'static str,
}

const fn feature(name: &'static str, since: &'static str, without: &'static str) -> KernelFeature {
    KernelFeature { name, since, without }
}

/// `pidfd_open`.
pub const PIDFD_OPEN: &KernelFeature = &FEATURES[0];
/// `pidfd_getfd`.
pub const PIDFD_GETFD: &KernelFeature = &FEATURES[1];
/// `memfd_create`.
pub const MEMFD_CREATE: &KernelFeature = &FEATURES[2];
/// `KVM_CAP_IMMEDIATE_EXIT`.
pub const IMMEDIATE_EXIT: &KernelFeature = &FEATURES[3];

/// Everything that is younger than Linux 3.10.
pub const FEATURES: [KernelFeature; 13] = [
    feature("pidfd_open", "5.3", "`vprof attach PID` and `--host tcg` are refused; `--gdb` works"),
    feature("pidfd_getfd", "5.6", "`vprof attach PID` is refused; `--gdb` works"),
    feature("memfd_create", "3.17", "guests are refused"),
    feature("KVM_CAP_IMMEDIATE_EXIT", "4.12", "KVM is not used"),
    feature("F_OFD_SETLK", "3.15", "guests with disks are refused"),
    feature("seccomp with SECCOMP_RET_KILL_PROCESS", "4.14", "guests are refused without `--seccomp off`"),
    feature("KVM_CAP_SYNC_REGS", "4.17", "two more system calls for each sample"),
    feature("KVM_CAP_NESTED_STATE", "4.20", "guests of a guest with `--nested` are not distinguished"),
    feature("Landlock", "5.13", "the guest's process is not kept from files by the kernel"),
    feature("KVM_CAP_BINARY_STATS_FD", "5.14", "`vprof stat` has no counters of KVM"),
    feature("KVM_CAP_PMU_CAPABILITY", "5.18", "counters are hidden from guests, but KVM emulates them"),
    feature("KVM_CAP_X86_GUEST_MODE", "6.11", "`vprof attach` does not distinguish guests of a guest"),
    feature(
        "pidfd_send_signal",
        "5.1",
        "the guard of `vprof attach --gdb` does not end a vprof that is stopped",
    ),
];

/// Error of a call or feature that the host's kernel lacks.
#[derive(Debug, thiserror::Error)]
pub struct LackingFeature(pub &'static KernelFeature);

impl fmt::Display for LackingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelFeature { name, since, .. } = self.0;
        write!(
            f,
            "this host's kernel ({}) lacks {name}, which Linux has since {since}, or a container's filter hides it",
            release()
        )
    }
}

/// Returns the error of a call that has failed now: [`LackingFeature`] if the kernel does not have it.
pub fn last_error(feature: &'static KernelFeature) -> io::Error {
    of_call(feature, io::Error::last_os_error())
}

/// Returns the error of a call: [`LackingFeature`] if the kernel does not have it.
pub fn of_call(feature: &'static KernelFeature, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => io::Error::new(io::ErrorKind::Unsupported, LackingFeature(feature)),
        _ => error,
    }
}

/// Returns true for an error of a call that the kernel does not have.
pub fn is_lacking(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS)
        || error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<LackingFeature>)
}

/// Returns the release of the kernel; empty if it cannot be read.
pub fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_lacking_has_its_name_and_version() {
        let error = of_call(PIDFD_GETFD, io::Error::from_raw_os_error(libc::ENOSYS));
        let text = error.to_string();
        assert!(text.contains("pidfd_getfd") && text.contains("5.6") && text.contains(&release()), "{text}");
        assert!(is_lacking(&error) && is_lacking(&io::Error::from_raw_os_error(libc::ENOSYS)));
        let other = of_call(PIDFD_GETFD, io::Error::from_raw_os_error(libc::EPERM));
        assert!(other.raw_os_error() == Some(libc::EPERM) && !is_lacking(&other));
        let names = [PIDFD_OPEN, PIDFD_GETFD, MEMFD_CREATE, IMMEDIATE_EXIT].map(|found| found.name);
        let wanted = ["pidfd_open", "pidfd_getfd", "memfd_create", "KVM_CAP_IMMEDIATE_EXIT"];
        assert_eq!(names, wanted);
    }

    #[test]
    fn the_document_has_the_same_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hosts.md");
        let document = fs::read_to_string(path).expect("the document");
        let table: Vec<String> = document
            .lines()
            .skip_while(|line| *line != "## Kernels of the host")
            .filter(|line| line.starts_with("| ") && !line.starts_with("| call"))
            .map(str::to_owned)
            .collect();
        let row = |feature: &KernelFeature| {
            format!("| {} | {} | {} |", feature.name, feature.since, feature.without)
        };
        let mut wanted: Vec<String> = FEATURES.iter().map(row).collect();
        wanted.sort_unstable();
        let mut found = table[..table.len().min(FEATURES.len())].to_vec();
        found.sort_unstable();
        assert_eq!(found, wanted);
    }
}
