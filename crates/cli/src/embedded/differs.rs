//! What a running control plane was started with, beside what this command was given: settings that need a restart are said,
//! never silently ignored. Compares only what was given here; a command that says nothing agrees with everything.

use super::Holder;
use super::Orders;
use crate::settings::Settings;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;

/// Of the environment, what runners of a control plane are started with.
const CONTAINMENT: &str = "REPL_CONTAINMENT";

/// Everything that was decided at the start, by name. Defaults are filled in, so that saying one of them is no difference.
pub fn effective(orders: &Orders) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let home = |name: &str| orders.home.join(name).display().to_string();
    let database = orders.database.clone().unwrap_or_else(|| format!("sqlite:{}", home("remuda.db")));
    all.insert("database".to_owned(), without_password(&database));
    all.insert("blobs".to_owned(), orders.blobs.clone().unwrap_or_else(|| format!("file:{}", home("blobs"))));
    all.insert("log".to_owned(), orders.log.clone().unwrap_or_else(|| "info".to_owned()));
    all.extend(orders.listen.clone().map(|listen| ("listen".to_owned(), listen)));
    all.extend(orders.public_url.clone().map(|url| ("public_url".to_owned(), url)));
    all.extend(named_files([&orders.tls_cert, &orders.tls_key, &orders.ca_cert]));
    all.extend(containment().map(|choice| (CONTAINMENT.to_owned(), choice)));
    all.extend(understood(&orders.tables));
    all
}

/// The tables of a settings file, with all defaults, as a control plane reads them.
fn understood(tables: &toml::Table) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    if let Ok(config) = crate::role::config(tables)
        && let Ok(value) = serde_json::to_value(&config)
    {
        flatten("", &value, &mut all);
    }
    all
}

/// One line, once: which settings of this command wait for a restart.
pub fn tell(settings: &Settings, holder: &Holder) {
    static ONCE: Once = Once::new();
    let differences = differences(&given(settings), &holder.settings);
    if !differences.is_empty() {
        ONCE.call_once(|| {
            eprintln!("repl: takes effect after `repl control stop`: {}", differences.join(", "));
        });
    }
}

fn given(settings: &Settings) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let words = [
        ("blobs", &settings.blobs),
        ("listen", &settings.listen),
        ("log", &settings.log),
        ("public_url", &settings.public_url),
    ];
    all.extend(words.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))));
    all.extend(settings.database.as_ref().map(|url| ("database".to_owned(), without_password(url))));
    all.extend(named_files([&settings.tls_cert, &settings.tls_key, &settings.ca_cert]));
    all.extend(containment().map(|choice| (CONTAINMENT.to_owned(), choice)));
    all.extend(written(&settings.tables));
    all
}

/// Files of TLS by their setting. A changed file is read again without a restart, another name is not.
fn named_files(paths: [&Option<PathBuf>; 3]) -> impl Iterator<Item = (String, String)> {
    let named = ["tls_cert", "tls_key", "ca_cert"].into_iter().zip(paths);
    named.filter_map(|(name, path)| Some((name.to_owned(), path.as_ref()?.display().to_string())))
}

/// What stands in the tables, without defaults. One value may be written in several ways: `2.50` is `2.5`.
fn written(tables: &toml::Table) -> BTreeMap<String, String> {
    let mut written = BTreeMap::new();
    if let Ok(value) = serde_json::to_value(tables) {
        flatten("", &value, &mut written);
    }
    let mut understood = understood(tables);
    for (name, text) in &mut written {
        if let Some(value) = understood.remove(name) {
            *text = value;
        }
    }
    written
}

/// `now` is empty when the settings of the running control plane are not recorded.
fn differences(given: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let differs = given.iter().filter(|(name, value)| !now.is_empty() && now.get(*name) != Some(value));
    differs
        .map(|(name, value)| {
            let now = now.get(name).map_or("not set", String::as_str);
            format!("{name} = {value} (now: {now})")
        })
        .collect()
}

