//! The kinds of providers and their settings: turns the tables `[providers.NAME]` into providers. Reads settings only; it starts
//! nothing and asks no provider anything.

use crate::exec::{ExecProvider, ExecSettings};
use crate::local::{LocalProvider, LocalSettings};
use crate::provider::{Capabilities, Provider, Reach};
use crate::ssh::{self, SshProvider, SshSettings, Target};
use model::Credits;
use model::provider_row::MOST_SLOTS;
use model::spec::{Gpu, OnLostControl, SandboxAsked};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The provider that exists without any setting, and its kind.
pub const LOCAL: &str = "local";
/// Each of its calls is a program of the control plane's host.
pub const EXEC: &str = "exec";
/// Hosts that are reached by ssh.
pub const SSH: &str = "ssh";
const KINDS: &[&str] = &[EXEC, LOCAL, SSH];
/// How long one of its calls may take, unless its table says so.
const EXEC_TIMEOUT_MS: i64 = 5 * model::time::MINUTE;
/// As many machines as a program is asked for at once, unless its table says so.
const EXEC_INSTANCES: i64 = 10;
/// A provider's name is part of paths, of pools and of messages.
const LONGEST_NAME: usize = 32;
/// Hosts of one provider, and machines on one of them.
const MOST_HOSTS: usize = 256;

/// All `[providers.NAME]` tables. The provider `local` is always among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, ProviderTable>")]
pub struct Providers(BTreeMap<String, ProviderTable>);

/// One table: the kind of the provider, and keys that only this kind understands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only these orgs may use it, by name; every org without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub orgs: Option<Vec<String>>,
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}

/// What the control plane's process tells every provider that it makes.
#[derive(Debug, Clone)]
pub struct Host {
    /// The control plane's own folder.
    pub home: PathBuf,
    /// Started as `exe runner --dir DIR`.
    pub exe: PathBuf,
    /// Whether this host can make sandboxes; otherwise why not.
    pub can_sandbox: fn() -> Result<(), String>,
    /// Beside `home`: the database, the blobs, settings files. No job in a sandbox sees them.
    pub hidden: Vec<PathBuf>,
}

/// A setting that cannot be used. The caller words it; `setting` is its full name, e.g. `providers.local.max_instances`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadSetting {
    /// A word that must be one of a list is not in it.
    Unknown {
        setting: String,
        what: &'static str,
        word: String,
        known: Vec<String>,
    },
    Wrong {
        setting: String,
        why: String,
    },
}

/// The keys of a provider, read and checked.
#[derive(Debug)]
enum ProviderSettings {
    Local(LocalTable),
    Exec(Box<ExecTable>),
    Ssh(SshTable),
}

/// Keys of `kind = "local"`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LocalTable {
    /// As many instances as the host has cores unless set.
    max_instances: Option<i64>,
    /// Whether a plain task runs in a sandbox unless it says so itself.
    sandbox: Option<SandboxAsked>,
}

/// Keys of `kind = "exec"`. What a program can do is for its owner to say; nothing is taken for granted, and its machines cost money.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ExecTable {
    /// The program and its first arguments.
    exec: Vec<String>,
    regions: Vec<String>,
    max_instances: Option<i64>,
    timeout_ms: Option<i64>,
    /// `host`: its runners are processes of this host; `public`: they dial `public_url`.
    reach: Option<String>,
    user: Option<String>,
    bills: Option<bool>,
    spot: bool,
    /// Credits per hour of a spot machine, as decimal text.
    spot_price: Option<String>,
    /// As `KIND:N`.
    gpus: Vec<String>,
    sees_runner: bool,
    restarts_runner: bool,
    remembers_names: bool,
    keeps_workdirs: bool,
}

/// Keys of `kind = "ssh"`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SshTable {
    /// `[USER@]HOST[:PORT]` each.
    hosts: Vec<String>,
    /// A private key; else what the user's ssh config and agent offer.
    identity: Option<PathBuf>,
    /// In place of the user's own file.
    known_hosts: Option<PathBuf>,
    /// The key of a host that is met for the first time is accepted and kept in `REPL_HOME/ssh/known_hosts`.
    accept_host_key: bool,
    /// Machines at once on each host; 1 unless set.
    slots: Option<i64>,
    /// On hosts, in place of `~/.repl`.
    dir: Option<String>,
}

