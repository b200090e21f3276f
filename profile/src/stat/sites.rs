//! Exits by the guest's process and function.
//!
//! Notes are for a number of exits each. Their sums are estimates where that number is not 1; the exits for a
//! reason are counted exactly. So the notes give only the parts, of an exact number and an exact time.

use std::cmp::Reverse;
use std::collections::HashMap;

use display::units::rounded;
use rusqlite::{Connection, Row};
use serde::{Deserialize, Serialize};

use super::{ExitStat, Stat};
use crate::numbers::unsigned;
use crate::rows::{Charged, Mode, is_ksoftirqd};

/// Name of the process of exits without a note.
const OTHER: &str = "[other]";
/// Name of the process of exits of the idle task.
const IDLE: &str = "[idle]";

/// Exits of one kind from one function of the guest, in one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExitSiteStat {
    /// vCPU; `None` after [`Stat::sites_by_function`] for the sum of all.
    pub vcpu: Option<u16>,
    /// Reason, as of [`ExitStat`].
    pub reason: String,
    /// Address, as of [`ExitStat`].
    pub address: Option<u64>,
    /// Device, as of [`ExitStat`].
    pub device: Option<String>,
    /// Name of the process that had the vCPU. In brackets: interrupts, the idle task, the kernel's start, an
    /// unknown task, and `[other]` for exits that were not noted.
    pub process: String,
    /// Process id; `None` for what is in brackets.
    pub pid: Option<i32>,
    /// Number of the process among those with its name.
    pub instance: Option<u32>,
    /// Mode of the code.
    pub mode: String,
    /// Function; `None` for exits that were not noted.
    pub function: Option<String>,
    /// Its module; `None` for the kernel's image.
    pub module: Option<String>,
    /// Exits that were noted.
    pub noted: u64,
    /// Number of exits; an estimate unless `count_error` is 0.
    pub count: u64,
    /// Standard error of `count`.
    pub count_error: f64,
    /// From the exits to the next entries, ns; an estimate unless `total_error_ns` is 0.
    pub total_ns: u64,
    /// Standard error of `total_ns`.
    pub total_error_ns: f64,
    /// `total_ns / count`.
    pub mean_ns: u64,
}

/// Parts of a site that distinguish it from others.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SiteKey<'a> {
    vcpu: Option<u16>,
    reason: &'a str,
    address: Option<u64>,
    device: Option<&'a str>,
    process: &'a str,
    pid: Option<i32>,
    instance: Option<u32>,
    mode: &'a str,
    function: Option<&'a str>,
    module: Option<&'a str>,
}

impl ExitSiteStat {
    fn key(&self) -> SiteKey<'_> {
        SiteKey {
            vcpu: self.vcpu,
            reason: &self.reason,
            address: self.address,
            device: self.device.as_deref(),
            process: &self.process,
            pid: self.pid,
            instance: self.instance,
            mode: &self.mode,
            function: self.function.as_deref(),
            module: self.module.as_deref(),
        }
    }

    /// Returns a row for exits of this kind without a note.
    fn other(exit: &ExitStat) -> Self {
        Self {
            vcpu: exit.vcpu,
            reason: exit.reason.clone(),
            address: exit.address,
            device: exit.device.clone(),
            process: OTHER.to_owned(),
            pid: None,
            instance: None,
            mode: Mode::Unknown.name().to_owned(),
            function: None,
            module: None,
            noted: 0,
            count: exit.count,
            count_error: 0.0,
            total_ns: exit.total_ns,
            total_error_ns: 0.0,
            mean_ns: exit.mean_ns,
        }
    }

    fn set_mean(&mut self) {
        self.mean_ns = self.total_ns.checked_div(self.count).unwrap_or(0);
    }

    /// Adds another site's exits, whose errors are independent of these.
    fn add(&mut self, other: &Self) {
        self.noted += other.noted;
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.count_error = self.count_error.hypot(other.count_error);
        self.total_error_ns = self.total_error_ns.hypot(other.total_error_ns);
        self.set_mean();
    }

    fn since(&self, earlier: &Self) -> Self {
        let error = |now: f64, before: f64| (now * now - before * before).max(0.0).sqrt();
        let mut site = Self {
            noted: self.noted.saturating_sub(earlier.noted),
            count: self.count.saturating_sub(earlier.count),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
            count_error: error(self.count_error, earlier.count_error),
            total_error_ns: error(self.total_error_ns, earlier.total_error_ns),
            ..self.clone()
        };
        site.set_mean();
        site
    }
}

/// Returns what was added since an earlier reading.
pub(super) fn since(now: &[ExitSiteStat], earlier: &[ExitSiteStat]) -> Vec<ExitSiteStat> {
    let before: HashMap<_, _> = earlier.iter().map(|site| (site.key(), site)).collect();
    let left =
        now.iter().map(|site| before.get(&site.key()).map_or_else(|| site.clone(), |old| site.since(old)));
    left.filter(|site| site.count > 0).collect()
}

