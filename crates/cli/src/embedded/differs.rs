//! What a running control plane was started with, beside what this command was given: settings that need a restart are said,
//! never silently ignored. What was taken out of a settings file is a difference. A variable of the environment that is missing is none:
//! it may have been set for the one command that started the control plane.

use super::Holder;
use super::Orders;
use crate::settings::{PROJECT_FILE, Settings};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Of the environment, what a control plane takes over and this module shows.
const CONTAINMENT: &str = "REPL_CONTAINMENT";
const RUNNER_BINARY: &str = "REPL_RUNNER_BINARY";
/// What it takes over and may be secret: only that it differs is shown. `SSH_AUTH_SOCK` is not compared, because each terminal has
/// another one; `repl doctor` says when the control plane's is gone.
const HIDDEN: [&str; 2] = ["OPENAI_", "OTEL_"];
/// Names that no setting has: the user's own files that were read, and the words of [`given`] that stood in them.
const FILES: &str = "(files)";
const WORDS: &str = "(words of files)";

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
    all.extend(inherited(std::env::vars_os()));
    all.extend(understood(&orders.tables));
    all.insert(FILES.to_owned(), lines(own(&orders.files).map(|path| path.display().to_string())));
    all.insert(WORDS.to_owned(), lines(orders.in_files.iter().cloned()));
    all
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join("\n")
}

/// A project's file says nothing of a control plane.
fn own(files: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    files.iter().filter(|path| path.file_name().is_none_or(|name| name != PROJECT_FILE))
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
    let given = given(settings);
    let mut differences = differences(&given, &holder.settings);
    // Another version may have other defaults.
    if holder.version == env!("CARGO_PKG_VERSION") {
        differences.extend(taken_away(&given, &understood(&settings.tables), &settings.files, &holder.settings));
    }
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
    all.extend(inherited(std::env::vars_os()));
    all.extend(written(&settings.tables));
    all
}

/// Settings of the running control plane that stood in files and stand there no longer. `tables` has all defaults. A command that reads
/// other files than the one that started the control plane knows nothing of them.
fn taken_away(
    given: &BTreeMap<String, String>,
    tables: &BTreeMap<String, String>,
    files: &[PathBuf],
    now: &BTreeMap<String, String>,
) -> Vec<String> {
    let Some(read) = now.get(FILES) else { return Vec::new() };
    let is_known = |path: &str| files.iter().any(|own| own == Path::new(path)) || !Path::new(path).exists();
    if !read.lines().all(is_known) {
        return Vec::new();
    }
    let words = now.get(WORDS).map_or("", String::as_str);
    let is_word = |name: &str| words.lines().any(|word| word == name);
    let missing = now.iter().filter(|(name, _)| !given.contains_key(*name));
    let missing = missing.filter_map(|(name, value)| match name.contains('.') {
        true if tables.get(name) != Some(value) => Some((name, value, tables.get(name))),
        false if is_word(name) => Some((name, value, None)),
        _ => None,
    });
    missing
        .map(|(name, value, instead)| format!("{name} = {} (now: {value})", instead.map_or("not set", String::as_str)))
        .collect()
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

/// Variables that a control plane takes over from the command that starts it, as far as they decide what it does.
fn inherited(variables: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let shown = |(name, value): (OsString, OsString)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok().filter(|value| !value.is_empty())?);
        let is_hidden = HIDDEN.iter().any(|family| name.starts_with(family));
        match name.as_str() {
            CONTAINMENT | RUNNER_BINARY => Some((name, value)),
            _ if is_hidden => Some((name, format!("hidden, {}", &blake3::hash(value.as_bytes()).to_hex()[..8]))),
            _ => None,
        }
    };
    variables.filter_map(shown).collect()
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
            files: vec![PathBuf::from("/"), PathBuf::from("/srv/repl.toml")],
            in_files: vec!["tls_cert".into()],
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
    fn what_was_taken_out_of_a_file_is_named() {
        let map = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let tables = |text: &str| understood(&text.parse().unwrap());
        let mut now = tables("[prices]\nlocal = '0.5'\nother = '2'");
        now.extend(map(&[("listen", "a:1"), ("log", "debug"), (FILES, "/\n/gone/config.toml"), (WORDS, "listen")]));
        let check = |given: &[(&str, &str)], text: &str, files: &[&str]| {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            taken_away(&map(given), &tables(text), &files, &now)
        };
        let whole = "[prices]\nlocal = '0.5'\nother = '2'";
        assert_eq!(check(&[("listen", "a:1")], whole, &["/"]), [""; 0]);
        assert_eq!(check(&[("listen", "a:2")], whole, &["/"]), [""; 0], "another value is told as one that was given");
        assert_eq!(check(&[], whole, &["/"]), ["listen = not set (now: a:1)"], "`log` was said by the environment");
        let gone = check(&[("listen", "a:1")], "[prices]\nlocal = '0.5'", &["/"]);
        assert_eq!(gone, ["prices.other = not set (now: 2)"]);
        assert_eq!(
            check(&[], "", &["/elsewhere"]),
            [""; 0],
            "it was started with a file that this command does not read"
        );
    }

    #[test]
    fn of_the_environment_what_may_be_secret_is_only_compared() {
        let read = |name: &str, value: &str| inherited([(name.into(), value.into())].into_iter());
        let (one, other) = (read("OPENAI_API_KEY", "sk-one"), read("OPENAI_API_KEY", "sk-other"));
        let said = differences(&one, &other).concat();
        assert!(said.starts_with("OPENAI_API_KEY = hidden, ") && !said.contains("sk-"), "{said}");
        assert_eq!(differences(&one, &one), [""; 0]);
        assert_eq!(read("REPL_RUNNER_BINARY", "/r")["REPL_RUNNER_BINARY"], "/r");
        for (name, value) in [("SSH_AUTH_SOCK", "/s"), ("PATH", "/bin"), ("OPENAI_MODEL", "")] {
            assert_eq!(read(name, value), BTreeMap::new(), "{name}");
        }
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
