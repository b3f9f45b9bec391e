//! Deletes results that nothing needs: pins that answered no caller for long, or that are too many; then objects that neither a ref, a pin nor
//! an open execution leads to. Safe beside writers: what is stored again since the mark began stays.

use super::{AT_ONCE, broken, index_of, unpin};
use crate::Engine;
use crate::execution::{Request, kind_of, request_of};
use calls::{Fault, Id, Kind, NodeId, Object, Reference};
use model::time::DAY;
use model::{Failure, OrgId, Timestamp, bug};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::object::Objects;
use store::pin::Pin;
use store::{Item, Lane, Tx, WorkKind};

/// Execs of a pinned node that stay, so that its history can be read.
const EXECS_KEPT: i64 = 10;
const ORGS_AT_ONCE: i64 = 1_000;
/// Objects, pins, refs or executions that one question of a mark asks for.
const ASKED_AT_ONCE: i64 = 500;
/// Projects of one org. Settings name them, people do not.
const PROJECTS: i64 = 1_000;
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
    /// Records of single results that are missing or cannot be read. What they led to may be among the deleted.
    pub damaged: i64,
}

impl Engine {
    /// The limits of the settings.
    pub fn garbage(&self) -> Garbage {
        let calls = &self.context.config.calls;
        Garbage { older_than_ms: calls.kept_ms, max_bytes: calls.max_bytes }
    }

    /// All orgs, one after the other; once a day. What is damaged in one org leaves the others their collection.
    pub(crate) async fn sweep_results(&self, item: Item) -> Result<(), Failure> {
        if let Err(failure) = self.forget_executions().await {
            tracing::error!(%failure, "executions that ended long ago were not deleted");
        }
        let mut after = OrgId(0);
        loop {
            let orgs = self.store.read("org.page", move |tx| store::org::page(tx, after, ORGS_AT_ONCE)).await?;
            let Some(last) = orgs.last() else { break };
            after = last.id;
            for org in orgs {
                if let Err(failure) = self.collect_garbage(org.id, self.garbage()).await {
                    tracing::error!(org = %org.id, %failure, "results of this org were not collected: repl cache gc says why");
                }
            }
        }
        let now = self.store.read_inline("sweep.now", |tx| Ok(tx.at())).await?;
        self.at(item, now + EVERY_MS).await
    }

    /// Rows of executions that ended as long ago as an unused result is kept: until then people look them up.
    async fn forget_executions(&self) -> Result<(), Failure> {
        let kept_ms = self.context.config.calls.kept_ms;
        loop {
            let gone = self
                .store
                .write(Lane::Low, "execution.forget", move |tx| {
                    let since = tx.at() - kept_ms;
                    let mut gone = 0;
                    for ended in store::execution::ended_before(tx, since, AT_ONCE)? {
                        // Its adapter is still to be asked something. A run that executed it is not.
                        if ended.it.closing.is_some() && kind_of(&ended.it) == WorkKind::Invocation {
                            continue;
                        }
                        // The key of a call without a cache is its own, and comes again only for a step. One that cannot be read may.
                        let returns = |request: Request| !request.fresh || request.returns;
                        let key_returns = request_of(tx, ended.id).map_or(true, returns);
                        store::execution::forget(tx, &ended, key_returns)?;
                        gone += 1;
                    }
                    Ok(gone)
                })
                .await?;
            if gone == 0 {
                return Ok(());
            }
        }
    }

