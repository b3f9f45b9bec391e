//! What a control-plane process is told at its start. Defaults are the design's; a broken chain of numbers is refused at once.

use engine::adapters::{LocalProvider, LocalSettings, Provider};
use model::{Credits, Failure, Refused};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// API and worker in one process.
    All,
    Server,
    Worker,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub home: PathBuf,
    /// `sqlite:PATH` or `postgres://…`.
    pub database: String,
    /// `file:PATH`; beside the database unless set.
    pub blobs: Option<String>,
    /// Host and port for TCP.
    pub listen: Option<String>,
    /// Serves TCP over TLS.
    pub tls: Option<crate::TlsFiles>,
    /// Where runners reach this control plane, if not at `listen` or `socket`.
    pub public_url: Option<String>,
    /// A PEM file with the authorities that runners trust beside those of their system.
    pub ca_cert: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    /// Alone on one machine: makes its org and token, ends when nothing is left to do.
    pub embedded: bool,
    pub role: Role,
    pub config: Config,
    /// What is started as `exe runner --dir DIR`.
    pub exe: PathBuf,
}

/// The tables of a settings file that the control plane reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub holds: model::hold::HoldLimits,
    pub timings: engine::config::Timings,
    pub escalation: model::recovery::EscalationLimits,
    pub money: engine::config::Money,
    pub logs: model::log::LogLimits,
    pub providers: Providers,
    pub prices: Prices,
    pub store: StoreConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Providers {
    pub local: LocalConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Machines at once; as many as there are cores unless set.
    pub max_instances: Option<i64>,
}

/// How the database is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Writes that may share one commit on SQLite; 1 gives each its own.
    pub group: Option<usize>,
}

/// Credits per instance-hour, as decimal text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    pub local: Option<String>,
}

impl Settings {
    pub(crate) fn engine_config(&self) -> engine::Config {
        let Config { holds, timings, money, logs, escalation, .. } = self.config.clone();
        engine::Config { holds, timings, money, logs, escalation }
    }

    pub(crate) fn providers(&self) -> Result<BTreeMap<String, Arc<dyn Provider>>, Failure> {
        let mut local = LocalSettings::new(self.home.join("instances"), &self.exe);
        if let Some(max) = self.config.providers.local.max_instances {
            if max < 1 {
                return Err(Refused::invalid("providers.local.max_instances", "must be at least 1").into());
            }
            local.max_instances = max;
        }
        if let Some(price) = &self.config.prices.local {
            local.price_per_hour =
                price.parse::<Credits>().map_err(|e| Refused::invalid("prices.local", e.to_string()))?;
        }
        let provider: Arc<dyn Provider> = Arc::new(LocalProvider::new(local));
        Ok(BTreeMap::from([(provider.name().to_owned(), provider)]))
    }

    pub(crate) fn database(&self) -> Result<engine::store::Database, Failure> {
        if let Some(path) = self.database.strip_prefix("sqlite:") {
            return Ok(engine::store::Database::File(absolute(path)));
        }
        if self.database.starts_with("postgres://") || self.database.starts_with("postgresql://") {
            return Ok(engine::store::Database::Postgres(self.database.clone()));
        }
        Err(Refused::invalid("database", format!("`{}` must begin with sqlite: or postgres://", self.database)).into())
    }

    pub(crate) fn blobs(&self) -> Result<PathBuf, Failure> {
        match &self.blobs {
            None => Ok(self.home.join("blobs")),
            Some(place) => match place.strip_prefix("file:") {
                Some(path) => Ok(absolute(path)),
                None => Err(Refused::invalid("blobs", format!("`{place}` must begin with file:")).into()),
            },
        }
    }
}

fn absolute(path: &str) -> PathBuf {
    std::path::absolute(Path::new(path)).unwrap_or_else(|_| PathBuf::from(path))
}
