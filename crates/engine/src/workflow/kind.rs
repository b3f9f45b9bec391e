//! What an intent is made of: a blueprint, which is data, and one entry per kind of node. A kind that only changes rows has
//! `inside`; one that touches the world also has `act`, `record` and, where its effect must be undone, `undo` and `compensate`.
//! Outputs are serde types, read by logical name through a `Port`.

use crate::run_tx::RunTx;
use crate::{Engine, EngineContext};
use model::workflow::{Intent, Node, Pattern, Resource, Workflow};
use model::{Effect, Failure, JobId, ManifestId, OrgId, Refused, Timestamp, Trouble, WorkflowId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use store::Tx;

/// Tries of an act that failed in a way worth trying again.
const TRIES: i64 = 3;
const LONGEST_PAUSE_MS: i64 = 60 * model::time::SECOND;
/// A provider that wants to be left alone for longer is asked again all the same.
const LONGEST_WISH_MS: i64 = 5 * model::time::MINUTE;

/// What a look at a node, or at the result of its act, decided.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    Done(Value),
    /// Done, and these change what follows, in the same commit.
    With {
        output: Value,
        patterns: Vec<Pattern>,
    },
    /// Another workflow of this intent does the node's work, with a manifest of its own: the node ends as it does.
    #[cfg_attr(not(test), expect(dead_code, reason = "no intent of today is made of others"))]
    Child {
        intent: Intent,
        input: Value,
    },
    /// Nothing to do until something else happens, or until this time comes.
    Waits(Option<Timestamp>),
    /// The world must be touched. The holder of the workflow's item does it with this order, after "running" is committed.
    Act(Value),
    /// A try failed; the next one comes at this time.
    Again {
        error: String,
        uncertain: bool,
        at: Timestamp,
    },
    /// `uncertain`: a try may have had its effect all the same.
    Failed {
        error: String,
        uncertain: bool,
    },
    /// What the workflow works for has ended.
    Cancelled,
    /// The act came to its end after its node had, and nothing can use what it made: compensated at once, with this order.
    Unwanted(Value),
}

/// What a look at a failed node decided.
pub(crate) enum Undo {
    Done,
    /// The world must be touched. `resource` is what may still exist if that does not succeed within 5 minutes.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "launch-run hands its machine to terminate-instance, which never gives up")
    )]
    Act {
        order: Value,
        resource: Resource,
    },
}

/// Why a look at a node came to no verdict.
#[derive(Debug)]
pub(crate) enum NodeError {
    /// The node has failed, for example because its input does not parse.
    Fails(String),
    /// The transaction has failed and nothing of it is committed.
    Broken(Failure),
}

impl From<Failure> for NodeError {
    fn from(failure: Failure) -> NodeError {
        NodeError::Broken(failure)
    }
}
impl From<Trouble> for NodeError {
    fn from(trouble: Trouble) -> NodeError {
        NodeError::Broken(trouble.into())
    }
}

/// An act in the world. The order that it was given is all it knows of the database.
pub(crate) type ActFuture = Pin<Box<dyn Future<Output = Result<Value, Trouble>> + Send>>;

pub(crate) trait NodeKind: Send + Sync {
    /// Looks at a node that may begin or runs, inside a transaction. Asked again whenever something has changed, also while an
    /// act of the node is under way: what it finds in the rows may end the node before its act returns.
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError>;

    /// Touches the world, outside of any transaction. Only kinds whose `inside` answers `Act` have it.
    fn act(&self, _engine: &Engine, _order: Value) -> ActFuture {
        Box::pin(async { Err(Trouble::internal("this kind of node does not act")) })
    }

    /// Takes the result of an act, inside a transaction. The node may have ended meanwhile.
    fn record(
        &self,
        node: &mut NodeTx<'_, '_, '_>,
        _order: &Value,
        found: &Result<Value, Trouble>,
    ) -> Result<Verdict, NodeError> {
        Ok(match found {
            Ok(output) => Verdict::Done(output.clone()),
            Err(trouble) => node.troubled(trouble),
        })
    }

    /// Looks at the node after it has failed, inside a transaction. Reads what was recorded, never the missing output.
    fn undo(&self, _node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        Ok(Undo::Done)
    }

    /// Undoes the effect of a failed act. May be repeated, so it must be idempotent.
    fn compensate(&self, engine: &Engine, order: Value) -> ActFuture {
        self.act(engine, order)
    }
}

