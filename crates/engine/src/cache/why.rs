//! Why a call was executed although results are kept: what it differs in from the newest execution before it.

use super::AT_ONCE;
use crate::execution::request_of;
use crate::{Engine, view};
use calls::cached_run::FUNCTION;
use calls::why::differences;
use calls::{Fault, NodeId};
use model::run::Run;
use model::spec::RunKind;
use model::{CallId, Failure, OrgId, Refused, RunId, Timestamp, Trouble};
use store::Tx;
use store::exec::ExecRow;
use store::object::Objects;

/// What is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyOf {
    /// A cached run.
    Run(RunId),
    /// An execution that `POST /calls` or a step of a plan began.
    Call(CallId),
}

/// Why a call was executed, or what answered it.
#[derive(Debug, Clone)]
pub struct Why {
    /// The cached run; none of a call of another kind.
    pub run: Option<Run>,
    pub node: NodeId,
    /// A kept result answered it.
    pub hit: bool,
    /// The execution it is compared with; none if there was none before it.
    pub with: Option<ExecRow>,
    pub differences: Vec<String>,
    /// What differs by itself does not explain it.
    pub note: Option<String>,
}

/// A call that was executed or answered, as far as it is compared.
struct Called {
    run: Option<Run>,
    node: NodeId,
    function: String,
    /// Of the run that asked; empty if none did, or if it has none.
    name: String,
    /// The exec that answered it without an execution.
    answered: Option<Option<String>>,
    /// It wanted an execution of its own.
    fresh: bool,
    /// An error that is kept is an answer for it.
    takes_errors: bool,
    since: Timestamp,
}

impl Engine {
    /// What a call differs in from the newest execution before it: of a run of the same name, else of the same function.
    pub async fn cache_why(&self, org: OrgId, of: WhyOf) -> Result<Why, Failure> {
        self.store
            .read("cache.why", move |tx| {
                let called = match of {
                    WhyOf::Run(run) => of_run(view::owned(tx, org, run)?)?,
                    WhyOf::Call(call) => of_call(tx, org, call)?,
                };
                why(tx, org, called)
            })
            .await
    }
}

fn of_run(run: Run) -> Result<Called, Failure> {
    let Some(called) = run.call.clone() else {
        let mut why = format!("{} was not submitted with --cache: it always runs", run.id);
        if run.spec.kind == RunKind::Agents {
            why += "; calls of its steps have ids of their own: repl call ls";
        }
        return Err(Refused::Conflict { why }.into());
    };
    let node = called.node.parse().map_err(|_| Trouble::internal("a caller has no node"))?;
    let takes_errors = run.spec.call.as_ref().and_then(|part| part.caller()).is_some_and(|cache| cache.errors);
    Ok(Called {
        node,
        function: FUNCTION.to_owned(),
        name: run.name.clone(),
        answered: called.execution.is_none().then_some(called.exec),
        fresh: false,
        takes_errors,
        since: run.created_at,
        run: Some(run),
    })
}

fn of_call(tx: &mut Tx, org: OrgId, call: CallId) -> Result<Called, Failure> {
    let it = store::execution::find(tx, call.0)?.filter(|it| it.org == org);
    let it = it.ok_or_else(|| Refused::not_found("call", call.to_string()))?;
    let request = request_of(tx, call.0)?;
    let pinned = it.exec.clone().filter(|_| it.started_at.is_none());
    Ok(Called {
        run: None,
        node: it.node.parse().map_err(|_| Trouble::internal("an execution has no node"))?,
        name: request.name,
        answered: pinned.map(Some),
        fresh: request.fresh,
        takes_errors: request.takes_errors,
        since: it.started_at.unwrap_or(tx.at()),
        function: it.function,
    })
}

fn why(tx: &mut Tx, org: OrgId, called: Called) -> Result<Why, Failure> {
    let (node, before, function) = (called.node, called.since, called.function.as_str());
    let mut why = Why { run: None, node, hit: false, with: None, differences: Vec::new(), note: None };
    why.run = called.run;
    if let Some(exec) = called.answered {
        why.hit = true;
        if let Some(exec) = exec.and_then(|exec| exec.parse().ok()) {
            why.with = store::exec::find(tx, org, exec)?;
        }
        return Ok(why);
    }
    let same_as = if why.run.is_some() || function == FUNCTION { "run" } else { "call" };
    // The same key was executed before: what differs is not the call.
    let same = store::exec::of_node(tx, org, node, AT_ONCE)?.into_iter().find(|exec| exec.ended_at <= before);
    if let Some(same) = same {
        why.note = Some(match (called.fresh, same.ok || called.takes_errors) {
            (true, _) => "it was asked for without the cache".to_owned(),
            (false, true) => format!("the result of the same {same_as} was invalidated or deleted"),
            (false, false) => {
                "the same run ended with another exit code than 0: --cache-errors takes that as an answer".to_owned()
            }
        });
        why.with = Some(same);
        return Ok(why);
    }
    let named = match called.name.as_str() {
        "" => None,
        name => store::exec::newest_of_name(tx, org, (function, name), node, before)?,
    };
    let with = match named {
        Some(with) => Some(with),
        None => store::exec::newest_of_function(tx, org, function, node, before)?,
    };
    let Some(with) = with else {
        let what = if same_as == "run" { "a cached run".to_owned() } else { function.to_owned() };
        why.note = Some(format!("there was no result of {what} yet"));
        return Ok(why);
    };
    match differences(&mut Objects { tx, org }, with.node, node) {
        Ok(found) => why.differences = found.iter().map(ToString::to_string).collect(),
        Err(Fault::Source(failure)) => return Err(failure),
        Err(fault) => why.note = Some(format!("what {} was executed with was deleted: {fault}", with.id)),
    }
    why.with = Some(with);
    Ok(why)
}
