//! `repl login` and `repl logout`: tokens kept per address, in a file that only its owner may read, and which token goes
//! with which address. A token is checked before it is kept, and is never sent to another address than the one it is for.

use crate::args::Json;
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::{API, home_token};
use crate::say::one_line;
use crate::settings::{Origin, Settings};
use crate::show::{self, Table};
use crate::{embedded, meant, private, prompt};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use wire::api::TokenView;
use wire::client::{Client, ClientError};

/// Keep the token of a control plane, for commands that talk to it
#[derive(Debug, clap::Args)]
#[command(after_help = "The token is read without being shown, or from a pipe; it is checked before it
is kept. A `url` in a project's repl.toml is used only with a token that was
kept for exactly that address.

Examples:
  repl login https://control.example                  # asks for the token
  pass show remuda | repl login https://control.example --token-stdin
  repl login --list")]
pub struct LoginArgs {
    /// Address of the control plane; otherwise the one that REPL_URL or your settings name
    #[arg(value_name = "URL")]
    at: Option<String>,
    /// Read the token from stdin, also on a terminal
    #[arg(long, conflicts_with = "list")]
    token_stdin: bool,
    /// Show the addresses that tokens are kept for
    #[arg(long, conflicts_with = "at")]
    list: bool,
    #[command(flatten)]
    json: Json,
}

/// Forget the token of a control plane
#[derive(Debug, clap::Args)]
#[command(after_help = "The token itself stays good: `repl token delete` ends it.

Examples:
  repl logout https://control.example")]
pub struct LogoutArgs {
    /// Address of the control plane; otherwise the one that REPL_URL or your settings name
    #[arg(value_name = "URL")]
    at: Option<String>,
    #[command(flatten)]
    json: Json,
}

/// A token that was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredToken {
    token: String,
    /// What the server calls it.
    id: String,
    name: String,
    scopes: Vec<String>,
    kept_at: i64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    tokens: BTreeMap<String, StoredToken>,
}

pub async fn login(settings: &Settings, args: LoginArgs) -> Done {
    let path = file_of(settings)?;
    if args.list {
        return list(path, args.json);
    }
    let url = normal(&address(settings, "login", args.at)?)?;
    answers(settings, &url).await?;
    let token = match args.token_stdin || !std::io::stdin().is_terminal() {
        true => piped()?,
        false => prompt::value(&format!("token for {url}")).await?,
    };
    if token.is_empty() {
        return Err(
            Complaint::usage("no token was given").fix(format!("pipe it in: … | repl login {url} --token-stdin"))
        );
    }
    let view = checked(settings, &url, &token).await?;
    let kept = StoredToken { token, id: view.id, name: view.name, scopes: view.scopes, kept_at: show::now_ms() };
    change(path, |tokens| drop(tokens.insert(url.clone(), kept.clone())))?;
    if url.starts_with("http:") && !is_loopback(&url) {
        eprintln!("repl: {url} is not encrypted: every host on the way can read the token; use https");
    }
    if args.json.json {
        return show::json(&shown(&url, &kept));
    }
    let (name, scopes) = (one_line(&kept.name), one_line(&kept.scopes.join(", ")));
    eprintln!("repl: signed in at {url} as {name} ({scopes}); the token is kept in {}", path.display());
    if settings.url.as_ref().and_then(|url| normal(url).ok()).as_ref() != Some(&url) {
        eprintln!("repl: commands go there with: export REPL_URL={url}");
    }
    Ok(0)
}

pub fn logout(settings: &Settings, args: LogoutArgs) -> Done {
    let (path, url) = (file_of(settings)?, normal(&address(settings, "logout", args.at)?)?);
    let mut was = None;
    change(path, |tokens| was = tokens.remove(&url))?;
    if args.json.json {
        show::json(&serde_json::json!({ "url": url, "removed": was.is_some() }))?;
        return Ok(if was.is_some() { 0 } else { REFUSED });
    }
    match was {
        Some(kept) => {
            eprintln!("repl: forgot the token for {url}; to end it: repl token delete {}", one_line(&kept.id));
            Ok(0)
        }
        None => Err(Complaint::refused(format!("no token is kept for {url}")).fix("see `repl login --list`")),
    }
}

