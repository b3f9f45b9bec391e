//! The person on duty in the simulated world: answers what people are asked, and does not lie about what has happened.

use crate::book::Situation;
use crate::process::SERVER;
use crate::time::now;
use crate::world::{DUTY_EVERY_MS, Happening, World};
use engine::Engine;
use engine::question::{Verdict, Word};
use model::question::Question;
use model::run::Ticket;
use model::step::{StepWait, ToolKind};
use model::{Failure, OrgId};
use serde_json::Value;

impl World {
    pub fn answer_questions(&mut self) {
        self.after(DUTY_EVERY_MS, Happening::Duty);
        self.look_at_claims();
        if let Some(engine) = self.serving().filter(|_| self.database_lost) {
            self.recover(&engine);
            if self.fate.is_dead(SERVER) {
                return;
            }
        }
        for kind in [StepWait::Ticket, StepWait::Approval] {
            for org in self.orgs {
                let Some(engine) = self.serving() else { return };
                let Ok(open) = now(engine.questions(org, kind, true, i64::MAX, 20)) else { continue };
                for question in open {
                    match kind {
                        StepWait::Ticket => self.resolve(&engine, org, &question),
                        _ => self.judge_input(&engine, org, &question),
                    }
                    self.fate.was_troubled();
                    if self.fate.is_dead(SERVER) {
                        return;
                    }
                }
            }
        }
    }

    fn resolve(&mut self, engine: &Engine, org: OrgId, question: &Question) {
        let seen = self.tool.book().of(&question.key);
        let id = question.step;
        let step = now(self.store.read("sim.step", move |tx| store::step::find(tx, id)));
        let uncertain = step.expect("a database in memory is read").is_some_and(|step| step.uncertain);
        let known = if seen.effects > 0 { Ticket::Done } else { Ticket::NotDone };
        let gone = question.error.as_ref().is_some_and(|error| error.code == "workdir_gone");
        let ticket = match uncertain {
            // Who lets it go on has it run again.
            false if gone && seen.once => self.chance.pick(&[Ticket::Skip, Ticket::Abort]),
            true => self.chance.pick(&[known, known, Ticket::Skip, Ticket::Abort]),
            false => self.chance.pick(&[Ticket::Resume, Ticket::Skip, Ticket::Abort]),
        };
        let answer = self.says(engine, org, question, Verdict::Resolve(ticket));
        self.note(format_args!(
            "{} about {} ({}) is resolved by {ticket}: {answer:?}",
            question.id, question.path, question.key
        ));
    }

    /// Approves, says no, or puts another input in the place of the one that it is asked about. Some questions stay unanswered.
    fn judge_input(&mut self, engine: &Engine, org: OrgId, question: &Question) {
        let asks = question.tool == ToolKind::Approval;
        if asks && question.id.0 % 3 == 0 {
            return;
        }
        let Ok(detail) = now(engine.question(org, StepWait::Approval, question.id)) else { return };
        let mut input = detail.input.unwrap_or_default();
        let what = self.chance.pick(&["approve", "approve", "edit", "reject"]);
        let verdict = match what {
            "reject" => Verdict::Reject,
            "edit" if !asks => {
                input["edited"] = self.chance.between(0, 1000).into();
                Verdict::Approve { answer: None, input: Some(input.clone()) }
            }
            _ => Verdict::Approve { answer: asks.then(|| Value::from("yes")), input: None },
        };
        let (approves, situation) = match &verdict {
            Verdict::Approve { input: Some(_), .. } => (true, Situation::Edited),
            Verdict::Approve { .. } => (true, Situation::Approved),
            _ => (false, Situation::Rejected),
        };
        let answer = self.says(engine, org, question, verdict);
        self.note(format_args!("{what} of {} about {}: {answer:?}", question.id, question.path));
        if approves && !matches!(answer, Err(Failure::Refused(_))) {
            self.tool.book().approves(&input);
        }
        if answer.is_ok() {
            self.tool.book().meets(situation);
        }
    }

    fn says(&mut self, engine: &Engine, org: OrgId, question: &Question, verdict: Verdict) -> Result<(), Failure> {
        let word = Word { by: "duty".into(), verdict, note: None };
        now(engine.answer(org, question.id, word, None)).map(drop)
    }
}