pub(super) fn sort(sites: &mut [ExitSiteStat]) {
    sites.sort_by(|one, other| {
        let rank = |site: &ExitSiteStat| (Reverse(site.total_ns), Reverse(site.count));
        rank(one).cmp(&rank(other)).then_with(|| one.key().cmp(&other.key()))
    });
}

/// Adds up the sites that nothing distinguishes.
fn merged(mut sites: Vec<ExitSiteStat>) -> Vec<ExitSiteStat> {
    sites.sort_by(|one, other| one.key().cmp(&other.key()));
    sites.dedup_by(|next, sum| {
        let same = next.key() == sum.key();
        if same {
            sum.add(next);
        }
        same
    });
    sites
}

impl Stat {
    /// Returns the exits by reason, process name and function, over all vCPUs and processes of a name; by
    /// device instead of address where there is one.
    pub fn sites_by_function(&self) -> Vec<ExitSiteStat> {
        let whole = |site: &ExitSiteStat| ExitSiteStat {
            vcpu: None,
            address: site.address.filter(|_| site.device.is_none()),
            pid: None,
            instance: None,
            ..site.clone()
        };
        let mut list = merged(self.exit_sites.iter().map(whole).collect());
        sort(&mut list);
        list
    }
}

/// Reads the sites of `exits`, which have these row ids.
pub(super) fn read(
    connection: &Connection,
    exits: &[(u32, ExitStat)],
) -> rusqlite::Result<Vec<ExitSiteStat>> {
    // Functions as in the view v_functions.
    let sql = "SELECT s.exit, s.mode, s.noted, s.count, s.total_ns, s.count_error, s.total_error_ns, \
               s.instance, i.comm, i.pid, i.number, i.kernel_thread, \
               CASE WHEN f.id IS NOT NULL THEN coalesce(n.symbol, f.symbol, '[' || f.module || ']', \
                   CASE WHEN f.kind = 'user' THEN '[user]' ELSE printf('0x%x', f.address) END) END, f.module \
               FROM exit_site s LEFT JOIN instance i ON i.id = s.instance LEFT JOIN frame f ON f.id = s.frame \
               LEFT JOIN inlined n ON n.frame = s.frame AND n.depth = 0";
    let kinds: HashMap<u32, &ExitStat> = exits.iter().map(|(id, exit)| (*id, exit)).collect();
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let exit: u32 = row.get(0)?;
        // A row of a kind that is not there, from another program, counts for nothing.
        kinds.get(&exit).map(|kind| Ok((exit, site(row, kind)?))).transpose()
    })?;
    let sites: Vec<(u32, ExitSiteStat)> = rows.filter_map(Result::transpose).collect::<Result<_, _>>()?;
    Ok(divided(exits, sites))
}

fn site(row: &Row<'_>, kind: &ExitStat) -> rusqlite::Result<ExitSiteStat> {
    let mode = Mode::from_id(row.get(1)?);
    let (comm, kernel_thread): (Option<String>, Option<bool>) = (row.get(8)?, row.get(11)?);
    let ksoftirqd = comm.as_deref().is_some_and(|comm| is_ksoftirqd(comm, kernel_thread.unwrap_or(false)));
    let instance = Some(row.get(7)?).filter(|_| comm.is_some());
    let owner = Charged::from_mode(mode, instance, |_| ksoftirqd);
    let function: Option<String> = row.get(12)?;
    let is_process = matches!(owner, Some(Charged::Instance(_)));
    let process = match owner {
        _ if function.is_none() => OTHER.to_owned(),
        None => IDLE.to_owned(),
        Some(Charged::Instance(_)) => comm.unwrap_or_default(),
        Some(owner) => owner.name().to_owned(),
    };
    Ok(ExitSiteStat {
        process,
        pid: row.get::<_, Option<i32>>(9)?.filter(|_| is_process),
        instance: row.get::<_, Option<u32>>(10)?.filter(|_| is_process),
        mode: mode.name().to_owned(),
        function,
        module: row.get(13)?,
        noted: unsigned(row, 2)?,
        count: unsigned(row, 3)?,
        total_ns: unsigned(row, 4)?,
        count_error: row.get(5)?,
        total_error_ns: row.get(6)?,
        ..ExitSiteStat::other(kind)
    })
}

/// Divides the exact numbers and times of exits in the ratios of their sites, and adds up the addresses of
/// each function. Exits without any site are `[other]`.
fn divided(exits: &[(u32, ExitStat)], sites: Vec<(u32, ExitSiteStat)>) -> Vec<ExitSiteStat> {
    if sites.is_empty() {
        return Vec::new();
    }
    let mut by_exit: HashMap<u32, Vec<ExitSiteStat>> = HashMap::new();
    for (exit, site) in sites {
        by_exit.entry(exit).or_default().push(site);
    }
    let sites = exits.iter().flat_map(|(id, exit)| match by_exit.remove(id) {
        Some(sites) => shares(exit, merged(sites)),
        None => vec![ExitSiteStat::other(exit)],
    });
    sites.collect()
}

