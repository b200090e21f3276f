//! All of a page's data that is not a list of numbers, as one JSON object. Most of it is the readers' JSON,
//! with the names of docs/json.md; all text is cleaned.

use std::collections::HashMap;

use profile::boot::Boot;
use profile::histogram;
use profile::report::{
    Annotation, Breakdown, By, CodeLine, Event, ExactReport, FunctionListing, HostReport, Report, Row,
    ShownLines,
};
use profile::rusage::Rusage;
use profile::stat::{ExitStat, Stat};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::clean::{name, value};
use super::leaves::Leaves;
use super::samples::TimeBuckets;
use super::tree::{FunctionKind, Functions, small};
use super::who::ProcessRows;
use super::{NoExactData, Sources};

/// Limit of functions with estimates of the whole run: those with most samples.
const MOST_FUNCTIONS: usize = 10_000;
/// Limit of rows of the other kinds of `--by`, each: those with most samples.
const MOST_BY: usize = 1_000;
/// Limit of instructions of a function that are shown for their samples, each with some around it.
const MOST_SAMPLED_LINES: usize = 40;
/// Limit of reasons of exits with histograms of their times.
const MOST_TIMED: usize = 200;
/// Limit of events, tasks, and rows of other lists that a page shows in full.
const MOST_ROWS: usize = 2_000;
/// Limit of processes whose CPU accounting is shown.
const MOST_ACCOUNTED: usize = 200;

/// The object under construction.
#[derive(Debug, Default)]
pub(super) struct Facts {
    members: Map<String, Value>,
    leaves: Map<String, Value>,
    breakdowns: Map<String, Value>,
}

/// Collects the data of the sources, except samples and stacks.
pub(super) fn collect(
    sources: Sources,
    title: &str,
    functions: &mut Functions,
    process_rows: &ProcessRows,
) -> Facts {
    let mut facts = Facts::default();
    facts.put("version", env!("CARGO_PKG_VERSION"));
    facts.put("name", name(title));
    // All 64 bits, which numbers of scripts cannot hold.
    facts.put("seed", sources.report.seed.to_string());
    for breakdown in sources.breakdowns {
        match breakdown.by {
            By::Function => facts.estimates(breakdown, functions),
            _ => facts.breakdown(breakdown),
        }
    }
    facts.code(&sources.code);
    facts.phases(sources.boot.as_ref());
    facts.report(sources.report, process_rows);
    facts.rusage(sources.rusage);
    facts.stat(&sources.stat);
    match sources.exact {
        Ok(exact) => facts.exact(exact),
        Err(NoExactData(reason)) => facts.put("exactMissing", name(&reason)),
    }
    facts.put("microstates", sources.lanes.iter().map(super::lanes::Lane::json).collect::<Value>());
    let lines = sources.console.lines.into_iter().map(|(s, line)| json!([s, line]));
    let (lines, left_out) = (lines.collect::<Value>(), sources.console.left_out);
    if let Some(host) = sources.host {
        facts.host(host.report);
    }
    facts.put("console", json!({ "lines": lines, "leftOut": left_out }));
    facts
}

