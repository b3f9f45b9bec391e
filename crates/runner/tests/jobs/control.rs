//! A control plane in a few lines: speaks the runner protocol over a unix socket, remembers what it is told, and fails
//! on request. Only for tests.

use crate::host::STEP;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use wire::model::step::StepTry;
use wire::model::{InstanceId, JobId};
use wire::runner::*;

pub const ID: &str = "testctl1";
/// Far beyond anything here; a test that waits this long has failed.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Control {
    pub path: PathBuf,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub struct State {
    pub session: i64,
    pub registers: Vec<Register>,
    pub beats: u64,
    pub desired: Vec<DesiredJob>,
    pub kept_workdirs: Vec<String>,
    pub version: i64,
    pub shutdown: bool,
    pub logs: BTreeMap<(JobId, StepTry), Log>,
    /// Every fact as it came, repeats too.
    pub facts: Vec<Fact>,
    /// How many facts came in each report.
    pub batches: Vec<usize>,
    pub refuse: BTreeSet<JobId>,
    pub refuse_tries: BTreeSet<StepTry>,
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub blobs_served: u64,
    pub packs_served: u64,
    pub artifacts: BTreeMap<(JobId, String), Vec<u8>>,
    /// Reports that are taken in, but whose answer gets lost.
    pub lose_answers: u32,
    pub down: bool,
    /// The code of the 410 that every request is answered; none: they are answered as usual.
    pub answers_410: Option<&'static str>,
    /// Requests that were answered so.
    pub refused: u64,
    pub superseded: bool,
    /// Sessions up to this one are not known any more.
    pub forgotten: i64,
}

#[derive(Default, Clone)]
pub struct Log {
    pub frames: Vec<(Stream, Vec<u8>)>,
    pub next: i64,
}

impl Log {
    pub fn stream(&self, wanted: Stream) -> Vec<u8> {
        self.frames.iter().filter(|(stream, _)| *stream == wanted).flat_map(|(_, bytes)| bytes.clone()).collect()
    }
    pub fn text(&self, wanted: Stream) -> String {
        String::from_utf8_lossy(&self.stream(wanted)).into_owned()
    }
}

impl State {
    pub fn ended(&self, job: JobId) -> Option<&What> {
        let ended = |fact: &&Fact| fact.job == job && matches!(fact.what, What::Ended { .. });
        self.facts.iter().find(ended).map(|fact| &fact.what)
    }
    pub fn ended_step(&self, step: StepTry) -> Option<&What> {
        let ended = |fact: &&Fact| fact.step == Some(step) && matches!(fact.what, What::Ended { .. });
        self.facts.iter().find(ended).map(|fact| &fact.what)
    }
    pub fn log(&self, job: JobId) -> Log {
        self.log_of(job, STEP)
    }
    pub fn log_of(&self, job: JobId, step: StepTry) -> Log {
        self.logs.get(&(job, step)).cloned().unwrap_or_default()
    }
    pub fn has(&self, job: JobId, stream: Stream, text: &str) -> bool {
        self.log(job).text(stream).contains(text)
    }

    fn document(&self) -> Desired {
        let mut jobs = self.desired.clone();
        for job in &mut jobs {
            for step in &mut job.steps {
                step.log_offset = self.log_of(job.job, step.step).next;
            }
        }
        Desired {
            version: self.version,
            instance: InstanceId(1),
            jobs,
            kept_workdirs: self.kept_workdirs.clone(),
            snapshots: Vec::new(),
            features: Vec::new(),
            shutdown: self.shutdown,
        }
    }

    /// The rules of the store: beyond the end is a gap and changes nothing, an overlap is trimmed.
    fn take_log(&mut self, chunk: &LogChunk) {
        let log = self.logs.entry((chunk.job, chunk.step)).or_default();
        let mut at = chunk.offset;
        for frame in &chunk.frames {
            assert!(frame.data.0.len() <= 64 << 10, "a frame has at most 64 KiB");
            let end = at + frame.data.0.len() as i64;
            if at <= log.next && end > log.next {
                log.frames.push((frame.stream, frame.data.0[(log.next - at) as usize..].to_vec()));
                log.next = end;
            }
            at = end;
        }
    }

