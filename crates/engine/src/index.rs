//! The index of an org's calls. Pins that wait at the same time in this process share one transaction and one index commit: a pin costs a few
//! records of the exec map's trie, and one commit for all who wait.

use crate::cache::index_of;
use crate::{Engine, cached_run};
use calls::history::{empty_index, pin};
use calls::refs::{RefName, Swap};
use calls::{CommitId, DagId, ExecId, Fault, NodeId, trie};
use model::execution::Execution;
use model::{Failure, OrgId, Trouble, TroubleKind};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use store::object::Objects;
use store::{Item, Lane, Tx};
use tokio::sync::oneshot;

/// Pins of one transaction. More wait for the next.
const TOGETHER: usize = 256;

/// The index while one transaction pins: locked when it is first looked at, written once at the end.
pub(crate) struct Index {
    org: OrgId,
    name: RefName,
    at: Option<CommitId>,
    pins: BTreeMap<NodeId, ExecId>,
}

impl Index {
    pub(crate) fn new(org: OrgId, project: &str) -> Index {
        Index { org, name: index_of(org, project), at: None, pins: BTreeMap::new() }
    }

    /// Locks it.
    pub(crate) fn commit(&mut self, tx: &mut Tx) -> Result<CommitId, Failure> {
        if let Some(at) = self.at {
            return Ok(at);
        }
        let at = match store::refs::lock(tx, self.org, &self.name)? {
            Some(at) => at,
            None => self.first(tx)?,
        };
        self.at = Some(at);
        Ok(at)
    }

    fn first(&self, tx: &mut Tx) -> Result<CommitId, Failure> {
        let (first, records) = empty_index();
        store::object::put(tx, self.org, &records)?;
        if store::refs::swap(tx, self.org, &self.name, Swap { expect: None, to: Some(first) })?.is_ok() {
            return Ok(first);
        }
        // Another process has made it since the look, and this transaction has waited for its end.
        let made = store::refs::lock(tx, self.org, &self.name)?;
        made.ok_or_else(|| Trouble::new(TroubleKind::Timeout, "another process made the index meanwhile").into())
    }

    /// The exec that answers a node, those that this transaction has pinned included.
    pub(crate) fn pinned(&mut self, tx: &mut Tx, node: NodeId) -> Result<Option<ExecId>, Fault<Failure>> {
        let at = self.commit(tx).map_err(Fault::Source)?;
        if let Some(exec) = self.pins.get(&node) {
            return Ok(Some(*exec));
        }
        let mut objects = Objects { tx, org: self.org };
        let root = calls::read::commit(&mut objects, at)?.execs;
        trie::get(&mut objects, root, node)
    }

    pub(crate) fn pin(&mut self, node: NodeId, exec: ExecId) {
        self.pins.insert(node, exec);
    }

    /// All pins become one commit in the place of the one that was there.
    fn write(mut self, tx: &mut Tx) -> Result<(), Failure> {
        if self.pins.is_empty() {
            return Ok(());
        }
        let at = self.commit(tx)?;
        let amended = pin(&mut Objects { tx, org: self.org }, at, &self.pins);
        let (next, records) = amended.map_err(|fault| match fault {
            Fault::Source(failure) => failure,
            fault => Trouble::internal(format!("the index of calls is damaged: {fault}")).into(),
        })?;
        store::object::put(tx, self.org, &records)?;
        let swapped = store::refs::swap(tx, self.org, &self.name, Swap { expect: Some(at), to: Some(next) })?;
        swapped.map_err(|_| Trouble::new(TroubleKind::Timeout, "another process pinned meanwhile").into())
    }
}

/// What one execution does in the transaction that pins it.
pub(crate) type AtPin = Arc<dyn Fn(&mut Tx, &Execution, &mut Index) -> Result<(), Failure> + Send + Sync>;

struct Waiting {
    item: Item,
    act: AtPin,
    done: oneshot::Sender<Result<(), Failure>>,
}

/// Executions of one org that wait for their pin.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<Waiting>>,
    /// Held by the one that writes for all.
    turn: tokio::sync::Mutex<()>,
}

pub(crate) type Queues = Mutex<BTreeMap<OrgId, Arc<Queue>>>;

impl Engine {
    /// The exec that answers a call, and the dag that is its result: two rows. None: it is not pinned, or its record is gone.
    pub async fn pinned_result(&self, org: OrgId, node: NodeId) -> Result<Option<(ExecId, DagId)>, Failure> {
        let project = cached_run::project(&self.context);
        self.store
            .read_inline("index.pinned", move |tx| {
                let Some(exec) = store::pin::find(tx, org, &project, node)? else { return Ok(None) };
                match calls::read::exec(&mut Objects { tx, org }, exec) {
                    Ok(found) => Ok(Some((exec, found.result))),
                    Err(Fault::Source(failure)) => Err(failure),
                    Err(_) => Ok(None),
                }
            })
            .await
    }

    /// Does `act` in a transaction that it may share with others who wait for the same index; its item is held and its execution locked there.
    pub(crate) async fn pin_together(&self, org: OrgId, project: &str, item: Item, act: AtPin) -> Result<(), Failure> {
        let queue = Arc::clone(self.pinning.lock().expect("no holder panics").entry(org).or_default());
        let (done, mut answer) = oneshot::channel();
        queue.waiting.lock().expect("no holder panics").push_back(Waiting { item, act, done });
        loop {
            let _turn = queue.turn.lock().await;
            match answer.try_recv() {
                Ok(answer) => return answer,
                // It died in the middle of its turn: whether it has written is in the rows.
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(Trouble::new(TroubleKind::Timeout, "the pins were not written").into());
                }
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let together: Vec<Waiting> = {
                let mut waiting = queue.waiting.lock().expect("no holder panics");
                let count = waiting.len().min(TOGETHER);
                waiting.drain(..count).collect()
            };
            self.pin_all(org, project, together).await;
        }
    }

    /// One that cannot be written must not take the others with it: then each is tried alone.
    async fn pin_all(&self, org: OrgId, project: &str, together: Vec<Waiting>) {
        let all: Vec<(Item, AtPin)> = together.iter().map(|it| (it.item, it.act.clone())).collect();
        let written = self.pin_some(org, project, all).await;
        if written.is_ok() || together.len() == 1 {
            together.into_iter().for_each(|it| drop(it.done.send(written.clone())));
            return;
        }
        for it in together {
            let alone = self.pin_some(org, project, vec![(it.item, it.act)]).await;
            it.done.send(alone).ok();
        }
    }

    async fn pin_some(&self, org: OrgId, project: &str, mut some: Vec<(Item, AtPin)>) -> Result<(), Failure> {
        // Rows are locked in the order of their ids.
        some.sort_by_key(|(item, _)| (item.kind, item.subject));
        let project = project.to_owned();
        self.store
            .write(Lane::Normal, "execution.integrate", move |tx| {
                for (item, _) in &some {
                    store::work::hold(tx, item)?;
                }
                let mut executions = BTreeMap::new();
                for (item, _) in &some {
                    if let Some(it) = store::execution::lock(tx, item.subject)? {
                        executions.insert(item.subject, it);
                    }
                }
                let mut index = Index::new(org, &project);
                for (item, act) in &some {
                    if let Some(it) = executions.get(&item.subject) {
                        act(tx, it, &mut index)?;
                    }
                }
                index.write(tx)
            })
            .await
    }
}
