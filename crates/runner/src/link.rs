//! The connection to the control plane: registers, follows the desired document, sends heartbeats. Reconnects for ever: losing the
//! connection ends no job. What a long silence means is decided by the daemon.

use crate::clock::Backoff;
use crate::daemon::Event;
use crate::key::JobKey;
use crate::sandbox;
use crate::spool;
use crate::usage::Meter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use wire::client::{Client, ClientError};
use wire::model::boot::Boot;
use wire::model::crash_point;
use wire::model::stub::SealedStub;
use wire::runner::{Beat, Desired, Heartbeat, KnownJob, KnownStub, Register, Registered};

#[derive(Debug)]
pub enum Heard {
    Registered(Box<Registered>),
    Desired(Box<Desired>),
    Beat(Beat),
    /// A newer session has registered: this process must leave.
    Superseded,
    /// No row knows this runner, or one of its jobs.
    Unlisted,
    /// The row of this machine is closed: its provider was told to end it.
    Terminated,
    Lost(String),
}

impl Heard {
    fn of(error: &ClientError) -> Heard {
        if error.is_unlisted() { Heard::Unlisted } else { Heard::Lost(error.to_string()) }
    }
}

/// The client, address and token for requests to the control plane.
#[derive(Clone)]
pub struct Line {
    pub client: Client,
    up: watch::Receiver<bool>,
}

impl Line {
    pub fn new(client: Client, up: watch::Receiver<bool>) -> Line {
        Line { client, up }
    }

    pub fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Results wait: no control plane answers, or the one that answers does not know their jobs.
    pub fn is_away(&self, error: &ClientError) -> bool {
        error.is_unlisted() || (matches!(error, ClientError::Unreachable(_)) && !self.is_up())
    }

    /// Waits, and longer while the line is down; but not for ever, in case its return went unnoticed.
    pub async fn try_again_after(&mut self, wait: Duration) {
        tokio::time::sleep(wait).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), self.up.wait_for(|up| *up)).await;
    }
}

/// What the line reports about this runner; the daemon keeps it current.
#[derive(Default)]
pub struct Inventory {
    pub jobs: Vec<KnownJob>,
    pub stubs: Vec<KeptStub>,
    pub observed_version: i64,
}

/// The stub of a job, and where its output is.
pub struct KeptStub {
    pub key: JobKey,
    pub stub: Arc<SealedStub>,
    pub started: bool,
    pub ended: bool,
    pub output: Option<PathBuf>,
}

impl KeptStub {
    fn known(&self) -> KnownStub {
        KnownStub {
            job: self.key.job,
            epoch: self.key.epoch,
            stub: (*self.stub).clone(),
            started: self.started,
            ended: self.ended,
            log_from: self.output.as_deref().map_or(0, spool::first),
        }
    }
}

pub struct Link {
    pub line: Line,
    pub dir: PathBuf,
    pub boot: Boot,
    pub containment: &'static str,
    pub inventory: Arc<Mutex<Inventory>>,
    /// The daemon asks for the whole document again: the stream is opened anew.
    pub reopen: Arc<Notify>,
    /// The session is not known any more: register anew.
    pub renew: Arc<Notify>,
    pub heard: mpsc::UnboundedSender<Event>,
}

/// How a followed stream ended.
enum Ended {
    Lost,
    /// The control plane does not know this session.
    Forgotten,
    Superseded,
}

impl Link {
    /// Runs until a newer session supersedes it, the machine is terminated, or the daemon ends.
    pub async fn run(self) {
        let (session_known, session) = watch::channel(0);
        tokio::join!(self.follow(session_known), self.beat(session));
    }

    async fn follow(&self, session_known: watch::Sender<i64>) {
        let mut backoff = Backoff::default();
        while !self.heard.is_closed() {
            let session = match self.register().await {
                Ok(registered) => {
                    let session = registered.session;
                    self.tell(Heard::Registered(Box::new(registered)));
                    session
                }
                Err(error) if error.is_gone() => return self.tell(Heard::Terminated),
                Err(error) => {
                    self.tell(Heard::of(&error));
                    tokio::time::sleep(backoff.next()).await;
                    continue;
                }
            };
            session_known.send_replace(session);
            loop {
                match self.read_desired(session, &mut backoff).await {
                    Ended::Superseded => return self.tell(Heard::Superseded),
                    Ended::Forgotten => break,
                    Ended::Lost if self.heard.is_closed() => return,
                    Ended::Lost => tokio::time::sleep(backoff.next()).await,
                }
            }
            tokio::time::sleep(backoff.next()).await;
        }
    }

