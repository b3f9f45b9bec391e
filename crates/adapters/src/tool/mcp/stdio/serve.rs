//! `repl mcp-serve`: holds one server. Starts it for the first call and again for the call after it has died; asks it for as many calls at
//! once as arrive. Decides nothing about repeating: each failure says whether the call had reached the server.

use super::pipes::{Broken, Pipes};
use super::{LONGEST_REQUEST, Request, Said, ServerAnswer};
use crate::tool::mcp::session;
use crate::tool::{ToolAnswer, ToolFailure, exchange};
use model::Effect;
use model::recovery::ErrorClass;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rmcp::RoleClient;
use rmcp::model::ClientConfig;
use rmcp::service::{ClientServiceExt, Peer, RunningService};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// Pieces of the server's standard error that a call may lag behind before it misses some.
const LOG_PIECES: usize = 64;
const PIECE_BYTES: usize = 4 << 10;
/// The end of its standard error, told when it dies.
const TAIL_BYTES: usize = 1 << 10;
/// How it ended is known this long after its pipes have closed.
const REAPED_WITHIN: Duration = Duration::from_secs(1);
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(200);

/// Serves for ever; its keeper ends it.
pub fn serve(socket: &Path, argv: Vec<OsString>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = UnixListener::bind(socket)?;
        let server =
            Arc::new(Server { argv, live: tokio::sync::Mutex::default(), log: broadcast::channel(LOG_PIECES).0 });
        loop {
            let (caller, _) = listener.accept().await?;
            tokio::spawn(answer(server.clone(), caller));
        }
    })
}

struct Server {
    argv: Vec<OsString>,
    live: tokio::sync::Mutex<Option<Live>>,
    log: broadcast::Sender<Vec<u8>>,
}

/// A server with whom a session has begun.
struct Live {
    service: RunningService<RoleClient, ClientConfig>,
    process: Process,
    broken: Broken,
    tail: Tail,
}

type Tail = Arc<Mutex<Vec<u8>>>;

/// One caller, one call. A caller that leaves has given its call up.
async fn answer(server: Arc<Server>, caller: UnixStream) {
    let (read, mut write) = caller.into_split();
    let mut read = BufReader::new(read.take(LONGEST_REQUEST));
    let mut line = Vec::new();
    if read.read_until(b'\n', &mut line).await.is_err() {
        return;
    }
    let mut log = server.log.subscribe();
    let mut call = Box::pin(async {
        match serde_json::from_slice::<Request>(&line) {
            Ok(request) => server.call(request).await,
            Err(error) => {
                Err(ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", format!("mcp: {error}")))
            }
        }
    });
    let mut left = [0];
    let result = loop {
        tokio::select! {
            result = &mut call => break result,
            _ = read.read(&mut left) => return,
            piece = log.recv() => if say(&mut write, &Said::Log(shown(piece))).await.is_err() { return },
        }
    };
    while let Ok(piece) = log.try_recv() {
        let _ = say(&mut write, &Said::Log(shown(Ok(piece)))).await;
    }
    let _ = say(&mut write, &Said::Answer(ServerAnswer::from(result))).await;
}

fn shown(piece: Result<Vec<u8>, broadcast::error::RecvError>) -> String {
    match piece {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => "[output of the server was dropped]\n".to_owned(),
    }
}

async fn say(write: &mut OwnedWriteHalf, said: &Said) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    write.write_all(&line).await
}

impl Server {
    async fn call(&self, request: Request) -> Result<ToolAnswer, ToolFailure> {
        let timeout_ms = request.timeout_ms.max(1);
        let deadline = tokio::time::Instant::now() + Duration::from_millis(timeout_ms as u64);
        let begun = tokio::time::timeout_at(deadline, self.session()).await;
        let peer = begun.unwrap_or_else(|_| {
            let why = format!("the server did not begin a session within {timeout_ms} ms");
            Err(ToolFailure::new(ErrorClass::Transient, Effect::None, "timeout", why))
        })?;
        let effect = if request.asked.tool.is_some() { Effect::Perhaps } else { Effect::None };
        match tokio::time::timeout_at(deadline, session::ask(&peer, request.asked, &request.key)).await {
            Ok(Err(failed)) if failed.failure.error.code == "cut" => Err(self.death(effect).await.unwrap_or(failed)),
            Ok(result) => result,
            Err(_) => {
                let why = format!("the server did not answer within {timeout_ms} ms");
                Err(ToolFailure::new(ErrorClass::Transient, effect, "timeout", why))
            }
        }
    }

