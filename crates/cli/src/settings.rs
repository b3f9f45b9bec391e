//! Settings, weakest first: defaults, the user's file, a project's `repl.toml` found walking up, the file that was named,
//! environment, flags. A project's file comes with a cloned repository, so it may hold only `url` and run defaults.
//! Reads them and names the file of a wrong one; each part of the program interprets its own table.

use crate::complaint::{Complaint, Done};
use crate::nearest::suggestion;
use crate::run_file;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::api::Submit;
use wire::model::Credits;

/// Keys of a settings file that are plain words.
const KEYS: &[&str] =
    &["home", "url", "token", "database", "blobs", "listen", "log", "tls_cert", "tls_key", "ca_cert", "public_url"];
/// The table of run defaults.
const RUN: &str = "run";
/// All that a project's file may hold.
const OF_A_PROJECT: &[&str] = &["url", RUN];
pub const PROJECT_FILE: &str = "repl.toml";

/// Where a setting comes from, as far as that decides what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Environment,
    /// A file of the user's own.
    File(PathBuf),
    /// A file of the project, written by its author.
    Project(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag => f.write_str("--url"),
            Origin::Environment => f.write_str("REPL_URL"),
            Origin::File(path) | Origin::Project(path) => write!(f, "`url` in {}", path.display()),
        }
    }
}

/// Tokens that were given, each with what it may be sent to. Tokens that were stored by `repl login` are in `logins`.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// `REPL_TOKEN`: with a URL from the environment or a flag, or with the embedded control plane.
    pub environment: Option<String>,
    /// Each `token` of the user's own files with the `url` of the same file, strongest first.
    pub files: Vec<(Option<String>, String)>,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub home: PathBuf,
    /// Another control plane than the embedded one.
    pub url: Option<String>,
    pub url_from: Option<Origin>,
    pub tokens: Tokens,
    /// Where `repl login` keeps tokens.
    pub logins: Option<PathBuf>,
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
    /// What a run is unless its file or a flag says otherwise.
    pub run: Submit,
    /// Of its providers those that a project's file names and no file of the user's own.
    pub unasked: Vec<String>,
    /// Files that were read, for `doctor` and for messages.
    pub files: Vec<PathBuf>,
    /// Settings outside of tables that the user's own files say.
    pub in_files: Vec<String>,
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
    /// A settings file of your own, stronger than config.toml [env: REPL_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Everywhere")]
    pub config: Option<PathBuf>,
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
        let ours = under_home("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("remuda"));
        let layers = Layers::read(flags, &env, ours.as_deref(), cwd)?;
        let (url, url_from) = layers.url(flags, env("REPL_URL")).unzip();
        let word = |key: &str, env_name: &str| {
            env(env_name).map(|value| placed(&value, cwd)).or_else(|| layers.own(key).map(|(value, _)| value))
        };
        let file = |key: &str, env_name: &str| {
            let named = env(env_name).map(|path| cwd.join(path));
            named.or_else(|| layers.own(key).map(|(path, file)| beside(&file).join(path)))
        };
        let home = flags.home.clone().or_else(|| env("REPL_HOME").map(PathBuf::from));
        let home = home.or_else(|| layers.own("home").map(|(home, file)| beside(&file).join(home)));
        let home = home.or_else(|| under_home("XDG_DATA_HOME", ".local/share").map(|dir| dir.join("remuda")));
        let home = home.ok_or_else(|| {
            Complaint::usage("no place for data: neither REPL_HOME nor HOME is set")
                .fix("set REPL_HOME to a folder of yours")
        })?;
        Ok(Settings {
            home: cwd.join(home),
            url,
            url_from,
            tokens: Tokens { environment: env("REPL_TOKEN"), files: layers.tokens() },
            logins: ours.map(|dir| dir.join("tokens.json")),
            database: word("database", "REPL_DATABASE"),
            blobs: word("blobs", "REPL_BLOBS"),
            listen: word("listen", "REPL_LISTEN"),
            log: word("log", "REPL_LOG"),
            tls_cert: file("tls_cert", "REPL_TLS_CERT"),
            tls_key: file("tls_key", "REPL_TLS_KEY"),
            ca_cert: file("ca_cert", "REPL_CA_CERT"),
            public_url: word("public_url", "REPL_PUBLIC_URL"),
            tables: layers.tables(),
            run: layers.run(),
            unasked: layers.unasked(),
            files: layers.all().map(|layer| layer.path.clone()).collect(),
            in_files: KEYS.iter().filter(|key| layers.own(key).is_some()).map(|key| (*key).to_owned()).collect(),
        })
    }

    /// The same, about the embedded control plane of this home whatever else is configured.
    pub fn embedded(&self) -> Settings {
        let mut embedded = self.clone();
        if embedded.url.take().is_some() {
            embedded.tokens.environment = None; // it was meant for the other one
        }
        embedded.url_from = None;
        embedded
    }

    /// The control plane that commands go to instead of the one of this home, and what says so.
    pub fn elsewhere(&self) -> Option<String> {
        Some(format!("{} ({})", self.url.as_ref()?, self.url_from.as_ref()?))
    }

    /// PEM of the authorities that are trusted beside those of the system.
    pub fn authorities(&self) -> Done<Option<String>> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| Complaint::file("read the certificates in", path, &error))
        };
        self.ca_cert.as_ref().map(read).transpose()
    }
}

