//! A call: a function applied to values, as a node with all records it needs. The same function and values are the same node.

use crate::function::Function;
use crate::id::{DagId, NodeId, Reference};
use crate::read::Records;
use crate::record::{Dag, Node};
use crate::uri::Uri;
use crate::value::{BadValue, Value};

pub use crate::builtin::value_of;

/// A call node with all records it needs, children first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub node: NodeId,
    pub inputs: Vec<NodeId>,
    pub records: Records,
}

impl Call {
    pub fn of(function: &Function, inputs: &[Value]) -> Result<Call, BadValue> {
        Call::with(function.uri().clone(), inputs)
    }

    pub(crate) fn with(function: Uri, values: &[Value]) -> Result<Call, BadValue> {
        let mut records = Records::new();
        let mut inputs = Vec::new();
        for value in values {
            let literal = Node::Literal { value: value.element(&mut records)? };
            inputs.push(put(&mut records, &literal));
        }
        let function = Value::Uri(function).element(&mut records)?;
        let node = put(&mut records, &Node::Call { function, inputs: inputs.clone() });
        Ok(Call { node, inputs, records })
    }
}

pub(crate) fn put(records: &mut Records, node: &Node) -> NodeId {
    let record = node.record();
    let id = NodeId::of(&record);
    records.push((Reference::from(id), record));
    id
}

/// A dag whose root is this value, with the records it needs, children first.
pub fn dag_of(value: &Value) -> Result<(DagId, Records), BadValue> {
    let mut records = Records::new();
    let literal = Node::Literal { value: value.element(&mut records)? };
    let dag = Dag::of(put(&mut records, &literal));
    records.push((dag.id().into(), dag.record()));
    Ok((dag.id(), records))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Memory;

    #[test]
    fn a_call_is_the_same_node_whenever_it_is_made_and_its_inputs_read_back() {
        let function = Function::parse("dml+exec://dml-exec-local/f?blake3=1").unwrap();
        let inputs = [Value::Int(5), Value::text(&"long ".repeat(20)).unwrap()];
        let call = Call::of(&function, &inputs).unwrap();
        assert_eq!(Call::of(&function, &inputs).unwrap(), call);
        let other = Function::parse("dml+exec://dml-exec-local/f?blake3=2").unwrap();
        assert_ne!(Call::of(&other, &inputs).unwrap().node, call.node);
        let mut memory = Memory::default();
        memory.add(call.records);
        for (id, value) in call.inputs.iter().zip(inputs) {
            assert_eq!(value_of(&mut memory, *id), Ok(Some(value)));
        }
        assert_eq!(value_of(&mut memory, call.node), Ok(None), "a call is no value before it was executed");
    }
}
