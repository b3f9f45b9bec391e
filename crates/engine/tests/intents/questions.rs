//! What people are asked about steps: approvals of an exact input, answers, edits, expiry, tickets with an output, and the program that is
//! told of each question.

use crate::agents::{agent, agents_spec, check, found, once, step, submit, submit_agents, task, tree};
use crate::bench::{Bench, now};
use crate::dialogues;
use adapters::FakeTool;
use adapters::tool::fake::Fate;
use engine::question::{Verdict, Which, Word};
use engine::run::{Action, Plans};
use model::plan::{AgentPlan, Policy, StepPlan, TaskPlan};
use model::question::{Question, QuestionStatus, Severity};
use model::recovery::{Decided, ErrorClass, OnExhausted, Rule};
use model::run::{RunOutcome, RunStatus, Ticket};
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::{DAY, HOUR, MINUTE, SECOND};
use model::{Effect, Failure, Refused};
use serde_json::{Value, json};
use std::sync::Arc;

fn asked(name: &str) -> StepPlan {
    StepPlan { policy: Some(Policy::Ask), ..once(name) }
}

fn questions(bench: &Bench, kind: StepWait, open: bool) -> Vec<Question> {
    now(bench.engine.questions_of(bench.org, Which { kind, open, run: None, oldest_first: false }, i64::MAX, 50))
        .unwrap()
}

fn only(bench: &Bench, kind: StepWait) -> Question {
    let open = questions(bench, kind, true);
    assert_eq!(open.len(), 1, "{open:?}");
    open[0].clone()
}

fn say(bench: &mut Bench, question: &Question, verdict: Verdict) -> Result<(), Failure> {
    let word = Word { by: "laptop".into(), verdict, note: Some("because".into()) };
    let said = now(bench.engine.answer(bench.org, question.id, word, None)).map(drop);
    bench.settle();
    said
}

/// A person answers the approval that was asked for first.
pub fn answer_first(bench: &mut Bench, yes: bool) {
    let first = questions(bench, StepWait::Approval, true).into_iter().min_by_key(|question| question.id).unwrap();
    say(bench, &first, if yes { approve() } else { Verdict::Reject }).unwrap();
    bench.settle();
}

/// A time-out counts the time in which an agent works. Nothing of this one does while its only step waits.
#[test]
fn waiting_for_a_time_or_for_a_person_uses_up_no_time_out() {
    let timer = StepPlan { input: json!({ "for": "2h" }), ..StepPlan::new("rest", ToolKind::Wait) };
    for (waits, kind) in [(timer, None), (asked("rest"), Some(StepWait::Approval))] {
        let mut bench = Bench::new();
        let all = TaskPlan { timeout_ms: HOUR, ..task("all", vec![waits, step("after")]) };
        let one = AgentPlan { timeout_ms: HOUR + MINUTE, ..agent("one", vec![all]) };
        let run = submit_agents(&mut bench, vec![one]);
        bench.advance(2 * HOUR - MINUTE);
        assert_eq!(found(&bench, run, "rest").status, StepStatus::Waiting, "{kind:?}");
        if let Some(kind) = kind {
            let question = only(&bench, kind);
            say(&mut bench, &question, approve()).unwrap();
        }
        bench.advance(2 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{kind:?}: {:?}", bench.run(run).last_error);
        check(&bench);
    }
}

fn approve() -> Verdict {
    Verdict::Approve { answer: None, input: None }
}

fn edit(input: Value) -> Verdict {
    Verdict::Approve { answer: None, input: Some(input) }
}

fn field(refused: Result<(), Failure>) -> String {
    match refused {
        Err(Failure::Refused(Refused::Invalid { field, .. })) => field,
        other => panic!("{other:?}"),
    }
}

/// An act that must not be repeated and may have happened is the one thing that only a person can find out.
#[test]
fn a_ticket_about_an_act_that_may_have_happened_is_critical() {
    let table = [
        (once("s"), Effect::Perhaps, Severity::Critical),
        (StepPlan { max_tries: 1, ..step("s") }, Effect::Perhaps, Severity::High),
        (StepPlan { max_tries: 1, ..once("s") }, Effect::None, Severity::High),
    ];
    for (step, effect, severity) in table {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(move |_, _| Fate::fail(ErrorClass::Transient, effect)));
        let rules = PlanRules { on_exhausted: OnExhausted::Escalate, ..PlanRules::default() };
        let plans = Plans { agents: vec![agent("one", vec![task("all", vec![step])])], ..Plans::default() };
        submit(&mut bench, RunSpec { plan: rules, ..agents_spec() }, plans);
        bench.advance(MINUTE);
        assert_eq!(only(&bench, StepWait::Ticket).severity, severity, "{effect:?}");
    }
}