fn list(path: &Path, json: Json) -> Done {
    let tokens = read(path)?.tokens;
    if json.json {
        return show::json(&tokens.iter().map(|(url, kept)| shown(url, kept)).collect::<Vec<_>>());
    }
    let mut table = Table::new(["URL", "TOKEN", "NAME", "SCOPES", "KEPT"]).without_if_narrow(&["KEPT", "TOKEN"]);
    for (url, kept) in tokens {
        table.row([url, kept.id, kept.name, kept.scopes.join(","), show::ago(kept.kept_at)]);
    }
    table.print("no tokens are kept: repl login URL");
    Ok(0)
}

/// The address from the command line or the user's settings. A project's file is ignored: its author must not choose where a user enters
/// a token.
fn address(settings: &Settings, command: &str, at: Option<String>) -> Done<String> {
    let own = settings.url.clone().filter(|_| !matches!(settings.url_from, Some(Origin::Project(_))));
    at.or(own).ok_or_else(|| {
        let complaint = Complaint::usage(format!("`repl {command}` needs the address of a control plane"));
        match &settings.url {
            Some(url) => {
                complaint.fix(format!("if you trust the one that this project names: {}", typed(command, url)))
            }
            None => {
                complaint.fix(format!("write it like repl {command} https://control.example:7780, or set REPL_URL"))
            }
        }
    })
}

/// The line that signs in or out there, as a shell reads it: an address of a project's file may hold what a shell would run.
fn typed(command: &str, url: &str) -> String {
    one_line(&meant::quoted(&["repl", command, url].map(str::to_owned)))
}

/// A token is asked for only if a control plane is there to check it.
async fn answers(settings: &Settings, url: &str) -> Done<()> {
    let client = Client::trusting(url, None, settings.authorities()?.as_deref())?;
    let health: Result<wire::api::Health, ClientError> = client.get("/healthz").await;
    health.map(drop).map_err(|error| {
        let complaint = Complaint::of_answer(&error, url);
        match error {
            // REPL_URL, of which the usual advice speaks, need not be set.
            ClientError::Unreachable(_) if complaint.text.starts_with("cannot reach") => {
                complaint.fix("is the address right, and is the control plane running there?")
            }
            _ => complaint,
        }
    })
}

/// Everything about it but the token.
fn shown(url: &str, kept: &StoredToken) -> serde_json::Value {
    serde_json::json!({ "url": url, "id": kept.id, "name": kept.name, "scopes": kept.scopes, "kept_at": kept.kept_at })
}

/// The first line of a pipe.
fn piped() -> Done<String> {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| Complaint::usage(format!("cannot read the token from stdin: {error}")))?;
    Ok(line.trim().to_owned())
}

/// Whose token this is, said by the server it is for.
async fn checked(settings: &Settings, url: &str, token: &str) -> Done<TokenView> {
    let authorities = settings.authorities()?;
    let client = Client::trusting(url, Some(token), authorities.as_deref())?;
    client.get(&format!("{API}/tokens/current")).await.map_err(|error| match &error {
        ClientError::Problem(problem) if problem.status == 401 => {
            Complaint::refused(format!("{url} does not know this token: {}", one_line(&problem.to_string())))
                .fix("nothing was kept; make one there: repl token create NAME")
        }
        _ => Complaint::of_answer(&error, url),
    })
}

fn is_loopback(url: &str) -> bool {
    let host = url.trim_start_matches("http://");
    ["127.", "localhost", "[::1]"].iter().any(|near| host.starts_with(near))
}

pub fn normal(url: &str) -> Done<String> {
    wire::client::normal(url).map_err(|error| match error {
        ClientError::Protocol(why) => Complaint::usage(one_line(&why)).fix("write it like http://127.0.0.1:7780"),
        other => other.into(),
    })
}

