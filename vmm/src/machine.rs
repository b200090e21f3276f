//! A virtual machine: built by [`Machine::start`], ended by its guest or by [`Machine::stop`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvm_ioctls::{VcpuFd, VmFd};
use sandbox::ThreadKind;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use crate::boot;
use crate::bus::Bus;
use crate::config::{Console, MAX_VCPUS, VmConfig};
use crate::control::Control;
use crate::counters::Counters;
use crate::cpuid::{self, Topology};
use crate::devices::Devices;
use crate::end::MachineEnd;
use crate::error::{StartError, WaitError};
use crate::injected::{InjectionTally, Injections};
use crate::kvm;
use crate::memory::{self, KVM_IDENTITY_MAP, KVM_TSS};
use crate::observer::Observer;
use crate::probe::ProbeSet;
use crate::regions::{self, Region};
use crate::serial::{COM1_IRQ, COM2_IRQ, SerialPort};
use crate::vcpu::kick::{self, TickTimer};
use crate::vcpu::nested::NestedQuery;
use crate::vcpu::{self, run::VcpuThread};

/// I/O port: a write of 8, 16 or 32 bits ends the machine with [`MachineEnd::Exited`].
pub const EXIT_PORT: u16 = 0xf4;

/// I/O port: two writes of 32 bits, the upper half first, report the duration of the guest's command, ns.
pub const COMMAND_PORT: u16 = 0xf8;

/// Time within which a thread must end after the request to end.
pub(crate) const THREAD_LIMIT: Duration = Duration::from_secs(5);

/// Running machine; dropping it stops it.
#[derive(Debug)]
pub struct Machine<O: Observer> {
    vcpus: Vec<JoinHandle<O>>,
    devices: Devices,
    control: Arc<Control>,
    bus: Arc<Bus>,
    memory: GuestMemoryMmap,
    probes: ProbeSet,
    regions: Vec<Region>,
    counters: Vec<Option<Counters>>,
    injections: Injections,
}

/// Machine that has ended.
#[derive(Debug)]
pub struct EndedMachine<O> {
    /// Reason of the end.
    pub end: MachineEnd,
    /// The observers, in the order of vCPUs.
    pub observers: Vec<O>,
    /// Duration of the guest's command by the guest's own clock, ns, if the guest reported it
    /// ([`COMMAND_PORT`]).
    pub command_ns: Option<u64>,
}

impl<O: Observer> Machine<O> {
    /// Builds the machine (memory, devices, tables, vCPUs) and starts its vCPU threads, named
    /// `vcpu 0`, `vcpu 1`, ... `make` is called once per vCPU in order of vCPU ids.
    ///
    /// # Errors
    ///
    /// A reason why this host cannot run this machine. All that was started until then is stopped and
    /// released.
    pub fn start(config: VmConfig, mut make: impl FnMut(u8) -> O) -> Result<Self, StartError> {
        let VmConfig {
            kvm,
            vcpus,
            memory_bytes,
            huge_pages,
            cpu,
            payload,
            disks,
            console,
            second_console,
            extra,
        } = config;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(StartError::Vcpus { asked: vcpus });
        }
        let kvm = match kvm {
            Some(fd) => kvm::from_descriptor(fd),
            None => kvm::open()?,
        };
        kvm::require(&kvm)?;
        let capabilities = kvm::capabilities(&kvm);
        let most = capabilities.max_vcpus;
        if usize::from(vcpus) > most {
            return Err(StartError::VcpusBeyondKvm { asked: vcpus, most });
        }
        kick::install_handler().map_err(StartError::host("signal handlers"))?;
        let memory = memory::map(memory_bytes, huge_pages)?;
        let entry = boot::load(&payload, &memory, vcpus, second_console.is_some())?;
        // Kernel and initrd are in guest memory now.
        drop(payload);