    async fn register(&self) -> Result<Registered, ClientError> {
        let about = Meter::host();
        let (jobs, stubs) = {
            let inventory = self.inventory.lock().expect("no one panics with it");
            (inventory.jobs.clone(), inventory.stubs.iter().map(KeptStub::known).collect())
        };
        // It makes a sandbox, once.
        let sandbox = tokio::task::spawn_blocking(sandbox::can).await.expect("a trial does not panic");
        let register = Register {
            name: self.boot.name.clone(),
            nonce: self.boot.nonce.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: about.name,
            jobs,
            stubs,
            cpu_milli: self.boot.cpu_milli.or(Some(about.cpu_milli)),
            memory_bytes: self.boot.memory_bytes.or(Some(about.memory_bytes)),
            containment: Some(self.containment.to_owned()),
            sandbox: Some(sandbox.map_or_else(|why| format!("none: {why}"), str::to_owned)),
        };
        let posted = crash_point!("register.post", self.line.client.post("/runner/v1/register", &register).await);
        let registered: Registered = posted?;
        self.same_control_plane(&registered.control_plane_id)?;
        Ok(registered)
    }

    /// Another control plane at the same address has no say here.
    fn same_control_plane(&self, id: &str) -> Result<(), ClientError> {
        if id == self.boot.control_id {
            return Ok(());
        }
        Err(ClientError::Protocol(format!(
            "control plane {id} answers, this instance belongs to {}",
            self.boot.control_id
        )))
    }

    async fn read_desired(&self, session: i64, backoff: &mut Backoff) -> Ended {
        let path = format!("/runner/v1/desired?session={session}");
        let mut events = match self.line.client.events(&path, None).await {
            Ok(events) => events,
            Err(error) => return self.lost(error),
        };
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = self.reopen.notified() => return Ended::Lost,
                () = self.renew.notified() => return Ended::Forgotten,
            };
            match event {
                Ok(Some(event)) if event.event == "desired" => match serde_json::from_str(&event.data) {
                    Ok(desired) => {
                        backoff.reset();
                        self.tell(Heard::Desired(Box::new(desired)));
                    }
                    Err(error) => return self.lost(ClientError::Protocol(error.to_string())),
                },
                Ok(Some(event)) if event.event == "superseded" => return Ended::Superseded,
                Ok(Some(_)) => {} // of a later version
                Ok(None) => return self.lost(ClientError::Unreachable("the stream ended".to_owned())),
                Err(error) => return self.lost(error),
            }
        }
    }

    fn lost(&self, error: ClientError) -> Ended {
        let ended = match error.problem() {
            Some(problem) if problem.status < 500 && problem.status != 429 => Ended::Forgotten,
            _ => Ended::Lost,
        };
        self.tell(Heard::of(&error));
        ended
    }

    /// At once, then at every interval; a session's first beat does not wait for the last one's interval.
    async fn beat(&self, mut session: watch::Receiver<i64>) {
        let every = Duration::from_millis(self.boot.timings.heartbeat_every_ms.max(1) as u64);
        let mut meter = Meter::new(&self.dir);
        let known = |session: &i64| *session != 0;
        if session.wait_for(known).await.is_err() {
            return;
        }
        while !self.heard.is_closed() {
            let current = *session.borrow_and_update();
            match self.beat_once(current, &mut meter, every).await {
                Ok(beat) => self.tell(Heard::Beat(beat)),
                Err(error) => self.tell(Heard::of(&error)),
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                changed = session.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn beat_once(&self, session: i64, meter: &mut Meter, every: Duration) -> Result<Beat, ClientError> {
        let heartbeat = {
            let inventory = self.inventory.lock().expect("no one panics with it");
            Heartbeat {
                session,
                observed_version: inventory.observed_version,
                nonce: self.boot.nonce.clone(),
                usage: meter.usage(),
                jobs: inventory.jobs.clone(),
            }
        };
        let request = self.line.client.request(wire::client::Method::POST, "/runner/v1/heartbeat").json(&heartbeat);
        let request = request.within(every.max(Duration::from_secs(5)));
        let beat: Beat = crash_point!("heartbeat.post", request.send().await)?.json().await?;
        self.same_control_plane(&beat.control_plane_id)?;
        Ok(beat)
    }

    fn tell(&self, heard: Heard) {
        let _ = self.heard.send(Event::Link(heard)); // an error means that the daemon is ending
    }
}
