//! Wrong input of the user: one clear sentence and the documented exit code, and no guest.

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use support::{ext4, fake_host, initrd, refused, run, stderr, vprof};

/// A directory with good and bad files.
struct InputFiles(tempfile::TempDir);

impl InputFiles {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("kernel", &testkit::bz_image(10_000));
        files.write("initrd", &initrd());
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs `vprof run` with these arguments and a profile here; no guest should start.
    fn run(&self, arguments: &[&Path]) -> std::process::Output {
        let mut command = vprof(["run", "-o"]);
        let output = command.arg(self.path("out.vprof")).args(arguments).output().unwrap();
        assert!(!self.path("out.vprof").exists(), "a profile was left behind: {}", stderr(&output));
        output
    }

    fn image(&self, name: &str) -> std::process::Output {
        self.run(&[&self.path(name)])
    }

    fn kernel(&self, name: &str) -> std::process::Output {
        let disk = self.write("disk", &[0; 4096]);
        self.run(&[&disk, Path::new("--kernel"), &self.path(name)])
    }

    fn initrd(&self, name: &str) -> std::process::Output {
        self.run(&[&self.path("kernel"), Path::new("--initrd"), &self.path(name)])
    }
}

#[test]
fn wrong_images() {
    let files = InputFiles::new();
    refused(&files.image("gone"), 1, &["can't read the image", "gone", "no such file or directory"]);
    files.write("empty", b"");
    refused(&files.image("empty"), 1, &["empty is empty", "a disk image (raw or qcow2) or a kernel"]);
    fs::create_dir(files.path("folder")).unwrap();
    refused(&files.image("folder"), 1, &["folder is a directory"]);
    nix_fifo(&files.path("fifo"));
    refused(&files.image("fifo"), 1, &["fifo is a pipe"]);
    files.write("text", b"hello, world\n");
    refused(&files.image("text"), 1, &["neither a disk image with an ext4 file system nor a kernel"]);
    files.write("qcow2", b"QFI\xfb\0\0\0\x03");
    refused(&files.image("qcow2"), 1, &["can't read the qcow2 image", "qemu-img check"]);
    files.write("vmdk", b"KDMV");
    refused(&files.image("vmdk"), 1, &["a VMDK image", "qemu-img convert -O raw"]);
    let mut gpt = vec![0; 4096];
    gpt[512..520].copy_from_slice(b"EFI PART");
    files.write("gpt", &gpt);
    refused(
        &files.image("gpt"),
        1,
        &["gpt has a damaged partition table", "its header claims 0 bytes", "sfdisk"],
    );
}

#[test]
fn a_precision_needs_chance() {
    let files = InputFiles::new();
    let fixed = ["--until-precision", "1%", "--clock", "fixed"].map(Path::new);
    let output = files.run(&[&[files.path("kernel").as_path()], fixed.as_slice()].concat());
    refused(&output, 2, &["--until-precision needs a random clock"]);
}

#[test]
fn images_whose_file_system_is_cut_off_or_has_no_kernel() {
    let files = InputFiles::new();
    fs::create_dir_all(files.path("root/boot")).unwrap();
    ext4(&files.path("root"), &files.path("nokernel.img"));
    refused(&files.image("nokernel.img"), 1, &["no kernel in", "/boot/vmlinuz", "--kernel FILE"]);

    let whole = fs::read(files.path("nokernel.img")).unwrap();
    files.write("cut.img", &whole[..1 << 20]);
    refused(&files.image("cut.img"), 1, &["cut.img is cut off", "4 MiB", "1 MiB"]);
    files.write("torn.img", &whole[..1500]);
    refused(&files.image("torn.img"), 1, &["torn.img is cut off"]);

    fs::write(files.path("root/boot/vmlinuz-6.1"), b"not a kernel").unwrap();
    ext4(&files.path("root"), &files.path("badkernel.img"));
    refused(&files.image("badkernel.img"), 1, &["badkernel.img", "/boot/vmlinuz-6.1", "not a Linux kernel"]);

    fs::write(files.path("root/boot/vmlinuz-6.1"), &testkit::bz_image(10_000)[..5000]).unwrap();
    ext4(&files.path("root"), &files.path("cutkernel.img"));
    refused(&files.image("cutkernel.img"), 1, &["cutkernel.img", "/boot/vmlinuz-6.1", "cut off"]);
}

