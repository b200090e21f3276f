//! `vprof agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use display::parse::positive_time;
use sandbox::SyscallPolicy;
use upload::SinkAddress;

use super::TEMPLATE;
use super::attach::Engine;
use super::parse::{ValueError, parse_rate, parse_size, part, policy_parser};

const EXAMPLES: &str = "\
Examples:
  vprof agent                              all VMs of this host, until SIGTERM
  vprof agent --to /srv/lake --window 10m
  vprof agent --to s3://profiles/lake --to otlp+http://collector:4318
  vprof agent --name 'web*' --name db
  vprof agent --one-of 10 --label service=web
  vprof agent --once --window 1m --to lake  one window, and end
  vprof agent --metrics 127.0.0.1:9464     counters for Prometheus
";

const NOTES: &str = "\
The agent attaches to each virtual machine on KVM, as `vprof attach` does, and closes a recording at the \
end of each window of the clock. A window becomes one Parquet file for each of the tables samples, stacks, vcpus, \
tasks and vms, as v1/TABLE/day=YYYY-MM-DD/hour=HH/HOST-YYYYMMDDTHH-N.parquet in a directory or a bucket, which SQL engines \
read together. Receivers of OpenTelemetry profiles get each recording of a window as requests of OTLP 1.10.0 \
(v1development). Recordings are in the spool until their window is over and each sink has it: what an agent that was \
killed has left is sent at the next start. docs/fleet.md has the columns; `vprof fleet top --engine print` shows a query.

A bucket is reached by the variables AWS_* of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, \
AWS_ENDPOINT_URL; http:// only with AWS_ALLOW_HTTP=true), or by the role of the machine. Headers for receivers of \
profiles are in OTEL_EXPORTER_OTLP_HEADERS.

It needs the rights of `vprof attach`. One agent runs on a host; SIGTERM and Ctrl-C close the window and write it.

Exit codes: 0 done; 1 failed, or a window could not be written; 2 the command line is wrong.";

/// Longest label, bytes.
const LONGEST_LABEL: usize = 200;

/// `vprof agent`.
#[derive(Debug, Args)]
#[command(before_help = EXAMPLES, after_help = NOTES, help_template = TEMPLATE)]
pub struct AgentArgs {
    /// Sink of the windows: a directory or s3://BUCKET/PREFIX for Parquet files, or a receiver of
    /// OpenTelemetry profiles (otlp+http://HOST:4318, with TLS otlp+https://); repeatable (docs/fleet.md)
    #[arg(long, default_value = "/var/lib/vprof/lake", value_name = "SINK")]
    pub to: Vec<SinkAddress>,

    /// Only machines with this name, as `vprof attach` lists them; `*` stands for any characters; repeatable
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,

    /// Wait for the start of the next window, record that one, and end
    #[arg(long)]
    pub once: bool,

    /// Mean samples per second and vCPU, 0.1 to 50000
    #[arg(long, short = 'F', default_value = "19", value_name = "HZ", value_parser = parse_rate)]
    pub rate: f64,

    /// Length of a window: an hour, or a whole part of it from 1s on
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parse_window)]
    pub window: Duration,

    /// Take part in one of N windows, chosen at random by host and window. Column `inclusion` is 1/N
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub one_of: u32,

    /// Label of all rows, in column `group_`; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<String>,

    /// Directory of recordings that are not written yet
    #[arg(long, default_value = "/var/lib/vprof/spool", value_name = "DIR")]
    pub spool: PathBuf,

    /// Size of the spool above which the oldest window is dropped, and counted in the next one
    #[arg(long, default_value = "2G", value_name = "SIZE", value_parser = parse_size)]
    pub spool_limit: u64,

    /// CPU time of the agent as a part of all CPUs of the host, above which the rate falls, down to a tenth;
    /// by default 0.1%, and at least 1 % of one CPU
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    pub budget: Option<f64>,

    /// Time for which a machine's vCPUs are stopped for samples, above which its rate falls, down to a tenth
    #[arg(long, default_value = "0.1%", value_name = "PERCENT", value_parser = parse_share)]
    pub guest_budget: f64,

    /// Way of sampling, as of `vprof attach`
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    pub engine: Engine,

    /// Filter of the system calls of the processes that read the guests: at an unexpected call `on` ends the
    /// recording, and `log` has the kernel log it; `off` allows all (docs/security.md)
    #[arg(long, value_name = "WHAT", value_parser = policy_parser(), default_value = "on")]
    pub seccomp: SyscallPolicy,

    /// Address at which counters for Prometheus are served
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
}

/// Writes the recordings of a window: a part of `vprof agent`.
#[derive(Debug, Args)]
pub struct AgentWindowArgs {
    /// Directory of the window in the spool
    pub window: PathBuf,

    /// Sink of the window
    #[arg(long)]
    pub to: SinkAddress,

    /// Only make the files in the spool that the sink is sent
    #[arg(long)]
    pub stage: bool,
}

/// Parses a budget as a part of 1.
fn parse_share(text: &str) -> Result<f64, ValueError> {
    part(text, "0.1% or 2%", (0.001..=100.0, "0.001% to 100%"))
}

/// Parses the length of a window: whole seconds, of which an hour is a multiple.
fn parse_window(text: &str) -> Result<Duration, ValueError> {
    let form = ValueError::Form("1h, 10m or 60s: an hour has to be a multiple of it");
    let length = positive_time(text)?;
    let divides = |seconds: u64| seconds > 0 && 3_600 % seconds == 0;
    if length.subsec_nanos() == 0 && divides(length.as_secs()) { Ok(length) } else { Err(form) }
}

/// Parses a label, `KEY=VALUE`. A list of labels has a comma between two.
fn parse_label(text: &str) -> Result<String, ValueError> {
    let form = ValueError::Form("service=web, without commas");
    let plain = |c: char| !c.is_control() && c != ',';
    match text.split_once('=') {
        Some((key, _)) if !key.is_empty() && text.chars().all(plain) && text.len() <= LONGEST_LABEL => {
            Ok(text.to_owned())
        }
        _ => Err(form),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_whole_part_of_an_hour() {
        for (text, seconds) in [("1h", 3_600), ("10m", 600), ("2s", 2), ("1", 1)] {
            assert_eq!(parse_window(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in ["2h", "7m", "500ms", "1.5s", "0s", "", "1d"] {
            assert!(parse_window(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn budgets_are_parts_and_labels_have_a_key() {
        assert_eq!((parse_share("0.1%"), parse_share("100 %")), (Ok(0.001), Ok(1.0)));
        for wrong in ["0.1", "0%", "101%", "-1%", "%", "0.0001%"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_label("service=web").as_deref(), Ok("service=web"));
        for wrong in ["web", "=web", "a=b,c=d", "a=\x1b[2J"] {
            assert!(parse_label(wrong).is_err(), "{wrong}");
        }
    }
}