fn file_of(settings: &Settings) -> Done<&PathBuf> {
    settings
        .logins
        .as_ref()
        .ok_or_else(|| Complaint::usage("no place for tokens: neither XDG_CONFIG_HOME nor HOME is set").fix("set HOME"))
}

fn read(path: &Path) -> Done<File> {
    let Some(text) = private::read(path)? else { return Ok(File::default()) };
    serde_json::from_str(&text).map_err(|error| {
        Complaint::usage(format!("{} cannot be read: {error}", path.display()))
            .fix("delete it and sign in again: repl login URL")
    })
}

/// One change at a time: two commands that sign in at once both stay signed in.
fn change(path: &Path, change: impl FnOnce(&mut BTreeMap<String, StoredToken>)) -> Done<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        private::folder(folder)?;
    }
    let lock = path.with_extension("lock");
    let file = private::open(&lock, std::fs::OpenOptions::new().write(true))?;
    let _held = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| Complaint::usage(format!("cannot lock {}: {error}", lock.display())))?;
    let mut all = read(path)?;
    change(&mut all.tokens);
    private::write(path, &serde_json::to_vec_pretty(&all).expect("plain data"))
}

/// The token that goes with this address (in its normal spelling), if any does.
///
/// `REPL_TOKEN` goes with what the environment or a flag names; the `token` of a settings file with the `url` of that file;
/// a token that was kept with the address it was kept for; the home's own with the control plane of this home.
pub fn token_for(settings: &Settings, url: &str) -> Done<Option<String>> {
    let tokens = &settings.tokens;
    if matches!(settings.url_from, Some(Origin::Flag | Origin::Environment)) && tokens.environment.is_some() {
        return Ok(tokens.environment.clone());
    }
    let is_for_it = |of: &Option<String>| of.as_ref().is_some_and(|of| normal(of).is_ok_and(|of| of == url));
    if let Some((_, token)) = tokens.files.iter().find(|(of, _)| is_for_it(of)) {
        return Ok(Some(token.clone()));
    }
    if let Some(path) = &settings.logins
        && let Some(kept) = read(path)?.tokens.remove(url)
    {
        return Ok(Some(kept.token));
    }
    // The token of this home is sent only to the control plane of this home.
    let holder = embedded::find(&settings.home).ok().flatten();
    let is_ours = holder.and_then(|holder| holder.url).is_some_and(|ours| normal(&ours).is_ok_and(|ours| ours == url));
    if is_ours { home_token(settings) } else { Ok(None) }
}

