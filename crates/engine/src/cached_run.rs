//! Runs that are answered by content: the key of a run, the look-up, and the answer. A caller rests in `created` until it is answered; then
//! it goes from there to its end in one commit, without a job.

use crate::execution::{Request, Work, open};
use crate::run::{KeyedResponse, Render, Submission, affordable, check_asked, check_secrets, fresh, use_contents};
use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use calls::cached_run::{Artifact, CachedRun, Call, FUNCTION, File, Machine, RunValue, Stream, is_hit};
use calls::key::Epoch;
use calls::record::{ExecStatus, Node as CallNode};
use calls::{ExecId, Fault, Id, NodeId, Value, read};
use model::hierarchy::{self, Pick, Rows};
use model::host::{Platform, Wanted};
use model::run::{Called, LastError, RunEvent, RunReason};
use model::spec::{Cache, CallPart, Command, RunSpec};
use model::tree::{MAX_DEPTH, Node, Tree, check_cached};
use model::{Failure, OrgId, Refused, RunId, Trouble, TroubleKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::artifact::{Announced, EntryKind};
use store::blob::{BlobHash, BlobName, Blobs, Download};
use store::idempotency::Key;
use store::log_file::LogStream;
use store::object::Objects;
use store::{Lane, Tx, WorkKind};

/// How a mode says that an artifact is a folder or a link: the bits of `st_mode`.
pub(crate) const FOLDER: u32 = 0o040_000;
pub(crate) const LINK: u32 = 0o120_000;

/// What ends a caller.
#[derive(Debug, Clone)]
pub(crate) enum CallerEnd {
    /// The result of an exec.
    Kept(Box<KeptResult>),
    /// No result came about.
    Failed { error: LastError, exit_code: Option<i32>, signal: Option<i32> },
}

#[derive(Debug, Clone)]
pub(crate) struct KeptResult {
    pub exec: ExecId,
    pub status: ExecStatus,
    /// The run that executed it.
    pub by: Option<RunId>,
    pub value: RunValue,
    /// Where its artifacts that are links lead to.
    pub links: BTreeMap<Vec<u8>, String>,
}

impl Engine {
    /// Answers from a kept result, or joins the execution of the same call, or begins one.
    pub(crate) async fn submit_cached(
        &self,
        submission: Submission,
        cache: Cache,
        key: Option<Key>,
        render: Render,
    ) -> Result<KeyedResponse, Failure> {
        check_asked(&self.context, &submission)?;
        if !submission.start {
            return Err(Refused::invalid("start", "a cached run is looked up when it is submitted: start it").into());
        }
        self.check_stdin(&submission).await?;
        let called = Arc::new(self.call_of(submission.org, &submission.spec, &cache).await?);
        let (context, blobs) = (self.context.clone(), self.blobs.clone());
        self.keyed(Lane::Normal, "run.submit_cached", key, 201, move |tx| {
            check_secrets(tx, &submission)?;
            let mut run = fresh(tx, &submission);
            use_contents(tx, run.id, &submission)?;
            let call = &called.call;
            store::object::put(tx, submission.org, &call.records)?;
            let answer = kept(tx, (&context, &blobs), submission.org, call.node, cache.errors)?;
            let mut asked = Called { node: call.node.to_string(), execution: None, run: None, exec: None };
            if answer.is_none() {
                affordable(tx, &context, &submission)?;
                let (execution, backend) = join(tx, &submission, &called, (run.id, cache.errors))?;
                (asked.execution, asked.run) = (Some(execution), Some(backend));
            }
            run.call = Some(asked);
            let mut run_tx = RunTx::fresh(tx, &context, run, submission.spec.content());
            run_tx.by.clone_from(&submission.by);
            run_tx.created();
            if let Some(answer) = answer {
                run_tx.replay(&answer)?;
            }
            Ok(render(&run_tx.close_shown()?))
        })
        .await
    }

    /// The call node of a run: everything of it that may change its result.
    pub(crate) async fn call_of(&self, org: OrgId, spec: &RunSpec, cache: &Cache) -> Result<CalledRun, Failure> {
        self.know_hosts(std::slice::from_ref(&spec.provider)).await?;
        let (Platform { architecture, os_release }, bound) = platform(&self.context, spec)?;
        let machine = Machine::Host { provider: spec.provider.clone(), architecture, os_release };
        let roots: Vec<String> = spec.base.iter().chain(&spec.files).map(|tree| tree.hash.clone()).collect();
        let blobs = self.blobs.clone();
        let files = store::blob::blocking(move || {
            let mut files = BTreeMap::new();
            // What is laid down later takes the place of what lies there.
            roots.iter().try_for_each(|root| unfold(&blobs, org, root, &mut files))?;
            Ok(files)
        });
        let word = |word: &String| word.clone().into_bytes();
        let run = CachedRun {
            argv: argv(&spec.command).iter().map(word).collect(),
            working_dir: spec.working_dir.iter().flat_map(|dir| dir.bytes()).collect(),
            files: files.await?,
            env: spec.env.iter().map(|(name, value)| (word(name), word(value))).collect(),
            secrets: spec.secrets.iter().cloned().collect(),
            machine,
            gpu: spec.resources.gpu.as_ref().map(ToString::to_string),
            nodes: spec.nodes,
            init: spec.init_checksum.clone(),
            stdin: spec.stdin.as_ref().map(|stdin| id_of(&stdin.hash)).transpose()?,
            artifacts: spec.artifacts.clone(),
            merge: spec.merge,
            salt: cache.salt.clone(),
            // No model asks for a process of a cached run.
            sandbox: spec.sandbox.and_then(|it| it.around(false)).map(|it| it.network.to_string()),
        };
        let no_key = |bad| Refused::invalid("cache", format!("no key can be made of this run: {bad}"));
        Ok(CalledRun { call: run.call().map_err(no_key)?, platform: bound })
    }
}

/// The index of an org's project.
pub(crate) fn project(context: &EngineContext) -> String {
    context.config.calls.project.clone()
}

/// A run as a call.
#[derive(Debug)]
pub(crate) struct CalledRun {
    pub call: Call,
    /// The only hosts that may execute it.
    pub platform: Option<Platform>,
}

/// The platform that is in the key of this run, and that again if the run is bound to it because its provider has hosts: then it is that of
/// the first host that could hold the run. Whether that host is up or free plays no part: the key must not change with it.
fn platform(context: &EngineContext, spec: &RunSpec) -> Result<(Platform, Option<Platform>), Refused> {
    let name = &spec.provider;
    let refused = |why: String| Refused::invalid("cache", format!("{why}: use --provider local, or leave out --cache"));
    let provider = context.provider(name)?;
    let hosts = context.providers.all().get(name).map_or_else(Vec::new, |listing| listing.hosts.clone());
    if hosts.is_empty() {
        let why = || {
            format!(
                "the machines of `{name}` may differ in architecture and operating system, so that no result can be kept for them"
            )
        };
        return Ok((provider.platform().ok_or_else(|| refused(why()))?, None));
    }
    let wanted = Wanted { sandbox: spec.sandbox.is_some(), ..Wanted::from(&spec.resources) };
    let known = hosts.iter().filter(|host| host.could(wanted).is_ok()).find_map(|host| host.facts.as_ref());
    let why = || format!("no host of `{name}` that could run this has said yet which operating system it has");
    let platform = known.ok_or_else(|| refused(why()))?.platform();
    Ok((platform.clone(), Some(platform)))
}

/// As the runner starts it.
fn argv(command: &Command) -> Vec<String> {
    let shell = |text: String| vec!["/bin/sh".to_owned(), "-c".to_owned(), text];
    match command {
        Command::Shell(text) => shell(text.clone()),
        Command::Script(entries) => shell(model::spec::script(entries)),
        Command::Argv(argv) => argv.clone(),
    }
}

fn id_of(hash: &str) -> Result<Id, Refused> {
    hash.parse().map_err(|_| Refused::invalid("hash", format!("`{hash}` is not a BLAKE3 hash in hex")))
}

/// All files below a folder's document, by path. A link and an empty folder have the hash of what they are.
fn unfold(blobs: &Blobs, org: OrgId, root: &str, files: &mut BTreeMap<Vec<u8>, File>) -> Result<(), Failure> {
    let plain = |text: String| File { hash: Id::of(text.as_bytes()), executable: false };
    let mut open = vec![(root.to_owned(), String::new(), 0)];
    while let Some((hash, path, depth)) = open.pop() {
        if depth > MAX_DEPTH {
            return Err(Refused::invalid("files", "folders are nested too deep").into());
        }
        let name = BlobName::Content { org, hash: hash.parse()? };
        let tree = Tree::parse(&blobs.open(&name)?.read_all()?)?;
        if tree.entries.is_empty() && !path.is_empty() {
            files.insert(path.clone().into_bytes(), plain("an empty folder".into()));
        }
        for entry in tree.entries {
            let at = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            match entry.node {
                Node::Folder { hash } => open.push((hash, at, depth + 1)),
                Node::File { hash, mode, .. } => {
                    files.insert(at.into_bytes(), File { hash: id_of(&hash)?, executable: mode & 0o100 != 0 });
                }
                Node::Link { target } => {
                    files.insert(at.into_bytes(), plain(format!("a link to {target}")));
                }
            }
            check_cached(files.len() as i64)?;
        }
    }
    Ok(())
}

/// The result that is pinned for a call, if it answers this caller and all of it is here.
pub(crate) fn kept(
    tx: &mut Tx,
    (context, blobs): (&EngineContext, &Blobs),
    org: OrgId,
    node: NodeId,
    takes_errors: bool,
) -> Result<Option<CallerEnd>, Failure> {
    let project = project(context);
    let Some(exec) = store::pin::find(tx, org, &project, node)? else { return Ok(None) };
    match result_of(tx, blobs, org, exec) {
        Ok(kept) if is_hit(kept.status, takes_errors) => {
            store::pin::used(tx, org, &project, node)?;
            Ok(Some(CallerEnd::Kept(Box::new(kept))))
        }
        Ok(_) => Ok(None),
        Err(Fault::Source(failure)) => Err(failure),
        // Something of it is gone: it is executed again.
        Err(_) => Ok(None),
    }
}

/// The result of an exec of a cached run, all of whose contents are here.
pub(crate) fn result_of(tx: &mut Tx, blobs: &Blobs, org: OrgId, exec: ExecId) -> Result<KeptResult, Fault<Failure>> {
    let mut objects = Objects { tx, org };
    let record = read::exec(&mut objects, exec)?;
    let by = record.provenance.run.as_deref().and_then(|run| run.parse().ok());
    let dag = read::dag(&mut objects, record.result)?;
    let value = match read::node(&mut objects, dag.root)? {
        CallNode::Literal { value } => Value::load_element(&mut objects, &value)?,
        _ => Value::Null,
    };
    let value = RunValue::read(&value)
        .ok_or_else(|| Fault::Source(Trouble::internal("the result of a cached run has another form").into()))?;
    for blob in value.blobs() {
        if !calls::Read::has_blob(&mut objects, blob).map_err(Fault::Source)? {
            return Err(Fault::MissingBlob(blob));
        }
    }
    let is_link = |(_, artifact): &(&Vec<u8>, &Artifact)| artifact.mode & LINK == LINK;
    let target = |(path, artifact): (&Vec<u8>, &Artifact)| {
        let name = BlobName::Content { org, hash: BlobHash(artifact.blob.hash.0) };
        let bytes = blobs.open(&name)?.read_all()?;
        Ok((path.clone(), String::from_utf8_lossy(&bytes).into_owned()))
    };
    let links = value.artifacts.iter().filter(is_link).map(target).collect::<Result<_, Failure>>();
    let links = links.map_err(Fault::Source)?;
    Ok(KeptResult { exec, status: record.status, by, value, links })
}

/// The open execution of the call, or a new one; this run waits for it. Also the run that executes it.
fn join(
    tx: &mut Tx,
    submission: &Submission,
    called: &CalledRun,
    (caller, takes_errors): (RunId, bool),
) -> Result<(i64, RunId), Failure> {
    let node = called.call.node;
    let epoch = Epoch::Counter(store::execution::epoch(tx, submission.org, FUNCTION, node)? as u64);
    let made = |tx: &mut Tx, id: i64| by_run(tx, (id, called), submission, takes_errors);
    let (id, request) = open(tx, submission.org, (node, FUNCTION), epoch, &made)?;
    store::execution::join(tx, id, caller)?;
    let Work::Run { run, .. } = request.work else {
        return Err(Trouble::internal("a cached run is executed by a program").into());
    };
    Ok((id, run))
}

/// A run of this system that executes the call.
pub(crate) fn by_run(
    tx: &mut Tx,
    (execution, called): (i64, &CalledRun),
    submission: &Submission,
    takes_errors: bool,
) -> Request {
    let spec = &submission.spec;
    let call = Some(CallPart::Backend { execution, platform: called.platform.clone() });
    // The key has the machines of one provider: where others are named, too, they would give its result under that name.
    let providers = spec.providers.iter().filter(|name| **name == spec.provider).cloned().collect();
    let spec = Box::new(RunSpec { call, providers, ..spec.clone() });
    Request {
        name: submission.name.clone().unwrap_or_default(),
        fresh: false,
        returns: false,
        takes_errors,
        epoch: None,
        work: Work::Run { run: RunId(tx.next_id()), spec },
    }
}

/// What a kept result wrote.
#[derive(Debug, Clone)]
pub struct Output {
    pub exec: String,
    stdout: Part,
    stderr: Part,
}

/// All that was written to one stream.
#[derive(Debug, Clone)]
pub struct Part(Stream);

impl Part {
    /// The bytes, if they are few enough to stand in the value.
    pub fn small(&self) -> Option<&[u8]> {
        match &self.0 {
            Stream::Bytes(bytes) => Some(bytes),
            Stream::Blob(_) => None,
        }
    }
}

impl Output {
    pub fn parts(&self) -> [(LogStream, &Part); 2] {
        [(LogStream::Stdout, &self.stdout), (LogStream::Stderr, &self.stderr)]
    }
}

impl Engine {
    /// What the run of an exec wrote.
    pub async fn output_of(&self, org: OrgId, exec: &str) -> Result<Output, Failure> {
        let id: ExecId = exec.parse().map_err(|_| Refused::not_found("exec", exec))?;
        let blobs = self.blobs.clone();
        let read = move |tx: &mut Tx| match result_of(tx, &blobs, org, id) {
            Ok(kept) => Ok(kept),
            Err(Fault::Source(failure)) => Err(failure),
            Err(fault) => {
                let why = format!("the cache did not keep it ({fault}): submit the run again");
                Err(Refused::Gone { what: "the result", why }.into())
            }
        };
        let kept = self.store.read("exec.output", read).await?;
        let (stdout, stderr) = (Part(kept.value.stdout), Part(kept.value.stderr));
        Ok(Output { exec: exec.to_owned(), stdout, stderr })
    }

    /// The bytes of one stream.
    pub fn open_part(&self, org: OrgId, part: &Part) -> Result<Opened, Failure> {
        Ok(match &part.0 {
            Stream::Bytes(bytes) => Opened::Bytes(bytes.clone()),
            Stream::Blob(blob) => Opened::Blob(self.open_blob(org, &blob.hash.to_string())?),
        })
    }
}

/// A stream that is being read.
pub enum Opened {
    Bytes(Vec<u8>),
    Blob(Download),
}

impl RunTx<'_> {
    /// From `created` to its end in this commit: attempt, agent, task and one replayed step, the minimum charge, no job.
    pub(crate) fn replay(&mut self, answer: &CallerEnd) -> Result<(), Failure> {
        self.replaying = true;
        self.run_event(RunEvent::Started)?;
        let agents = Rows::agents(self, Pick::Running, 1)?;
        let agent = *agents.first().ok_or_else(|| Trouble::internal("a started run has an agent"))?;
        for step in hierarchy::begin_rank(self, agent)? {
            let mut step = Rows::step(self, step)?;
            step.replayed = true;
            Rows::set_step(self, step);
        }
        let (exit_code, signal) = match answer {
            CallerEnd::Kept(kept) => {
                self.share_artifacts(kept)?;
                let mut run = self.run.clone();
                if let Some(called) = &mut run.call {
                    (called.exec, called.run) = (Some(kept.exec.to_string()), kept.by);
                }
                self.set_run(run);
                (i32::try_from(kept.value.exit_code).ok(), None)
            }
            CallerEnd::Failed { exit_code, signal, .. } => (*exit_code, *signal),
        };
        let failed = match answer {
            CallerEnd::Kept(kept) if kept.value.exit_code == 0 => None,
            CallerEnd::Kept(kept) => Some(LastError {
                code: "exited_with_error".into(),
                message: format!("the command exited with code {}", kept.value.exit_code),
                cause: None,
            }),
            CallerEnd::Failed { error, .. } => Some(error.clone()),
        };
        self.set_run(model::run::rank_ended(&self.run, 0, failed.is_some(), exit_code, signal));
        match failed {
            None => hierarchy::complete_rank(self, agent)?,
            Some(error) => hierarchy::fail_rank(self, agent, RunReason::JobFailed, error)?,
        }
        hierarchy::settle_run(self)
    }

    /// The artifacts of the result are this run's: rows of its own, bytes that it shares.
    fn share_artifacts(&mut self, kept: &KeptResult) -> Result<(), Failure> {
        for (path, artifact) in &kept.value.artifacts {
            let what = match artifact.mode {
                mode if mode & LINK == LINK => {
                    EntryKind::Link { target: kept.links.get(path).cloned().unwrap_or_default() }
                }
                mode if mode & FOLDER == FOLDER => EntryKind::Folder,
                mode => EntryKind::File { mode },
            };
            let path = String::from_utf8_lossy(path);
            let (org, run, attempt) = (self.run.org, self.run.id, self.run.attempt);
            let size = if matches!(what, EntryKind::File { .. }) { artifact.blob.bytes as i64 } else { 0 };
            let announced = Announced { org, run, attempt, path: &path, size, what: &what };
            let hash = artifact.blob.hash.to_string();
            // A sweep that has begun must leave the bytes: this row lists them until it expires.
            if !store::content::touch(self.tx, org, &hash)? {
                let why = "an artifact of the result is being deleted at this moment: submit it again";
                return Err(Trouble::new(TroubleKind::Timeout, why).into());
            }
            store::artifact::share(self.tx, &announced, &hash)?;
        }
        Ok(())
    }

    /// A run that takes part in a call has ended, or its caller does not want it any more: the execution looks.
    pub(crate) fn tell_execution(&mut self) {
        let over = self.run.status.is_end() || self.run.deleted_at.is_some();
        let as_backend = self.run.spec.call.as_ref().and_then(CallPart::backend);
        let as_caller = self.run.call.as_ref().and_then(|called| called.execution);
        if let Some(execution) = as_backend.or(as_caller).filter(|_| over) {
            self.wake(WorkKind::Execution, execution, self.at);
        }
    }
}
