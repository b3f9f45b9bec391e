//! Very many pins in a rehearsed database, made by the store's own functions: what a hit costs beside few and beside many, and how many bytes
//! a pin writes.

use crate::rehearsal::Rehearsal;
use calls::history::{empty_index, pin};
use calls::record::{Dag, Exec, ExecStatus, Node, Provenance};
use calls::refs::{RefName, Swap};
use calls::uri::Uri;
use calls::{ExecId, NodeId, Records, Reference, Value};
use model::{Failure, OrgId, Timestamp, Trouble};
use std::collections::BTreeMap;
use store::exec::ExecRow;
use store::object::Objects;
use store::{Lane, Tx};

const FUNCTION: &str = "dml+exec://dml-exec-bench/double?blake3=0";
const PROJECT: &str = "default";
/// Pins of one transaction while the database is filled.
const TOGETHER: usize = 20_000;

/// The call `double(number)`: its inputs are encoded, and with it its id.
fn call(number: usize) -> (NodeId, Records) {
    let mut records = Records::new();
    let value = Value::Int(number as i64).element(&mut records).expect("a number is a value");
    let input = Node::Literal { value };
    records.push((input.id().into(), input.record()));
    let function = Value::Uri(Uri::new(FUNCTION).expect("a URI")).element(&mut records).expect("a URI is a value");
    let node = Node::Call { function, inputs: vec![input.id()] };
    let id = node.id();
    records.push((id.into(), node.record()));
    (id, records)
}

/// Its execution, with everything that it names.
fn exec(number: usize, node: NodeId, records: &mut Records) -> ExecId {
    let value = Value::Int(2 * number as i64).element(records).expect("a number is a value");
    let root = Node::Literal { value };
    let dag = Dag::of(root.id());
    let provenance = Provenance { execution: Some(number.to_string()), ..Provenance::default() };
    let exec = Exec { node, status: ExecStatus::Ok, result: dag.id(), started_ms: 0, ended_ms: 1, provenance };
    let id = exec.id();
    records.extend([(root.id().into(), root.record()), (dag.id().into(), dag.record())]);
    records.push((Reference::from(id), exec.record()));
    id
}

impl Rehearsal {
    /// Pins the calls of these numbers.
    pub async fn pin_all(&self, from: usize, to: usize) -> Result<(), Failure> {
        let (org, name) = (self.org, self.index().await?);
        for start in (from..to).step_by(TOGETHER) {
            let (name, end) = (name.clone(), to.min(start + TOGETHER));
            let write = move |tx: &mut Tx| pin_some(tx, org, &name, start..end);
            self.engine.store.write(Lane::Normal, "rehearsal.pins", write).await?;
        }
        Ok(())
    }

    async fn index(&self) -> Result<RefName, Failure> {
        let all = self.engine.indexes(self.org).await?;
        let ours = all.into_iter().find(|index| index.current);
        ours.map(|index| index.name).ok_or_else(|| Trouble::internal("a project has an index").into())
    }

    /// From the inputs, encoded here, to the id of the result.
    pub async fn hit(&self, number: usize) -> Result<Option<String>, Failure> {
        let (node, _) = call(number);
        Ok(self.engine.pinned_result(self.org, node).await?.map(|(_, result)| result.to_string()))
    }

    /// The exec of a pinned call.
    pub async fn exec_of(&self, number: usize) -> Result<Option<String>, Failure> {
        let (node, _) = call(number);
        Ok(self.engine.pinned_result(self.org, node).await?.map(|(exec, _)| exec.to_string()))
    }

    /// Bytes of the records that one more pin would write.
    pub async fn bytes_of_a_pin(&self, number: usize) -> Result<usize, Failure> {
        let (org, name) = (self.org, self.index().await?);
        let read = move |tx: &mut Tx| {
            let index = store::refs::find(tx, org, &name)?.ok_or_else(|| Trouble::internal("nothing is pinned"))?;
            let (node, _) = call(number);
            let exec = exec(number, node, &mut Records::new());
            let pinned = pin(&mut Objects { tx, org }, index, &BTreeMap::from([(node, exec)]));
            let (_, records) = pinned.map_err(|fault| Trouble::internal(fault.to_string()))?;
            Ok(records.iter().map(|(_, record)| record.len()).sum())
        };
        self.engine.store.read("rehearsal.pin", read).await
    }
}

fn pin_some(tx: &mut Tx, org: OrgId, name: &RefName, numbers: std::ops::Range<usize>) -> Result<(), Failure> {
    let at = store::refs::lock(tx, org, name)?;
    let index = match at {
        Some(at) => at,
        None => {
            let (first, records) = empty_index();
            store::object::put(tx, org, &records)?;
            first
        }
    };
    let (mut all, mut pins) = (Records::new(), BTreeMap::new());
    for number in numbers {
        let (node, records) = call(number);
        all.extend(records);
        let exec = exec(number, node, &mut all);
        pins.insert(node, exec);
        let (function, ended_at) = (FUNCTION.to_owned(), Timestamp(1));
        let row = ExecRow { id: exec, node, function, name: String::new(), ok: true, run: None, ended_at, bytes: 100 };
        store::exec::insert(tx, org, &row, &[])?;
        store::pin::set(tx, org, PROJECT, node, exec)?;
    }
    let pinned = pin(&mut Objects { tx, org }, index, &pins);
    let (next, records) = pinned.map_err(|fault| Trouble::internal(fault.to_string()))?;
    all.extend(records);
    store::object::put(tx, org, &all)?;
    let swapped = store::refs::swap(tx, org, name, Swap { expect: at, to: Some(next) })?;
    swapped.map_err(|moved| Trouble::internal(moved.to_string()).into())
}