impl Facts {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.members.insert(key.to_owned(), value.into());
    }

    /// Adds the cleaned JSON of a reader. Serializing it cannot fail: keys are text, numbers finite or null.
    fn put_value(&mut self, key: &str, of: &impl Serialize) {
        self.put(key, serde_json::to_value(of).map_or(Value::Null, value));
    }

    /// Adds functions: number, own samples and share with its ends, samples in total and share.
    fn estimates(&mut self, breakdown: Breakdown, functions: &mut Functions) {
        let left_out = breakdown.rows.len().saturating_sub(MOST_FUNCTIONS);
        let row = |Row { name, module, kind, own, total, .. }: Row| {
            let kind = if matches!(kind.as_deref(), Some("user" | "managed")) {
                FunctionKind::User
            } else {
                FunctionKind::Kernel
            };
            let function = functions.number((name, module, kind));
            let own = (own.samples, short(own.share), short(own.share_low), short(own.share_high));
            json!([function, own.0, own.1, own.2, own.3, total.samples, short(total.share)])
        };
        let rows: Value = breakdown.rows.into_iter().take(MOST_FUNCTIONS).map(row).collect();
        self.put("estimates", rows);
        self.put("functionsLeftOut", left_out);
    }

    /// Adds rows of another kind: name, kind, what the name belongs to, own samples and share with its ends,
    /// samples in total and share.
    fn breakdown(&mut self, Breakdown { by, rows, .. }: Breakdown) {
        let left_out = rows.len().saturating_sub(MOST_BY);
        let row = |row: Row| {
            let Row { own, total, .. } = row;
            let place = row.process.or(row.module).or(row.unit).or(row.container);
            let tid = row.tid.map(|tid| format!("tid {tid}"));
            let place: Vec<String> = place.into_iter().chain(tid).collect();
            value(json!([
                row.name,
                row.kind,
                place.join(", "),
                own.samples,
                short(own.share),
                short(own.share_low),
                short(own.share_high),
                total.samples,
                short(total.share)
            ]))
        };
        let rows: Value = rows.into_iter().take(MOST_BY).map(row).collect();
        self.breakdowns.insert(by.name().to_owned(), json!({ "rows": rows, "leftOut": left_out }));
    }

    /// Adds the code of functions: of each the lines with most samples and those around them, as number of
    /// the instruction, address, text, own samples, samples below, source.
    fn code(&mut self, annotations: &[Annotation]) {
        let function = |annotation: &Annotation| {
            let listing = FunctionListing::new(annotation, false);
            let all = listing.without_padding();
            let shown = ShownLines::Hottest(MOST_SAMPLED_LINES).choose(all);
            let line = |(number, line): (usize, &CodeLine)| {
                let address = format!("{:#x}", line.place.address);
                json!([number, address, line.text, line.own, line.called, line.source])
            };
            let lines = all.iter().enumerate().zip(shown).filter(|(_, shown)| *shown);
            value(json!({
                "symbol": listing.symbol, "module": listing.module, "kind": listing.kind, "notes": listing.notes,
                "size": all.len(), "share": short(listing.own.share), "samples": listing.own.samples,
                "totalSamples": listing.total.samples,
                "lines": lines.map(|(entry, _)| line(entry)).collect::<Value>(),
            }))
        };
        self.put("code", annotations.iter().map(function).collect::<Value>());
        self.put("codeEmulated", annotations.iter().any(|annotation| annotation.emulated));
    }

    /// Adds the phases of a boot: name, beginning and end, s since the run's start.
    fn phases(&mut self, boot: Option<&Boot>) {
        let rows = boot.into_iter().flat_map(|boot| {
            let parts = boot.phases.iter().filter(|phase| !matches!(phase.name.as_str(), "total" | "kernel"));
            parts
                .map(move |phase| json!([phase.name, boot.began_s + phase.from_s, boot.began_s + phase.to_s]))
        });
        self.put("phases", rows.collect::<Value>());
    }

    fn report(&mut self, mut report: Report, process_rows: &ProcessRows) {
        let mut processes = std::mem::take(&mut report.processes);
        for process in &mut processes {
            process.threads.clear();
        }
        let mut rows = serde_json::to_value(&processes).map_or(Value::Null, value);
        if let Some(rows) = rows.as_array_mut() {
            rows.extend(process_rows.others().map(value));
        }
        self.put("processes", rows);
        report.functions.clear();
        self.put("eventsLeftOut", report.events.len().saturating_sub(MOST_ROWS));
        report.events = ends(std::mem::take(&mut report.events));
        report.missing.truncate(MOST_ROWS);
        self.put("isSlowed", report.is_slowed());
        self.put("isMostlySerial", report.has_much_serial());
        self.put_value("report", &report);
    }

    fn rusage(&mut self, mut rusage: Rusage) {
        rusage.threads.clear();
        self.put("accountingOutside", rusage.processes.iter().filter(|row| row.outside).count());
        self.put("accountingRead", rusage.processes.len());
        rusage.processes.truncate(MOST_ACCOUNTED);
        self.put_value("rusage", &rusage);
    }

    fn stat(&mut self, stat: &Stat) {
        let mut exits = stat.by_device();
        exits.truncate(MOST_ROWS);
        let times = exits.iter().take(MOST_TIMED).map(times).collect::<Value>();
        let mut sites = stat.sites_by_function();
        sites.truncate(MOST_ROWS);
        let interrupts = &stat.interrupts[..stat.interrupts.len().min(MOST_ROWS)];
        let counters = &stat.kvm_counters[..stat.kvm_counters.len().min(MOST_ROWS)];
        let stat = json!({ "exits": exits, "exitTimes": times, "exitSites": sites, "interrupts": interrupts, "counters": counters });
        self.put("stat", value(stat));
    }

    fn host(&mut self, mut report: HostReport) {
        self.put("hostFunctionsLeftOut", report.functions.len().saturating_sub(MOST_BY));
        report.functions.truncate(MOST_BY);
        self.put_value("host", &report);
    }

    fn exact(&mut self, mut exact: ExactReport) {
        let left_out = exact.tasks.len().saturating_sub(MOST_ROWS);
        exact.tasks.truncate(MOST_ROWS);
        exact.off_cpu.clear();
        exact.wakeups.clear();
        exact.interrupts.clear();
        self.put_value("exact", &exact);
        self.put("tasksLeftOut", left_out);
    }

    /// Adds the division of the samples: cells with samples and their entries.
    pub(super) fn samples(&mut self, time: &TimeBuckets, (cells, entries): (u64, u64), weight_scale: f64) {
        self.put(
            "time",
            json!({
                "beginNs": time.begin_ns, "bucketNs": time.bucket_ns, "buckets": time.buckets, "vcpus": time.vcpus,
                "weightScale": weight_scale,
            }),
        );
        self.put("cells", cells);
        self.put("entries", entries);
    }

    /// Adds a note that there are leaves of this name.
    pub(super) fn leaves(&mut self, name: &str, leaves: &Leaves) {
        self.leaves.insert(name.to_owned(), leaves.len().into());
    }

    /// Adds the profile to compare with.
    pub(super) fn base(&mut self, title: &str, leaves: &Leaves) {
        let (samples, time) = leaves.sum();
        self.put("base", json!({ "name": name(title), "samples": samples, "time": time }));
    }

    /// Adds functions and roles, after all of them are known.
    pub(super) fn lists(&mut self, functions: &Functions, process_rows: &ProcessRows, nodes: usize) {
        let mut modules: Vec<String> = Vec::new();
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut symbols = Vec::with_capacity(functions.list.len());
        let mut places = Vec::with_capacity(functions.list.len());
        let mut kinds = String::with_capacity(functions.list.len());
        for (symbol, module, kind) in &functions.list {
            symbols.push(name(symbol));
            let place = module.as_deref().map(|module| {
                *known.entry(module).or_insert_with(|| {
                    modules.push(name(module));
                    small(modules.len() - 1)
                })
            });
            places.push(place.map_or(-1, i64::from));
            kinds.push(match kind {
                FunctionKind::User => 'u',
                FunctionKind::Kernel => 'k',
                FunctionKind::Reason => 'r',
                FunctionKind::State => 's',
            });
        }
        self.put(
            "functions",
            json!({ "symbol": symbols, "module": places, "modules": modules, "kind": kinds }),
        );
        for (key, list) in process_rows.lists() {
            self.put(key, list);
        }
        self.put("nodes", nodes);
    }

    /// Returns the whole object.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        self.members.insert("leaves".to_owned(), Value::Object(self.leaves));
        self.members.insert("by".to_owned(), Value::Object(self.breakdowns));
        self.members
    }
}

