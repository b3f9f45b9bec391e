//! What two calls differ in: their functions and inputs, and how they ended.

use crate::Engine;
use crate::backtrack::{find, shown_as};
use crate::call::owned;
use calls::call::value_of;
use calls::record::ExecStatus;
use calls::why::differences;
use calls::{Fault, NodeId, Value, read};
use model::{CallId, Failure, OrgId, Refused, Trouble};
use std::collections::BTreeSet;
use store::Tx;
use store::exec::ExecRow;
use store::object::Objects;

/// Signs of a value that are shown of each side.
const MOST_SIGNS: usize = 120;

/// Two calls, and what is not the same, one sentence each.
#[derive(Debug, Clone)]
pub struct CallDiff {
    pub nodes: [NodeId; 2],
    pub differences: Vec<String>,
}

/// One of the two.
struct Side {
    node: NodeId,
    status: String,
    /// None: it has no result.
    exec: Option<ExecRow>,
}

impl Engine {
    /// Each is named by an execution of a call, or as a result is for `backtrack`.
    pub async fn call_diff(&self, org: OrgId, named: [String; 2]) -> Result<CallDiff, Failure> {
        self.store
            .read("call.diff", move |tx| {
                let [first, second] = [side(tx, org, &named[0])?, side(tx, org, &named[1])?];
                let nodes = [first.node, second.node];
                match compared(tx, org, &first, &second) {
                    Ok(differences) => Ok(CallDiff { nodes, differences }),
                    Err(Fault::Source(failure)) => Err(failure),
                    Err(fault) => {
                        let why = format!("a part of it was deleted ({fault})");
                        Err(Refused::Gone { what: "the call", why }.into())
                    }
                }
            })
            .await
    }
}

fn side(tx: &mut Tx, org: OrgId, named: &str) -> Result<Side, Failure> {
    let Ok(call) = named.parse::<CallId>() else {
        let exec = find(tx, org, named)?;
        return Ok(Side { node: exec.node, status: word(exec.ok), exec: Some(exec) });
    };
    let it = owned(tx, org, call)?;
    let node = it.node.parse().map_err(|_| Trouble::internal("an execution has no node"))?;
    let exec = match it.exec.as_ref().and_then(|exec| exec.parse().ok()) {
        Some(exec) => store::exec::find(tx, org, exec)?,
        None => None,
    };
    let status = exec.as_ref().map_or_else(|| it.status.to_string(), |exec| word(exec.ok));
    Ok(Side { node, status, exec })
}

fn word(ok: bool) -> String {
    let status = if ok { ExecStatus::Ok } else { ExecStatus::Error };
    status.as_str().to_owned()
}

fn compared(tx: &mut Tx, org: OrgId, first: &Side, second: &Side) -> Result<Vec<String>, Fault<Failure>> {
    let mut objects = Objects { tx, org };
    let found = differences(&mut objects, first.node, second.node)?;
    let mut found: Vec<String> = found.iter().map(ToString::to_string).collect();
    if first.status != second.status {
        found.push(format!("status: {}, now {}", first.status, second.status));
    }
    let (before, after) = (value(&mut objects, first)?, value(&mut objects, second)?);
    match (&before, &after) {
        (Some(Value::Map(before)), Some(Value::Map(after))) => {
            let keys = before.iter().chain(after.iter()).map(|(key, _)| key);
            let mut known = BTreeSet::new();
            for key in keys.filter(|key| before.get(key) != after.get(key)) {
                let name = text(Some(key));
                if known.insert(name.clone()) {
                    found.push(format!("value, {name}: {}, now {}", text(before.get(key)), text(after.get(key))));
                }
            }
        }
        _ if before != after => {
            found.push(format!("value: {}, now {}", text(before.as_ref()), text(after.as_ref())));
        }
        _ => {}
    }
    Ok(found)
}

/// None: it has no result, or its result is no value.
fn value(objects: &mut Objects<'_>, of: &Side) -> Result<Option<Value>, Fault<Failure>> {
    let Some(exec) = &of.exec else { return Ok(None) };
    let result = read::exec(objects, exec.id)?.result;
    let root = read::dag(objects, result)?.root;
    value_of(objects, root)
}

fn text(value: Option<&Value>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    let text = shown_as(value).to_string();
    match text.char_indices().nth(MOST_SIGNS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
