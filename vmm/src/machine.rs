//! A whole machine: built by [`Machine::start`], ended by its guest or by [`Machine::stop`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuFd, VmFd};
use serde::{Deserialize, Serialize};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use crate::boot;
use crate::bus::Bus;
use crate::config::{Console, MAX_VCPUS, VmConfig};
use crate::control::Control;
use crate::counters::Counters;
use crate::cpuid::{self, Topology};
use crate::devices::Devices;
use crate::error::{StartError, WaitError};
use crate::injected::{Injections, Tally};
use crate::kvm;
use crate::memory::{self, KVM_IDENTITY_MAP, KVM_TSS};
use crate::observer::Observer;
use crate::regions::{self, Region};
use crate::serial::{COM1_IRQ, COM2_IRQ, SerialPort};
use crate::tripwire::Tripwires;
use crate::vcpu::kick::{self, Timer};
use crate::vcpu::{self, run::Vcpu};

/// I/O port: a write of 8, 16 or 32 bits ends the machine with [`End::Exited`].
pub const EXIT_PORT: u16 = 0xf4;

/// I/O port: two writes of 32 bits, the upper half first, tell how long the guest's command took, ns.
pub const COMMAND_PORT: u16 = 0xf8;

/// How long a thread gets to end after it was told to.
pub(crate) const THREAD_LIMIT: Duration = Duration::from_secs(5);

/// How a machine came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The guest powered off through ACPI.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest wrote this value to the exit port ([`EXIT_PORT`]).
    Exited(u32),
    /// [`Machine::stop`] was called.
    Stopped,
    /// The guest or KVM failed: triple fault, KVM internal error, failed entry. One sentence, then
    /// the registers of the vCPU, four a line.
    Failed(String),
}

/// A running machine; dropping it stops it.
#[derive(Debug)]
pub struct Machine<O: Observer> {
    vcpus: Vec<JoinHandle<O>>,
    devices: Devices,
    control: Arc<Control>,
    bus: Arc<Bus>,
    memory: GuestMemoryMmap,
    tripwires: Tripwires,
    regions: Vec<Region>,
    counters: Vec<Option<Counters>>,
    injections: Injections,
}

/// A machine that has ended.
#[derive(Debug)]
pub struct Ended<O> {
    /// How.
    pub end: End,
    /// The observers, in the order of vCPUs.
    pub observers: Vec<O>,
    /// How long the guest's command took by the guest's own clock, ns, where it has told ([`COMMAND_PORT`]).
    pub command_ns: Option<u64>,
}

impl<O: Observer> Machine<O> {
    /// Builds the machine (memory, devices, tables, vCPUs) and starts its vCPU threads, named
    /// `vcpu 0`, `vcpu 1`, ... `make` is called once per vCPU in order of vCPU ids.
    ///
    /// # Errors
    ///
    /// Every reason why this host cannot run this machine; nothing is left behind then.
    pub fn start(config: VmConfig, mut make: impl FnMut(u8) -> O) -> Result<Self, StartError> {
        let VmConfig { vcpus, memory_bytes, huge_pages, payload, disks, console, second_console, extra } =
            config;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(StartError::Vcpus { asked: vcpus });
        }
        let kvm = kvm::open()?;
        kvm::require(&kvm)?;
        let capabilities = kvm::capabilities(&kvm);
        let most = capabilities.max_vcpus;
        if usize::from(vcpus) > most {
            return Err(StartError::VcpusBeyondKvm { asked: vcpus, most });
        }
        kick::install_handler().map_err(StartError::host("signal handlers"))?;
        let memory = memory::map(memory_bytes, huge_pages)?;
        let entry = boot::load(&payload, &memory, vcpus, second_console.is_some())?;
        drop(payload);

        let vm = Arc::new(kvm.create_vm().map_err(StartError::kvm("make a VM"))?);
        prepare(&vm, &memory)?;
        let (devices, pci) = Devices::start(disks, extra, &vm, &memory)?;
        let regions = regions::of(devices.names());
        let tally = Tally::new("serial port");
        let mut tallies: Vec<_> = devices.tallies().iter().chain([&tally]).map(Arc::clone).collect();
        let first = serial(&vm, tally, COM1_IRQ, console)?;
        let second = second_console.map(|console| {
            let tally = Tally::new("second serial port");
            tallies.push(Arc::clone(&tally));
            serial(&vm, tally, COM2_IRQ, console)
        });
        let bus = Arc::new(Bus::new(first, second.transpose()?, pci));
        let injections = Injections(tallies);
        let control = Control::new(vcpus).map_err(StartError::host("an event descriptor"))?;
        let control = Arc::new(control);
        let tripwires = Tripwires::new(Arc::clone(&control), memory.clone());

