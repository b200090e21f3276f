//! Cost of samples of attached machines: by the host's kernel and by stops, next to those of a machine's own
//! vprof.
//!
//! The guest counts at privilege level 3, which every KVM executes natively, in another process. Its memory
//! holds that of a real guest, and its page tables map that guest's kernel: so each sample has the current
//! task of that kernel, and copies 40 KiB of user stack.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use attach::{Attachment, EngineChoice, StopMemory, Target};
use kvm_bindings::kvm_regs;
use sampler::bench::StoppedGuest;
use sampler::{AttachedSampler, RecordingConfig, Session, SessionConfig};
use statistics::clock::{ClockKind, Intervals};
use vm_memory::{Bytes, GuestAddress};
use vmm::config::FLAT_ENTRY;
use vmm::{
    AttachedThread, Exit, Machine, MissReason, Observer, ThreadStatistics, Tick, TickContext, VmConfig,
};

use crate::kick::{BareKicks, COUNT, CountingSink, DEPTH, FOUND_LIMIT, SEED};
use crate::programs::{ProgramRuns, ProgramTimes};
use crate::table::{TableRow, median};
use crate::{attached_sandbox, crowd, dump, exits};

/// Number of rounds; the median of them counts.
const ROUNDS: usize = 9;
/// Running time of each variant in a round.
pub const TURN: Duration = Duration::from_millis(700);
/// Rate of the samples, Hz.
const RATE_HZ: f64 = 1000.0;
/// Rate at which the speed of a guest is read, Hz.
const QUIET_HZ: f64 = 10.0;
/// Samples whose registers are checked.
const CHECKED: u32 = 1_000_000;
/// Entries of a page table, and the bits of an address in CR3.
const ENTRIES: u64 = 512;
const TABLE: u64 = 0x000f_ffff_ffff_f000;

/// An address in the upper half, where the kernel is.
const KERNEL_CODE: u64 = 0xffff_ffff_8100_0000;

/// Observer that publishes CR3 besides what another one does.
struct TableNote<O> {
    inner: O,
    cr3: Arc<AtomicU64>,
    /// Every other tick is served as if it had hit the kernel, by whose code it is found: this guest runs
    /// none.
    in_kernel: Arc<AtomicBool>,
    is_second: bool,
}

impl<O: Observer> Observer for TableNote<O> {
    fn started(&mut self) -> Option<Duration> {
        self.inner.started()
    }
    fn entering(&mut self, now_ns: u64) {
        self.inner.entering(now_ns);
    }
    fn exited(&mut self, exit: Exit, now_ns: u64) {
        self.inner.exited(exit, now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_>) -> Option<Duration> {
        self.cr3.store(tick.sregs.cr3, Ordering::Relaxed);
        self.is_second = !self.is_second;
        if self.is_second || !self.in_kernel.load(Ordering::Relaxed) {
            return self.inner.ticked(tick);
        }
        let regs = kvm_regs { rip: KERNEL_CODE, ..*tick.regs };
        let mut sregs = *tick.sregs;
        sregs.ss.dpl = 0;
        let context = TickContext { regs: &regs, sregs: &sregs, ..tick.context };
        self.inner.ticked(&Tick { context, ..*tick })
    }
    fn stopped(&mut self) {
        self.inner.stopped();
    }
}

/// Runs the counting guest until this process is killed, sampled at `rate_hz` by itself if that is not 0. The
/// file `ram` has the memory of a real guest, with its CR3 in the first 8 bytes; an empty file none.
///
/// # Errors
/// The machine does not start.
pub fn counting(ram: &Path, rate_hz: f64) -> anyhow::Result<()> {
    let ram = fs::read(ram)?;
    let memory_bytes = if ram.is_empty() { 8 << 20 } else { dump::MEMORY as u64 };
    let config = VmConfig { memory_bytes, ..VmConfig::flat(COUNT) };
    let recording = RecordingConfig { rate_hz, seed: SEED, stack_depth: DEPTH, ..RecordingConfig::default() };
    let sink = CountingSink::default();
    let config_of_session = SessionConfig { vcpus: 1, recording, meta: Vec::new() };
    let (mut session, samplers) =
        Session::new(config_of_session, Box::new(sink.clone()), symbols::names::no_files());
    let (cr3, in_kernel) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(rate_hz > 0.0)));
    if rate_hz > 0.0 {
        let mut samplers = samplers.into_iter();
        let machine = Machine::start(config, |_| TableNote {
            inner: samplers.next().expect("one vCPU"),
            cr3: Arc::clone(&cr3),
            in_kernel: Arc::clone(&in_kernel),
            is_second: false,
        })?;
        join_tables(&machine, &ram, &cr3)?;
        session.start(machine.memory())?;
        wait_for_stacks(&sink)?;
        in_kernel.store(false, Ordering::Relaxed);
        println!("ready");
        machine.wait(None)?;
        Ok(())
    } else {
        unsampled(&ram, config)
    }
}

