//! Boots a kernel with its serial console on standard output, and prints the reason of its end.
//!
//! ```text
//! boot KERNEL [--initrd FILE] [--append TEXT] [--disk FILE] [--snapshot FILE]
//!      [--cpus N] [--memory MIB] [--seconds LIMIT] [--rate HZ]
//! ```
//!
//! With `--rate` every vCPU is ticked. The number of ticks per privilege level is printed, and that of exits
//! that a device had to serve.

use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use vmm::{Console, Disk, DiskMode, Exit, Machine, MachineEnd, Observer, Payload, Tick, VmConfig};

/// Counts ticks at CPL 0 and above, and exits by kind.
#[derive(Default)]
struct Count {
    interval: Option<Duration>,
    kernel: u64,
    user: u64,
    ports: u64,
    memory: u64,
}

impl Observer for Count {
    fn started(&mut self) -> Option<Duration> {
        self.interval
    }

    fn exited(&mut self, exit: Exit, _: u64) {
        match exit {
            Exit::Io { .. } => self.ports += 1,
            Exit::Mmio { .. } => self.memory += 1,
            _ => {}
        }
    }

    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        match tick.cpl() {
            0 => self.kernel += 1,
            _ => self.user += 1,
        }
        self.interval
    }
}

struct Options {
    config: VmConfig,
    limit: Option<Duration>,
    interval: Option<Duration>,
}

type Fail = Box<dyn std::error::Error>;

fn options() -> Result<Options, Fail> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: boot KERNEL [--initrd FILE] [--append TEXT] [--disk FILE] [--snapshot FILE] \
                 [--cpus N] [--memory MIB] [--seconds LIMIT] [--rate HZ]";
    let kernel = std::fs::read(arguments.next().ok_or(usage)?)?;
    let (mut initrd, mut cmdline) = (None, "console=ttyS0 panic=-1".to_owned());
    let (mut vcpus, mut memory_bytes) = (1, 512 << 20);
    let (mut disks, mut limit, mut interval) = (Vec::new(), None, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(usage)?;
        match name.as_str() {
            "--initrd" => initrd = Some(std::fs::read(value)?),
            "--append" => cmdline = value,
            "--disk" => {
                let file = File::options().read(true).write(true).open(value)?;
                disks.push(Disk { file: file.into(), mode: DiskMode::ReadWrite });
            }
            "--snapshot" => {
                disks.push(Disk { file: File::open(value)?.into(), mode: DiskMode::Snapshot });
            }
            "--cpus" => vcpus = value.parse()?,
            "--memory" => memory_bytes = value.parse::<u64>()? << 20,
            "--seconds" => limit = Some(Duration::from_secs(value.parse()?)),
            "--rate" => interval = Some(Duration::from_secs(1) / value.parse::<u32>()?.max(1)),
            _ => return Err(usage.into()),
        }
    }
    let payload = Payload::Linux { kernel, initrd, cmdline };
    let console = Console(Box::new(io::stdout()));
    Ok(Options {
        config: VmConfig {
            kvm: None,
            vcpus,
            memory_bytes,
            huge_pages: false,
            cpu: vmm::CpuFeatures::default(),
            payload,
            disks,
            console,
            second_console: None,
            extra: vmm::Extra::default(),
        },
        limit,
        interval,
    })
}

fn boot() -> Result<bool, Fail> {
    let Options { config, limit, interval } = options()?;
    let machine = Machine::start(config, |_| Count { interval, ..Default::default() })?;
    let ended = machine.wait(limit)?;
    let mut out = io::stderr().lock();
    match &ended.end {
        MachineEnd::PowerOff => writeln!(out, "The guest powered off.")?,
        MachineEnd::Reset => writeln!(out, "The guest reset itself.")?,
        MachineEnd::Exited(value) => writeln!(out, "The guest exited with {value}.")?,
        MachineEnd::Stopped => writeln!(out, "Stopped: the time limit was reached.")?,
        MachineEnd::Failed(report) => writeln!(out, "{report}")?,
    }
    for (id, count) in ended.observers.iter().enumerate() {
        let Count { kernel, user, ports, memory, .. } = count;
        writeln!(
            out,
            "vCPU {id}: {kernel} ticks at CPL 0, {user} at CPL 3; {ports} port and {memory} MMIO exits"
        )?;
    }
    Ok(matches!(ended.end, MachineEnd::PowerOff | MachineEnd::Exited(0)))
}

fn main() -> ExitCode {
    match boot() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
