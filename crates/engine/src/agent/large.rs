//! Outputs that are too large for their row: the bytes become an artifact of the run, and the output names it. The artifact is announced
//! before its bytes are written, and final in the commit that records the end of its step.

use super::Holder;
use super::act::{Ended, Found, MAX_OUTPUT_BYTES, too_large};
use crate::Engine;
use crate::artifact::{RUN_BYTES, name_of};
use crate::render::Renderer;
use model::step::ToolKind;
use model::{ArtifactId, Failure, Refused, StepId};
use serde_json::{Value, json};
use store::artifact::{Announced, Artifact, EntryKind};
use store::{Lane, Tx};

/// Bytes that are taken out of one output. The tool `http` reads no longer bodies either.
const MAX_BYTES: usize = 8 << 20;
const MODE: u32 = 0o644;

/// An artifact whose bytes are durable; the commit that records the step's end makes it final.
#[derive(Debug, Clone)]
pub(super) struct PutAway {
    pub(super) id: ArtifactId,
    pub(super) size: i64,
    pub(super) hash: String,
}

/// What an artifact gets of an output.
struct Bytes {
    bytes: Vec<u8>,
    ending: &'static str,
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
                    Ok((artifact, put_away)) => {
                        *place = reference(&artifact, &put_away);
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

fn reference(artifact: &Artifact, put_away: &PutAway) -> Value {
    json!({
        "artifact": artifact.id.to_string(),
        "path": artifact.path,
        "bytes": put_away.size,
        "hash": put_away.hash,
    })
}

async fn keep(
    engine: &Engine,
    renderer: &Renderer,
    step: StepId,
    taken: Bytes,
) -> Result<(Artifact, PutAway), Failure> {
    let (org, run, attempt) = (renderer.org, renderer.run, renderer.attempt);
    let (path, size) = (format!(".repl/output/{step}.{}", taken.ending), taken.bytes.len() as i64);
    let announce = move |tx: &mut Tx| {
        store::run::lock(tx, run)?;
        // A try before this one may have announced it too.
        let before = store::artifact::by_path(tx, run, attempt, &path)?.map_or(0, |artifact| artifact.size);
        if store::artifact::reserve(tx, run, size - before)? > RUN_BYTES {
            return Err(Refused::TooLarge { what: "the run's artifacts", limit: "10 GB".into() }.into());
        }
        let what = &EntryKind::File { mode: MODE };
        store::artifact::announce(tx, &Announced { org, run, attempt, path: &path, size, what })
    };
    let artifact = engine.store.write(Lane::Normal.of(run), "output.announce", announce).await?;
    let mut upload = engine.blobs.begin()?;
    upload.write(&taken.bytes)?;
    let stored = upload.keep_async(name_of(&artifact)).await?;
    let put_away = PutAway { id: artifact.id, size: stored.size, hash: stored.hash.to_string() };
    Ok((artifact, put_away))
}
