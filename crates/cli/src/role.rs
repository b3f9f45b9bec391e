//! The roles in the foreground: server, worker, runner, and the embedded control plane that `repl` starts by itself.
//! Turns settings into what each role takes; does none of their work.

use crate::complaint::{Complaint, Done, REFUSED, USAGE};
use crate::embedded::{self, Orders, READY};
use crate::nearest::suggestion;
use crate::settings::Settings;
use crate::{exec_repl, private};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

/// The tables of a settings file that configure a control plane.
pub const TABLES: &[&str] = &[
    "holds",
    "timings",
    "escalation",
    "worker",
    "money",
    "logs",
    "limits",
    "providers",
    "prices",
    "store",
    "llm",
    "tools",
    "notify",
    "orphans",
    "manifests",
    "features",
    "calls",
    "pages",
];
const USUAL_ADDRESS: &str = "127.0.0.1:7780";

/// Be a control plane in the foreground: the API, and a worker
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl server --listen 127.0.0.1:7780
  repl server --listen 0.0.0.0:7780 --tls-cert chain.pem --tls-key key.pem
  REPL_DATABASE=postgres://remuda@db.example/remuda repl server")]
pub struct ServerArgs {
    /// Address of the HTTP API [env: REPL_LISTEN] [default: 127.0.0.1:7780]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Serve TLS with the certificate chain in this PEM file; read again when it changes [env: REPL_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM [env: REPL_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Where runners on other machines reach this server [env: REPL_PUBLIC_URL]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Serve the API only; workers do the work
    #[arg(long)]
    pub no_worker: bool,
    /// The database is an older copy: number new things above those that were made after it
    #[arg(long)]
    restored: bool,
}

/// Be a worker in the foreground: does the work of servers that share its database
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  export REPL_DATABASE=postgres://remuda@db.example/remuda
  repl worker --server 10.0.0.5:7780")]
pub struct WorkerArgs {
    /// Where its machines reach the servers: host and port, or a URL [env: REPL_LISTEN] [default: 127.0.0.1:7780]
    #[arg(long, value_name = "ADDRESS")]
    server: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// Where state is kept.
#[derive(Debug, clap::Args)]
struct Place {
    /// `sqlite:PATH` or `postgres://…` [env: REPL_DATABASE]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// `file:PATH` [env: REPL_BLOBS]
    #[arg(long, value_name = "URL")]
    blobs: Option<String>,
}

/// `repl mcp-serve SOCKET PROGRAM…` and `repl mcp-call`, which runners start: the server of an agent, and one call of it.
pub fn mcp() -> Option<i32> {
    let mut words = std::env::args_os().skip(1);
    let done = match words.next()?.to_str()? {
        server::mcp::SERVE => server::mcp::serve(Path::new(&words.next()?), words.collect()),
        server::mcp::CALL => server::mcp::call(std::io::stdout().lock()),
        _ => return None,
    };
    let failed = done.inspect_err(|error| drop(writeln!(std::io::stderr(), "mcp: {error}"))).is_err();
    Some(i32::from(failed))
}

/// The execution adapters `dml-exec-local` and `dml-exec-repl`, which are this program under those names.
pub fn execution_adapter() -> Option<i32> {
    use server::adapter::local;
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    let mut name = called.file_name()?.to_owned();
    if name != local::NAME && name != exec_repl::NAME {
        name = words.next()?;
    }
    if name == exec_repl::NAME {
        let done = exec_repl::main();
        let failed = done.inspect_err(|complaint| drop(writeln!(std::io::stderr(), "{complaint}"))).is_err();
        return Some(i32::from(failed));
    }
    if name != local::NAME {
        return None;
    }
    let done = local::main(words, std::io::stdout());
    let failed = done.inspect_err(|error| drop(writeln!(std::io::stderr(), "{}: {error}", local::NAME))).is_err();
    Some(i32::from(failed))
}

/// `repl runner host EXE` and `repl runner relay EXE`, which the provider `ssh` starts on its hosts: a question about the machines there,
/// and the way back for their runners.
pub fn on_host() -> Option<i32> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "runner" {
        return None;
    }
    let done = match words.next()?.to_str()? {
        "host" => {
            let can_sandbox = || runner::sandbox().map(drop);
            server::answer_on_host(
                Path::new(&words.next()?),
                can_sandbox,
                std::io::stdin().lock(),
                std::io::stdout().lock(),
            )
        }
        "relay" => server::relay_on_host(std::io::stdin(), std::io::stdout()),
        _ => return None,
    };
    let failed = done.inspect_err(|error| drop(writeln!(std::io::stderr(), "repl: {error}"))).is_err();
    Some(i32::from(failed))
}

