//! Comparison of a guest's profile with the values that the guest measured itself.

use std::path::Path;

use profile::report::{By, Request, Row};
use profile::store::Value;
use profile::{Filter, Profile, Report};

use super::check::{SelftestCheck, ValueUnit, chance_of_share, chance_of_time};
use super::guest::{AWAKE, DONE, FUNCTIONS, KERNEL, MARK, PLAYERS, ROUNDS, SHARES, SLEPT, parse_console};
use crate::errors::Error;

/// Reason why times are not judged in the portable host.
const EMULATED: &str = "emulated host";
/// The states of a vCPU in table `microstate`; they add up to its wall time.
const ALL_STATES: &str = "guest_ns + halted_ns + waiting_ns + kvm_ns + vmm_ns + sampler_ns + paused_ns";
/// A function and its callee: the callee's samples should have the function on their stack.
const CALLER: (&str, &str) = ("left", "half");

/// Profile and console of a guest of the self-test that has ended.
#[derive(Debug)]
pub struct GuestResults {
    profile: Profile,
    console: ConsoleText,
    values: Vec<(String, String)>,
    /// Report on the whole profile.
    pub report: Report,
}

/// ConsoleText output of a guest, in pieces.
#[derive(Debug, Default)]
struct ConsoleText {
    text: String,
    /// Offset of each piece in the text, and its time, s since the run's start.
    pieces: Vec<(usize, f64)>,
}

impl ConsoleText {
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

    /// Returns the time at which the guest began to print a value, s since the run's start.
    fn printed(&self, key: &str) -> Option<f64> {
        let place = self.text.find(&format!("{MARK}{key} "))?;
        let before = self.pieces.partition_point(|(start, _)| *start <= place);
        self.pieces.get(before.checked_sub(1)?).map(|(_, time)| *time)
    }
}

