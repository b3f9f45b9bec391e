//! Features of terminate-instance: before its machine ends, the runner removes what was installed there, all features side by side and
//! each within its time. One that cannot be removed holds up no other and not the end of the machine; an event names it.

use super::{Nothing, TERMINATE, locked};
use crate::workflow::kind::{NodeError, NodeKind, NodeTx, Undo, Verdict, to_value};
use model::feature::{FeatureEvent, FeatureState};
use model::instance::Instance;
use model::time::SECOND;
use model::workflow::{Addition, FanOutMode, Pattern};
use serde::{Deserialize, Serialize};
use store::NewEvent;

/// The kind of the branches, and how their names begin.
pub(super) const REMOVE: &str = "remove-feature";
/// The runner ends a script that takes too long, and says so, within this.
const TOLD_WITHIN_MS: i64 = 10 * SECOND;

#[derive(Default, Serialize, Deserialize)]
struct Parameters {
    feature: String,
}

/// One branch for each feature.
pub(super) struct CleanupFeatures;

impl NodeKind for CleanupFeatures {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let mut instance = locked(node)?;
        // A machine whose runner never came has nothing installed.
        let asks = instance.status.is_open() && instance.ready_at.is_some();
        let event = match asks {
            true => FeatureEvent::RemovalAsked,
            false => FeatureEvent::GivenUp { why: "its machine cannot be asked".into() },
        };
        for name in names(&instance) {
            instance.feature_event(&name, &event);
        }
        if !instance.features.is_empty() {
            crate::feature::tell(node.scope.tx(), &instance)?;
        }
        let removing = instance.features.iter().filter(|it| asks && it.state == FeatureState::Removing);
        let branches: Vec<Addition> = removing
            .map(|it| Addition {
                name: format!("{REMOVE}-{}", it.name),
                kind: REMOVE.into(),
                parameters: to_value(&Parameters { feature: it.name.clone() }),
                timeout_ms: Some(it.remove_ms + TOLD_WITHIN_MS),
                idempotent: true,
            })
            .collect();
        if branches.is_empty() {
            return Ok(Verdict::Done(to_value(&Nothing {})));
        }
        let patterns = vec![Pattern::FanOut { join: TERMINATE.into(), branches, mode: FanOutMode::Isolate }];
        Ok(Verdict::With { output: to_value(&Nothing {}), patterns })
    }
}

fn names(instance: &Instance) -> Vec<String> {
    instance.features.iter().map(|it| it.name.clone()).collect()
}

/// Waits until the runner has removed it.
pub(super) struct RemoveFeature;

impl NodeKind for RemoveFeature {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let name = node.parameters::<Parameters>()?.feature;
        let instance = locked(node)?;
        let feature = instance.features.iter().find(|it| it.name == name);
        Ok(match feature {
            Some(it) if it.state == FeatureState::Left => {
                Verdict::Failed { error: it.error.clone().unwrap_or_default(), uncertain: false }
            }
            Some(_) if instance.status.is_open() => Verdict::Waits(None),
            _ => Verdict::Done(to_value(&Nothing {})),
        })
    }

    /// The machine ends all the same, and the runner need not wait for it.
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let name = node.parameters::<Parameters>()?.feature;
        let why = node.node.error.clone().unwrap_or_default();
        let mut instance = locked(node)?;
        let tx = node.scope.tx();
        if instance.feature_event(&name, &FeatureEvent::GivenUp { why: why.clone() }) {
            crate::feature::tell(tx, &instance)?;
        }
        let body = store::body!({ "instance": instance.id, "feature": name, "why": why });
        tx.event(NewEvent { org: instance.org, run: None, kind: "instance.feature_left", body });
        Ok(Undo::Done)
    }
}
