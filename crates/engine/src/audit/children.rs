//! Invariant 2 for children of steps: every parent's counters are right, and no child is open below a step that has no holder.

use super::Audit;
use model::children::Children;
use model::step::{Step, StepStatus};
use model::{Failure, StepId, TaskId};
use std::collections::BTreeMap;
use store::Tx;

/// What the children of a run's steps add up to.
pub(super) struct Counted {
    by_task: BTreeMap<TaskId, i64>,
    /// Parents whose work is what their children do.
    loops: BTreeMap<StepId, bool>,
}

impl Counted {
    pub(super) fn of_task(&self, task: TaskId) -> i64 {
        self.by_task.get(&task).copied().unwrap_or(0)
    }

    /// A pause waits for a child only if its holder must stop it; a machine freezes all processes that its command began.
    pub(super) fn counts_as_act(&self, step: &Step) -> bool {
        step.parent.is_none_or(|parent| self.loops.get(&parent).copied().unwrap_or(false))
    }
}

/// Rows that a retry has replaced are not among `steps`; children of such a row have ended.
pub(super) fn audit(tx: &mut Tx, steps: &[Step], audit: &mut Audit) -> Result<Counted, Failure> {
    let mut by_parent: BTreeMap<StepId, Children> = BTreeMap::new();
    let mut by_task: BTreeMap<TaskId, i64> = BTreeMap::new();
    for child in steps {
        let idle = child.status != StepStatus::Running;
        audit.must(!idle || child.held.is_zero(), "1 credits", child.id, || {
            format!("{} with {} credits set aside", child.status, child.held)
        });
        let Some(parent) = child.parent else { continue };
        by_parent.entry(parent).or_default().add(child.child_state());
        *by_task.entry(child.task).or_default() += 1;
    }
    let mut loops = BTreeMap::new();
    for parent in steps.iter().filter(|step| step.parent.is_none()) {
        let below = by_parent.remove(&parent.id).unwrap_or_default();
        audit.must(parent.children == below, "2 counters", parent.id, || {
            format!("{:?} for children {below:?}", parent.children)
        });
        let over = parent.status != StepStatus::Running || parent.uncertain;
        audit.must(!over || below.open() == 0, "2 counters", parent.id, || {
            format!("{} with open children {below:?}", parent.status)
        });
        loops.insert(parent.id, parent.by_children);
    }
    for (id, below) in by_parent {
        let exists = store::step::find(tx, id)?.is_some();
        audit.must(exists, "2 hierarchy", id, || "children of a step that does not exist".into());
        audit.must(below.open() == 0, "2 counters", id, || format!("replaced, with open children {below:?}"));
    }
    Ok(Counted { by_task, loops })
}
