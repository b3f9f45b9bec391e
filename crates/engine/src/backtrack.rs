//! From a result to what it came from: the execution, its run and its cost, the command, files and variables that were its inputs.

use crate::call::owned;
use crate::{Engine, cached_run, view};
use calls::cached_run::{FUNCTION, LINES};
use calls::call::value_of;
use calls::id::{Found, Prefix};
use calls::json::to_json;
use calls::record::{Exec, ExecStatus, Node};
use calls::{ExecId, Fault, Id, Kind, NodeId, Value, read};
use model::attempt::Attempt;
use model::{CallId, Failure, OrgId, Refused, RunId, Timestamp, Trouble};
use serde_json::Value as Json;
use store::Tx;
use store::exec::ExecRow;
use store::object::Objects;

/// Objects that begin with the same digits, enough to say that there are several.
const FEW: i64 = 8;
/// Execs whose results are compared with a dag or value that a person names.
const MOST_LOOKED_AT: i64 = 5_000;

/// Where a result came from.
#[derive(Debug, Clone)]
pub struct Origin {
    pub exec: ExecRow,
    pub record: Exec,
    /// Each input of the call by its name, as JSON for people.
    pub inputs: Vec<(String, Json)>,
    /// Of inputs that are results themselves, by the input's name: the newest exec of the call, or the dag that it is the root of.
    pub made_by: Vec<(String, Id)>,
    pub value: Json,
    /// The attempts of the run that executed it, while its row is there.
    pub attempts: Vec<Attempt>,
}

impl Engine {
    /// `what`: a run, an execution of a call, or the first digits of an exec, of a call node, of a result's dag or value, or of the contents of an artifact.
    pub async fn backtrack(&self, org: OrgId, what: String) -> Result<Origin, Failure> {
        self.store
            .read("exec.backtrack", move |tx| {
                let exec = find(tx, org, &what)?;
                origin(tx, org, exec)
            })
            .await
    }

    /// The call that is meant by a run, an execution, or what else names a result. No record of the result is read, so that one that is
    /// damaged can be let go, too.
    pub async fn node_named(&self, org: OrgId, what: String) -> Result<NodeId, Failure> {
        let project = cached_run::project(&self.context);
        self.store
            .read("call.named", move |tx| {
                if let Ok(call) = what.parse::<CallId>() {
                    let it = owned(tx, org, call)?;
                    return it.node.parse().map_err(|_| Trouble::internal("an execution has no node").into());
                }
                if let Ok(run) = what.parse::<RunId>() {
                    let run = view::owned(tx, org, run)?;
                    let node = run.call.and_then(|called| called.node.parse().ok());
                    let why = format!("{} was not submitted with a cache", run.id);
                    return node.ok_or_else(|| Refused::Conflict { why }.into());
                }
                // As `repl audit` names a pin: the rows of its exec may be gone.
                if let Ok(node) = what.parse::<Id>().map(NodeId)
                    && store::pin::find(tx, org, &project, node)?.is_some()
                {
                    return Ok(node);
                }
                Ok(find(tx, org, &what)?.node)
            })
            .await
    }
}

/// The exec of an execution.
fn of_call(tx: &mut Tx, org: OrgId, call: CallId) -> Result<ExecRow, Failure> {
    let it = owned(tx, org, call)?;
    let Some(exec) = &it.exec else {
        return Err(Refused::Conflict { why: format!("{call} has no result: its status is {}", it.status) }.into());
    };
    let exec = exec.parse().map_err(|_| Trouble::internal("an execution has no exec"))?;
    store::exec::find(tx, org, exec)?.ok_or_else(|| none(&call.to_string()))
}

fn none(what: &str) -> Failure {
    Refused::not_found("result", what).into()
}

/// The exec that a person names, as [`Engine::backtrack`] takes it. Its record is not read.
pub(crate) fn find(tx: &mut Tx, org: OrgId, what: &str) -> Result<ExecRow, Failure> {
    if let Ok(call) = what.parse::<CallId>() {
        return of_call(tx, org, call);
    }
    if let Ok(run) = what.parse::<RunId>() {
        let run = view::owned(tx, org, run)?;
        let answered = run.call.and_then(|called| called.exec).and_then(|exec| exec.parse().ok());
        let exec = match answered {
            Some(exec) => store::exec::find(tx, org, exec)?,
            None => store::exec::of_run(tx, org, run.id)?,
        };
        return exec.ok_or_else(|| none(what));
    }
    let prefix: Prefix = what.parse().map_err(|_| {
        Refused::invalid("value", format!("`{what}` is neither a run nor the first digits (at least 4) of a result"))
    })?;
    if let Ok(hash) = what.parse::<calls::Id>()
        && let Some(exec) = store::exec::of_content(tx, org, &hash.to_string())?
    {
        return Ok(exec);
    }
    let mut objects = store::object::of_prefix(tx, org, prefix, FEW)?;
    let is_part = |kind| matches!(kind, Kind::Exec | Kind::Node | Kind::Dag | Kind::Datum);
    objects.retain(|object| is_part(object.kind));
    match prefix.pick(objects.iter().map(|object| object.id)) {
        Found::None => Err(none(what)),
        Found::Several(one, other) => {
            let why = format!("`{what}` begins several, e.g. {one} and {other}: write more digits");
            Err(Refused::invalid("value", why).into())
        }
        Found::One(id) => {
            let row = match objects[0].kind {
                Kind::Exec => match store::exec::find(tx, org, ExecId(id))? {
                    Some(row) => Some(row),
                    None => pulled(tx, org, ExecId(id))?,
                },
                Kind::Node => store::exec::of_node(tx, org, NodeId(id), 1)?.into_iter().next(),
                _ => None,
            };
            match row {
                Some(row) => Ok(row),
                None => of_result(tx, org, id)?.ok_or_else(|| none(what)),
            }
        }
    }
}

