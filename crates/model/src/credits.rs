//! Money: `i64` micro-credits with checked arithmetic, shown as decimal credits. Never a float.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

pub const MICRO: i64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Credits(pub i64);

impl Credits {
    pub const ZERO: Credits = Credits(0);

    pub const fn whole(credits: i64) -> Credits {
        Credits(credits * MICRO)
    }
    pub fn micro(self) -> i64 {
        self.0
    }
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
    /// The price of `ms` at this hourly rate, rounded down: what is not a whole micro-credit is not charged.
    pub fn per_hour_for(self, ms: i64) -> Credits {
        let price = i128::from(self.0) * i128::from(ms.max(0)) / i128::from(crate::time::HOUR);
        Credits(price.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }
    /// How long so much lasts at this hourly rate; none where nothing costs anything.
    pub fn lasts_ms(self, hourly: Credits) -> Option<i64> {
        let price = i128::from(hourly.0).max(0);
        let ms = (i128::from(self.0.max(0)) * i128::from(crate::time::HOUR) + price - 1).checked_div(price)?;
        Some(ms.min(i128::from(i64::MAX / 2)) as i64)
    }
}

// Overflow of money is a bug, never a number: panics are caught at the transaction and nothing is written.
impl Add for Credits {
    type Output = Credits;
    fn add(self, other: Credits) -> Credits {
        Credits(self.0.checked_add(other.0).expect("credits overflow"))
    }
}
impl Sub for Credits {
    type Output = Credits;
    fn sub(self, other: Credits) -> Credits {
        Credits(self.0.checked_sub(other.0).expect("credits overflow"))
    }
}
impl Sum for Credits {
    fn sum<I: Iterator<Item = Credits>>(all: I) -> Credits {
        all.fold(Credits::ZERO, Add::add)
    }
}

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let n = self.0.unsigned_abs();
        let (whole, mut fraction, mut digits) = (n / MICRO as u64, n % MICRO as u64, 6);
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        while fraction.is_multiple_of(10) {
            (fraction, digits) = (fraction / 10, digits - 1);
        }
        write!(f, "{sign}{whole}.{fraction:0digits$}")
    }
}
impl fmt::Debug for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}cr")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an amount of credits: write a positive decimal number like 5 or 0.25")]
pub struct BadCredits {
    pub text: String,
}

impl FromStr for Credits {
    type Err = BadCredits;
    fn from_str(text: &str) -> Result<Credits, BadCredits> {
        let bad = || BadCredits { text: text.to_owned() };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 || text.ends_with('.') {
            return Err(bad());
        }
        let micro: i64 = format!("{fraction:0<6}").parse().map_err(|_| bad())?;
        let whole: i64 = whole.parse().map_err(|_| bad())?;
        whole.checked_mul(MICRO).and_then(|w| w.checked_add(micro)).map(Credits).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_read_and_show() {
        for (text, micro) in [("5", 5_000_000), ("0.25", 250_000), ("0.000001", 1), ("1000000", 1_000_000_000_000)] {
            assert_eq!(text.parse::<Credits>().unwrap(), Credits(micro));
            assert_eq!(Credits(micro).to_string(), text);
        }
        for text in ["-1", "", "1.", ".5", "1e3", "0.0000001", "99999999999999999999"] {
            assert!(text.parse::<Credits>().is_err(), "{text}");
        }
    }

    #[test]
    fn time_is_charged_by_the_millisecond_and_rounded_down() {
        let hourly = Credits(10_000);
        assert_eq!(hourly.per_hour_for(3_600_000), Credits(10_000));
        assert_eq!(hourly.per_hour_for(359), Credits(0));
        assert_eq!(hourly.per_hour_for(360), Credits(1));
        assert_eq!(
            Credits(i64::MAX).per_hour_for(i64::MAX),
            Credits(i64::MAX),
            "more than there is, never less than nothing"
        );
    }

    #[test]
    fn credits_last_until_the_millisecond_in_which_they_are_used_up() {
        for (credits, hourly) in [(2_000_000, 3_600_000_000), (1, 10_000), (10_000, 10_000), (7, 1_000_003)] {
            let (credits, hourly) = (Credits(credits), Credits(hourly));
            let ms = credits.lasts_ms(hourly).unwrap();
            assert!(hourly.per_hour_for(ms) >= credits && hourly.per_hour_for(ms - 1) < credits, "{credits:?} {ms} ms");
        }
        assert_eq!(Credits(5).lasts_ms(Credits::ZERO), None);
        assert_eq!(Credits::ZERO.lasts_ms(Credits(5)), Some(0));
    }

    proptest! {
        #[test]
        fn every_amount_reads_back(micro in 0i64..i64::MAX) {
            prop_assert_eq!(Credits(micro).to_string().parse::<Credits>().unwrap(), Credits(micro));
        }
    }
}
