//! Times as people write them in `wait: {until: …}`: RFC 3339 in UTC. Pure arithmetic on the calendar; nothing asks what time it is.

use model::Timestamp;
use model::time::{DAY, HOUR, MINUTE, SECOND};

/// `2030-01-31T08:00:00Z`, with an optional fraction of a second.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let (date, time) = text.trim().strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let fraction = if fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit()) {
        format!("{fraction:0<3}")
    } else {
        return None;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let in_month = *days.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if !(1..=in_month).contains(&day) || hour > 23 || minute > 59 || second > 59 || year < 1970 {
        return None;
    }
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - 477; // 477 until the end of 1969
    let in_year: i64 = days[..month as usize - 1].iter().sum();
    let date = ((year - 1970) * 365 + leap_days + in_year + day - 1) * DAY;
    let millis: i64 = fraction.get(..3)?.parse().ok()?;
    Some(Timestamp(date + hour * HOUR + minute * MINUTE + second * SECOND + millis))
}

fn numbers<const N: usize>(text: &str, by: char, digits: [usize; N]) -> Option<[i64; N]> {
    let parts: Vec<&str> = text.split(by).collect();
    let mut numbers = [0; N];
    for ((number, part), digits) in numbers.iter_mut().zip(&parts).zip(digits) {
        if part.len() != digits || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    (parts.len() == N).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_utc() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-03-01T00:00:00Z", 951_868_800_000),
            ("2024-02-29T12:34:56.789Z", 1_709_210_096_789),
            ("2030-01-31T08:00:00.5Z", 1_896_076_800_500),
        ] {
            assert_eq!(parse_time(text), Some(Timestamp(ms)), "{text}");
        }
        for text in [
            "",
            "2030-02-30T00:00:00Z",
            "2030-01-01",
            "2030-01-01T24:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-1-01T00:00:00Z",
            "2030-01-01T00:00:00",
            "2030-01-01T00:00:00.Z0Z",
            "2030-00-01T00:00:00Z",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