        let vm = Arc::new(kvm.create_vm().map_err(StartError::kvm("make a VM"))?);
        prepare(&vm, &memory)?;
        if !cpu.pmu && capabilities.pmu_can_be_off {
            kvm::disable_pmu(&vm)?;
        }
        let (devices, pci) = Devices::start(disks, extra, &vm, &memory)?;
        let regions = regions::machine_regions(devices.names());
        let tally = InjectionTally::new("serial port");
        let mut tallies: Vec<_> = devices.tallies().iter().chain([&tally]).map(Arc::clone).collect();
        let first = serial(&vm, tally, COM1_IRQ, console)?;
        let second = second_console.map(|console| {
            let tally = InjectionTally::new("second serial port");
            tallies.push(Arc::clone(&tally));
            serial(&vm, tally, COM2_IRQ, console)
        });
        let bus = Arc::new(Bus::new(first, second.transpose()?, pci));
        let injections = Injections(tallies);
        let control = Control::new(vcpus).map_err(StartError::host("an event descriptor"))?;
        let control = Arc::new(control);
        let probes = ProbeSet::new(Arc::clone(&control), memory.clone());

        // All vCPUs exist before the first runs: KVM must know every APIC id that the guest may start.
        let supported = cpuid::supported(&kvm)?;
        let mut built = Vec::with_capacity(usize::from(vcpus));
        let mut counters = Vec::with_capacity(usize::from(vcpus));
        for id in 0..vcpus {
            let topology = Topology { vcpus };
            let cpuid = cpuid::for_vcpu(&supported, topology, id, capabilities.tsc_deadline, cpu)?;
            let entry = (id == 0).then_some(&entry);
            let fd = vcpu::build(&vm, id, &cpuid, entry, &capabilities)?;
            counters.push(if capabilities.stats_fd { Counters::open(&fd).ok() } else { None });
            built.push(fd);
        }
        let make_vcpu = |(id, fd): (u8, VcpuFd)| VcpuThread {
            id,
            fd,
            observer: make(id),
            bus: Arc::clone(&bus),
            control: Arc::clone(&control),
            memory: memory.clone(),
            probes: probes.clone(),
            registers_in_page: capabilities.registers_in_run_page(),
            nested: NestedQuery::new(cpu, &capabilities),
        };
        let vcpus = launch((0..).zip(built).map(make_vcpu))?;
        Ok(Self { vcpus, devices, control, bus, memory, probes, regions, counters, injections })
    }

    /// Returns the resident memory of this process without the guest's memory, bytes.
    ///
    /// # Errors
    /// `/proc/self/smaps` cannot be read.
    pub fn resident_beyond_guest(&self) -> std::io::Result<u64> {
        crate::resident::beyond_guest(&self.memory)
    }

    /// Returns the address ranges of the machine's devices: names for [`crate::Exit::Io`] and
    /// [`crate::Exit::Mmio`].
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the counts of the interrupts that the devices raise.
    pub fn injections(&self) -> Injections {
        self.injections.clone()
    }

    /// Takes KVM's own counters of each vCPU, in the order of vCPUs; `None` if this KVM does not offer them.
    /// The counters can be read at any time and from any thread. A second call returns an empty list.
    pub fn take_counters(&mut self) -> Vec<Option<Counters>> {
        std::mem::take(&mut self.counters)
    }

    /// Returns the guest's memory: a cheap clone that shares the mapping.
    pub fn memory(&self) -> GuestMemoryMmap {
        self.memory.clone()
    }

    /// Returns a handle of the machine's probes.
    pub fn probes(&self) -> ProbeSet {
        self.probes.clone()
    }

    /// Sends bytes to the guest's console: the virtio-console if it has one, else the serial port. Returns
    /// how many were accepted (the FIFO may be full).
    pub fn console_input(&self, bytes: &[u8]) -> usize {
        self.devices.console_input(bytes).unwrap_or_else(|| self.bus.console_input(bytes))
    }

    /// Sends bytes to the guest's second serial port. Returns how many were accepted: 0 without such a port.
    pub fn second_input(&self, bytes: &[u8]) -> usize {
        self.bus.second_input(bytes)
    }

    /// Requests the end of the machine; returns at once.
    pub fn stop(&self) {
        self.control.finish(MachineEnd::Stopped);
    }

    /// Returns a file descriptor (eventfd) that becomes readable when the machine has ended, for poll or
    /// epoll. It stays readable and must not be read.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.control.ended_fd()
    }

    /// Returns true once the machine has ended: all vCPU threads have ended.
    pub fn has_ended(&self) -> bool {
        self.control.has_ended()
    }

    /// Returns true once after the first write to a snapshot that failed: its directory has no more room.
    pub fn take_snapshot_full(&self) -> bool {
        self.devices.take_snapshot_full()
    }

    /// Waits until the machine has ended, at most `limit` after which it is stopped, and joins all its
    /// threads.
    ///
    /// # Errors
    ///
    /// The thread that did not end within 5 s of the request to end.
    ///
    /// # Panics
    ///
    /// If an observer panicked, with its panic.
    pub fn wait(mut self, limit: Option<Duration>) -> Result<EndedMachine<O>, WaitError> {
        if !self.control.wait(limit) {
            self.stop();
        }
        let observers = self.join()?.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let end = self.control.end().unwrap_or(MachineEnd::Stopped);
        Ok(EndedMachine { end, observers, command_ns: self.bus.command_ns() })
    }

    /// Joins all threads, vCPUs first: no request can reach a device after them. The inner result is the
    /// first panic of an observer.
    fn join(&mut self) -> Result<thread::Result<Vec<O>>, WaitError> {
        let deadline = Instant::now() + THREAD_LIMIT;
        let vcpus: Vec<_> =
            std::mem::take(&mut self.vcpus).into_iter().map(|vcpu| join(vcpu, deadline)).collect();
        self.probes.close();
        self.devices.stop()?;
        // Evaluated only now, so that all other threads are joined even if one hangs or has panicked.
        vcpus.into_iter().collect::<Result<Vec<_>, _>>().map(|results| results.into_iter().collect())
    }
}

