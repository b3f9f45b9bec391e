//! What a person is asked about a step: to approve its input before it begins, or to decide what becomes of it (a ticket). Answered once.

use crate::run::{LastError, Ticket};
use crate::step::{Step, StepWait, ToolKind};
use crate::time::DAY;
use crate::{OrgId, Outcome, QuestionId, Refused, RunId, StepId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum QuestionStatus {
        Open = "open", Approved = "approved", Rejected = "rejected", Expired = "expired", Resolved = "resolved",
        /// The step ended, or went on, before a person answered.
        Withdrawn = "withdrawn",
    }
}
string_enum! {
    pub enum Severity { Low = "low", Medium = "medium", High = "high", Critical = "critical" }
}

/// An approval that is not answered expires after this.
pub const APPROVAL_LIMIT_MS: i64 = DAY;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    pub id: QuestionId,
    pub org: OrgId,
    pub run: RunId,
    pub attempt: i64,
    pub step: StepId,
    /// The step's names, `agent/task/step`.
    pub path: String,
    /// Of an approval: how the journal knows the step, of which a key is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    pub tool: ToolKind,
    pub kind: StepWait,
    pub status: QuestionStatus,
    pub severity: Severity,
    /// The key of the step, which has the hash of its exact input in it: an approval is good for nothing else.
    pub key: String,
    /// Of an approval: a step of an earlier plan, or a call of an earlier dialogue of its step, did the same under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<SameStep>,
    /// Why a ticket was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<LastError>,
    pub asked_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// How often the program of `[notify]` was started for it, and when it ended well.
    #[serde(default)]
    pub notify_tries: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notified_at: Option<Timestamp>,
}

/// A step that was begun with the same tool and input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SameStep {
    pub step: StepId,
    /// Its names, `agent/task/step`.
    pub path: String,
}

/// Who answered what, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The name of the token, and its id.
    pub by: String,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The step's key with the input that the person put in the place of the one that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionEvent {
    Approved { answer: Answer },
    Rejected { answer: Answer },
    Resolved { answer: Answer },
    Expired,
    Withdrawn,
}

use QuestionEvent as E;
use QuestionStatus as S;

impl Question {
    /// `path` and `key` are the step's.
    pub fn about(
        step: &Step,
        id: QuestionId,
        org: OrgId,
        kind: StepWait,
        (path, key): (String, String),
        at: Timestamp,
    ) -> Question {
        let expires_at = (kind == StepWait::Approval).then_some(at + APPROVAL_LIMIT_MS);
        Question {
            id,
            org,
            run: step.run,
            attempt: step.attempt,
            step: step.id,
            path,
            identity: None,
            tool: step.tool,
            kind,
            status: S::Open,
            severity: severity(step, kind),
            key,
            same_as: None,
            error: if kind == StepWait::Ticket { step.last_error.clone() } else { None },
            asked_at: at,
            expires_at,
            answer: None,
            notify_tries: 0,
            notified_at: None,
        }
    }

    /// The step's own key and input, or those that a person put in their place.
    pub fn effective_key(&self) -> &str {
        self.answer.as_ref().and_then(|answer| answer.edited_key.as_deref()).unwrap_or(&self.key)
    }

    pub fn is_expired(&self, at: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= at)
    }
}

/// High, unless an act that must not be repeated may have happened: nothing but a person can tell, and every other step of the run waits.
fn severity(step: &Step, kind: StepWait) -> Severity {
    let may_have_happened = kind == StepWait::Ticket && step.uncertain && !step.idempotent;
    if may_have_happened { Severity::Critical } else { Severity::High }
}

