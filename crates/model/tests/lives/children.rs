//! Children of the first step of a small world: turns and calls of a loop, or durable steps of a program. The worker of the step asks
//! for them again and again, in every try and attempt, and the journal answers.

use crate::hierarchy::step_id;
use crate::life::{Id, NONE};
use crate::samples;
use crate::settlement::{Commit, Done, Stop};
use crate::world::{Choice, Lives, Scope, World};
use model::children::Children;
use model::hierarchy::{self, NewChild, Ready, Rows};
use model::recovery::ErrorClass;
use model::step::{Recorded, Step, StepStatus, ToolKind};
use model::{Effect, StepId};

/// Positions from here on are those of children.
pub const CHILD: usize = 32;

/// What the first step of a world is to its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// A holder of the agent's item makes turns and calls; or, on a machine, a command begins durable steps.
    Act,
    /// A program outside of our machines begins durable steps.
    Program,
}

impl World {
    pub fn child_choices(&self, lives: &Lives, scope: &Scope, all: &mut Vec<Choice>) {
        all.extend((0..scope.children).map(|child| Choice::Child(CHILD + child)));
        for (position, child) in self.made_children(lives) {
            if child.status == StepStatus::Running && !child.uncertain {
                all.extend([Choice::StepDone(position), Choice::StepLost(position), Choice::StepCut(position)]);
                let ways = [(ErrorClass::Transient, Effect::None), (ErrorClass::Permanent, Effect::Done)];
                all.extend(ways.map(|(class, effect)| Choice::StepFails(position, class, effect)));
            }
            if child.uncertain || child.status == StepStatus::Waiting {
                all.extend(crate::world::tickets(position));
                all.extend([Choice::Approved(position), Choice::Rejected(position)]);
            }
        }
    }

    pub fn made_children<'l>(&self, lives: &'l Lives) -> Vec<(usize, &'l Step)> {
        let made = self.children.iter().enumerate().filter(|(_, id)| **id != NONE);
        made.map(|(child, id)| (CHILD + child, lives.step.get(*id))).collect()
    }

    /// Where the number of a step's row stands.
    pub fn step_slot(&mut self, position: usize) -> &mut Id {
        if position < CHILD { &mut self.steps[position] } else { &mut self.children[position - CHILD] }
    }

    pub fn step_number(&self, position: usize) -> Option<Id> {
        let number = if position < CHILD { self.steps.get(position) } else { self.children.get(position - CHILD) };
        number.copied().filter(|id| *id != NONE)
    }
}

