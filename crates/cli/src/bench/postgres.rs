//! Submissions a second on PostgreSQL, beside pgbench with the same statements. Starts a server of its own unless it is given one, and
//! works in schemas of its own there.

use super::figure::{Figure, Goal};
use super::plane::{Home, Setup};
use super::{Plan, submits};
use crate::complaint::{Complaint, Done};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use testkit::pgbench;
use testkit::rehearsal::{Database, Rehearsal};

const CLIENTS: usize = 16;
/// Ids of the recorded submission are then larger than any other number in it.
const REHEARSED: usize = 300;

pub async fn measure(plan: &Plan) -> Done<Vec<Figure>> {
    let tools = tools()?;
    let private = if plan.database.is_none() { Some(Server::start(&tools)?) } else { None };
    let url = plan.database.clone().or_else(|| private.as_ref().map(Server::url)).unwrap_or_default();
    let (theirs, ours) = (Schema::make(&tools, &url, "bench_bare")?, Schema::make(&tools, &url, "bench_ours")?);
    let script = script(&theirs).await?;
    let setup = Setup { machines: 1, database: Some(ours.url.clone()), ..Setup::default() };
    let plane = submits::busy(&setup).await?;
    let (mut rates, mut bare) = (Vec::new(), Vec::new());
    for _ in plan.repeats("postgres") {
        bare.push(pgbench(&tools, &theirs, script.path(), if plan.quick { 2 } else { 5 })?);
        rates.push(submits::a_second(&plane.client, CLIENTS, plan.size(2000)).await?);
    }
    Ok(vec![
        Figure::new("postgres", "accepted, 16 clients", "/s", &rates)
            .beside("pgbench, same statements", &rates, &bare)
            .goal(Goal::AtLeast(0.5)),
    ])
}

/// What one submission says, as a file for pgbench.
async fn script(schema: &Schema) -> Done<Script> {
    let home = Home::new()?;
    let rehearsal = Rehearsal::open(home.path(), Database::Postgres(schema.url.clone()), true).await?;
    for number in 0..=REHEARSED {
        rehearsal.submit(number, true).await?;
    }
    let said = rehearsal.heard();
    let said = said.last().ok_or_else(|| Complaint::refused("a submission said nothing"))?;
    let path = home.path().join("submit.sql");
    std::fs::write(&path, pgbench::script(said)).map_err(|error| Complaint::file("write", &path, &error))?;
    Ok(Script { home })
}

struct Script {
    home: Home,
}

impl Script {
    fn path(&self) -> PathBuf {
        self.home.path().join("submit.sql")
    }
}

fn pgbench(tools: &Path, schema: &Schema, script: PathBuf, seconds: u32) -> Done<f64> {
    let clients = CLIENTS.to_string();
    let mut command = Command::new(tools.join("pgbench"));
    command.args(["-n", "-M", "prepared", "-j", "2", "-c", &clients, "-T", &seconds.to_string(), "-f"]);
    let said = output(command.arg(script).arg(&schema.url))?;
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| Complaint::refused(format!("pgbench gave no rate: {said}")))
}

/// A place of our own in a database, gone afterwards.
struct Schema {
    tools: PathBuf,
    database: String,
    name: &'static str,
    url: String,
}

impl Schema {
    fn make(tools: &Path, database: &str, name: &'static str) -> Done<Schema> {
        output(psql(tools, database).arg(format!("CREATE SCHEMA {name}")))?;
        let joint = if database.contains('?') { '&' } else { '?' };
        let url = format!("{database}{joint}options=-csearch_path%3D{name}");
        Ok(Schema { tools: tools.to_owned(), database: database.to_owned(), name, url })
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        let _ = output(psql(&self.tools, &self.database).arg(drop));
    }
}

fn psql(tools: &Path, database: &str) -> Command {
    let mut command = Command::new(tools.join("psql"));
    command.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", database, "-c"]);
    command
}

fn output(command: &mut Command) -> Done<String> {
    let said = command.stdin(Stdio::null()).output();
    let said = said.map_err(|error| Complaint::usage(format!("{command:?} could not be started: {error}")))?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        return Err(Complaint::refused(format!("{:?} failed: {}", command.get_program(), why.trim())));
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// A PostgreSQL in a temporary folder, durable as the usual one is; ends with us, also if we are killed.
struct Server {
    folder: tempfile::TempDir,
    /// Serves for as long as its stdin is open.
    shell: Child,
}

impl Server {
    fn start(tools: &Path) -> Done<Server> {
        let failed = |error: std::io::Error| Complaint::usage(format!("PostgreSQL could not be started: {error}"));
        let folder = tempfile::Builder::new().prefix("rbpg").tempdir().map_err(failed)?;
        let owner = owner(folder.path())?;
        let data = folder.path().join("data");
        let mut initdb = Command::new(tools.join("initdb"));
        initdb.args(["-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C", "-D"]).arg(&data);
        output(owner.run(&mut initdb).current_dir(folder.path()))?;
        let script = r#""$0" -D data -k "$PWD" -c listen_addresses= -c max_connections=100 >log 2>&1 &
                        cat; kill -QUIT $!; wait"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(tools.join("postgres")).current_dir(folder.path());
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = owner.run(&mut shell).spawn().map_err(failed)?;
        let server = Server { folder, shell };
        server.wait(tools)?;
        Ok(server)
    }

    /// Asks until it answers; a server that never does is a complaint.
    fn wait(&self, tools: &Path) -> Done<()> {
        for _ in 0..300 {
            let asked = Command::new(tools.join("pg_isready")).args(["-q", "-h"]).arg(self.folder.path()).status();
            if asked.is_ok_and(|status| status.success()) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        Err(Complaint::refused(format!("PostgreSQL did not start: {log}")))
    }

    fn url(&self) -> String {
        format!("postgres:///postgres?user=bench&host={}", self.folder.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn tools() -> Done<PathBuf> {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&in_path).collect();
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(installed.map(|version| version.path().join("bin")));
    let has_all =
        |folder: &PathBuf| ["initdb", "postgres", "pgbench", "psql"].iter().all(|name| folder.join(name).exists());
    folders.into_iter().find(has_all).ok_or_else(|| {
        Complaint::usage("PostgreSQL with pgbench is not installed here")
            .fix("install postgresql, or name other benches")
    })
}

/// PostgreSQL refuses to run as root; then an ordinary user owns the folder.
struct Owner(Option<(u32, u32)>);

impl Owner {
    fn run<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        match self.0 {
            Some((user, group)) => command.uid(user).gid(group),
            None => command,
        }
    }
}

fn owner(folder: &Path) -> Done<Owner> {
    if !nix::unistd::Uid::effective().is_root() {
        return Ok(Owner(None));
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| nix::unistd::User::from_name(name).ok().flatten());
    let user = user.ok_or_else(|| Complaint::usage("PostgreSQL does not run as root, and there is no other user"))?;
    std::os::unix::fs::chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
        .map_err(|error| Complaint::file("give away", folder, &error))?;
    Ok(Owner(Some((user.uid.as_raw(), user.gid.as_raw()))))
}