/// The first answer counts; a second one is refused. If several people answer at once, one succeeds and the others get a refusal.
pub fn apply(question: &Question, event: &QuestionEvent, at: Timestamp) -> Result<Outcome<Question, ()>, Refused> {
    let mut next = question.clone();
    match (question.status, event) {
        // Its time is up, although the row does not say so yet.
        (S::Open, E::Approved { .. } | E::Rejected { .. }) if question.is_expired(at) => {
            Err(Refused::not_from(what(question.kind), S::Expired, name(event), &[]))
        }
        (S::Open, E::Approved { answer }) if question.kind == StepWait::Approval => {
            next.status = S::Approved;
            next.answer = Some(answer.clone());
            moved(next, [])
        }
        (S::Open, E::Rejected { answer }) if question.kind == StepWait::Approval => {
            next.status = S::Rejected;
            next.answer = Some(answer.clone());
            moved(next, [])
        }
        (S::Open, E::Resolved { answer }) if question.kind == StepWait::Ticket => {
            next.status = S::Resolved;
            next.answer = Some(answer.clone());
            moved(next, [])
        }
        (S::Open, E::Expired) if question.kind == StepWait::Approval => {
            next.status = S::Expired;
            moved(next, [])
        }
        (S::Open, E::Withdrawn) => {
            next.status = S::Withdrawn;
            moved(next, [])
        }
        // An answer moves the step, and that withdraws the question: it is answered already.
        (_, E::Withdrawn) | (S::Expired, E::Expired) => unchanged(),
        (state, event) => Err(Refused::not_from(what(question.kind), state, name(event), &[])),
    }
}

/// The noun for people.
pub fn what(kind: StepWait) -> &'static str {
    match kind {
        StepWait::Approval => "approval",
        StepWait::Ticket => "ticket",
        StepWait::Timer => "timer",
        StepWait::Poller => "offer",
    }
}

pub fn name(event: &QuestionEvent) -> &'static str {
    match event {
        E::Approved { .. } => "approve",
        E::Rejected { .. } => "reject",
        E::Resolved { .. } => "resolve",
        E::Expired => "expire",
        E::Withdrawn => "withdraw",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kind: StepWait) -> Question {
        Question {
            id: QuestionId(1),
            org: OrgId(1),
            run: RunId(1),
            attempt: 1,
            step: StepId(1),
            path: "agent/task/step".into(),
            identity: None,
            tool: ToolKind::Http,
            kind,
            status: S::Open,
            severity: Severity::High,
            key: "key".into(),
            same_as: None,
            error: None,
            asked_at: Timestamp(1),
            expires_at: None,
            answer: None,
            notify_tries: 0,
            notified_at: None,
        }
    }

    fn answer() -> Answer {
        Answer { by: "laptop".into(), at: Timestamp(2), ticket: None, note: None, edited_key: None }
    }

    #[test]
    fn an_approval_whose_time_is_up_is_not_given() {
        let asked = Question { expires_at: Some(Timestamp(10)), ..question(StepWait::Approval) };
        for event in [E::Approved { answer: answer() }, E::Rejected { answer: answer() }] {
            assert!(apply(&asked, &event, Timestamp(9)).is_ok());
            let refused = apply(&asked, &event, Timestamp(10)).unwrap_err().to_string();
            assert!(refused.starts_with("approval is expired"), "{refused}");
        }
    }

    #[test]
    fn a_question_is_answered_once_and_by_what_it_asks_for() {
        let all = || {
            [
                E::Approved { answer: answer() },
                E::Rejected { answer: answer() },
                E::Resolved { answer: answer() },
                E::Expired,
                E::Withdrawn,
            ]
        };
        let table = [
            (StepWait::Approval, [Some(S::Approved), Some(S::Rejected), None, Some(S::Expired), Some(S::Withdrawn)]),
            (StepWait::Ticket, [None, None, Some(S::Resolved), None, Some(S::Withdrawn)]),
        ];
        for (kind, expected) in table {
            for (event, expected) in all().iter().zip(expected) {
                let answered = apply(&question(kind), event, Timestamp(3));
                let status = answered.as_ref().ok().map(|outcome| match outcome {
                    Outcome::Moved { next, .. } => next.status,
                    Outcome::Unchanged => S::Open,
                });
                assert_eq!(status, expected, "{kind} {event:?}");
                let Ok(Outcome::Moved { next, .. }) = answered else { continue };
                for again in &all()[..3] {
                    assert!(apply(&next, again, Timestamp(4)).is_err(), "{} takes {again:?}", next.status);
                }
                assert!(matches!(apply(&next, &E::Withdrawn, Timestamp(4)), Ok(Outcome::Unchanged)));
            }
        }
    }
}