    pub async fn collect_garbage(&self, org: OrgId, asked: Garbage) -> Result<Swept, Failure> {
        let mut swept = Swept::default();
        loop {
            let gone = self
                .store
                .write(Lane::Low, "cache.unpin", move |tx| {
                    let mut gone = 0;
                    for (project, nodes) in too_old_or_too_many(tx, org, asked)? {
                        gone += unpin(tx, org, &project, &nodes)?;
                    }
                    Ok(gone)
                })
                .await?;
            swept.pins += gone;
            if gone == 0 {
                break;
            }
        }
        let marked = self.store.read("cache.mark", move |tx| mark(tx, org)).await?;
        if marked.damaged > 0 {
            tracing::error!(%org, damaged = marked.damaged, "records of results are missing or cannot be read");
        }
        swept.damaged = marked.damaged;
        let before = marked.at - self.context.config.calls.unnamed_kept_ms;
        swept.objects = self.sweep_objects(org, before, Arc::new(marked.needed)).await?;
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

/// Pins of all projects of an org that go next, those that were used longest ago: also of a project that the settings name no more.
fn too_old_or_too_many(tx: &mut Tx, org: OrgId, asked: Garbage) -> Result<BTreeMap<String, Vec<NodeId>>, Failure> {
    let at = tx.at();
    let projects = store::pin::projects(tx, org, PROJECTS)?;
    let (mut pins, mut bytes): (Vec<(String, Pin)>, i64) = (Vec::new(), 0);
    for (project, _) in projects {
        bytes += store::pin::bytes(tx, org, &project)?;
        let unused = store::pin::unused(tx, org, &project, at + 1, AT_ONCE)?;
        pins.extend(unused.into_iter().map(|pin| (project.clone(), pin)));
    }
    pins.sort_by_key(|(_, pin)| pin.used_at);
    // Of each project the first are here: among so many of all no other is older.
    pins.truncate(AT_ONCE as usize);
    let (mut over, since) = (bytes - asked.max_bytes, at - asked.older_than_ms);
    let mut going = BTreeMap::<String, Vec<NodeId>>::new();
    for (project, pin) in pins {
        if pin.used_at >= since && over <= 0 {
            break;
        }
        over -= pin.exec.bytes;
        going.entry(project).or_default().push(pin.node);
    }
    Ok(going)
}

struct Marked {
    /// When the mark began.
    at: Timestamp,
    /// Every object that was needed then: about 100 bytes of memory for each.
    needed: BTreeSet<Id>,
    damaged: i64,
}

fn mark(tx: &mut Tx, org: OrgId) -> Result<Marked, Failure> {
    let at = tx.at();
    let mut mark = Mark { tx, org, needed: BTreeSet::new(), open: Vec::new(), damaged: 0 };
    mark.refs()?;
    for (project, _) in store::pin::projects(mark.tx, org, PROJECTS)? {
        let index = store::refs::find(mark.tx, org, &index_of(org, &project))?;
        debug_assert!(index.is_none_or(|index| mark.needed.contains(&Reference::from(index).id)));
        mark.pins(&project)?;
    }
    mark.open_executions()?;
    Ok(Marked { at, needed: mark.needed, damaged: mark.damaged })
}

struct Mark<'t> {
    tx: &'t mut Tx,
    org: OrgId,
    needed: BTreeSet<Id>,
    /// That are needed, and were not read yet.
    open: Vec<Reference>,
    damaged: i64,
}

impl Mark<'_> {
    fn add(&mut self, of: impl Into<Reference>) {
        let of = of.into();
        if self.needed.insert(of.id) {
            self.open.push(of);
        }
    }

    /// All that the added objects lead to, many in one question. A damaged record of one result is passed: that result answers no caller
    /// any more. One that many results are found by ends the mark: they may be whole.
    fn walk(&mut self) -> Result<(), Failure> {
        while !self.open.is_empty() {
            let rest = self.open.len().saturating_sub(ASKED_AT_ONCE as usize);
            let read = self.open.split_off(rest);
            let ids: Vec<Id> = read.iter().map(|of| of.id).collect();
            for (of, bytes) in read.into_iter().zip(store::object::each(self.tx, self.org, &ids)?) {
                let read = match bytes {
                    None => Err(Fault::Missing(of)),
                    Some(bytes) => Object::read(of, &bytes).map_err(|why| Fault::Unreadable { at: of, why }),
                };
                match read {
                    Ok(object) => object.references().into_iter().for_each(|below| self.add(below)),
                    Err(_) if matches!(of.kind, Kind::Exec | Kind::Dag | Kind::Node | Kind::Datum) => self.damaged += 1,
                    Err(fault) => return Err(broken(&fault)),
                }
            }
        }
        Ok(())
    }

    fn refs(&mut self) -> Result<(), Failure> {
        let rooted = if bug!(heads_are_swept) { "refs/index/" } else { "refs/" };
        let mut after = String::new();
        loop {
            let refs = store::refs::after(self.tx, self.org, rooted, &after, ASKED_AT_ONCE)?;
            let Some((last, _)) = refs.last() else { return Ok(()) };
            after = last.to_string();
            refs.iter().for_each(|(_, commit)| self.add(*commit));
            self.walk()?;
        }
    }

    /// Also the execs of a pinned node that answer no more.
    fn pins(&mut self, project: &str) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let pins = store::pin::after(self.tx, self.org, project, after, ASKED_AT_ONCE)?;
            let Some((last, _)) = pins.last() else { return Ok(()) };
            after = Some(*last);
            let nodes: Vec<NodeId> = pins.iter().map(|(node, _)| *node).collect();
            let execs = store::exec::of_nodes(self.tx, self.org, &nodes, EXECS_KEPT)?;
            nodes.into_iter().for_each(|node| self.add(node));
            execs.into_iter().for_each(|exec| self.add(exec));
            self.walk()?;
        }
    }

    fn open_executions(&mut self) -> Result<(), Failure> {
        let mut after = String::new();
        loop {
            let open = store::execution::open_after(self.tx, self.org, &after, ASKED_AT_ONCE)?;
            let Some(last) = open.last() else { return Ok(()) };
            after.clone_from(&last.key);
            for it in open {
                if let Ok(node) = it.node.parse::<NodeId>() {
                    self.add(node);
                }
                // The result of an adapter that answered `done` may not have been fetched yet.
                let staged = it.done.and_then(|done| done.result.parse::<calls::DagId>().ok()).map(Reference::from);
                let mut objects = Objects { tx: self.tx, org: self.org };
                if let Some(staged) = staged
                    && calls::Read::record(&mut objects, staged)?.is_some()
                {
                    self.add(staged);
                }
            }
            self.walk()?;
        }
    }
}
