//! Steps of the tool `external`: offered, taken by one program, and from then on leased and reported about like durable steps. Waiting
//! for a program costs nothing; what was taken and never ended is done again or asked about.

use crate::agents::{agent, agents_spec, check, found, once, open_ticket, resolve, step, submit, submit_agents, task};
use crate::bench::{Bench, now};
use adapters::tool::fake::Fate;
use engine::durable::{Answered, Asker, End, Report, Request, Standing, StepRender};
use engine::lease::Beat;
use engine::offer::{Poll, Taken};
use engine::run::{Action, Plans};
use model::plan::{AgentPlan, Policy, RunPlan, StepPlan, TaskPlan, ToolPlan};
use model::recovery::ErrorClass;
use model::run::{RunStatus, Ticket};
use model::spec::{FailureMode, RunSpec};
use model::step::{StepStatus, StepWait, ToolKind};
use model::time::{DAY, MINUTE, SECOND};
use model::{Credits, Effect, Failure, OrgId, Refused, RunId, StepId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::Moment;

/// One that must not be repeated.
pub fn external(name: &str) -> StepPlan {
    let input = json!({ "tool": "crm", "input": { "of": name } });
    StepPlan { input, timeout_ms: 30 * SECOND, ..StepPlan::new(name, ToolKind::External) }
}

fn repeatable(name: &str) -> StepPlan {
    StepPlan { idempotent: true, ..external(name) }
}

pub fn offered(steps: Vec<StepPlan>) -> (Bench, RunId) {
    let mut bench = Bench::new();
    let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", steps)])]);
    bench.settle();
    (bench, run)
}

fn poll_as(bench: &Bench, org: OrgId, tools: &[&str], lease_ms: i64) -> Result<Option<Taken>, Failure> {
    let poll = Poll { org, tools: tools.iter().map(|tool| (*tool).to_owned()).collect(), lease_ms };
    let render: StepRender<Taken> = Arc::new(|_| None);
    let answer = now(bench.engine.poll_step(&poll, None, &render))?;
    Ok(answer.map(|answer| match answer {
        Answered::Now(taken) => taken,
        Answered::Before(before) => panic!("said before: {before:?}"),
    }))
}

pub fn poll(bench: &Bench) -> Option<Taken> {
    poll_as(bench, bench.org, &["other", "crm"], MINUTE).unwrap()
}

pub fn take(bench: &Bench) -> Taken {
    poll(bench).expect("a step is offered")
}

pub fn end(bench: &mut Bench, taken: &Taken, end: End) -> Result<Standing, Failure> {
    let request = Request::plain(Asker::Org(bench.org), taken.run);
    let ended = now(bench.engine.end_step(request, (taken.step, taken.fence), end, None))?;
    bench.settle();
    let Answered::Now(ended) = ended else { panic!("said before: {ended:?}") };
    Ok(ended.standing)
}

pub fn done(output: Value) -> End {
    End::Completed { output, cost: Credits::ZERO }
}

fn failed(class: Option<ErrorClass>, effect: Option<Effect>) -> End {
    End::Failed(Report { code: None, message: "no".into(), class, effect })
}

fn beat(bench: &Bench, taken: &Taken) -> Beat {
    let request = Request::plain(Asker::Org(bench.org), taken.run);
    let Answered::Now(beat) = now(bench.engine.beat_step(request, (taken.step, taken.fence), None)).unwrap() else {
        panic!("said before")
    };
    beat
}

#[test]
fn an_offered_step_is_taken_by_one_program_and_its_output_is_the_steps() {
    let after = StepPlan { input: json!({ "of": "${{ steps.a.output.id }}" }), ..step("after") };
    let (mut bench, run) = offered(vec![external("a"), after]);
    let waits = found(&bench, run, "a");
    assert_eq!((waits.status, waits.waits, waits.tries), (StepStatus::Waiting, Some(StepWait::Poller), 0));
    check(&bench);
    let why = now(bench.engine.why(bench.org, run)).unwrap().1;
    assert!(why.facts.iter().any(|fact| fact.contains("waits for a program that polls for `crm`")), "{:?}", why.facts);
    assert_eq!(poll_as(&bench, bench.org, &["other"], MINUTE).unwrap(), None);
    let taken = take(&bench);
    assert_eq!((taken.path.as_str(), taken.tool.as_str(), taken.fence), ("one/all/a", "crm", 1));
    assert_eq!((&taken.input, taken.deadline), (&json!({ "of": "a" }), Some(bench.at() + 30 * SECOND)));
    assert_eq!(taken.key, found(&bench, run, "a").key.unwrap());
    assert_eq!(poll(&bench), None, "it has a taker");
    assert_eq!(beat(&bench, &taken), Beat::Go);
    check(&bench);
    end(&mut bench, &taken, done(json!({ "id": 7 }))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    assert_eq!(end(&mut bench, &taken, done(json!({ "id": 7 }))).unwrap(), completed(&taken, json!({ "id": 7 })));
    assert_eq!(bench.tool.seen().len(), 1, "what follows is called with its output");
    check(&bench);
}

fn completed(taken: &Taken, output: Value) -> Standing {
    Standing::Completed { step: taken.step, output }
}

#[test]
fn another_org_sees_nothing_and_a_poll_says_what_it_wants() {
    let (bench, run) = offered(vec![external("a")]);
    let other = now(bench.engine.ensure_org("other")).unwrap();
    assert_eq!(poll_as(&bench, other, &["crm"], MINUTE).unwrap(), None);
    let taken = take(&bench);
    let request = Request::plain(Asker::Org(other), run);
    let strange = now(bench.engine.end_step(request, (taken.step, taken.fence), done(json!(1)), None));
    assert!(matches!(strange, Err(Failure::Refused(Refused::NotFound { .. }))), "{strange:?}");
    let many: Vec<&str> = vec!["crm"; 21];
    for (tools, lease_ms, field) in
        [(&[][..], MINUTE, "tools"), (&many[..], MINUTE, "tools"), (&[""], MINUTE, "tools"), (&["crm"], 1, "lease_ms")]
    {
        let refused = poll_as(&bench, bench.org, tools, lease_ms);
        assert!(matches!(&refused, Err(Failure::Refused(Refused::Invalid { field: of, .. })) if of == field));
    }
}

/// Waiting for a poller is no active time: neither the step's time-out nor that of its task passes.
#[test]
fn a_step_waits_for_a_poller_as_long_as_it_takes_and_its_time_counts_from_the_poll() {
    let mut bench = Bench::new();
    let limited = TaskPlan { timeout_ms: MINUTE, ..task("all", vec![external("a")]) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![limited])]);
    bench.advance(DAY);
    assert_eq!(found(&bench, run, "a").status, StepStatus::Waiting);
    let taken = poll_as(&bench, bench.org, &["crm"], DAY).unwrap().unwrap();
    bench.advance(29 * SECOND);
    assert_eq!(beat(&bench, &taken), Beat::Go);
    bench.advance(2 * SECOND);
    let late = found(&bench, run, "a");
    assert!(late.uncertain && late.last_error.unwrap().code == "timeout", "whether it had its effect is unknown");
    assert_eq!(beat(&bench, &taken), Beat::Cancel);
    // Its program knows, and says so: the ticket needs no answer any more.
    end(&mut bench, &taken, done(json!(1))).unwrap();
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

#[test]
fn the_time_of_its_task_passes_while_a_program_works_on_it() {
    let mut bench = Bench::new();
    let slow = StepPlan { timeout_ms: DAY, ..external("a") };
    let limited = TaskPlan { timeout_ms: MINUTE, ..task("all", vec![slow]) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![limited])]);
    bench.advance(MINUTE);
    let taken = poll_as(&bench, bench.org, &["crm"], DAY).unwrap().unwrap();
    bench.advance(MINUTE + SECOND);
    let cut = found(&bench, run, "a");
    assert_eq!((cut.status, cut.outcome_unknown), (StepStatus::Cancelled, true));
    assert_eq!((beat(&bench, &taken), bench.run(run).status), (Beat::Cancel, RunStatus::Failed));
    check(&bench);
}