/// One file, checked.
struct Layer {
    path: PathBuf,
    table: toml::Table,
    run: Submit,
}

/// The files that were found.
struct Layers {
    user: Option<Layer>,
    project: Option<Layer>,
    named: Option<Layer>,
}

impl Layers {
    fn read(flags: &Flags, env: &dyn Fn(&str) -> Option<String>, ours: Option<&Path>, cwd: &Path) -> Done<Layers> {
        let user = ours.map(|dir| own_file(&dir.join("config.toml"), env)).transpose()?.flatten();
        let named = match flags.config.clone().or_else(|| env("REPL_CONFIG").map(PathBuf::from)) {
            Some(path) => {
                let path = cwd.join(path);
                let missing = || {
                    Complaint::usage(format!("there is no settings file {}", path.display()))
                        .fix("check --config and REPL_CONFIG")
                };
                Some(own_file(&path, env)?.ok_or_else(missing)?)
            }
            None => None,
        };
        let project = cwd.ancestors().map(|dir| dir.join(PROJECT_FILE)).find(|path| path.is_file());
        // Named by the user, it is the user's choice.
        let is_named = |path: &PathBuf| {
            named.as_ref().is_some_and(|named| named.path.canonicalize().ok() == path.canonicalize().ok())
        };
        let project = project.filter(|path| !is_named(path)).map(|path| project_file(&path)).transpose()?.flatten();
        Ok(Layers { user, project, named })
    }

    /// Weakest first.
    fn all(&self) -> impl Iterator<Item = &Layer> {
        self.user.iter().chain(&self.project).chain(&self.named)
    }

    /// A word of the user's own files, and which of them said it.
    fn own(&self, key: &str) -> Option<(String, PathBuf)> {
        let said = |layer: &Layer| {
            let value = layer.table.get(key)?.as_str()?;
            let value =
                if matches!(key, "database" | "blobs") { placed(value, &beside(&layer.path)) } else { value.into() };
            Some((value, layer.path.clone()))
        };
        self.named.as_ref().and_then(said).or_else(|| self.user.as_ref().and_then(said))
    }

    fn tokens(&self) -> Vec<(Option<String>, String)> {
        let word = |layer: &Layer, key: &str| layer.table.get(key).and_then(|value| value.as_str().map(str::to_owned));
        let own = self.named.iter().chain(&self.user);
        own.filter_map(|layer| Some((word(layer, "url"), word(layer, "token")?))).collect()
    }

    fn url(&self, flags: &Flags, env: Option<String>) -> Option<(String, Origin)> {
        let of = |layer: &Option<Layer>, origin: fn(PathBuf) -> Origin| {
            let layer = layer.as_ref()?;
            Some((layer.table.get("url")?.as_str()?.to_owned(), origin(layer.path.clone())))
        };
        flags
            .url
            .clone()
            .map(|url| (url, Origin::Flag))
            .or_else(|| Some((env?, Origin::Environment)))
            .or_else(|| of(&self.named, Origin::File))
            .or_else(|| of(&self.project, Origin::Project))
            .or_else(|| of(&self.user, Origin::File))
    }

    fn tables(&self) -> toml::Table {
        let mut merged = toml::Table::new();
        for layer in self.user.iter().chain(&self.named) {
            let tables = layer.table.iter().filter(|(key, _)| !KEYS.contains(&key.as_str()) && *key != RUN);
            merge(&mut merged, tables.map(|(key, value)| (key.clone(), value.clone())).collect());
        }
        merged
    }

    fn run(&self) -> Submit {
        let mut run = Submit::default();
        for layer in [&self.named, &self.project, &self.user].into_iter().flatten() {
            run_file::fill(&mut run, &layer.run);
        }
        // A project may lower what its user lets a run cost, not raise it.
        let own = [&self.named, &self.user].into_iter().flatten().find_map(|layer| layer.run.budget.as_ref());
        let credits = |text: &String| text.parse::<Credits>().ok();
        if own.and_then(credits).is_some_and(|most| run.budget.as_ref().and_then(credits) > Some(most)) {
            run.budget = own.cloned();
        }
        run
    }

