//! A control plane of the bench's own: in a temporary home, with real runners and keepers, and nothing left of it afterwards,
//! however the bench ends.

use crate::complaint::{Complaint, Done};
use crate::control_plane::new_key;
use crate::embedded;
use crate::settings::Settings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use wire::client::{ANSWER_WITHIN, Client, Method};

/// Runs of a bench are never stopped by their org's balance.
const PLENTY: i64 = 1_000_000_000_000_000;
/// A run of a bench that has not ended by then never will.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// How a control plane of the bench differs from the usual one.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    pub machines: usize,
    /// Writes that share a commit; the usual number unless set.
    pub group: Option<usize>,
    pub database: Option<String>,
}

pub struct Plane {
    pub home: Home,
    pub client: Client,
    pub pid: i32,
}

/// A folder, and all processes that use it.
pub struct Home(tempfile::TempDir);

impl Home {
    pub fn new() -> Done<Home> {
        // Short: a socket's path is.
        let made = tempfile::Builder::new().prefix("rb").tempdir();
        made.map(Home).map_err(|error| Complaint::usage(format!("no temporary folder: {error}")).fix("set TMPDIR"))
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    pub fn database(&self) -> PathBuf {
        self.path().join("remuda.db")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Twice: who starts a process while we look is found by the second look.
        for _ in 0..2 {
            for pid in who_knows(self.path()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

impl Plane {
    pub async fn start(setup: &Setup) -> Done<Plane> {
        Plane::start_in(Home::new()?, setup).await
    }

    /// Over whatever a rehearsal or an earlier one has left in the home.
    pub async fn start_in(home: Home, setup: &Setup) -> Done<Plane> {
        let group = setup.group.map_or(String::new(), |group| format!("[store]\ngroup = {group}\n"));
        let tables = format!(
            "[money]\nfirst_topup = {PLENTY}\n[tools]\nallow = [\"127.0.0.1\"]\n[providers.local]\nmax_instances = {}\n{group}",
            setup.machines.max(1)
        );
        let settings = Settings {
            home: home.path().to_owned(),
            url: None,
            url_from: None,
            tokens: Default::default(),
            logins: None,
            run: Default::default(),
            unasked: Vec::new(),
            database: setup.database.clone(),
            blobs: setup.database.as_ref().map(|_| format!("file:{}", home.path().join("blobs").display())),
            listen: None,
            log: Some("warn".into()),
            tables: tables.parse().expect("these tables are well formed"),
            files: Vec::new(),
            in_files: Vec::new(),
            tls_cert: None,
            tls_key: None,
            ca_cert: None,
            public_url: None,
        };
        let (holder, _) = embedded::ensure(&settings).await?;
        let client = client(&settings, &holder)?;
        Ok(Plane { home, client, pid: holder.pid })
    }

    pub fn exe() -> Done<PathBuf> {
        std::env::current_exe().map_err(|error| Complaint::usage(format!("cannot find this program: {error}")))
    }

    /// The id of a new run.
    pub async fn submit(&self, command: &str) -> Done<String> {
        submit(&self.client, command).await
    }

    /// Returns when the run has ended.
    pub async fn end_of(&self, run: &str) -> Done<()> {
        let followed = async {
            let mut log = self.client.events(&format!("/api/v1/runs/{run}/logs"), None).await?;
            while log.next().await?.is_some() {}
            Ok::<(), wire::client::ClientError>(())
        };
        tokio::time::timeout(ENDS_WITHIN, followed)
            .await
            .map_err(|_| Complaint::refused(format!("run {run} has not ended")))??;
        Ok(())
    }

    /// Starts every machine there may be, and returns when all wait for work.
    pub async fn warm_up(&self, machines: usize) -> Done<()> {
        let mut runs = Vec::new();
        for _ in 0..machines {
            runs.push(self.submit("sleep 0.5").await?);
        }
        for run in runs {
            self.end_of(&run).await?;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    /// What it has counted, by name and labels.
    pub async fn counts(&self) -> Done<Counts> {
        let text = self.client.request(Method::GET, "/metrics").within(ANSWER_WITHIN).send().await?.bytes().await?;
        let text = String::from_utf8_lossy(&text);
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
        Ok(Counts(samples.filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?))).collect()))
    }
}

pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// All samples whose name begins so.
    pub fn sum(&self, start: &str) -> u64 {
        self.0.iter().filter(|(name, _)| name.starts_with(start)).map(|(_, count)| count).sum()
    }
    pub fn commits(&self) -> u64 {
        self.sum("remuda_store_commits_total")
    }
    pub fn reads(&self) -> u64 {
        self.sum("remuda_store_reads_total")
    }
}

pub async fn submit(client: &Client, command: &str) -> Done<String> {
    let body = serde_json::json!({ "commands": [command], "start": true });
    let request = client.request(Method::POST, "/api/v1/runs").header("idempotency-key", &new_key()?).json(&body);
    let run: serde_json::Value = request.within(ANSWER_WITHIN).send().await?.json().await?;
    Ok(run["id"].as_str().unwrap_or_default().to_owned())
}

fn client(settings: &Settings, holder: &embedded::Holder) -> Done<Client> {
    let path = settings.home.join("token");
    let token = std::fs::read_to_string(&path).map_err(|error| Complaint::file("read", &path, &error))?;
    Ok(Client::new(&format!("unix:{}", holder.socket.display()), Some(token.trim()))?)
}

/// All other processes that have the folder in their command line or as their working directory.
pub fn who_knows(folder: &Path) -> Vec<i32> {
    let needle = folder.as_os_str().as_encoded_bytes();
    let me = std::process::id() as i32;
    let knows = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.windows(needle.len()).any(|part| part == needle)
            || std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    };
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != me).filter(knows).collect()
}