#[test]
fn a_silent_program_gives_its_step_up_and_only_what_may_be_repeated_is_offered_again() {
    let (mut bench, run) = offered(vec![repeatable("a")]);
    let first = poll_as(&bench, bench.org, &["crm"], 10 * SECOND).unwrap().unwrap();
    bench.advance(11 * SECOND);
    let second = take(&bench);
    assert_eq!((second.step, second.fence, &second.key), (first.step, 2, &first.key));
    assert_eq!(second.input, first.input);
    let late = end(&mut bench, &first, done(json!("late"))).unwrap();
    assert_eq!(late, Standing::Late { step: first.step, given: 1, current: 2 });
    end(&mut bench, &second, done(json!("in time"))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
    for (ticket, again) in [(Ticket::NotDone, true), (Ticket::Done, false)] {
        let (mut bench, run) = offered(vec![external("a")]);
        let first = poll_as(&bench, bench.org, &["crm"], 10 * SECOND).unwrap().unwrap();
        bench.advance(11 * SECOND);
        assert_eq!((poll(&bench), bench.run(run).status), (None, RunStatus::Paused));
        resolve(&mut bench, ticket);
        bench.advance(SECOND);
        let second = poll(&bench);
        assert_eq!(second.as_ref().map(|taken| (&taken.key, taken.fence)), again.then_some((&first.key, 2)));
        if let Some(second) = second {
            end(&mut bench, &second, done(json!(2))).unwrap();
        }
        assert_eq!(bench.run(run).status, RunStatus::Completed);
        check(&bench);
    }
}

#[test]
fn what_a_failure_means_follows_from_what_its_program_says() {
    let transient = Some(ErrorClass::Transient);
    // (may be repeated, said) -> offered again | a person is asked | failed
    let table = [
        (false, failed(None, None), "asked"),
        (true, failed(None, None), "again"),
        (false, failed(transient, Some(Effect::None)), "again"),
        (false, failed(None, Some(Effect::Done)), "failed"),
        (true, failed(Some(ErrorClass::Permanent), None), "failed"),
        (false, done(json!({ "id": "no number" })), "failed"),
    ];
    for (idempotent, said, then) in table {
        let schema = json!({ "type": "object", "properties": { "id": { "type": "integer" } } });
        let plan = StepPlan { idempotent, output: Some(schema), max_tries: 2, ..external("a") };
        let (mut bench, run) = offered(vec![plan]);
        let taken = take(&bench);
        let standing = end(&mut bench, &taken, said.clone()).unwrap();
        assert!(matches!(standing, Standing::Failed { .. }), "{standing:?}");
        bench.advance(MINUTE);
        match then {
            "again" => assert_eq!(take(&bench).key, taken.key, "{said:?}"),
            "asked" => drop(open_ticket(&bench)),
            _ => assert_eq!(bench.run(run).status, RunStatus::Failed, "{said:?}"),
        }
        check(&bench);
    }
}

#[test]
fn a_pause_waits_for_what_was_taken_and_nothing_is_taken_meanwhile() {
    let mut bench = Bench::new();
    let both = TaskPlan { parallel: 2, ..task("all", vec![external("a"), external("b")]) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![both])]);
    bench.settle();
    let taken = take(&bench);
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!((beat(&bench, &taken), bench.run(run).status), (Beat::Pause, RunStatus::Running));
    assert_eq!(poll(&bench), None);
    end(&mut bench, &taken, done(json!(1))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    assert_eq!(poll(&bench), None);
    check(&bench);
    let mut hints = bench.store.hints();
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    let heard: BTreeSet<store::Hint> = std::iter::from_fn(|| hints.try_recv().ok()).collect();
    assert!(heard.contains(&store::Hint::Offers(bench.org)), "who waits for a step learns that it may be taken again");
    let other = take(&bench);
    end(&mut bench, &other, done(json!(2))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

#[test]
fn a_cancel_leaves_what_was_taken_unknown_and_its_end_is_late_evidence() {
    let mut bench = Bench::new();
    let both = TaskPlan { parallel: 2, ..task("all", vec![external("a"), external("b")]) };
    let run = submit_agents(&mut bench, vec![agent("one", vec![both])]);
    bench.settle();
    let taken = take(&bench);
    bench.cancel(run);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    assert_eq!((beat(&bench, &taken), poll(&bench)), (Beat::Cancel, None));
    let (a, b) = (found(&bench, run, "a"), found(&bench, run, "b"));
    assert_eq!((a.status, a.outcome_unknown), (StepStatus::Cancelled, true));
    assert_eq!((b.status, b.outcome_unknown, b.tries), (StepStatus::Cancelled, false, 0));
    end(&mut bench, &taken, done(json!("it was done"))).unwrap();
    assert!(found(&bench, run, "a").found_done, "a later attempt does not do it again");
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    check(&bench);
}

#[test]
fn a_failure_beside_it_cancels_what_was_taken() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"] == "bad" {
        true => Fate::fail(ErrorClass::Permanent, Effect::Done),
        false => Fate::answer(call.input.clone()),
    }));
    let first = task("first", vec![external("a")]);
    let second = task("second", vec![external("gate"), once("bad")]);
    let plan = AgentPlan { parallel: 2, ..agent("one", vec![first, second]) };
    let run = submit_agents(&mut bench, vec![plan]);
    bench.settle();
    let (a, gate) = (take(&bench), take(&bench));
    end(&mut bench, &gate, done(json!(1))).unwrap();
    assert_eq!((bench.run(run).status, beat(&bench, &a)), (RunStatus::Failed, Beat::Cancel));
    assert!(found(&bench, run, "a").outcome_unknown);
    check(&bench);
}

