//! Amounts as people write them on a command line or in a run file: sizes, processors, variables.

use model::time::parse_duration;
use model::{Credits, spec};

/// `512MB`, `2G`, `1.5Gi`, `1GiB`: however the unit is written, it is a power of 1024.
pub fn memory(text: &str) -> Result<i64, String> {
    let bad = || format!("`{text}` is not a size: write it like 512MB or 2GB");
    let text = text.trim();
    if is_plain_number(text) {
        return Err(format!("`{text}` has no unit: write it like {text}MB or {text}GB"));
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "k" | "kb" | "ki" | "kib" => 1,
        "m" | "mb" | "mi" | "mib" => 2,
        "g" | "gb" | "gi" | "gib" => 3,
        "t" | "tb" | "ti" | "tib" => 4,
        "b" => 0,
        _ => return Err(bad()),
    };
    let bytes = number * 1024f64.powi(power);
    if bytes.is_finite() && bytes < i64::MAX as f64 { Ok(bytes as i64) } else { Err(bad()) }
}

/// GPUs: `a100`, `a100:2`, or `2` of any kind.
pub fn gpu(text: &str) -> Result<String, String> {
    spec::Gpu::parse(text.trim()).map(|gpu| gpu.to_string())
}

/// Processors in thousandths: `2`, `0.5`, or `500m` as Kubernetes has it.
pub fn cpu(text: &str) -> Result<i64, String> {
    let bad = || format!("`{text}` is not a number of processors: write it like 2 or 0.5");
    let (number, thousandths) = match text.trim().strip_suffix('m') {
        Some(number) => (number, 1.0),
        None => (text.trim(), 1000.0),
    };
    let milli = number.parse::<f64>().map_err(|_| bad())? * thousandths;
    if (1.0..1e9).contains(&milli.round()) { Ok(milli.round() as i64) } else { Err(bad()) }
}

pub fn duration(text: &str) -> Result<i64, String> {
    parse_duration(text).map_err(|error| match text.trim() {
        zero if is_plain_number(zero) && zero.bytes().all(|digit| digit == b'0') => {
            format!("`{zero}` has no unit: write it as 0s")
        }
        number if is_plain_number(number) => {
            format!("`{number}` has no unit: write it like {number}s, {number}m or {number}h")
        }
        _ => error.to_string(),
    })
}

fn is_plain_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// How many lines, rows or the like.
pub fn count(text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number: write it like 20"))
}

/// Attempts of a run, the first included.
pub fn attempts(text: &str) -> Result<i64, String> {
    let number = text.parse().ok().filter(|number| (1..=spec::MAX_ATTEMPTS).contains(number));
    number.ok_or_else(|| {
        format!("`{text}` is not a number of attempts: write a whole number from 1 to {}", spec::MAX_ATTEMPTS)
    })
}

/// A positive amount of credits, kept as the text that travels.
pub fn credits(text: &str) -> Result<String, String> {
    let amount: Credits = text.parse().map_err(|error: model::credits::BadCredits| error.to_string())?;
    if amount.is_zero() {
        Err(format!("`{text}` is no amount: write more than nothing, like 5 or 0.25"))
    } else {
        Ok(amount.to_string())
    }
}

/// `K=V`, or `K` for the value it has here.
pub fn variable(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err(format!("`{text}` has no name before the =: write it like NAME=value")),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match env(text) {
            Some(value) => Ok((text.to_owned(), value)),
            None => Err(format!("`{text}` is not set here: write {text}=value")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_processors_read_as_people_write_them() {
        for (text, bytes) in [
            ("512MB", 512 << 20),
            ("512Mi", 512 << 20),
            ("2GB", 2 << 30),
            ("8M", 8 << 20),
            ("8MB", 8 << 20),
            ("8Mi", 8 << 20),
            ("2Gi", 2 << 30),
            ("2G", 2 << 30),
            ("1.5g", 3 << 29),
            ("7B", 7),
            ("1 KiB", 1024),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "5", "-1GB", "2XB", "GB", "1e3MB", "99999999TB"] {
            assert!(memory(text).is_err(), "{text}");
        }
        assert_eq!((cpu("2"), cpu("0.5"), cpu("250m")), (Ok(2000), Ok(500), Ok(250)));
        for text in ["0", "-1", "x", "inf", "NaN", "m", "0m", "0.0001"] {
            assert!(cpu(text).is_err(), "{text}");
        }
        assert!(credits("-1").is_err() && credits("0").is_err() && credits("0.25").is_ok());
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_write() {
        for (said, why) in [
            (duration("2"), "`2` has no unit: write it like 2s, 2m or 2h"),
            (duration("0"), "`0` has no unit: write it as 0s"),
            (duration("5x"), "`5x` is not a duration: write it like 90s, 5m, 2h30m or 1d"),
            (memory("1"), "`1` has no unit: write it like 1MB or 1GB"),
            (attempts("x"), "`x` is not a number of attempts: write a whole number from 1 to 100"),
            (attempts("0"), "`0` is not a number of attempts: write a whole number from 1 to 100"),
            (count("-1").map(|count| count as i64), "`-1` is not a whole number: write it like 20"),
        ] {
            assert_eq!(said.unwrap_err(), why);
        }
        assert_eq!((attempts("100"), count("0")), (Ok(100), Ok(0)));
    }

    #[test]
    fn variables_come_with_their_value_or_take_ours() {
        let env = |name: &str| (name == "HERE").then(|| "yes".to_owned());
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(variable("A=b=c", &env), pair("A", "b=c"));
        assert_eq!(variable("HERE", &env), pair("HERE", "yes"));
        assert_eq!(variable("A=", &env), pair("A", ""));
        assert!(variable("GONE", &env).is_err() && variable("=x", &env).is_err());
    }
}
