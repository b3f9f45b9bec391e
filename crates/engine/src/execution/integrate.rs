//! The result of an execution becomes the answer of its call: exec record, exec map, index commit, ref, pin and claim change in one
//! transaction, after every record and content of the result was found here.

use super::{ExecutionNow, Work, changed, node_of};
use crate::Engine;
use crate::cached_run::project;
use crate::index::Index;
use calls::reach::{Closure, available};
use calls::record::{Exec, ExecStatus, Provenance};
use calls::{ExecId, Fault, Read as _, Reference};
use model::execution::{Answered, Execution, ExecutionEvent};
use model::run::LastError;
use model::{Failure, Trouble, bug};
use std::sync::Arc;
use store::exec::ExecRow;
use store::object::Objects;
use store::{Item, Tx};

/// Records of one result.
const MAX_RECORDS: usize = 100_000;

impl Engine {
    pub(super) async fn integrate(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        if let Work::Adapter { .. } = &seen.request.work
            && !self.fetch_result(item, seen).await?
        {
            return Ok(());
        }
        let project = project(&self.context);
        let run = seen.request.run();
        let jobs = match run {
            Some(run) => self.store.read("execution.jobs", move |tx| store::job::of_run(tx, run)).await?,
            None => Vec::new(),
        };
        let job = jobs.last();
        let provenance = Provenance {
            execution: Some(format!("{}-{}", seen.it.key, seen.it.attempt)),
            run: run.map(|run| run.to_string()),
            job: job.map(|job| job.id.to_string()),
            instance: job.and_then(|job| job.instance).map(|instance| instance.to_string()),
        };
        let asker =
            Asker { name: seen.request.name.clone(), run, fresh: seen.request.fresh, epoch: seen.request.epoch };
        let (org, of) = (seen.it.org, project.clone());
        let act = move |tx: &mut Tx, it: &Execution, index: &mut Index| {
            let Some(done) = it.done.clone().filter(|_| !it.status.is_end()) else { return Ok(()) };
            let event = match integrated(tx, it, &done, (&of, index), provenance.clone(), &asker) {
                Ok(event) => event,
                Err(Fault::Source(failure)) => return Err(failure),
                Err(fault) if fault.may_pass() => ExecutionEvent::TransientFailure { error: said(&fault) },
                Err(fault) => ExecutionEvent::ResultRefused { error: said(&fault) },
            };
            changed(tx, item.subject, it, event).map(drop)
        };
        self.pin_together(org, &project, item, Arc::new(act)).await
    }
}

/// Who asked, and for what.
struct Asker {
    /// What the run that asked first was called.
    name: String,
    /// The run that executed it.
    run: Option<model::RunId>,
    /// It replaces what is pinned.
    fresh: bool,
    /// How often results of the function had been invalidated when it was opened.
    epoch: Option<i64>,
}

fn said(fault: &Fault<Failure>) -> LastError {
    LastError { code: "result".into(), message: fault.to_string(), cause: None }
}

fn integrated(
    tx: &mut Tx,
    it: &Execution,
    done: &Answered,
    (project, index): (&str, &mut Index),
    provenance: Provenance,
    asker: &Asker,
) -> Result<ExecutionEvent, Fault<Failure>> {
    let org = it.org;
    let broken = |what: &str| Fault::Source(Trouble::internal(format!("an execution has no {what}")).into());
    let node = node_of(it).map_err(Fault::Source)?;
    let result: calls::DagId = done.result.parse().map_err(|_| broken("result"))?;
    let closure = match bug!(pin_before_objects) {
        true => Closure::default(),
        false => available(&mut Objects { tx, org }, result.into(), MAX_RECORDS)?,
    };
    let pinned = index.pinned(tx, node)?;
    // Read with the index locked, as `invalidate` raises it: what was begun before answers the runs that have asked, and none after them.
    let now = store::execution::epoch(tx, org, &it.function, node).map_err(Fault::Source)?;
    let stale = asker.epoch.is_some_and(|begun| begun != now);
    // Another execution of the node may have been pinned first: an OK that is whole stays, unless a caller wanted a new one.
    if let Some(pinned) = pinned.filter(|_| !asker.fresh && !stale)
        && is_whole_ok(&mut Objects { tx, org }, pinned)?
    {
        return Ok(ExecutionEvent::PinnedByAnother { exec: pinned.to_string() });
    }
    let status = if done.ok { ExecStatus::Ok } else { ExecStatus::Error };
    let started_ms = it.started_at.unwrap_or(done.at).ms();
    let exec = Exec { node, status, result, started_ms, ended_ms: done.at.ms(), provenance };
    let id = exec.id();
    let bytes = size_of(&mut Objects { tx, org }, &closure)?;
    let mut write = |tx: &mut Tx| {
        store::object::put(tx, org, &[(Reference::from(id), exec.record())])?;
        if !stale {
            index.pin(node, id);
            store::pin::set(tx, org, project, node, id)?;
        }
        let ok = done.ok;
        let (function, name) = (it.function.clone(), asker.name.clone());
        let row = ExecRow { id, node, function, name, ok, run: asker.run, ended_at: done.at, bytes };
        let contents: Vec<String> = closure.blobs.iter().map(|blob| blob.hash.to_string()).collect();
        store::exec::insert(tx, org, &row, &contents)
    };
    write(tx).map_err(Fault::Source)?;
    Ok(ExecutionEvent::Integrated { exec: id.to_string() })
}

/// An exec that can be adopted. One that is damaged is replaced.
fn is_whole_ok(objects: &mut Objects<'_>, exec: ExecId) -> Result<bool, Fault<Failure>> {
    let found = match calls::read::exec(objects, exec) {
        Ok(found) if found.status == ExecStatus::Ok => available(objects, found.result.into(), MAX_RECORDS).map(drop),
        Ok(_) => return Ok(false),
        Err(fault) => Err(fault),
    };
    match found {
        Err(Fault::Source(failure)) => Err(Fault::Source(failure)),
        found => Ok(found.is_ok()),
    }
}

/// Of a result: its records and contents.
pub(crate) fn size_of(objects: &mut Objects<'_>, closure: &Closure) -> Result<i64, Fault<Failure>> {
    let mut bytes: i64 = closure.blobs.iter().map(|blob| blob.bytes as i64).sum();
    for object in &closure.objects {
        bytes += objects.record(*object).map_err(Fault::Source)?.map_or(0, |record| record.len() as i64);
    }
    Ok(bytes)
}