#[test]
fn a_policy_asks_before_it_is_offered() {
    let plan = StepPlan { policy: Some(Policy::Ask), ..external("a") };
    let (mut bench, run) = offered(vec![plan]);
    assert_eq!((poll(&bench), found(&bench, run, "a").waits), (None, Some(StepWait::Approval)));
    let question = now(bench.engine.questions(bench.org, StepWait::Approval, true, i64::MAX, 10)).unwrap().remove(0);
    let edited = json!({ "tool": "crm", "input": "edited" });
    let verdict = engine::question::Verdict::Approve { answer: None, input: Some(edited) };
    let word = engine::question::Word { by: "laptop".into(), verdict, note: None };
    now(bench.engine.answer(bench.org, question.id, word, None)).unwrap();
    bench.settle();
    let taken = take(&bench);
    assert_eq!(taken.input, json!("edited"));
    end(&mut bench, &taken, done(json!(1))).unwrap();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}

#[test]
fn a_finished_step_answers_from_its_record_in_the_next_attempt() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| Fate::fail(ErrorClass::Permanent, Effect::Done)));
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let agents = vec![agent("one", vec![task("all", vec![external("a"), step("bad")])])];
    let run = submit(&mut bench, spec, Plans { agents, ..Plans::default() });
    bench.settle();
    let taken = take(&bench);
    end(&mut bench, &taken, done(json!(1))).unwrap();
    bench.advance(5 * MINUTE);
    assert_eq!((bench.run(run).attempt, poll(&bench)), (3, None));
    assert!(found(&bench, run, "a").replayed);
    check(&bench);
}