impl Commit<'_> {
    /// The worker of the first step asks for one of its children.
    pub fn ask_for_child(&mut self, position: usize) -> Done {
        let parent = self.step_at(0).ok_or(Stop::Nothing)?;
        let over = parent.status != StepStatus::Running || parent.uncertain;
        if over || hierarchy::is_to_stop(self, &parent.clone())? {
            return Err(Stop::Nothing);
        }
        match self.step_at(position).map(|child| child.status) {
            None => self.add_child(position)?,
            Some(StepStatus::Pending) => {}
            // It failed, or its parent's earlier try took it along: asked for anew.
            Some(StepStatus::Failed | StepStatus::Cancelled | StepStatus::Skipped) => {
                self.forget_child(position);
                self.add_child(position)?;
            }
            Some(_) => return Err(Stop::Nothing),
        }
        hierarchy::begin_child(self, step_id(position)).map(drop)
    }

    fn add_child(&mut self, position: usize) -> Done {
        let name = format!("c{}", position - CHILD);
        let (tool, idempotent) = (ToolKind::Http, self.scope.idempotent);
        let child = NewChild { name, item: None, tool, idempotent, max_tries: 2, timeout_ms: None };
        self.making_child = Some(position);
        hierarchy::add_child(self, step_id(0), child).map(drop)
    }

    pub fn make_child_row(&mut self, parent: &Step, child: NewChild) -> StepId {
        let position = self.making_child.take().expect("a child is asked for");
        let row = Step {
            id: step_id(position),
            agent: parent.agent,
            task: parent.task,
            name: format!("{}/{}", parent.name, child.name),
            tool: child.tool,
            idempotent: child.idempotent,
            max_tries: child.max_tries,
            parent: Some(parent.id),
            ..samples::step()
        };
        *self.world.step_slot(position) = self.lives.step.keep(row);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.step_count += 1);
        step_id(position)
    }

    /// Rows that are history would make the worlds endless.
    fn forget_child(&mut self, position: usize) {
        let state = self.step_at(position).expect("it is there").child_state();
        let parent = self.world.steps[0];
        self.world.steps[0] = self.lives.step.edited(parent, |parent| {
            let mut gone = Children::default();
            gone.add(state);
            let children = &mut parent.children;
            children.failed -= gone.failed;
            children.cancelled -= gone.cancelled;
            children.skipped -= gone.skipped;
        });
        self.forget_rows(&[position]);
    }

    /// The first step's row was replaced, and its children's with it.
    pub fn forget_children(&mut self) {
        let made: Vec<usize> = self.world.made_children(self.lives).into_iter().map(|(position, _)| position).collect();
        self.forget_rows(&made);
    }

    fn forget_rows(&mut self, positions: &[usize]) {
        let gone = positions.len() as i64;
        positions.iter().for_each(|position| *self.world.step_slot(*position) = NONE);
        self.world.run = self.lives.run.edited(self.world.run, |run| run.step_count -= gone);
        if self.world.tasks[0] != NONE {
            let task = self.world.tasks[0];
            self.world.tasks[0] = self.lives.task.edited(task, |task| task.step_count -= gone.min(task.step_count));
        }
    }

    pub fn child_ready(&mut self, child: &Step, position: usize) -> Ready {
        match self.world.recorded(position) {
            Some(Recorded::Done) => Ready::Recorded,
            Some(Recorded::Begun) if !child.idempotent => {
                self.note_key(position);
                Ready::Unknown
            }
            _ if self.scope.approvals && position == CHILD && !self.world.approved => Ready::Ask,
            _ => Ready::Go,
        }
    }

    /// From now on it may have had its effect, until a report says what became of it.
    pub fn child_begun(&mut self, child: &Step, position: usize) -> Done {
        if !child.idempotent && !self.world.has_no_effect_yet(position) {
            return Err(Stop::Broken(format!("an effect may be repeated: {child:?}")));
        }
        self.note_key(position);
        self.world.had_effect(position, Effect::Perhaps);
        Ok(())
    }

    /// From now on the journal says of its identity what this row says.
    fn note_key(&mut self, position: usize) {
        let mut child = self.step_at(position).expect("it is there").clone();
        child.key = Some("key".into());
        self.set_step(child);
    }

    pub fn rows_of_children(&self, parent: StepId) -> Vec<StepId> {
        let made = self.world.made_children(self.lives);
        let mine = made.into_iter().filter(|(_, child)| child.parent == Some(parent) && !child.status.is_end());
        mine.map(|(_, child)| child.id).collect()
    }
}

/// Counters of the first step, and what its children say; and how many of them are acts that a pause waits for.
pub fn counted(lives: &Lives, world: &World) -> Result<i64, String> {
    let mut below = Children::default();
    let made = world.made_children(lives);
    made.iter().for_each(|(_, child)| below.add(child.child_state()));
    let Some(parent) = world.step_number(0).map(|id| lives.step.get(id)) else {
        return if made.is_empty() { Ok(0) } else { Err(format!("children without a parent: {made:?}")) };
    };
    if parent.children != below {
        return Err(format!("{parent:?} counts {below:?}"));
    }
    if below.open() > 0 && (parent.status != StepStatus::Running || parent.uncertain) {
        return Err(format!("{parent:?} is over, and its children are not: {made:?}"));
    }
    Ok(if parent.by_children { below.running } else { 0 })
}