fn containment() -> Option<String> {
    std::env::var(CONTAINMENT).ok().filter(|choice| !choice.is_empty())
}

fn flatten(at: &str, value: &serde_json::Value, all: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let name = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                flatten(&name, value, all);
            }
        }
        serde_json::Value::Null => {}
        serde_json::Value::String(text) => drop(all.insert(at.to_owned(), text.clone())),
        other => drop(all.insert(at.to_owned(), other.to_string())),
    }
}

/// A database's address as it may be written down and shown.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (rest, _) = rest.split_once('?').unwrap_or((rest, "")); // a password may stand there too
    match rest.rsplit_once('@') {
        Some((user, place)) => format!("{scheme}://{}@{place}", user.split_once(':').map_or(user, |(user, _)| user)),
        None => format!("{scheme}://{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let started = Orders {
            home: PathBuf::from("/h"),
            database: None,
            blobs: None,
            listen: None,
            log: None,
            tls_cert: Some(PathBuf::from("/h/cert.pem")),
            tls_key: Some(PathBuf::from("/h/key.pem")),
            ca_cert: None,
            public_url: None,
            tables: "[prices]\nlocal = '0.5'".parse().unwrap(),
            files: Vec::new(),
            restored: false,
        };
        let now = effective(&started);
        let check = |given: &[(&str, &str)]| {
            let given = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            differences(&given, &now)
        };
        assert!(check(&[]).is_empty(), "a command that says nothing agrees");
        assert!(check(&[("prices.local", "0.5"), ("database", "sqlite:/h/remuda.db"), ("log", "info")]).is_empty());
        assert!(check(&[("holds.default_debug_hold_ms", "300000")]).is_empty(), "a default that is said");
        assert!(check(&[("providers.local.kind", "local")]).is_empty(), "the kind that it has anyway");
        assert_eq!(check(&[("prices.local", "2")]), ["prices.local = 2 (now: 0.5)"]);
        assert_eq!(check(&[("listen", "127.0.0.1:1")]), ["listen = 127.0.0.1:1 (now: not set)"]);
        assert!(check(&[("tls_cert", "/h/cert.pem"), ("tls_key", "/h/key.pem")]).is_empty());
        assert_eq!(check(&[("tls_cert", "/h/new.pem")]), ["tls_cert = /h/new.pem (now: /h/cert.pem)"]);
        assert_eq!(check(&[("tls_key", "/h/new.pem")]), ["tls_key = /h/new.pem (now: /h/key.pem)"]);
        assert_eq!(check(&[("ca_cert", "/h/ca.pem")]), ["ca_cert = /h/ca.pem (now: not set)"]);
        let unknown = BTreeMap::new();
        assert!(differences(&now, &unknown).is_empty(), "started by a version that wrote nothing down");
    }

    #[test]
    fn a_price_is_the_same_however_it_is_written() {
        let tables = |price: &str| -> toml::Table {
            format!("[llm.m]\nbase_url = 'http://a/v1'\n[llm.m.models.x]\ncontext = 1000\ninput_price = {price}")
                .parse()
                .unwrap()
        };
        let now = understood(&tables("'2.50'"));
        assert_eq!(now["llm.m.models.x.input_price"], "2.5");
        assert_eq!(differences(&written(&tables("2.5")), &now), [""; 0]);
        let other = differences(&written(&tables("3")), &now);
        assert_eq!(other, ["llm.m.models.x.input_price = 3 (now: 2.5)"]);
    }

    #[test]
    fn a_password_is_never_written_down() {
        for (url, shown) in [
            ("postgres://ada:secret@db/x?sslmode=require&password=p", "postgres://ada@db/x"),
            ("postgres://ada:a@b@db/x", "postgres://ada@db/x"),
            ("postgres://db/x", "postgres://db/x"),
            ("sqlite:/a/b.db", "sqlite:/a/b.db"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
