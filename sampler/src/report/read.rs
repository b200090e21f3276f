//! Makes a report from a profile.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, Row};

use super::filter::Instance;
use super::sums::{Charge, Charged, MODE_COUNT, Sums};
use super::{
    Event, Filter, Function, Lateness, Overhead, Process, ProcessKind, Report, ReportError, Sort,
    USER_ADDRESSES, UserAddress, Vcpu,
};
use crate::batch::{Mode, VcpuRow};
use crate::estimate::share;
use crate::profile::{MODES, Profile};

const UNKNOWN: &str = "[unknown]";
const EARLY_BOOT: &str = "[early boot]";

#[expect(clippy::cast_precision_loss, reason = "shown to a person: 53 bits suffice")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
fn part(k: u64, n: u64) -> f64 {
    if n == 0 { 0.0 } else { k as f64 / n as f64 }
}

impl Report {
    /// Reads the report over the part of the profile that `filter` chooses, with most samples first.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts are of the same moment of a run that goes on.
        let _snapshot = connection.unchecked_transaction().map_err(sql)?;
        let meta = read_meta(connection).map_err(sql)?;
        let vcpus = read_vcpus(connection).map_err(sql)?;
        let instances = read_instances(connection).map_err(sql)?;
        let duration_s = seconds(parsed(&meta, "duration_ns"));
        check(filter, vcpus.len(), duration_s)?;
        let chosen = filter.chosen(&instances);
        if let (Some(chosen), Some(wanted)) = (&chosen, &filter.process)
            && chosen.is_empty()
        {
            return Err(ReportError::NoSuchProcess(wanted.clone()));
        }
        let sums = Sums::read(profile, filter, chosen.as_ref())?;
        let (functions, addresses) = read_frames(connection, &sums, &instances).map_err(sql)?;
        let events = read_events(connection).map_err(sql)?;
        let (user_addresses, left_out) = user_addresses(addresses, &instances, sums.busy);
        let shown = vcpus.iter().filter(|row| filter.vcpu.is_none_or(|vcpu| vcpu == row.id));
        let total = |of: fn(&VcpuRow) -> u64| vcpus.iter().map(of).sum::<u64>();
        let wall_s = seconds(total(|row| row.wall_ns));
        let mut report = Self {
            version: meta.get("version").cloned().unwrap_or_default(),
            host: meta.get("host").cloned().unwrap_or_else(|| "unknown".to_owned()),
            kernel: meta.get("kernel").cloned(),
            complete: meta.get("complete").is_some_and(|value| value == "1"),
            started_unix_s: seconds(parsed(&meta, "started_unix_ns")),
            duration_s,
            rate_hz: parsed(&meta, "rate_hz"),
            measured_rate_hz: rate(total(|row| row.samples + row.lost), wall_s),
            clock: meta.get("clock").cloned().unwrap_or_default(),
            seed: parsed(&meta, "seed"),
            samples: sums.samples,
            busy_samples: sums.busy,
            lost: total(|row| row.lost),
            filter: filter.clone(),
            overhead: Overhead {
                sampler_s: seconds(total(|row| row.sampler_ns)),
                guest_s: seconds(total(|row| row.guest_ns)),
                wall_s,
                share: part(total(|row| row.sampler_ns), total(|row| row.wall_ns)),
            },
            lateness: lateness(&sums),
            vcpus: shown.map(|row| vcpu(row, sums.vcpus.get(&row.id))).collect(),
            processes: processes(&sums, &instances),
            functions,
            user_addresses,
            user_addresses_left_out: left_out,
            missing: events
                .iter()
                .filter(|event| event.kind == "missing")
                .map(|event| event.text.clone())
                .collect(),
            events,
            meta: rest(meta),
        };
        report.sort(Sort::Samples);
        Ok(report)
    }
}

fn check(filter: &Filter, vcpus: usize, duration_s: f64) -> Result<(), ReportError> {
    if let Some(vcpu) = filter.vcpu.filter(|&vcpu| usize::from(vcpu) >= vcpus) {
        return Err(ReportError::NoSuchVcpu { vcpu, count: vcpus });
    }
    if filter.from_ns.is_some_and(|from| seconds(from) > duration_s) {
        return Err(ReportError::AfterEnd(duration_s));
    }
    match (filter.from_ns, filter.to_ns) {
        (from, Some(to)) if to <= from.unwrap_or(0) => Err(ReportError::EmptyRange),
        _ => Ok(()),
    }
}