/// The transaction of a workflow: that of its run, or one of its own.
pub(crate) enum Scope<'s, 't> {
    Run(&'s mut RunTx<'t>),
    Alone { tx: &'s mut Tx, context: &'s EngineContext },
}

impl Scope<'_, '_> {
    pub(crate) fn tx(&mut self) -> &mut Tx {
        match self {
            Scope::Run(run_tx) => run_tx.tx,
            Scope::Alone { tx, .. } => tx,
        }
    }
    pub(crate) fn tx_and_context(&mut self) -> (&mut Tx, &EngineContext) {
        match self {
            Scope::Run(run_tx) => (run_tx.tx, run_tx.context),
            Scope::Alone { tx, context } => (tx, context),
        }
    }
    pub(crate) fn at(&mut self) -> Timestamp {
        match self {
            Scope::Run(run_tx) => run_tx.at,
            Scope::Alone { tx, .. } => tx.at(),
        }
    }
}

/// A node inside its transaction.
pub(crate) struct NodeTx<'a, 's, 't> {
    pub(crate) scope: &'a mut Scope<'s, 't>,
    pub(crate) workflow: &'a Workflow,
    pub(crate) node: &'a Node,
    /// The placement of a pool calls this so that the node that waits for a placement decides again.
    pub(crate) asked: bool,
}

impl<'t> NodeTx<'_, '_, 't> {
    pub(crate) fn at(&mut self) -> Timestamp {
        self.scope.at()
    }

    /// The run and the job that the workflow works for.
    pub(crate) fn run(&mut self) -> Result<(&mut RunTx<'t>, JobId), NodeError> {
        match (&mut *self.scope, self.workflow.job) {
            (Scope::Run(run_tx), Some(job)) => Ok((run_tx, job)),
            _ => Err(NodeError::Fails(format!("node `{}` needs a run, and its workflow has none", self.node.name))),
        }
    }

    /// The output of an earlier node, whichever node stands under the logical name now.
    pub(crate) fn read<T: DeserializeOwned>(&self, port: &Port<T>) -> Result<T, NodeError> {
        let input = format!("node `{}`: its input `{}`", self.node.name, port.logical);
        let Some(value) = model::workflow::output(self.workflow, port.logical) else {
            return Err(NodeError::Fails(format!("{input} is missing")));
        };
        T::deserialize(value).map_err(|error| NodeError::Fails(format!("{input} does not parse: {error}")))
    }

    /// What a pattern gave this node to work with; `T`'s default for a node of the blueprint.
    pub(crate) fn parameters<T: DeserializeOwned + Default>(&self) -> Result<T, NodeError> {
        if self.node.parameters.is_null() {
            return Ok(T::default());
        }
        let failed = |error: serde_json::Error| {
            NodeError::Fails(format!("node `{}`: its parameters do not parse: {error}", self.node.name))
        };
        T::deserialize(&self.node.parameters).map_err(failed)
    }

    /// The next try of an act after trouble, or its failure when it is hopeless or was tried often enough.
    pub(crate) fn troubled(&mut self, trouble: &Trouble) -> Verdict {
        let uncertain = trouble.effect == Effect::Perhaps;
        if trouble.retry && self.node.tries < TRIES {
            return self.again(trouble.what.clone(), uncertain, trouble.retry_after_ms);
        }
        Verdict::Failed { error: trouble.what.clone(), uncertain }
    }

    /// Tries again after 2 s, then after twice as long each time, up to a minute; no sooner than who failed has wished, up to 5 minutes.
    pub(crate) fn again(&mut self, error: String, uncertain: bool, wish_ms: Option<i64>) -> Verdict {
        let pause_ms = (model::time::SECOND << self.node.tries.clamp(0, 6)).min(LONGEST_PAUSE_MS);
        let wish_ms = wish_ms.unwrap_or(0).min(LONGEST_WISH_MS);
        Verdict::Again { error, uncertain, at: self.at() + pause_ms.max(wish_ms) }
    }
}

/// The name under which a node's output is found, and the output's type.
pub(crate) struct Port<T> {
    pub(crate) logical: &'static str,
    output: PhantomData<fn() -> T>,
}

