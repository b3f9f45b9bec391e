//! A PostgreSQL of our own for one test process: made from nothing, reached by a unix socket, gone with the process however
//! that ends.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Postgres {
    folder: tempfile::TempDir,
    /// Serves for as long as its stdin is open.
    keeper: Child,
    databases: AtomicU32,
    /// 127.0.0.1, where it listens on TCP too.
    port: Option<u16>,
    deadlocks: Arc<AtomicU32>,
}

/// The files of a server's own certificate.
pub struct Certificate {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl Postgres {
    pub fn start() -> Postgres {
        Postgres::with(String::new(), None, |_, _| {})
    }

    /// One that is reached by TCP, and speaks TLS if it has a certificate.
    pub fn on_tcp(certificate: Option<&Certificate>) -> Postgres {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        let tls =
            if certificate.is_some() { "-c ssl=on -c ssl_cert_file=../tls.crt -c ssl_key_file=../tls.key" } else { "" };
        Postgres::with(format!("-c listen_addresses=127.0.0.1 -c port={port} {tls}"), Some(port), |folder, owner| {
            let Some(certificate) = certificate else { return };
            for (name, text) in [("tls.crt", &certificate.certificate_pem), ("tls.key", &certificate.key_pem)] {
                let path = folder.join(name);
                std::fs::write(&path, text).expect("a file");
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("our own file");
                let (user, group) = owner.unzip();
                std::os::unix::fs::chown(&path, user, group).expect("root gives a file away");
            }
        })
    }

    fn with(options: String, port: Option<u16>, ready: impl FnOnce(&Path, Option<(u32, u32)>)) -> Postgres {
        let binaries = binaries();
        let folder = tempfile::Builder::new().prefix("pg").tempdir().expect("a folder for PostgreSQL");
        let owner = owner(folder.path());
        let data = folder.path().join("data");
        let mut initdb = Command::new(binaries.join("initdb"));
        initdb.args(["-A", "trust", "-U", "orch", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]).arg(&data);
        let made = as_owner(&mut initdb, owner).current_dir(folder.path()).output().expect("initdb starts");
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));

        ready(folder.path(), owner);
        // The shell outlives a killed test just long enough to end the server.
        let script = r#""$0" -D data -k "$PWD" -c listen_addresses= -c fsync=off -c deadlock_timeout=50ms -c max_connections=200 $OPTIONS 2>&1 &
                        cat; kill -QUIT $!; wait"#;
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(script).arg(binaries.join("postgres")).current_dir(folder.path());
        keeper.env("OPTIONS", options).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = as_owner(&mut keeper, owner).spawn().expect("a shell starts");
        let mut said = BufReader::new(keeper.stdout.take().expect("it is piped")).lines();
        let mut before = Vec::new();
        loop {
            let line = said
                .next()
                .unwrap_or_else(|| panic!("PostgreSQL did not start: {before:?}"))
                .expect("its words are text");
            if line.contains("ready to accept connections") {
                break;
            }
            before.push(line);
        }
        // Read to its end, so that the server never blocks on a full pipe.
        let deadlocks = Arc::<AtomicU32>::default();
        let counted = deadlocks.clone();
        std::thread::spawn(move || {
            for line in said.map_while(Result::ok) {
                counted.fetch_add(u32::from(line.contains("deadlock detected")), Ordering::SeqCst);
            }
        });
        Postgres { folder, keeper, databases: AtomicU32::new(0), port, deadlocks }
    }

    /// The address of a new, empty database.
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        // With an order of text that is not that of bytes, where the server has one: nothing of ours may depend on it.
        let hostile = format!("CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'");
        if self.tell("postgres", &hostile).is_err() {
            self.tell("postgres", &format!("CREATE DATABASE {name}")).expect("a new database");
        }
        self.url(&name)
    }

    fn url(&self, database: &str) -> String {
        let port = self.port.map_or(String::new(), |port| format!("&port={port}"));
        format!("postgres:///{database}?user=orch&host={}{port}", self.folder.path().display())
    }

    /// A new, empty database as it is reached by TCP, under this name of our machine.
    pub fn database_at(&self, host: &str) -> String {
        let (port, socket) = (self.port.expect("it listens on TCP"), self.database());
        let name = socket.split(['/', '?']).nth(3).expect("postgres:///NAME?…");
        format!("postgres://orch@{host}:{port}/{name}")
    }

    /// Deadlocks that the server has told of so far.
    pub fn deadlocks(&self) -> u32 {
        self.deadlocks.load(Ordering::SeqCst)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// On a thread of its own: the caller may be a task of a runtime, in which no other one can be driven.
    fn tell(&self, database: &str, words: &str) -> Result<(), tokio_postgres::Error> {
        let told = async || {
            let (client, connection) = tokio_postgres::connect(&self.url(database), tokio_postgres::NoTls).await?;
            let driver = tokio::spawn(connection);
            let told = client.batch_execute(words).await;
            drop(client);
            driver.await.expect("the connection's task ends")?;
            told
        };
        let drive = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(told());
        std::thread::scope(|scope| scope.spawn(drive).join().unwrap())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn binaries() -> PathBuf {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&in_path).collect();
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(installed.map(|version| version.path().join("bin")));
    let found =
        folders.into_iter().find(|folder| ["initdb", "postgres"].iter().all(|name| folder.join(name).is_file()));
    found.expect("PostgreSQL's `initdb` and `postgres` are needed for this test: install postgresql (Debian: apt-get install postgresql)")
}

/// PostgreSQL refuses to run as root; then an ordinary user owns the folder.
fn owner(folder: &Path) -> Option<(u32, u32)> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    let user = user.expect("running as root needs a user `postgres` or `nobody` for PostgreSQL");
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .expect("root gives a folder away");
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

fn as_owner(command: &mut Command, owner: Option<(u32, u32)>) -> &mut Command {
    match owner {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}
