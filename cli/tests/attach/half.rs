//! The attach half inside the sandbox.

use super::*;

/// Returns the parts of the sandbox that a profile records.
fn wall_of(profile: &Path) -> String {
    meta_of(profile, "sandbox")
}

#[test]
fn the_half_has_the_right_to_trace_and_nothing_else_of_the_user() {
    run_as_vmm();
    let test = "half::the_half_has_the_right_to_trace_and_nothing_else_of_the_user";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let attached = AttachedVprof::start(&vm, directory.path());
    let half = child_of(attached.vprof.id());
    assert_eq!(std::fs::read_to_string(format!("/proc/{half}/environ")).unwrap(), "");
    // SAFETY: has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    // CAP_SYS_PTRACE; CAP_PERFMON and CAP_BPF (linux/capability.h).
    let by_kernel = meta_of(&attached.profile, "engine").contains("bpf");
    let tracing = 1_u64 << 19 | if by_kernel { 1 << 38 | 1 << 39 } else { 0 };
    for thread in std::fs::read_dir(format!("/proc/{half}/task")).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
        assert_eq!((field("Seccomp:"), field("NoNewPrivs:")), ("2".to_owned(), "1".to_owned()), "{status}");
        let permitted = u64::from_str_radix(&field("CapPrm:"), 16).unwrap();
        let expected = match (is_root, field("Name:").as_str()) {
            (false, _) => permitted,
            (true, "job control" | "vprof-port") => 0,
            // The watcher, with CAP_DAC_READ_SEARCH.
            (true, "attach") => tracing | 1 << 2,
            (true, _) => tracing,
        };
        assert_eq!(permitted, expected, "{status}");
    }
    let own = directory.path().to_str().unwrap();
    for descriptor in std::fs::read_dir(format!("/proc/{half}/fd")).unwrap() {
        let Ok(target) = std::fs::read_link(descriptor.unwrap().path()) else { continue };
        assert!(!target.to_string_lossy().starts_with(own), "{target:?}");
    }
    let profile = attached.profile.clone();
    drop(vm);
    assert!(attached.end().0.success());
    assert!(wall_of(&profile).contains("rights, files, system calls"), "{}", wall_of(&profile));
}

#[test]
fn a_half_without_filters_is_a_wish_that_the_profile_records() {
    run_as_vmm();
    let test = "half::a_half_without_filters_is_a_wish_that_the_profile_records";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    for (policy, filters) in [("off", false), ("log", true)] {
        let profile = directory.path().join(policy);
        let mut attach = vprof(["attach", &vm.pid(), "-q", "-d", "300ms", "--seccomp", policy, "-o"]);
        let output = attach.arg(&profile).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let sandbox = wall_of(&profile);
        assert!(sandbox.contains("rights") && !sandbox.contains("files"), "{sandbox}");
        assert_eq!(sandbox.contains("system calls"), filters, "{sandbox}");
    }
}

#[test]
fn a_half_that_is_killed_leaves_a_profile_a_sentence_and_the_vm() {
    run_as_vmm();
    let test = "half::a_half_that_is_killed_leaves_a_profile_a_sentence_and_the_vm";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    let mut attach = vprof(["attach", &vm.pid(), "-q", "--control", "none", "-o"]);
    let mut attached = attach.arg(&profile).stderr(Stdio::piped()).spawn().unwrap();
    let samples = || {
        let query = vprof(["query"]).arg(&profile).arg("SELECT count(*) FROM sample").output().unwrap();
        stdout(&query).lines().last()?.trim().parse::<u64>().ok().filter(|samples| *samples > 0)
    };
    eventually("samples", SOON, samples);
    let half = nix::unistd::Pid::from_raw(child_of(attached.id()).cast_signed());
    nix::sys::signal::kill(half, nix::sys::signal::Signal::SIGKILL).unwrap();
    let mut message = String::new();
    std::io::Read::read_to_string(&mut attached.stderr.take().unwrap(), &mut message).unwrap();
    assert_eq!(attached.wait().unwrap().code(), Some(1), "{message}");
    assert!(message.contains("the process that samples the VM ended: signal: 9 (SIGKILL)"), "{message}");
    assert!(samples().is_some());
    // The VM runs, and can be profiled again.
    let again =
        vprof(["attach", &vm.pid(), "-q", "-d", "200ms", "--force", "-o"]).arg(&profile).output().unwrap();
    assert!(again.status.success(), "{}", stderr(&again));
}

