//! Real programs of Debian's packages that measure themselves, and their figures by a profile.
//!
//! An [`CorpusProgram`] is a program on a corpus image. Its workload (guest-images/corpus) prints on its
//! standard output
//!
//! ```text
//! phase NAME SECONDS            CPU time of a function in a process, by its own or its thread's clock
//! total SECONDS                 of the process
//! process COMM PID SECONDS      of a process of a server, by its schedstat
//! unit NAME SECONDS             of a control group, by systemd
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::{Guest, NamedRow, Run, images, kernel_of};

/// The workload that starts servers by systemd.
const SERVERS: &str = "/servers.sh";
/// The workload that starts services in managed languages.
const SERVICES: &str = "/services.sh";
/// Rates of samples, Hz. A sample costs an emulated guest much, and services have to start within the guest's
/// limit of time.
const RATE: u32 = 500;
const RATE_OF_SERVICES: u32 = 97;
/// Least part of the samples in functions of managed languages that have a name.
const FUNCTIONS_NAMED: f64 = 0.95;
/// Memory that vprof may take beyond the guest's, bytes (docs/performance.md).
const MEMORY: f64 = 64e6;
/// Maximum deviation of a share by chance, standard errors.
const Z_ALLOWED: f64 = 3.29;

/// A program, and the least that a profile of it must have.
#[derive(Debug, Clone, Copy)]
pub struct CorpusProgram {
    /// Name of the test and of the row.
    pub name: &'static str,
    /// Usual name of the runtime.
    pub runtime: &'static str,
    /// Debian's release, whose image it is on.
    pub release: &'static str,
    /// The command in the guest.
    pub command: &'static str,
    /// Name of its process in the profile.
    pub process: &'static str,
    /// Phases, and a part of the name of the function that is on the stack in each, lower case without
    /// underscores. Empty where a profile cannot show them.
    pub phases: &'static [(&'static str, &'static str)],
    /// Least part of its samples in user code whose function has a name.
    pub named: f64,
    /// Least part of its user stacks that lead to their end.
    pub complete: f64,
}

const RUN_PHASES: &[(&str, &str)] = &[("fib", "runfib"), ("sieve", "runsieve"), ("text", "runtext")];

/// Handlers of the services.
const HANDLERS: &[(&str, &str)] =
    &[("cart", "handlecart"), ("search", "handlesearch"), ("report", "handlereport")];