#[test]
fn nothing_is_called_before_a_person_approves_and_who_did_is_kept() {
    let mut bench = Bench::new();
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s"), step("after")])])]);
    bench.advance(MINUTE);
    assert!(bench.tool.seen().is_empty());
    let waiting = found(&bench, run, "s");
    assert_eq!((waiting.status, waiting.waits), (StepStatus::Waiting, Some(StepWait::Approval)));
    let question = only(&bench, StepWait::Approval);
    assert_eq!((question.path.as_str(), question.expires_at), ("one/all/s", Some(question.asked_at + DAY)));
    let shown = now(bench.engine.question(bench.org, StepWait::Approval, question.id)).unwrap();
    assert_eq!(shown.input, Some(json!({ "of": "s" })));
    say(&mut bench, &question, approve()).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let approved = found(&bench, run, "s");
    assert_eq!(approved.key.as_deref(), Some(question.key.as_str()));
    let kept = questions(&bench, StepWait::Approval, false).remove(0);
    let answer = kept.answer.unwrap();
    assert_eq!(
        (kept.status, answer.by.as_str(), answer.note.as_deref()),
        (QuestionStatus::Approved, "laptop", Some("because"))
    );
    assert!(say(&mut bench, &question, approve()).is_err(), "taken once");
    check(&bench);
}

#[test]
fn a_rejected_or_denied_step_fails_for_good_and_is_never_called() {
    for deny in [false, true] {
        let mut bench = Bench::new();
        let plan = StepPlan { policy: Some(if deny { Policy::Deny } else { Policy::Ask }), ..once("s") };
        let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![plan])])]);
        bench.settle();
        if !deny {
            let question = only(&bench, StepWait::Approval);
            say(&mut bench, &question, Verdict::Reject).unwrap();
        }
        bench.advance(SECOND);
        assert_eq!(bench.run(run).status, RunStatus::Failed);
        let failed = found(&bench, run, "s");
        let judged = failed.judged.unwrap();
        assert_eq!((judged.class, judged.rule), (ErrorClass::Permanent, Rule::Permanent));
        let error = failed.last_error.unwrap();
        let expected = if deny { ("denied", "its policy is `deny`") } else { ("rejected", "laptop said no: because") };
        assert_eq!((error.code.as_str(), error.message.as_str()), expected);
        assert!(bench.tool.seen().is_empty());
        check(&bench);
    }
}

#[test]
fn an_approval_that_no_person_gives_expires_after_a_day() {
    let mut bench = Bench::new();
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s")])])]);
    bench.settle();
    let question = only(&bench, StepWait::Approval);
    bench.advance(DAY - MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Running, "waiting for a person is no active time");
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    assert_eq!(found(&bench, run, "s").last_error.unwrap().code, "approval_expired");
    assert_eq!(questions(&bench, StepWait::Approval, false)[0].status, QuestionStatus::Expired);
    assert!(say(&mut bench, &question, approve()).is_err());
    assert!(bench.tool.seen().is_empty());
    check(&bench);
}

#[test]
fn an_approval_expires_also_while_its_run_is_paused() {
    let mut bench = Bench::new();
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s")])])]);
    bench.settle();
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    let question = only(&bench, StepWait::Approval);
    bench.advance(DAY + MINUTE);
    assert!(say(&mut bench, &question, approve()).is_err());
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    check(&bench);
}

