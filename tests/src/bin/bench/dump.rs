//! Reading a kernel out of RAM: a Debian kernel is booted by QEMU without a root file system, and its memory is saved when
//! it has given up, with everything in place that is looked for.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use symbols::{FindStep, FlatMemory, Kernel};

use crate::table::{Row, median};

/// Memory of the guest, bytes.
const MEMORY: usize = 256 << 20;
/// A kernel takes a few seconds under emulation.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// Times that each step is measured.
const ROUNDS: usize = 7;
/// CR4.LA57, 5-level paging (Intel SDM vol. 3, 2.5).
const CR4_LA57: u64 = 1 << 12;

/// Time to find the kernel image, to decode kallsyms, to index BTF.
pub fn rows() -> anyhow::Result<Vec<Row>> {
    let kernel = vprof_tests::images().join("portable-host/vmlinuz");
    let directory = tempfile::tempdir()?;
    let (ram, cr3, five_level) = dump(&kernel, directory.path())?;
    let memory = FlatMemory(ram);
    let mut steps: [Vec<f64>; 3] = Default::default();
    let mut symbols = 0;
    for _ in 0..ROUNDS {
        let mut begin = Instant::now();
        let found = Kernel::find_in_steps(&memory, cr3, five_level, |step| {
            let index = match step {
                FindStep::Image => 0,
                FindStep::Kallsyms => 1,
                FindStep::Btf => 2,
            };
            steps[index].push(begin.elapsed().as_secs_f64() * 1e3);
            begin = Instant::now();
        })?;
        symbols = found.symbol_count();
        anyhow::ensure!(found.missing().is_empty(), "missing in the dump: {:?}", found.missing());
        anyhow::ensure!(found.address_of("schedule").is_some(), "no schedule among the symbols");
    }
    let [image, kallsyms, btf] = steps.map(|values| median(&values));
    let total = image + kallsyms + btf;
    Ok(vec![
        Row::text("kernel found in a RAM dump, named and laid out", format!("{total:.0} ms"), "").detail(
            format!("image {image:.2} ms, {symbols} symbols {kallsyms:.0} ms, BTF and offsets {btf:.0} ms"),
        ),
    ])
}

/// Physical memory, CR3, and whether five levels of page tables are in use.
fn dump(kernel: &Path, directory: &Path) -> anyhow::Result<(Vec<u8>, u64, bool)> {
    let (socket, console, ram) =
        (directory.join("monitor"), directory.join("console"), directory.join("ram"));
    let qemu = guest_images::find_program("qemu-system-x86_64").context("no qemu-system-x86_64")?;
    let child = Command::new(qemu)
        .args(["-nodefaults", "-display", "none", "-accel", "tcg", "-cpu", "max"])
        .args(["-m", &(MEMORY >> 20).to_string(), "-append", "console=ttyS0 panic=0"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-monitor")
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start QEMU")?;
    let _ended_on_return = Ended(child);
    let deadline = Instant::now() + BOOT_LIMIT;
    while !fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("Kernel panic")) {
        anyhow::ensure!(Instant::now() < deadline, "the kernel did not get as far as its root file system");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut monitor = Monitor(UnixStream::connect(&socket).context("cannot reach QEMU's monitor")?);
    monitor.0.set_read_timeout(Some(Duration::from_secs(30)))?;
    monitor.answer()?;
    monitor.ask("stop")?;
    let registers = monitor.ask("info registers")?;
    monitor.ask(&format!("pmemsave 0 {MEMORY} \"{}\"", ram.display()))?;
    let value = |name: &str| -> anyhow::Result<u64> {
        let (_, rest) =
            registers.split_once(name).with_context(|| format!("no {name} in QEMU's registers"))?;
        let digits: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
        Ok(u64::from_str_radix(&digits, 16)?)
    };
    Ok((fs::read(&ram)?, value("CR3=")?, value("CR4=")? & CR4_LA57 != 0))
}

/// A child that ends with its scope.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only if it is gone already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU's monitor for people.
struct Monitor(UnixStream);

impl Monitor {
    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.0.write_all(format!("{command}\n").as_bytes())?;
        self.answer()
    }

    /// Everything up to the next prompt.
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