#[test]
fn a_call_outside_of_a_filter_ends_the_recording_and_what_was_recorded_stays() {
    run_as_vmm();
    let test = "half::a_call_outside_of_a_filter_ends_the_recording_and_what_was_recorded_stays";
    let Some(vm) = TestVm::start(test) else { return };
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return testkit::missing("root, which may trace the half");
    }
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join("a.vprof");
    for (engine, name, thread) in [
        ("ptrace", "attached 0", "a thread that samples vCPUs"),
        ("ptrace", "attach", "the thread that watches the VMM"),
        ("ptrace", "collector", "a sampler's thread"),
        // The first thread has the name of `/proc/self/exe`.
        ("ptrace", "exe", "a thread"),
        ("auto", "attached 0", "a thread that samples vCPUs"),
    ] {
        let mut attach =
            vprof(["attach", &vm.pid(), "-q", "--engine", engine, "--control", "none", "--force", "-o"]);
        let mut attached = attach.arg(&profile).stderr(Stdio::piped()).spawn().unwrap();
        let samples = || {
            let query = vprof(["query"]).arg(&profile).arg("SELECT count(*) FROM sample").output().unwrap();
            stdout(&query).lines().last()?.trim().parse::<u64>().ok().filter(|samples| *samples > 0)
        };
        eventually("samples", SOON, samples);
        let half = child_of(attached.id()).cast_signed();
        make_call(thread_of(half, name), libc::SYS_socket);
        let mut message = String::new();
        std::io::Read::read_to_string(&mut attached.stderr.take().unwrap(), &mut message).unwrap();
        assert_eq!(attached.wait().unwrap().code(), Some(1), "{name}: {message}");
        let sentence = format!("{thread} made the system call socket, which its filter refuses");
        assert!(message.contains(&sentence), "{name}: {message}");
        assert!(samples().is_some());
        std::fs::remove_file(&profile).unwrap();
    }
}

#[test]
fn a_stub_is_asked_behind_the_wall() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut attach = vprof(["attach", "--gdb", &listener.local_addr().unwrap().to_string()]);
    let attached = attach.stderr(Stdio::piped()).spawn().unwrap();
    let (mut stub, _) = listener.accept().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(&mut stub, &mut first).unwrap();
    assert_eq!(first, *b"$", "the first byte of a question");
    let half = child_of(attached.id());
    let status = std::fs::read_to_string(format!("/proc/{half}/status")).unwrap();
    assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
    drop(stub);
    refused(&attached.wait_with_output().unwrap(), 1, &["closed the connection"]);
}

#[test]
fn a_half_ends_with_its_vprof() {
    run_as_vmm();
    let Some(vm) = TestVm::start("half::a_half_ends_with_its_vprof") else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut attached = AttachedVprof::start(&vm, directory.path());
    let half = child_of(attached.vprof.id());
    attached.vprof.kill().unwrap();
    attached.vprof.wait().unwrap();
    eventually("its end", SOON, || (!Path::new(&format!("/proc/{half}")).exists()).then_some(()));
}

#[test]
fn a_disk_whose_tables_are_wrong_is_refused_behind_the_wall() {
    run_as_vmm();
    let test = "half::a_disk_whose_tables_are_wrong_is_refused_behind_the_wall";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (profile, disk) = (directory.path().join("a.vprof"), directory.path().join("web.qcow2"));
    std::fs::write(&disk, [&b"QFI\xfb"[..], &[0xff; 4096]].concat()).unwrap();
    let mut attach = vprof(["attach", &vm.pid(), "-d", "1s", "-o"]);
    refused(&attach.arg(&profile).arg("--disk").arg(&disk).output().unwrap(), 1, &["web.qcow2"]);
    assert!(!profile.exists());
    // By the reader of images, before the VM is looked for.
    let mut attach = vprof(["attach", "2147483647", "--disk"]);
    refused(&attach.arg(&disk).output().unwrap(), 1, &["web.qcow2"]);
}

#[test]
fn disks_of_every_format_are_opened_behind_the_wall() {
    run_as_vmm();
    let test = "half::disks_of_every_format_are_opened_behind_the_wall";
    let Some(vm) = TestVm::start(test) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let qcow2 = file("web.qcow2");
    let Some(raw) = support::ext4_qcow2(directory.path(), &qcow2) else { return };
    let mut attach = vprof(["attach", &vm.pid(), "-q", "-d", "300ms", "-o"]);
    let output =
        attach.arg(file("a.vprof")).arg("--disk").arg(&raw).arg("--disk").arg(&qcow2).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}
