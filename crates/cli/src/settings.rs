//! Settings, weakest first: defaults, the user's file, `repl.toml` found walking up, environment, flags.
//! Reads them and says where a wrong one stands; what a table means is the business of whoever it configures.

use crate::complaint::{Complaint, Done};
use crate::nearest::suggestion;
use std::path::{Path, PathBuf};

/// Keys of a settings file that are plain words.
const KEYS: &[&str] =
    &["home", "url", "token", "database", "blobs", "listen", "log", "tls_cert", "tls_key", "ca_cert", "public_url"];
pub const PROJECT_FILE: &str = "repl.toml";

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub home: PathBuf,
    /// Another control plane than the embedded one.
    pub url: Option<String>,
    pub token: Option<String>,
    pub database: Option<String>,
    pub blobs: Option<String>,
    pub listen: Option<String>,
    pub log: Option<String>,
    /// PEM files with which a server encrypts: its certificate chain, and the key of it.
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// A PEM file with authorities that are trusted beside those of the system.
    pub ca_cert: Option<PathBuf>,
    /// Where runners on other machines reach the control plane.
    pub public_url: Option<String>,
    /// The tables of the control plane (`[holds]`, `[prices]`, …), merged.
    pub tables: toml::Table,
    /// Files that were read, for `doctor` and for messages.
    pub files: Vec<PathBuf>,
}

/// What was said on the command line; stronger than everything else.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Flags {
    /// Where the embedded control plane keeps its data [env: REPL_HOME]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Everywhere")]
    pub home: Option<PathBuf>,
    /// The control plane to talk to, instead of the embedded one [env: REPL_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Everywhere")]
    pub url: Option<String>,
}

/// The environment as a function, so that tests bring their own.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    pub fn read(flags: &Flags) -> Done<Settings> {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        Settings::read_from(flags, &|name| std::env::var(name).ok(), &cwd)
    }

    pub fn read_from(flags: &Flags, env: Env<'_>, cwd: &Path) -> Done<Settings> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let user_home = env("HOME").map(PathBuf::from);
        let under_home = |xdg: &str, fallback: &str| {
            env(xdg)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| Some(user_home.as_ref()?.join(fallback)))
        };
        let mut merged = toml::Table::new();
        let mut files = Vec::new();
        let user_file = under_home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("remuda/config.toml"));
        let project_file = cwd.ancestors().map(|dir| dir.join(PROJECT_FILE)).find(|path| path.is_file());
        for path in [user_file, project_file].into_iter().flatten() {
            if let Some(table) = read_file(&path)? {
                merge(&mut merged, table);
                files.push(path);
            }
        }
        let mut word = |key: &str, env_name: &str| {
            let from_file = merged.remove(key).and_then(|value| value.as_str().map(str::to_owned));
            env(env_name).or(from_file)
        };
        let home = word("home", "REPL_HOME").map(PathBuf::from);
        let mut file = |key: &str, env_name: &str| word(key, env_name).map(|path| cwd.join(path));
        let (tls_cert, tls_key) = (file("tls_cert", "REPL_TLS_CERT"), file("tls_key", "REPL_TLS_KEY"));
        let ca_cert = file("ca_cert", "REPL_CA_CERT");
        let settings = Settings {
            url: flags.url.clone().or_else(|| word("url", "REPL_URL")),
            token: word("token", "REPL_TOKEN"),
            database: word("database", "REPL_DATABASE"),
            blobs: word("blobs", "REPL_BLOBS"),
            listen: word("listen", "REPL_LISTEN"),
            log: word("log", "REPL_LOG"),
            tls_cert,
            tls_key,
            ca_cert,
            public_url: word("public_url", "REPL_PUBLIC_URL"),
            home: match flags
                .home
                .clone()
                .or(home)
                .or_else(|| under_home("XDG_DATA_HOME", ".local/share").map(|dir| dir.join("remuda")))
            {
                Some(home) => cwd.join(home),
                None => {
                    return Err(Complaint::usage("no place for data: neither REPL_HOME nor HOME is set")
                        .fix("set REPL_HOME to a folder of yours"));
                }
            },
            tables: merged,
            files,
        };
        Ok(settings)
    }
}

