//! Numbers with units for people.

use std::time::Duration;

/// Formats bytes: `512 MiB`, `1.5 GiB`, `17 bytes`.
pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (name, shift) in UNITS {
        if n >> shift > 0 {
            let tenths = (u128::from(n) * 10 + (1 << (shift - 1))) >> shift;
            return match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole} {name}"),
                (whole, _) if whole >= 100 => format!("{whole} {name}"),
                (whole, tenth) => format!("{whole}.{tenth} {name}"),
            };
        }
    }
    format!("{n} {}", if n == 1 { "byte" } else { "bytes" })
}

/// Formats a duration in s like [`duration`]; `0 ns` for an invalid one: below zero, not a number, or too
/// long.
pub fn seconds(s: f64) -> String {
    duration(Duration::try_from_secs_f64(s).unwrap_or_default())
}

/// Formats a duration: `850 us`, `12.3 ms`, `4.25 s`, `2 min 05 s`, `1 h 02 min`.
pub fn duration(d: Duration) -> String {
    let ns = d.as_nanos();
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}.{} ms", ns / 1_000_000, ns / 100_000 % 10),
        _ => up_to_hours(d),
    }
}

/// Formats a short time to three digits, for columns: `512 ns`, `9.12 us`, `12.3 ms`, `1.23 s`.
pub fn brief(ns: u64) -> String {
    const UNITS: [&str; 3] = ["us", "ms", "s"];
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
    let mut value = ns as f64 / 1e3;
    let mut unit = 0;
    // A value that would be rounded to 1000 belongs to the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn up_to_hours(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0..100 => format!("{:.2} s", d.as_secs_f64()),
        100..3_600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3_600, s / 60 % 60),
    }
}

/// Formats a clock for a line that is redrawn: `0:07`, `12:34`, `1:02:03`.
pub fn clock(d: Duration) -> String {
    let s = d.as_secs();
    match s / 3_600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        hours => format!("{hours}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

/// Returns the nearest whole number: 0 for a negative one and for no number, the greatest for a greater one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
pub fn rounded(number: f64) -> u64 {
    number.round() as u64
}

/// Formats a count with thousands separated: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Formats a count of something in words: `1 sample`, `2 samples`.
pub fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats a rate: `998 Hz`, `1.5 kHz`, `0.5 Hz`.
pub fn rate(hz: f64) -> String {
    if !hz.is_finite() || hz < 0.0 {
        "-".to_owned()
    } else if hz >= 9_999.5 {
        format!("{:.1} kHz", hz / 1_000.0)
    } else if hz >= 9.95 {
        format!("{hz:.0} Hz")
    } else {
        format!("{hz:.1} Hz")
    }
}

/// Formats a fraction in per cent, for a column of 6: `12.3 %`. A value that is too small to show is `<0.1
/// %`.
pub fn percent(fraction: f64) -> String {
    if !fraction.is_finite() {
        "-".to_owned()
    } else if fraction > 0.0 && fraction < 0.000_5 {
        "<0.1 %".to_owned()
    } else {
        format!("{:.1} %", fraction * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_the_right_unit() {
        let cases = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (512 << 20, "512 MiB"),
            ((256 << 30) + (900 << 20), "256 GiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn durations_in_the_right_unit() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (7_000, "7 us"),
            (12_345_678, "12.3 ms"),
            (4_250_000_000, "4.25 s"),
            (125_000_000_000, "2 min 05 s"),
            (3_720_000_000_000, "1 h 02 min"),
        ];
        for (ns, text) in cases {
            assert_eq!(duration(Duration::from_nanos(ns)), text);
        }
        assert_eq!(clock(Duration::from_secs(754)), "12:34");
        assert_eq!(clock(Duration::from_secs(3_723)), "1:02:03");
    }

    #[test]
    fn brief_times_have_three_digits() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (999_600, "1.00 ms"),
            (12_345_678, "12.3 ms"),
            (1_234_000_000, "1.23 s"),
            (4_321_000_000_000, "4321 s"),
        ];
        for (ns, text) in cases {
            assert_eq!(brief(ns), text);
        }
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "sample"), "1 sample");
        assert_eq!(percent(0.0), "0.0 %");
        assert_eq!(percent(0.000_1), "<0.1 %");
        assert_eq!(percent(1.0), "100.0 %");
        assert_eq!(percent(f64::NAN), "-");
        assert_eq!(rate(997.6), "998 Hz");
        assert_eq!(rate(0.5), "0.5 Hz");
        assert_eq!(rate(12_345.0), "12.3 kHz");
    }
}