#[test]
fn an_edited_input_is_what_is_called_and_both_are_kept() {
    let mut bench = Bench::new();
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s")])])]);
    bench.settle();
    let question = only(&bench, StepWait::Approval);
    let refused = say(&mut bench, &question, Verdict::Approve { answer: Some(json!(1)), input: None });
    assert_eq!(field(refused), "answer");
    assert_eq!(field(say(&mut bench, &question, edit(json!({ "header": { "secret": "KEY" } })))), "input");
    assert_eq!(field(say(&mut bench, &question, edit(json!("x".repeat(300 << 10))))), "input");
    say(&mut bench, &question, edit(json!({ "of": "other" }))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let done = found(&bench, run, "s");
    let key = done.key.clone().unwrap();
    assert_ne!(key, question.key, "hashed anew");
    assert_eq!((bench.tool.seen_of(&key).calls, bench.tool.seen_of(&question.key).calls), (1, 0));
    let step = now(bench.engine.step(bench.org, run, done.id)).unwrap();
    assert_eq!((step.input, step.output), (Some(json!({ "of": "other" })), Some(json!({ "of": "other" }))));
    let shown = now(bench.engine.question(bench.org, StepWait::Approval, question.id)).unwrap();
    assert_eq!((shown.input, shown.edited), (Some(json!({ "of": "s" })), Some(json!({ "of": "other" }))));
    check(&bench);
}

/// A step with an edited input is cut off by the failure of another, and its task is tried again.
#[test]
fn a_ticket_about_an_edited_step_is_about_what_was_called() {
    let mut bench = Bench::new();
    let calls = std::sync::atomic::AtomicU32::new(0);
    bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
        Some("other") => Fate::hang().happened(),
        // First it is to be tried again in a moment, then its task is.
        Some("bad") => match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Fate::fail(ErrorClass::Transient, Effect::None),
            1 => Fate::fail(ErrorClass::Permanent, Effect::None),
            _ => Fate::answer(call.input.clone()),
        },
        _ => Fate::answer(call.input.clone()),
    }));
    let steps = vec![asked("paid"), step("bad")];
    let both = TaskPlan { parallel: 2, max_tries: 2, mode: FailureMode::Retry, ..task("both", steps) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![both])]);
    bench.settle();
    let question = only(&bench, StepWait::Approval);
    say(&mut bench, &question, edit(json!({ "of": "other" }))).unwrap();
    bench.advance(2 * MINUTE);
    let ticket = only(&bench, StepWait::Ticket);
    assert_eq!(bench.tool.seen_of(&ticket.key).effects, 1, "{ticket:?}");
    let shown = now(bench.engine.question(bench.org, StepWait::Ticket, ticket.id)).unwrap();
    assert_eq!(shown.input, Some(json!({ "of": "other" })));
    say(&mut bench, &ticket, Verdict::Resolve(Ticket::Done)).unwrap();
    bench.advance(MINUTE);
    let open = questions(&bench, StepWait::Approval, true);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?} {open:?}", bench.run(run).last_error);
    assert_eq!(bench.tool.seen_of(&ticket.key).calls, 1, "and never again");
    check(&bench);
}

/// Two that had to be approved are cut off together by the failure of a third, and a person knows that both were done.
#[test]
fn two_tickets_of_one_task_that_is_tried_again_are_resolved_and_the_run_goes_on() {
    for (first, second) in
        [(Ticket::Done, Ticket::Done), (Ticket::Done, Ticket::NotDone), (Ticket::NotDone, Ticket::Done)]
    {
        let mut bench = Bench::new();
        let calls = std::sync::atomic::AtomicU32::new(0);
        let hung = std::sync::atomic::AtomicU32::new(0);
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            Some("a" | "b") if hung.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2 => Fate::hang().happened(),
            Some("bad") => match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => Fate::fail(ErrorClass::Transient, Effect::None),
                1 => Fate::fail(ErrorClass::Permanent, Effect::None),
                _ => Fate::answer(call.input.clone()),
            },
            _ => Fate::answer(call.input.clone()),
        }));
        let steps = vec![asked("a"), asked("b"), step("bad")];
        let all = TaskPlan { parallel: 3, max_tries: 2, mode: FailureMode::Retry, ..task("all", steps) };
        let run = submit_agents(&mut bench, vec![agent("one", vec![all])]);
        bench.settle();
        answer_first(&mut bench, true);
        answer_first(&mut bench, true);
        bench.advance(2 * MINUTE);
        for ticket in [first, second] {
            let open = questions(&bench, StepWait::Ticket, true).into_iter().min_by_key(|question| question.id);
            say(&mut bench, &open.expect("one ticket each"), Verdict::Resolve(ticket)).unwrap();
            bench.advance(SECOND);
        }
        bench.advance(MINUTE);
        while !questions(&bench, StepWait::Approval, true).is_empty() {
            answer_first(&mut bench, true);
            bench.advance(MINUTE);
        }
        let run = bench.run(run);
        assert_eq!(run.status, RunStatus::Completed, "{first:?} {second:?} {:?}", run.last_error);
        check(&bench);
    }
}