/// Be the runner of one machine in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = "Providers start runners; by hand it is needed only to clean up:
  repl runner --dir DIR --end")]
pub struct RunnerArgs {
    /// The machine's directory
    #[arg(long)]
    dir: PathBuf,
    /// End whatever a dead runner left running there
    #[arg(long)]
    end: bool,
}

pub fn runner(args: &RunnerArgs) -> u8 {
    log_to_stderr(std::env::var("REPL_LOG").ok().as_deref());
    if !args.end {
        return if runner::run(&args.dir) == std::process::ExitCode::SUCCESS { 0 } else { REFUSED };
    }
    match runner::end(&args.dir) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{}", Complaint::file("end what runs in", &args.dir, &error));
            REFUSED
        }
    }
}

pub async fn server(settings: &Settings, args: ServerArgs) -> Done {
    log_to_stderr(settings.log.as_deref());
    let listen = args.listen.or_else(|| settings.listen.clone()).unwrap_or_else(|| USUAL_ADDRESS.to_owned());
    let role = if args.no_worker { server::Role::Server } else { server::Role::All };
    let mut orders = orders(settings, args.place, Some(listen));
    let here = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    orders.tls_cert = args.tls_cert.map(here).or(orders.tls_cert);
    orders.tls_key = args.tls_key.map(here).or(orders.tls_key);
    orders.public_url = args.public_url.or(orders.public_url);
    orders.restored = args.restored;
    // One SQLite file has one control plane, and the commands of this home find it there.
    let keeper = if is_shared(&orders.database) { Keeper::Shared } else { Keeper::Alone };
    let home = orders.home.clone();
    serve(orders, role, keeper, move |ready| welcome(&ready, &home)).await
}

/// What an operator sees when a server is up. Its first token is shown by the start that made it and never again.
fn welcome(ready: &server::Ready, home: &Path) {
    let url = ready.url.as_deref();
    match &ready.first_token {
        Some(first) => {
            eprintln!("repl: the first admin token, shown this once: {}", first.text);
            eprintln!("repl: it is kept in {}; `repl token create` makes others", first.file.display());
        }
        None => {
            let file = home.join("token");
            eprintln!(
                "repl: its admin token was made before and is kept in {}; another: repl control token",
                file.display()
            );
        }
    }
    if ready.is_readable_by_others {
        eprintln!("repl: {}. Use --tls-cert and --tls-key, or listen on 127.0.0.1", open_door(url));
    }
    eprintln!("repl: serving {}", url.unwrap_or("on the socket of this home"));
}

pub async fn worker(settings: &Settings, args: WorkerArgs) -> Done {
    log_to_stderr(settings.log.as_deref());
    let server = args.server.or_else(|| settings.listen.clone()).unwrap_or_else(|| USUAL_ADDRESS.to_owned());
    let orders = orders(settings, args.place, Some(server));
    if !is_shared(&orders.database) {
        return Err(Complaint::usage("a worker beside a server needs a database they can share")
            .fix("set REPL_DATABASE to a postgres:// address; with SQLite the server does the work itself"));
    }
    serve(orders, server::Role::Worker, Keeper::Shared, |_| eprintln!("repl: working")).await
}

/// Whatever a process of ours makes, other users cannot read: SQLite's files, logs, sockets. Jobs get a umask of their own.
pub fn only_for_the_owner() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
}

