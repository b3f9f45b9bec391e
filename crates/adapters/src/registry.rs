//! The kinds of providers and their settings: turns the tables `[providers.NAME]` into providers. Reads settings only; it starts
//! nothing and asks no provider anything.

use crate::local::{LocalProvider, LocalSettings};
use crate::provider::Provider;
use crate::ssh::{self, SshProvider, SshSettings, Target};
use model::Credits;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The provider that exists without any setting, and its kind.
pub const LOCAL: &str = "local";
/// Hosts that are reached by ssh.
pub const SSH: &str = "ssh";
const KINDS: &[&str] = &[LOCAL, SSH];
/// A provider's name is part of paths, of pools and of messages.
const LONGEST_NAME: usize = 32;
/// Hosts of one provider, and machines on one of them.
const MOST_HOSTS: usize = 256;
const MOST_SLOTS: i64 = 256;

/// All `[providers.NAME]` tables. The provider `local` is always among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, ProviderTable>")]
pub struct Providers(BTreeMap<String, ProviderTable>);

/// One table: the kind of the provider, and keys that only this kind understands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderTable {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
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
    Ssh(SshTable),
}

/// Keys of `kind = "local"`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LocalTable {
    /// As many instances as the host has cores unless set.
    max_instances: Option<i64>,
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
                Arc::new(LocalProvider::new(settings))
            }
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
                known: std::iter::once("kind".to_owned()).chain(quoted).collect(),
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
        Host { home: "/h".into(), exe: "/bin/repl".into() }
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
        assert_eq!(made["local"].price(&Default::default()), crate::local::DEFAULT_PRICE);
        assert_eq!(providers(json!({})), providers(json!({ "local": {} })));
        assert_eq!(providers(json!({})), providers(json!({ "local": { "kind": "local" } })));
    }

    #[test]
    fn keys_and_prices_reach_the_provider_of_their_name() {
        let tables = json!({ "local": { "max_instances": 3 }, "second": { "kind": "local", "max_instances": 5 } });
        let made = made(tables, &[("second", "2")]).unwrap();
        let is = |name: &str| (made[name].capabilities().max_instances, made[name].price(&Default::default()));
        assert_eq!((is("local"), is("second")), ((3, crate::local::DEFAULT_PRICE), (5, Credits::whole(2))));
        assert_eq!(made["second"].name(), "second");
        let machine = crate::Handle("repl-v2a1b2c3-9ix-1h2i".to_owned());
        let places = ["local", "second"].map(|name| made[name].workdir_path(&machine, "work_1"));
        assert_ne!(places[0], places[1], "two providers share no folder");
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
        check(json!({ "a": { "kind": "locl" } }), unknown("providers.a.kind", "kind", "locl", &["local", "ssh"]));
        let keys = ["kind", "max_instances"];
        check(json!({ "local": { "max_instnces": 1 } }), unknown("providers.local", "key", "max_instnces", &keys));
        let prices = made(json!({}), &[("locl", "1")]).err().unwrap();
        assert_eq!(prices, unknown("prices", "provider", "locl", &["local"]));
    }

    #[test]
    fn a_wrong_value_is_refused_by_its_full_name() {
        for (tables, says) in [
            (json!({ "local": { "max_instances": 0 } }), "providers.local.max_instances: must be at least 1"),
            (json!({ "local": { "max_instances": "x" } }), "providers.local.max_instances: invalid type: string \"x\""),
            (json!({ "gpu": {} }), "providers.gpu.kind: is missing: one of local, ssh"),
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