/// Why a command does not go to an address without a token, where it must not.
pub fn refused_without(settings: &Settings, url: &str) -> Option<Complaint> {
    let and_not = if settings.tokens.environment.is_some() {
        " (REPL_TOKEN goes only with an address from REPL_URL or --url)"
    } else {
        ""
    };
    match settings.url_from.as_ref()? {
        Origin::Project(file) => Some(
            Complaint::usage(format!(
                "{} points to {url}, and no token is kept for it{and_not}: nothing was sent",
                one_line(&file.display().to_string())
            ))
            .fix(format!("if you trust that address: {}; otherwise take `url` out of the file", typed("login", url))),
        ),
        Origin::File(file) if !and_not.is_empty() => Some(
            Complaint::usage(format!("no token is kept for {url}, the url of {}{and_not}", file.display()))
                .fix(format!("repl login {url}, or set REPL_URL too")),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;

    struct Place {
        dir: tempfile::TempDir,
    }

    impl Place {
        fn new(user: &str, project: &str) -> Place {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join(".config/remuda")).unwrap();
            std::fs::write(dir.path().join(".config/remuda/config.toml"), user).unwrap();
            std::fs::write(dir.path().join("repl.toml"), project).unwrap();
            let place = Place { dir };
            for url in ["http://kept", "https://control.example"] {
                let kept = StoredToken {
                    token: format!("kept for {url}"),
                    id: String::new(),
                    name: String::new(),
                    scopes: vec![],
                    kept_at: 0,
                };
                change(place.settings(&[], None).logins.as_ref().unwrap(), |all| drop(all.insert(url.into(), kept)))
                    .unwrap();
            }
            place
        }
        fn settings(&self, env: &[(&str, &str)], flag: Option<&str>) -> Settings {
            let home = self.dir.path().display().to_string();
            let env = |name: &str| match env.iter().find(|(key, _)| *key == name) {
                Some((_, value)) => Some(value.to_string()),
                None => (name == "HOME").then(|| home.clone()),
            };
            let flags = Flags { url: flag.map(str::to_owned), ..Flags::default() };
            Settings::read_from(&flags, &env, self.dir.path()).unwrap()
        }
        /// What would be sent, and where.
        fn sent(&self, env: &[(&str, &str)], flag: Option<&str>) -> (Option<String>, bool) {
            let settings = self.settings(env, flag);
            let url = normal(settings.url.as_ref().unwrap()).unwrap();
            let token = token_for(&settings, &url).unwrap();
            let refused = token.is_none() && refused_without(&settings, &url).is_some();
            (token, refused)
        }
    }

    #[test]
    fn a_token_goes_only_where_it_belongs() {
        let text = |text: &str| Some(text.to_owned());
        let secret = [("REPL_TOKEN", "env")];
        // A project's address gets what was kept for exactly it.
        let user = "url = 'http://mine'\ntoken = 'file'";
        for (project, sent) in [
            ("http://evil", (None, true)),
            ("http://kept", (text("kept for http://kept"), false)),
            ("HTTP://KEPT:80/", (text("kept for http://kept"), false)),
            ("https://kept", (None, true)),
            ("http://kept:8080", (None, true)),
            ("http://kept.evil", (None, true)),
            ("http://kept/evil", (None, true)),
            ("http://mine", (text("file"), false)),
        ] {
            let place = Place::new(user, &format!("url = '{project}'"));
            assert_eq!(place.sent(&secret, None), sent, "{project}");
        }
        // The user's own words, whatever the project says.
        let place = Place::new(user, "url = 'http://evil'");
        assert_eq!(place.sent(&secret, Some("http://else")), (text("env"), false));
        assert_eq!(place.sent(&[secret[0], ("REPL_URL", "http://else")], None), (text("env"), false));
        assert_eq!(place.sent(&[], Some("http://else")), (None, false), "asked for, it is tried without one");
        assert_eq!(
            place.sent(&[], Some("https://control.example/")),
            (text("kept for https://control.example"), false)
        );
        assert_eq!(place.sent(&[], Some("http://mine/")), (text("file"), false));
        // REPL_TOKEN does not go with an address of a file, not even the user's.
        let place = Place::new("url = 'http://mine'", "");
        assert_eq!(place.sent(&secret, None), (None, true));
        assert_eq!(place.sent(&[], None), (None, false));
    }

    #[test]
    fn an_address_is_taken_from_its_user_and_not_from_a_project() {
        let place = Place::new("", "url = 'http://theirs'");
        let address = |env: &[(&str, &str)], at: Option<&str>| {
            address(&place.settings(env, None), "login", at.map(str::to_owned))
        };
        let set = [("REPL_URL", "http://set")];
        assert_eq!(address(&set, None).as_deref(), Ok("http://set"));
        assert_eq!(address(&set, Some("http://said")).as_deref(), Ok("http://said"));
        let complaint = address(&[], None).unwrap_err();
        assert!(complaint.code == 2 && complaint.fix.unwrap().ends_with("repl login http://theirs"));
        let place = Place::new("", "url = 'http://x;touch $(id)'");
        let complaint = super::address(&place.settings(&[], None), "login", None).unwrap_err();
        assert!(complaint.fix.unwrap().ends_with("repl login 'http://x;touch $(id)'"), "nothing to run by a shell");
    }

    #[test]
    fn kept_tokens_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = Place::new("", "");
        let path = place.settings(&[], None).logins.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path).unwrap().tokens.len(), 2);
        std::fs::write(&path, "{").unwrap();
        assert!(read(&path).unwrap_err().fix.unwrap().contains("sign in again"));
    }
}
