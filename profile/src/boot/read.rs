//! Reads a [`Boot`] from a profile.

use std::collections::{BTreeSet, HashMap};

use rusqlite::{Connection, OptionalExtension};
use statistics::estimate::Tallies;
use statistics::run_part::{RunClocks, RunPart};

use super::clocked::{self, flat_condition};
use super::places::Code;
use super::systemd::Messages;
use super::{Boot, Call, CpuEstimate, Phase, Program, UNTIL, Unit};
use crate::boot::STARTED;
use crate::numbers::unsigned;
use crate::store::{Profile, ProfileError, snapshot};

/// File systems that a kernel unpacks its initrd into (init/do_mounts.c, `rootfs_init_fs_context`, Linux
/// 6.12).
const INITRD: [&str; 3] = ["rootfs", "ramfs", "tmpfs"];

/// A sample in the guest.
#[derive(Debug, Clone)]
pub(super) struct Hit {
    pub sample: i64,
    pub vcpu: u16,
    pub time_ns: u64,
    pub stack: Option<i64>,
    pub frame: i64,
    pub mode: String,
    /// True for an address in the kernel's half.
    pub kernel_half: bool,
    pub instance: Option<i64>,
}

/// Owner of a sample.
#[derive(Debug, Clone)]
pub(super) struct SampleOwner {
    pub pid: i64,
    pub comm: String,
    pub unit: Option<String>,
}

/// A segment of a vCPU's time, ns since the run's start.
#[derive(Debug, Clone, Copy)]
struct Segment {
    from_ns: u64,
    to_ns: u64,
    /// Time in the guest.
    guest_ns: u64,
}

impl Segment {
    /// Returns its time in the guest between two points of time, ns.
    fn within(&self, (from, to): (u64, u64)) -> f64 {
        let inside = self.to_ns.min(to).saturating_sub(self.from_ns.max(from));
        let length = self.to_ns.saturating_sub(self.from_ns);
        if length > 0 { self.guest_ns as f64 * (inside as f64 / length as f64) } else { 0.0 }
    }
}

/// Contents of a profile for a boot.
#[derive(Debug)]
pub(super) struct BootInput {
    pub code: Code,
    pub hits: Vec<Hit>,
    pub who: HashMap<i64, SampleOwner>,
    pub began_ns: u64,
    pub end_ns: u64,
    pub reached_ns: Option<u64>,
    /// True if the end is that of the boot, and not of the run.
    up: bool,
    /// Uncertainty of the end, ns, for one that systemd reports.
    end_within_ns: u64,
    messages: Messages,
    programs: Vec<(u64, String)>,
    /// Time in the guest, by vCPU and time.
    guest: Vec<Segment>,
    clocks: RunClocks,
    kernel: Option<String>,
    host: String,
}

impl Boot {
    /// Reads the boot of a profile.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(profile: &Profile) -> Result<Self, ProfileError> {
        profile.has_one_vm("boot")?;
        let input = BootInput::read(profile.connection()).map_err(|error| profile.error(&error))?;
        Ok(input.boot())
    }

    /// Returns whether samples of the profile hit a kernel in its boot: before it had tasks, or in
    /// `kernel_init`, which the first process leaves with its first program (init/main.c, Linux 6.12). A
    /// merged profile has the boots of no virtual machine.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn is_recorded(profile: &Profile) -> Result<bool, ProfileError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM frame WHERE kind = 'kernel' AND symbol = 'kernel_init') \
                   OR EXISTS (SELECT 1 FROM sample WHERE mode = (SELECT id FROM mode WHERE name = 'boot'))";
        let found = profile.connection().query_row(sql, [], |row| row.get(0));
        Ok(found.map_err(|error| profile.error(&error))? && !profile.is_merged()?)
    }
}