/// An exec that came with a head of another org or installation: its record is all that is known of it here.
fn pulled(tx: &mut Tx, org: OrgId, id: ExecId) -> Result<Option<ExecRow>, Failure> {
    let mut objects = Objects { tx, org };
    let read = |objects: &mut Objects<'_>| {
        let record = read::exec(objects, id)?;
        let Node::Call { function, .. } = read::node(objects, record.node)? else { return Ok(None) };
        let Value::Uri(function) = Value::load_element(objects, &function)? else { return Ok(None) };
        Ok(Some(ExecRow {
            id,
            node: record.node,
            function: function.as_str().to_owned(),
            name: String::new(),
            ok: record.status == ExecStatus::Ok,
            run: None,
            ended_at: Timestamp(record.ended_ms),
            bytes: 0,
        }))
    };
    match read(&mut objects) {
        Ok(found) => Ok(found),
        Err(Fault::Source(failure)) => Err(failure),
        Err(_) => Ok(None),
    }
}

/// The newest exec whose result is this dag, or whose value is this node or datum. No index leads there: the newest execs are looked at.
fn of_result(tx: &mut Tx, org: OrgId, id: Id) -> Result<Option<ExecRow>, Failure> {
    let now = tx.at();
    for row in store::exec::page(tx, org, now, MOST_LOOKED_AT)? {
        let mut objects = Objects { tx, org };
        let is_it = |objects: &mut Objects<'_>| {
            let result = read::exec(objects, row.id)?.result;
            if result.0 == id {
                return Ok(true);
            }
            let root = read::dag(objects, result)?.root;
            let is_value = match read::node(objects, root)? {
                Node::Literal { value } => value.id().0 == id,
                _ => false,
            };
            Ok(root.0 == id || is_value)
        };
        match is_it(&mut objects) {
            Ok(true) => return Ok(Some(row)),
            Err(Fault::Source(failure)) => return Err(failure),
            Ok(false) | Err(_) => {}
        }
    }
    Ok(None)
}

fn origin(tx: &mut Tx, org: OrgId, exec: ExecRow) -> Result<Origin, Failure> {
    let mut objects = Objects { tx, org };
    let read = read_origin(&mut objects, &exec);
    let (record, inputs, made_by, value) = match read {
        Ok(read) => read,
        Err(Fault::Source(failure)) => return Err(failure),
        Err(fault) => {
            let why = format!("a part of it was deleted ({fault})");
            return Err(Refused::Gone { what: "the result", why }.into());
        }
    };
    let attempts = match exec.run {
        Some(run) => store::attempt::of_run(tx, run)?,
        None => Vec::new(),
    };
    Ok(Origin { exec, record, inputs, made_by, value, attempts })
}

type Parts = (Exec, Vec<(String, Json)>, Vec<(String, Id)>, Json);

fn read_origin(objects: &mut Objects<'_>, exec: &ExecRow) -> Result<Parts, Fault<Failure>> {
    let record = read::exec(objects, exec.id)?;
    let Node::Call { inputs, .. } = read::node(objects, exec.node)? else {
        return Err(Fault::Source(Trouble::internal("an exec is of a node that is no call").into()));
    };
    let is_run = exec.function == FUNCTION;
    let (mut shown, mut made_by) = (Vec::new(), Vec::new());
    for (position, input) in inputs.iter().enumerate() {
        let name =
            LINES.get(position).filter(|_| is_run).map_or_else(|| position.to_string(), |name| (*name).to_owned());
        let value = match read::node(objects, *input)? {
            Node::Literal { value } => Value::load_element(objects, &value)?,
            Node::Import { dag } => {
                made_by.push((name.clone(), dag.0));
                Value::Null
            }
            _ => {
                let newest = store::exec::of_node(objects.tx, objects.org, *input, 1).map_err(Fault::Source)?;
                made_by.extend(newest.first().map(|exec| (name.clone(), exec.id.0)));
                Value::Null
            }
        };
        // The values of variables may be secret.
        let value = if is_run && name == "env" { names_of(&value) } else { shown_as(&value) };
        shown.push((name, value));
    }
    let dag = read::dag(objects, record.result)?;
    let value = value_of(objects, dag.root)?.map_or(Json::Null, |value| shown_as(&value));
    Ok((record, shown, made_by, value))
}

fn names_of(env: &Value) -> Json {
    let Value::Map(map) = env else { return Json::Null };
    map.iter().map(|(name, _)| shown_as(name)).collect()
}

/// Bytes that are text are shown as text; a hash as its digits.
pub(crate) fn shown_as(value: &Value) -> Json {
    match value {
        Value::Bytes(bytes) => match std::str::from_utf8(bytes.as_slice()) {
            Ok(text) => Json::String(text.to_owned()),
            Err(_) if bytes.as_slice().len() == 32 => {
                Json::String(bytes.as_slice().iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Err(_) => to_json(value),
        },
        Value::List(values) => values.iter().map(shown_as).collect(),
        Value::Map(map) => {
            let word = |key: &Value| match shown_as(key) {
                Json::String(text) => text,
                other => other.to_string(),
            };
            Json::Object(map.iter().map(|(key, value)| (word(key), shown_as(value))).collect())
        }
        Value::Uri(uri) => Json::String(uri.as_str().to_owned()),
        other => to_json(other),
    }
}
