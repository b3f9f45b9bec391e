//! Cleanup-manifest: ends what a manifest past its retention still owns and no job or hold uses, kind by kind in the order of their
//! priorities. A machine is judged again under its row's lock, so one that a job has claimed meanwhile, or a person holds, stays. What
//! stays keeps the manifest.

use crate::intents::terminate_instance;
use crate::manifest::{Standing, is_open, machine_standing, next_look, release_ended};
use crate::workflow::kind::{Blueprint, NodeError, NodeKind, NodeTx, Port, Verdict, missing, to_value};
use crate::{EngineContext, workflow};
use model::manifest::{Manifest, ManifestStatus, ResourceKind};
use model::time::HOUR;
use model::workflow::{Addition, FanOutMode, Intent, MAX_FAN_OUT, Node, Pattern, Workflow, branches_of};
use model::{Failure, InstanceId, ManifestId, Refused, WorkflowId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use store::{Tx, WorkKind};

const LOAD: &str = "load-resources";
const SORT: &str = "sort-by-priority";
const LOOP: &str = "cleanup-loop";
const DELETE: &str = "delete";
const CLEAN: &str = "clean";
/// A machine whose provider does not confirm its end is terminate-instance's to end. Kinds of a lower priority do not wait for it for
/// longer than this.
const CLEAN_LIMIT_MS: i64 = HOUR;

pub(crate) static BLUEPRINT: LazyLock<Blueprint> = LazyLock::new(|| {
    Blueprint::of(Intent::CleanupManifest)
        .node(Node::new(LOAD, &[], None), &LoadResources)
        .node(Node::new(SORT, &[LOAD], None), &SortByPriority)
        .node(Node::new(LOOP, &[SORT], None), &CleanupLoop)
        .node(Node::new(DELETE, &[LOOP], None), &Delete)
        .kind(CLEAN, &Clean)
        .checked()
});

#[derive(Serialize, Deserialize)]
struct Input {
    manifest: ManifestId,
}

/// The workflow that cleans this manifest up. The caller has seen that none is under way.
pub(crate) fn begin(tx: &mut Tx, manifest: &Manifest) -> Result<WorkflowId, Failure> {
    let (at, id, own) = (tx.at(), WorkflowId(tx.next_id()), ManifestId(tx.next_id()));
    let draft = BLUEPRINT.draft((id, own, manifest.org), &Input { manifest: manifest.id }, at);
    workflow::open_manifest(tx, &draft)?;
    store::workflow::insert(tx, &draft)?;
    tx.wake(WorkKind::Workflow, id.0, at);
    store::manifest::save(tx, &Manifest { cleanup: Some(id), ..manifest.clone() })?;
    Ok(id)
}

/// A person tries a cleanup that failed again.
pub(crate) fn begin_again(tx: &mut Tx, failed: &model::workflow::Workflow) -> Result<WorkflowId, Failure> {
    let input: Input = Deserialize::deserialize(&*failed.input)
        .map_err(|error| model::Trouble::internal(format!("the input of {}: {error}", failed.id)))?;
    let manifest = store::manifest::find(tx, input.manifest)?.ok_or_else(|| missing("manifest", input.manifest))?;
    if manifest.status == ManifestStatus::Deleted {
        return Err(Refused::Gone { what: "manifest", why: "it is cleaned up already".into() }.into());
    }
    if let Some(other) = manifest.cleanup.filter(|id| *id != failed.id)
        && is_open(tx, Some(other))?
    {
        return Err(Refused::Conflict { why: format!("{other} cleans {} up already", manifest.id) }.into());
    }
    begin(tx, &manifest)
}

fn target(node: &mut NodeTx<'_, '_, '_>) -> Result<Manifest, NodeError> {
    let input: Input = Deserialize::deserialize(&*node.workflow.input)
        .map_err(|error| NodeError::Fails(format!("its input does not parse: {error}")))?;
    let found = store::manifest::find(node.scope.tx(), input.manifest)?;
    found.ok_or_else(|| NodeError::Fails(format!("{} does not exist", input.manifest)))
}

/// Resources of one kind and, of machines, of one provider: cleaned up beside those of the same priority, after those of a higher one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    kind: ResourceKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    /// Something of it can be ended now.
    #[serde(default)]
    free: bool,
    ids: Vec<i64>,
}

