//! The settings of a control-plane process. Numbers that contradict each other are refused at start.

use engine::adapters::call::{Adapters, Own, local};
use engine::adapters::registry::{BadSetting, Host, Providers};
use engine::adapters::{ExecProvider, Notifier, Provider};
use engine::execution::Executor;
use engine::{ControlUrls, ProviderSet, ProviderSettings};
use model::feature::FeatureSettings;
use model::{Failure, Refused, Trouble};
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

/// What works on this machine and what is missing. The argument is the data folder.
pub type Doctor = fn(&std::path::Path) -> Vec<wire::api::Finding>;

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
    /// Where runners on other machines reach this control plane. Without `socket` those of this host dial it too.
    pub public_url: Option<String>,
    /// A PEM file with the authorities that runners trust beside those of their system.
    pub ca_cert: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    /// Of one person, on that person's machine: its tools may reach what the person could, and it ends when nothing is left to do.
    pub embedded: bool,
    pub role: Role,
    pub config: Config,
    /// What is started as `exe runner --dir DIR`.
    pub exe: PathBuf,
    /// Whether this host can make sandboxes; otherwise why not.
    pub can_sandbox: fn() -> Result<(), String>,
    /// Looks at this machine as `repl doctor` does.
    pub doctor: Doctor,
    /// The settings files that were read: no job in a sandbox sees them.
    pub files: Vec<PathBuf>,
    /// The database is an older copy: what is made from now on is numbered above whatever was made after it.
    pub restored: bool,
}

/// The tables of a settings file that the control plane reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub holds: model::hold::HoldLimits,
    pub timings: engine::config::Timings,
    pub escalation: model::recovery::EscalationLimits,
    pub worker: engine::config::WorkerLimits,
    pub orphans: model::orphan::OrphanLimits,
    pub manifests: model::manifest::Retention,
    /// Scripts that prepare machines, by the names that runs use.
    pub features: model::feature::Features,
    pub calls: engine::config::Calls,
    pub money: engine::config::Money,
    pub logs: model::log::LogLimits,
    pub limits: model::Limits,
    pub providers: Providers,
    /// Credits per instance-hour as decimal text, by the name of the provider.
    pub prices: BTreeMap<String, String>,
    pub store: StoreConfig,
    /// Servers of models, by the name that steps use.
    pub llm: BTreeMap<String, engine::adapters::tool::llm::LlmSettings>,
    pub tools: crate::tools::ToolsConfig,
    pub notify: NotifyConfig,
    pub pages: crate::pages::PagesConfig,
}

/// What is started for each new ticket and approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NotifyConfig {
    /// A program and its arguments, started without a shell in the home folder. It reads the question as JSON.
    pub exec: Vec<String>,
    /// How long it may take.
    pub timeout_ms: i64,
}

impl Default for NotifyConfig {
    fn default() -> NotifyConfig {
        NotifyConfig { exec: Vec::new(), timeout_ms: 30 * model::time::SECOND }
    }
}

/// How the database is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// Writes that may share one commit on SQLite; 1 gives each its own.
    pub group: Option<usize>,
}

impl Settings {
    pub(crate) fn engine_config(&self) -> engine::Config {
        let Config {
            holds,
            timings,
            money,
            logs,
            limits,
            escalation,
            worker,
            orphans,
            manifests,
            features,
            mut calls,
            tools,
            ..
        } = self.config.clone();
        calls.adapters.get_or_insert_with(|| self.usual_adapters());
        let tool_prices = tools.prices;
        engine::Config {
            holds,
            timings,
            money,
            logs,
            limits,
            escalation,
            worker,
            orphans,
            manifests,
            features,
            calls,
            tool_prices,
        }
    }

    /// A person's own control plane executes the adapters that are installed beside it; a server only its own, unless its owner lists more.
    fn usual_adapters(&self) -> Vec<String> {
        vec![if self.embedded { "dml-exec-*".to_owned() } else { "dml-exec-repl".to_owned() }]
    }

    /// How calls of functions are executed by this process.
    pub(crate) fn executor(&self) -> Result<Executor, Failure> {
        let calls = self.engine_config().calls;
        let own = Own::running(&[local::NAME], Vec::new());
        let own = own.map_err(|error| Trouble::internal(format!("where is this program? {error}")))?;
        let adapters = Adapters { own: Some(own), ..Adapters::new(calls.adapters.unwrap_or_default()) };
        Ok(Executor { adapters, exchange: calls.exchange.unwrap_or_else(|| self.home.join("exchange")) })
    }

    pub(crate) fn notifier(&self) -> Result<Option<(Notifier, i64)>, Failure> {
        let NotifyConfig { exec, timeout_ms } = &self.config.notify;
        if exec.first().is_some_and(|program| program.is_empty()) {
            return Err(Refused::invalid("notify.exec", "the first word names a program, and is empty").into());
        }
        if *timeout_ms <= 0 {
            return Err(Refused::invalid("notify.timeout_ms", "must be positive").into());
        }
        Ok(Notifier::new(exec, self.home.clone()).map(|notifier| (notifier, *timeout_ms)))
    }