impl BootInput {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let _snapshot = snapshot(connection)?;
        let meta = |key: &str| -> rusqlite::Result<Option<String>> {
            connection.query_row("SELECT value FROM meta WHERE key = ?", [key], |row| row.get(0)).optional()
        };
        let guest = guest(connection)?;
        let reached = "SELECT time_ns FROM event WHERE kind = 'condition' AND text LIKE '%: the run ends' ORDER BY id LIMIT 1";
        let reached_ns = connection.query_row(reached, [], |row| unsigned(row, 0)).optional()?;
        let duration: u64 = meta("duration_ns")?.and_then(|ns| ns.parse().ok()).unwrap_or(0);
        let messages = Messages::read(connection)?;
        let until = meta(UNTIL)?;
        // systemd's message has its own time; the run received it later.
        let started_ns = messages.finished_ns().filter(|_| until.is_none_or(|until| until == STARTED));
        let reached_ns = reached_ns.map(|ns| started_ns.map_or(ns, |started| started.min(ns)));
        let up_ns = reached_ns.or(started_ns);
        let programs = "SELECT time_ns, text FROM event WHERE kind = 'init' ORDER BY id";
        Ok(Self {
            clocks: clocked::read(connection)?,
            code: Code::read(connection)?,
            hits: hits(connection)?,
            who: who(connection)?,
            began_ns: guest.iter().map(|segment| segment.from_ns).min().unwrap_or(0),
            end_ns: up_ns.unwrap_or(duration),
            reached_ns,
            up: up_ns.is_some(),
            end_within_ns: if up_ns.is_some() && up_ns == started_ns { messages.within_ns() } else { 0 },
            messages,
            programs: connection
                .prepare(programs)?
                .query_map([], |row| Ok((unsigned(row, 0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?,
            guest,
            kernel: meta("kernel")?,
            host: meta("host")?.unwrap_or_else(|| "unknown".to_owned()),
        })
    }

    /// Returns seconds since the guest's first instruction.
    pub(super) fn since(&self, time_ns: u64) -> f64 {
        time_ns.saturating_sub(self.began_ns) as f64 / 1e9
    }

    /// Returns the start of sampling if the guest had run before; the run's end if it was never sampled.
    fn sampled_later(&self) -> Option<u64> {
        let from = self.clocks.rates.sampled_from(0).unwrap_or(self.end_ns);
        Some(from).filter(|from| *from > self.began_ns)
    }

    fn boot(&self) -> Boot {
        let phases = self.phases();
        let programs = self.programs.iter().map(|(time_ns, text)| {
            let (path, filesystem) = text.rsplit_once(' ').unwrap_or((text, ""));
            Program { from_s: self.since(*time_ns), path: path.to_owned(), filesystem: filesystem.to_owned() }
        });
        let mut boot = Boot {
            kernel: self.kernel.clone(),
            host: self.host.clone(),
            began_s: self.began_ns as f64 / 1e9,
            reached_s: self.reached_ns.map(|ns| self.since(ns)),
            sampled_from_s: self.sampled_later().map(|ns| self.since(ns)),
            init: programs.collect(),
            phases: phases.iter().map(|bounds| self.phase(bounds)).collect(),
            ..Boot::default()
        };
        let span =
            |name: &str| phases.iter().find(|bounds| bounds.name == name).map(|b| (b.from_ns, b.to_ns));
        if let Some(span) = span("early") {
            boot.early = self.calls(span, |hit| self.code.place(hit.stack).early);
        }
        let user = span("initrd").or(span("userspace")).map(|(from, _)| (from, self.end_ns));
        for span in [span("initcalls"), user].into_iter().flatten() {
            boot.initcalls.extend(self.calls(span, |hit| self.code.place(hit.stack).initcall));
        }
        if let Some(span) = user {
            boot.units = self.units(span, |who| who.unit.clone());
            boot.processes = self.units(span, |who| Some(who.comm.clone()));
            boot.processes.sort_by_key(|unit| std::cmp::Reverse(unit.time.samples));
        }
        boot.systemd = self.messages.systemd(self);
        boot
    }

    /// Returns start and end of each phase; of the total alone if the guest was not sampled from its first
    /// instruction on.
    pub(super) fn phases(&self) -> Vec<PhaseBounds> {
        let place = |hit: &Hit| self.code.place(hit.stack);
        let is_init = |hit: &Hit| self.pid(hit) == Some(1);
        let kernel = self.first(|hit| hit.kernel_half, self.began_ns);
        let rest = self.first(|hit| place(hit).kernel_init || place(hit).initcall.is_some(), kernel.1);
        // Without stacks no sample shows the calls of `kernel_init`.
        let before = if rest.1 == u64::MAX { kernel.1 } else { rest.1 };
        let user = self.first(|hit| hit.mode == "user" && is_init(hit), before);
        let on_initrd = |text: &str| text.rsplit(' ').next().is_some_and(|name| INITRD.contains(&name));
        // A kernel without an initrd starts its first program from the root file system: then there is no
        // phase of it.
        let left = match self.programs.first() {
            Some((_, first)) if on_initrd(first) => {
                self.programs.iter().find(|(_, text)| !on_initrd(text)).map(|(time_ns, _)| *time_ns)
            }
            _ => None,
        };
        let root = left.map(|ns| (ns, ns)).filter(|root| root.0 > user.1);
        let begin = (self.began_ns, self.began_ns);
        let end =
            (self.end_ns.saturating_sub(self.end_within_ns), self.end_ns.saturating_add(self.end_within_ns));
        // A phase that was not reached is left out, and the one before it ends with the boot.
        let is = |at: (u64, u64)| at.1 != u64::MAX;
        let mut all = vec![PhaseBounds::new("total", begin, end, self.up)];
        if self.sampled_later().is_some() {
            return all;
        }
        // Without stacks nothing divides the kernel's phase.
        let divided = is(rest) || self.hits.iter().any(|hit| hit.stack.is_some());
        let mut add = |name, from: (u64, u64), to: (u64, u64)| {
            if is(from) {
                all.push(PhaseBounds::new(name, from, if is(to) { to } else { end }, is(to)));
            }
        };
        add("decompression", begin, kernel);
        add("kernel", kernel, user);
        if divided {
            add("early", kernel, if is(rest) { rest } else { user });
        }
        add("initcalls", rest, user);
        if let Some(root) = root {
            add("initrd", user, root);
        }
        if is(user) {
            let from = root.unwrap_or(user);
            all.push(PhaseBounds::new("userspace", from, end, self.up));
        }
        all
    }

    /// Returns the time of the first sample at or after `from` that `is` accepts, and of the one before it;
    /// the end of time without one.
    fn first(&self, is: impl Fn(&Hit) -> bool, from: u64) -> (u64, u64) {
        let mut before = self.began_ns;
        for hit in self.hits.iter().take_while(|hit| hit.time_ns <= self.end_ns) {
            if hit.time_ns >= from && is(hit) {
                return (before, hit.time_ns);
            }
            before = hit.time_ns;
        }
        (u64::MAX, u64::MAX)
    }

    fn pid(&self, hit: &Hit) -> Option<i64> {
        Some(self.who.get(&hit.instance?)?.pid)
    }

    fn phase(&self, bounds: &PhaseBounds) -> Phase {
        let (from, to) = (bounds.from_ns, bounds.to_ns);
        Phase {
            name: bounds.name.to_owned(),
            from_s: self.since(from),
            to_s: self.since(to),
            wall_s: to.saturating_sub(from) as f64 / 1e9,
            within_s: bounds.within_ns as f64 / 1e9,
            guest_s: self.guest_ns(from, to) / 1e9,
            samples: self.within((from, to)).count() as u64,
            ended: bounds.ended,
        }
    }

    /// Estimates CPU time between two points of time, of everything and of one unit.
    pub(super) fn cpu(&self, span: (u64, u64), unit: &str) -> (CpuEstimate, CpuEstimate) {
        let part = self.clocks.within(span);
        let (mut all, mut own) = (Tallies::default(), Tallies::default());
        for hit in self.within(span) {
            part.count(hit.sample, &mut all);
            let who = hit.instance.filter(|_| matches!(hit.mode.as_str(), "user" | "kernel"));
            let of = who.and_then(|instance| self.who.get(&instance)?.unit.as_deref());
            if of == Some(unit) {
                part.count(hit.sample, &mut own);
            }
        }
        (part.estimate(&all).into(), part.estimate(&own).into())
    }

    fn within(&self, (from, to): (u64, u64)) -> impl Iterator<Item = &Hit> {
        self.hits.iter().filter(move |hit| (from..to).contains(&hit.time_ns))
    }

    /// Returns the time in the guest within a segment of the run, of all vCPUs, ns.
    fn guest_ns(&self, from: u64, to: u64) -> f64 {
        self.guest.iter().map(|segment| segment.within((from, to))).sum()
    }

    /// Returns the kernel's calls, by the frame that `of` returns, without interrupts. Samples of one process
    /// in sequence belong to one call, until it calls another function or returns to its program. So modules
    /// whose initcalls end by calling the same function are separate calls.
    fn calls(&self, span: (u64, u64), of: impl Fn(&Hit) -> Option<i64>) -> Vec<Call> {
        let mut calls: Vec<((&str, Option<&str>), SampleSums)> = Vec::new();
        let mut last: HashMap<Option<i64>, usize> = HashMap::new();
        let part = self.clocks.within(span);
        for hit in self.within(span) {
            if hit.mode == "user" {
                last.remove(&hit.instance);
                continue;
            }
            let Some(function) = of(hit).and_then(|frame| self.code.functions.get(&frame)) else { continue };
            if matches!(hit.mode.as_str(), "kernel" | "boot") {
                let name = (function.symbol.as_str(), function.module.as_deref());
                let same = last.get(&hit.instance).copied();
                let same = same.filter(|&at| calls.get(at).is_some_and(|(before, _)| *before == name));
                let at = same.unwrap_or_else(|| {
                    calls.push((name, SampleSums::default()));
                    calls.len() - 1
                });
                last.insert(hit.instance, at);
                if let Some((_, seen)) = calls.get_mut(at) {
                    seen.meet(hit, &part);
                }
            }
        }
        let call = |((function, module), seen): ((&str, Option<&str>), SampleSums)| Call {
            function: function.to_owned(),
            module: module.map(str::to_owned),
            from_s: self.since(seen.from_ns),
            to_s: self.since(seen.to_ns),
            time: part.estimate(&seen.tallies).into(),
        };
        // In the order of their first samples, which is that of time.
        calls.into_iter().map(call).collect()
    }

    /// Estimates the time of processes, grouped by `of`.
    fn units(&self, span: (u64, u64), of: impl Fn(&SampleOwner) -> Option<String>) -> Vec<Unit> {
        let mut units: HashMap<String, (SampleSums, BTreeSet<i64>)> = HashMap::new();
        let part = self.clocks.within(span);
        for hit in self.within(span) {
            let Some(instance) = hit.instance.filter(|_| matches!(hit.mode.as_str(), "user" | "kernel"))
            else {
                continue;
            };
            if let Some(name) = self.who.get(&instance).and_then(&of) {
                let (seen, processes) = units.entry(name).or_default();
                seen.meet(hit, &part);
                processes.insert(instance);
            }
        }
        let unit = |(name, (seen, processes)): (String, (SampleSums, BTreeSet<i64>))| Unit {
            name,
            from_s: self.since(seen.from_ns),
            to_s: self.since(seen.to_ns),
            processes: processes.len() as u64,
            time: part.estimate(&seen.tallies).into(),
        };
        let mut units: Vec<Unit> = units.into_iter().map(unit).collect();
        units.sort_by(|a, b| a.from_s.total_cmp(&b.from_s).then_with(|| a.name.cmp(&b.name)));
        units
    }
}

/// Sums of samples with something in common: the times of the first and the last one, and their tallies.
#[derive(Debug, Clone, Default)]
struct SampleSums {
    from_ns: u64,
    to_ns: u64,
    tallies: Tallies,
}

impl SampleSums {
    /// Adds a sample, later than all before.
    fn meet(&mut self, hit: &Hit, part: &RunPart) {
        if self.tallies.count() == 0 {
            self.from_ns = hit.time_ns;
        }
        self.to_ns = hit.time_ns;
        part.count(hit.sample, &mut self.tallies);
    }
}

/// Start and end of a phase, ns since the run's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhaseBounds {
    pub name: &'static str,
    pub from_ns: u64,
    pub to_ns: u64,
    within_ns: u64,
    ended: bool,
}

impl PhaseBounds {
    /// Creates the bounds from two times around each end; the middle counts.
    fn new(name: &'static str, from: (u64, u64), to: (u64, u64), ended: bool) -> Self {
        let middle = |at: (u64, u64)| at.0 + at.1.saturating_sub(at.0) / 2;
        let gap = |at: (u64, u64)| at.1.saturating_sub(at.0);
        let (from_ns, to_ns) = (middle(from), middle(to).max(middle(from)));
        Self { name, from_ns, to_ns, within_ns: gap(from).saturating_add(gap(to)), ended }
    }
}

fn hits(connection: &Connection) -> rusqlite::Result<Vec<Hit>> {
    let flat = flat_condition(connection)?;
    let sql = format!(
        "SELECT s.id, s.vcpu, s.time_ns, s.stack, s.frame, m.name, f.address, s.instance FROM sample s \
         JOIN mode m ON m.id = s.mode JOIN frame f ON f.id = s.frame \
         WHERE s.vcpu_state = 'guest' AND m.name <> 'idle' AND NOT {} ORDER BY s.time_ns, s.id",
        flat.as_deref().unwrap_or("FALSE")
    );
    let hit = |row: &rusqlite::Row<'_>| {
        Ok(Hit {
            sample: row.get(0)?,
            vcpu: row.get(1)?,
            time_ns: unsigned(row, 2)?,
            stack: row.get(3)?,
            frame: row.get(4)?,
            mode: row.get(5)?,
            kernel_half: row.get::<_, i64>(6)? < 0,
            instance: row.get(7)?,
        })
    };
    connection.prepare(&sql)?.query_map([], hit)?.collect()
}

fn who(connection: &Connection) -> rusqlite::Result<HashMap<i64, SampleOwner>> {
    let sql = "SELECT i.id, i.pid, i.comm, coalesce(c.unit, c.path) FROM instance i LEFT JOIN cgroup c ON c.id = i.cgroup";
    let who = |row: &rusqlite::Row<'_>| {
        Ok((row.get(0)?, SampleOwner { pid: row.get(1)?, comm: row.get(2)?, unit: row.get(3)? }))
    };
    connection.prepare(sql)?.query_map([], who)?.collect()
}

fn guest(connection: &Connection) -> rusqlite::Result<Vec<Segment>> {
    let sql = "SELECT time_ns, guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns, guest_ns \
               FROM microstate ORDER BY vcpu, time_ns";
    let segment = |row: &rusqlite::Row<'_>| {
        let (to_ns, length) = (unsigned(row, 0)?, unsigned(row, 1)?);
        let from_ns = to_ns.saturating_sub(length);
        Ok(Segment { from_ns, to_ns, guest_ns: unsigned(row, 2)? })
    };
    connection.prepare(sql)?.query_map([], segment)?.collect()
}