struct LoadResources;
const LOADED: Port<Loaded> = Port::new(LOAD);

#[derive(Serialize, Deserialize)]
struct Loaded {
    groups: Vec<Group>,
}

impl NodeKind for LoadResources {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let manifest = target(node)?;
        let (tx, context) = node.scope.tx_and_context();
        let mut groups: BTreeMap<(&'static str, Option<String>), Group> = BTreeMap::new();
        for (kind, id) in store::manifest::resources(tx, manifest.id)? {
            let provider = match kind {
                ResourceKind::Instance => store::instance::find(tx, InstanceId(id))?.map(|machine| machine.provider),
                _ => None,
            };
            let group = groups.entry((kind.as_str(), provider.clone()));
            let group = group.or_insert(Group { kind, provider, free: false, ids: Vec::new() });
            group.free |= crate::manifest::standing(tx, context, manifest.id, (kind, id))? == Standing::Free;
            group.ids.push(id);
        }
        Ok(LOADED.done(&Loaded { groups: groups.into_values().collect() }))
    }
}

struct SortByPriority;
const SORTED: Port<Loaded> = Port::new(SORT);

impl NodeKind for SortByPriority {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(SORTED.done(&Loaded { groups: sorted(node.read(&LOADED)?.groups) }))
    }
}

/// The highest priority first; within one, the providers by their names.
fn sorted(mut groups: Vec<Group>) -> Vec<Group> {
    groups.sort_by_key(|group| (std::cmp::Reverse(group.kind.priority()), group.provider.clone()));
    groups
}

/// As many groups as one cleanup has branches for; the next one takes the others. Those of which something can be ended come first, so that
/// machines which their providers do not end keep out no others.
fn fitting(groups: Vec<Group>) -> Vec<Group> {
    let (free, rest): (Vec<Group>, Vec<Group>) = groups.into_iter().partition(|group| group.free);
    sorted(free.into_iter().chain(rest).take(MAX_FAN_OUT).collect())
}

/// One branch for each group. Each waits until those of a higher priority have ended, well or not. What fails in one, for example because
/// its provider does not answer, is that branch's own.
struct CleanupLoop;

impl NodeKind for CleanupLoop {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let groups = node.read(&SORTED)?.groups;
        let mut priorities = BTreeSet::new();
        let mut branch = |group: Group| Addition {
            name: match &group.provider {
                Some(provider) => format!("{CLEAN}-{}-{provider}", group.kind),
                None => format!("{CLEAN}-{}", group.kind),
            },
            kind: CLEAN.into(),
            parameters: to_value(&group),
            timeout_ms: {
                priorities.insert(group.kind.priority());
                Some(CLEAN_LIMIT_MS * priorities.len() as i64) // the time in which it waits for the others counts
            },
            idempotent: true,
        };
        let branches: Vec<Addition> = fitting(groups).into_iter().map(&mut branch).collect();
        let output = to_value(&Branches { branches: branches.len() });
        let patterns = vec![Pattern::FanOut { join: DELETE.into(), branches, mode: FanOutMode::Isolate }];
        Ok(Verdict::With { output, patterns })
    }
}

#[derive(Serialize)]
struct Branches {
    branches: usize,
}

/// Ends what is free in its group, and waits until it has ended. Ended slots are let go of by `delete`.
struct Clean;

#[derive(Serialize, Default)]
struct Cleaned {
    ended: usize,
    kept: usize,
}