impl GuestResults {
    /// Reads a profile.
    ///
    /// # Errors
    /// The profile cannot be read, or its guest failed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let profile = Profile::open(path)?;
        let report = Report::read(&profile, &Filter::default())?;
        let console = ConsoleText::read(&profile)?;
        let values = parse_console(&console.text);
        let results = Self { profile, console, values, report };
        if results.value(DONE).is_none() {
            let mut lines = results.console.text.lines().filter(|line| !line.trim().is_empty());
            let last = lines.next_back().unwrap_or("nothing");
            return Err(Error::Guest(format!(
                "the guest of the self-test did not run to its end; its console's last line: {}",
                display::clean::escaped(last.trim())
            )));
        }
        Ok(results)
    }

    /// Returns true if the host is emulated.
    pub fn is_emulated(&self) -> bool {
        self.report.host == "portable"
    }

    /// Returns a number that the guest printed.
    fn value(&self, key: &str) -> Option<f64> {
        let found = self.values.iter().find(|(own, _)| own == key);
        found.and_then(|(_, value)| value.parse().ok())
    }

    /// Returns the first number of a query.
    fn number(&self, sql: &str) -> Result<Option<f64>, Error> {
        let table = self.profile.query(sql)?;
        Ok(table.rows.first().and_then(|row| row.first()).and_then(number))
    }

    /// Returns the time of the first vCPU in states, s, from the segments that end between two times.
    fn states(&self, columns: &str, span: Option<(f64, f64)>) -> Result<Option<f64>, Error> {
        let Some((from, to)) = span else { return Ok(None) };
        self.number(&format!(
            "SELECT sum({columns}) / 1e9 FROM microstate WHERE vcpu = 0 AND time_ns > {from} * 1e9 AND time_ns <= {to} * 1e9"
        ))
    }

    /// Reads the report on one process by function.
    fn process_report(&self, name: &str) -> Result<Option<Report>, Error> {
        if !self.report.processes.iter().any(|process| process.comm == name) {
            return Ok(None);
        }
        let filter = Filter { process: vec![name.to_owned()], ..Filter::default() };
        Ok(Some(Report::read_with(&self.profile, &filter, &Request::By(vec![By::Function]))?))
    }

    fn not_on_emulated(&self) -> Option<&'static str> {
        self.is_emulated().then_some(EMULATED)
    }

    /// Checks the guest that divides its time.
    ///
    /// # Errors
    /// The profile cannot be read.
    pub fn shares(&self, has_symbols: bool) -> Result<Vec<SelftestCheck>, Error> {
        let mut checks = self.processes();
        let stripped = (!has_symbols).then_some("this vprof has no symbols");
        let report = self.process_report(SHARES)?;
        let row = |name: &str| {
            let rows = report.iter().filter_map(|report| report.by.as_ref()).flat_map(|by| &by.rows);
            rows.filter(|row| is_function(row, name)).max_by_key(|row| row.total.samples)
        };
        let own_whole: f64 = FUNCTIONS.iter().filter_map(|(name, _)| self.value(name)).sum();
        let whole: f64 = FUNCTIONS.iter().filter_map(|(name, _)| row(name)).map(|row| row.total.share).sum();
        for (name, _) in FUNCTIONS {
            let own = self.value(name).unwrap_or(0.0) / own_whole;
            let found = row(name).map(|row| &row.total);
            let part = found.map(|found| found.share / whole);
            let chance = found.map_or(0.0, |found| chance_of_share(found) / whole);
            // Interrupts add to chance: a turn's clock counts them, and its function's samples do
            // not.
            let besides = if self.is_emulated() { 0.02 } else { 0.005 };
            checks.push(
                SelftestCheck::near(
                    format!("share of `{name}` in its process"),
                    ValueUnit::Part,
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
            SelftestCheck::between(
                format!("`{callee}` called by `{caller}`"),
                ValueUnit::Part,
                called,
                (0.97, None),
                "all its stacks",
            )
            .unless(stripped),
        );
        let named = report.as_ref().map(|report| 1.0 - report.user_code.unnamed_share);
        checks.push(
            SelftestCheck::between(
                format!("user code of {SHARES} with a name"),
                ValueUnit::Part,
                named,
                (0.97, None),
                "its symbols",
            )
            .unless(stripped),
        );
        let walks = report.as_ref().map(|report| report.stacks.user.complete_share);
        checks.push(SelftestCheck::between(
            format!("user stacks of {SHARES} to their end"),
            ValueUnit::Part,
            walks,
            (0.95, None),
            "unwind tables",
        ));
        checks.extend(self.kernel()?);
        checks.extend(self.times()?);
        Ok(checks)
    }

    /// Checks the CPU times of the two processes, and their ratio.
    fn processes(&self) -> Vec<SelftestCheck> {
        let estimate = |name: &str| {
            self.report.processes.iter().find(|process| process.comm == name).map(|process| process.estimate)
        };
        let (first, second) = (estimate(SHARES), estimate(KERNEL));
        let own = |name: &str| self.value(name).unwrap_or(0.0);
        let part = |first: f64, second: f64| first / (first + second);
        let measured = first.zip(second).map(|(first, second)| part(first.share, second.share));
        let chance = first.zip(second).map_or(0.0, |(first, second)| {
            chance_of_share(&first).max(chance_of_share(&second)) / (first.share + second.share)
        });
        let besides = if self.is_emulated() { 0.05 } else { 0.01 };
        let mut checks = vec![SelftestCheck::near(
            format!("share of {SHARES} in it and {KERNEL}"),
            ValueUnit::Part,
            measured,
            (part(own(SHARES), own(KERNEL)), chance + besides),
            "their CPU clocks",
        )];
        for (name, estimate) in [(SHARES, first), (KERNEL, second)] {
            let own = own(name);
            let chance = estimate.map_or(0.0, |estimate| chance_of_time(&estimate));
            checks.push(
                SelftestCheck::near(
                    format!("CPU time of {name}"),
                    ValueUnit::Seconds,
                    estimate.map(|estimate| estimate.time_s),
                    (own, chance + 0.015 * own),
                    "its CPU clock",
                )
                .unless(self.not_on_emulated()),
            );
        }
        checks
    }

    /// Checks the names and stacks of the guest's kernel.
    fn kernel(&self) -> Result<Vec<SelftestCheck>, Error> {
        let named = self.number(
            "SELECT avg(f.symbol IS NOT NULL) FROM sample s JOIN frame f ON f.id = s.frame \
             JOIN mode m ON m.id = s.mode WHERE f.kind = 'kernel' AND m.name NOT IN ('boot', 'idle')",
        )?;
        let report = self.process_report(KERNEL)?;
        let walks = report.as_ref().map(|report| report.stacks.kernel.complete_share);
        Ok(vec![
            SelftestCheck::between(
                "kernel code with a name",
                ValueUnit::Part,
                named,
                (0.99, None),
                "its kallsyms",
            ),
            SelftestCheck::between(
                format!("kernel stacks of {KERNEL} to their end"),
                ValueUnit::Part,
                walks,
                (0.98, None),
                "its unwind tables",
            ),
        ])
    }

    /// Checks the exact states of the vCPUs, and the cost of a sample.
    fn times(&self) -> Result<Vec<SelftestCheck>, Error> {
        let value = |key: &str| self.value(key).unwrap_or(0.0);
        let (slept, worked) = (value(SLEPT), value(DONE) - value(AWAKE));
        let awake = self.console.printed(AWAKE);
        let halted = self.states("halted_ns", awake.map(|awake| (awake - slept, awake)))?;
        let all = self.states(ALL_STATES, awake.zip(self.console.printed(DONE)))?;
        let overhead = &self.report.overhead;
        #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let samples = self.report.samples as f64;
        let cost = (samples > 0.0).then(|| overhead.sampler_s / samples);
        Ok(vec![
            // Segments of microstates are 0.2 s long: one at either end is partly outside.
            SelftestCheck::near(
                "vCPU halted while the guest slept",
                ValueUnit::Seconds,
                halted,
                (slept, 0.4 + 0.05 * slept),
                "its own clock",
            )
            .unless(self.not_on_emulated()),
            SelftestCheck::near(
                "all states of the vCPU while it worked",
                ValueUnit::Seconds,
                all,
                (worked, 0.4 + 0.01 * worked),
                "its own clock",
            )
            .unless(self.not_on_emulated()),
            SelftestCheck::between(
                "time of a sample in vprof",
                ValueUnit::Seconds,
                cost,
                (0.0, Some(50e-6)),
                "at most 5 % at 1000 Hz",
            )
            .unless(self.not_on_emulated()),
        ])
    }

    /// Checks the guest that switches, which was recorded in exact mode.
    ///
    /// # Errors
    /// The profile cannot be read.
    pub fn switches(&self) -> Result<Vec<SelftestCheck>, Error> {
        let sum = |column: &str| self.number(&format!("SELECT sum({column}) FROM exact_vcpu"));
        let guest = sum("guest_switches")?;
        // At either end the kernel may have counted a switch that is not visible yet.
        let mut checks = vec![SelftestCheck::near(
            "switches in exact mode",
            ValueUnit::Count,
            sum("switches")?.filter(|_| guest.is_some()),
            (guest.unwrap_or(0.0), 2.0),
            // Reason why the kernel has no exact data.
            self.report.meta.get("exact_missing").map_or("its kernel's count", String::as_str),
        )];
        for name in PLAYERS {
            let own = self.value(name).unwrap_or(0.0);
            let sleeps = self.number(&format!(
                "SELECT sum(count) FROM task_state t JOIN instance i ON i.id = t.instance \
                 WHERE i.comm = '{name}' AND t.state IN ('sleep', 'disk')"
            ))?;
            checks.push(SelftestCheck::near(
                format!("sleeps of {name}"),
                ValueUnit::Count,
                sleeps,
                (own, 2.0 + 0.001 * own),
                "its getrusage",
            ));
        }
        checks.push(SelftestCheck::between(
            "events lost",
            ValueUnit::Count,
            sum("lost")?,
            (0.0, Some(0.0)),
            "none",
        ));
        Ok(checks)
    }

    /// Compares the speed of work in this run with that in a run with very few samples.
    pub fn slowdown(&self, unsampled: &Self) -> SelftestCheck {
        let part =
            self.value(ROUNDS).zip(unsampled.value(ROUNDS)).map(|(with, without)| 1.0 - with / without);
        // The machine's own speed changes from run to run: a speed-up counts as no slow-down.
        SelftestCheck::between(
            "slow-down at 1000 Hz",
            ValueUnit::Part,
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
        let mut console = ConsoleText::default();
        for (time, piece) in
            [(1.0, "[ 0.1] x\r\n"), (2.0, "self"), (3.0, "test awake 7.5\r"), (4.0, "\nselftest done 9\n")]
        {
            console.add(time, piece);
        }
        assert_eq!(console.printed(AWAKE), Some(2.0));
        // This line begins in the middle of a piece.
        assert_eq!(console.printed(DONE), Some(4.0));
        assert_eq!(console.printed(SLEPT), None);
    }
}
