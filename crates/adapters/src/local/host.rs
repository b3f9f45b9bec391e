//! What this host has for its machines: cores, and memory as far as a control group around us lets us have it.

use model::host::HostFacts;
use model::spec::{Gpu, Resources};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::time::Duration;

const GROUPS: &str = "/sys/fs/cgroup";
const NVIDIA: &str = "/proc/driver/nvidia/gpus";
/// Asked where the driver's folder is not visible, as in most containers. It may hang on a broken driver.
const NVIDIA_SMI: &[&str] = &["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"];
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Those that this process may use: affinity and cpu quota are taken into account.
pub fn cores() -> i64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as i64)
}

pub fn size() -> Resources {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let installed = installed(&read("/proc/meminfo"));
    let allowed = allowed(Path::new(GROUPS), &read("/proc/self/cgroup"));
    Resources {
        cpu_milli: Some(cores() * 1000),
        memory_bytes: installed.into_iter().chain(allowed).min(),
        disk_bytes: None,
        gpu: gpus(Path::new(NVIDIA)),
    }
}

/// The same for who chooses among several hosts.
pub async fn facts() -> HostFacts {
    let size = size();
    let mut gpus = models(Path::new(NVIDIA));
    if gpus.is_empty() {
        gpus = told_by(NVIDIA_SMI).await;
    }
    HostFacts {
        architecture: nix::sys::utsname::uname()
            .map_or_else(|_| std::env::consts::ARCH.to_owned(), |name| name.machine().to_string_lossy().into_owned()),
        os_release: super::platform_of_host().map_or_else(|| "linux".to_owned(), |platform| platform.os_release),
        cpu_milli: size.cpu_milli,
        memory_bytes: size.memory_bytes,
        gpus,
        no_sandbox: None,
    }
}

/// What the driver says of its GPUs; a host with several kinds is said to have the first.
fn gpus(folder: &Path) -> Option<Gpu> {
    let mut models = models(folder);
    models.sort();
    let first = models.first()?.clone();
    let count = models.iter().filter(|model| **model == first).count() as i64;
    Some(Gpu { kind: Some(first), count })
}

/// The model of each, in the order of their places on the bus: so `CUDA_DEVICE_ORDER=PCI_BUS_ID` numbers them.
fn models(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let model = |folder: &PathBuf| {
        let told = read_to_string(folder.join("information")).ok()?;
        told.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned()))
    };
    folders.iter().filter_map(model).collect()
}

/// One model a line, in the same order. A host without such a program has none.
async fn told_by(words: &[&str]) -> Vec<String> {
    let mut command = tokio::process::Command::new(words[0]);
    let told = command.args(&words[1..]).stdin(std::process::Stdio::null()).kill_on_drop(true).output();
    match tokio::time::timeout(TOLD_WITHIN, told).await {
        Ok(Ok(told)) if told.status.success() => {
            let lines = String::from_utf8_lossy(&told.stdout).into_owned();
            lines.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
        }
        _ => Vec::new(),
    }
}

fn installed(meminfo: &str) -> Option<i64> {
    let kilobytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    kilobytes.trim().strip_suffix(" kB")?.trim().parse::<i64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// The smallest limit of the groups around this process, for both versions of control groups. In a container the path that the kernel
/// shows may not exist below the mount: then the mount is the container's own group.
fn allowed(groups: &Path, own: &str) -> Option<i64> {
    let place = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            parts.next()?.split(',').any(|named| named == controller).then(|| parts.next())?
        })
    };
    let below = |root: PathBuf, path: &str| {
        let own = root.join(path.trim_start_matches('/'));
        if own.is_dir() { own } else { root }
    };
    let v1 = place("memory").and_then(|path| {
        let stat = read_to_string(below(groups.join("memory"), path).join("memory.stat")).ok()?;
        stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit ")?.trim().parse().ok())
    });
    let v2 = place("").and_then(|path| {
        let own = below(groups.to_owned(), path);
        let around = own.ancestors().take_while(|group| group.starts_with(groups));
        around.filter_map(|group| read_to_string(group.join("memory.max")).ok()?.trim().parse().ok()).min()
    });
    [v1, v2].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, file: &str, text: &str) {
        let path = dir.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_around_us_counts() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a/memory.max", "4000\n");
        put(dir.path(), "a/b/memory.max", "max\n");
        put(dir.path(), "a/c/memory.max", "3000\n");
        assert_eq!(allowed(dir.path(), "0::/a/b\n"), Some(4000));
        assert_eq!(allowed(dir.path(), "0::/a/c\n"), Some(3000));
        assert_eq!(allowed(dir.path(), "0::/\n"), None);
        put(dir.path(), "memory/memory.stat", "cache 1\nhierarchical_memory_limit 2000\n");
        assert_eq!(allowed(dir.path(), "4:memory:/docker/1\n0::/a/b\n"), Some(2000), "seen from inside a container");
        assert_eq!(allowed(dir.path(), ""), None);
    }

    #[test]
    fn gpus_are_what_the_driver_says() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(gpus(&dir.path().join("none")), None);
        for device in ["0000:01:00.0", "0000:02:00.0"] {
            put(dir.path(), &format!("{device}/information"), "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ: 1\n");
        }
        assert_eq!(gpus(dir.path()), Some(Gpu { kind: Some("NVIDIA A100-SXM4-40GB".into()), count: 2 }));
    }

    #[test]
    fn this_host_has_something() {
        let size = size();
        assert!(size.cpu_milli >= Some(1000) && size.memory_bytes > Some(0), "{size:?}");
        assert_eq!(installed("MemFree: 1 kB\nMemTotal:        2 kB\n"), Some(2048));
    }
}