/// All programs, in the order of the table. The bounds are below the measured values, so that another
/// compiler or kernel passes too.
pub const CORPUS_PROGRAMS: &[CorpusProgram] = &[
    CorpusProgram {
        name: "python_11",
        runtime: "CPython 3.11",
        release: "bookworm",
        command: "python3 /opt/corpus/phases.py 10",
        process: "python3",
        phases: &[],
        named: 0.4,
        complete: 0.98,
    },
    CorpusProgram {
        name: "python_13_perf",
        runtime: "CPython 3.13 `-X perf`",
        release: "trixie",
        command: "python3 -X perf /opt/corpus/phases.py 10",
        process: "python3",
        phases: RUN_PHASES,
        named: 0.4,
        complete: 0.95,
    },
    CorpusProgram {
        name: "numpy",
        runtime: "numpy 1.24",
        release: "bookworm",
        command: "python3 /opt/corpus/arrays.py 10",
        process: "python3",
        phases: &[("dot", "gemm"), ("exp", "exp")],
        named: 0.4,
        complete: 0.9,
    },
    CorpusProgram {
        name: "node_18",
        runtime: "Node.js 18 `--perf-basic-prof`",
        release: "bookworm",
        command: "node --perf-basic-prof --interpreted-frames-native-stack /opt/corpus/phases.js 10",
        process: "node",
        // Its clock is the process's: it counts what other threads compile and collect, which is below no
        // phase.
        phases: &[],
        named: 0.5,
        complete: 0.95,
    },
    CorpusProgram {
        name: "node_20",
        runtime: "Node.js 20 `--perf-basic-prof`",
        release: "trixie",
        command: "node --perf-basic-prof --interpreted-frames-native-stack /opt/corpus/phases.js 10",
        process: "node",
        // Its clock is the process's: it counts what other threads compile and collect, which is below no
        // phase.
        phases: &[],
        named: 0.5,
        complete: 0.95,
    },
    CorpusProgram {
        name: "java_17",
        runtime: "OpenJDK 17 `-XX:+DebugNonSafepoints`",
        release: "bookworm",
        command: "java -XX:+UnlockDiagnosticVMOptions -XX:+DebugNonSafepoints -cp /opt/corpus Phases 15",
        process: "java",
        phases: RUN_PHASES,
        named: 0.2,
        complete: 0.95,
    },
    CorpusProgram {
        name: "java_21",
        runtime: "OpenJDK 21 `-XX:+DumpPerfMapAtExit`",
        release: "trixie",
        command: "/usr/lib/jvm/java-21-openjdk-amd64/bin/java -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit \
                  -cp /opt/corpus Phases 15",
        process: "java",
        phases: &[],
        named: 0.2,
        complete: 0.95,
    },
    CorpusProgram {
        name: "go_19",
        runtime: "Go 1.19",
        release: "bookworm",
        command: "/opt/corpus/phases-go 10",
        process: "phases-go",
        phases: RUN_PHASES,
        named: 0.95,
        complete: 0.98,
    },
    CorpusProgram {
        name: "go_24",
        runtime: "Go 1.24",
        release: "trixie",
        command: "/opt/corpus/phases-go 10",
        process: "phases-go",
        phases: RUN_PHASES,
        named: 0.95,
        complete: 0.98,
    },
    CorpusProgram {
        name: "ruby_31",
        runtime: "Ruby 3.1",
        release: "bookworm",
        command: "ruby /opt/corpus/phases.rb 10",
        process: "ruby",
        phases: RUN_PHASES,
        named: 0.15,
        complete: 0.95,
    },
    CorpusProgram {
        name: "ruby_31_yjit",
        runtime: "Ruby 3.1 `--yjit`",
        release: "bookworm",
        command: "ruby --yjit /opt/corpus/phases.rb 10",
        process: "ruby",
        phases: RUN_PHASES,
        named: 0.15,
        complete: 0.95,
    },
    CorpusProgram {
        name: "ruby_33",
        runtime: "Ruby 3.3",
        release: "trixie",
        // Debian builds it without YJIT.
        command: "ruby /opt/corpus/phases.rb 10",
        process: "ruby",
        phases: RUN_PHASES,
        named: 0.15,
        complete: 0.95,
    },
    CorpusProgram {
        name: "php_82",
        runtime: "PHP 8.2",
        release: "bookworm",
        command: "php /opt/corpus/phases.php 10",
        process: "php",
        phases: RUN_PHASES,
        named: 0.5,
        complete: 0.95,
    },
    CorpusProgram {
        name: "php_82_jit",
        runtime: "PHP 8.2, JIT with `opcache.jit_debug=16`",
        release: "bookworm",
        command: "php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=32M -d opcache.jit=1255 \
                  -d opcache.jit_debug=16 /opt/corpus/phases.php 10",
        process: "php",
        phases: RUN_PHASES,
        named: 0.3,
        complete: 0.95,
    },
    CorpusProgram {
        name: "perl",
        runtime: "Perl 5.36",
        release: "bookworm",
        command: "perl /opt/corpus/phases.pl 10",
        process: "perl",
        phases: &[],
        named: 0.5,
        complete: 0.98,
    },
    CorpusProgram {
        name: "erlang_25",
        runtime: "Erlang 25 `+JPperf true`",
        release: "bookworm",
        command: "env HOME=/tmp erl +JPperf true +S 1 -noinput -pa /opt/corpus -run phases main 10",
        process: "beam.smp",
        // While `text` runs, another process of Erlang loads modules.
        phases: &[("fib", "runfib"), ("sieve", "runsieve")],
        named: 0.5,
        // The first function of a process of Erlang has no caller.
        complete: 0.4,
    },
    CorpusProgram {
        name: "bash",
        runtime: "bash 5.2",
        release: "bookworm",
        command: "bash /opt/corpus/phases.sh 10",
        process: "bash",
        phases: &[],
        named: 0.2,
        complete: 0.95,
    },
    CorpusProgram {
        name: "postgresql_15",
        runtime: "PostgreSQL 15, pgbench",
        release: "bookworm",
        command: "/opt/corpus/servers.sh postgresql 10",
        process: "postgres",
        phases: &[],
        named: 0.4,
        complete: 0.95,
    },
    CorpusProgram {
        name: "redis_7",
        runtime: "redis 7, redis-benchmark",
        release: "bookworm",
        command: "/opt/corpus/servers.sh redis 15",
        process: "redis-server",
        phases: &[],
        named: 0.3,
        complete: 0.95,
    },
    CorpusProgram {
        name: "nginx",
        runtime: "nginx 1.22, wrk",
        release: "bookworm",
        command: "/opt/corpus/servers.sh nginx 20",
        process: "nginx",
        phases: &[],
        named: 0.3,
        complete: 0.95,
    },
    CorpusProgram {
        name: "flask",
        runtime: "Flask 2.2 by gunicorn 20.1, wrk",
        release: "bookworm",
        command: "/opt/corpus/services.sh flask 60",
        process: "gunicorn",
        phases: HANDLERS,
        named: 0.7,
        complete: 0.98,
    },
    CorpusProgram {
        name: "java_http",
        runtime: "`com.sun.net.httpserver` of OpenJDK 17, wrk",
        release: "bookworm",
        command: "/opt/corpus/services.sh java 60",
        process: "java",
        phases: HANDLERS,
        named: 0.8,
        complete: 0.98,
    },
    CorpusProgram {
        name: "express",
        runtime: "Express 4.18 of Node.js 18, wrk",
        release: "bookworm",
        command: "/opt/corpus/services.sh express 60",
        process: "node",
        phases: HANDLERS,
        named: 0.8,
        complete: 0.98,
    },
];