impl<O: Observer> Drop for Machine<O> {
    fn drop(&mut self) {
        self.stop();
        // `wait` reports the thread that hangs or has panicked.
        let _hung = self.join();
    }
}

/// Joins a thread that was requested to end. The inner result is its panic.
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

/// Adds to a VM what must precede its vCPUs: memory and interrupt controllers.
fn prepare(vm: &VmFd, memory: &GuestMemoryMmap) -> Result<(), StartError> {
    vm.set_identity_map_address(KVM_IDENTITY_MAP)
        .map_err(StartError::kvm("set the address of its identity map"))?;
    vm.set_tss_address(KVM_TSS).map_err(StartError::kvm("set the address of its TSS"))?;
    vm.create_irq_chip().map_err(StartError::kvm("make the interrupt controllers"))?;
    memory::register(vm, memory)
}

/// Makes a serial port with its interrupt.
fn serial(
    vm: &VmFd,
    tally: Arc<InjectionTally>,
    line: u32,
    console: Console,
) -> Result<SerialPort, StartError> {
    let interrupt = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)
        .map_err(StartError::host("an event descriptor"))?;
    vm.register_irqfd(&interrupt, line).map_err(StartError::kvm("connect a serial port's interrupt"))?;
    Ok(SerialPort::new(interrupt, tally, console))
}

/// Starts the vCPU threads: all of them, or none.
///
/// A thread makes its timer, reports the result, and waits until all others are ready. It ends if the sender
/// that it waits for is dropped.
fn launch<O: Observer>(vcpus: impl Iterator<Item = VcpuThread<O>>) -> Result<Vec<JoinHandle<O>>, StartError> {
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
            // The thread only returns: its gate was dropped.
            let _ended = thread.join();
        }
        return Err(failure);
    }
    for gate in &gates {
        // A thread that has reported a timer waits for this.
        let _gone = gate.send(());
    }
    Ok(threads)
}

fn vcpu_thread<O: Observer>(
    vcpu: VcpuThread<O>,
    ready: Sender<std::io::Result<()>>,
    gate: &Receiver<()>,
) -> O {
    let control = Arc::clone(&vcpu.control);
    kick::mask_signals();
    let _registered = control.register(vcpu.id);
    let (timer, report) = match TickTimer::new() {
        Ok(timer) => (Some(timer), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _starter_gone = ready.send(report);
    // The starter waits until every thread has dropped its end of the channel.
    drop(ready);
    match (gate.recv(), timer) {
        (Ok(()), Some(timer)) => {
            sandbox::enter_thread(ThreadKind::Vcpu);
            vcpu.run(timer)
        }
        _ => vcpu.observer,
    }
}
