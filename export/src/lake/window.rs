//! Windows of time, and the names of their files.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::LAKE_VERSION;

/// Length of an hour, ns.
pub const HOUR_NS: u64 = 3_600 * SECOND_NS;
/// Length of a day, ns: one begins at each multiple of it, UTC.
pub const DAY_NS: u64 = 24 * HOUR_NS;
const SECOND_NS: u64 = 1_000_000_000;
/// Longest part of a host's name in a file name, bytes: a name has 255 at most (NAME_MAX).
const LONGEST_HOST: usize = 200;

/// A table of the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LakeTable {
    /// One row per machine, place and stack.
    Samples,
    /// One row per stack.
    Stacks,
    /// One row per machine and vCPU.
    Vcpus,
    /// One row per machine, process and state.
    Tasks,
    /// One row per profile of a machine.
    Vms,
}

impl LakeTable {
    /// All tables.
    pub const ALL: [Self; 5] = [Self::Samples, Self::Stacks, Self::Vcpus, Self::Tasks, Self::Vms];

    /// Returns the name, which is that of its directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Stacks => "stacks",
            Self::Vcpus => "vcpus",
            Self::Tasks => "tasks",
            Self::Vms => "vms",
        }
    }
}

/// A window of time on a host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LakeWindow {
    /// Name of the host.
    pub host: String,
    /// Start, ns since 1970: a multiple of the length.
    pub start_unix_ns: u64,
    /// Length, ns: a whole part of an hour.
    pub length_ns: u64,
    /// Probability with which the host takes part in a window, above 0 and at most 1.
    pub inclusion: f64,
    /// Windows of the host that were dropped since the last one that was written.
    pub dropped_windows: u64,
}

impl LakeWindow {
    /// Returns true if the host takes part in the window that begins at `start_unix_ns`, where each host
    /// takes part in one of `one_of`. Hosts are chosen independently, and each again for each window.
    pub fn takes_part(host: &str, start_unix_ns: u64, one_of: u32) -> bool {
        hash(&[host, &start_unix_ns.to_string()]).is_multiple_of(u64::from(one_of.max(1)))
    }

    /// Returns the end, ns since 1970.
    pub fn end_unix_ns(&self) -> u64 {
        self.start_unix_ns.saturating_add(self.length_ns)
    }

    /// Returns the path of a table's file below the lake.
    pub fn path(&self, table: LakeTable) -> PathBuf {
        let (year, month, day) = date(self.start_unix_ns / DAY_NS);
        let hour = self.start_unix_ns / HOUR_NS % 24;
        [
            format!("v{LAKE_VERSION}"),
            table.name().to_owned(),
            format!("day={year:04}-{month:02}-{day:02}"),
            format!("hour={hour:02}"),
            format!("{}.parquet", self.name()),
        ]
        .iter()
        .collect()
    }

    /// Returns the name of the window's files, without an ending: host, day, hour, and the number of the
    /// window in the hour. No two windows of a length have the same.
    pub fn name(&self) -> String {
        let (year, month, day) = date(self.start_unix_ns / DAY_NS);
        let hour = self.start_unix_ns / HOUR_NS % 24;
        let number = self.start_unix_ns % HOUR_NS / self.length_ns.max(1);
        format!("{}-{year:04}{month:02}{day:02}T{hour:02}-{number}", file_name(&self.host))
    }
}

/// Returns an identity for these texts: 16 hexadecimal digits.
pub fn identity(parts: &[&str]) -> String {
    format!("{:016x}", hash(parts))
}

/// Returns the first 64 bits of the SHA-256 of these texts, each followed by a zero byte.
pub(super) fn hash(parts: &[&str]) -> u64 {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns a host's name for a file: characters other than those of host names (RFC 1123) become `_`.
fn file_name(host: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let name: String = host.chars().map(plain).take(LONGEST_HOST).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "host".to_owned() } else { name.to_owned() }
}

/// Returns year, month and day of a day that is counted from 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Days are counted from 0000-03-01, so that a leap day is the last of its year; an era has 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(host: &str, start_s: u64, length_s: u64) -> LakeWindow {
        LakeWindow {
            host: host.to_owned(),
            start_unix_ns: start_s * SECOND_NS,
            length_ns: length_s * SECOND_NS,
            inclusion: 1.0,
            dropped_windows: 0,
        }
    }

    #[test]
    fn hosts_take_part_in_one_of_n_windows_independently() {
        let takes =
            |host: u64, window: u64| LakeWindow::takes_part(&format!("host{host}"), window * HOUR_NS, 10);
        let (hosts, windows) = (200, 100);
        let all: Vec<(u64, u64)> = (0..hosts).flat_map(|host| (0..windows).map(move |n| (host, n))).collect();
        let count = all.iter().filter(|(host, window)| takes(*host, *window)).count() as f64;
        let expected = (hosts * windows) as f64 / 10.0;
        // Five standard deviations of a binomial number.
        assert!((count - expected).abs() < 5.0 * (expected * 0.9).sqrt(), "{count}");
        let both =
            all.iter().filter(|(host, n)| *n > 0 && takes(*host, *n) && takes(*host, n - 1)).count() as f64;
        assert!((both - expected / 10.0).abs() < 5.0 * (expected / 10.0).sqrt(), "{both}");
        assert!(all.iter().all(|(host, n)| LakeWindow::takes_part(&host.to_string(), *n, 1)));
    }

    #[test]
    fn an_identity_depends_on_each_text_and_their_limits() {
        assert_eq!(identity(&["a", "b"]).len(), 16);
        assert_ne!(identity(&["a", "b"]), identity(&["ab", ""]));
        // By `printf 'a\0b\0' | sha256sum`: files have names of it.
        assert_eq!(identity(&["a", "b"]), "8fb20ef63ced4145");
    }

    #[test]
    fn a_file_has_the_name_of_its_host_and_window() {
        // 2026-11-23 09:00 UTC, by date(1).
        let start = 1_795_424_400;
        let whole = window("db7", start, 3_600);
        assert_eq!(
            whole.path(LakeTable::Samples).to_str(),
            Some("v1/samples/day=2026-11-23/hour=09/db7-20261123T09-0.parquet")
        );
        assert_eq!(whole.end_unix_ns(), (start + 3_600) * SECOND_NS);
        assert_eq!(window("db7", start + 1_200, 600).name(), "db7-20261123T09-2");
        assert_eq!(window("db7", start + 3_598, 2).name(), "db7-20261123T09-1799");
        let paths: std::collections::BTreeSet<_> = LakeTable::ALL.map(|table| whole.path(table)).into();
        assert_eq!(paths.len(), LakeTable::ALL.len());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        // By `date -u -d @... +%F`.
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_147, (2025, 2, 28)),
            (20_148, (2025, 3, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn a_hosts_name_leads_to_no_other_directory() {
        for (host, name) in [("../../etc", "_.._etc"), ("a b/c", "a_b_c"), ("", "host"), ("..", "host")] {
            assert_eq!(window(host, 0, 3_600).name(), format!("{name}-19700101T00-0"));
        }
        assert!(window(&"x".repeat(500), 0, 1).name().len() < 255);
    }
}
