//! The rows of pins beside the exec map of the index, which is the authority: where they differ, and how rows are made of it again.

use super::{AT_ONCE, broken, index_of};
use crate::{Engine, cached_run};
use calls::reach::closure;
use calls::record::{Exec, ExecStatus, Node};
use calls::{ExecId, Fault, NodeId, Object, Reference, Value, read, trie};
use model::{Failure, OrgId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use store::exec::ExecRow;
use store::object::Objects;
use store::{Lane, Tx};

/// Projects of one org.
const PROJECTS: i64 = 1_000;
/// Records of one result.
const MAX_RECORDS: usize = 100_000;

/// What is wrong with one pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The index has it, and no row says so.
    NoRow,
    /// The row names another exec than the index.
    OtherExec,
    /// The index does not have it.
    NotInIndex,
    /// The row of its exec is missing.
    NoExecRow,
    /// The record of its exec is missing or damaged, or is of another node. No row can mend this: the call is executed again.
    NoRecord,
}

impl Flaw {
    pub(crate) fn said(self) -> &'static str {
        match self {
            Flaw::NoRow => "the index has it, and no row does: repl cache rebuild makes one",
            Flaw::OtherExec => "its row names another exec than the index: repl cache rebuild mends it",
            Flaw::NotInIndex => "its row is not in the index: repl cache rebuild removes it",
            Flaw::NoExecRow => "its exec has no row: repl cache rebuild makes one",
            Flaw::NoRecord => "the record of its exec is missing or damaged: repl cache invalidate removes the pin",
        }
    }
}

/// The pins of one project, looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compared {
    pub rows: i64,
    pub flaws: Vec<(NodeId, Flaw)>,
}

/// What a rebuild has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Rows that were looked at.
    pub rows: i64,
    /// Rows of pins that were made or corrected.
    pub made: i64,
    /// Rows of pins that the index does not have.
    pub removed: i64,
    /// Rows of execs that were made of their records.
    pub execs: i64,
    /// Pins whose exec cannot be read.
    pub damaged: i64,
}

/// All projects of an org that have pins, and the one of the settings.
pub(crate) fn projects(tx: &mut Tx, org: OrgId, own: &str) -> Result<BTreeSet<String>, Failure> {
    let named = store::pin::projects(tx, org, PROJECTS)?;
    Ok(named.into_iter().map(|(project, _)| project).chain([own.to_owned()]).collect())
}

/// Every pin of one project, in the rows and in the index. About 150 bytes of memory for each.
pub(crate) fn compare(tx: &mut Tx, org: OrgId, project: &str) -> Result<Compared, Failure> {
    let mut map = BTreeMap::new();
    if let Some(index) = store::refs::find(tx, org, &index_of(org, project))? {
        let mut objects = Objects { tx, org };
        let root = read::commit(&mut objects, index).map_err(|fault| broken(&fault))?.execs;
        let mut pinned = |node, exec| {
            map.insert(node, exec);
        };
        trie::walk(&mut objects, root, &mut pinned).map_err(|fault| broken(&fault))?;
    }
    let (mut compared, mut after) = (Compared::default(), None);
    loop {
        let pins = store::pin::after(tx, org, project, after, AT_ONCE)?;
        let Some((last, _)) = pins.last() else { break };
        after = Some(*last);
        compared.rows += pins.len() as i64;
        let execs: Vec<ExecId> = pins.iter().map(|(_, exec)| *exec).collect();
        let records = store::object::each(tx, org, &execs.iter().map(|exec| exec.0).collect::<Vec<_>>())?;
        let rows = store::exec::each(tx, org, &execs)?;
        for (((node, exec), record), row) in pins.into_iter().zip(records).zip(rows) {
            let flaw = match map.remove(&node) {
                None => Some(Flaw::NotInIndex),
                Some(pinned) if pinned != exec => Some(Flaw::OtherExec),
                Some(_) if !record.is_some_and(|bytes| is_of(node, exec, &bytes)) => Some(Flaw::NoRecord),
                Some(_) => row.is_none().then_some(Flaw::NoExecRow),
            };
            compared.flaws.extend(flaw.map(|flaw| (node, flaw)));
        }
    }
    compared.flaws.extend(map.into_keys().map(|node| (node, Flaw::NoRow)));
    Ok(compared)
}