impl Default for Providers {
    fn default() -> Providers {
        Providers::from(BTreeMap::new())
    }
}

impl From<BTreeMap<String, ProviderTable>> for Providers {
    fn from(mut tables: BTreeMap<String, ProviderTable>) -> Providers {
        tables.entry(LOCAL.to_owned()).or_default().kind.get_or_insert_with(|| LOCAL.to_owned());
        Providers(tables)
    }
}

impl Providers {
    /// Checks every table that names its kind. One file may leave the kind to another file: [`make`](Self::make) demands it.
    pub fn check(&self) -> Result<(), BadSetting> {
        for (name, table) in &self.0 {
            check_name(name)?;
            if table.kind.is_some() {
                read(name, table)?;
            }
        }
        Ok(())
    }

    pub fn tables(&self) -> &BTreeMap<String, ProviderTable> {
        &self.0
    }

    /// The providers by name. `prices` has credits per instance-hour, by the name of the provider.
    pub fn make(
        &self,
        prices: &BTreeMap<String, String>,
        host: &Host,
    ) -> Result<BTreeMap<String, Arc<dyn Provider>>, BadSetting> {
        if let Some(name) = prices.keys().find(|name| !self.0.contains_key(*name)) {
            let known = self.0.keys().cloned().collect();
            return Err(BadSetting::Unknown { setting: "prices".into(), what: "provider", word: name.clone(), known });
        }
        let mut made = BTreeMap::new();
        for (name, table) in &self.0 {
            check_name(name)?;
            let price = prices.get(name).map(|text| price(name, text)).transpose()?;
            made.insert(name.clone(), read(name, table)?.make(name, price, host));
        }
        Ok(made)
    }
}

/// One provider, from one table. Prices of those that are made so may come later than the table: an unknown name is fine.
pub fn make_one(
    name: &str,
    table: &ProviderTable,
    price_per_hour: Option<&str>,
    host: &Host,
) -> Result<Arc<dyn Provider>, BadSetting> {
    check_name(name)?;
    let price = price_per_hour.map(|text| price(name, text)).transpose()?;
    Ok(read(name, table)?.make(name, price, host))
}

/// The kinds that a table may name.
pub fn kinds() -> &'static [&'static str] {
    KINDS
}

impl ProviderSettings {
    fn make(self, name: &str, price: Option<Credits>, host: &Host) -> Arc<dyn Provider> {
        match self {
            ProviderSettings::Local(table) => {
                // Machines of two providers never share a folder: each counts the living ones in its own.
                let folder = if name == LOCAL { "instances".to_owned() } else { format!("instances-{name}") };
                let mut settings = LocalSettings::new(host.home.join(folder), &host.exe);
                settings.name = name.to_owned();
                settings.max_instances = table.max_instances.unwrap_or(settings.max_instances);
                settings.price_per_hour = price.unwrap_or(settings.price_per_hour);
                settings.sandbox = table.sandbox.and_then(SandboxAsked::sandbox);
                settings.can_sandbox = host.can_sandbox;
                settings.hidden = host.hidden.iter().chain([&host.home]).cloned().collect();
                Arc::new(LocalProvider::new(settings))
            }
            ProviderSettings::Exec(table) => Arc::new(ExecProvider::new(exec(*table, name, price, host))),
            ProviderSettings::Ssh(table) => {
                let hosts = table.hosts.iter().filter_map(|host| Target::parse(host).ok()).collect();
                let set = std::env::var_os(ssh::BINARY_VARIABLE).map(PathBuf::from);
                let mut settings = SshSettings::new(name, hosts, ssh::Binary::choose(set.as_deref(), &host.exe));
                settings.slots = table.slots.unwrap_or(settings.slots);
                settings.price_per_hour = price.unwrap_or(settings.price_per_hour);
                let accepted = table.accept_host_key.then(|| host.home.join("ssh").join("known_hosts"));
                let (identity, known_hosts, dir) = (table.identity, table.known_hosts, table.dir);
                settings.way = ssh::SshWay { identity, known_hosts, accepted, dir };
                Arc::new(SshProvider::new(settings))
            }
        }
    }
}

