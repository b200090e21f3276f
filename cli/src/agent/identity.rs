//! Identity of the virtual machines of this host.

use std::fs;

use attach::{RunningMachine, StatFields, running_machines};
use export::lake::{LakeVm, identity};
use guest_linux::container;

/// A machine that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMachine {
    /// Process of its VMM.
    pub pid: i32,
    /// Its identity in the lake.
    pub vm: LakeVm,
}

/// Lists the virtual machines on KVM that this user may see. `boot_id` is that of the host, `group` the
/// labels of all machines.
pub fn machines(boot_id: &str, group: &str) -> Vec<KnownMachine> {
    let _search = attach::capabilities::SearchRight::raise();
    running_machines().into_iter().filter_map(|machine| known(machine, boot_id, group)).collect()
}

/// Returns the identity of the host's boot: process ids and start times are of one.
pub fn host_boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// `None` if the machine has ended.
fn known(machine: RunningMachine, boot_id: &str, group: &str) -> Option<KnownMachine> {
    let read = |name: &str| fs::read(format!("/proc/{}/{name}", machine.pid)).ok();
    let stat = read("stat")?;
    let start = start_ticks(&String::from_utf8_lossy(&stat))?;
    let cgroup = read("cgroup").unwrap_or_default();
    let cgroup = String::from_utf8_lossy(&cgroup);
    let id = identity(&[boot_id, &machine.pid.to_string(), &start.to_string()]);
    let vm = LakeVm {
        id,
        name: machine.name,
        vmm: machine.program,
        group: group.to_owned(),
        uuid: given_uuid(&read("cmdline").unwrap_or_default()).unwrap_or_default(),
        pod: pod(&cgroup).unwrap_or_default(),
        container: cgroup.lines().find_map(|line| container(line)).unwrap_or_default().to_owned(),
        ..LakeVm::default()
    };
    Some(KnownMachine { pid: machine.pid, vm })
}

/// Returns the start of a process since the host's boot, clock ticks: field 22 of /proc/PID/stat
/// (proc_pid_stat(5)).
fn start_ticks(stat: &str) -> Option<u64> {
    StatFields::new(stat)?.number(22)
}

/// Returns the UUID that a VMM's command line (words that end in NUL) gives its machine: `-uuid UUID` (QEMU,
/// qemu(1); libvirt gives it to each).
fn given_uuid(words: &[u8]) -> Option<String> {
    let mut words = words.split(|byte| *byte == 0).skip_while(|word| *word != b"-uuid").skip(1);
    let word = str::from_utf8(words.next()?).ok()?;
    let is_uuid = word.len() == 36 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uuid.then(|| word.to_ascii_lowercase())
}

/// Returns the uid of the Kubernetes pod that a process belongs to, by its control group (/proc/PID/cgroup):
/// `pod` and the uid in the name of a directory, with `_` for `-` where systemd manages it
/// (pkg/kubelet/cm/cgroup_manager_linux.go of Kubernetes 1.30). KubeVirt and Kata run a VMM in its pod.
fn pod(cgroup: &str) -> Option<String> {
    let names = cgroup.split(['/', '\n', ':']);
    names.filter_map(|name| name.strip_suffix(".slice").unwrap_or(name).rsplit_once("pod")).find_map(
        |(_, uid)| {
            let uid = uid.replace('_', "-");
            let is_uid = uid.len() == 36 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
            is_uid.then_some(uid)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    #[test]
    fn a_uuid_is_that_of_the_command_line() {
        let uuid = |words: &[&str]| given_uuid(words.join("\0").as_bytes());
        let upper = UID.to_ascii_uppercase();
        assert_eq!(uuid(&["qemu", "-name", "a", "-uuid", &upper, "-m", "1"]).as_deref(), Some(UID));
        for none in [&["qemu", "-uuid"][..], &["qemu", "-uuid", "x"], &["qemu", UID]] {
            assert_eq!(uuid(none), None);
        }
    }

    #[test]
    fn a_pod_is_that_of_the_control_group() {
        let below = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod";
        let by_systemd = format!("0::{below}{}.slice/cri-containerd-x.scope\n", UID.replace('-', "_"));
        let by_cgroupfs = format!("4:cpu:/kubepods/burstable/pod{UID}/0123\n");
        for cgroup in [by_systemd, by_cgroupfs] {
            assert_eq!(pod(&cgroup).as_deref(), Some(UID), "{cgroup}");
        }
        for none in ["", "0::/machine.slice/machine-qemu.scope\n", "0::/podman/pod12\n"] {
            assert_eq!(pod(none), None);
        }
    }

    #[test]
    fn the_start_of_a_process_is_after_its_name() {
        let fields: Vec<String> = (4..=21).map(|field| field.to_string()).collect();
        assert_eq!(start_ticks(&format!("7 (a) R 1) S {} 815 9", fields.join(" "))), Some(815));
        assert_eq!(start_ticks("7 (a) S 1"), None);
        let own = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(start_ticks(&own).is_some_and(|ticks| ticks > 0));
    }
}