/// Divides the number and the time of exits in the ratios of these sites.
fn shares(exit: &ExitStat, mut sites: Vec<ExitSiteStat>) -> Vec<ExitSiteStat> {
    let counts = NoteSums::new(sites.iter().map(|site| (site.count, site.count_error)));
    let times = NoteSums::new(sites.iter().map(|site| (site.total_ns, site.total_error_ns)));
    for site in &mut sites {
        (site.count, site.count_error) = counts.share(exit.count, site.count, site.count_error);
        (site.total_ns, site.total_error_ns) = times.share(exit.total_ns, site.total_ns, site.total_error_ns);
        site.set_mean();
    }
    sites
}

/// Sum of what the notes of some sites are for, and its variance.
struct NoteSums {
    sum: f64,
    variance: f64,
}

impl NoteSums {
    fn new(sites: impl Iterator<Item = (u64, f64)>) -> Self {
        let add = |sums: Self, (number, error): (u64, f64)| Self {
            sum: sums.sum + number as f64,
            variance: sums.variance + error * error,
        };
        sites.fold(Self { sum: 0.0, variance: 0.0 }, add)
    }

    /// Returns the part of an exact number that a site has, and its standard error, by those of its notes:
    /// the ratio's, to the first order (Cochran, *Sampling Techniques*, 1977, 6.4). Notes are independent.
    fn share(&self, exact: u64, number: u64, error: f64) -> (u64, f64) {
        if self.sum <= 0.0 {
            return (0, 0.0);
        }
        let (part, scale) = (number as f64 / self.sum, exact as f64 / self.sum);
        let own = error * error;
        let others = (self.variance - own).max(0.0);
        let variance = (1.0 - part).powi(2) * own + part.powi(2) * others;
        (rounded(number as f64 * scale), scale * variance.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(reason: &str, count: u64) -> ExitStat {
        ExitStat {
            vcpu: Some(0),
            reason: reason.to_owned(),
            address: None,
            device: None,
            count,
            total_ns: count * 100,
            mean_ns: 100,
            p50_ns: 0,
            p99_ns: 0,
            max_ns: 0,
            times: Vec::new(),
        }
    }

    fn site(function: &str, noted: u64, count: u64, total_ns: u64) -> ExitSiteStat {
        let error = if noted == count { 0.0 } else { 3.0 };
        let mut site = ExitSiteStat {
            process: "sh".to_owned(),
            function: Some(function.to_owned()),
            noted,
            count,
            total_ns,
            count_error: error,
            total_error_ns: 2.0 * error,
            ..ExitSiteStat::other(&exit("kvm: hlt", 0))
        };
        site.set_mean();
        site
    }

    #[test]
    fn notes_divide_what_was_counted_exactly() {
        let exits = [(1, exit("kvm: hlt", 1_000)), (2, exit("kvm: msr", 7))];
        let sites = vec![
            (1, site("one", 2, 300, 30_000)),
            (1, site("two", 1, 100, 10_000)),
            (1, site("one", 1, 100, 10_000)),
        ];
        let mut all = divided(&exits, sites);
        sort(&mut all);
        let seen: Vec<_> = all
            .iter()
            .map(|site| (site.function.as_deref(), site.noted, site.count, site.total_ns))
            .collect();
        let expected = [(Some("one"), 3, 800, 80_000), (Some("two"), 1, 200, 20_000), (None, 0, 7, 700)];
        assert_eq!(seen, expected);
        assert_eq!((all[2].process.as_str(), all[0].mean_ns), (OTHER, 100));
        // Twice: of the ratio of 400, with variance 18, to 500 with 9 more.
        let error = 2.0 * (0.2_f64.powi(2) * 18.0 + 0.8_f64.powi(2) * 9.0).sqrt();
        assert!((all[0].count_error - error).abs() < 1e-9, "{all:?}");
        assert!((all[1].count_error - error).abs() < 1e-9, "the rest of an exact number: {all:?}");
        assert!(divided(&exits, Vec::new()).is_empty(), "a run without notes has no sites");
    }

    #[test]
    fn an_interval_has_what_was_added() {
        let before = [site("one", 5, 5, 500)];
        let now = [site("one", 8, 8, 900), site("two", 1, 1, 7)];
        let added = since(&now, &before);
        let seen: Vec<_> = added.iter().map(|site| (site.count, site.total_ns, site.mean_ns)).collect();
        assert_eq!(seen, [(3, 400, 133), (1, 7, 7)]);
        assert!(since(&now, &now).is_empty());
    }
}