impl NodeKind for Clean {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let manifest = target(node)?;
        if node.workflow.cancel_asked {
            // What it has begun to end goes on to its end. The manifest's item begins another one, not before its next look.
            return Ok(Verdict::Cancelled);
        }
        let group = Group::deserialize(&node.node.parameters)
            .map_err(|error| NodeError::Fails(format!("its parameters do not parse: {error}")))?;
        if !is_its_turn(node.workflow, &group) {
            return Ok(Verdict::Waits(None)); // the end of another branch has this one looked at
        }
        let (tx, context) = node.scope.tx_and_context();
        let (mut cleaned, mut waits, mut out_of_turn) = (Cleaned::default(), false, false);
        for id in &group.ids {
            let standing = match group.kind {
                ResourceKind::Instance => match end_machine(tx, context, &manifest, InstanceId(*id))? {
                    Some(standing) => standing,
                    None => {
                        out_of_turn = true;
                        continue;
                    }
                },
                kind => crate::manifest::standing(tx, context, manifest.id, (kind, *id))?,
            };
            match standing {
                Standing::Ended => cleaned.ended += 1,
                Standing::Kept(_) | Standing::Free => cleaned.kept += 1,
                Standing::Leaving => waits = true,
            }
        }
        Ok(match (out_of_turn, waits) {
            (true, _) => Verdict::Waits(Some(node.at())), // in the next transaction
            (false, true) => Verdict::Waits(None),        // the end of each machine wakes this workflow
            (false, false) => Verdict::Done(to_value(&cleaned)),
        })
    }
}

/// No branch of a higher priority is still at work.
fn is_its_turn(workflow: &Workflow, group: &Group) -> bool {
    branches_of(workflow, DELETE).into_iter().all(|branch| branch.status.is_end() || !goes_first(branch, group))
}

fn goes_first(branch: &Node, group: &Group) -> bool {
    Group::deserialize(&branch.parameters).is_ok_and(|other| other.kind.priority() > group.kind.priority())
}

/// None: its row cannot be locked in this transaction any more.
fn end_machine(
    tx: &mut Tx,
    context: &EngineContext,
    manifest: &Manifest,
    id: InstanceId,
) -> Result<Option<Standing>, Failure> {
    let Some(seen) = store::instance::find(tx, id)? else { return Ok(Some(Standing::Ended)) };
    let looks = machine_standing(tx, context, manifest.id, &seen)?;
    if looks != Standing::Free {
        return Ok(Some(looks));
    }
    if !store::instance::may_lock(tx, id) {
        return Ok(None);
    }
    // Under the lock: a claim that was faster is seen, and one that is slower finds a machine that leaves.
    let locked = store::instance::lock(tx, id)?;
    let standing = machine_standing(tx, context, manifest.id, &locked)?;
    if standing != Standing::Free {
        return Ok(Some(standing));
    }
    terminate_instance::begin(tx, id, &format!("the retention of {} is over", manifest.id))?;
    Ok(Some(Standing::Leaving))
}

/// Deletes the manifest if everything it owned has ended; else it is looked at again when what it keeps may be free.
struct Delete;
const DELETED: Port<Deleted> = Port::new(DELETE);

#[derive(Serialize, Deserialize)]
struct Deleted {
    deleted: bool,
    left: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<String>,
}

impl NodeKind for Delete {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let manifest = target(node)?;
        let branches = branches_of(node.workflow, DELETE);
        let failed = branches.iter().filter_map(|branch| Some(format!("{}: {}", branch.name, branch.error.as_ref()?)));
        let failed: Vec<String> = failed.collect();
        let at = node.at();
        let (tx, context) = node.scope.tx_and_context();
        let left = match manifest.status {
            ManifestStatus::Deleted => Vec::new(),
            _ => release_ended(tx, context, &manifest)?,
        };
        if !left.is_empty() {
            tx.wake(WorkKind::Manifest, manifest.id.0, next_look(&left, at));
        }
        Ok(DELETED.done(&Deleted { deleted: left.is_empty(), left: left.len(), failed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_in_the_order_of_their_priorities_whatever_their_names() {
        let group = |kind, provider: Option<&str>| Group {
            kind,
            provider: provider.map(str::to_owned),
            free: false,
            ids: Vec::new(),
        };
        let mut groups: Vec<Group> = ResourceKind::ALL.iter().map(|kind| group(*kind, None)).collect();
        groups.push(group(ResourceKind::Instance, Some("b")));
        groups.insert(0, group(ResourceKind::Instance, Some("a")));
        groups.sort_by_key(|group| group.kind.as_str()); // as they are loaded
        let order: Vec<String> = sorted(groups)
            .into_iter()
            .map(|group| format!("{} {}", group.kind, group.provider.unwrap_or_default()).trim().to_owned())
            .collect();
        let expected = ["allocation", "run", "artifact", "feature", "object", "instance", "instance a", "instance b"];
        assert_eq!(order[..8], expected);
        assert_eq!(order[8..], ["snapshot"]);
    }
}