/// A model's call of such a tool is offered like a step of the plan.
#[test]
fn a_model_calls_a_tool_that_a_program_polls_for() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|call, _| {
        let answered = call.input["messages"].as_array().is_some_and(|all| all.iter().any(|it| it["role"] == "tool"));
        let calls = if answered { json!([]) } else { json!([{ "name": "look", "arguments": { "at": 3 } }]) };
        Fate::answer(json!({ "message": { "content": "so", "tool_calls": calls }, "finish_reason": "stop" }))
    }));
    let look = ToolPlan {
        tool: ToolKind::External,
        description: String::new(),
        args: BTreeMap::from([("at".to_owned(), json!({ "type": "integer" }))]),
        policy: Policy::Allow,
        idempotent: false,
        timeout_ms: Some(30 * SECOND),
        input: json!({ "tool": "crm", "input": { "at": "${{ args.at }}" } }),
    };
    let input = json!({ "model": "default", "prompt": "go", "tools": ["look"], "max_turns": 5 });
    let talk = StepPlan { input, idempotent: true, ..StepPlan::new("talk", ToolKind::Llm) };
    let shared = RunPlan { tools: BTreeMap::from([("look".to_owned(), look)]), ..RunPlan::default() };
    let agents = vec![agent("one", vec![task("all", vec![talk])])];
    let run = submit(&mut bench, agents_spec(), Plans { agents, shared, ..Plans::default() });
    bench.advance(MINUTE);
    check(&bench);
    let taken = take(&bench);
    assert_eq!((taken.path.as_str(), &taken.input), ("one/all/talk/t1/c1", &json!({ "at": 3 })));
    assert_eq!(beat(&bench, &taken), Beat::Go);
    end(&mut bench, &taken, done(json!("seen"))).unwrap();
    bench.advance(SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    check(&bench);
}

