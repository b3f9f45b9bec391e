//! The results that an org keeps: what is pinned, why a run was not answered by it, what a person invalidates. Pins change in the index
//! commit and in their rows together.

mod garbage;

pub use garbage::{Garbage, Swept};

use crate::index::Index;
use crate::run::KeyedResponse;
use crate::{Engine, cached_run, view};
use calls::cached_run::FUNCTION;
use calls::history::amend;
use calls::refs::{RefName, Swap, Uuid};
use calls::trie::Changes;
use calls::why::differences;
use calls::{Fault, NodeId};
use model::run::Run;
use model::{Failure, OrgId, Refused, RunId, Trouble, TroubleKind};
use std::sync::Arc;
use store::exec::ExecRow;
use store::idempotency::Key;
use store::object::Objects;
pub use store::pin::Pin;
use store::{Lane, Tx};

/// Pins that one transaction changes.
const AT_ONCE: i64 = 500;

/// Why a cached run was executed, or what answered it.
#[derive(Debug, Clone)]
pub struct Why {
    pub run: Run,
    /// The execution it is compared with; none if there was none before it.
    pub with: Option<ExecRow>,
    pub differences: Vec<String>,
    /// What differs by itself does not explain it.
    pub note: Option<String>,
}

/// Which results are not to answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// That of one call.
    Node(NodeId),
    /// Those of all cached runs.
    Runs,
}

/// Turns a number of pins into the bytes that are answered.
pub type CountRender = Arc<dyn Fn(i64) -> Vec<u8> + Send + Sync>;

/// The ref of an org's index: its UUID follows from org and project, so that no process has to look it up.
pub(crate) fn index_of(org: OrgId, project: &str) -> RefName {
    RefName::Index(Uuid::derived(&format!("index of {org} {project}")))
}

impl Engine {
    /// Newest first.
    pub async fn pins(&self, org: OrgId, before: i64, limit: i64) -> Result<Vec<Pin>, Failure> {
        let project = cached_run::project(&self.context);
        self.store.read("pin.page", move |tx| store::pin::page(tx, org, &project, before, limit)).await
    }

    /// What a cached run differs in from the newest execution before it: of a run of the same name, else of any.
    pub async fn cache_why(&self, org: OrgId, run: RunId) -> Result<Why, Failure> {
        self.store
            .read("cache.why", move |tx| {
                let run = view::owned(tx, org, run)?;
                why(tx, run)
            })
            .await
    }

    /// From now on these results answer no caller; nor does what is being executed at this moment, if all are meant.
    pub async fn invalidate(
        &self,
        org: OrgId,
        what: Invalid,
        key: Option<Key>,
        render: CountRender,
    ) -> Result<KeyedResponse, Failure> {
        let project = cached_run::project(&self.context);
        self.keyed(Lane::Normal, "cache.invalidate", key, 200, move |tx| {
            let mut count = 0;
            match what {
                Invalid::Node(node) => count += unpin(tx, org, &project, &[node])?,
                Invalid::Runs => {
                    // The index first: an execution that ends now reads the epoch behind the same lock.
                    Index::new(org, &project).commit(tx)?;
                    store::execution::raise_epoch(tx, org, FUNCTION)?;
                    loop {
                        let nodes = store::pin::of_function(tx, org, &project, FUNCTION, AT_ONCE)?;
                        count += unpin(tx, org, &project, &nodes)?;
                        if (nodes.len() as i64) < AT_ONCE {
                            break;
                        }
                    }
                }
            }
            Ok(render(count))
        })
        .await
    }
}

/// Removes pins from the index and their rows; how many there were.
fn unpin(tx: &mut Tx, org: OrgId, project: &str, nodes: &[NodeId]) -> Result<i64, Failure> {
    let name = index_of(org, project);
    let Some(index) = store::refs::lock(tx, org, &name)? else { return Ok(0) };
    let mut changes = Changes::new();
    for node in nodes {
        if store::pin::find(tx, org, project, *node)?.is_some() {
            changes.insert(*node, None);
            store::pin::remove(tx, org, project, *node)?;
        }
    }
    let amended = amend(&mut Objects { tx, org }, index, &changes);
    let (next, records) = amended.map_err(|fault| broken(&fault))?;
    store::object::put(tx, org, &records)?;
    let swapped = store::refs::swap(tx, org, &name, Swap { expect: Some(index), to: Some(next) })?;
    swapped.map_err(|_| Trouble::new(TroubleKind::Timeout, "another process changed the index meanwhile"))?;
    Ok(changes.len() as i64)
}

/// Records of the index are written with it and swept never: one that is not here is damage.
fn broken(fault: &Fault<Failure>) -> Failure {
    Trouble::internal(format!("the index of calls is damaged: {fault}")).into()
}

fn why(tx: &mut Tx, run: Run) -> Result<Why, Failure> {
    let Some(called) = run.call.clone() else {
        let why = format!("{} was not submitted with --cache: it always runs", run.id);
        return Err(Refused::Conflict { why }.into());
    };
    let (org, before) = (run.org, run.created_at);
    if called.execution.is_none() {
        let with = match called.exec.as_ref().and_then(|exec| exec.parse().ok()) {
            Some(exec) => store::exec::find(tx, org, exec)?,
            None => None,
        };
        return Ok(Why { run, with, differences: Vec::new(), note: None });
    }
    let node: NodeId = called.node.parse().map_err(|_| Trouble::internal("a caller has no node"))?;
    // The same key was executed before: what differs is not the run.
    let same = store::exec::of_node(tx, org, node, AT_ONCE)?.into_iter().find(|exec| exec.ended_at <= before);
    if let Some(same) = same {
        let note = match same.ok {
            true => "the result of the same run was invalidated or deleted".to_owned(),
            false => {
                "the same run ended with another exit code than 0: --cache-errors takes that as an answer".to_owned()
            }
        };
        return Ok(Why { run, with: Some(same), differences: Vec::new(), note: Some(note) });
    }
    let named = store::exec::newest_of_name(tx, org, (FUNCTION, &run.name), node, before)?;
    let with = match named {
        Some(with) => Some(with),
        None => store::exec::newest_of_function(tx, org, FUNCTION, node, before)?,
    };
    let Some(with) = with else {
        let note = Some("there was no result of a cached run yet".to_owned());
        return Ok(Why { run, with: None, differences: Vec::new(), note });
    };
    match differences(&mut Objects { tx, org }, with.node, node) {
        Ok(found) => {
            let differences = found.iter().map(ToString::to_string).collect();
            Ok(Why { run, with: Some(with), differences, note: None })
        }
        Err(Fault::Source(failure)) => Err(failure),
        Err(fault) => {
            let note = format!("what {} was executed with was deleted: {fault}", with.id);
            Ok(Why { run, with: Some(with), differences: Vec::new(), note: Some(note) })
        }
    }
}