fn is_of(node: NodeId, exec: ExecId, bytes: &[u8]) -> bool {
    matches!(Object::read(Reference::from(exec), bytes), Ok(Object::Exec(found)) if found.node == node)
}

impl Engine {
    /// Makes the rows of an org's pins again from its index. Beside writers: each flaw is looked at again with the index locked.
    pub async fn rebuild_pins(&self, org: OrgId) -> Result<Rebuilt, Failure> {
        let own = cached_run::project(&self.context);
        let named = self.store.read("cache.projects", move |tx| projects(tx, org, &own)).await?;
        let mut rebuilt = Rebuilt::default();
        for project in named {
            let of = project.clone();
            let compared = self.store.read("cache.compare", move |tx| compare(tx, org, &of)).await?;
            rebuilt.rows += compared.rows;
            for flaws in compared.flaws.chunks(AT_ONCE as usize) {
                let (project, nodes) = (project.clone(), flaws.iter().map(|(node, _)| *node).collect::<Vec<_>>());
                let mended = self
                    .store
                    .write(Lane::Low, "cache.rebuild", move |tx| {
                        let mut mended = Rebuilt::default();
                        let index = store::refs::lock(tx, org, &index_of(org, &project))?;
                        for node in &nodes {
                            mend(tx, (org, &project), index, *node, &mut mended)?;
                        }
                        Ok(mended)
                    })
                    .await?;
                rebuilt.made += mended.made;
                rebuilt.removed += mended.removed;
                rebuilt.execs += mended.execs;
                rebuilt.damaged += mended.damaged;
            }
        }
        Ok(rebuilt)
    }
}

/// One pin is in its row as it is in the index.
fn mend(
    tx: &mut Tx,
    (org, project): (OrgId, &str),
    index: Option<calls::CommitId>,
    node: NodeId,
    mended: &mut Rebuilt,
) -> Result<(), Failure> {
    let mut objects = Objects { tx, org };
    let pinned = match index {
        None => None,
        Some(index) => read::commit(&mut objects, index)
            .and_then(|commit| trie::get(&mut objects, commit.execs, node))
            .map_err(|fault| broken(&fault))?,
    };
    let row = store::pin::find(tx, org, project, node)?;
    let Some(exec) = pinned else {
        if row.is_some() {
            mended.removed += 1;
            store::pin::remove(tx, org, project, node)?;
        }
        return Ok(());
    };
    if row != Some(exec) {
        mended.made += 1;
        store::pin::set(tx, org, project, node, exec)?;
    }
    if store::exec::find(tx, org, exec)?.is_some() {
        return Ok(());
    }
    match row_of(tx, org, exec) {
        Ok((row, contents)) => {
            mended.execs += 1;
            store::exec::insert(tx, org, &row, &contents)
        }
        Err(Fault::Source(failure)) => Err(failure),
        Err(_) => {
            mended.damaged += 1;
            Ok(())
        }
    }
}

/// The row of an exec as its record and result have it. The name of the run that asked first is in no record.
fn row_of(tx: &mut Tx, org: OrgId, id: ExecId) -> Result<(ExecRow, Vec<String>), Fault<Failure>> {
    let mut objects = Objects { tx, org };
    let exec: Exec = read::exec(&mut objects, id)?;
    let below = closure(&mut objects, [exec.result.into()], &|_| false, MAX_RECORDS)?;
    let function = match read::node(&mut objects, exec.node)? {
        Node::Call { function, .. } => Value::load_element(&mut objects, &function)?,
        _ => Value::Null,
    };
    let function = match function {
        Value::Uri(uri) => uri.as_str().to_owned(),
        _ => String::new(),
    };
    let row = ExecRow {
        id,
        node: exec.node,
        function,
        name: String::new(),
        ok: exec.status == ExecStatus::Ok,
        run: exec.provenance.run.as_deref().and_then(|run| run.parse().ok()),
        ended_at: Timestamp(exec.ended_ms),
        bytes: crate::execution::size_of(&mut objects, &below)?,
    };
    Ok((row, below.blobs.iter().map(|blob| blob.hash.to_string()).collect()))
}