/// What a taker is told, so that a repeated answer says the same.
fn ids(taken: &Taken) -> Vec<u8> {
    json!([taken.run.0, taken.step.0, taken.fence, taken.key]).to_string().into_bytes()
}

fn polled(bench: &mut Bench) -> Option<(RunId, (StepId, i64), String)> {
    let poll = Poll { org: bench.org, tools: vec!["crm".into()], lease_ms: 10 * SECOND };
    let (key, render): (_, StepRender<Taken>) = (bench.key(), Arc::new(|taken| Some(ids(taken))));
    loop {
        let answer = now(bench.engine.poll_step(&poll, Some(&key), &render));
        if bench.revive() {
            continue;
        }
        let told = match answer.unwrap()? {
            Answered::Now(taken) => ids(&taken),
            Answered::Before(before) => before.body,
        };
        let (run, step, fence, key): (i64, i64, i64, String) = serde_json::from_slice(&told).unwrap();
        return Some((RunId(run), (StepId(step), fence), key));
    }
}

/// A program that takes, acts and reports, and asks again whenever the control plane died; how often it acted, by key.
fn work(bench: &mut Bench) -> BTreeMap<String, u32> {
    let mut acts = BTreeMap::new();
    for _ in 0..8 {
        bench.advance(5 * SECOND);
        let Some((run, at, key)) = polled(bench) else { continue };
        *acts.entry(key).or_default() += 1;
        loop {
            let request = Request::plain(Asker::Org(bench.org), run);
            let ended = now(bench.engine.end_step(request, at, done(json!("done")), None));
            if !bench.revive() {
                ended.unwrap();
                break;
            }
        }
    }
    acts
}

#[test]
fn a_crash_at_any_write_repeats_no_step_that_must_not_be() {
    let story = |bench: &mut Bench| {
        let plan = vec![agent("one", vec![task("all", vec![external("a"), step("b"), repeatable("c")])])];
        let run = submit_agents(bench, plan);
        (run, work(bench))
    };
    let mut undisturbed = Bench::new();
    story(&mut undisturbed);
    let writes = undisturbed.crashes.writes.lock().unwrap().clone();
    let last = writes.iter().rposition(|name| *name == "step.end").expect("a step ended");
    for (write, name) in writes.iter().enumerate().take(last + 3) {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = Bench::new();
            bench.crashes.arm(write, moment);
            let (run, acts) = story(&mut bench);
            bench.advance(MINUTE);
            let how = format!("{moment:?} write {write}, {name}");
            assert_eq!(bench.run(run).status, RunStatus::Completed, "{how}: {:?}", bench.run(run).last_error);
            assert_eq!(acts.values().copied().collect::<Vec<_>>(), [1, 1], "{how}");
            check(&bench);
        }
    }
}

/// The run is tried again while a program works on one of its steps: that program's word still counts, and no other does it again (R151).
/// A late report or a cancel ends the step before its `verify` has answered: the pause of its run does not wait for that call.
#[test]
fn a_step_that_ends_while_it_is_verified_leaves_no_act_behind() {
    for late in [true, false] {
        let mut bench = Bench::new();
        bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
        let verify = StepPlan { idempotent: true, ..StepPlan::new("verify", ToolKind::Http) };
        let asked = StepPlan { verify: Some(verify.into()), ..external("a") };
        let run = submit_agents(&mut bench, vec![agent("one", vec![task("all", vec![asked, external("b")])])]);
        bench.settle();
        let taken = take(&bench);
        bench.advance(45 * SECOND);
        assert!(found(&bench, run, "a").verifying, "its time is over");
        check(&bench);
        if late {
            end(&mut bench, &taken, done(json!(7))).unwrap();
            assert_eq!(found(&bench, run, "a").status, StepStatus::Completed);
            bench.act(run, Action::Pause).unwrap();
            bench.settle();
            assert_eq!(bench.run(run).status, RunStatus::Paused);
        } else {
            bench.cancel(run);
            bench.settle();
            assert_eq!(bench.run(run).status, RunStatus::Cancelled);
        }
        check(&bench);
    }
}