#[test]
fn an_approval_step_says_how_long_it_waits() {
    let mut bench = Bench::new();
    let input = json!({ "message": "soon?", "expires_ms": MINUTE });
    let ask = StepPlan { input, ..StepPlan::new("ask", ToolKind::Approval) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![ask])])]);
    bench.advance(MINUTE - 20 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.advance(40 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    assert_eq!(found(&bench, run, "ask").last_error.unwrap().code, "approval_expired");
}

/// The approval holds for the tries of its key in its attempt; the record of what finished holds for the whole run, edited or not.
#[test]
fn an_approval_is_good_for_its_attempt_and_the_record_for_the_run() {
    for edited in [false, true] {
        let mut bench = Bench::new();
        let mut failures = 2;
        bench.tool.decide_by(Box::new(move |call, _| match call.input["of"].as_str() {
            Some("bad") => Fate::fail(ErrorClass::Permanent, Effect::Done),
            _ if failures > 0 => {
                failures -= 1;
                Fate::fail(ErrorClass::Transient, Effect::None)
            }
            _ => Fate::answer(call.input.clone()),
        }));
        let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
        let plan = agent("one", vec![task("all", vec![asked("s"), step("bad")])]);
        let run = crate::agents::submit(&mut bench, spec, Plans { agents: vec![plan], ..Plans::default() });
        bench.settle();
        let question = only(&bench, StepWait::Approval);
        let verdict = if edited { edit(json!({ "of": "edited" })) } else { approve() };
        say(&mut bench, &question, verdict).unwrap();
        bench.advance(5 * MINUTE);
        let ended = bench.run(run);
        assert_eq!((ended.status, ended.attempt), (RunStatus::Failed, 3), "{edited}: {:?}", ended.last_error);
        assert_eq!(questions(&bench, StepWait::Approval, false).len(), 1, "asked once");
        let paid = found(&bench, run, "s");
        assert!(paid.replayed, "{paid:?}");
        assert_eq!(bench.tool.seen_of(&paid.key.unwrap()).calls, 3, "three tries of the first attempt");
        check(&bench);
    }
}

#[test]
fn an_approval_step_has_the_answer_as_its_output() {
    for answer in [None, Some(json!({ "colour": "green" }))] {
        let mut bench = Bench::new();
        let schema = json!({ "type": "object", "properties": { "colour": { "type": "string" } } });
        let ask = StepPlan {
            input: json!({ "message": "which colour?" }),
            output: Some(schema),
            ..StepPlan::new("ask", ToolKind::Approval)
        };
        let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![ask, step("after")])])]);
        bench.settle();
        let question = only(&bench, StepWait::Approval);
        assert_eq!(field(say(&mut bench, &question, edit(json!({})))), "input");
        let wrong = Verdict::Approve { answer: Some(json!({ "colour": 7 })), input: None };
        assert_eq!(field(say(&mut bench, &question, wrong)), "answer");
        say(&mut bench, &question, Verdict::Approve { answer: answer.clone(), input: None }).unwrap();
        assert_eq!(bench.run(run).status, RunStatus::Completed);
        let done = found(&bench, run, "ask");
        let output = now(bench.engine.step(bench.org, run, done.id)).unwrap().output;
        let by_default = json!({ "approved": true, "by": "laptop", "note": "because" });
        assert_eq!(output, Some(answer.unwrap_or(by_default)));
        check(&bench);
    }
}

/// The field `answer` of an `approval` step is a schema: no answer, and one that does not match it, are refused.
#[test]
fn an_approval_that_asks_for_an_answer_gets_one_of_that_shape() {
    let mut bench = Bench::new();
    let schema = json!({ "type": "object", "required": ["c"], "properties": { "c": { "type": "string" } } });
    let input = json!({ "message": "which colour?", "answer": schema });
    let ask = StepPlan { input, ..StepPlan::new("ask", ToolKind::Approval) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![ask])])]);
    bench.settle();
    let question = only(&bench, StepWait::Approval);
    for wrong in [None, Some(json!({ "c": 3 })), Some(json!({}))] {
        assert_eq!(field(say(&mut bench, &question, Verdict::Approve { answer: wrong, input: None })), "answer");
    }
    say(&mut bench, &question, Verdict::Approve { answer: Some(json!({ "c": "red" })), input: None }).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