fn read(name: &str, table: &ProviderTable) -> Result<ProviderSettings, BadSetting> {
    let kind = || format!("providers.{name}.kind");
    match table.kind.as_deref() {
        Some(LOCAL) => {
            let local: LocalTable = keys(name, table)?;
            match local.max_instances {
                Some(max) if max < 1 => Err(BadSetting::Wrong {
                    setting: format!("providers.{name}.max_instances"),
                    why: "must be at least 1".to_owned(),
                }),
                _ => Ok(ProviderSettings::Local(local)),
            }
        }
        Some(EXEC) => {
            let table: ExecTable = keys(name, table)?;
            check_exec(name, &table)?;
            Ok(ProviderSettings::Exec(Box::new(table)))
        }
        Some(SSH) => read_ssh(name, keys(name, table)?),
        Some(other) => Err(BadSetting::Unknown {
            setting: kind(),
            what: "kind",
            word: other.to_owned(),
            known: KINDS.iter().map(|kind| kind.to_string()).collect(),
        }),
        None => Err(BadSetting::Wrong { setting: kind(), why: format!("is missing: one of {}", KINDS.join(", ")) }),
    }
}

fn check_exec(name: &str, table: &ExecTable) -> Result<(), BadSetting> {
    let wrong = |key: &str, why: &str| {
        Err(BadSetting::Wrong { setting: format!("providers.{name}.{key}"), why: why.to_owned() })
    };
    if table.exec.first().is_none_or(|program| program.is_empty()) {
        return wrong("exec", "names no program: write it like [\"/opt/machines\", \"--zone\", \"b\"]");
    }
    if table.max_instances.is_some_and(|max| max < 1) {
        return wrong("max_instances", "must be at least 1");
    }
    if table.timeout_ms.is_some_and(|ms| ms < 1) {
        return wrong("timeout_ms", "must be positive");
    }
    if table.reach.as_deref().is_some_and(|reach| !["host", "public"].contains(&reach)) {
        return wrong("reach", "must be host or public");
    }
    if let Some(gpu) = table.gpus.iter().find(|gpu| Gpu::parse(gpu).is_err()) {
        return wrong("gpus", &format!("`{gpu}` is not KIND:N, e.g. a100:2"));
    }
    match &table.spot_price {
        Some(text) if text.parse::<Credits>().is_err() => wrong("spot_price", &format!("`{text}` are no credits")),
        _ => Ok(()),
    }
}

fn exec(table: ExecTable, name: &str, price: Option<Credits>, host: &Host) -> ExecSettings {
    let bills = table.bills.unwrap_or(true);
    let price = price.unwrap_or(Credits::ZERO);
    let capabilities = Capabilities {
        regions: if table.regions.is_empty() { vec![name.to_owned()] } else { table.regions },
        max_instances: table.max_instances.unwrap_or(EXEC_INSTANCES),
        keeps_workdirs: table.keeps_workdirs,
        bills,
        sees_runner: table.sees_runner,
        restarts_runner: table.restarts_runner,
        remembers_names: table.remembers_names,
        spot: table.spot,
        gpus: table.gpus.iter().filter_map(|gpu| Gpu::parse(gpu).ok()).collect(),
        default_on_lost_control: if bills { OnLostControl::Stop } else { OnLostControl::Finish },
        user: table.user.unwrap_or_else(|| "ubuntu".to_owned()),
        ..Capabilities::default()
    };
    ExecSettings {
        env: BTreeMap::new(),
        name: name.to_owned(),
        exec: table.exec,
        folder: host.home.clone(),
        timeout: Duration::from_millis(table.timeout_ms.unwrap_or(EXEC_TIMEOUT_MS) as u64),
        capabilities,
        reach: if table.reach.as_deref() == Some("host") { Reach::Host } else { Reach::Public },
        price_per_hour: price,
        spot_price: table.spot_price.and_then(|text| text.parse().ok()).unwrap_or(price),
    }
}