impl Settings {
    /// PEM of the authorities that are trusted beside those of the system.
    pub fn authorities(&self) -> Done<Option<String>> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| Complaint::file("read the certificates in", path, &error))
        };
        self.ca_cert.as_ref().map(read).transpose()
    }
}

/// A settings file, checked; none if it is not there.
fn read_file(path: &Path) -> Done<Option<toml::Table>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Complaint::file("read", path, &error)),
    };
    let wrong = |why: String| Complaint::usage(format!("{}: {why}", path.display()));
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| wrong(error.to_string().trim_end().to_owned()))?;
    for (key, value) in &table {
        if KEYS.contains(&key.as_str()) {
            if !value.is_str() {
                return Err(wrong(format!("`{key}` must be a text, e.g. {key} = \"…\"")));
            }
        } else {
            check_table(key, value).map_err(|complaint| Complaint {
                text: format!("{}: {}", path.display(), complaint.text),
                ..complaint
            })?;
        }
    }
    Ok(Some(table))
}

fn check_table(key: &str, value: &toml::Value) -> Done<()> {
    let tables = crate::role::TABLES;
    if !tables.contains(&key) {
        let known: Vec<&str> = KEYS.iter().chain(tables).copied().collect();
        return Err(Complaint::usage(format!("unknown key `{key}`")).fix(suggestion(key, &known)));
    }
    let one = toml::Table::from_iter([(key.to_owned(), value.clone())]);
    crate::role::config(&one).map(drop)
}

/// Later files win, key by key.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(stronger)) => merge(inner, stronger),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new(files: &[(&str, &str)]) -> Place {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = dir.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Place { dir }
        }
        fn read(&self, flags: &Flags, env: &[(&str, &str)]) -> Done<Settings> {
            let home = self.dir.path().display().to_string();
            let env = |name: &str| {
                let given = env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
                given.or_else(|| (name == "HOME").then(|| home.clone()))
            };
            let cwd = self.dir.path().join("a/b");
            std::fs::create_dir_all(&cwd).unwrap();
            Settings::read_from(flags, &env, &cwd)
        }
    }

    #[test]
    fn the_stronger_place_wins() {
        let user = (".config/remuda/config.toml", "url = 'http://user'\ntoken = 'user'\nlog = 'user'\nlisten = 'user'");
        let project = ("repl.toml", "url = 'http://project'\ntoken = 'project'\nlog = 'project'");
        let place = Place::new(&[user, project]);
        let flags = Flags { url: Some("http://flag".into()), home: None };
        let settings = place.read(&flags, &[("REPL_TOKEN", "env"), ("REPL_LISTEN", "")]).unwrap();
        let said = [settings.url, settings.token, settings.log, settings.listen, settings.database];
        let said: Vec<Option<&str>> = said.iter().map(Option::as_deref).collect();
        assert_eq!(said, [Some("http://flag"), Some("env"), Some("project"), Some("user"), None]);
        assert_eq!(settings.home, place.dir.path().join(".local/share/remuda"));
        assert_eq!(settings.files.len(), 2);
    }

    #[test]
    fn an_unknown_key_names_its_file_and_neighbour() {
        let place = Place::new(&[("a/repl.toml", "tokn = 'x'")]);
        let complaint = place.read(&Flags::default(), &[]).unwrap_err();
        assert!(complaint.text.ends_with("a/repl.toml: unknown key `tokn`"), "{complaint}");
        assert_eq!((complaint.code, complaint.fix.as_deref()), (2, Some("did you mean `token`?")));
        for bad in ["token = 5", "a = [", "[hold]\nx = 1"] {
            let place = Place::new(&[("repl.toml", bad)]);
            assert!(place.read(&Flags::default(), &[]).unwrap_err().text.contains("repl.toml"), "{bad}");
        }
    }

    #[test]
    fn a_home_is_absolute_and_must_be_somewhere() {
        let place = Place::new(&[]);
        let settings = place.read(&Flags::default(), &[("REPL_HOME", "data")]).unwrap();
        assert_eq!(settings.home, place.dir.path().join("a/b/data"));
        let settings = place.read(&Flags::default(), &[("XDG_DATA_HOME", "/data")]).unwrap();
        assert_eq!(settings.home, Path::new("/data/remuda"));
        assert_eq!(place.read(&Flags::default(), &[("HOME", "")]).unwrap_err().code, 2);
    }
}