    fn report(&mut self, batch: ReportBatch) -> ReportAnswer {
        self.batches.push(batch.facts.len());
        let mut refused = Vec::new();
        for fact in &batch.facts {
            let (code, message) = ("old_epoch".to_owned(), String::new());
            if self.refuse.contains(&fact.job) {
                refused.push(RefusedFact { job: fact.job, epoch: fact.epoch, step: None, code, message });
            } else if fact.step.is_some_and(|step| self.refuse_tries.contains(&step)) {
                refused.push(RefusedFact { job: fact.job, epoch: fact.epoch, step: fact.step, code, message });
            }
        }
        batch.logs.iter().for_each(|chunk| self.take_log(chunk));
        let reach = |chunk: &LogChunk| LogReach {
            job: chunk.job,
            epoch: chunk.epoch,
            step: chunk.step,
            offset: self.log_of(chunk.job, chunk.step).next,
        };
        let log_offsets = batch.logs.iter().map(reach).collect();
        self.facts.extend(batch.facts);
        ReportAnswer { log_offsets, refused, session_current: !self.superseded }
    }
}

impl Control {
    pub fn start(dir: &Path) -> Arc<Control> {
        let path = dir.join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let control = Arc::new(Control { path, state: Mutex::default(), changed: watch::channel(0).0 });
        let serving = control.clone();
        tokio::spawn(async move {
            loop {
                let (peer, _) = listener.accept().await.unwrap();
                tokio::spawn(serving.clone().converse(peer));
            }
        });
        control
    }

