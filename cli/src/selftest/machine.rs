//! Facts about the machine, for a bug report.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Facts about the machine that matter to measurements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// Vendor of the processor as `/proc/cpuinfo` has it, like `GenuineIntel`.
    pub vendor: String,
    /// Model of the processor.
    pub model: String,
    /// CPUs that are online.
    pub cpus: usize,
    /// This machine is a virtual machine itself.
    pub virtualized: bool,
    /// Loaded modules of KVM, or those that are built in.
    pub kvm_modules: Vec<String>,
    /// Release of the running kernel.
    pub kernel: String,
}

impl MachineFacts {
    /// Reads the facts from the kernel; an unavailable one is `unknown`.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let known = ["kvm_intel", "kvm_amd", "kvm_pvm"].into_iter();
        let loaded = known.filter(|module| Path::new("/sys/module").join(module).is_dir());
        Self {
            kvm_modules: loaded.map(str::to_owned).collect(),
            kernel: or_unknown(Some(release.trim())),
            ..Self::parse(&cpuinfo)
        }
    }

    fn parse(cpuinfo: &str) -> Self {
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim())
            })
        };
        let flags = field("flags").unwrap_or_default();
        Self {
            vendor: or_unknown(field("vendor_id")),
            model: or_unknown(field("model name")),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            virtualized: flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"),
            kvm_modules: Vec::new(),
            kernel: String::new(),
        }
    }
}

fn or_unknown(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_read() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\nflags\t\t: fpu hypervisor\n\n\
                    processor\t: 1\nvendor_id\t: AuthenticAMD\n";
        let machine = MachineFacts::parse(text);
        assert_eq!((machine.vendor.as_str(), machine.model.as_str()), ("AuthenticAMD", "AMD EPYC 7763"));
        assert_eq!((machine.cpus, machine.virtualized), (2, true));
        assert_eq!(MachineFacts::parse("").model, "unknown");
    }
}