        let supported = cpuid::supported(&kvm)?;
        let mut built = Vec::with_capacity(usize::from(vcpus));
        let mut counters = Vec::with_capacity(usize::from(vcpus));
        for id in 0..vcpus {
            let topology = Topology { vcpus };
            let cpuid = cpuid::for_vcpu(&supported, topology, id, capabilities.tsc_deadline)?;
            let entry = (id == 0).then_some(&entry);
            let fd = vcpu::build(&vm, id, &cpuid, entry, &capabilities)?;
            counters.push(if capabilities.stats_fd { Counters::open(&fd).ok() } else { None });
            built.push(fd);
        }
        let make_vcpu = |(id, fd): (u8, VcpuFd)| Vcpu {
            id,
            fd,
            observer: make(id),
            bus: Arc::clone(&bus),
            control: Arc::clone(&control),
            memory: memory.clone(),
            tripwires: tripwires.clone(),
            registers_in_page: capabilities.registers_in_run_page(),
        };
        let vcpus = launch((0..).zip(built).map(make_vcpu))?;
        Ok(Self { vcpus, devices, control, bus, memory, tripwires, regions, counters, injections })
    }

    /// Resident bytes of this process beyond the guest's memory.
    ///
    /// # Errors
    /// `/proc/self/smaps` can't be read.
    pub fn resident_beyond_guest(&self) -> std::io::Result<u64> {
        crate::resident::beyond_guest(&self.memory)
    }

    /// Where the machine's devices answer: names for [`crate::Exit::Io`] and [`crate::Exit::Mmio`].
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Counts of the interrupts that the devices raise.
    pub fn injections(&self) -> Injections {
        self.injections.clone()
    }

    /// Takes KVM's own counters of each vCPU, in the order of vCPUs; `None` where this KVM has none to offer. They can
    /// be read at any time and from any thread. A second call gets an empty list.
    pub fn take_counters(&mut self) -> Vec<Option<Counters>> {
        std::mem::take(&mut self.counters)
    }

    /// The guest's memory; a cheap clone that shares the mapping.
    pub fn memory(&self) -> GuestMemoryMmap {
        self.memory.clone()
    }

    /// A handle for the machine's tripwires.
    pub fn tripwires(&self) -> Tripwires {
        self.tripwires.clone()
    }

    /// Bytes for the guest's console, the virtio-console where it has one, else the serial port; returns how many were
    /// taken (the FIFO may be full).
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        self.devices.console_input(bytes).unwrap_or_else(|| self.bus.console_input(bytes))
    }

    /// Bytes for the guest's second serial port; returns how many were taken: none without such a port.
    pub fn second_input(&self, bytes: &[u8]) -> usize {
        self.bus.second_input(bytes)
    }

    /// Asks every vCPU to stop; returns at once.
    pub fn stop(&self) {
        self.control.finish(End::Stopped);
    }

    /// A file descriptor (eventfd) that becomes readable when the machine has ended, for poll or epoll.
    /// It stays readable; reading it is not needed and must not be done.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.control.ended_fd()
    }

    /// True once the machine has ended: no vCPU runs any more.
    pub fn has_ended(&self) -> bool {
        self.control.has_ended()
    }

    /// Waits until the machine has ended, at most `limit` after which it is stopped, and joins all its threads.
    ///
    /// # Errors
    ///
    /// Names the thread that did not end within a second limit of its own, 5 s after it was told to.
    ///
    /// # Panics
    ///
    /// If an observer panicked, with its panic.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<Ended<O>, WaitError> {
        if !self.control.wait(limit) {
            self.stop();
        }
        let observers = self.join()?.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let end = self.control.end().unwrap_or(End::Stopped);
        Ok(Ended { end, observers, command_ns: self.bus.command_ns() })
    }

    /// Joins all threads, vCPUs first: no request can come to a device after them. The inner result
    /// is the first panic of an observer.
    fn join(&mut self) -> Result<thread::Result<Vec<O>>, WaitError> {
        let deadline = Instant::now() + THREAD_LIMIT;
        let vcpus: Vec<_> =
            std::mem::take(&mut self.vcpus).into_iter().map(|vcpu| join(vcpu, deadline)).collect();
        self.tripwires.close();
        self.devices.stop()?;
        // Gathered only now, so that one thread that hangs or panicked leaves no other behind.
        vcpus.into_iter().collect::<Result<Vec<_>, _>>().map(|results| results.into_iter().collect())
    }
}

