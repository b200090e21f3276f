//! Makes a report from a profile.

use statistics::estimate::{self, Tallies};
use statistics::part;

use super::by::{Breakdown, By};
use super::charged::{functions, processes, programs};
use super::code::Code;
use super::filter::Selection;
use super::quality::{StackWalks, UserCode};
use super::serial::serial_time;
use super::stacks::Stacks;
use super::sums::{Sums, VcpuSums};
use super::tables::{Tables, VcpuTotals};
use super::tree::CallTree;
use super::view::View;
use super::{
    Annotation, CommandTimes, Estimate, Filter, Lateness, ModeTimes, Overhead, Process, Report, ReportError,
    Request, Sort, Vcpu,
};
use crate::numbers::seconds;
use crate::rows::Mode;
use crate::store::{Profile, snapshot};

/// The chosen part of a profile in memory.
#[derive(Debug)]
pub(super) struct LoadedProfile {
    pub tables: Tables,
    pub code: Code,
    pub stacks: Stacks,
    pub sums: Sums,
}

impl LoadedProfile {
    pub(super) fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        let connection = profile.connection();
        let sql = |error: rusqlite::Error| profile.error(&error);
        // One transaction, so that all parts have the same state of a run in progress.
        let _snapshot = snapshot(connection).map_err(sql)?;
        let tables = Tables::read(connection).map_err(sql)?;
        let code = Code::read(connection, &tables.instances).map_err(sql)?;
        let stacks = Stacks::read(connection, &code, filter.native).map_err(sql)?;
        let selection = Selection::new(filter, profile, &tables, &code, &stacks)?;
        let sums = Sums::read(profile, filter, &selection, &tables, (&code, &stacks)).map_err(sql)?;
        Ok(Self { tables, code, stacks, sums })
    }

    pub(super) fn view(&self) -> View<'_> {
        let Self { tables, code, stacks, sums } = self;
        View { tables, code, stacks, sums }
    }
}

impl Report {
    /// Reads the report over the part of the profile that `filter` chooses, with most samples first.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(profile: &Profile, filter: &Filter) -> Result<Self, ReportError> {
        Self::read_with(profile, filter, &Request::Summary)
    }

    /// Reads the report like [`Self::read`], with the answer to a further request.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read_with(profile: &Profile, filter: &Filter, request: &Request) -> Result<Self, ReportError> {
        let loaded = LoadedProfile::read(profile, filter)?;
        let view = loaded.view();
        let (by, tree) = match request {
            Request::Summary => (None, None),
            Request::By(keys) => (Some(Breakdown::new(keys, &view)), None),
            Request::Tree(request) => (None, Some(CallTree::new(request, &view)?)),
        };
        let mut report = summary(filter, &view);
        (report.by, report.tree) = (by, tree);
        report.sort(Sort::Samples);
        Ok(report)
    }
}

/// A report with more than its summary, from one pass over the samples.
#[derive(Debug)]
pub struct FullReport {
    /// The summary.
    pub report: Report,
    /// The samples grouped by each of the requested kinds, in their order.
    pub breakdowns: Vec<Breakdown>,
    /// Functions with most own samples among those whose code the profile has, most samples first.
    pub hottest: Vec<Annotation>,
}

impl FullReport {
    /// Reads the report over the part of the profile that `filter` chooses, with code of at most `functions`
    /// functions.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(
        profile: &Profile,
        filter: &Filter,
        kinds: &[By],
        functions: usize,
    ) -> Result<Self, ReportError> {
        let loaded = LoadedProfile::read(profile, filter)?;
        let view = loaded.view();
        let mut report = summary(filter, &view);
        report.sort(Sort::Samples);
        Ok(Self {
            report,
            breakdowns: kinds.iter().map(|by| Breakdown::new(&[*by], &view)).collect(),
            hottest: Annotation::hottest(profile, &view, functions)?,
        })
    }
}