/// A disk with a master boot record and this file system as its second partition.
fn partitioned(file_system: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 4096 * 512];
    disk.extend_from_slice(file_system);
    let sectors = |bytes: usize| u32::try_from(bytes / 512).unwrap().to_le_bytes();
    disk[0x1be + 16 + 4] = 0x83;
    disk[0x1be + 16 + 8..0x1be + 16 + 12].copy_from_slice(&4096_u32.to_le_bytes());
    disk[0x1be + 16 + 12..0x1be + 32].copy_from_slice(&sectors(file_system.len()));
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

#[test]
fn images_with_partitions_that_lead_to_no_kernel() {
    let files = InputFiles::new();
    fs::create_dir_all(files.path("root/boot")).unwrap();
    ext4(&files.path("root"), &files.path("ext4"));
    let mut whole = partitioned(&fs::read(files.path("ext4")).unwrap());
    files.write("nokernel.img", &whole);
    refused(&files.image("nokernel.img"), 1, &["no kernel in", "on partition 2 (ext4)", "--kernel FILE"]);
    // s_feature_incompat: the journal has not been written back.
    whole[4096 * 512 + 1024 + 0x60] |= 4;
    files.write("dirty.img", &whole);
    let output = run(["image".as_ref(), "inspect".as_ref(), files.path("dirty.img").as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(support::stdout(&output).contains("not unmounted"), "{}", support::stdout(&output));

    whole.truncate(5000 * 512);
    files.write("cut.img", &whole);
    refused(
        &files.image("cut.img"),
        1,
        &["no kernel in", "cut.img", "partition 2 is beyond the end of the disk"],
    );

    for (name, sign) in [("LUKS", &b"LUKS\xba\xbe\0\x02"[..]), ("xfs", b"XFSB")] {
        let mut volume = vec![0; 1 << 20];
        volume[..sign.len()].copy_from_slice(sign);
        files.write("closed.img", &partitioned(&volume));
        let words = ["no kernel in", "can't look into partition 2", name, "--initrd FILE"];
        refused(&files.image("closed.img"), 1, &words);
        let output = run(["image", "inspect", "--json"]
            .map(Path::new)
            .iter()
            .copied()
            .chain([files.path("closed.img").as_path()]));
        assert!(output.status.success(), "{}", stderr(&output));
        let json = support::stdout(&output);
        assert!(
            json.contains(&format!("\"contents\": \"{name}\"")) && json.contains("\"boots\": false"),
            "{json}"
        );
    }
}

#[test]
fn files_that_are_not_disks_are_not_inspected() {
    let files = InputFiles::new();
    files.write("vmdk", b"KDMV");
    let inspect = |name: &str| run(["image".as_ref(), "inspect".as_ref(), files.path(name).as_os_str()]);
    refused(&inspect("vmdk"), 1, &["a VMDK image"]);
    refused(&inspect("kernel"), 1, &["not a disk image", "`vprof run` takes a kernel"]);
    refused(&inspect("gone"), 1, &["can't read the image"]);
    files.write("text", b"root:x:0:0:root:/root:/bin/sh\n");
    refused(&inspect("text"), 1, &["text has no partition table and no file system"]);
}

#[test]
fn wrong_kernels() {
    let files = InputFiles::new();
    refused(&files.kernel("gone"), 1, &["can't read the kernel", "gone"]);
    files.write("empty", b"");
    refused(&files.kernel("empty"), 1, &["empty is empty", "a kernel for x86-64"]);
    fs::create_dir(files.path("folder")).unwrap();
    refused(&files.kernel("folder"), 1, &["folder is a directory"]);
    files.write("cut", &testkit::bz_image(10_000)[..5_000]);
    refused(&files.kernel("cut"), 1, &["cut: the kernel file is cut off"]);
    files.write("text", b"hello");
    refused(&files.kernel("text"), 1, &["text: this is", "not a Linux kernel"]);
    let mut arm = vec![0; 4096];
    arm[0x38..0x3c].copy_from_slice(b"ARM\x64");
    files.write("arm64", &arm);
    refused(&files.kernel("arm64"), 1, &["arm64: this kernel is for 64-bit ARM", "x86"]);
    refused(&files.image("arm64"), 1, &["arm64: this kernel is for 64-bit ARM", "x86"]);
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(64, 0);
    elf[18] = 243;
    files.write("riscv", &elf);
    refused(&files.kernel("riscv"), 1, &["riscv: this kernel is for RISC-V"]);
    refused(&files.image("riscv"), 1, &["riscv: this kernel is for RISC-V"]);
    let program = Path::new(env!("CARGO_BIN_EXE_vprof"));
    refused(&files.run(&[program]), 1, &["not a Linux kernel"]);
}

#[test]
fn wrong_initrds() {
    let files = InputFiles::new();
    refused(&files.initrd("gone"), 1, &["can't read the initrd", "gone"]);
    files.write("empty", b"");
    refused(&files.initrd("empty"), 1, &["empty is empty", "an initrd"]);
    fs::create_dir(files.path("folder")).unwrap();
    refused(&files.initrd("folder"), 1, &["folder is a directory"]);
    files.write("text", b"hello");
    refused(&files.initrd("text"), 1, &["text is not an initrd"]);
    let whole = initrd();
    files.write("cut", &whole[..whole.len() - 130]);
    refused(&files.initrd("cut"), 1, &["cut is cut off", "cpio"]);
}

#[test]
fn wrong_disks() {
    let files = InputFiles::new();
    let kernel = files.path("kernel");
    let disk = |name: &str| files.run(&[&kernel, Path::new("--disk"), &files.path(name)]);
    refused(&disk("gone"), 1, &["can't read the disk", "gone"]);
    fs::create_dir(files.path("folder")).unwrap();
    refused(&disk("folder"), 1, &["folder is a directory"]);
}

#[test]
fn a_command_needs_an_init_that_runs_it() {
    let files = InputFiles::new();
    let output = files.run(&[&files.path("kernel"), Path::new("--"), Path::new("true")]);
    refused(&output, 1, &["a command needs an init that runs it"]);
    let arguments = [
        &files.path("kernel"),
        Path::new("--initrd"),
        &files.path("initrd"),
        Path::new("--"),
        Path::new("true"),
    ];
    refused(
        &files.run(&arguments),
        1,
        &["can't run the command after --", "a disk image with systemd", "cargo xtask image"],
    );
}

#[test]
fn a_directory_is_not_an_output() {
    let files = InputFiles::new();
    let (kernel, folder) = (files.path("kernel"), files.path("folder"));
    fs::create_dir(&folder).unwrap();
    for force in [&[][..], &["--force".as_ref()]] {
        let words = ["run".as_ref(), kernel.as_os_str(), "-o".as_ref(), folder.as_os_str()];
        let output = run(words.iter().chain(force));
        refused(&output, 1, &["folder is a directory", "-o"]);
        assert!(!stderr(&output).contains("--force"), "{}", stderr(&output));
    }
}

#[test]
fn an_existing_output_is_not_touched() {
    let files = InputFiles::new();
    let output = files.write("mine.txt", b"my thesis");
    let kernel = files.path("kernel");
    let run_with =
        |more: &[&str]| vprof(["run", "-o"]).arg(&output).arg(&kernel).args(more).output().unwrap();
    refused(&run_with(&[]), 1, &["mine.txt exists", "-o", "--force"]);
    refused(&run_with(&["--force"]), 1, &["mine.txt exists and is not a profile"]);
    assert_eq!(fs::read(&output).unwrap(), b"my thesis");
    // What has to be mended first is reported first.
    let gone = vprof(["run", "-o"]).arg(&output).arg(files.path("gone")).output().unwrap();
    refused(&gone, 1, &["can't read the image", "gone"]);
    let output = run(["run".as_ref(), kernel.as_os_str(), "-o".as_ref(), "/nowhere/p.vprof".as_ref()]);
    refused(&output, 1, &["can't create the profile in /nowhere", "no such file or directory"]);
}

#[test]
fn wrong_command_lines_end_with_2() {
    for (arguments, word) in [
        (&["run", "x", "--memory", "300G"][..], "the maximum is 256 GiB"),
        (&["run", "x", "--memory", "512"], "the unit is missing"),
        (&["run", "x", "--cpus", "65"], "65 is not in 1..=64"),
        (&["run", "x", "--cpus", "0"], "0 is not in 1..=64"),
        (&["run", "x", "--cpus", "two"], "'two' for '--cpus <N>': write a whole number"),
        (&["report", "x", "-n", "many"], "'many' for '--rows <ROWS>': write a whole number"),
        (&["run", "x", "-F", "0"], "from 0.1 to 50000"),
        (&["run", "x", "--task-rate", "2000"], "from 0.1 to 1000"),
        (&["run", "x", "-d", "0s"], "more than 0"),
        (&["run", "x", "--clock", "sundial"], "uniform"),
        (&["run"], "IMAGE"),
        (&["report", "x", "--time", "5..2"], "not after its beginning"),
        (&["report", "x", "--sort", "colour"], "samples"),
        (&["fly"], "unrecognized subcommand"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
    }
    // Another option is offered only for a slip of the finger.
    for (option, tip) in [("--dso", None), ("--modul", Some("'--module'")), ("--proces", Some("'--process'"))]
    {
        let output = run(["report", option, "x"]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.contains("tip:"), tip.is_some(), "{error}");
        assert!(error.contains(tip.unwrap_or("unexpected argument '--dso' found")), "{error}");
    }
    let files = InputFiles::new();
    let kernel = files.path("kernel");
    refused(
        &files.run(&[&kernel, Path::new("--json"), Path::new("--console"), Path::new("-")]),
        2,
        &["--console a file"],
    );
}

#[test]
fn more_memory_than_there_is() {
    let files = InputFiles::new();
    let (bundle, bin) = fake_host(files.0.path(), "exit 1");
    let output = vprof(["run", "-q", "--memory", "256G", "--host", "portable", "--portable-host"])
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
        .arg(bundle)
        .arg(files.path("kernel"))
        .arg("-o")
        .arg(files.path("out.vprof"))
        .output()
        .unwrap();
    refused(&output, 1, &["a guest of 256 GiB does not fit", "--memory"]);
    assert!(!files.path("out.vprof").exists());
}

#[test]
fn no_hypervisor_ends_with_4_and_advice() {
    let files = InputFiles::new();
    let empty = files.path("empty");
    fs::create_dir(&empty).unwrap();
    let output = vprof(["run", "--host", "portable"])
        .env("PATH", &empty)
        .args([&files.path("kernel"), Path::new("-o"), &files.path("out.vprof")])
        .args([Path::new("--portable-host"), &empty])
        .output()
        .unwrap();
    refused(&output, 4, &["apt install qemu-system-x86", "cargo xtask image portable-host", "/empty"]);
    assert!(!files.path("out.vprof").exists());
}

#[test]
fn networks_that_are_not_available() {
    let files = InputFiles::new();
    let (bundle, bin) = fake_host(files.0.path(), "exit 1");
    let run = |network: &str| {
        let mut command = vprof(["run", "-q", "--host", "portable", "--net", network]);
        command.env("PATH", &bin).arg("--portable-host").arg(&bundle);
        let output =
            command.arg(files.path("kernel")).arg("-o").arg(files.path("out.vprof")).output().unwrap();
        assert!(!files.path("out.vprof").exists(), "a profile was left behind: {}", stderr(&output));
        output
    };
    refused(&run("passt"), 1, &["passt is not in PATH", "sudo apt install passt"]);
    refused(&run("tap=a/b"), 1, &["\"a/b\" is not a name of a network interface"]);
    let passt = bin.join("passt");
    fs::write(&passt, "#!/bin/sh\necho 'No external interface' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&passt, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    refused(&run("passt"), 1, &["passt ended as soon as it was started: No external interface"]);
    for wrong in ["user", "tap,mac=01:00:00:00:00:01", "passt,mac=1"] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn qcow2_images_that_name_themselves_or_nothing() {
    let files = InputFiles::new();
    for name in ["gone.img", "loop.qcow2"] {
        // Header of version 2: magic, version, offset and length of the backing file's name, cluster bits,
        // size, no encryption, L1 entries and table, refcount table and its clusters.
        let mut image = b"QFI\xfb\0\0\0\x02".to_vec();
        image.extend(512_u64.to_be_bytes());
        image.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
        image.extend(16_u32.to_be_bytes());
        image.extend((1_u64 << 20).to_be_bytes());
        image.extend([0_u32, 1].map(u32::to_be_bytes).concat());
        image.extend([1_u64 << 16, 2 << 16].map(u64::to_be_bytes).concat());
        image.extend(1_u32.to_be_bytes());
        image.resize(512, 0);
        image.extend(name.as_bytes());
        // The refcount table has one block, which counts the four clusters.
        image.resize(2 << 16, 0);
        image.extend((3_u64 << 16).to_be_bytes());
        image.resize(3 << 16, 0);
        image.extend([1_u16; 4].map(u16::to_be_bytes).concat());
        image.resize(4 << 16, 0);
        files.write("loop.qcow2", &image);
        refused(&files.image("loop.qcow2"), 1, &["needs a backing file", "qemu-img convert -O qcow2"]);
    }
}

#[test]
fn more_memory_than_there_is_on_kvm() {
    let host = fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = host.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let open = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if open.is_err() || total > 200 << 20 {
        return testkit::missing("/dev/kvm, and a machine of less than 200 GiB");
    }
    let files = InputFiles::new();
    let arguments = ["-q", "--host", "kvm", "--memory", "256G"].map(Path::new);
    let kernel = files.path("kernel");
    let all: Vec<&Path> = arguments.into_iter().chain([kernel.as_path()]).collect();
    refused(&files.run(&all), 1, &["262144 MiB of guest memory", "give less"]);
}

#[test]
fn no_permission_on_dev_kvm() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    // Only root can switch to a user without permission.
    let closed = fs::metadata("/dev/kvm").is_ok_and(|m| m.mode() & 0o006 == 0);
    let is_root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !closed || !is_root {
        return testkit::missing("root, and a /dev/kvm that is closed to others");
    }
    let files = InputFiles::new();
    fs::set_permissions(files.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The user may not enter the directory in which vprof was built.
    let program = files.path("vprof");
    // Another process copies it: a child of another test would inherit the file while this one writes it.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_vprof")).arg(&program).status();
    assert!(copied.unwrap().success());
    let unprivileged = || {
        let mut command = std::process::Command::new(&program);
        command.env("VPROF_CONFIG", "").uid(65_534).gid(65_534);
        command
    };
    let mut command = unprivileged();
    command.args(["run", "--host", "kvm"]);
    command.args([&files.path("kernel"), Path::new("-o"), &files.path("out.vprof")]);
    refused(&command.output().unwrap(), 4, &["no permission to open /dev/kvm", "sudo usermod -aG kvm $USER"]);
    let text = support::stdout(&unprivileged().arg("doctor").output().unwrap());
    assert!(text.contains("no  /dev/kvm permitted"), "{text}");
    assert!(text.contains("sudo usermod -aG kvm $USER"), "{text}");
}

fn nix_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}
