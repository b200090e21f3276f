//! States of a real guest: the demo image runs under QEMU, is stopped in its kernel, and its registers and
//! memory are saved.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvm_bindings::{kvm_regs, kvm_sregs};
use sampler::bench::StoppedGuest;
use symbols::elf::ReadAt;
use symbols::names::{GuestFiles, OpenFiles};
use vm_memory::{Bytes, GuestAddress};
use vmm::GuestMemoryMmap;
use vprof_tests::Ext4Image;

/// Memory of the guest, bytes.
pub const MEMORY: usize = 256 << 20;
/// Time that a guest may take to its command under emulation.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// Time to wait until the guest is in its kernel.
const MOMENT_LIMIT: Duration = Duration::from_secs(60);
/// Memory that a counting guest has for itself, bytes; a sample reads nothing there.
pub const LOW: u64 = 4 << 20;
/// Command that makes deep stacks of both kinds: a shell that calls itself 20 times writes files.
const SHELL: &str = "f() { if (($1 > 0)); then f $(($1 - 1)); else while :; do echo x >/var/tmp/$RANDOM; done; fi; }; \
                       echo begun; f 4";

/// Command in Python that writes a file, with [`PYTHON_FUNCTIONS`] functions on its stack.
const PYTHON: &str = r#"
def f(n):
    if n:
        return f(n - 1)
    print("begun", flush=True)
    while True:
        with open("/var/tmp/x", "w") as file:
            file.write("x")
f(18)
"#;
/// Functions on the stack of the command in Python, with the code outside of functions.
pub const PYTHON_FUNCTIONS: u32 = 20;

/// A guest under QEMU; ends with its scope.
pub struct QemuGuest {
    _qemu: KilledChild,
    monitor: QemuMonitor,
    ram: PathBuf,
    image: PathBuf,
}

impl QemuGuest {
    /// Boots the demo image and waits until a shell in it runs. All files are written to `directory`.
    pub fn boot(directory: &Path) -> anyhow::Result<Self> {
        Self::boot_with(directory, &["bash", "-c", SHELL])
    }

    /// Boots the demo image in the same way with a program in Python.
    pub fn boot_python(directory: &Path) -> anyhow::Result<Self> {
        Self::boot_with(directory, &["python3", "-c", PYTHON])
    }

    fn boot_with(directory: &Path, command: &[&str]) -> anyhow::Result<Self> {
        let image = vprof_tests::images().join("demo.img");
        let [socket, console, ram, kernel, initrd] =
            ["monitor", "console", "ram", "kernel", "initrd"].map(|name| directory.join(name));
        let disk = Ext4Image::open(&image)?;
        fs::write(&kernel, disk.read("/boot/vmlinuz")?)?;
        let mut archives = disk.read("/boot/initrd.img")?;
        archives.resize(archives.len().next_multiple_of(guest_images::ALIGNMENT), 0);
        archives.extend(guest_images::command_archive(command)?);
        fs::write(&initrd, archives)?;
        let qemu = guest_images::find_program("qemu-system-x86_64").context("no qemu-system-x86_64")?;
        let child = Command::new(qemu)
            .args(["-nodefaults", "-display", "none", "-accel", "tcg", "-cpu", "max,la57=off"])
            .args(["-m", &(MEMORY >> 20).to_string()])
            .args(["-append", "console=ttyS0 quiet panic=0 root=/dev/vda rw"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initrd)
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,snapshot=on", image.display()))
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-monitor")
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start QEMU")?;
        let qemu = KilledChild(child);
        let deadline = Instant::now() + BOOT_LIMIT;
        while !fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("begun")) {
            anyhow::ensure!(Instant::now() < deadline, "the guest did not get as far as its command");
            std::thread::sleep(Duration::from_millis(100));
        }
        let mut monitor = QemuMonitor(UnixStream::connect(&socket).context("cannot reach QEMU's monitor")?);
        monitor.0.set_read_timeout(Some(Duration::from_secs(30)))?;
        monitor.answer()?;
        Ok(Self { _qemu: qemu, monitor, ram, image })
    }