/// Runs a guest with this code, as [`counting`] does.
///
/// # Errors
/// The machine does not start.
pub fn running(ram: &Path, code: Vec<u8>) -> anyhow::Result<()> {
    let ram = fs::read(ram)?;
    unsampled(&ram, VmConfig { memory_bytes: dump::MEMORY as u64, ..VmConfig::flat(code) })
}

/// Runs a guest that does not sample itself.
fn unsampled(ram: &[u8], config: VmConfig) -> anyhow::Result<()> {
    let cr3 = Arc::new(AtomicU64::new(0));
    let kicks = |_| BareKicks(Intervals::new(ClockKind::Uniform, QUIET_HZ, SEED, 0).expect("a rate"));
    let machine = Machine::start(config, |vcpu| TableNote {
        inner: kicks(vcpu),
        cr3: Arc::clone(&cr3),
        in_kernel: Arc::default(),
        is_second: false,
    })?;
    if !ram.is_empty() {
        join_tables(&machine, ram, &cr3)?;
    }
    println!("ready");
    machine.wait(None)?;
    Ok(())
}

/// Copies the real guest's memory, and lets the counting guest's page tables map that guest's kernel.
fn join_tables<O: Observer>(
    machine: &Machine<TableNote<O>>,
    ram: &[u8],
    cr3: &AtomicU64,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    while cr3.load(Ordering::Relaxed) == 0 {
        ensure!(begin.elapsed() < FOUND_LIMIT, "the counting guest has no tick");
        std::thread::sleep(Duration::from_millis(1));
    }
    let own = cr3.load(Ordering::Relaxed) & TABLE;
    let memory = machine.memory();
    let kernel = u64::from_le_bytes(*ram.first_chunk().context("no CR3")?) & TABLE;
    let low = usize::try_from(dump::LOW)?;
    memory.write_slice(ram.get(low..).context("too little memory")?, GuestAddress(dump::LOW))?;
    // Addresses of the kernel have the upper half of the table.
    for entry in ENTRIES / 2..ENTRIES {
        let value: u64 = memory.read_obj(GuestAddress(kernel + entry * 8))?;
        memory.write_obj(value, GuestAddress(own + entry * 8))?;
    }
    Ok(())
}

/// Waits until samples have stacks of the kernel in the guest's memory.
///
/// # Errors
/// The kernel is not found.
pub fn wait_for_stacks(sink: &CountingSink) -> anyhow::Result<()> {
    let deadline = Instant::now() + FOUND_LIMIT;
    while sink.stacks() < 10 {
        ensure!(
            Instant::now() < deadline,
            "the kernel in the counting guest's memory is not found: {sink:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Process with a counting guest; killed at the end.
pub struct CountingGuest(Child);

impl CountingGuest {
    /// Starts the guest as [`counting`] runs it.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start(ram: &Path, rate_hz: f64) -> anyhow::Result<Self> {
        Self::start_as(&[OsStr::new("counting"), ram.as_os_str(), rate_hz.to_string().as_ref()])
    }

    /// Starts a guest as [`Self::start`] does, unsampled, in a process with the name of a VMM whose command
    /// line has `--name`.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start_named(ram: &Path, name: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0(format!("--name={name}"));
        Self::start_by(command, &[OsStr::new("counting"), ram.as_os_str(), OsStr::new("0")])
    }

    /// Starts a guest in a process with these arguments.
    ///
    /// # Errors
    /// The process does not start.
    pub fn start_as(arguments: &[&OsStr]) -> anyhow::Result<Self> {
        Self::start_by(Command::new(std::env::current_exe()?), arguments)
    }

    fn start_by(mut command: Command, arguments: &[&OsStr]) -> anyhow::Result<Self> {
        let mut guest = Self(command.args(arguments).stdout(Stdio::piped()).spawn()?);
        let output = guest.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "ready\n", "the counting guest does not start");
        Ok(guest)
    }

    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn target(&self, engine: EngineChoice) -> anyhow::Result<Target> {
        Ok(Target::find_by(engine, i32::try_from(self.0.id())?, 1, None)?)
    }
}