    pub fn see<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap())
    }

    /// Changes the state; the desired document gets a new version.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = {
            let mut state = self.state.lock().unwrap();
            state.version += 1;
            change(&mut state)
        };
        self.changed.send_modify(|n| *n += 1);
        changed
    }

    /// Waits until it is so.
    pub async fn until(&self, what: &str, mut is: impl FnMut(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        let waited = tokio::time::timeout(TIMEOUT, async {
            while !self.see(&mut is) {
                changed.changed().await.unwrap();
            }
        });
        let facts = || self.see(|state| format!("{:?}", state.facts));
        waited.await.unwrap_or_else(|_| panic!("waited in vain for: {what}; told so far: {}", facts()));
    }

    async fn converse(self: Arc<Control>, peer: UnixStream) {
        let mut peer = BufReader::new(peer);
        while let Some((method, target, body)) = read_request(&mut peer).await {
            if self.see(|state| state.down) {
                return;
            }
            if let Some(code) = self.see(|state| state.answers_410) {
                let problem = format!(r#"{{"code":"{code}","title":"gone","status":410}}"#);
                let head = format!("HTTP/1.1 410 Gone\r\ncontent-length: {}\r\n\r\n{problem}", problem.len());
                let sent = peer.write_all(head.as_bytes()).await;
                self.state.lock().unwrap().refused += 1;
                self.changed.send_modify(|n| *n += 1);
                match sent {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
            let target = target.strip_prefix("/runner/v1/").expect("the runner protocol").to_owned();
            if let Some(session) = target.strip_prefix("desired?session=") {
                let session = session.parse().unwrap();
                if self.see(|state| session <= state.forgotten) {
                    let problem = r#"{"code":"not_found","title":"no such session","status":404}"#;
                    let head = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{problem}", problem.len());
                    let _ = peer.write_all(head.as_bytes()).await;
                    return;
                }
                return self.stream(peer, session).await;
            }
            let Some((status, answer)) = self.answer(&method, &target, body) else { return };
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", answer.len());
            if peer.write_all(head.as_bytes()).await.is_err() || peer.write_all(&answer).await.is_err() {
                return;
            }
        }
    }

    /// None: the answer gets lost.
    fn answer(&self, method: &str, target: &str, body: Vec<u8>) -> Option<(&'static str, Vec<u8>)> {
        let json = |value: serde_json::Value| Some(("200 OK", serde_json::to_vec(&value).unwrap()));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.split('/').collect();
        match (method, parts.as_slice()) {
            ("POST", ["register"]) => {
                let register: Register = serde_json::from_slice(&body).unwrap();
                let registered = self.change(|state| {
                    state.session += 1;
                    state.registers.push(register);
                    Registered { session: state.session, control_plane_id: ID.to_owned(), desired: state.document() }
                });
                json(serde_json::to_value(registered).unwrap())
            }
            ("POST", ["heartbeat"]) => {
                let _: Heartbeat = serde_json::from_slice(&body).unwrap();
                let mut state = self.state.lock().unwrap();
                state.beats += 1;
                let (desired_version, session_current) = (state.version, !state.superseded);
                let beat = Beat { control_plane_id: ID.to_owned(), desired_version, session_current };
                json(serde_json::to_value(beat).unwrap())
            }
            ("POST", ["report"]) => {
                assert!(body.len() < 1 << 20, "a batch of {} bytes", body.len());
                let batch = serde_json::from_slice(&body).unwrap();
                let (answer, lost) = {
                    let mut state = self.state.lock().unwrap();
                    let lost = state.lose_answers > 0;
                    state.lose_answers = state.lose_answers.saturating_sub(1);
                    (state.report(batch), lost)
                };
                self.changed.send_modify(|n| *n += 1);
                if lost { None } else { json(serde_json::to_value(answer).unwrap()) }
            }
            ("GET", ["blobs", hash]) => {
                let mut state = self.state.lock().unwrap();
                state.blobs_served += 1;
                match state.blobs.get(*hash) {
                    Some(bytes) => Some(("200 OK", bytes.clone())),
                    None => Some(("404 Not Found", br#"{"code":"not_found","title":"no such blob"}"#.to_vec())),
                }
            }
            ("POST", ["blobs"]) => {
                let asked: BlobsAsked = serde_json::from_slice(&body).unwrap();
                let mut state = self.state.lock().unwrap();
                state.packs_served += 1;
                let mut packed = Vec::new();
                for hash in &asked.hashes {
                    if let Some(bytes) = state.blobs.get(hash) {
                        wire::pack::push(&mut packed, false, hash, bytes);
                    }
                }
                Some(("200 OK", packed))
            }
            ("PUT", [kind @ ("blobs" | "trees"), hash]) => {
                assert_eq!(blake3::hash(&body).to_hex().as_str(), *hash);
                self.change(|state| {
                    if *kind == "trees" {
                        let tree = wire::model::tree::Tree::parse(&body).unwrap();
                        assert!(
                            tree.children().all(|child| state.blobs.contains_key(child.hash)),
                            "children come first"
                        );
                    }
                    state.blobs.insert(hash.to_string(), body)
                });
                Some(("204 No Content", Vec::new()))
            }
            ("PUT", ["jobs", job, "artifacts"]) => {
                let query: BTreeMap<&str, &str> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
                assert_eq!(query["epoch"], "1");
                let name = query["path"].replace("%2F", "/");
                self.change(|state| state.artifacts.insert((job.parse().unwrap(), name), body));
                Some(("204 No Content", Vec::new()))
            }
            _ => panic!("not in the protocol: {method} {target}"),
        }
    }

    async fn stream(&self, mut peer: BufReader<UnixStream>, session: i64) {
        let mut changed = self.changed.subscribe();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n";
        if peer.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        let mut told = -1;
        loop {
            let (down, superseded, document) =
                self.see(|state| (state.down, state.superseded, serde_json::to_string(&state.document()).unwrap()));
            let version = self.see(|state| state.version);
            if down || self.see(|state| session <= state.forgotten || state.answers_410.is_some()) {
                return;
            }
            if superseded {
                let _ = peer.write_all(b"event: superseded\ndata: {}\n\n").await;
                return;
            }
            if version > told {
                told = version;
                let event = format!("id: {version}\nevent: desired\ndata: {document}\n\n");
                if peer.write_all(event.as_bytes()).await.is_err() {
                    return;
                }
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

async fn read_request(peer: &mut BufReader<UnixStream>) -> Option<(String, String, Vec<u8>)> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if peer.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let mut words = head.first()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok()).unwrap_or(0);
    assert!(head.iter().any(|line| line.trim() == "authorization: Bearer repl-test.secret-token"), "{head:?}");
    let mut body = vec![0; length];
    peer.read_exact(&mut body).await.ok()?;
    Some((method, target, body))
}
