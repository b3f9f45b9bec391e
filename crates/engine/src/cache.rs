//! The results that an org keeps: what is pinned, why a run was not answered by it, what a person invalidates. Pins change in the index
//! commit and in their rows together.

mod diff;
mod garbage;
pub(crate) mod rebuild;
mod why;

pub use diff::CallDiff;
pub use garbage::{Garbage, Swept};
pub use rebuild::Rebuilt;
pub use why::{Why, WhyOf};

use crate::index::Index;
use crate::run::KeyedResponse;
use crate::{Engine, cached_run};
use calls::cached_run::FUNCTION;
use calls::history::amend;
use calls::refs::{RefName, Swap, Uuid};
use calls::trie::Changes;
use calls::{Fault, NodeId};
use model::{Failure, OrgId, Trouble, TroubleKind};
use std::sync::Arc;
use store::idempotency::Key;
use store::object::Objects;
pub use store::pin::Pin;
use store::{Lane, Tx};

/// Pins that one transaction changes.
const AT_ONCE: i64 = 500;

/// Which results are not to answer any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    /// That of one call.
    Node(NodeId),
    /// Those of all calls of one function, by its URI.
    Function(String),
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

    /// From now on these results answer no caller; nor does what is being executed at this moment.
    pub async fn invalidate(
        &self,
        org: OrgId,
        what: Invalid,
        key: Option<Key>,
        render: CountRender,
    ) -> Result<KeyedResponse, Failure> {
        let project = cached_run::project(&self.context);
        self.keyed(Lane::Normal, "cache.invalidate", key, 200, move |tx| {
            // The index first: an execution that ends now reads the epoch behind the same lock.
            Index::new(org, &project).commit(tx)?;
            let count = match &what {
                Invalid::Node(node) => {
                    store::execution::raise_epoch_of_call(tx, org, *node)?;
                    unpin(tx, org, &project, &[*node])?
                }
                Invalid::Function(function) => invalidate_function(tx, org, &project, function)?,
                Invalid::Runs => invalidate_function(tx, org, &project, FUNCTION)?,
            };
            Ok(render(count))
        })
        .await
    }
}

fn invalidate_function(tx: &mut Tx, org: OrgId, project: &str, function: &str) -> Result<i64, Failure> {
    store::execution::raise_epoch(tx, org, function)?;
    let mut count = 0;
    loop {
        let nodes = store::pin::of_function(tx, org, project, function, AT_ONCE)?;
        count += unpin(tx, org, project, &nodes)?;
        if (nodes.len() as i64) < AT_ONCE {
            return Ok(count);
        }
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

/// What the index and heads lead to is written with them and swept never: a record that is not here is damage.
fn broken(fault: &Fault<Failure>) -> Failure {
    Trouble::internal(format!("what the index or a head of calls leads to is damaged: {fault}")).into()
}
