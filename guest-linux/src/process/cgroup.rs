//! Systemd unit and container, from the path of a control group.
//!
//! Names as systemd, Docker, Podman, containerd, CRI-O, LXC and Kubernetes give them.

/// Types of systemd units that have control groups (systemd.unit(5), systemd.resource-control(5)).
const UNIT_TYPES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
/// Prefixes that container runtimes put before a container's id in the name of its scope.
const SCOPES: [&str; 6] = ["docker-", "cri-containerd-", "crio-", "libpod-", "nerdctl-", "containerd-"];
/// Digits of a container's id, in hexadecimal.
const ID_DIGITS: usize = 64;
/// Names of containers that have a name instead of an id, by what precedes it.
const LXC: [&str; 3] = ["lxc", "lxc.payload", "lxc.monitor"];

/// Returns the systemd unit that a control group belongs to: the last component of its path that is one's
/// name.
pub fn systemd_unit(cgroup: &str) -> Option<&str> {
    cgroup.rsplit('/').find(|name| {
        UNIT_TYPES.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(|stem| !stem.is_empty()))
    })
}

/// Returns the container that a control group belongs to: its id (64 hexadecimal digits), or its name for LXC
/// and for machines of systemd-nspawn. The innermost one, where they are nested.
pub fn container(cgroup: &str) -> Option<&str> {
    let mut outer: Vec<&str> = cgroup.split('/').filter(|name| !name.is_empty()).collect();
    while let Some(name) = outer.pop() {
        let above = outer.last().copied();
        if let Some(found) = by_id(name).or_else(|| by_name(name, above)) {
            return Some(found);
        }
    }
    None
}

/// Returns an id, alone or in the name of a scope.
fn by_id(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".scope").unwrap_or(name);
    let id = SCOPES.iter().find_map(|prefix| stem.strip_prefix(prefix)).unwrap_or(stem);
    let digits = id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then_some(id)
}

/// Returns a name: `lxc/NAME`, `lxc.payload/NAME`, `lxc.payload.NAME`, `machine-NAME.scope`.
fn by_name<'a>(name: &'a str, above: Option<&str>) -> Option<&'a str> {
    if above.is_some_and(|above| LXC.contains(&above)) {
        return Some(name);
    }
    let dotted = || name.strip_prefix("lxc.payload.").or_else(|| name.strip_prefix("lxc.monitor."));
    let machine = || name.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope"));
    dotted().or_else(machine).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn units_and_containers_by_path() {
        let docker = format!("/system.slice/docker-{ID}.scope");
        let docker_scope = format!("docker-{ID}.scope");
        let plain = format!("/docker/{ID}");
        let pod = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12ab.slice/cri-containerd-{ID}.scope"
        );
        let pod_scope = format!("cri-containerd-{ID}.scope");
        let pod_v1 = format!("/kubepods/besteffort/pod0f1e2d3c/{ID}");
        let podman =
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container");
        let podman_scope = format!("libpod-{ID}.scope");
        let inner = format!("/docker/{ID}/system.slice/ssh.service");
        let cases = [
            ("/", None, None),
            ("", None, None),
            ("/init.scope", Some("init.scope"), None),
            ("/system.slice/ssh.service", Some("ssh.service"), None),
            ("/system.slice/ssh.service/worker", Some("ssh.service"), None),
            ("/system.slice/dbus.socket", Some("dbus.socket"), None),
            ("/system.slice/run-user.mount", Some("run-user.mount"), None),
            ("/user.slice/user-1000.slice", Some("user-1000.slice"), None),
            ("/a/.service", None, None),
            (docker.as_str(), Some(docker_scope.as_str()), Some(ID)),
            (plain.as_str(), None, Some(ID)),
            (pod.as_str(), Some(pod_scope.as_str()), Some(ID)),
            (pod_v1.as_str(), None, Some(ID)),
            (podman.as_str(), Some(podman_scope.as_str()), Some(ID)),
            (inner.as_str(), Some("ssh.service"), Some(ID)),
            ("/docker/0123", None, None),
            ("/lxc/web", None, Some("web")),
            ("/lxc.payload/web", None, Some("web")),
            ("/lxc.payload.web/init.scope", Some("init.scope"), Some("web")),
            ("/machine.slice/machine-debian.scope", Some("machine-debian.scope"), Some("debian")),
            ("/machine.slice/machine-.scope", Some("machine-.scope"), None),
        ];
        for (path, unit, id) in cases {
            assert_eq!(systemd_unit(path), unit, "{path}");
            assert_eq!(container(path), id, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_gives_parts_of_itself(path in "(/|lxc|machine-|docker-|\\.scope|\\.service|[0-9a-f]{64}|\\PC){0,12}") {
            for found in [systemd_unit(&path), container(&path)].into_iter().flatten() {
                prop_assert!(!found.is_empty() && !found.contains('/') && path.contains(found));
            }
        }
    }
}
