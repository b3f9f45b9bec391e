//! Under which key executions of a call are shared. Two callers with the same key wait for one execution.

use crate::id::{Id, NodeId};
use crate::refs::Uuid;

/// Changing what is hashed needs a new context, or claims of other versions would answer.
const CONTEXT: &str = "remuda execution key 1";

/// Tells executions of one node apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Epoch {
    /// Per function, raised by `repl cache invalidate`.
    Counter(u64),
    /// The execution's own UUID, for `cache: false`: never shared.
    Own(Uuid),
}

/// The hash of org, node and epoch. Another org never shares an execution.
pub fn execution_key(org: &str, node: NodeId, epoch: &Epoch) -> Id {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let epoch = match epoch {
        Epoch::Counter(number) => format!("counter {number}"),
        Epoch::Own(uuid) => format!("own {uuid}"),
    };
    for part in [org.as_bytes(), &node.0.0, epoch.as_bytes()] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Id(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn org_node_and_epoch_are_in_the_key_and_nothing_else() {
        let [a, b] = [1, 2].map(|byte| NodeId(Id([byte; 32])));
        let own = |digit: char| Epoch::Own(format!("0b9f1f5e-6f0d-4a53-8f5b-3d3f4f2b1a0{digit}").parse().unwrap());
        let keys = [
            execution_key("org_1", a, &Epoch::Counter(0)),
            execution_key("org_2", a, &Epoch::Counter(0)),
            execution_key("org_1", b, &Epoch::Counter(0)),
            execution_key("org_1", a, &Epoch::Counter(1)),
            execution_key("org_1", a, &own('0')),
            execution_key("org_1", a, &own('1')),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert_eq!(execution_key("org_1", a, &Epoch::Counter(0)), keys[0]);
        assert_eq!(
            keys[0].to_string(),
            "c9d49375b475d8f8e7ac8e60f9c63eb8f859e74ae78a71bab82edbb47d6e95cc",
            "a stored key must be found again"
        );
    }
}