#[test]
fn a_ticket_says_what_failed_and_is_resolved_with_the_output_of_the_step() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"] == "s" {
        true => Fate::fail(ErrorClass::Transient, Effect::Perhaps),
        false => Fate::answer(call.input.clone()),
    }));
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once("s"), step("after")])])]);
    bench.settle();
    let uncertain = found(&bench, run, "s");
    let judged = uncertain.judged.unwrap();
    assert_eq!(
        (judged.effect, judged.decision, judged.rule),
        (Effect::Perhaps, Decided::Escalate, Rule::OutcomeUnknown)
    );
    let ticket = only(&bench, StepWait::Ticket);
    assert_eq!(ticket.error, uncertain.last_error, "the ticket says why");
    let shown = now(bench.engine.snapshot(bench.org, run)).unwrap();
    assert_eq!(shown.ticket, Some(ticket.id));
    say(&mut bench, &ticket, Verdict::Done { output: json!({ "id": 7 }) }).unwrap();
    bench.advance(SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let done = found(&bench, run, "s");
    assert_eq!(now(bench.engine.step(bench.org, run, done.id)).unwrap().output, Some(json!({ "id": 7 })));
    assert_eq!(now(bench.engine.snapshot(bench.org, run)).unwrap().ticket, None);
    check(&bench);
}

#[test]
fn an_output_is_only_taken_for_a_step_whose_outcome_is_unknown() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::fail(ErrorClass::Transient, Effect::None)));
    let rules = model::spec::PlanRules {
        on_exhausted: model::recovery::OnExhausted::Escalate,
        ..model::spec::PlanRules::default()
    };
    let spec = RunSpec { plan: rules, ..agents_spec() };
    let plan = agent("one", vec![task("all", vec![step("s")])]);
    crate::agents::submit(&mut bench, spec, Plans { agents: vec![plan], ..Plans::default() });
    bench.advance(MINUTE);
    let ticket = only(&bench, StepWait::Ticket);
    assert!(say(&mut bench, &ticket, Verdict::Done { output: json!(1) }).is_err());
    assert_eq!(only(&bench, StepWait::Ticket).status, QuestionStatus::Open);
    say(&mut bench, &ticket, Verdict::Resolve(Ticket::Skip)).unwrap();
}

#[test]
fn the_program_is_told_of_each_question_at_least_once_and_not_for_ever() {
    // (how often the program fails, dies with its worker) -> started so often
    for (fails, dies, starts) in [(0, false, 1), (2, false, 3), (99, false, 5), (0, true, 2)] {
        let mut bench = Bench::new();
        let program = Arc::new(FakeTool::obedient());
        let mut left = fails;
        program.decide_by(Box::new(move |_, _| match left {
            0 => Fate::answer(json!({})),
            _ => {
                left -= 1;
                Fate::fail(ErrorClass::Permanent, Effect::Perhaps)
            }
        }));
        if dies {
            program.decide_by(Box::new(|_, _| Fate::hang()));
        }
        bench.notifying(program.clone());
        submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s")])])]);
        bench.settle();
        if dies {
            assert_eq!(program.hanging().len(), 1);
            program.decide_by(Box::new(|_, _| Fate::answer(json!({}))));
            bench.restart();
        }
        bench.advance(5 * MINUTE);
        let question = only(&bench, StepWait::Approval);
        let seen = program.seen_of(&question.id.to_string());
        assert_eq!(seen.calls, starts, "{fails} {dies}");
        assert_eq!(question.notified_at.is_some(), fails < 5);
        check(&bench);
    }
}

