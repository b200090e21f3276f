//! Values of options: sizes, times, rates, spans.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use control::message::Then;
use disk_images::contents::ImageFormat;
use display::parse::{TimeError, decimal, positive_time, split_unit, time};
use host::choice::HostChoice;
use host::network::NetworkKind;
use profile::Sort;
use profile::boot::PHASES;
use profile::conditions::{BadPattern, Condition};
use profile::report::By;
use profile::session::{RATES_HZ, RateOutOfRange, checked_rate};
use render::ColorChoice;
use sandbox::SyscallPolicy;
use statistics::clock::ClockKind;

/// Reason why the value of an option is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// The value has another form.
    #[error("write it like {0}")]
    Form(&'static str),
    /// The value has no unit.
    #[error("the unit is missing: write it like {0}")]
    NoUnit(&'static str),
    /// The value has an unknown unit.
    #[error("unknown unit {unit:?}: write it like {form}")]
    UnknownUnit {
        /// The unit as given.
        unit: String,
        /// An example.
        form: &'static str,
    },
    /// The value is outside of its range.
    #[error("it has to be from {0}")]
    OutOfRange(&'static str),
    /// The size is too large; the maximum as text.
    #[error("the maximum is {0}")]
    TooLarge(String),
    /// The size is too small; the minimum as text.
    #[error("the minimum is {0}")]
    TooSmall(String),
    /// The time between two refreshes is too short; the minimum in milliseconds.
    #[error("the minimum is {0}ms")]
    RefreshTooShort(u128),
    /// The number is not that of a process.
    #[error("a process id is a number from 1 to 4194304; a VM whose name is a number needs --name")]
    Pid,
    /// The text is not a MAC address.
    #[error("a MAC address is six bytes like 02:00:00:00:00:01")]
    Mac,
    /// The MAC address is the one that means "none".
    #[error("00:00:00:00:00:00 is not the address of a card")]
    ZeroMac,
    /// The MAC address is a group's.
    #[error("{0} is a group address: the first byte of a card's is even, like 02:00:00:00:00:01")]
    GroupMac(String),
    /// No phase of a boot has this name.
    #[error("no phase \"{name}\"{suggestion}; phases are {}", PHASES.join(", "))]
    UnknownPhase {
        /// The name as given, escaped.
        name: String,
        /// A clause that suggests a phase with a similar name, or empty.
        suggestion: String,
    },
    /// The span is empty.
    #[error("its end is not after its beginning")]
    EmptySpan,
    /// The growth is not a number.
    #[error("{0} is not a growth like 5%")]
    Growth(String),
    /// The number of points is not one.
    #[error("{0} is not a number of points, 0pt to 100pt")]
    Points(String),
    /// The limit of growth has no unit.
    #[error("the unit is missing: give a growth like 5%, a time like 50ms, or points of a share like 5pt")]
    LimitUnit,
    /// The limit of growth is not a time either.
    #[error("{0}; or give a growth, like 5%")]
    LimitTime(TimeError),
    /// The name is not one of the possible values.
    #[error("it is not one of the possible values")]
    UnknownName,
    /// The time is not one.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// The rate is out of bounds.
    #[error(transparent)]
    Rate(#[from] RateOutOfRange),
    /// The regular expression is not valid.
    #[error(transparent)]
    Pattern(#[from] BadPattern),
}

/// A span of time since the run's start; open ends are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeSpan {
    /// Its beginning.
    pub from: Option<Duration>,
    /// Its end.
    pub to: Option<Duration>,
}

/// A network card of the guest (`--net`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkChoice {
    /// Network that the card is connected to.
    pub kind: NetworkKind,
    /// The card's address; `None`: the run chooses one.
    pub mac: Option<[u8; 6]>,
}

/// Parses `tap`, `tap=NAME` or `passt`, each with an optional `,mac=02:00:00:00:00:01`.
pub fn parse_network(text: &str) -> Result<NetworkChoice, ValueError> {
    let form = || ValueError::Form("tap, tap=NAME or passt, and ,mac=02:00:00:00:00:01 after it");
    let mut words = text.split(',');
    let kind = match words.next() {
        Some("tap") => NetworkKind::Tap("vprof0".to_owned()),
        Some("passt") => NetworkKind::Passt,
        Some(word) => NetworkKind::Tap(word.strip_prefix("tap=").ok_or_else(form)?.to_owned()),
        None => return Err(form()),
    };
    let mut mac = None;
    for word in words {
        let address = word.strip_prefix("mac=").ok_or_else(form)?;
        mac = Some(parse_mac(address)?);
    }
    Ok(NetworkChoice { kind, mac })
}

/// Parses the address of one card, of 48 bits.
fn parse_mac(text: &str) -> Result<[u8; 6], ValueError> {
    let bytes: Option<Vec<u8>> = text.split(':').map(hex_byte).collect();
    let bytes: [u8; 6] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(ValueError::Mac)?;
    match bytes {
        [0, 0, 0, 0, 0, 0] => Err(ValueError::ZeroMac),
        [first, ..] if first & 1 == 1 => Err(ValueError::GroupMac(text.to_owned())),
        _ => Ok(bytes),
    }
}

fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(text, 16).ok().filter(|_| digits)
}

/// Parses a size of guest memory like `512M`, in bytes, rounded down to a multiple of 4 KiB.
pub fn parse_memory(text: &str) -> Result<u64, ValueError> {
    // A Linux kernel needs this much to report that it has too little memory.
    let bytes = size_within(text, 32 << 20, vmm::config::MAX_MEMORY)?;
    Ok(bytes & !0xfff)
}

/// Parses a size of a profile, in bytes. The least has room for a report.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    size_within(text, 1 << 20, 1 << 50)
}