impl<O: Observer> Drop for Machine<O> {
    fn drop(&mut self) {
        self.stop();
        // Whoever wants to know which thread hangs or panicked calls `wait`.
        let _hung = self.join();
    }
}

/// Joins a thread that has been told to end. The inner result is its panic.
pub(crate) fn join<T>(thread: JoinHandle<T>, deadline: Instant) -> Result<thread::Result<T>, WaitError> {
    while !thread.is_finished() {
        if Instant::now() > deadline {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            return Err(WaitError { thread: name, waited: THREAD_LIMIT });
        }
        thread::sleep(Duration::from_micros(500));
    }
    Ok(thread.join())
}

/// What a VM needs before it gets vCPUs: memory and interrupt controllers.
fn prepare(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<(), StartError> {
    vm.set_identity_map_address(KVM_IDENTITY_MAP)
        .map_err(StartError::kvm("set the address of its identity map"))?;
    vm.set_tss_address(KVM_TSS).map_err(StartError::kvm("set the address of its TSS"))?;
    vm.create_irq_chip().map_err(StartError::kvm("make the interrupt controllers"))?;
    memory::register(vm, memory)
}

/// A serial port with its interrupt.
fn serial(vm: &VmFd, tally: Arc<Tally>, line: u32, console: Console) -> Result<SerialPort, StartError> {
    let interrupt = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
        .map_err(StartError::host("an event descriptor"))?;
    vm.register_irqfd(&interrupt, line).map_err(StartError::kvm("connect a serial port's interrupt"))?;
    Ok(SerialPort::new(interrupt, tally, console))
}

/// Starts the vCPU threads: all of them, or none.
///
/// A thread makes its timer, reports, and waits until every other one is ready too. It ends if
/// the sender that it waits for is dropped.
fn launch<O: Observer>(vcpus: impl Iterator<Item = Vcpu<O>>) -> Result<Vec<JoinHandle<O>>, StartError> {
    let (ready, reports) = channel::<std::io::Result<()>>();
    let mut threads = Vec::new();
    let mut gates: Vec<Sender<()>> = Vec::new();
    let mut failure = None;
    for vcpu in vcpus {
        let (gate, wait) = channel();
        let ready = ready.clone();
        let spawned = thread::Builder::new()
            .name(format!("vcpu {}", vcpu.id))
            .spawn(move || vcpu_thread(vcpu, ready, &wait));
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failure = Some(StartError::host("a vCPU thread")(error));
                break;
            }
        }
        gates.push(gate);
    }
    drop(ready);
    for report in reports {
        if let Err(error) = report {
            failure.get_or_insert(StartError::host("a sampling timer")(error));
        }
    }
    if let Some(failure) = failure {
        drop(gates);
        for thread in threads {
            // It has nothing left to do but to return.
            let _ended = thread.join();
        }
        return Err(failure);
    }
    for gate in &gates {
        // A thread that has reported waits for this.
        let _gone = gate.send(());
    }
    Ok(threads)
}

fn vcpu_thread<O: Observer>(vcpu: Vcpu<O>, ready: Sender<std::io::Result<()>>, gate: &Receiver<()>) -> O {
    let control = Arc::clone(&vcpu.control);
    kick::mask_signals();
    let _here = control.attend(vcpu.id);
    let (timer, report) = match Timer::new() {
        Ok(timer) => (Some(timer), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _starter_gone = ready.send(report);
    // The starter waits until every thread has let go of its end.
    drop(ready);
    match (gate.recv(), timer) {
        (Ok(()), Some(timer)) => vcpu.run(timer),
        _ => vcpu.observer,
    }
}