    fn unasked(&self) -> Vec<String> {
        let of = |layer: &Option<Layer>| -> Vec<String> {
            let run = layer.as_ref().map(|layer| &layer.run);
            run.into_iter().flat_map(|run| run.provider.iter().chain(&run.providers)).cloned().collect()
        };
        if !of(&self.named).is_empty() {
            return Vec::new();
        }
        let own = of(&self.user);
        of(&self.project).into_iter().filter(|name| !own.contains(name)).collect()
    }
}

fn beside(file: &Path) -> PathBuf {
    file.parent().map(Path::to_owned).unwrap_or_default()
}

/// `sqlite:PATH` and `file:PATH` with an absolute path: the control plane runs in another folder.
fn placed(value: &str, base: &Path) -> String {
    for scheme in ["sqlite:", "file:"] {
        if let Some(path) = value.strip_prefix(scheme).filter(|path| !path.is_empty()) {
            return format!("{scheme}{}", base.join(path).display());
        }
    }
    value.to_owned()
}

/// A file of the user's own, checked; none if it is not there.
fn own_file(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Done<Option<Layer>> {
    let Some(table) = parsed(path)? else { return Ok(None) };
    let at = |complaint: Complaint| named(path, complaint);
    let known: Vec<&str> = KEYS.iter().chain(crate::role::TABLES).chain([&RUN]).copied().collect();
    let mut run = Submit::default();
    for (key, value) in &table {
        if KEYS.contains(&key.as_str()) {
            is_text(key, value).map_err(at)?;
        } else if key == RUN {
            run = run_file::defaults(value, Some(env)).map_err(|wrong| at(wrong.into()))?;
        } else if crate::role::TABLES.contains(&key.as_str()) {
            let one = toml::Table::from_iter([(key.clone(), value.clone())]);
            crate::role::config(&one).map_err(at)?;
        } else {
            return Err(at(Complaint::usage(format!("unknown key `{key}`")).fix(suggestion(key, &known))));
        }
    }
    Ok(Some(Layer { path: path.to_owned(), table, run }))
}

/// A project's file: its author decides where runs go and their defaults, and nothing else. It cannot make `repl` send a token that
/// was not stored for its URL, start anything, or open a file of the user.
fn project_file(path: &Path) -> Done<Option<Layer>> {
    belongs_to_us(path)?;
    let Some(table) = parsed(path)? else { return Ok(None) };
    let at = |complaint: Complaint| named(path, complaint);
    let mut run = Submit::default();
    for (key, value) in &table {
        match key.as_str() {
            "url" => is_text(key, value).map_err(at)?,
            RUN => run = run_file::defaults(value, None).map_err(|wrong| at(wrong.into()))?,
            "token" => {
                return Err(at(Complaint::usage("`token` may not stand in a project's file")
                    .fix("keep it with `repl login URL`, and take it out of this file")));
            }
            known if KEYS.contains(&known) || crate::role::TABLES.contains(&known) => {
                let what = if value.is_table() { format!("the table [{key}]") } else { format!("`{key}`") };
                return Err(at(Complaint::usage(format!(
                    "{what} may not stand in a project's file, which holds only `url` and [run]"
                ))
                .fix(
                    "a control plane's settings belong into ~/.config/remuda/config.toml or a file named by --config",
                )));
            }
            _ => {
                let complaint = Complaint::usage(format!("unknown key `{key}` in a project's file"));
                return Err(at(complaint.fix(suggestion(key, OF_A_PROJECT))));
            }
        }
    }
    Ok(Some(Layer { path: path.to_owned(), table, run }))
}

/// In a folder that all users may write to, another user could place a file whose variables would then be set in this user's runs.
fn belongs_to_us(path: &Path) -> Done<()> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let us = nix::unistd::geteuid().as_raw();
    if found.uid() == us || found.uid() == 0 {
        return Ok(());
    }
    Err(Complaint::usage(format!("{} belongs to another user (uid {})", path.display(), found.uid()))
        .fix(format!("work elsewhere, or say that you trust it: --config {}", path.display())))
}

fn parsed(path: &Path) -> Done<Option<toml::Table>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Complaint::file("read", path, &error)),
    };
    let table: Result<toml::Table, toml::de::Error> = text.parse();
    table.map(Some).map_err(|error| named(path, Complaint::usage(error.to_string().trim_end())))
}