/// A value by vprof next to the program's own.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueComparison {
    /// The phase or process.
    pub name: String,
    /// By the program's own clock.
    pub own: f64,
    /// By vprof.
    pub found: f64,
    /// Maximum distance of the two values.
    pub tolerance: f64,
}

impl ValueComparison {
    /// True if the values differ by the tolerance at most.
    pub fn agrees(&self) -> bool {
        (self.found - self.own).abs() <= self.tolerance
    }
}

/// Samples below the function of a phase.
#[derive(Debug, Clone, Copy, Default)]
struct PhaseSamples {
    /// Time that they stand for, s.
    time: f64,
    /// Sum of the squares of the samples' times, s^2.
    squares: f64,
}

impl PhaseSamples {
    /// Returns the number of samples of equal times whose sum varies as much by chance (Kish's effective size
    /// of a sample).
    fn effective(self) -> f64 {
        if self.squares > 0.0 { self.time * self.time / self.squares } else { 0.0 }
    }
}

/// Returns the shares of the phases with these names.
fn compared_phases(names: &[&str], found: &[PhaseSamples], printed: &WorkloadOutput) -> Vec<ValueComparison> {
    let sum = |of: fn(&PhaseSamples) -> f64| found.iter().map(of).sum::<f64>();
    let all = PhaseSamples { time: sum(|phase| phase.time), squares: sum(|phase| phase.squares) };
    let own = |name: &str| printed.phases.get(name).copied().unwrap_or(0.0);
    let own_all: f64 = names.iter().map(|name| own(name)).sum();
    let compared = |(name, found): (&&str, &PhaseSamples)| {
        let own = own(name) / own_all;
        let chance = Z_ALLOWED * (own * (1.0 - own) / all.effective().max(1.0)).sqrt();
        // Besides chance: what runs between two readings of the program's clock is in no phase, or in both.
        ValueComparison {
            name: (*name).to_owned(),
            own,
            found: if all.time > 0.0 { found.time / all.time } else { 0.0 },
            tolerance: chance + 0.02,
        }
    };
    names.iter().zip(found).map(compared).collect()
}

/// Figures of a corpus program by its profile.
#[derive(Debug, Clone)]
pub struct ProfileFigures {
    /// Samples of its process in user code.
    pub samples: i64,
    /// Part of them whose function has a name.
    pub named: f64,
    /// Part of the samples in functions of managed languages that have a name; `None` without such samples.
    pub functions_named: Option<f64>,
    /// Part of its user stacks that lead to their end.
    pub complete: f64,
    /// Shares of the phases in the samples of the process.
    pub phases: Vec<ValueComparison>,
    /// CPU times, s: of the process, or of each process of a server that used more than a tenth of a second
    /// and of its control group. Not judged on an emulated machine, whose interrupts and exits the guest's
    /// kernel charges to its tasks.
    pub times: Vec<ValueComparison>,
    /// Memory that vprof took beyond the guest's at the end, bytes.
    pub memory: f64,
    /// True if the host was emulated.
    pub emulated: bool,
}