fn summary(filter: &Filter, view: &View<'_>) -> Report {
    let View { tables, sums, .. } = *view;
    let shown = tables.vcpus.iter().filter(|row| filter.chooses_vcpu(row, tables));
    let total = |of: fn(&VcpuTotals) -> u64| tables.vcpus.iter().map(of).sum::<u64>();
    let wall_s = seconds(total(|row| row.states.wall()));
    let text = |key: &str| tables.meta.get(key).cloned();
    let processes = processes(view);
    Report {
        version: text("version").unwrap_or_default(),
        host: text("host").unwrap_or_else(|| "unknown".to_owned()),
        kernel: text("kernel"),
        complete: text("complete").is_some_and(|value| value == "1"),
        started_unix_s: seconds(tables.parsed("started_unix_ns")),
        duration_s: tables.duration_s(),
        rate_hz: tables.parsed("rate_hz"),
        measured_rate_hz: rate(total(|row| row.samples + row.lost), seconds(sums.all_sampled_ns)),
        unsampled_s: seconds(sums.unsampled_ns),
        clock: text("clock").unwrap_or_default(),
        intervals_valid: tables.intervals_valid(),
        seed: tables.parsed("seed"),
        samples: sums.samples,
        ticks: sums.ticks,
        busy_samples: sums.busy,
        chosen_samples: sums.chosen,
        flat_samples: sums.flat,
        lost: total(|row| row.lost),
        filter: filter.clone(),
        overhead: Overhead {
            sampler_s: seconds(total(|row| row.states.sampler)),
            guest_s: seconds(total(|row| row.states.guest)),
            wall_s,
            share: part(total(|row| row.states.sampler), total(|row| row.states.wall())),
        },
        lateness: lateness(sums),
        vcpus: shown.map(|row| vcpu(row, view)).collect(),
        command: CommandTimes::new(filter, view),
        programs: programs(view),
        needed_for_half: needed_for_half(&processes),
        processes,
        functions: functions(view),
        stacks: StackWalks::new(view),
        user_code: UserCode::new(view),
        serial: serial_time(view),
        by: None,
        tree: None,
        missing: tables.events.iter().filter(|e| e.kind == "missing").map(|e| e.text.clone()).collect(),
        events: tables.events.clone(),
        meta: tables.other_meta(),
    }
}

fn rate(ticks: u64, wall_s: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 samples")]
    let ticks = ticks as f64;
    if wall_s > 0.0 { ticks / wall_s } else { 0.0 }
}

fn lateness(sums: &Sums) -> Lateness {
    Lateness {
        median_ns: sums.late.value_at_quantile(0.5),
        p99_ns: sums.late.value_at_quantile(0.99),
        max_ns: sums.late.max(),
        over_1ms: sums.late_over,
    }
}

/// Returns the factor for the largest share.
fn needed_for_half(processes: &[Process]) -> Option<f64> {
    let shares = processes.iter().map(|process| process.estimate);
    let largest = shares.max_by(|a, b| a.share.total_cmp(&b.share))?;
    estimate::needed(&largest.interval())
}

fn vcpu(row: &VcpuTotals, view: &View<'_>) -> Vcpu {
    let sums = view.sums;
    let own = sums.vcpus.get(&row.id);
    let counts = own.map(|own| own.modes).unwrap_or_default();
    let split = counts.iter().sum();
    let of = |wanted: &[Mode]| {
        let chosen = Mode::ALL.iter().zip(counts).filter(|(mode, _)| wanted.contains(mode));
        part(chosen.map(|(_, count)| count).sum(), split)
    };
    Vcpu {
        id: row.id,
        vm: view.tables.vm_name(row.vm),
        number: row.number,
        samples: own.map_or(0, |own| own.samples),
        lost: row.lost,
        user: of(&[Mode::User]),
        kernel: of(&[Mode::Kernel, Mode::Boot, Mode::Unknown]),
        hardirq: of(&[Mode::HardIrq, Mode::Nmi]),
        softirq: of(&[Mode::SoftIrq]),
        idle: of(&[Mode::Idle]),
        vmm_samples: own.map_or(0, |own| own.vmm),
        waiting_samples: own.map_or(0, |own| own.samples.saturating_sub(split + own.vmm)),
        times: own.map_or_else(ModeTimes::default, |own| times(row.id, own, sums)),
        guest_s: seconds(row.states.guest),
        halted_s: seconds(row.states.halted),
        waiting_s: seconds(row.states.waiting),
        kvm_s: seconds(row.states.kvm),
        vmm_s: seconds(row.states.vmm),
        sampler_s: seconds(row.states.sampler),
        paused_s: seconds(row.states.paused),
        wall_s: seconds(row.states.wall()),
        exits: row.exits,
    }
}

/// Divides the exact time in the guest by samples; the time halted is exact by itself.
fn times(id: u16, own: &VcpuSums, sums: &Sums) -> ModeTimes {
    let halted_s = seconds(own.halted_ns);
    let all_s = sums.tick_log.guest_s(id) + halted_s;
    let of = |tallies: &Tallies, exact_s: f64, halted: u64| {
        let (samples, time) = sums.tick_log.of_vcpu(id, tallies);
        let [time_s, time_low_s, time_high_s] =
            [time.ns, time.low_ns, time.high_ns].map(|ns| ns / 1e9 + exact_s);
        let share = |s: f64| if all_s > 0.0 { s / all_s } else { 0.0 };
        Estimate {
            samples: samples + halted,
            share: share(time_s),
            share_low: share(time_low_s),
            share_high: share(time_high_s),
            time_s,
            time_low_s,
            time_high_s,
        }
    };
    let [user, kernel, hardirq, softirq, nmi, idle] = &own.tallies;
    ModeTimes {
        user: of(user, 0.0, 0),
        kernel: of(kernel, 0.0, 0),
        hardirq: of(hardirq, 0.0, 0),
        softirq: of(softirq, 0.0, 0),
        nmi: of(nmi, 0.0, 0),
        idle: of(idle, halted_s, own.halted),
    }
}