fn named(path: &Path, complaint: Complaint) -> Complaint {
    Complaint { text: format!("{}: {}", path.display(), complaint.text), ..complaint }
}

fn is_text(key: &str, value: &toml::Value) -> Done<()> {
    if value.is_str() { Ok(()) } else { Err(Complaint::usage(format!("`{key}` must be a text, e.g. {key} = \"…\""))) }
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
        let project = ("repl.toml", "url = 'http://project'");
        let named = ("mine.toml", "log = 'named'\ndatabase = 'sqlite:x.db'");
        let place = Place::new(&[user, project, named]);
        let config = Some(place.dir.path().join("mine.toml"));
        let said = |flags: &Flags, env: &[(&str, &str)]| {
            let settings = place.read(flags, env).unwrap();
            [settings.url, settings.log, settings.listen].map(Option::unwrap_or_default)
        };
        assert_eq!(said(&Flags::default(), &[]), ["http://project", "user", "user"]);
        let named = Flags { config: config.clone(), ..Flags::default() };
        assert_eq!(said(&named, &[]), ["http://project", "named", "user"]);
        let both = [("REPL_URL", "http://env"), ("REPL_LOG", "env"), ("REPL_LISTEN", "")];
        assert_eq!(said(&named, &both), ["http://env", "env", "user"]);
        assert_eq!(said(&Flags { url: Some("http://flag".into()), ..named.clone() }, &both)[0], "http://flag");
        let settings = place.read(&Flags::default(), &[("REPL_CONFIG", config.as_ref().unwrap().to_str().unwrap())]);
        let settings = settings.unwrap();
        assert_eq!(settings.database, Some(format!("sqlite:{}", place.dir.path().join("x.db").display())));
        assert_eq!(settings.home, place.dir.path().join(".local/share/remuda"));
        assert_eq!(settings.files.len(), 3);
        let missing = Flags { config: Some("gone.toml".into()), ..Flags::default() };
        assert!(place.read(&missing, &[]).unwrap_err().text.contains("there is no settings file"));
    }

    #[test]
    fn what_a_url_comes_from_is_known() {
        let user = (".config/remuda/config.toml", "url = 'http://user'\ntoken = 't'");
        let place = Place::new(&[user]);
        let settings = place.read(&Flags::default(), &[("REPL_TOKEN", "e")]).unwrap();
        assert_eq!(settings.url_from, Some(Origin::File(place.dir.path().join(user.0))));
        assert_eq!(settings.tokens.environment.as_deref(), Some("e"));
        assert_eq!(settings.tokens.files, [(Some("http://user".to_owned()), "t".to_owned())]);
        let place = Place::new(&[user, ("repl.toml", "url = 'http://project'")]);
        let settings = place.read(&Flags::default(), &[]).unwrap();
        assert_eq!(settings.url_from, Some(Origin::Project(place.dir.path().join("repl.toml"))));
        assert_eq!(settings.tokens.files[0].0.as_deref(), Some("http://user"), "a token stays with its own url");
    }

    #[test]
    fn a_projects_file_decides_nothing_but_a_url_and_run_defaults() {
        let plain = ["home", "token", "database", "blobs", "listen", "log", "public_url"]
            .map(|key| (key.to_owned(), format!("{key} = 'x'")));
        let tables = crate::role::TABLES.iter().map(|key| (key.to_string(), format!("[{key}]\nx = 1")));
        for (key, text) in plain.into_iter().chain(tables) {
            let place = Place::new(&[("repl.toml", &text)]);
            let complaint = place.read(&Flags::default(), &[]).unwrap_err();
            assert!(complaint.text.contains("repl.toml: ") && complaint.text.contains(&key), "{complaint}");
            assert!(complaint.text.contains("may not stand in a project's file"), "{complaint}");
            let fix = complaint.fix.unwrap();
            assert!(fix.contains("config.toml") || fix.contains("repl login"), "{fix}");
            // The same file is the user's own choice when the user names it.
            let config = Some(place.dir.path().join("repl.toml"));
            let chosen = place.read(&Flags { config, ..Flags::default() }, &[]);
            assert!(chosen.is_ok() || text.starts_with('['), "{text}");
        }
        let provider = Place::new(&[("repl.toml", "[providers.gpu]\nkind = 'local'")]);
        let complaint = provider.read(&Flags::default(), &[]).unwrap_err();
        assert!(complaint.text.contains("the table [providers] may not stand in a project's file"), "{complaint}");
        let exec = Place::new(&[("repl.toml", "[notify]\nexec = 'curl evil'")]);
        assert!(exec.read(&Flags::default(), &[]).unwrap_err().text.contains("the table [notify] may not stand"));
    }

    #[test]
    fn run_defaults_are_merged_key_by_key() {
        let user = (".config/remuda/config.toml", "[run]\nmax_duration = '1h'\nenv = {A = '1', B = '1'}\nsecrets = []");
        assert!(Place::new(&[user]).read(&Flags::default(), &[]).unwrap_err().text.contains("`run.secrets`"));
        let user =
            (".config/remuda/config.toml", "[run]\nmax_duration = '1h'\nenv = {A = '1', B = '1'}\npriority = 'high'");
        let project = ("repl.toml", "[run]\nmax_duration = '2h'\nenv = {B = '2'}\ncpu = 2\nartifacts = ['out/*']");
        let run = Place::new(&[user, project]).read(&Flags::default(), &[]).unwrap().run;
        assert_eq!((run.max_duration_ms, run.resources.cpu_milli), (Some(7_200_000), Some(2000)));
        assert_eq!((run.env["A"].as_str(), run.env["B"].as_str()), ("1", "2"));
        assert_eq!((run.priority.as_deref(), run.artifacts), (Some("high"), vec!["out/*".to_owned()]));
    }

    #[test]
    fn a_project_lowers_a_budget_and_never_raises_it() {
        for (user, project, named, budget) in [
            (Some("5"), Some("10"), None, Some("5")),
            (Some("5"), Some("0.5"), None, Some("0.5")),
            (Some("5"), Some("10"), Some("20"), Some("20")),
            (Some("5"), None, None, Some("5")),
            (None, Some("10"), None, Some("10")),
            (None, None, None, None),
        ] {
            let run = |budget: Option<&str>| budget.map_or_else(String::new, |it| format!("[run]\nbudget = '{it}'"));
            let (user_says, project_says, named_says) = (run(user), run(project), run(named));
            let files = [
                (".config/remuda/config.toml", user_says.as_str()),
                ("repl.toml", &project_says),
                ("mine.toml", &named_says),
            ];
            let place = Place::new(&files);
            let flags = Flags { config: Some(place.dir.path().join("mine.toml")), ..Flags::default() };
            let found = place.read(&flags, &[]).unwrap().run.budget;
            assert_eq!(found.as_deref(), budget, "{user:?} {project:?} {named:?}");
        }
    }

    #[test]
    fn what_only_a_project_names_was_not_asked_for() {
        for (user, project, named, unasked) in [
            ("", "provider = 'paid'", "", &["paid"][..]),
            ("", "providers = ['local', 'paid']", "", &["local", "paid"]),
            ("provider = 'local'", "provider = 'paid'", "", &["paid"]),
            ("providers = ['paid']", "provider = 'paid'", "", &[]),
            ("", "provider = 'paid'", "provider = 'paid'", &[]),
            ("", "provider = 'paid'", "cpu = 1", &["paid"]),
            ("provider = 'paid'", "cpu = 1", "", &[]),
        ] {
            let [user, project, named] = [user, project, named].map(|said| format!("[run]\n{said}"));
            let files = [(".config/remuda/config.toml", user.as_str()), ("repl.toml", &project), ("mine.toml", &named)];
            let place = Place::new(&files);
            let flags = Flags { config: Some(place.dir.path().join("mine.toml")), ..Flags::default() };
            assert_eq!(place.read(&flags, &[]).unwrap().unasked, unasked, "{user} {project} {named}");
        }
    }

    #[test]
    fn another_users_file_in_a_shared_folder_is_not_read() {
        let place = Place::new(&[("repl.toml", "[run]\nenv = {LD_PRELOAD = '/tmp/x.so'}")]);
        let path = place.dir.path().join("repl.toml");
        if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
            return crate::skip::skip("root", "only root can give files away");
        }
        let complaint = place.read(&Flags::default(), &[]).unwrap_err();
        assert!(complaint.text.contains("belongs to another user (uid 65534)"), "{complaint}");
        place.read(&Flags { config: Some(path), ..Flags::default() }, &[]).unwrap();
    }

    #[test]
    fn an_unknown_key_names_its_file_and_neighbour() {
        let place = Place::new(&[(".config/remuda/config.toml", "tokn = 'x'")]);
        let complaint = place.read(&Flags::default(), &[]).unwrap_err();
        assert!(complaint.text.ends_with("config.toml: unknown key `tokn`"), "{complaint}");
        assert_eq!((complaint.code, complaint.fix.as_deref()), (2, Some("did you mean `token`?")));
        for bad in ["url = 5", "a = [", "[hold]\nx = 1", "[run]\ncpus = 1", "run = 1"] {
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