#[test]
fn a_program_that_does_not_end_is_cut_off_and_started_again() {
    let mut bench = Bench::new();
    let program = Arc::new(FakeTool::obedient());
    let mut first = true;
    program.decide_by(Box::new(move |_, _| match std::mem::take(&mut first) {
        true => Fate::hang(),
        false => Fate::answer(json!({})),
    }));
    bench.notifying(program.clone());
    submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked("s")])])]);
    bench.advance(5 * MINUTE);
    let question = only(&bench, StepWait::Approval);
    assert_eq!((question.notify_tries, question.notified_at.is_some()), (2, true));
    assert_eq!(program.seen_of(&question.id.to_string()).cut, 1);
}

#[test]
fn the_tree_of_a_large_run_is_cut_and_its_pages_are_whole() {
    let mut bench = Bench::new();
    let tasks = (0..1_100).map(|n| task(&format!("t{n}"), vec![step(&format!("s{n}"))])).collect();
    let run = submit_agents(&mut bench, vec![agent("one", tasks)]);
    for _ in 0..20 {
        bench.settle();
    }
    let tree = tree(&bench, run);
    assert!(tree.cut && tree.tasks.len() == engine::view::TREE_TASKS as usize);
    let mut after = 0;
    let mut all = Vec::new();
    loop {
        let page = now(bench.engine.tasks(bench.org, run, Some(tree.agents[0].id), after, 500)).unwrap();
        let Some(last) = page.last() else { break };
        after = last.id.0;
        all.extend(page);
    }
    assert_eq!(all.len(), 1_100);
}

#[test]
fn why_names_the_first_failed_step_its_class_and_effect_the_decision_and_the_rule() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::fail(ErrorClass::Permanent, Effect::Done)));
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![once("s")])])]);
    bench.settle();
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    let facts = why.facts.join("\n");
    for words in [
        "the first step that failed is one/all/s (http, stp_",
        "class permanent, effect done, try 1 of 3",
        "decided: abort, because a permanent error is not tried again",
    ] {
        assert!(facts.contains(words), "{facts}");
    }
}

/// A call that fails is told to the model that asked for it; a step that failed and is done without explains why the run is partial.
#[test]
fn why_names_a_step_of_the_plan_that_was_skipped_and_no_call_of_a_model() {
    for (mode, partial) in [(FailureMode::Continue, true), (FailureMode::FailFast, false)] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(move |call, _| match (dialogues::turn(call), &call.input["of"]) {
            (None, of) if *of == json!(1) || (partial && of == "s") => Fate::fail(ErrorClass::Permanent, Effect::Done),
            _ => dialogues::talks(call),
        }));
        let (talk, shared) = dialogues::talk();
        let tasks = vec![TaskPlan { mode, ..task("all", vec![talk, once("s")]) }];
        let run =
            submit(&mut bench, agents_spec(), Plans { agents: vec![agent("one", tasks)], shared, ..Plans::default() });
        bench.advance(MINUTE);
        assert_eq!(found(&bench, run, "talk/t1/c1").status, StepStatus::Failed);
        let (snapshot, why) = now(bench.engine.why(bench.org, run)).unwrap();
        let outcome = if partial { RunOutcome::Partial } else { RunOutcome::Success };
        assert_eq!(snapshot.run.outcome, Some(outcome));
        let facts = why.facts.join("\n");
        assert_eq!(facts.contains("the first step that failed is one/all/s (http, stp_"), partial, "{facts}");
        assert_eq!(facts.contains("decided: skip, because a permanent error is not tried again"), partial, "{facts}");
        assert!(!facts.contains("talk"), "{facts}");
    }
}

#[test]
fn why_says_who_is_waited_for() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::fail(ErrorClass::Transient, Effect::Perhaps)));
    let one = agent("one", vec![task("all", vec![once("s")])]);
    let run = submit_agents(&mut bench, vec![agent("two", vec![task("all", vec![asked("a")])]), one]);
    bench.settle();
    let (ticket, approval) = (only(&bench, StepWait::Ticket), only(&bench, StepWait::Approval));
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    assert_eq!(why.summary, "it is paused until a person has decided about a step of it");
    let facts = why.facts.join("\n");
    assert!(facts.contains(&format!("{} waits for a decision about one/all/s", ticket.id)), "{facts}");
    assert!(facts.contains(&format!("{} waits for the approval of two/all/a", approval.id)), "{facts}");
    assert!(why.next.contains(&format!("look at it: repl escalation show {}", ticket.id)), "{:?}", why.next);
}