/// What `repl control serve` is: orders on stdin, one word on stdout when it answers, or why it does not.
pub async fn embedded() -> Done {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string());
    let orders: Result<Orders, String> =
        read.and_then(|_| serde_json::from_str(&text).map_err(|error| error.to_string()));
    let orders = orders.map_err(|error| {
        Complaint::usage(format!("no orders on stdin: {error}")).fix("use `repl control start`, or `repl server`")
    })?;
    log_to_stderr(orders.log.as_deref());
    // Started from /proc/self/exe, it would be listed under that link's name.
    std::fs::write("/proc/self/comm", "repl").ok();
    let done = serve(orders, server::Role::All, Keeper::Embedded, |ready| {
        if ready.is_readable_by_others {
            let warning =
                format!("{}. Set tls_cert and tls_key, or listen on 127.0.0.1", open_door(ready.url.as_deref()));
            tracing::warn!("{warning}");
            // To the command that started this process, which shows it.
            println!("{warning}");
        }
        say_ready();
    })
    .await;
    if let Err(complaint) = &done {
        // To the command that started this process, if it still waits; `main` writes it to the log.
        println!("{complaint}");
    }
    done
}

fn open_door(url: Option<&str>) -> String {
    let what = url.unwrap_or("it");
    format!("WARNING: {what} IS OPEN TO OTHER MACHINES WITHOUT TLS: tokens and secrets can be read on the way")
}

/// The starter waits for the end of our stdout; from now on it is the log.
fn say_ready() {
    println!("{READY}");
    std::io::stdout().flush().ok();
    if let Err(error) = nix::unistd::dup2_stdout(std::io::stderr()) {
        tracing::warn!(%error, "stdout could not be given back");
    }
}

/// A token for the owner of a database that other processes may have open too; none where only one process may.
pub async fn token_of_shared_database(settings: &Settings) -> Done<Option<wire::api::TokenView>> {
    if !is_shared(&settings.database) {
        return Ok(None);
    }
    let orders = orders(settings, Place { database: None, blobs: None }, Some(USUAL_ADDRESS.to_owned()));
    private::home(&orders.home)?;
    let settings = server_settings(orders, server::Role::Server, Keeper::Shared, None)?;
    Ok(Some(server::make_owner_token(&settings).await?))
}

fn orders(settings: &Settings, place: Place, listen: Option<String>) -> Orders {
    let usual = Orders::of(settings);
    Orders { database: place.database.or(usual.database), blobs: place.blobs.or(usual.blobs), listen, ..usual }
}

/// Which processes use the database of a control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Shared,
    /// `repl server`, with a SQLite file of its own. It serves other people too.
    Alone,
    /// The one that commands of one person start for themselves.
    Embedded,
}

async fn serve(
    orders: Orders,
    role: server::Role,
    keeper: Keeper,
    ready: impl FnOnce(server::Ready) + Send + 'static,
) -> Done {
    config(&orders.tables)?;
    let home = orders.home.clone();
    private::home(&home)?;
    private::contents(&home)?;
    let effective = embedded::effective(&orders);
    open_as_many_files_as_allowed();
    let (mut held, socket) = if keeper != Keeper::Shared {
        let held = embedded::hold(&home)?;
        held.end_when_deleted();
        let socket = embedded::socket(&home)?;
        // A dead one's socket; a living one would have the lock.
        std::fs::remove_file(&socket).ok();
        (Some(held), Some(socket))
    } else {
        (None, None)
    };
    let announced = socket.clone();
    let on_ready = move |up: server::Ready| {
        if let (Some(held), Some(socket)) = (&mut held, &announced)
            && let Err(complaint) = held.announce(socket, up.url.clone(), effective)
        {
            tracing::error!("{complaint}");
        }
        ready(up);
        held
    };
    server::run(server_settings(orders, role, keeper, socket)?, on_ready).await?;
    Ok(0)
}

fn server_settings(
    orders: Orders,
    role: server::Role,
    keeper: Keeper,
    socket: Option<PathBuf>,
) -> Done<server::Settings> {
    let home = orders.home;
    Ok(server::Settings {
        database: orders.database.unwrap_or_else(|| format!("sqlite:{}", home.join("remuda.db").display())),
        blobs: orders.blobs,
        listen: orders.listen,
        tls: tls(orders.tls_cert, orders.tls_key)?,
        public_url: orders.public_url,
        ca_cert: orders.ca_cert,
        embedded: keeper == Keeper::Embedded,
        socket,
        role,
        config: config(&orders.tables)?,
        exe: PathBuf::from("/proc/self/exe"),
        can_sandbox: || runner::sandbox().map(drop),
        doctor: crate::doctor::findings,
        restored: orders.restored,
        files: orders.files,
        home,
    })
}

