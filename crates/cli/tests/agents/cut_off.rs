//! A worker whose line to the database is cut for longer than its lease, in the middle of calls. Another one takes its steps over; what the
//! first one learns meanwhile is late, and no effect is had twice.

use crate::api::Api;
use crate::cluster::Cluster;
use crate::home::Home;
use crate::process::{self, Running};
use crate::recorder::{Recorder, Reply};
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

/// A way to the database on which everything can be held up, in both directions and for new connections too.
struct Line {
    folder: tempfile::TempDir,
    cut: Arc<(Mutex<bool>, Condvar)>,
}

/// The name of PostgreSQL's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";

impl Line {
    fn to(database: PathBuf) -> Line {
        let folder = tempfile::Builder::new().prefix("line").tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let cut: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let held_up = cut.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = UnixStream::connect(database.join(SOCKET)) else { continue };
                let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
                for (from, to) in ways {
                    let cut = held_up.clone();
                    std::thread::spawn(move || carry(from, to, &cut));
                }
            }
        });
        Line { folder, cut }
    }

    fn url(&self) -> String {
        format!("postgres:///postgres?user=remuda&host={}", self.folder.path().display())
    }

    fn set_cut(&self, cut: bool) {
        *self.cut.0.lock().unwrap() = cut;
        self.cut.1.notify_all();
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, (cut, changed): &(Mutex<bool>, Condvar)) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        drop(changed.wait_while(cut.lock().unwrap(), |cut| *cut).unwrap());
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    to.shutdown(std::net::Shutdown::Both).ok();
}

#[test]
fn a_worker_cut_off_from_the_database_for_longer_than_its_lease_repeats_nothing() {
    let recorder = Recorder::answering(|record, times| match (record.path.as_str(), times) {
        ("/pay" | "/put", 1) => Reply::Held("the line is cut"),
        (_, times) => Reply::Json(json!({ "times": times })),
    });
    let cluster = Cluster::start();
    let line = Line::to(cluster.folder().to_owned());
    let mut home = Home::with("[timings]\nlease_ms = 1000\n[tools]\nallow = [\"127.0.0.1\"]\n");
    home.set("REPL_DATABASE", &cluster.url());
    let mut server = Running::start(&mut home.repl(&["server", "--no-worker", "--listen", "127.0.0.1:0"]));
    let address = server.hear("serving http://").trim().rsplit_once("http://").unwrap().1.to_owned();
    let token = std::fs::read_to_string(home.data().join("token")).unwrap();
    home.set("REPL_TOKEN", &token);
    home.set("REPL_URL", &format!("http://{address}"));
    let worker = |url: &str| {
        let mut worker = Running::start(home.repl(&["worker", "--server", &address]).env("REPL_DATABASE", url));
        worker.hear("working");
        worker
    };
    let cut_off = worker(&line.url());
    let step = |name: &str, method: &str, idempotent: bool| {
        let http = json!({ "method": method, "url": recorder.url(&format!("/{name}")), "json": {} });
        json!({ "name": name, "tasks": [{ "name": "t", "steps": [
            { "name": name, "http": http, "idempotent": idempotent, "timeout": "3s", "retry": 5 }] }] })
    };
    let plan = json!({ "type": "agents", "agents": [step("pay", "POST", false), step("put", "PUT", true)] });
    home.write("plan.repl.yml", plan.to_string());
    let run = home.json(&["run", "plan.repl.yml", "--detach"])["id"].as_str().unwrap().to_owned();
    recorder.hears("/pay", 1);
    recorder.hears("/put", 1);
    line.set_cut(true);
    let other = worker(&cluster.url());
    // What may be repeated is, by the other worker and under the same key.
    recorder.hears("/put", 2);
    // The first worker gets the answers of both calls, and cannot record them.
    recorder.release("the line is cut");
    // What must not be repeated is asked about.
    let mut told = Running::start(&mut home.repl(&["events", "-f", "--json", &run]));
    while !told.line().contains("run.paused") {}
    process::kill(told.pid());
    told.end();
    let tickets = Api::of(&home).get("/escalations");
    let ticket = &tickets["data"][0];
    assert_eq!(ticket["path"], "pay/t/pay", "{tickets}");
    home.done(&["escalation", "resolve", ticket["id"].as_str().unwrap(), "done"]);
    let ended = home.attach(&run);
    assert_eq!(ended.code, 0, "{ended}");
    // The line is whole again: what the first worker has to say is late, and it works again.
    process::kill(other.pid());
    other.end();
    line.set_cut(false);
    let alone = json!({ "type": "agents", "agents": [step("last", "POST", false)] });
    home.write("alone.repl.yml", alone.to_string());
    let ended = home.say(&["run", "alone.repl.yml"]);
    assert_eq!(ended.code, 0, "{ended}");
    let keys = |path: &str| -> Vec<_> {
        recorder.records().iter().filter(|record| record.path == path).map(|record| record.key.clone()).collect()
    };
    assert_eq!(keys("/pay").len(), 1);
    assert_eq!(keys("/put")[0], keys("/put")[1]);
    home.adds_up();
    for process in [cut_off, server] {
        process::signal(process.pid(), nix::sys::signal::Signal::SIGTERM);
        process.end();
    }
}
