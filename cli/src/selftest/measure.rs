//! What the profile of a guest says, against what the guest said of itself.

use std::path::Path;

use profile::report::{By, Request, Row};
use profile::store::Value;
use profile::{Filter, Profile, Report};

use super::check::{Check, Unit, chance_of_share, chance_of_time};
use super::guest::{AWAKE, DONE, FUNCTIONS, KERNEL, MARK, PLAYERS, ROUNDS, SHARES, SLEPT, parse_console};
use crate::errors::Error;

/// Why times are not judged in the portable host.
const EMULATED: &str = "emulated host";
/// The states of a vCPU in table `microstate`; they add up to its wall time.
const ALL_STATES: &str = "guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns";
/// The functions that call others, with the callee that is looked for below them.
const CALLER: (&str, &str) = ("left", "half");

/// A guest of the self-test that has ended.
#[derive(Debug)]
pub struct Finished {
    profile: Profile,
    console: Console,
    told: Vec<(String, String)>,
    /// What `vprof report` says of the whole.
    pub report: Report,
}

/// What a guest wrote, which came in pieces.
#[derive(Debug, Default)]
struct Console {
    text: String,
    /// Where in the text each piece begins, and when it came, s since the run's start.
    pieces: Vec<(usize, f64)>,
}

impl Console {
    fn read(profile: &Profile) -> Result<Self, Error> {
        let table = profile.query("SELECT time_ns / 1e9, CAST(bytes AS TEXT) FROM console ORDER BY id")?;
        let mut console = Self::default();
        for row in &table.rows {
            if let [time, Value::Text(piece)] = &row[..] {
                console.add(number(time).unwrap_or(0.0), piece);
            }
        }
        Ok(console)
    }

    fn add(&mut self, time_s: f64, piece: &str) {
        self.pieces.push((self.text.len(), time_s));
        self.text.push_str(piece);
    }

    /// When the guest began to print a value, s since the run's start.
    fn printed(&self, key: &str) -> Option<f64> {
        let place = self.text.find(&format!("{MARK}{key} "))?;
        let before = self.pieces.partition_point(|(start, _)| *start <= place);
        self.pieces.get(before.checked_sub(1)?).map(|(_, time)| *time)
    }
}