#[test]
fn what_an_earlier_program_has_done_is_not_given_to_another() {
    let mut bench = Bench::new();
    let calls = std::sync::atomic::AtomicU32::new(0);
    bench.tool.decide_by(Box::new(move |call, _| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Fate::fail(ErrorClass::Permanent, Effect::None),
        _ => Fate::answer(call.input.clone()),
    }));
    let gate = StepPlan { input: json!({ "for": "10s" }), ..StepPlan::new("gate", ToolKind::Wait) };
    let all = TaskPlan { parallel: 2, ..task("all", vec![repeatable("s"), gate, step("bad")]) };
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let run = submit(&mut bench, spec, Plans { agents: vec![agent("one", vec![all])], ..Plans::default() });
    bench.settle();
    let taken = take(&bench);
    bench.advance(5 * MINUTE);
    assert_eq!(bench.run(run).attempt, 2);
    let again = found(&bench, run, "s");
    assert_eq!((again.id == taken.step, again.waits), (false, Some(StepWait::Poller)), "{again:?}");
    let said = end(&mut bench, &taken, done(json!(7)));
    assert!(matches!(said, Ok(Standing::Completed { .. })), "{said:?}");
    assert!(poll(&bench).is_none(), "it is done");
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let answered = found(&bench, run, "s");
    assert!(answered.replayed);
    assert_eq!(now(bench.engine.step(bench.org, run, answered.id)).unwrap().output, Some(json!(7)));
    check(&bench);
}

/// An agent is tried again twice. The row of its second try is cancelled while it is still offered: it has nothing to say in the journal,
/// and does not erase what the program of the first try has said.
#[test]
fn a_row_that_never_began_does_not_erase_the_record_of_an_earlier_one() {
    let mut bench = Bench::new();
    let calls = std::sync::Mutex::new(BTreeMap::<String, u32>::new());
    bench.tool.decide_by(Box::new(move |call, _| {
        let name = call.input["of"].as_str().unwrap().to_owned();
        let mut calls = calls.lock().unwrap();
        let count = calls.entry(name.clone()).or_default();
        *count += 1;
        match (name.as_str(), *count) {
            ("bad" | "worse", 1) => Fate::fail(ErrorClass::Permanent, Effect::None),
            ("slow", 1 | 2) => Fate::hang(),
            _ => Fate::answer(call.input.clone()),
        }
    }));
    let gate = |name| StepPlan { input: json!({ "for": "10s" }), ..StepPlan::new(name, ToolKind::Wait) };
    let long = StepPlan { timeout_ms: DAY, ..repeatable("s") };
    let slow = StepPlan { idempotent: true, timeout_ms: DAY, ..step("slow") };
    let steps = vec![long, slow, gate("first"), step("bad"), gate("second"), step("worse")];
    let all = TaskPlan { parallel: 3, ..task("all", steps) };
    let one = AgentPlan { mode: FailureMode::Retry, max_tries: 3, ..agent("one", vec![all]) };
    let run = submit_agents(&mut bench, vec![one]);
    bench.settle();
    let taken = take(&bench);
    let offered = |bench: &Bench| found(bench, run, "s").id != taken.step;
    for _ in 0..600 {
        if offered(&bench) {
            break;
        }
        bench.advance(SECOND);
    }
    assert_eq!((offered(&bench), found(&bench, run, "s").waits), (true, Some(StepWait::Poller)));
    assert!(matches!(end(&mut bench, &taken, done(json!(7))), Ok(Standing::Completed { .. })));
    bench.advance(30 * SECOND);
    assert!(poll(&bench).is_none(), "it is done");
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    check(&bench);
}