fn read_ssh(name: &str, table: SshTable) -> Result<ProviderSettings, BadSetting> {
    let wrong = |key: &str, why: String| Err(BadSetting::Wrong { setting: format!("providers.{name}.{key}"), why });
    if table.hosts.is_empty() || table.hosts.len() > MOST_HOSTS {
        return wrong("hosts", format!("1 to {MOST_HOSTS} of the form USER@HOST[:PORT]"));
    }
    for (number, host) in table.hosts.iter().enumerate() {
        if let Err(why) = Target::parse(host) {
            return wrong("hosts", why);
        }
        if table.hosts[..number].contains(host) {
            return wrong("hosts", format!("`{host}` stands there twice"));
        }
    }
    if table.slots.is_some_and(|slots| !(1..=MOST_SLOTS).contains(&slots)) {
        return wrong("slots", format!("1 to {MOST_SLOTS}"));
    }
    for (key, path) in [("identity", &table.identity), ("known_hosts", &table.known_hosts)] {
        let plain = |path: &PathBuf| path.to_str().is_some_and(|path| !path.contains(['"', '\n', '%']));
        if path.as_ref().is_some_and(|path| !path.is_absolute() || !plain(path)) {
            return wrong(key, "is an absolute path without quotes and `%`".to_owned());
        }
    }
    match table.dir.as_deref().map(ssh::check_dir) {
        Some(Err(why)) => wrong("dir", why),
        _ => Ok(ProviderSettings::Ssh(table)),
    }
}

/// The keys as the kind's own type.
fn keys<T: DeserializeOwned>(name: &str, table: &ProviderTable) -> Result<T, BadSetting> {
    let read = serde_path_to_error::deserialize(Value::Object(table.keys.clone()));
    read.map_err(|error| {
        let path = error.path().to_string();
        let said = error.into_inner().to_string();
        let mut quoted = said.split('`').skip(1).step_by(2).map(str::to_owned);
        // serde names the unknown field first, then the known ones.
        match quoted.next().filter(|_| said.starts_with("unknown field")) {
            Some(word) => BadSetting::Unknown {
                setting: format!("providers.{name}"),
                what: "key",
                word,
                known: ["kind", "orgs"].map(str::to_owned).into_iter().chain(quoted).collect(),
            },
            None => BadSetting::Wrong { setting: format!("providers.{name}.{path}"), why: said },
        }
    })
}

fn price(name: &str, text: &str) -> Result<Credits, BadSetting> {
    let price = text.parse::<Credits>();
    price.map_err(|error| BadSetting::Wrong { setting: format!("prices.{name}"), why: error.to_string() })
}

fn check_name(name: &str) -> Result<(), BadSetting> {
    let is_fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_fine) {
        return Ok(());
    }
    Err(BadSetting::Wrong {
        setting: format!("providers.{name}"),
        why: format!("a provider's name is 1 to {LONGEST_NAME} characters of a-z, 0-9 and -"),
    })
}

