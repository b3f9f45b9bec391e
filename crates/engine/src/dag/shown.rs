//! Objects as JSON, for people: ids as text, values as `calls::json` writes them. A value that is too large is named by its parts.

use super::{Shown, unreadable};
use calls::datum::Element;
use calls::exec_map::ExecMap;
use calls::record::Node;
use calls::uri::Blob;
use calls::{Fault, Object, Reference, Value, json as values, read};
use model::{Failure, OrgId, Refused};
use serde_json::{Map, Value as Json, json};
use store::Tx;
use store::object::Objects;

/// Bytes of records that are read for one value.
const MAX_VALUE_BYTES: usize = 4 << 20;

pub(super) fn shown(tx: &mut Tx, org: OrgId, of: Reference) -> Result<Shown, Failure> {
    let mut objects = Objects { tx, org };
    let bytes = calls::Read::record(&mut objects, of)?.ok_or_else(|| Refused::not_found("object", of.id))?;
    let object = Object::read(of, &bytes).map_err(|why| unreadable(Fault::Unreadable { at: of, why }))?;
    Ok(Shown { of, bytes: bytes.len() as i64, object: document(&mut objects, &object)? })
}

fn document(objects: &mut Objects<'_>, object: &Object) -> Result<Json, Failure> {
    Ok(match object {
        Object::Datum(datum) => {
            let (element, _) = Element::of(datum.clone());
            value(objects, &element)?
        }
        Object::Node(Node::Literal { value: element }) => {
            let mut shown = value(objects, element)?;
            shown["node"] = "literal".into();
            shown
        }
        Object::Node(Node::Call { function, inputs }) => {
            let function = value(objects, function)?;
            json!({ "node": "call", "function": function["value"], "inputs": texts(inputs) })
        }
        Object::Node(Node::Import { dag }) => json!({ "node": "import", "dag": dag.to_string() }),
        Object::Node(Node::Builtin { function, inputs }) => {
            json!({ "node": "builtin", "function": function.uri(), "inputs": texts(inputs) })
        }
        Object::Dag(dag) => {
            let mut shown = match read::node(objects, dag.root).map_err(unreadable)? {
                Node::Literal { value: element } => value(objects, &element)?,
                _ => json!({}),
            };
            shown["root"] = dag.root.to_string().into();
            shown["names"] = dag.names.iter().map(|(name, id)| (name.to_string(), json!(id.to_string()))).collect();
            shown
        }
        Object::Tree(tree) => {
            let dags: Map<String, Json> =
                tree.dags.iter().map(|(name, id)| (name.to_string(), json!(id.to_string()))).collect();
            json!({ "dags": dags })
        }
        Object::Commit(commit) => json!({
            "tree": commit.tree.to_string(),
            "parents": texts(&commit.parents),
            "execs": commit.execs.map(|root| root.to_string()),
        }),
        Object::Exec(exec) => json!({
            "call": exec.node.to_string(),
            "status": exec.status.as_str(),
            "result": exec.result.to_string(),
            "started_at": exec.started_ms,
            "ended_at": exec.ended_ms,
            "execution": exec.provenance.execution,
            "run": exec.provenance.run,
            "job": exec.provenance.job,
            "instance": exec.provenance.instance,
        }),
        Object::ExecMap(ExecMap::Leaf(entries)) => {
            let pins: Map<String, Json> =
                entries.iter().map(|(node, exec)| (node.to_string(), json!(exec.to_string()))).collect();
            json!({ "pins": pins })
        }
        Object::ExecMap(ExecMap::Branch(children)) => {
            let below = children.iter().enumerate().filter_map(|(digit, child)| Some((digit, (*child)?)));
            let below: Map<String, Json> =
                below.map(|(digit, child)| (format!("{digit:x}"), json!(child.to_string()))).collect();
            json!({ "children": below })
        }
    })
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

/// The value with everything below it; of a large one the ids of its parts.
fn value(objects: &mut Objects<'_>, of: &Element) -> Result<Json, Failure> {
    let mut bounded = Bounded { objects, left: MAX_VALUE_BYTES };
    match Value::load_element(&mut bounded, of) {
        Ok(value) => Ok(json!({ "value": values::to_json(&value) })),
        Err(Fault::Source(Failure::Refused(Refused::TooLarge { .. })) | Fault::TooLarge { .. }) => {
            let datum = read::element(objects, of).map_err(unreadable)?;
            let parts: Vec<String> = datum.references().iter().map(ToString::to_string).collect();
            Ok(json!({ "value": null, "too_large": true, "parts": parts }))
        }
        Err(fault) => Err(unreadable(fault)),
    }
}

/// Reads no more than so much.
struct Bounded<'o, 't> {
    objects: &'o mut Objects<'t>,
    left: usize,
}

impl calls::Read for Bounded<'_, '_> {
    type Error = Failure;

    fn record(&mut self, of: Reference) -> Result<Option<Vec<u8>>, Failure> {
        let found = self.objects.record(of)?;
        let bytes = found.as_ref().map_or(0, Vec::len);
        let limit = || Refused::TooLarge { what: "the value", limit: format!("{} MiB", MAX_VALUE_BYTES >> 20) };
        self.left = self.left.checked_sub(bytes).ok_or_else(limit)?;
        Ok(found)
    }

    fn has_blob(&mut self, blob: Blob) -> Result<bool, Failure> {
        self.objects.has_blob(blob)
    }
}
