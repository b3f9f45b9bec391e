//! Points in time and lengths of time, both in milliseconds. Never asks what time it is.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};

pub const SECOND: i64 = 1_000;
pub const MINUTE: i64 = 60 * SECOND;
pub const HOUR: i64 = 60 * MINUTE;
pub const DAY: i64 = 24 * HOUR;

/// Unix milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub fn ms(self) -> i64 {
        self.0
    }
    /// How long ago `earlier` was; never negative, because clocks step back.
    pub fn since(self, earlier: Timestamp) -> i64 {
        self.0.saturating_sub(earlier.0).max(0)
    }
    /// Its day (UTC): `2026-01-31`.
    pub fn date(self) -> String {
        let (year, month, day) = civil_date(self.0.div_euclid(DAY));
        format!("{year:04}-{month:02}-{day:02}")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}
impl Add<i64> for Timestamp {
    type Output = Timestamp;
    fn add(self, ms: i64) -> Timestamp {
        Timestamp(self.0.saturating_add(ms))
    }
}
impl Sub<i64> for Timestamp {
    type Output = Timestamp;
    fn sub(self, ms: i64) -> Timestamp {
        Timestamp(self.0.saturating_sub(ms))
    }
}

/// A span in which no control-plane process was alive: a runner's silence during it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// When a wait of `wait_ms` that began at `start` is over, with our own outages taken out.
/// `outages` are disjoint and sorted by `from`.
pub fn deadline_without(start: Timestamp, wait_ms: i64, outages: &[Outage]) -> Timestamp {
    let mut due = start + wait_ms;
    for outage in outages {
        if outage.to <= start || outage.from >= due {
            continue;
        }
        due = due + outage.to.since(outage.from.max(start));
    }
    due
}

/// The civil date of a day counted from 1970-01-01, in the proleptic Gregorian calendar.
pub fn civil_date(days: i64) -> (i64, i64, i64) {
    // Count from 0000-03-01: then the leap day is a year's last, and months follow the pattern 31 30 31 30 31.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A length of time as people write it: `90s`, `5m`, `2h30m`, `1d`, `250ms`.
pub fn parse_duration(text: &str) -> Result<i64, BadDuration> {
    let bad = || BadDuration { text: text.to_owned() };
    let (mut total, mut rest, mut last_unit) = (0i64, text.trim(), i64::MAX);
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let number: i64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit = match &rest[digits..digits + letters] {
            "ms" => 1,
            "s" => SECOND,
            "m" => MINUTE,
            "h" => HOUR,
            "d" => DAY,
            "w" => 7 * DAY,
            _ => return Err(bad()),
        };
        if unit >= last_unit {
            return Err(bad());
        }
        last_unit = unit;
        total = number.checked_mul(unit).and_then(|ms| total.checked_add(ms)).ok_or_else(bad)?;
        rest = &rest[digits + letters..];
    }
    Ok(total)
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a duration: write it like 90s, 5m, 2h30m or 1d")]
pub struct BadDuration {
    pub text: String,
}

/// The two largest units, as a person would say it: `2h 30m`, `1m 5s`, `350ms`.
pub fn show_duration(ms: i64) -> String {
    let ms = ms.max(0);
    if ms < SECOND {
        return format!("{ms}ms");
    }
    if ms < 10 * SECOND {
        return format!("{}.{}s", ms / SECOND, ms % SECOND / 100);
    }
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")];
    let first = units.iter().position(|(unit, _)| ms >= *unit).unwrap_or(3);
    let mut parts = vec![format!("{}{}", ms / units[first].0, units[first].1)];
    if let Some((unit, name)) = units.get(first + 1) {
        let left = ms % units[first].0 / unit;
        if left > 0 {
            parts.push(format!("{left}{name}"));
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        let good =
            [("90s", 90 * SECOND), ("5m", 5 * MINUTE), ("2h30m", 150 * MINUTE), ("1d", DAY), ("250ms", 250), ("0s", 0)];
        for (text, ms) in good {
            assert_eq!(parse_duration(text), Ok(ms), "{text}");
        }
        for text in ["5x", "", "-5s", "5", "m", "30m2h", "1.5h", "99999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_outage_of_ours_is_nobodys_silence() {
        let out = |from, to| Outage { from: Timestamp(from), to: Timestamp(to) };
        let due = |outages: &[Outage]| deadline_without(Timestamp(100), 50, outages).0;
        assert_eq!(due(&[]), 150);
        assert_eq!(due(&[out(0, 100)]), 150, "before the wait began");
        assert_eq!(due(&[out(90, 120)]), 170, "only the part inside counts");
        assert_eq!(
            due(&[out(110, 120), out(155, 1000)]),
            1005,
            "an outage that begins inside the longer wait counts too"
        );
        assert_eq!(due(&[out(200, 300)]), 150, "after it ended");
    }

    #[test]
    fn lengths_are_shown_in_two_units() {
        for (ms, text) in [(5, "5ms"), (1500, "1.5s"), (65_000, "1m 5s"), (9_000_000, "2h 30m"), (DAY, "1d")] {
            assert_eq!(show_duration(ms), text);
        }
    }
}
