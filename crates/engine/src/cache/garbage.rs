//! Deletes results that nothing needs: pins that answered no caller for long, or that are too many; then objects that neither a ref, a pin nor
//! an open execution leads to. Safe beside writers: what is stored again since the mark began stays.

use super::{AT_ONCE, broken, index_of, unpin};
use crate::{Engine, cached_run};
use calls::reach::closure;
use calls::{Id, Kind, NodeId, Reference};
use model::time::DAY;
use model::{Failure, OrgId, Timestamp, bug};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::object::Objects;
use store::{Item, Lane, Tx};

/// Objects of one org that are walked at most.
const MAX_OBJECTS: usize = 5_000_000;
/// Execs of a pinned node that stay, so that its history can be read.
const EXECS_KEPT: i64 = 10;
const ORGS_AT_ONCE: i64 = 1_000;
/// Pins or executions of one org that are looked at.
const MANY: i64 = 1_000_000;
/// How often results are looked at by themselves.
const EVERY_MS: i64 = DAY;

/// What is asked of a collection.
#[derive(Debug, Clone, Copy)]
pub struct Garbage {
    /// Pins that were not used for so long go.
    pub older_than_ms: i64,
    /// What remains in sum; those that were used longest ago go first.
    pub max_bytes: i64,
}

/// What a collection has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub pins: i64,
    pub objects: i64,
    /// That are left.
    pub objects_left: i64,
    pub bytes_left: i64,
}

impl Engine {
    /// The limits of the settings.
    pub fn garbage(&self) -> Garbage {
        let calls = &self.context.config.calls;
        Garbage { older_than_ms: calls.kept_ms, max_bytes: calls.max_bytes }
    }

    /// All orgs, one after the other; once a day.
    pub(crate) async fn sweep_results(&self, item: Item) -> Result<(), Failure> {
        let mut after = OrgId(0);
        loop {
            let orgs = self.store.read("org.page", move |tx| store::org::page(tx, after, ORGS_AT_ONCE)).await?;
            let Some(last) = orgs.last() else { break };
            after = last.id;
            for org in orgs {
                self.collect_garbage(org.id, self.garbage()).await?;
            }
        }
        let now = self.store.read_inline("sweep.now", |tx| Ok(tx.at())).await?;
        self.at(item, now + EVERY_MS).await
    }

    pub async fn collect_garbage(&self, org: OrgId, asked: Garbage) -> Result<Swept, Failure> {
        let project = cached_run::project(&self.context);
        let mut swept = Swept::default();
        loop {
            let project = project.clone();
            let gone = self
                .store
                .write(Lane::Low, "cache.unpin", move |tx| {
                    let nodes = too_old_or_too_many(tx, org, &project, asked)?;
                    unpin(tx, org, &project, &nodes)
                })
                .await?;
            swept.pins += gone;
            if gone == 0 {
                break;
            }
        }
        let marked = self.store.read("cache.mark", move |tx| mark(tx, org, &project)).await?;
        let window = self.context.config.calls.unnamed_kept_ms;
        let (before, marked) = (Timestamp(marked.0.0 - window), Arc::new(marked.1));
        swept.objects = self.sweep_objects(org, before, marked).await?;
        (swept.objects_left, swept.bytes_left) =
            self.store.read("cache.count", move |tx| store::object::count(tx, org)).await?;
        Ok(swept)
    }

    async fn sweep_objects(&self, org: OrgId, before: Timestamp, marked: Arc<BTreeSet<Id>>) -> Result<i64, Failure> {
        let (mut gone, mut after) = (0, None);
        loop {
            let unused = self
                .store
                .read("cache.unused", move |tx| store::object::unused(tx, org, after, before, AT_ONCE))
                .await?;
            let Some(last) = unused.last() else { return Ok(gone) };
            after = Some(last.id);
            let dead: Vec<Reference> = unused.into_iter().filter(|object| !marked.contains(&object.id)).collect();
            if dead.is_empty() {
                continue;
            }
            gone += self
                .store
                .write(Lane::Low, "cache.sweep", move |tx| {
                    let mut gone = 0;
                    for object in &dead {
                        if store::object::delete(tx, org, object.id, before)? {
                            gone += 1;
                            if object.kind == Kind::Exec {
                                store::exec::forget(tx, org, calls::ExecId(object.id))?;
                            }
                        }
                    }
                    Ok(gone)
                })
                .await?;
        }
    }
}

fn too_old_or_too_many(tx: &mut Tx, org: OrgId, project: &str, asked: Garbage) -> Result<Vec<NodeId>, Failure> {
    let at = tx.at();
    let old = store::pin::unused(tx, org, project, Timestamp(at.0 - asked.older_than_ms), AT_ONCE)?;
    if !old.is_empty() {
        return Ok(old.into_iter().map(|pin| pin.node).collect());
    }
    let mut over = store::pin::bytes(tx, org, project)? - asked.max_bytes;
    let mut nodes = Vec::new();
    if over > 0 {
        for pin in store::pin::unused(tx, org, project, at + 1, AT_ONCE)? {
            if over <= 0 {
                break;
            }
            over -= pin.exec.bytes;
            nodes.push(pin.node);
        }
    }
    Ok(nodes)
}

/// When the mark began, and every object that is needed then.
fn mark(tx: &mut Tx, org: OrgId, project: &str) -> Result<(Timestamp, BTreeSet<Id>), Failure> {
    let at = tx.at();
    let mut roots: Vec<Reference> = Vec::new();
    let rooted = if bug!(heads_are_swept) { "refs/index/" } else { "refs/" };
    for (_, commit) in store::refs::page(tx, org, rooted, MANY)? {
        roots.push(commit.into());
    }
    debug_assert!(
        store::refs::find(tx, org, &index_of(org, project))?.is_none_or(|index| roots.contains(&index.into()))
    );
    for pin in store::pin::page(tx, org, project, i64::MAX, MANY)? {
        roots.push(pin.node.into());
        let execs = store::exec::of_node(tx, org, pin.node, EXECS_KEPT)?;
        roots.extend(execs.into_iter().map(|exec| Reference::from(exec.id)));
    }
    for found in store::execution::page(tx, org, i64::MAX, MANY)? {
        if found.it.status.is_end() {
            continue;
        }
        roots.extend(found.it.node.parse::<NodeId>().ok().map(Reference::from));
        // The result of an adapter that answered `done` may not have been fetched yet.
        let staged = found.it.done.and_then(|done| done.result.parse::<calls::DagId>().ok()).map(Reference::from);
        if let Some(staged) = staged
            && calls::Read::record(&mut Objects { tx, org }, staged)?.is_some()
        {
            roots.push(staged);
        }
    }
    let needed = closure(&mut Objects { tx, org }, roots, &|_| false, MAX_OBJECTS).map_err(|fault| broken(&fault))?;
    Ok((at, needed.objects.into_iter().map(|object| object.id).collect()))
}
