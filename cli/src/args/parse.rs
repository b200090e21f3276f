//! Values of options: sizes, times, rates, spans.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use host::choice::HostChoice;
use host::network::NetworkKind;
use host::protocol::Then;
use profile::boot::PHASES;
use profile::report::By;
use profile::{ClockKind, Sort};
use sampler::checked_rate;
use sampler::conditions::Condition;
use text::parse::{decimal, positive_time, split_unit, time};

/// A span of time since the run's start; open ends are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Its beginning.
    pub from: Option<Duration>,
    /// Its end.
    pub to: Option<Duration>,
}

/// What `--net` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkChoice {
    /// What the card is plugged into.
    pub kind: NetworkKind,
    /// The card's address; `None` for one of the run's own.
    pub mac: Option<[u8; 6]>,
}

/// A network card from `tap`, `tap=NAME` or `passt`, each with `,mac=02:00:00:00:00:01` where that matters.
pub fn parse_network(text: &str) -> Result<NetworkChoice, String> {
    let advice = "write it like tap, tap=NAME or passt, and ,mac=02:00:00:00:00:01 after it";
    let mut words = text.split(',');
    let kind = match words.next() {
        Some("tap") => NetworkKind::Tap("vprof0".to_owned()),
        Some("passt") => NetworkKind::Passt,
        Some(word) => NetworkKind::Tap(word.strip_prefix("tap=").ok_or(advice)?.to_owned()),
        None => return Err(advice.to_owned()),
    };
    let mut mac = None;
    for word in words {
        let address = word.strip_prefix("mac=").ok_or(advice)?;
        mac = Some(parse_mac(address)?);
    }
    Ok(NetworkChoice { kind, mac })
}

/// The address of one card, of 48 bits.
fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text.split(':').map(hex_byte).collect();
    let bytes: [u8; 6] = bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or("a MAC address is six bytes like 02:00:00:00:00:01")?;
    match bytes {
        [0, 0, 0, 0, 0, 0] => Err("00:00:00:00:00:00 is no card's address".to_owned()),
        [first, ..] if first & 1 == 1 => Err(format!(
            "{text} is a group's address: a card's has an even first byte, like 02:00:00:00:00:01"
        )),
        _ => Ok(bytes),
    }
}

/// What `--vsock` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VsockChoice {
    /// The socket of programs that connect to the guest.
    pub path: PathBuf,
    /// The guest's context id.
    pub cid: u32,
}

/// Sockets from `PATH`, with `,cid=N` behind it where that matters.
pub fn parse_vsock(text: &str) -> Result<VsockChoice, String> {
    let (path, cid) = match text.rsplit_once(",cid=") {
        Some((path, cid)) => (path, parse_cid(cid)?),
        None => (text, 3),
    };
    if path.is_empty() {
        return Err("write it like PATH or PATH,cid=3".to_owned());
    }
    Ok(VsockChoice { path: path.into(), cid })
}

/// A context id of a guest: the first three and the last have meanings of their own (VIRTIO 1.2, 5.10.4).
fn parse_cid(text: &str) -> Result<u32, String> {
    let cid = text.parse().ok().filter(|cid| (3..u32::MAX).contains(cid));
    cid.ok_or_else(|| "a guest's context id is a number from 3 to 4294967294".to_owned())
}

fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(text, 16).ok().filter(|_| digits)
}

/// Bytes from `512M`, `2G`, `1.5GiB`; a multiple of 4 KiB.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let advice = "write it like 512M or 2G";
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "" => return Err(format!("it has no unit: {advice}")),
        _ => return Err(format!("{unit:?} is no unit of memory: {advice}")),
    };
    let scaled = decimal(number).ok_or(advice)? * f64::from(1 << (shift - 10)) * 1024.0;
    let most = vmm::config::MAX_MEMORY;
    // At least what a Linux kernel needs to say that it has too little.
    let least = 32 << 20;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    if scaled > most as f64 {
        Err(format!("the most is {}", text::units::bytes(most)))
    } else if (scaled as u64) < least {
        Err(format!("the least is {}", text::units::bytes(least)))
    } else {
        Ok(scaled as u64 & !0xfff)
    }
}

/// What `--until` takes.
pub fn parse_pattern(text: &str) -> Result<Condition, String> {
    let condition = Condition::Console(text.to_owned());
    condition.check().map(|()| condition).map_err(|error| error.to_string())
}

/// What `--budget` takes.
pub fn parse_budget(text: &str) -> Result<(String, Duration), String> {
    let (phase, time) = text.split_once('=').ok_or("write it like total=3s")?;
    if !PHASES.contains(&phase) {
        let near = PHASES.iter().min_by_key(|known| distance(phase, known)).copied().unwrap_or_default();
        let phase = text::clean::escaped(phase);
        return Err(format!(
            "there is no phase {phase:?}, did you mean {near}? Phases are {}",
            PHASES.join(", ")
        ));
    }
    Ok((phase.to_owned(), positive_time(time).map_err(|error| error.to_string())?))
}

