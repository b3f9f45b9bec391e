//! Points in time for people: how long ago, how long yet, and UTC to the second. The one place here that asks the clock.

use std::time::{SystemTime, UNIX_EPOCH};
use wire::model::time::{DAY, civil_date, show_duration};

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// `3m ago`; one unit is enough for a listing.
pub fn ago(at: i64) -> String {
    format!("{} ago", first_unit(now_ms().saturating_sub(at)))
}

/// `for 4m`, or that it is over.
pub fn until(at: i64) -> String {
    let left = at.saturating_sub(now_ms());
    if left > 0 { format!("for {}", show_duration(left.saturating_add(999) / 1000 * 1000)) } else { "over".to_owned() }
}

fn first_unit(ms: i64) -> String {
    let text = show_duration(ms.max(0) / 1000 * 1000);
    let first = text.split(' ').next().unwrap_or(&text);
    // Tenths of a second are noise here.
    match first.split_once('.') {
        Some((whole, _)) => format!("{whole}s"),
        None => {
            if first == "0ms" {
                "0s".to_owned()
            } else {
                first.to_owned()
            }
        }
    }
}

/// `2026-11-15 08:30:05Z`.
pub fn clock(at: i64) -> String {
    let (year, month, day) = civil_date(at.div_euclid(DAY));
    let seconds = at.rem_euclid(DAY) / 1000;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// The first moment of a civil date in UTC; none if there is no such day.
pub fn midnight(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) {
        return None;
    }
    // As in `civil_date`, the year begins in March.
    let from_march = (month + 9) % 12;
    let year_of_march = year - i64::from(month <= 2);
    let era = year_of_march.div_euclid(400);
    let of_era = year_of_march.rem_euclid(400);
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    (civil_date(days) == (year, month, day)).then_some(days * DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_with_date() {
        let table = [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400_000, "2000-02-29 00:00:00Z"),
            (1_709_164_799_999, "2024-02-28 23:59:59Z"),
            (1_794_731_405_000, "2026-11-15 08:30:05Z"),
            (4_107_542_400_000, "2100-03-01 00:00:00Z"),
        ];
        for (at, text) in table {
            assert_eq!(clock(at), text);
        }
    }

    #[test]
    fn no_time_is_too_far_away() {
        for at in [i64::MIN, -1, 0, i64::MAX] {
            assert!(!ago(at).is_empty() && !until(at).is_empty() && clock(at).ends_with('Z'), "{at}");
        }
    }

    #[test]
    fn one_unit_is_enough() {
        for (ms, text) in [(0, "0s"), (-5, "0s"), (1999, "1s"), (65_000, "1m"), (9_000_000, "2h")] {
            assert_eq!(first_unit(ms), text);
        }
    }
}