/// Returns the histogram of an exit's times: shortest time of a bucket, ns, its end, and the number of exits.
fn times(exit: &ExitStat) -> Value {
    let buckets = exit.times().iter().take(histogram::BUCKETS);
    buckets.map(|(low, count)| json!([low, histogram::end_ns(*low), count])).collect()
}

/// Returns the first and the last events.
fn ends(mut events: Vec<Event>) -> Vec<Event> {
    if events.len() > MOST_ROWS {
        events.drain(MOST_ROWS / 2..events.len() - MOST_ROWS / 2);
    }
    events
}

/// Rounds to six digits, which is more than the page shows.
fn short(share: f64) -> f64 {
    format!("{share:.5e}").parse().unwrap_or(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_digits_are_kept() {
        assert_eq!(short(0.123_456_789), 0.123_457);
        assert_eq!(short(0.0), 0.0);
        assert_eq!(short(1.0), 1.0);
    }

    #[test]
    fn of_many_events_the_first_and_last_stay() {
        let event = |n: u32| Event { time_s: n.into(), kind: String::new(), text: String::new() };
        let kept = ends((0..5_000).map(event).collect());
        assert_eq!(kept.len(), MOST_ROWS);
        assert_eq!((kept[0].time_s, kept[999].time_s, kept[1_000].time_s), (0.0, 999.0, 4_000.0));
        assert_eq!(ends((0..5).map(event).collect()).len(), 5);
    }
}
