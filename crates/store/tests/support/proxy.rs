//! A wire in front of PostgreSQL that counts how often it is waited for, and can be cut around a COMMIT. Knows nothing of the
//! protocol but the word.

use super::postgres::Postgres;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What happens to the next COMMIT that passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    No,
    /// It never arrives.
    Before,
    /// It arrives; its answer does not.
    After,
    /// And no connection gets through any more.
    AfterForGood,
    /// And the server crashes: it loses its memory, and comes back with what is on its disk.
    AfterAndCrash,
}

pub struct Proxy {
    folder: tempfile::TempDir,
    behind: String,
    wire: Arc<Wire>,
}

struct Wire {
    /// Where the server keeps its data.
    data: PathBuf,
    cut: Mutex<Cut>,
    down: AtomicBool,
    sessions: Mutex<Vec<Arc<Session>>>,
}

#[derive(Default)]
struct Session {
    /// How often the client has spoken after the server had.
    turns: AtomicUsize,
    server_spoke: AtomicBool,
    /// Carries hints between processes, not transactions.
    hints: AtomicBool,
    swallow: AtomicBool,
    crash: AtomicBool,
}

impl Proxy {
    pub fn before(postgres: &Postgres) -> Proxy {
        let folder = tempfile::Builder::new().prefix("px").tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).expect("a socket");
        let wire = Arc::new(Wire {
            data: postgres.folder().join("data"),
            cut: Mutex::new(Cut::No),
            down: AtomicBool::new(false),
            sessions: Mutex::default(),
        });
        let (passing, to) = (wire.clone(), postgres.folder().join(".s.PGSQL.5432"));
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if !passing.down.load(Ordering::SeqCst) {
                    passing.pass(client.expect("a client"), &to);
                }
            }
        });
        Proxy { folder, behind: postgres.folder().display().to_string(), wire }
    }

    /// The same database, reached through here.
    pub fn url(&self, direct: &str) -> String {
        direct.replace(&self.behind, &self.folder.path().display().to_string())
    }

    pub fn cut(&self, cut: Cut) {
        *self.wire.cut.lock().unwrap() = cut;
    }

    /// How often transactions have waited for the server so far.
    pub fn turns(&self) -> usize {
        let sessions = self.wire.sessions.lock().unwrap();
        let carry = sessions.iter().filter(|session| !session.hints.load(Ordering::SeqCst));
        carry.map(|session| session.turns.load(Ordering::SeqCst)).sum()
    }
}

impl Wire {
    fn pass(self: &Arc<Wire>, client: UnixStream, to: &Path) {
        let Ok(server) = UnixStream::connect(to) else { return };
        let session = Arc::new(Session { server_spoke: AtomicBool::new(true), ..Session::default() });
        self.sessions.lock().unwrap().push(session.clone());
        let (wire, up) = (self.clone(), (client.try_clone().unwrap(), server.try_clone().unwrap()));
        let asking = session.clone();
        std::thread::spawn(move || carry(up.0, up.1, |bytes| wire.asked(&asking, bytes)));
        let wire = self.clone();
        std::thread::spawn(move || carry(server, client, |bytes| wire.answered(&session, bytes)));
    }

    /// False: the wire is cut here.
    fn asked(&self, session: &Session, bytes: &[u8]) -> bool {
        if session.server_spoke.swap(false, Ordering::SeqCst) {
            session.turns.fetch_add(1, Ordering::SeqCst);
        }
        if says(bytes, b"LISTEN ") {
            session.hints.store(true, Ordering::SeqCst);
        }
        if !says(bytes, b"COMMIT\0") || session.hints.load(Ordering::SeqCst) {
            return true;
        }
        let cut = std::mem::replace(&mut *self.cut.lock().unwrap(), Cut::No);
        session.swallow.store(!matches!(cut, Cut::No | Cut::Before), Ordering::SeqCst);
        session.crash.store(cut == Cut::AfterAndCrash, Ordering::SeqCst);
        self.down.store(cut == Cut::AfterForGood, Ordering::SeqCst);
        cut != Cut::Before
    }

    fn answered(&self, session: &Session, bytes: &[u8]) -> bool {
        session.server_spoke.store(true, Ordering::SeqCst);
        // What was asked before the COMMIT may be answered before it is done.
        if !says(bytes, b"COMMIT\0") {
            return true;
        }
        if session.crash.load(Ordering::SeqCst) {
            self.crash();
        }
        !session.swallow.load(Ordering::SeqCst)
    }

    /// Kills one of the server's helpers: it ends all others and recovers.
    fn crash(&self) {
        let postmaster = std::fs::read_to_string(self.data.join("postmaster.pid")).expect("it runs");
        let postmaster = postmaster.lines().next().expect("a number").trim();
        let children =
            std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).expect("it runs");
        let is_helper = |pid: &&str| {
            let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.starts_with("postgres: checkpointer")
        };
        let helper = children.split_whitespace().find(is_helper).expect("it has one");
        let killed = std::process::Command::new("kill").args(["-KILL", helper]).status().expect("a command");
        assert!(killed.success());
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, mut passes: impl FnMut(&[u8]) -> bool) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(size @ 1..) = from.read(&mut buffer) {
        if !passes(&buffer[..size]) || to.write_all(&buffer[..size]).is_err() {
            break;
        }
    }
    // Whichever side ended, the other hears of it.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn says(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}
