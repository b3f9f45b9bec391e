//! How large a machine a run asks for: processors, memory, disk and GPUs, and whether a machine is large enough.

use super::{MIN_MEMORY_BYTES, check};
use crate::Refused;
use serde::{Deserialize, Serialize};

/// What [`Gpu::parse`] takes, for those who describe it.
pub const GPU_PATTERN: &str =
    r"^(([1-9]|[1-5][0-9]|6[0-4])|[A-Za-z0-9._-]*[A-Za-z._-][A-Za-z0-9._-]*(:([1-9]|[1-5][0-9]|6[0-4]))?)$";
/// More are on no machine.
pub const MAX_GPUS: i64 = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Of the machine. How much of it a job uses is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<i64>,
}

/// GPUs of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gpu {
    /// Part of its model's name, e.g. `a100`; any kind without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub count: i64,
}

impl Gpu {
    /// `a100`, `a100:2` or `2`, as `--gpu` takes it.
    pub fn parse(text: &str) -> Result<Gpu, String> {
        let wrong = || format!("`{text}` is not KIND[:N], e.g. a100, a100:2, or 2 of any kind");
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| number.to_string() == text);
        let (kind, count) = match text.split_once(':') {
            Some((kind, count)) => (Some(kind), number(count).ok_or_else(wrong)?),
            None => number(text).map_or((Some(text), 1), |count| (None, count)),
        };
        if kind.is_some_and(|kind| kind.bytes().all(|byte| byte.is_ascii_digit())) {
            return Err(wrong());
        }
        let gpu = Gpu { kind: kind.map(str::to_owned), count };
        gpu.check().map_err(|_| wrong())?;
        Ok(gpu)
    }

    fn check(&self) -> Result<(), Refused> {
        let is_word = |kind: &String| {
            (1..=64).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        check(
            self.kind.as_ref().is_none_or(is_word),
            "gpu",
            "its kind must be 1 to 64 letters, digits, `-`, `_` or `.`, e.g. a100",
        )?;
        check((1..=MAX_GPUS).contains(&self.count), "gpu", format!("must be 1 to {MAX_GPUS} of them, e.g. a100:2"))
    }

    /// Whether these are enough for what is asked: as many, and of that kind.
    pub fn satisfies(&self, asked: &Gpu) -> bool {
        let kind = match (&self.kind, &asked.kind) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(have), Some(want)) => have.to_ascii_lowercase().contains(&want.to_ascii_lowercase()),
        };
        kind && self.count >= asked.count
    }
}

impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "{kind}:{}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

impl Resources {
    pub(super) fn check(&self) -> Result<(), Refused> {
        let enough = |bytes: Option<i64>| bytes.is_none_or(|bytes| bytes >= MIN_MEMORY_BYTES);
        check(self.cpu_milli.is_none_or(|milli| milli > 0), "cpu", "must be positive, e.g. 2 or 0.5")?;
        check(enough(self.memory_bytes), "memory", "must be at least 4MB, e.g. 512MB or 2GB")?;
        check(enough(self.disk_bytes), "disk", "must be at least 4MB, e.g. 20GB")?;
        self.gpu.as_ref().map_or(Ok(()), Gpu::check)
    }

    /// Whether a machine made for `self` is large enough for `asked`. A machine made for nothing in particular has the host's whole.
    pub fn satisfies(&self, asked: &Resources) -> bool {
        let enough = |have: Option<i64>, want: Option<i64>| match (have, want) {
            (_, None) | (None, Some(_)) => true,
            (Some(have), Some(want)) => have >= want,
        };
        // A machine has no GPUs unless it says so.
        let gpus = match (&self.gpu, &asked.gpu) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(have), Some(want)) => have.satisfies(want),
        };
        let disk = enough(self.disk_bytes, asked.disk_bytes);
        enough(self.cpu_milli, asked.cpu_milli) && enough(self.memory_bytes, asked.memory_bytes) && disk && gpus
    }
}

impl std::fmt::Display for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cpu = self.cpu_milli.map(|milli| match milli {
            1000 => "1 core".to_owned(),
            _ => format!("{} cores", show_cpu(milli)),
        });
        let memory = self.memory_bytes.map(|bytes| format!("{} of memory", show_memory(bytes)));
        let gpus = self.gpu.as_ref().map(|gpu| match (&gpu.kind, gpu.count) {
            (Some(kind), count) => format!("{count} × {kind}"),
            (None, 1) => "1 GPU".to_owned(),
            (None, count) => format!("{count} GPUs"),
        });
        let disk = self.disk_bytes.map(|bytes| format!("{} of disk", show_memory(bytes)));
        let parts: Vec<String> = cpu.into_iter().chain(memory).chain(disk).chain(gpus).collect();
        f.write_str(if parts.is_empty() { "as much as there is" } else { "" })?;
        f.write_str(&parts.join(" and "))
    }
}

/// `2`, `0.5`: as `--cpu` takes it.
pub fn show_cpu(milli: i64) -> String {
    (milli as f64 / 1000.0).to_string()
}

/// `512MB`, `23.4GB`: as `--memory` takes it. Rounded down, so that what is shown as available can be asked for.
pub fn show_memory(bytes: i64) -> String {
    const UNITS: [(i64, &str); 4] = [(1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    match UNITS.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}{name}", (bytes as i128 * 10 / unit as i128) as f64 / 10.0),
        None => format!("{bytes}B"),
    }
}