/// Parses a size like `512M`, `2G` or `1.5GiB`, in bytes.
fn size_within(text: &str, least: u64, most: u64) -> Result<u64, ValueError> {
    let form = "512M or 2G";
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "" => return Err(ValueError::NoUnit(form)),
        _ => return Err(ValueError::UnknownUnit { unit: unit.to_owned(), form }),
    };
    let scaled = decimal(number).ok_or(ValueError::Form(form))? * f64::from(1 << (shift - 10)) * 1024.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    if scaled > most as f64 {
        Err(ValueError::TooLarge(display::units::bytes(most)))
    } else if (scaled as u64) < least {
        Err(ValueError::TooSmall(display::units::bytes(least)))
    } else {
        Ok(scaled as u64)
    }
}

/// Parses a regular expression for the console (`--until`).
pub fn parse_pattern(text: &str) -> Result<Condition, ValueError> {
    let condition = Condition::Console(text.to_owned());
    condition.check()?;
    Ok(condition)
}

/// Parses a phase and its longest time (`--budget`).
pub fn parse_budget(text: &str) -> Result<(String, Duration), ValueError> {
    let (phase, time) = text.split_once('=').ok_or(ValueError::Form("total=3s"))?;
    if !PHASES.contains(&phase) {
        let similar = display::suggest::suggest(phase, PHASES.iter().copied());
        let suggestion =
            similar.first().map_or_else(String::new, |similar| format!(", did you mean {similar}"));
        return Err(ValueError::UnknownPhase {
            name: display::clean::escaped(phase).into_owned(),
            suggestion,
        });
    }
    Ok((phase.to_owned(), positive_time(time)?))
}

/// Returns the parser of `--sort`.
pub fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Sort>())
}

/// Returns the parser of `--by`.
pub fn by_parser() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<By>())
}

/// Parses `FROM..TO`, either of which may be missing.
pub fn parse_span(text: &str) -> Result<TimeSpan, ValueError> {
    let (from, to) = text.split_once("..").ok_or(ValueError::Form("2s..5s, 500ms.. or ..10s"))?;
    let end = |text: &str| if text.is_empty() { Ok(None) } else { time(text).map(Some) };
    let span = TimeSpan { from: end(from)?, to: end(to)? };
    match (span.from, span.to) {
        (Some(from), Some(to)) if from >= to => Err(ValueError::EmptySpan),
        _ => Ok(span),
    }
}

/// Parses a rate in samples per second.
pub fn parse_rate(text: &str) -> Result<f64, ValueError> {
    if text == "max" {
        return Ok(*RATES_HZ.end());
    }
    let (number, factor) = text.strip_suffix(['k', 'K']).map_or((text, 1.0), |number| (number, 1_000.0));
    let rate = decimal(number).ok_or(ValueError::Form("1000, in samples per second, or 5k"))?;
    Ok(checked_rate(rate * factor)?)
}

/// Parses a rate in scans of all tasks per second.
pub fn parse_task_rate(text: &str) -> Result<f64, ValueError> {
    let hz = decimal(text).ok_or(ValueError::Form("10, in scans per second"))?;
    if hz == 0.0 || (0.1..=1_000.0).contains(&hz) {
        Ok(hz)
    } else {
        Err(ValueError::OutOfRange("0.1 to 1000 scans per second, or 0"))
    }
}

