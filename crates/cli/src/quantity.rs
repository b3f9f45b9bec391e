//! Amounts as people write them on a command line or in a run file: sizes, processors, variables.

use wire::model::Credits;
use wire::model::time::parse_duration;

/// `512MB`, `2G`, `1.5Gi`, `1GiB`: however the unit is written, it is a power of 1024.
pub fn memory(text: &str) -> Result<i64, String> {
    let bad = || format!("`{text}` is not a size: write it like 512MB or 2GB");
    let text = text.trim();
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
    parse_duration(text).map_err(|error| error.to_string())
}

/// A positive amount of credits, kept as the text that travels.
pub fn credits(text: &str) -> Result<String, String> {
    let amount: Credits = text.parse().map_err(|error: wire::model::credits::BadCredits| error.to_string())?;
    if amount.is_zero() { Err("must be more than nothing, e.g. 5 or 0.25".into()) } else { Ok(amount.to_string()) }
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
    fn variables_come_with_their_value_or_take_ours() {
        let env = |name: &str| (name == "HERE").then(|| "yes".to_owned());
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(variable("A=b=c", &env), pair("A", "b=c"));
        assert_eq!(variable("HERE", &env), pair("HERE", "yes"));
        assert_eq!(variable("A=", &env), pair("A", ""));
        assert!(variable("GONE", &env).is_err() && variable("=x", &env).is_err());
    }
}