impl Drop for CountingGuest {
    fn drop(&mut self) {
        // Both fail only if the child is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Observer that reads the guest's count besides what another one does, once `measuring` is set.
pub struct CountReader<O> {
    inner: O,
    measuring: Arc<AtomicBool>,
    statistics: Option<Arc<dyn ThreadStatistics>>,
    /// Time, count and time waited for a CPU, at the first tick and at the last one.
    span: Option<[(u64, u64, u64); 2]>,
}

impl<O> CountReader<O> {
    /// Reads the count around `inner`.
    pub fn new(inner: O, measuring: Arc<AtomicBool>) -> Self {
        Self { inner, measuring, statistics: None, span: None }
    }

    fn waited_ns(&self) -> u64 {
        self.statistics.as_ref().and_then(|thread| thread.read()).map_or(0, |times| times.waited_ns)
    }

    /// Returns the counts per nanosecond that the thread did not wait for a CPU.
    ///
    /// # Errors
    /// There were too few ticks.
    pub fn speed(&self) -> anyhow::Result<f64> {
        let [first, last] = self.span.context("no ticks")?;
        let ns = (last.0 - first.0).saturating_sub(last.2 - first.2);
        ensure!(ns > 0 && last.1 > first.1, "the guest counts");
        Ok((last.1 - first.1) as f64 / ns as f64)
    }
}

impl<O: Observer<StopMemory>> Observer<StopMemory> for CountReader<O> {
    fn attached(&mut self, thread: Option<AttachedThread>) {
        self.statistics = thread.as_ref().and_then(|thread| thread.statistics.clone());
        self.inner.attached(thread);
    }
    fn started(&mut self) -> Option<Duration> {
        self.inner.started()
    }
    fn pass(&mut self, now_ns: u64) -> Option<Duration> {
        self.inner.pass(now_ns)
    }
    fn suspending(&mut self, now_ns: u64) {
        self.inner.suspending(now_ns);
    }
    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        if self.measuring.load(Ordering::Relaxed) {
            let now = (tick.now_ns, tick.regs.rax, self.waited_ns());
            self.span.get_or_insert([now, now])[1] = now;
        }
        self.inner.ticked(tick)
    }
    fn missed(&mut self, reason: MissReason, due_ns: u64, now_ns: u64) -> Option<Duration> {
        self.inner.missed(reason, due_ns, now_ns)
    }
    fn suspended(&mut self, from_ns: u64, to_ns: u64) {
        self.inner.suspended(from_ns, to_ns);
    }
    fn stopped(&mut self) {
        self.inner.stopped();
    }
}

/// Observer of a tick now and then.
pub struct QuietTicks(pub Duration);

impl Observer<StopMemory> for QuietTicks {
    fn started(&mut self) -> Option<Duration> {
        Some(self.0)
    }
    fn ticked(&mut self, _: &Tick<'_, StopMemory>) -> Option<Duration> {
        Some(self.0)
    }
    fn missed(&mut self, _: MissReason, _: u64, _: u64) -> Option<Duration> {
        Some(self.0)
    }
}

/// Returns the speed of a guest that samples itself at `own_hz`, or not at all.
fn own(ram: &Path, own_hz: f64) -> anyhow::Result<f64> {
    let guest = CountingGuest::start(ram, own_hz)?;
    let measuring = Arc::new(AtomicBool::new(true));
    let ticks = || QuietTicks(Duration::from_secs_f64(1.0 / QUIET_HZ));
    let start = |_| CountReader::new(ticks(), Arc::clone(&measuring));
    let attached = Attachment::start(guest.target(EngineChoice::Bpf)?, start)?;
    std::thread::sleep(TURN);
    attached.wait()?.observers.first().context("one vCPU")?.speed()
}

/// Returns the speed of a guest that an engine samples with stacks, and the programs that have run for that.
fn attached(ram: &Path, engine: EngineChoice, rate_hz: f64) -> anyhow::Result<(f64, ProgramRuns)> {
    let guest = CountingGuest::start(ram, 0.0)?;
    let target = guest.target(engine)?;
    target.prove(FOUND_LIMIT);
    let recording = RecordingConfig { rate_hz, seed: SEED, stack_depth: DEPTH, ..RecordingConfig::default() };
    let sink = CountingSink::default();
    let config = SessionConfig { vcpus: 1, recording, meta: Vec::new() };
    let (mut session, samplers) = Session::new(config, Box::new(sink.clone()), symbols::names::no_files());
    let measuring = Arc::new(AtomicBool::new(false));
    let mut samplers = samplers.into_iter();
    let mut start = |_| {
        let sampler = AttachedSampler::from(samplers.next().expect("one vCPU"));
        CountReader::new(sampler, Arc::clone(&measuring))
    };
    let attached = Attachment::start(target, &mut start)?;
    session.start(attached.memory().clone())?;
    wait_for_stacks(&sink)?;
    let before = ProgramRuns::read_all()?;
    measuring.store(true, Ordering::Relaxed);
    std::thread::sleep(TURN);
    let runs = ProgramRuns::slowest_since(&before, 100)?;
    let ended = attached.wait()?;
    let speed = ended.observers.first().context("one vCPU")?.speed()?;
    drop(ended);
    let totals = session.finish(Vec::new());
    ensure!(totals.lost == 0, "the ring is never full here");
    Ok((speed, runs))
}

/// Measures the slow-down by each means, all in turns.
fn slow_down(ram: &Path) -> anyhow::Result<Vec<TableRow>> {
    let mut slower: [Vec<f64>; 4] = Default::default();
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS {
        let quiet = own(ram, 0.0)?;
        let mut speeds = [0.0; 4];
        // They take turns in being first: a noisy machine drifts.
        for turn in 0..speeds.len() {
            let variant = (turn + round) % speeds.len();
            speeds[variant] = match variant {
                0 => attached(ram, EngineChoice::Bpf, RATE_HZ)?.0,
                1 => attached(ram, EngineChoice::Ptrace, RATE_HZ)?.0,
                2 => attached(ram, EngineChoice::Bpf, crowd::FLEET_HZ)?.0,
                _ => own(ram, RATE_HZ)?,
            };
        }
        for (slower, speed) in slower.iter_mut().zip(speeds) {
            slower.push((1.0 - speed / quiet) * 100.0);
        }
        ratios[0].push((quiet / speeds[0] - 1.0) / (quiet / speeds[1] - 1.0));
        ratios[1].push((quiet / speeds[0] - 1.0) / (quiet / speeds[3] - 1.0));
    }
    let [by_stops, by_run] = ratios.map(|values| median(&values));
    let fleet = spread(&slower[2]);
    let [bpf, ptrace, few, run] = slower.map(|values| median(&values));
    let what = "slow-down at 1,000 Hz with stacks: attached, by the host's kernel / ";
    Ok(vec![
        TableRow::ratio(&format!("{what}by stops"), by_stops, "at most 0.25")
            .detail(format!("slow-down {bpf:.1} % / {ptrace:.1} %")),
        TableRow::ratio(&format!("{what}`vprof run`"), by_run, "at most 1.3")
            .detail(format!("slow-down {bpf:.1} % / {run:.1} %")),
        TableRow::text(
            &format!("slow-down at {} Hz with stacks: attached, by the host's kernel", crowd::FLEET_HZ),
            format!("{few:.1} %"),
            "not measurable",
        )
        .detail(format!("{fleet} in {ROUNDS} turns")),
    ])
}

/// Formats the range of some values, in percent.
fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{least:.1} to {most:.1} %")
}

