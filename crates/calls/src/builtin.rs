//! The functions of the scheme `dml`: they are evaluated where a value is read, and never executed. What they make is bounded, because a
//! few records that name each other may stand for a huge value.

use crate::id::NodeId;
use crate::object::MAX_RECORD_BYTES;
use crate::read::{Fault, Read, dag, node};
use crate::record::{Builtin, Node};
use crate::value::{MAX_DEPTH, Value};

/// Nodes of one evaluation. One that is named several times is counted as often.
const MAX_NODES: usize = 100_000;
/// Of all values that one evaluation reads, in bytes or so.
const MAX_WEIGHT: usize = MAX_RECORD_BYTES;

/// The value of a node: a literal, an import that leads to one, or a builtin of such values. None: a call is no value, and neither is what
/// a builtin cannot make of its inputs (an index that is not there, a key that comes twice).
pub fn value_of<R: Read + ?Sized>(from: &mut R, of: NodeId) -> Result<Option<Value>, Fault<R::Error>> {
    Evaluation { from, nodes: MAX_NODES, weight: MAX_WEIGHT }.value(of, 0, false)
}

struct Evaluation<'r, R: ?Sized> {
    from: &'r mut R,
    nodes: usize,
    weight: usize,
}

impl<R: Read + ?Sized> Evaluation<'_, R> {
    /// `counted`: it is an input of a builtin.
    fn value(&mut self, of: NodeId, depth: usize, counted: bool) -> Result<Option<Value>, Fault<R::Error>> {
        if depth >= MAX_DEPTH {
            return Err(Fault::TooLarge { what: "the depth of a value", limit: MAX_DEPTH });
        }
        let left = self.nodes.checked_sub(1);
        self.nodes = left.ok_or(Fault::TooLarge { what: "the nodes of a value", limit: MAX_NODES })?;
        match node(self.from, of)? {
            Node::Literal { value } => {
                let value = Value::load_element(self.from, &value)?;
                if counted {
                    let left = self.weight.checked_sub(weight(&value));
                    self.weight = left.ok_or(Fault::TooLarge { what: "a value", limit: MAX_WEIGHT })?;
                }
                Ok(Some(value))
            }
            Node::Import { dag: imported } => {
                let root = dag(self.from, imported)?.root;
                self.value(root, depth + 1, counted)
            }
            Node::Call { .. } => Ok(None),
            Node::Builtin { function, inputs } => {
                let mut values = Vec::new();
                for input in inputs {
                    let Some(value) = self.value(input, depth + 1, true)? else { return Ok(None) };
                    values.push(value);
                }
                Ok(made(function, values))
            }
        }
    }
}

fn made(function: Builtin, values: Vec<Value>) -> Option<Value> {
    match function {
        Builtin::ListConstruct => Some(Value::List(values)),
        Builtin::SetConstruct => Value::set(values).ok(),
        Builtin::MapConstruct => {
            let (pairs, rest) = values.as_chunks::<2>();
            let entries = pairs.iter().map(|[key, value]| (key.clone(), value.clone()));
            rest.is_empty().then(|| Value::map(entries).ok())?
        }
        Builtin::ListGet => match <[Value; 2]>::try_from(values).ok()? {
            [Value::List(mut list), Value::Int(at)] => {
                let at = usize::try_from(at).ok().filter(|at| *at < list.len())?;
                Some(list.swap_remove(at))
            }
            _ => None,
        },
        Builtin::MapGet => match <[Value; 2]>::try_from(values).ok()? {
            [Value::Map(map), key] => map.get(&key).cloned(),
            _ => None,
        },
    }
}