/// How many characters have to be put in, taken out or changed (Levenshtein); of the first 32.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().take(32).collect();
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (line, wanted) in to.chars().enumerate() {
        let mut corner = row[0];
        row[0] = line + 1;
        for (column, have) in from.iter().enumerate() {
            let changed = corner + usize::from(*have != wanted);
            corner = row[column + 1];
            row[column + 1] = changed.min(corner + 1).min(row[column] + 1);
        }
    }
    row[from.len()]
}

/// A key of `--sort`.
pub fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<Sort>())
}

/// What `--by` takes.
pub fn by_parser() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::ALL.map(|(name, _)| name)).try_map(|name| name.parse::<By>())
}

/// `FROM..TO`, either of which may be missing.
pub fn parse_span(text: &str) -> Result<Span, String> {
    let (from, to) = text.split_once("..").ok_or("write it like 2s..5s, 500ms.. or ..10s")?;
    let end = |text: &str| {
        if text.is_empty() { Ok(None) } else { time(text).map(Some).map_err(|error| error.to_string()) }
    };
    let span = Span { from: end(from)?, to: end(to)? };
    match (span.from, span.to) {
        (Some(from), Some(to)) if from >= to => Err("its end is not after its beginning".to_owned()),
        _ => Ok(span),
    }
}

/// Samples per second.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = decimal(text).ok_or("write it as a number of samples per second")?;
    checked_rate(rate).map_err(|error| error.to_string())
}

/// Scans of all tasks per second.
pub fn parse_task_rate(text: &str) -> Result<f64, String> {
    let hz = decimal(text).ok_or("write it as a number of scans per second")?;
    if hz == 0.0 || (0.1..=1_000.0).contains(&hz) {
        Ok(hz)
    } else {
        Err("it has to be 0, or from 0.1 to 1000 scans per second".to_owned())
    }
}

/// A part of the whole from `1%` or `0.5%`.
pub fn parse_precision(text: &str) -> Result<f64, String> {
    let advice = "write it like 1% or 0.5%";
    let number = text.trim().strip_suffix('%').ok_or(advice)?;
    let percent = decimal(number.trim_end()).ok_or(advice)?;
    if (0.01..=50.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err("it has to be from 0.01% to 50%".to_owned())
    }
}

/// What `--host` takes.
pub fn host_parser() -> impl TypedValueParser<Value = HostChoice> {
    named(&[
        ("auto", "This machine's KVM if it can run a kernel, else the portable host", HostChoice::Auto),
        ("kvm", "This machine's KVM", HostChoice::Kvm),
        ("portable", "The portable host", HostChoice::Portable),
        ("tcg", "QEMU's software emulation, without KVM", HostChoice::Tcg),
    ])
}

/// What `--then` takes.
pub fn then_parser() -> impl TypedValueParser<Value = Then> {
    named(&[("end", "The run ends", Then::End), ("go-on", "It goes on, unsampled", Then::GoOn)])
}

/// What `--clock` takes.
pub fn clock_parser() -> impl TypedValueParser<Value = ClockKind> {
    named(&[
        ("uniform", "Evenly between half and one and a half times the mean", ClockKind::Uniform),
        ("exponential", "Exponential, without memory", ClockKind::Exponential),
        ("fixed", "Always the mean", ClockKind::Fixed),
    ])
}

/// One of some values, by name and with a help.
fn named<T: Copy + Send + Sync + 'static>(
    values: &'static [(&'static str, &'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let shown = values.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(shown).try_map(|given| {
        let found = values.iter().find(|(name, _, _)| *name == given);
        found.map(|(_, _, value)| *value).ok_or("it is none of the possible values")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read() {
        let vsock = |path: &str, cid| Ok(VsockChoice { path: path.into(), cid });
        assert_eq!(parse_vsock("/run/vm.sock"), vsock("/run/vm.sock", 3));
        assert_eq!(parse_vsock("a,b,cid=9,cid=4294967294"), vsock("a,b,cid=9", u32::MAX - 1));
        for wrong in ["", ",cid=3", "s,cid=", "s,cid=2", "s,cid=4294967295", "s,cid=x", "s,cid=3,"] {
            assert!(parse_vsock(wrong).is_err(), "{wrong}");
        }
    }

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
        let error = parse_budget("kernal=1s").unwrap_err();
        assert!(error.contains("no phase \"kernal\", did you mean kernel? Phases are total, "), "{error}");
        assert!(parse_budget("usrspace=1s").unwrap_err().contains("did you mean userspace?"));
        assert!(parse_budget("total").is_err() && parse_budget("total=0").is_err());
        assert_eq!((distance("", "abc"), distance("abd", "abc"), distance("xabc", "abc")), (3, 1, 1));
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
        assert_eq!(parse_span("2s..5"), Ok(Span { from: seconds(2), to: seconds(5) }));
        assert_eq!(parse_span("..5"), Ok(Span { from: None, to: seconds(5) }));
        assert_eq!(parse_span(".."), Ok(Span::default()));
        assert!(parse_span("5..2").is_err());
        assert!(parse_span("5").is_err());
    }

    #[test]
    fn rates_are_bounded() {
        assert_eq!(parse_rate("997.5"), Ok(997.5));
        for wrong in ["0", "-5", "inf", "60000", "1k", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }
}