    pub(crate) fn providers(&self) -> Result<ProviderSet, Failure> {
        let mut hidden = self.files.clone();
        hidden.extend(self.blobs().ok());
        hidden.extend(self.tls.iter().map(|tls| tls.key.clone()));
        if let Ok(engine::Database::File(path)) = self.database() {
            // SQLite keeps the newest commits in files beside it.
            hidden.extend(["", "-wal", "-shm"].map(|ending| PathBuf::from(format!("{}{ending}", path.display()))));
        }
        let host = Host { home: self.home.clone(), exe: self.exe.clone(), can_sandbox: self.can_sandbox, hidden };
        let settings =
            ProviderSettings { tables: self.config.providers.clone(), prices: self.config.prices.clone(), host };
        let set = ProviderSet::new(settings).map_err(|bad| refused(&bad))?;
        Ok(set.with_listers(self.listers()))
    }

    /// The programs of features that list what those have made elsewhere.
    fn listers(&self) -> BTreeMap<String, Arc<dyn Provider>> {
        let lister = |(name, it): (&String, &FeatureSettings)| {
            let name = format!("features.{name}");
            let passed = it.pass.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?)));
            let env = it.env.clone().into_iter().chain(passed).collect();
            let lister = ExecProvider::lister(&name, it.list.clone(), env, self.home.clone());
            (name, Arc::new(lister) as Arc<dyn Provider>)
        };
        self.config.features.iter().filter(|(_, it)| !it.list.is_empty()).map(lister).collect()
    }

    /// What runners dial. A process that is not alone with its database has no socket.
    pub(crate) fn control_urls(&self, listening: Option<&str>) -> Result<ControlUrls, Failure> {
        let public = self.public_url.clone();
        let host = match (&self.socket, &public, listening, &self.listen) {
            (Some(socket), ..) => format!("unix:{}", socket.display()),
            (None, Some(public), ..) => public.clone(),
            (None, None, Some(url), _) => url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:"),
            (None, None, None, Some(url)) if url.contains("://") => url.clone(),
            (None, None, None, Some(listen)) => format!("http://{listen}"),
            (None, None, None, None) => {
                let why = "a server needs an address for its runners, e.g. --listen 127.0.0.1:7780";
                return Err(Refused::invalid("listen", why).into());
            }
        };
        Ok(ControlUrls { host, public })
    }

    pub(crate) fn database(&self) -> Result<engine::Database, Failure> {
        if let Some(path) = self.database.strip_prefix("sqlite:") {
            return Ok(engine::Database::File(absolute(path)));
        }
        if self.database.starts_with("postgres://") || self.database.starts_with("postgresql://") {
            return Ok(engine::Database::Postgres(self.database.clone()));
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

fn refused(bad: &BadSetting) -> Refused {
    match bad {
        BadSetting::Unknown { setting, what, word, known } => {
            Refused::invalid(setting, format!("unknown {what} `{word}`: known are {}", known.join(", ")))
        }
        BadSetting::Wrong { setting, why } => Refused::invalid(setting, why),
    }
}

fn absolute(path: &str) -> PathBuf {
    std::path::absolute(Path::new(path)).unwrap_or_else(|_| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(socket: Option<&str>, public_url: Option<&str>, listen: Option<&str>) -> Settings {
        Settings {
            home: "/h".into(),
            database: "sqlite:/h/remuda.db".into(),
            blobs: None,
            listen: listen.map(str::to_owned),
            tls: None,
            public_url: public_url.map(str::to_owned),
            ca_cert: None,
            socket: socket.map(PathBuf::from),
            embedded: false,
            role: Role::All,
            config: Config::default(),
            exe: "/proc/self/exe".into(),
            can_sandbox: || Ok(()),
            doctor: |_| Vec::new(),
            files: Vec::new(),
            restored: false,
        }
    }

    #[test]
    fn a_server_executes_its_own_adapter_and_a_persons_control_plane_what_is_installed() {
        let usual = |embedded| Settings { embedded, ..settings(Some("/s"), None, None) }.engine_config().calls.adapters;
        assert_eq!(usual(false), Some(vec!["dml-exec-repl".to_owned()]));
        assert_eq!(usual(true), Some(vec!["dml-exec-*".to_owned()]));
        let mut listed = settings(Some("/s"), None, None);
        listed.config.calls.adapters = Some(vec!["dml-exec-words".to_owned()]);
        assert_eq!(listed.engine_config().calls.adapters, Some(vec!["dml-exec-words".to_owned()]));
    }

    #[test]
    fn runners_of_this_host_dial_the_socket_and_others_the_public_url() {
        let public = Some("https://remuda.example");
        for (socket, listen, public, listening, host) in [
            (Some("/s"), None, None, None, "unix:/s"),
            (Some("/s"), None, public, Some("http://127.0.0.1:1"), "unix:/s"),
            (None, None, public, Some("https://127.0.0.1:1"), "https://remuda.example"),
            (None, None, None, Some("http://0.0.0.0:1"), "http://127.0.0.1:1"),
            (None, Some("10.0.0.5:1"), None, None, "http://10.0.0.5:1"),
            (None, Some("https://a.example"), None, None, "https://a.example"),
        ] {
            let urls = settings(socket, public, listen).control_urls(listening).unwrap();
            assert_eq!(urls, ControlUrls { host: host.to_owned(), public: public.map(str::to_owned) });
        }
        assert!(settings(None, None, None).control_urls(None).unwrap_err().to_string().contains("listen"));
    }

    #[test]
    fn a_price_of_an_unknown_provider_is_refused() {
        let mut settings = settings(Some("/s"), None, None);
        settings.config.prices.insert("gpu".into(), "2".into());
        let failure = settings.providers().err().unwrap().to_string();
        assert_eq!(failure, "prices: unknown provider `gpu`: known are local");
    }
}