impl<T: Serialize> Port<T> {
    pub(crate) const fn new(logical: &'static str) -> Port<T> {
        Port { logical, output: PhantomData }
    }
    pub(crate) fn done(&self, output: &T) -> Verdict {
        Verdict::Done(to_value(output))
    }
}

/// Orders, outputs and inputs are plain data.
pub(crate) fn to_value(data: &impl Serialize) -> Value {
    serde_json::to_value(data).expect("plain data becomes JSON")
}

/// An order as its act reads it: written by the same kind, in this process.
pub(crate) fn read_order<T: DeserializeOwned>(order: Value) -> Result<T, Trouble> {
    serde_json::from_value(order).map_err(|error| Trouble::internal(format!("its order does not parse: {error}")))
}

/// An intent: the nodes of a workflow, and what each kind of them does.
pub(crate) struct Blueprint {
    intent: Intent,
    nodes: Vec<Arc<Node>>,
    kinds: Vec<(String, &'static dyn NodeKind)>,
}

impl Blueprint {
    pub(crate) fn of(intent: Intent) -> Blueprint {
        Blueprint { intent, nodes: Vec::new(), kinds: Vec::new() }
    }

    pub(crate) fn node(mut self, node: Node, kind: &'static dyn NodeKind) -> Blueprint {
        self.kinds.push((node.kind.clone(), kind));
        self.nodes.push(Arc::new(node));
        self
    }

    /// What nodes do that only a pattern brings.
    pub(crate) fn kind(mut self, name: &str, kind: &'static dyn NodeKind) -> Blueprint {
        self.kinds.push((name.to_owned(), kind));
        self
    }

    /// A node that only chooses a path: the model decides it by another node's output.
    pub(crate) fn choice(mut self, node: Node) -> Blueprint {
        debug_assert!(node.branch.is_some(), "{} chooses nothing", node.name);
        self.nodes.push(Arc::new(node));
        self
    }

    pub(crate) fn checked(self) -> Blueprint {
        let nodes: Vec<Node> = self.nodes.iter().map(|node| Node::clone(node)).collect();
        debug_assert!(model::workflow::check(&nodes).is_ok(), "the blueprint of {} is a DAG", self.intent);
        self
    }

    /// A workflow of this intent. Its nodes are shared with the blueprint until they change.
    pub(crate) fn draft(
        &self,
        (id, manifest, org): (WorkflowId, ManifestId, OrgId),
        input: &impl Serialize,
        at: Timestamp,
    ) -> Workflow {
        let mut workflow = Workflow::new(id, manifest, org, self.intent, &self.nodes);
        workflow.input = Arc::new(to_value(input));
        workflow.created_at = at;
        workflow
    }
}

/// Every intent that workflows of this process may have.
pub(crate) struct Registry(pub(crate) Vec<&'static Blueprint>);

impl Registry {
    /// What nodes do, those included that only choose a path.
    pub(crate) fn kinds(&self) -> Vec<(Intent, &'static str)> {
        let of = |blueprint: &&'static Blueprint| {
            let blueprint = *blueprint;
            let choices = blueprint.nodes.iter().filter(|node| node.branch.is_some()).map(|node| node.kind.as_str());
            let kinds = blueprint.kinds.iter().map(|(name, _)| name.as_str());
            kinds.chain(choices).map(|kind| (blueprint.intent, kind)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    pub(crate) fn blueprint(&self, intent: Intent) -> Option<&'static Blueprint> {
        self.0.iter().find(|blueprint| blueprint.intent == intent).copied()
    }

    pub(crate) fn kind(&self, workflow: &Workflow, node: &Node) -> Result<&'static dyn NodeKind, NodeError> {
        let blueprints = self.0.iter().filter(|blueprint| blueprint.intent == workflow.intent);
        let mut kinds = blueprints.flat_map(|blueprint| &blueprint.kinds);
        let found = kinds.find(|(name, _)| *name == node.kind).map(|(_, kind)| *kind);
        found.ok_or_else(|| {
            let (kind, intent) = (&node.kind, workflow.intent);
            NodeError::Fails(format!(
                "this release has no node kind `{kind}` for {intent}: finish it with the one that began it"
            ))
        })
    }
}

/// A workflow that does not exist any more is a bug, not a mistake of the caller.
pub(crate) fn missing(what: &'static str, id: impl ToString) -> Failure {
    Refused::not_found(what, id).into()
}
