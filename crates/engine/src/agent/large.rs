//! Outputs that are too large for their row: the bytes become an artifact of the run, and the output names it. The artifact is announced
//! before its bytes are written, and final in the commit that records the end of its step.

use super::Holder;
use super::act::{Ended, Found, MAX_OUTPUT_BYTES, too_large};
use crate::Engine;
use crate::artifact::{RUN_BYTES, name_of};
use crate::durable::{Asker, open};
use crate::render::Renderer;
use model::step::{StepStatus, ToolKind};
use model::{ArtifactId, Failure, OrgId, Refused, RunId, StepId};
use serde_json::{Value, json};
use store::artifact::{Announced, Artifact, EntryKind};
use store::{Lane, Tx};

/// Bytes that are taken out of one output. The tool `http` reads no longer bodies either, and commands answer with no more.
pub(crate) const MAX_BYTES: usize = 8 << 20;
const MODE: u32 = 0o644;

/// An artifact whose bytes are durable; the commit that records the step's end makes it final.
#[derive(Debug, Clone)]
pub(crate) struct PutAway {
    id: (RunId, ArtifactId),
    size: i64,
    hash: String,
    /// What stands in the step's output in its place.
    pub(crate) reference: Value,
}

impl PutAway {
    pub(crate) fn finalise(&self, tx: &mut Tx) -> Result<(), Failure> {
        store::artifact::finalise(tx, self.id, self.size, &self.hash).map(drop)
    }
}

/// What an artifact gets of an output.
struct Bytes {
    bytes: Vec<u8>,
    ending: &'static str,
}

impl Bytes {
    /// The name of the artifact, and how large it will be.
    fn name(&self, step: StepId) -> (String, i64) {
        (format!(".repl/output/{step}.{}", self.ending), self.bytes.len() as i64)
    }
}

impl Ended {
    /// Whether its output does not fit into its row and may become an artifact. A turn of a dialogue may not: the dialogue reads it again.
    pub(super) fn is_to_be_put_away(&self) -> bool {
        let Found::Answer(answer) = &self.found else { return false };
        let is_turn = self.tool == ToolKind::Llm && self.place.is_none();
        !is_turn && answer.output.to_string().len() > MAX_OUTPUT_BYTES
    }
}

impl Holder<'_> {
    pub(super) async fn put_away(&mut self, mut ended: Vec<Ended>) -> Result<Vec<Ended>, Failure> {
        for ended in ended.iter_mut().filter(|ended| ended.is_to_be_put_away()) {
            let (engine, renderer, step, tool) = (self.engine, &self.renderer, ended.of.0, ended.tool);
            let Found::Answer(answer) = &mut ended.found else { continue };
            let place = place_of(tool, &mut answer.output);
            let taken = taken(place);
            let size = taken.bytes.len();
            let failed = match size {
                ..=MAX_BYTES => match keep(engine, renderer, step, taken).await {
                    Ok(put_away) => {
                        *place = put_away.reference.clone();
                        ended.put_away = Some(put_away);
                        continue;
                    }
                    Err(Failure::Refused(Refused::TooLarge { what, limit })) => {
                        too_large(format!("its output has {size} bytes, and {what} would have more than {limit}"))
                    }
                    Err(failure) => return Err(failure),
                },
                _ => too_large(format!("its output has {size} bytes: {MAX_BYTES} are allowed")),
            };
            ended.found = Found::Failed(failed.using(answer.usage.clone()));
        }
        Ok(ended)
    }
}

/// Status and headers of a response stay where they are.
fn place_of(tool: ToolKind, output: &mut Value) -> &mut Value {
    let has_body = tool == ToolKind::Http && output.get("body").is_some();
    if has_body { &mut output["body"] } else { output }
}

/// Text as it is, anything else as JSON.
fn taken(value: &Value) -> Bytes {
    match value {
        Value::String(text) => Bytes { bytes: text.clone().into_bytes(), ending: "txt" },
        other => Bytes { bytes: other.to_string().into_bytes(), ending: "json" },
    }
}

/// What stands in a step's output in place of what is too large for its row.
pub(crate) fn reference(artifact: &Artifact, (bytes, hash): (i64, &str)) -> Value {
    json!({ "artifact": artifact.id.to_string(), "path": artifact.path, "bytes": bytes, "hash": hash })
}

async fn keep(engine: &Engine, renderer: &Renderer, step: StepId, taken: Bytes) -> Result<PutAway, Failure> {
    let (of, name) = ((renderer.org, renderer.run, renderer.attempt), taken.name(step));
    let announced = move |tx: &mut Tx| {
        store::run::lock(tx, of.1)?;
        announce(tx, of, &name)
    };
    let artifact = engine.store.write(Lane::Normal.of(of.1), "output.announce", announced).await?;
    upload(engine, &artifact, &taken.bytes).await
}

impl Engine {
    /// An output that a program reports of a step which it has taken by a poll, if it is too large for its row. Programs get the records
    /// of durable steps back as they were, so an output of these has to fit.
    pub(crate) async fn put_away_reported(
        &self,
        (asker, run): (Asker, RunId),
        step: StepId,
        output: &Value,
    ) -> Result<Option<PutAway>, Failure> {
        if output.to_string().len() <= MAX_OUTPUT_BYTES {
            return Ok(None);
        }
        let too_large = |limit: &str| Refused::TooLarge { what: "the output", limit: limit.into() };
        let taken = taken(output);
        if taken.bytes.len() > MAX_BYTES {
            return Err(too_large("8 MiB").into());
        }
        let (context, name) = (self.context.clone(), taken.name(step));
        let announced = move |tx: &mut Tx| {
            let mut run_tx = open(tx, &context, asker, run)?;
            let found = run_tx.own_step(asker, step)?;
            if !run_tx.was_offered(&found) {
                return Err(too_large("256 KiB as JSON").into());
            }
            // Reported again after its answer was lost: its artifact is there.
            if found.status == StepStatus::Completed || found.found_done {
                return Ok(None);
            }
            let of = (run_tx.run.org, run, run_tx.run.attempt);
            announce(run_tx.tx, of, &name).map(Some)
        };
        match self.store.write(Lane::Normal.of(run), "step.announce", announced).await? {
            Some(artifact) => upload(self, &artifact, &taken.bytes).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Under the run's lock.
fn announce(
    tx: &mut Tx,
    (org, run, attempt): (OrgId, RunId, i64),
    (path, size): &(String, i64),
) -> Result<Artifact, Failure> {
    // A try before this one may have announced it too.
    let before = store::artifact::by_path(tx, run, attempt, path)?.map_or(0, |artifact| artifact.size);
    if store::artifact::reserve(tx, run, size - before)? > RUN_BYTES {
        return Err(Refused::TooLarge { what: "the run's artifacts", limit: "10 GB".into() }.into());
    }
    let what = &EntryKind::File { mode: MODE };
    store::artifact::announce(tx, &Announced { org, run, attempt, path, size: *size, what })
}

async fn upload(engine: &Engine, artifact: &Artifact, bytes: &[u8]) -> Result<PutAway, Failure> {
    let mut upload = engine.blobs.begin()?;
    upload.write(bytes)?;
    let stored = upload.keep_async(name_of(artifact)).await?;
    let (size, hash) = (stored.size, stored.hash.to_string());
    let reference = reference(artifact, (size, &hash));
    Ok(PutAway { id: (artifact.run, artifact.id), size, hash, reference })
}