impl Finished {
    /// Reads a profile.
    ///
    /// # Errors
    /// The profile cannot be read, or its guest failed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let profile = Profile::open(path)?;
        let report = Report::read(&profile, &Filter::default())?;
        let console = Console::read(&profile)?;
        let told = parse_console(&console.text);
        let finished = Self { profile, console, told, report };
        if finished.told(DONE).is_none() {
            let mut lines = finished.console.text.lines().filter(|line| !line.trim().is_empty());
            let last = lines.next_back().unwrap_or("nothing");
            return Err(Error::Guest(format!(
                "the guest of the self-test did not run to its end; its console's last line: {}",
                text::clean::escaped(last.trim())
            )));
        }
        Ok(finished)
    }

    /// True where the host is emulated.
    pub fn is_emulated(&self) -> bool {
        self.report.host == "portable"
    }

    /// A number that the guest told.
    fn told(&self, key: &str) -> Option<f64> {
        let found = self.told.iter().find(|(own, _)| own == key);
        found.and_then(|(_, value)| value.parse().ok())
    }

    /// The first number of a query.
    fn number(&self, sql: &str) -> Result<Option<f64>, Error> {
        let table = self.profile.query(sql)?;
        Ok(table.rows.first().and_then(|row| row.first()).and_then(number))
    }

    /// Time of the first vCPU in states, s, by the stretches that end between two moments.
    fn states(&self, columns: &str, span: Option<(f64, f64)>) -> Result<Option<f64>, Error> {
        let Some((from, to)) = span else { return Ok(None) };
        self.number(&format!(
            "SELECT sum({columns}) / 1e9 FROM microstate WHERE vcpu = 0 AND time_ns > {from} * 1e9 AND time_ns <= {to} * 1e9"
        ))
    }

    /// The report on one process by function.
    fn of_process(&self, name: &str) -> Result<Option<Report>, Error> {
        if !self.report.processes.iter().any(|process| process.comm == name) {
            return Ok(None);
        }
        let filter = Filter { process: Some(name.to_owned()), ..Filter::default() };
        Ok(Some(Report::read_with(&self.profile, &filter, &Request::By(By::Function))?))
    }

    fn not_on_emulated(&self) -> Option<&'static str> {
        self.is_emulated().then_some(EMULATED)
    }

    /// Checks of the guest that divides its time.
    ///
    /// # Errors
    /// The profile cannot be read.
    pub fn shares(&self, has_symbols: bool) -> Result<Vec<Check>, Error> {
        let mut checks = self.processes();
        let stripped = (!has_symbols).then_some("this vprof has no symbols");
        let report = self.of_process(SHARES)?;
        let row = |name: &str| {
            let rows = report.iter().filter_map(|report| report.by.as_ref()).flat_map(|by| &by.rows);
            rows.filter(|row| is_function(row, name)).max_by_key(|row| row.total.samples)
        };
        let own_whole: f64 = FUNCTIONS.iter().filter_map(|(name, _)| self.told(name)).sum();
        let whole: f64 = FUNCTIONS.iter().filter_map(|(name, _)| row(name)).map(|row| row.total.share).sum();
        for (name, _) in FUNCTIONS {
            let own = self.told(name).unwrap_or(0.0) / own_whole;
            let found = row(name).map(|row| &row.total);
            let part = found.map(|found| found.share / whole);
            let chance = found.map_or(0.0, |found| chance_of_share(found) / whole);
            // Besides chance: interrupts that a turn's clock counts and its function's samples do not.
            let besides = if self.is_emulated() { 0.02 } else { 0.005 };
            checks.push(
                Check::near(
                    format!("share of `{name}` in its process"),
                    Unit::Part,
                    part,
                    (own, chance + besides),
                    "its thread's CPU clock",
                )
                .unless(stripped),
            );
        }
        let (caller, callee) = CALLER;
        let called = row(caller).zip(row(callee)).map(|(caller, callee)| ratio(caller, callee));
        checks.push(
            Check::between(
                format!("`{callee}` called by `{caller}`"),
                Unit::Part,
                called,
                (0.97, None),
                "all its stacks",
            )
            .unless(stripped),
        );
        let named = report.as_ref().map(|report| 1.0 - report.user_code.unnamed_share);
        checks.push(
            Check::between(
                format!("user code of {SHARES} with a name"),
                Unit::Part,
                named,
                (0.97, None),
                "its symbols",
            )
            .unless(stripped),
        );
        let walks = report.as_ref().map(|report| report.stacks.user.complete_share);
        checks.push(Check::between(
            format!("user stacks of {SHARES} to their end"),
            Unit::Part,
            walks,
            (0.95, None),
            "unwind tables",
        ));
        checks.extend(self.kernel()?);
        checks.extend(self.times()?);
        Ok(checks)
    }

    /// CPU times of the two processes, and how they divide.
    fn processes(&self) -> Vec<Check> {
        let estimate = |name: &str| {
            self.report.processes.iter().find(|process| process.comm == name).map(|process| process.estimate)
        };
        let (first, second) = (estimate(SHARES), estimate(KERNEL));
        let own = |name: &str| self.told(name).unwrap_or(0.0);
        let part = |first: f64, second: f64| first / (first + second);
        let measured = first.zip(second).map(|(first, second)| part(first.share, second.share));
        let chance = first.zip(second).map_or(0.0, |(first, second)| {
            chance_of_share(&first).max(chance_of_share(&second)) / (first.share + second.share)
        });
        let besides = if self.is_emulated() { 0.05 } else { 0.01 };
        let mut checks = vec![Check::near(
            format!("share of {SHARES} in it and {KERNEL}"),
            Unit::Part,
            measured,
            (part(own(SHARES), own(KERNEL)), chance + besides),
            "their CPU clocks",
        )];
        for (name, estimate) in [(SHARES, first), (KERNEL, second)] {
            let own = own(name);
            let chance = estimate.map_or(0.0, |estimate| chance_of_time(&estimate));
            checks.push(
                Check::near(
                    format!("CPU time of {name}"),
                    Unit::Seconds,
                    estimate.map(|estimate| estimate.time_s),
                    (own, chance + 0.015 * own),
                    "its CPU clock",
                )
                .unless(self.not_on_emulated()),
            );
        }
        checks
    }

    /// Names and stacks of the guest's kernel.
    fn kernel(&self) -> Result<Vec<Check>, Error> {
        let named = self.number(
            "SELECT avg(f.symbol IS NOT NULL) FROM sample s JOIN frame f ON f.id = s.frame \
             JOIN mode m ON m.id = s.mode WHERE f.kind = 'kernel' AND m.name NOT IN ('boot', 'idle')",
        )?;
        let report = self.of_process(KERNEL)?;
        let walks = report.as_ref().map(|report| report.stacks.kernel.complete_share);
        Ok(vec![
            Check::between("kernel code with a name", Unit::Part, named, (0.99, None), "its kallsyms"),
            Check::between(
                format!("kernel stacks of {KERNEL} to their end"),
                Unit::Part,
                walks,
                (0.98, None),
                "its unwind tables",
            ),
        ])
    }

    /// The exact states of the vCPUs, and what a sample costs.
    fn times(&self) -> Result<Vec<Check>, Error> {
        let told = |key: &str| self.told(key).unwrap_or(0.0);
        let (slept, worked) = (told(SLEPT), told(DONE) - told(AWAKE));
        let awake = self.console.printed(AWAKE);
        let halted = self.states("halted_ns", awake.map(|awake| (awake - slept, awake)))?;
        let all = self.states(ALL_STATES, awake.zip(self.console.printed(DONE)))?;
        let overhead = &self.report.overhead;
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let samples = self.report.samples as f64;
        let cost = (samples > 0.0).then(|| overhead.sampler_s / samples);
        Ok(vec![
            // Stretches of microstates are a fifth of a second long: one at either end lies partly outside.
            Check::near(
                "vCPU halted while the guest slept",
                Unit::Seconds,
                halted,
                (slept, 0.4 + 0.05 * slept),
                "its own clock",
            )
            .unless(self.not_on_emulated()),
            Check::near(
                "all states of the vCPU while it worked",
                Unit::Seconds,
                all,
                (worked, 0.4 + 0.01 * worked),
                "its own clock",
            )
            .unless(self.not_on_emulated()),
            Check::between(
                "time of a sample in vprof",
                Unit::Seconds,
                cost,
                (0.0, Some(50e-6)),
                "at most 5 % at 1000 Hz",
            )
            .unless(self.not_on_emulated()),
        ])
    }

    /// Checks of the guest that switches, which was followed exactly.
    ///
    /// # Errors
    /// The profile cannot be read.
    pub fn switches(&self) -> Result<Vec<Check>, Error> {
        let of_vcpus = |column: &str| self.number(&format!("SELECT sum({column}) FROM exact_vcpu"));
        let guest = of_vcpus("guest_switches")?;
        // At either end the kernel may have counted a switch that cannot be seen yet.
        let mut checks = vec![Check::near(
            "switches, followed exactly",
            Unit::Count,
            of_vcpus("switches")?.filter(|_| guest.is_some()),
            (guest.unwrap_or(0.0), 2.0),
            // Why there is none, where the kernel cannot be followed.
            self.report.meta.get("exact_missing").map_or("its kernel's count", String::as_str),
        )];
        for name in PLAYERS {
            let own = self.told(name).unwrap_or(0.0);
            let sleeps = self.number(&format!(
                "SELECT sum(count) FROM task_state t JOIN instance i ON i.id = t.instance \
                 WHERE i.comm = '{name}' AND t.state IN ('sleep', 'disk')"
            ))?;
            checks.push(Check::near(
                format!("sleeps of {name}"),
                Unit::Count,
                sleeps,
                (own, 2.0 + 0.001 * own),
                "its getrusage",
            ));
        }
        checks.push(Check::between("events lost", Unit::Count, of_vcpus("lost")?, (0.0, Some(0.0)), "none"));
        Ok(checks)
    }

    /// How much slower work is when this run is sampled as it was, against a run that was hardly sampled.
    pub fn slowdown(&self, unsampled: &Self) -> Check {
        let part = self.told(ROUNDS).zip(unsampled.told(ROUNDS)).map(|(with, without)| 1.0 - with / without);
        // The machine's own speed changes from run to run: less than nothing is nothing.
        Check::between(
            "slow-down at 1000 Hz",
            Unit::Part,
            part.map(|part| part.max(0.0)),
            (0.0, Some(0.15)),
            "the same work at 1 Hz",
        )
        .unless(self.not_on_emulated())
    }
}

fn is_function(row: &Row, name: &str) -> bool {
    row.kind.as_deref() == Some("user")
        && row.name.strip_suffix(name).is_some_and(|path| path.ends_with("guest::"))
}

#[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn ratio(caller: &Row, callee: &Row) -> f64 {
    caller.total.samples as f64 / callee.total.samples.max(1) as f64
}

#[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Real(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_in_pieces_was_printed_when_it_began() {
        let mut console = Console::default();
        for (time, piece) in
            [(1.0, "[ 0.1] x\r\n"), (2.0, "self"), (3.0, "test awake 7.5\r"), (4.0, "\nselftest done 9\n")]
        {
            console.add(time, piece);
        }
        assert_eq!(console.printed(AWAKE), Some(2.0));
        // It begins in the middle of a piece.
        assert_eq!(console.printed(DONE), Some(4.0));
        assert_eq!(console.printed(SLEPT), None);
    }
}