/// Measures the program that takes a sample with its stacks.
fn program(ram: &Path) -> anyhow::Result<TableRow> {
    let _measured = ProgramTimes::start()?;
    let (_, runs) = attached(ram, EngineChoice::Bpf, RATE_HZ)?;
    ensure!(runs.count > 0, "the kernel counts no runs of the program");
    let mean_us = runs.ns as f64 / runs.count as f64 / 1e3;
    Ok(TableRow::text("program of a sample with stacks", format!("{mean_us:.1} µs"), "at most 6 µs")
        .detail(format!("{} runs, measured by the host's kernel", runs.count)))
}

/// Observer that checks the registers of every sample.
#[derive(Default)]
struct RegisterCheck {
    samples: Arc<AtomicU64>,
    wrong: u64,
    cr3: Option<u64>,
}

impl Observer<StopMemory> for RegisterCheck {
    fn started(&mut self) -> Option<Duration> {
        Some(Duration::from_micros(10))
    }
    fn ticked(&mut self, tick: &Tick<'_, StopMemory>) -> Option<Duration> {
        let right = (FLAT_ENTRY..FLAT_ENTRY + COUNT.len() as u64).contains(&tick.regs.rip)
            && tick.sregs.cr3 == *self.cr3.get_or_insert(tick.sregs.cr3)
            && tick.cpl() == 3;
        self.wrong += u64::from(!right);
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.started()
    }
    fn missed(&mut self, _: MissReason, _: u64, _: u64) -> Option<Duration> {
        self.started()
    }
}