fn parsed<T: std::str::FromStr + Default>(meta: &BTreeMap<String, String>, key: &str) -> T {
    meta.get(key).and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// `meta` without what has a field of its own.
fn rest(mut meta: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for key in [
        "version",
        "host",
        "kernel",
        "complete",
        "started_unix_ns",
        "duration_ns",
        "rate_hz",
        "clock",
        "seed",
        "vcpus",
    ] {
        meta.remove(key);
    }
    meta
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(sql)?.query_map([], read)?.collect()
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).cast_unsigned())
}

fn read_meta(connection: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    let pairs = rows(connection, "SELECT key, value FROM meta", |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(pairs.into_iter().collect())
}

fn read_vcpus(connection: &Connection) -> rusqlite::Result<Vec<VcpuRow>> {
    let sql = "SELECT id, samples, lost, sampler_ns, guest_ns, exits, wall_ns FROM vcpu ORDER BY id";
    rows(connection, sql, |row| {
        Ok(VcpuRow {
            id: row.get(0)?,
            samples: unsigned(row, 1)?,
            lost: unsigned(row, 2)?,
            sampler_ns: unsigned(row, 3)?,
            guest_ns: unsigned(row, 4)?,
            exits: unsigned(row, 5)?,
            wall_ns: unsigned(row, 6)?,
        })
    })
}

fn read_instances(connection: &Connection) -> rusqlite::Result<HashMap<u32, Instance>> {
    let read = rows(connection, "SELECT id, pid, comm, number, kernel_thread FROM instance", |row| {
        let instance =
            Instance { pid: row.get(1)?, comm: row.get(2)?, number: row.get(3)?, kernel_thread: row.get(4)? };
        Ok((row.get(0)?, instance))
    })?;
    Ok(read.into_iter().collect())
}

fn read_events(connection: &Connection) -> rusqlite::Result<Vec<Event>> {
    rows(connection, "SELECT time_ns, kind, text FROM event ORDER BY time_ns, id", |row| {
        Ok(Event { time_s: seconds(unsigned(row, 0)?), kind: row.get(1)?, text: row.get(2)? })
    })
}

fn rate(ticks: u64, wall_s: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
    let ticks = ticks as f64;
    if wall_s > 0.0 { ticks / wall_s } else { 0.0 }
}

fn lateness(sums: &Sums) -> Lateness {
    let max_ns = sums.late.max();
    Lateness {
        median_ns: sums.late.value_at_quantile(0.5),
        p99_ns: sums.late.value_at_quantile(0.99),
        max_ns,
        over_1ms: sums.late_over,
    }
}

fn vcpu(row: &VcpuRow, modes: Option<&[u64; MODE_COUNT]>) -> Vcpu {
    let counts = modes.copied().unwrap_or_default();
    let samples = counts.iter().sum();
    let of = |wanted: &[Mode]| {
        let chosen = MODES.iter().zip(counts).filter(|((mode, _), _)| wanted.contains(mode));
        part(chosen.map(|(_, count)| count).sum(), samples)
    };
    Vcpu {
        id: row.id,
        samples,
        lost: row.lost,
        user: of(&[Mode::User]),
        kernel: of(&[Mode::Kernel, Mode::Boot, Mode::Unknown]),
        hardirq: of(&[Mode::HardIrq, Mode::Nmi]),
        softirq: of(&[Mode::SoftIrq]),
        idle: of(&[Mode::Idle]),
        guest_s: seconds(row.guest_ns),
        wall_s: seconds(row.wall_ns),
        exits: row.exits,
    }
}

fn processes(sums: &Sums, instances: &HashMap<u32, Instance>) -> Vec<Process> {
    let mut lost = Charge::default();
    let mut list = Vec::new();
    for (&charged, &charge) in &sums.charged {
        let pseudo = |comm: &str, kind| (comm.to_owned(), 0, 0, kind);
        let (comm, pid, instance, kind) = match charged {
            Charged::Instance(id) => match instances.get(&id) {
                Some(i) if i.kernel_thread => (i.comm.clone(), i.pid, i.number, ProcessKind::KernelThread),
                Some(i) => (i.comm.clone(), i.pid, i.number, ProcessKind::Process),
                None => {
                    lost = Charge { user: lost.user + charge.user, kernel: lost.kernel + charge.kernel };
                    continue;
                }
            },
            Charged::Unknown => {
                lost = Charge { user: lost.user + charge.user, kernel: lost.kernel + charge.kernel };
                continue;
            }
            Charged::HardIrq => pseudo("[hard interrupts]", ProcessKind::Interrupt),
            Charged::SoftIrq => pseudo("[soft interrupts]", ProcessKind::Interrupt),
            Charged::Boot => pseudo(EARLY_BOOT, ProcessKind::Boot),
        };
        list.push(process(comm, (pid, instance), kind, charge, sums.busy));
    }
    if lost.all() > 0 {
        list.push(process(UNKNOWN.to_owned(), (0, 0), ProcessKind::Unknown, lost, sums.busy));
    }
    list
}

fn process(
    comm: String,
    (pid, instance): (i32, u32),
    kind: ProcessKind,
    charge: Charge,
    busy: u64,
) -> Process {
    let estimate = share(charge.all(), busy);
    Process {
        comm,
        pid,
        instance,
        kind,
        samples: charge.all(),
        share: estimate.share,
        share_low: estimate.low,
        share_high: estimate.high,
        user_share: part(charge.user, busy),
        kernel_share: part(charge.kernel, busy),
    }
}

/// Samples by user address and instance (0 where it is not known).
type Addresses = HashMap<(u32, u64), u64>;

/// Adds up frames by name, and user frames by address, too. Several rows may have one address.
fn read_frames(
    connection: &Connection,
    sums: &Sums,
    instances: &HashMap<u32, Instance>,
) -> rusqlite::Result<(Vec<Function>, Addresses)> {
    let mut functions: HashMap<(String, Option<String>, Mode), u64> = HashMap::new();
    let mut addresses = Addresses::new();
    let mut found = 0;
    let mut statement =
        connection.prepare("SELECT id, address, kind = 'user', instance, symbol, module FROM frame")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let address = row.get::<_, i64>(1)?.cast_unsigned();
        let user = row.get(2)?;
        for (mode, _) in MODES {
            let Some(&count) = sums.frames.get(&(id, mode)) else { continue };
            found += count;
            let (symbol, mut module): (Option<String>, Option<String>) = (row.get(4)?, row.get(5)?);
            let mut name = symbol.or_else(|| module.as_ref().map(|module| format!("[{module}]")));
            if user {
                let instance = row.get::<_, Option<u32>>(3)?.unwrap_or(0);
                *addresses.entry((instance, address)).or_default() += count;
                name.get_or_insert_with(|| "[user]".to_owned());
                module.get_or_insert_with(|| {
                    instances.get(&instance).map_or(UNKNOWN, |instance| instance.comm.as_str()).to_owned()
                });
            }
            let name = name.unwrap_or_else(|| unnamed(mode, address));
            *functions.entry((name, module, mode)).or_default() += count;
        }
    }
    let without_row = sums.frames.values().sum::<u64>() - found;
    if without_row > 0 {
        functions.insert((UNKNOWN.to_owned(), None, Mode::Unknown), without_row);
    }
    let list = functions.into_iter().map(|((symbol, module, mode), samples)| {
        let estimate = share(samples, sums.busy);
        let mode =
            MODES.iter().find(|(known, _)| *known == mode).map_or("unknown", |(_, name)| name).to_owned();
        let (share, share_low, share_high) = (estimate.share, estimate.low, estimate.high);
        Function { symbol, module, mode, samples, share, share_low, share_high }
    });
    Ok((list.collect(), addresses))
}

fn unnamed(mode: Mode, address: u64) -> String {
    if mode == Mode::Boot { EARLY_BOOT.to_owned() } else { format!("{address:#x}") }
}

/// The most sampled addresses, and the samples of the others.
fn user_addresses(
    addresses: Addresses,
    instances: &HashMap<u32, Instance>,
    busy: u64,
) -> (Vec<UserAddress>, u64) {
    let mut list: Vec<((u32, u64), u64)> = addresses.into_iter().collect();
    list.sort_unstable_by_key(|&(key, samples)| (std::cmp::Reverse(samples), key));
    let left_out = list.iter().skip(USER_ADDRESSES).map(|(_, samples)| samples).sum();
    list.truncate(USER_ADDRESSES);
    let row = |((id, address), samples): ((u32, u64), u64)| {
        let instance = instances.get(&id);
        UserAddress {
            comm: instance.map_or_else(|| UNKNOWN.to_owned(), |instance| instance.comm.clone()),
            pid: instance.map_or(0, |instance| instance.pid),
            instance: instance.map_or(0, |instance| instance.number),
            address: format!("{address:#x}"),
            samples,
            share: part(samples, busy),
        }
    };
    (list.into_iter().map(row).collect(), left_out)
}
