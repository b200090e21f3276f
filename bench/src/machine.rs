//! Description of the machine that was measured.

use std::fs;

/// Returns one line: processor, CPUs, memory, kernel, KVM's kind.
pub fn description() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(key));
        line.and_then(|l| l.split_once(':')).map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let cpuinfo = read("/proc/cpuinfo");
    let cpus = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    let modules = ["kvm_intel", "kvm_amd", "kvm_pvm"];
    let kvm = modules.iter().find(|m| fs::exists(format!("/sys/module/{m}")).unwrap_or(false));
    format!(
        "{}, {cpus} CPUs, {} of memory, Linux {}, {}",
        field(&cpuinfo, "model name"),
        field(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        kvm.map_or("no KVM", |m| m)
    )
}
