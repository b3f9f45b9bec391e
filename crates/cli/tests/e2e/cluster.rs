//! A PostgreSQL of one test: made from nothing, reached by a unix socket, gone with the test however that ends.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Serves for as long as its stdin is open: the shell outlives a killed test just long enough to end the server.
const SERVE: &str = r#""$0" -D data -k "$PWD" -c listen_addresses= -c fsync=off 2>&1 & cat; kill -QUIT $!; wait"#;

pub struct Cluster {
    folder: tempfile::TempDir,
    shell: Child,
}

impl Cluster {
    pub fn start() -> Cluster {
        let programs = programs();
        let folder = tempfile::Builder::new().prefix("e2epg").tempdir().unwrap();
        let owner = owner(folder.path());
        let mut initdb = Command::new(programs.join("initdb"));
        initdb.args(["-A", "trust", "-U", "remuda", "--no-sync", "-E", "UTF8", "--locale=C", "-D", "data"]);
        let made = as_owner(&mut initdb, owner).current_dir(folder.path()).output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut shell = Command::new("sh");
        shell.args(["-c", SERVE]).arg(programs.join("postgres")).current_dir(folder.path());
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = as_owner(&mut shell, owner).spawn().unwrap();
        let mut said = BufReader::new(shell.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line.contains("ready to accept connections")), "PostgreSQL did not start");
        // Nobody reads its log further, but it must not block on a full pipe.
        std::thread::spawn(move || said.for_each(drop));
        Cluster { folder, shell }
    }

    pub fn url(&self) -> String {
        format!("postgres:///postgres?user=remuda&host={}", self.folder.path().display())
    }
}

impl Cluster {
    /// A database of its own, for those who share a cluster.
    #[allow(dead_code, reason = "the kill test has many worlds on one cluster")]
    pub fn database(&self, name: &str) -> String {
        let mut createdb = Command::new(programs().join("createdb"));
        let made = createdb.args(["-U", "remuda", "-h"]).arg(self.folder.path()).arg(name).output().unwrap();
        assert!(made.status.success(), "createdb: {}", String::from_utf8_lossy(&made.stderr));
        format!("postgres:///{name}?user=remuda&host={}", self.folder.path().display())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().ok();
    }
}

fn programs() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = installed.map(|version| version.path().join("bin")).collect();
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let found = folders.into_iter().find(|folder| folder.join("initdb").is_file());
    found.expect(
        "PostgreSQL's `initdb` is needed for this test: install postgresql (Debian: apt-get install postgresql)",
    )
}

/// PostgreSQL refuses to run as root; then an ordinary user owns the folder.
fn owner(folder: &Path) -> Option<(u32, u32)> {
    if !nix::unistd::Uid::effective().is_root() {
        return None;
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    let user = user.expect("running as root needs a user `postgres` or `nobody` for PostgreSQL");
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
    Some((user.uid.as_raw(), user.gid.as_raw()))
}

fn as_owner(command: &mut Command, owner: Option<(u32, u32)>) -> &mut Command {
    match owner {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}