/// Both files, or neither.
fn tls(cert: Option<PathBuf>, key: Option<PathBuf>) -> Done<Option<server::TlsFiles>> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(server::TlsFiles { cert, key })),
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err(Complaint::usage("a certificate needs its key").fix("add --tls-key FILE (REPL_TLS_KEY)"))
        }
        (None, Some(_)) => {
            Err(Complaint::usage("a key needs its certificate").fix("add --tls-cert FILE (REPL_TLS_CERT)"))
        }
    }
}

/// Every follower and every runner is an open connection; the usual soft limit is for programs that have few.
fn open_as_many_files_as_allowed() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).ok();
    }
}

/// Whether other processes may have this database open too.
pub fn is_shared(database: &Option<String>) -> bool {
    database.as_deref().is_some_and(|url| url.starts_with("postgres:") || url.starts_with("postgresql:"))
}

/// The control plane's own settings, checked.
pub fn config(tables: &toml::Table) -> Done<server::Config> {
    let config: server::Config =
        toml::Value::Table(tables.clone()).try_into().map_err(|error: toml::de::Error| misread(error.message()))?;
    config.providers.check().map_err(misconfigured)?;
    Ok(config)
}

fn misconfigured(bad: server::BadSetting) -> Complaint {
    let complaint = Complaint::usage(bad.to_string());
    match bad {
        server::BadSetting::Unknown { word, known, .. } => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            complaint.fix(suggestion(&word, &known))
        }
        server::BadSetting::Wrong { .. } => complaint,
    }
}

/// serde names an unknown key and the known ones; a person wants the nearest.
fn misread(said: &str) -> Complaint {
    let mut quoted = said.split('`').skip(1).step_by(2);
    match (said.starts_with("unknown field"), quoted.next()) {
        (true, Some(key)) => {
            let known: Vec<&str> = quoted.collect();
            Complaint::usage(format!("unknown key `{key}`")).fix(suggestion(key, &known))
        }
        _ => Complaint { code: USAGE, text: said.trim_end().to_owned(), fix: None },
    }
}

fn log_to_stderr(filter: Option<&str>) {
    let filter = filter.unwrap_or("info");
    let filter =
        tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Without colours: what is escaped on its way out could not tell ours from others'.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| crate::say::Log).with_ansi(false);
    // A log that cannot be written must not end what it tells about: the disk is full.
    log.log_internal_errors(false).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_of_a_table_finds_its_neighbour() {
        let table: toml::Table = "[holds]\ndefault_debug_hld_ms = 5".parse().unwrap();
        let complaint = config(&table).unwrap_err();
        assert_eq!(complaint.text, "unknown key `default_debug_hld_ms`");
        assert_eq!(complaint.fix.as_deref(), Some("did you mean `default_debug_hold_ms`?"));
        config(&toml::Table::new()).unwrap();
    }

    #[test]
    fn a_providers_table_is_checked_by_its_kind() {
        for (text, says, fix) in [
            ("[providers.local]\nmax_instnces = 1", "providers.local: unknown key `max_instnces`", "`max_instances`"),
            ("[providers.gpu]\nkind = 'locl'", "providers.gpu.kind: unknown kind `locl`", "did you mean `local`?"),
            ("[providers.gpu]\nkind = 'cloud'", "providers.gpu.kind: unknown kind `cloud`", "known: exec, local"),
            ("[providers.local]\nmax_instances = 0", "providers.local.max_instances: must be at least 1", ""),
        ] {
            let complaint = config(&text.parse().unwrap()).unwrap_err();
            assert_eq!((complaint.code, complaint.text.as_str()), (USAGE, says));
            assert!(complaint.fix.as_deref().unwrap_or_default().contains(fix), "{complaint}");
        }
        config(&"[providers.local]\nmax_instances = 2\n[prices]\nlocal = '2'".parse().unwrap()).unwrap();
    }

    #[test]
    fn every_table_of_a_control_plane_may_stand_in_a_settings_file() {
        let config = serde_json::to_value(server::Config::default()).unwrap();
        let mut tables: Vec<&str> = TABLES.to_vec();
        tables.sort_unstable();
        assert_eq!(config.as_object().unwrap().keys().collect::<Vec<_>>(), tables);
    }
}