/// Returns the path of the image of a release of Debian.
pub fn corpus_image(release: &str) -> PathBuf {
    images().join(format!("corpus-{release}.img"))
}

/// Runs a guest with init and kernel of the demo image, which start in seconds.
pub fn run_with_demo_kernel(guest: Guest) -> Run {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (kernel, initrd) = kernel_of(&images().join("demo.img"), directory.path());
    let options = ["--kernel".as_ref(), kernel.as_os_str(), "--initrd".as_ref(), initrd.as_os_str()];
    guest.options(options).run().succeeded()
}

impl CorpusProgram {
    /// Returns the program of this name.
    ///
    /// # Panics
    /// There is no such program.
    pub fn named(name: &str) -> &'static Self {
        CORPUS_PROGRAMS.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("no entry {name:?}"))
    }

    /// Runs the guest: a server under systemd with the image's own kernel, any other program under the init
    /// and the kernel of the demo image, which start in seconds.
    pub fn run(&self) -> Run {
        let guest = Guest::distribution(corpus_image(self.release))
            .options(["-m", "1G", "--rate", &self.rate().to_string()])
            .command(["sh", "-c", &format!("exec {}", self.command)]);
        if self.command.contains(SERVERS) {
            return guest.run().succeeded();
        }
        run_with_demo_kernel(guest)
    }

    /// Returns the rate of its samples, Hz.
    fn rate(&self) -> u32 {
        if self.command.contains(SERVICES) { RATE_OF_SERVICES } else { RATE }
    }

    /// Reads the figures from its profile.
    pub fn measure(&self, run: &Run) -> ProfileFigures {
        let printed = WorkloadOutput::parse(&run.stdout);
        let emulated = run.report().get("host") == "portable";
        let user = run.user_code(self.process, "function");
        let (code, walks) = (user.get("user_code"), user.walks("user"));
        let samples = code["samples"].as_i64().expect("samples");
        ProfileFigures {
            samples,
            named: 1.0 - code["unnamed_share"].as_f64().expect("a share"),
            functions_named: functions_named(&user.rows()),
            complete: 1.0 - walks.lost() as f64 / walks.walks.max(1) as f64,
            phases: self.phases(run, &printed, emulated),
            times: self.times(run, &printed),
            memory: run
                .number("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'memory_beyond_guest_bytes'"),
            emulated,
        }
    }

    /// Returns the shares of the phases in the time of the process that is in any phase.
    fn phases(&self, run: &Run, printed: &WorkloadOutput, emulated: bool) -> Vec<ValueComparison> {
        let found: Vec<PhaseSamples> =
            self.phases.iter().map(|(_, function)| self.below(run, function, emulated)).collect();
        let names: Vec<&str> = self.phases.iter().map(|(name, _)| *name).collect();
        compared_phases(&names, &found, printed)
    }

    /// Returns the samples of the process with such a function on their stack.
    ///
    /// The clocks of an emulated guest run while a tick is late and while its sample is taken: there a sample
    /// stands for its delay and the time until the next one is due. On a busy machine a single call may have
    /// most of the delays.
    fn below(&self, run: &Run, function: &str, emulated: bool) -> PhaseSamples {
        let counted = if emulated { "" } else { "AND vcpu_state = 'guest'" };
        let seconds = if emulated {
            "(lead(time_ns - late_ns) OVER (PARTITION BY vcpu ORDER BY time_ns) - time_ns + late_ns) / 1e9"
                .to_owned()
        } else {
            format!("1.0 / {}", self.rate())
        };
        let rows = run.query(&format!(
            "WITH RECURSIVE inside(id) AS (\
                SELECT s.id FROM stack s JOIN frame f ON f.id = s.frame \
                WHERE replace(lower(f.symbol), '_', '') LIKE '%{function}%' \
                UNION SELECT s.id FROM stack s JOIN inside ON s.parent = inside.id), \
             timed AS (SELECT instance, stack, vcpu_state, {seconds} AS seconds FROM sample) \
             SELECT total(seconds) AS time, total(seconds * seconds) AS squares \
             FROM timed JOIN instance i ON i.id = timed.instance \
             WHERE i.comm = '{}' AND stack IN inside {counted}",
            self.process
        ));
        let number = |column: usize| rows[0][column].as_f64().expect("a number");
        PhaseSamples { time: number(0), squares: number(1) }
    }

    fn times(&self, run: &Run, printed: &WorkloadOutput) -> Vec<ValueComparison> {
        let processes = run.report().get("processes").as_array().cloned().unwrap_or_default();
        let estimate = |fits: &dyn Fn(&serde_json::Value) -> bool| {
            let fitting = processes.iter().filter(|process| fits(process));
            let sum =
                |key: &str| -> f64 { fitting.clone().filter_map(|process| process[key].as_f64()).sum() };
            (sum("time_s"), (sum("time_high_s") - sum("time_low_s")) / 2.0)
        };
        let compared = |name: &str, own: f64, (found, half): (f64, f64)| ValueComparison {
            name: name.to_owned(),
            own,
            found,
            // 1.96 standard errors are half an interval. Besides chance: interrupts, which the guest's kernel
            // counts as the program's.
            tolerance: half / 1.96 * Z_ALLOWED + 0.03 * own + 0.05,
        };
        let of_total = printed
            .total
            .map(|own| compared(self.process, own, estimate(&|process| process["comm"] == self.process)));
        let of_processes =
            printed.processes.iter().filter(|(_, _, own)| *own > 0.1).map(|(comm, pid, own)| {
                compared(&format!("{comm} {pid}"), *own, estimate(&|process| process["pid"] == *pid))
            });
        let by_cgroup = run.report_with(&["--by", "cgroup"]);
        let of_units = printed.units.iter().filter_map(|(name, own)| {
            let rows = by_cgroup.get("by")["rows"].as_array()?;
            let found = &rows.iter().find(|row| row["unit"] == name.as_str())?["self"];
            let number = |key: &str| found[key].as_f64();
            let half = (number("time_high_s")? - number("time_low_s")?) / 2.0;
            Some(compared(name, *own, (number("time_s")?, half)))
        });
        of_total.into_iter().chain(of_processes).chain(of_units).collect()
    }

    /// Returns a sentence for each figure that is out of bounds.
    pub fn faults(&self, measured: &ProfileFigures) -> Vec<String> {
        let mut faults = Vec::new();
        if measured.samples < 500 {
            faults.push(format!("{} samples in user code are too few", measured.samples));
        }
        for (what, found, least) in
            [("named", measured.named, self.named), ("complete", measured.complete, self.complete)]
        {
            if found < least {
                faults.push(format!("{what}: {found:.3} is below {least}"));
            }
        }
        if let Some(found) = measured.functions_named.filter(|found| *found < FUNCTIONS_NAMED) {
            faults.push(format!("functions of the language: {found:.3} named is below {FUNCTIONS_NAMED}"));
        }
        if measured.memory > MEMORY {
            faults.push(format!("vprof took {:.1} MB beyond the guest's memory", measured.memory / 1e6));
        }
        let times = if measured.emulated { &[][..] } else { &measured.times[..] };
        let apart = measured.phases.iter().chain(times).filter(|compared| !compared.agrees());
        faults.extend(apart.map(|compared| format!("{compared:?}")));
        faults
    }
}