/// Parses the interval of readings of the guest's memory.
pub fn parse_memory_interval(text: &str) -> Result<Duration, ValueError> {
    let interval = time(text).map_err(|_| ValueError::Form("10s, or 1m"))?;
    let range = Duration::from_secs(1)..=Duration::from_hours(24);
    if range.contains(&interval) { Ok(interval) } else { Err(ValueError::OutOfRange("1s to 24h")) }
}

/// Parses a part of the whole like `1%` or `0.5%`.
pub fn parse_precision(text: &str) -> Result<f64, ValueError> {
    part(text, "1% or 0.5%", (0.01..=50.0, "0.01% to 50%"))
}

/// Parses a number of percent as a part of 1. `form` has examples, `range` is also in words.
pub fn part(
    text: &str,
    form: &'static str,
    (range, words): (RangeInclusive<f64>, &'static str),
) -> Result<f64, ValueError> {
    let percent = text.trim().strip_suffix('%').and_then(|number| decimal(number.trim_end()));
    let percent = percent.ok_or(ValueError::Form(form))?;
    if range.contains(&percent) { Ok(percent / 100.0) } else { Err(ValueError::OutOfRange(words)) }
}

/// Returns the parser of `--host`.
pub fn host_parser() -> impl TypedValueParser<Value = HostChoice> {
    named(&[
        ("auto", "This machine's KVM if it can run a kernel, else the portable host", HostChoice::Auto),
        ("kvm", "This machine's KVM", HostChoice::Kvm),
        ("portable", "The portable host", HostChoice::Portable),
        ("tcg", "QEMU's software emulation, without KVM", HostChoice::Tcg),
    ])
}

/// Returns the parser of `--format`.
pub fn format_parser() -> impl TypedValueParser<Value = ImageFormat> {
    named(&[
        ("raw", "The bytes of the disk as the guest sees them", ImageFormat::Raw),
        ("qcow2", "A qcow2 image", ImageFormat::Qcow2),
    ])
}

/// Returns the parser of `--seccomp`.
pub fn policy_parser() -> impl TypedValueParser<Value = SyscallPolicy> {
    named(&[
        ("on", "The run ends at a system call outside of the filters", SyscallPolicy::Refuse),
        ("log", "The kernel logs such a call", SyscallPolicy::Log),
        ("off", "No filters", SyscallPolicy::Off),
    ])
}

/// Returns the parser of `--then`.
pub fn then_parser() -> impl TypedValueParser<Value = Then> {
    named(&[("end", "The run ends", Then::End), ("continue", "The run continues, unsampled", Then::Continue)])
}

/// Returns the parser of `--clock`.
pub fn clock_parser() -> impl TypedValueParser<Value = ClockKind> {
    named(&[
        ("uniform", "Evenly between half and one and a half times the mean", ClockKind::Uniform),
        ("exponential", "Exponential, without memory", ClockKind::Exponential),
        ("fixed", "Always the mean", ClockKind::Fixed),
    ])
}

/// Returns the parser of `--color`.
pub fn color_parser() -> impl TypedValueParser<Value = ColorChoice> {
    named(&[
        ("auto", "On a terminal", ColorChoice::Auto),
        ("always", "Also in a pipe or a file", ColorChoice::Always),
        ("never", "Nowhere", ColorChoice::Never),
    ])
}

/// Returns a parser of one of some values, by name and with a help.
fn named<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let shown = values.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(shown).try_map(|given| {
        let found = values.iter().find(|(name, _, _)| *name == given);
        found.map(|(_, _, value)| *value).ok_or(ValueError::UnknownName)
    })
}