fn weight(value: &Value) -> usize {
    const EACH: usize = 32;
    EACH + match value {
        Value::Bytes(bytes) => bytes.as_slice().len(),
        Value::String(text) => text.as_str().len(),
        Value::Uri(uri) => uri.as_str().len(),
        Value::List(values) => values.iter().map(weight).sum(),
        Value::Set(set) => set.iter().map(weight).sum(),
        Value::Map(map) => map.iter().map(|(key, value)| weight(key) + weight(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::object::Object;
    use crate::read::Memory;
    use crate::record::Dag;

    fn literal(memory: &mut Memory, text: &str) -> NodeId {
        let mut records = Vec::new();
        let value = json::parse(text).unwrap().element(&mut records).unwrap();
        memory.add(records);
        put(memory, Node::Literal { value })
    }
    fn put(memory: &mut Memory, node: Node) -> NodeId {
        NodeId(memory.put(&Object::Node(node)).id)
    }
    fn apply(memory: &mut Memory, function: Builtin, inputs: &[NodeId]) -> NodeId {
        put(memory, Node::Builtin { function, inputs: inputs.to_vec() })
    }
    fn shown(memory: &mut Memory, of: NodeId) -> Option<String> {
        value_of(memory, of).unwrap().map(|value| json::to_json(&value).to_string())
    }

    #[test]
    fn builtins_construct_and_get() {
        use Builtin::*;
        let mut memory = Memory::default();
        let texts = [r#""a""#, "1", r#""b""#, "[2,3]", "-1", r#"{"k":"v"}"#, r#""k""#];
        let [a, one, b, list, minus, map, k] = texts.map(|text| literal(&mut memory, text));
        for (function, inputs, made) in [
            (ListConstruct, vec![a, list], Some(r#"["a",[2,3]]"#)),
            (ListConstruct, vec![], Some("[]")),
            (SetConstruct, vec![one], Some(r#"{"$set":[1]}"#)),
            (SetConstruct, vec![one, one], None),
            (MapConstruct, vec![a, one, b, list], Some(r#"{"a":1,"b":[2,3]}"#)),
            (MapConstruct, vec![a, one, b], None),
            (MapConstruct, vec![a, one, a, list], None),
            (ListGet, vec![list, one], Some("3")),
            (ListGet, vec![list, minus], None),
            (ListGet, vec![map, one], None),
            (ListGet, vec![list], None),
            (MapGet, vec![map, k], Some(r#""v""#)),
            (MapGet, vec![map, a], None),
            (MapGet, vec![list, k], None),
        ] {
            let node = apply(&mut memory, function, &inputs);
            assert_eq!(shown(&mut memory, node).as_deref(), made, "{function:?} of {inputs:?}");
        }
        // Of one another, and through imports.
        let inner = apply(&mut memory, ListConstruct, &[a, map]);
        let dag = memory.put(&Object::Dag(Dag::of(inner)));
        let imported = put(&mut memory, Node::Import { dag: crate::id::DagId(dag.id) });
        let second = apply(&mut memory, ListGet, &[imported, one]);
        let nested = apply(&mut memory, MapGet, &[second, k]);
        assert_eq!(shown(&mut memory, nested).as_deref(), Some(r#""v""#));
        let refused = apply(&mut memory, ListGet, &[list, minus]);
        let above = apply(&mut memory, ListConstruct, &[a, refused]);
        assert_eq!(shown(&mut memory, above), None, "what one of its inputs is not");
    }

    #[test]
    fn a_few_records_that_stand_for_a_huge_value_are_refused() {
        let mut memory = Memory::default();
        let mut node = literal(&mut memory, "1");
        for _ in 0..40 {
            node = apply(&mut memory, Builtin::ListConstruct, &[node, node]);
        }
        assert!(matches!(value_of(&mut memory, node), Err(Fault::TooLarge { limit: MAX_NODES, .. })));
        let mut node = literal(&mut memory, "1");
        for _ in 0..MAX_DEPTH {
            node = apply(&mut memory, Builtin::ListConstruct, &[node]);
        }
        assert!(matches!(value_of(&mut memory, node), Err(Fault::TooLarge { limit: MAX_DEPTH, .. })));
        let long = literal(&mut memory, &format!("{:?}", "x".repeat(1 << 20)));
        let many = apply(&mut memory, Builtin::ListConstruct, &[long; 100]);
        assert!(matches!(value_of(&mut memory, many), Err(Fault::TooLarge { limit: MAX_WEIGHT, .. })));
    }
}