/// Checks many samples of the host's kernel.
fn checked(empty: &Path) -> anyhow::Result<TableRow> {
    let guest = CountingGuest::start(empty, 0.0)?;
    let samples = Arc::new(AtomicU64::new(0));
    let check = |_| RegisterCheck { samples: Arc::clone(&samples), ..RegisterCheck::default() };
    let begin = Instant::now();
    let attached = Attachment::start(guest.target(EngineChoice::Bpf)?, check)?;
    while samples.load(Ordering::Relaxed) < u64::from(CHECKED) {
        ensure!(begin.elapsed() < Duration::from_secs(600) && !attached.has_ended(), "too few samples");
        std::thread::sleep(Duration::from_millis(20));
    }
    let seconds = begin.elapsed().as_secs_f64();
    let ended = attached.wait()?;
    let wrong: u64 = ended.observers.iter().map(|check| check.wrong).sum();
    let taken = samples.load(Ordering::Relaxed);
    ensure!(wrong == 0, "{wrong} of {taken} samples have wrong registers");
    let figure = format!("{:.1} µs each", seconds / taken as f64 * 1e6);
    Ok(TableRow::text("samples of the host's kernel, one after the other", figure, "")
        .detail(format!("{taken} samples in {seconds:.1} s, RIP, CR3 and CPL of all of them right")))
}

/// Writes the memory of a guest to a file for [`counting`], and an empty file. Returns their paths.
///
/// # Errors
/// A file cannot be written.
pub fn write_memory(stopped: &StoppedGuest, directory: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let [ram, empty] = ["counting-ram", "counting-empty"].map(|name| directory.join(name));
    let mut bytes = vec![0; dump::MEMORY];
    stopped.memory.read_slice(&mut bytes, GuestAddress(0))?;
    bytes[..8].copy_from_slice(&stopped.sregs.cr3.to_le_bytes());
    fs::write(&ram, bytes)?;
    fs::write(&empty, [])?;
    Ok((ram, empty))
}

/// Measures attached machines; passes rows on as soon as they are known.
///
/// # Errors
/// The host's kernel does not sample here, or a sample is wrong.
pub fn measure(stopped: &StoppedGuest, directory: &Path, print: impl Fn(&[TableRow])) -> anyhow::Result<()> {
    let (ram, empty) = write_memory(stopped, directory)?;
    print(&slow_down(&ram)?);
    print(&attached_sandbox::rows(&ram)?);
    print(&[program(&ram)?]);
    print(&exits::rows(&ram)?);
    print(&[checked(&empty)?]);
    crowd::measure(directory, crowd::CROWD, &print)?;
    fs::remove_file(&ram)?;
    Ok(())
}