    /// With the server as it lives, or as it is started now. Callers that arrive meanwhile wait.
    async fn session(&self) -> Result<Peer<RoleClient>, ToolFailure> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.service.peer().is_transport_closed()) {
            return Ok(live.service.peer().clone());
        }
        // What is left of the one before is ended first: two of them could use the same files.
        *live = None;
        let new = live.insert(self.start().await?);
        Ok(new.service.peer().clone())
    }

    /// Nothing that fails here has reached a tool.
    async fn start(&self) -> Result<Live, ToolFailure> {
        let (mut process, stderr) = Process::start(&self.argv)?;
        let (broken, tail) = (Broken::default(), Tail::default());
        process.listener = Some(tokio::spawn(listen(stderr, self.log.clone(), tail.clone())));
        let pipes = process.pipes(broken.clone())?;
        match session::me().serve_with_lifecycle(pipes, session::lifecycle()).await {
            Ok(service) => Ok(Live { service, process, broken, tail }),
            Err(error) => {
                let found = process.end(&broken, &tail).await;
                let (why, class) = found.unwrap_or_else(|| (error.to_string(), ErrorClass::Transient));
                let why = format!("no session with the server: {why}");
                Err(ToolFailure::new(class, Effect::None, "not_connected", why))
            }
        }
    }

    /// Why a call got no answer, if the server is gone or was given up.
    async fn death(&self, effect: Effect) -> Option<ToolFailure> {
        let mut live = self.live.lock().await;
        let found = match live.as_mut().filter(|live| live.service.peer().is_transport_closed()) {
            Some(live) => live.process.end(&live.broken, &live.tail).await,
            None => return None, // another call has started it again
        };
        let closed = || ("the server closed its standard output".to_owned(), ErrorClass::Transient);
        let (why, class) = found.unwrap_or_else(closed);
        Some(ToolFailure::new(class, effect, "cut", format!("{why} while the call was under way")))
    }
}

/// Passes on what the server writes to its standard error.
async fn listen(mut stderr: ChildStderr, log: broadcast::Sender<Vec<u8>>, tail: Tail) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut piece).await {
        let bytes = &piece[..read];
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(bytes);
        let over = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..over);
        drop(tail);
        let _ = log.send(bytes.to_vec()); // an error means that no call listens
    }
}

/// The server's program and what it has started, ended together.
struct Process {
    child: Child,
    group: Option<Pid>,
    /// Ends with its standard error.
    listener: Option<JoinHandle<()>>,
}

impl Process {
    fn start(argv: &[OsString]) -> Result<(Process, ChildStderr), ToolFailure> {
        let (program, arguments) = argv.split_first().ok_or_else(|| not_started("there is no program".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).kill_on_drop(true).spawn();
        let mut child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => not_started(format!("{}: not found", program.to_string_lossy())),
            _ => not_started(format!("{}: {error}", program.to_string_lossy())),
        })?;
        let stderr = child.stderr.take().ok_or_else(|| not_started("it has no standard error".to_owned()))?;
        let group = child.id().map(|id| Pid::from_raw(id as i32));
        Ok((Process { child, group, listener: None }, stderr))
    }

    fn pipes(&mut self, broken: Broken) -> Result<Pipes, ToolFailure> {
        match (self.child.stdin.take(), self.child.stdout.take()) {
            (Some(stdin), Some(stdout)) => Ok(Pipes::new(stdin, stdout, broken)),
            _ => Err(not_started("it has no pipes".to_owned())),
        }
    }

    /// Why its session is over: it was given up for what it wrote, which it would do again, or it has ended.
    async fn end(&mut self, broken: &Broken, tail: &Tail) -> Option<(String, ErrorClass)> {
        if let Some(why) = broken.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Some((why, ErrorClass::Permanent));
        }
        let status = tokio::time::timeout(REAPED_WITHIN, self.child.wait()).await.ok()?.ok()?;
        self.kill_group();
        if let Some(listener) = self.listener.take() {
            // Its last words are on their way.
            let _ = tokio::time::timeout(LAST_WORDS_WITHIN, listener).await;
        }
        let tail = String::from_utf8_lossy(&tail.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
        let said = exchange::shown(&tail);
        let said = if said.is_empty() { String::new() } else { format!(", last saying: {said}") };
        Some((format!("the server ended ({status}){said}"), ErrorClass::Transient))
    }

    /// Once: after its program was collected and nothing is left in the group, its number may be another's.
    fn kill_group(&mut self) {
        if let Some(group) = self.group.take() {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

fn not_started(why: String) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "not_started", why)
}