/// Returns the part of the samples in functions of managed languages, by the rows of functions, that have a
/// name: others are `[python]` or similar.
fn functions_named(rows: &[NamedRow]) -> Option<f64> {
    let samples = |is: &dyn Fn(&NamedRow) -> bool| -> i64 {
        let managed = rows.iter().filter(|row| row.kind.as_deref() == Some("managed") && is(row));
        managed.map(|row| row.self_samples).sum()
    };
    let (all, unnamed) = (samples(&|_| true), samples(&|row| row.name.starts_with('[')));
    (all > 0).then(|| 1.0 - unnamed as f64 / all as f64)
}

/// Figures that a workload printed.
#[derive(Debug, Default, PartialEq)]
struct WorkloadOutput {
    phases: BTreeMap<String, f64>,
    total: Option<f64>,
    processes: Vec<(String, i64, f64)>,
    units: Vec<(String, f64)>,
}

impl WorkloadOutput {
    fn parse(stdout: &str) -> Self {
        let mut printed = Self::default();
        for line in stdout.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["phase", name, seconds] => {
                    if let Ok(seconds) = seconds.parse::<f64>() {
                        *printed.phases.entry(name.to_owned()).or_default() += seconds;
                    }
                }
                ["total", seconds] => printed.total = seconds.parse().ok(),
                ["process", comm, pid, seconds] => {
                    let numbers = pid.parse().ok().zip(seconds.parse().ok());
                    printed.processes.extend(numbers.map(|(pid, s)| (comm.to_owned(), pid, s)));
                }
                ["unit", name, seconds] => {
                    printed.units.extend(seconds.parse().ok().map(|s| (name.to_owned(), s)));
                }
                _ => {}
            }
        }
        printed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_workload_prints_is_read() {
        let printed = WorkloadOutput::parse(
            "phase fib 1.0\nnoise\nphase text 0.5\nphase fib 0.5\ntotal 2.25\nprocess postgres 31 4.5\nunit a.service 5\n",
        );
        assert_eq!(printed.phases["fib"], 1.5);
        assert_eq!((printed.phases.len(), printed.total), (2, Some(2.25)));
        assert_eq!(printed.processes, [("postgres".to_owned(), 31, 4.5)]);
        assert_eq!(printed.units, [("a.service".to_owned(), 5.0)]);
    }

    #[test]
    fn phases_have_the_shares_of_their_samples_times() {
        let printed = WorkloadOutput::parse("phase cart 3.0\nphase search 7.0\n");
        let equal = PhaseSamples { time: 3.0, squares: 300.0 * 0.01_f64.powi(2) };
        // In `search` the machine waited for a CPU for 4 s, at one tick.
        let waited = PhaseSamples { time: 7.0, squares: 300.0 * 0.01_f64.powi(2) + 4.0 * 4.0 };
        let compared = compared_phases(&["cart", "search"], &[equal, waited], &printed);
        assert!(compared.iter().all(|phase| (phase.found - phase.own).abs() < 1e-9));
        assert!((equal.effective() - 300.0).abs() < 1e-6);
        // Half of the result is one sample's.
        let (found, tolerance) = (waited.effective(), compared[1].tolerance);
        assert!((3.0..3.1).contains(&found) && tolerance > 0.5, "{found} {tolerance}");
        let alike = compared_phases(&["cart", "search"], &[equal, equal], &printed);
        assert!(alike.iter().all(|phase| !phase.agrees()), "{alike:?}");
        assert_eq!(PhaseSamples::default().effective(), 0.0);
    }

    #[test]
    fn values_too_far_apart_are_faults() {
        let entry = CorpusProgram::named("go_19");
        let compared = |found| ValueComparison { name: "fib".into(), own: 0.5, found, tolerance: 0.03 };
        let measured = |found, named| ProfileFigures {
            samples: 1_000,
            named,
            functions_named: None,
            complete: 1.0,
            phases: vec![compared(found)],
            times: vec![compared(0.9)],
            memory: MEMORY,
            emulated: true,
        };
        assert_eq!(entry.faults(&measured(0.52, 1.0)), Vec::<String>::new());
        assert_eq!(entry.faults(&measured(0.54, 1.0)).len(), 1);
        assert_eq!(entry.faults(&measured(0.54, 0.1)).len(), 2);
        let nameless = ProfileFigures { functions_named: Some(0.9), ..measured(0.52, 1.0) };
        assert_eq!(entry.faults(&nameless), ["functions of the language: 0.900 named is below 0.95"]);
        let native = ProfileFigures { emulated: false, ..measured(0.52, 1.0) };
        assert_eq!(entry.faults(&native).len(), 1);
        let large = ProfileFigures { memory: MEMORY + 1.0, ..measured(0.52, 1.0) };
        assert_eq!(entry.faults(&large), ["vprof took 64.0 MB beyond the guest's memory"]);
    }

    #[test]
    fn functions_without_a_name_are_those_in_brackets() {
        let row = |name: &str, kind: &str, self_samples| NamedRow {
            name: name.into(),
            kind: Some(kind.into()),
            module: None,
            self_samples,
            total_samples: self_samples,
        };
        let native = row("libc.so.6[0x1000]", "user", 50);
        assert_eq!(functions_named(std::slice::from_ref(&native)), None);
        let rows = [native, row("handle_cart", "managed", 30), row("[python]", "managed", 10)];
        assert_eq!(functions_named(&rows), Some(0.75));
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = CORPUS_PROGRAMS.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), CORPUS_PROGRAMS.len());
    }
}