/// Parses the name of a function of the guest's kernel.
pub fn trip_parser(text: &str) -> Result<String, &'static str> {
    if text.contains(['*', '?', '[']) {
        return Err("give the name of one function: patterns are not supported");
    }
    let is_named = !text.is_empty() && text.len() < 512;
    if is_named && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c)) {
        Ok(text.to_owned())
    } else {
        Err("a function of the kernel has letters, digits, `_`, `.` and `$` in its name")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read() {
        let tap = |name: &str, mac| Ok(NetworkChoice { kind: NetworkKind::Tap(name.to_owned()), mac });
        let mac = [2, 0, 0, 0, 0xab, 1];
        assert_eq!(parse_network("tap"), tap("vprof0", None));
        assert_eq!(parse_network("tap=br-vm,mac=02:00:00:00:aB:01"), tap("br-vm", Some(mac)));
        assert_eq!(
            parse_network("passt,mac=02:00:00:00:ab:01"),
            Ok(NetworkChoice { kind: NetworkKind::Passt, mac: Some(mac) })
        );
        for wrong in [
            "",
            "user",
            "tap0",
            "passt=x",
            "passtx",
            "tap,",
            "tap,mac",
            "tap,mac=",
            "tap,mac=02:00:00:00:00",
            "tap,mac=2:0:0:0:0:1",
            "tap,mac=01:00:00:00:00:01",
            "tap,mac=00:00:00:00:00:00",
            "tap,up=1",
            "tap,mac=02:00:00:00:00:+1",
        ] {
            assert!(parse_network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_profile_has_any_size() {
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("3T"), Ok(3 << 40));
        assert!(parse_size("1k").is_err() && parse_size("2000T").is_err() && parse_size("5").is_err());
    }

    #[test]
    fn memory_has_a_unit_and_bounds() {
        assert_eq!(parse_memory("512M"), Ok(512 << 20));
        assert_eq!(parse_memory("2g"), Ok(2 << 30));
        assert_eq!(parse_memory("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_memory("256G"), Ok(256 << 30));
        assert_eq!(parse_memory("100001K"), Ok(100_000 << 10));
        for wrong in ["", "512", "257G", "-1G", "1e9G", "5X", "16M", "99999999999999999999T", ".G", "G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn precisions_are_percentages() {
        assert_eq!(parse_precision("1%"), Ok(0.01));
        assert_eq!(parse_precision(" 0.5 %"), Ok(0.005));
        assert_eq!(parse_precision("50%"), Ok(0.5));
        for wrong in ["", "%", "1", "0.01", "0%", "51%", "-1%", "1e1%", "inf%", "NaN%", "1%%"] {
            assert!(parse_precision(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conditions_are_checked() {
        assert_eq!("console:^a:b".parse::<Condition>(), Ok(Condition::Console("^a:b".to_owned())));
        assert_eq!("time:1.5s".parse::<Condition>(), Ok(Condition::Time(Duration::from_millis(1500))));
        assert_eq!("process-end:gzip".parse::<Condition>().unwrap().to_string(), "process-end:gzip");
        for (wrong, said) in [
            ("gzip", "write it like"),
            ("proces:gzip", "unknown kind of condition"),
            ("process:", "needs a value"),
            ("time:0", "more than 0"),
            ("console:a(b", "at character 2: unclosed group"),
        ] {
            let error = wrong.parse::<Condition>().expect_err(wrong).to_string();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }

    #[test]
    fn budgets_name_a_phase() {
        assert_eq!(parse_budget("kernel=1.5s"), Ok(("kernel".to_owned(), Duration::from_millis(1500))));
        let error = parse_budget("kernal=1s").unwrap_err().to_string();
        assert!(error.contains("no phase \"kernal\", did you mean kernel; phases are total, "), "{error}");
        let error = parse_budget("foo=3s").unwrap_err().to_string();
        assert!(error.starts_with("no phase \"foo\"; phases are total, "), "{error}");
        assert!(parse_budget("usrspace=1s").unwrap_err().to_string().contains("did you mean userspace;"));
        assert!(parse_budget("total").is_err() && parse_budget("total=0").is_err());
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("20"), Ok(Duration::from_secs(20)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("1.5 m"), Ok(Duration::from_secs(90)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "-1s", "5 fortnights", "9999999h", "NaN", "0.1ns"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_may_be_open() {
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(parse_span("2s..5"), Ok(TimeSpan { from: seconds(2), to: seconds(5) }));
        assert_eq!(parse_span("..5"), Ok(TimeSpan { from: None, to: seconds(5) }));
        assert_eq!(parse_span(".."), Ok(TimeSpan::default()));
        assert!(parse_span("5..2").is_err());
        assert!(parse_span("5").is_err());
    }

    #[test]
    fn rates_are_bounded() {
        assert_eq!(parse_rate("997.5"), Ok(997.5));
        assert_eq!((parse_rate("5k"), parse_rate("0.5k"), parse_rate("max")), (Ok(5e3), Ok(500.0), Ok(5e4)));
        for wrong in ["0", "-5", "inf", "60000", "51k", "k", "1M", "maximum", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