impl std::fmt::Display for BadSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadSetting::Unknown { setting, what, word, .. } => write!(f, "{setting}: unknown {what} `{word}`"),
            BadSetting::Wrong { setting, why } => write!(f, "{setting}: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn providers(tables: Value) -> Providers {
        serde_json::from_value(tables).unwrap()
    }

    fn host() -> Host {
        Host { home: "/h".into(), exe: "/bin/repl".into(), can_sandbox: || Ok(()), hidden: Vec::new() }
    }

    fn made(tables: Value, prices: &[(&str, &str)]) -> Result<BTreeMap<String, Arc<dyn Provider>>, BadSetting> {
        let prices = prices.iter().map(|(name, price)| (name.to_string(), price.to_string())).collect();
        providers(tables).make(&prices, &host())
    }

    #[test]
    fn without_settings_there_is_the_local_provider() {
        let made = made(json!({}), &[]).unwrap();
        let names: Vec<_> = made.iter().map(|(name, provider)| (name.as_str(), provider.name())).collect();
        assert_eq!(names, [("local", "local")]);
        assert_eq!(made["local"].price(&Default::default(), "local", false), crate::local::DEFAULT_PRICE);
        assert_eq!(providers(json!({})), providers(json!({ "local": {} })));
        assert_eq!(providers(json!({})), providers(json!({ "local": { "kind": "local" } })));
    }

    #[test]
    fn keys_and_prices_reach_the_provider_of_their_name() {
        let tables = json!({ "local": { "max_instances": 3 }, "second": { "kind": "local", "max_instances": 5 } });
        let made = made(tables, &[("second", "2")]).unwrap();
        let is = |name: &str| {
            (made[name].capabilities().max_instances, made[name].price(&Default::default(), "local", false))
        };
        assert_eq!((is("local"), is("second")), ((3, crate::local::DEFAULT_PRICE), (5, Credits::whole(2))));
        assert_eq!(made["second"].name(), "second");
        let machine = crate::Handle("repl-v2a1b2c3-9ix-1h2i".to_owned());
        let places = ["local", "second"].map(|name| made[name].workdir_path(&machine, "work_1"));
        assert_ne!(places[0], places[1], "two providers share no folder");
    }

    #[test]
    fn a_sandbox_is_the_default_where_the_settings_say_so() {
        use model::spec::{Network, Sandbox};
        for (asked, expected) in [
            (json!(null), None),
            (json!(false), None),
            (json!(true), Some(Network::Host)),
            (json!({ "network": "none" }), Some(Network::None)),
        ] {
            let made = made(json!({ "local": { "sandbox": asked } }), &[]).unwrap();
            let expected = expected.map(|network| Sandbox { network, only_models: false });
            assert_eq!(made["local"].default_sandbox(), expected, "{asked}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        let unknown = |setting: &str, what, word: &str, known: &[&str]| BadSetting::Unknown {
            setting: setting.into(),
            what,
            word: word.into(),
            known: known.iter().map(|known| known.to_string()).collect(),
        };
        let check = |tables: Value, expected: BadSetting| {
            assert_eq!(providers(tables.clone()).check().unwrap_err(), expected, "{tables}");
        };
        check(
            json!({ "a": { "kind": "locl" } }),
            unknown("providers.a.kind", "kind", "locl", &["exec", "local", "ssh"]),
        );
        let keys = ["kind", "orgs", "max_instances", "sandbox"];
        check(json!({ "local": { "max_instnces": 1 } }), unknown("providers.local", "key", "max_instnces", &keys));
        let prices = made(json!({}), &[("locl", "1")]).err().unwrap();
        assert_eq!(prices, unknown("prices", "provider", "locl", &["local"]));
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_full_name() {
        for (tables, says) in [
            (json!({ "local": { "max_instances": 0 } }), "providers.local.max_instances: must be at least 1"),
            (json!({ "local": { "max_instances": "x" } }), "providers.local.max_instances: invalid type: string \"x\""),
            (json!({ "local": { "sandbox": "on" } }), "providers.local.sandbox: must be true, false or {network: "),
            (
                json!({ "local": { "sandbox": { "network": "lan" } } }),
                "providers.local.sandbox: must be true, false or",
            ),
            (json!({ "gpu": {} }), "providers.gpu.kind: is missing: one of exec, local, ssh"),
            (json!({ "../x": { "kind": "local" } }), "providers.../x: a provider's name is"),
            (json!({ "": { "kind": "local" } }), "providers.: a provider's name is"),
            (json!({ "lab": { "kind": "ssh" } }), "providers.lab.hosts: 1 to 256"),
            (json!({ "lab": { "kind": "ssh", "hosts": ["-x"] } }), "providers.lab.hosts: `-x` is not USER@HOST"),
            (json!({ "lab": { "kind": "ssh", "hosts": ["a", "a"] } }), "providers.lab.hosts: `a` stands there twice"),
            (json!({ "lab": { "kind": "ssh", "hosts": ["a"], "slots": 0 } }), "providers.lab.slots: 1 to 256"),
            (
                json!({ "lab": { "kind": "ssh", "hosts": ["a"], "identity": "k" } }),
                "providers.lab.identity: is an absolute",
            ),
            (json!({ "lab": { "kind": "ssh", "hosts": ["a"], "dir": "/a b" } }), "providers.lab.dir: is an absolute"),
            (
                json!({ "lab": { "kind": "ssh", "hosts": ["a"], "dir": "/a/../b" } }),
                "providers.lab.dir: is an absolute",
            ),
        ] {
            let said = made(tables, &[]).err().unwrap().to_string();
            assert!(said.starts_with(says), "{said}");
        }
        let price = made(json!({}), &[("local", "free")]).err().unwrap().to_string();
        assert!(price.starts_with("prices.local: "), "{price}");
        // One file may leave the kind to another.
        providers(json!({ "gpu": { "anything": 1 } })).check().unwrap();
    }
}
