//! Numbers with units, as a user types them.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Longest time that is accepted, s: a year is beyond any run and far from overflow.
const LONGEST_S: f64 = 366.0 * 86_400.0;

/// Fault of a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeError {
    /// It does not look like a time.
    Malformed,
    /// Its unit is not known.
    UnknownUnit(String),
    /// It is longer than a year.
    TooLong,
    /// It is shorter than a nanosecond, and not 0.
    TooShort,
    /// It is 0.
    Zero,
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = "write it like 20s, 500ms, 2m or 1h";
        match self {
            Self::Malformed => f.write_str(advice),
            Self::UnknownUnit(unit) => write!(f, "{unit:?} is not a unit of time: {advice}"),
            Self::TooLong => f.write_str("the most is a year"),
            Self::TooShort => f.write_str("it is too short"),
            Self::Zero => f.write_str("it has to be more than 0"),
        }
    }
}

impl Error for TimeError {}

/// Parses a time like `20s`, `500ms`, `2m`, `1h` or plain seconds.
///
/// # Errors
/// It is not a time, or not one of a year at most.
pub fn time(text: &str) -> Result<Duration, TimeError> {
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(TimeError::UnknownUnit(unit.to_owned())),
    };
    let seconds = decimal(number).ok_or(TimeError::Malformed)? * factor;
    if seconds > LONGEST_S {
        return Err(TimeError::TooLong);
    }
    let time = Duration::from_secs_f64(seconds);
    if time.is_zero() && seconds > 0.0 { Err(TimeError::TooShort) } else { Ok(time) }
}

/// Parses a time that is not 0.
///
/// # Errors
/// As of [`time`], or it is 0.
pub fn positive_time(text: &str) -> Result<Duration, TimeError> {
    time(text).and_then(|time| if time.is_zero() { Err(TimeError::Zero) } else { Ok(time) })
}

/// Splits `1.5 GiB` into its number and its unit, neither of them checked.
pub fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Parses a plain decimal number: no sign, no exponent, no "inf".
pub fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(time(" 1.5 h"), Ok(Duration::from_secs(5400)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert_eq!(positive_time("0"), Err(TimeError::Zero));
        assert_eq!(time("0.1ns"), Err(TimeError::TooShort));
        assert_eq!(time("400000h"), Err(TimeError::TooLong));
        assert_eq!(time("1 day"), Err(TimeError::UnknownUnit("day".to_owned())));
        for malformed in ["", "s", "1.2.3s", "1e3 s", "-1s"] {
            assert!(time(malformed).is_err(), "{malformed}");
        }
    }
}