    /// Stops the guest while its kernel works for a program, saves it, and lets it run again.
    pub fn stop(&mut self) -> anyhow::Result<StoppedGuest> {
        let deadline = Instant::now() + MOMENT_LIMIT;
        loop {
            self.monitor.ask("stop")?;
            let text = self.monitor.ask("info registers")?;
            let (regs, sregs) = registers(&text)?;
            // A thread of the kernel has no FS base.
            if sregs.ss.dpl == 0 && value(&text, "HLT=")? == 0 && sregs.fs.base != 0 {
                self.monitor.ask(&format!("pmemsave 0 {MEMORY} \"{}\"", self.ram.display()))?;
                self.monitor.ask("cont")?;
                let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)])?;
                memory.write_slice(&fs::read(&self.ram)?, GuestAddress(0))?;
                return Ok(StoppedGuest { regs, sregs, memory });
            }
            anyhow::ensure!(Instant::now() < deadline, "the guest never works in its kernel");
            self.monitor.ask("cont")?;
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Returns the files of its disk.
    pub fn files(&self) -> OpenFiles {
        let image = self.image.clone();
        Arc::new(move || Box::new(ImageFiles(image.clone())))
    }
}

/// Copies a guest's memory, except for the part that a counting guest has for itself.
pub fn copy(from: &GuestMemoryMmap, to: &GuestMemoryMmap) {
    let mut chunk = vec![0; 1 << 20];
    for at in (LOW..MEMORY as u64).step_by(chunk.len()) {
        from.read_slice(&mut chunk, GuestAddress(at)).expect("inside");
        to.write_slice(&chunk, GuestAddress(at)).expect("inside");
    }
}

/// The files of an image.
struct ImageFiles(PathBuf);

impl GuestFiles for ImageFiles {
    fn open(&self, path: &str) -> Option<Box<dyn ReadAt>> {
        let bytes: Arc<[u8]> = Ext4Image::open(&self.0).ok()?.read(path).ok()?.into();
        Some(Box::new(bytes))
    }
}

/// Parses the output of `info registers`.
fn registers(text: &str) -> anyhow::Result<(kvm_regs, kvm_sregs)> {
    let get = |name: &str| value(text, name);
    let regs = kvm_regs {
        rax: get("RAX=")?,
        rbx: get("RBX=")?,
        rcx: get("RCX=")?,
        rdx: get("RDX=")?,
        rsi: get("RSI=")?,
        rdi: get("RDI=")?,
        rsp: get("RSP=")?,
        rbp: get("RBP=")?,
        r8: get("R8 =")?,
        r9: get("R9 =")?,
        r10: get("R10=")?,
        r11: get("R11=")?,
        r12: get("R12=")?,
        r13: get("R13=")?,
        r14: get("R14=")?,
        r15: get("R15=")?,
        rip: get("RIP=")?,
        rflags: get("RFL=")?,
    };
    let mut sregs = kvm_sregs {
        cr0: get("CR0=")?,
        cr3: get("CR3=")?,
        cr4: get("CR4=")?,
        efer: get("EFER=")?,
        ..kvm_sregs::default()
    };
    let (_, fs) = text.split_once("FS =").context("no FS in QEMU's registers")?;
    // Its selector, then its base.
    sregs.fs.base = value(fs, " ")?;
    sregs.cs.l = 1;
    sregs.ss.dpl = u8::try_from(get("CPL=")?)?;
    Ok((regs, sregs))
}

/// Returns the hexadecimal number after `name`.
fn value(text: &str, name: &str) -> anyhow::Result<u64> {
    let (_, rest) = text.split_once(name).with_context(|| format!("no {name} in QEMU's registers"))?;
    let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
    Ok(u64::from_str_radix(&digits, 16)?)
}

/// A child that ends with its scope.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        // Both fail only if the child is gone already, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU's human monitor.
struct QemuMonitor(UnixStream);

impl QemuMonitor {
    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.0.write_all(format!("{command}\n").as_bytes())?;
        self.answer()
    }

    /// Reads everything up to the next prompt.
    fn answer(&mut self) -> anyhow::Result<String> {
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        while !text.ends_with(b"(qemu) ") {
            match self.0.read(&mut buffer)? {
                0 => bail!("QEMU ended"),
                count => text.extend_from_slice(&buffer[..count]),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
