//! Commands of planned agents on scripted machines: when an agent gets its machine, what is begun there and told, what ends decide, and
//! what becomes of steps when the machine is lost.

use crate::agents::{agent, agents_spec, found, resolve, submit, submit_agents, task, tree};
use crate::artifacts;
use crate::bench::{Bench, now, settings};
use crate::crashes::around_every_write;
use crate::machines::{Does, ended};
use crate::questions::answer_first;
use adapters::tool::fake::Fate;
use engine::Config;
use engine::durable::{Asker, Begin, Request, StepClaim};
use engine::run::{Action, Plans};
use engine::runner::{Output, StepChunk, What};
use model::agent::AgentStatus;
use model::hierarchy::CHUNK;
use model::job::{FreezeState, Job, JobReason, JobStatus};
use model::log::LogId;
use model::plan::{AgentPlan, MachinePlan, Policy, StepPlan, TaskPlan};
use model::run::{RunOutcome, RunStatus, Ticket};
use model::spec::{Command, FailureMode, Resources, RunSpec};
use model::step::{Step, StepStatus, StepTry, ToolKind};
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, RunId};
use serde_json::{Value, json};
use store::step::Data;
use store::{Frame, LogStream};

fn command(name: &str) -> StepPlan {
    StepPlan {
        input: json!({ "shell": name }),
        idempotent: true,
        timeout_ms: HOUR,
        ..StepPlan::new(name, ToolKind::Command)
    }
}

/// One that must not be repeated.
fn once(name: &str) -> StepPlan {
    StepPlan { idempotent: false, ..command(name) }
}

fn call(name: &str) -> StepPlan {
    StepPlan { input: json!({ "of": name }), idempotent: true, ..StepPlan::new(name, ToolKind::Http) }
}

fn with_machine(name: &str, tasks: Vec<TaskPlan>) -> AgentPlan {
    AgentPlan { machine: Some(MachinePlan::default()), ..agent(name, tasks) }
}

fn one_task(steps: Vec<StepPlan>) -> AgentPlan {
    with_machine("one", vec![task("all", steps)])
}

fn said(bench: &Bench) -> Vec<String> {
    bench.runners.commands.iter().map(Command::shown).collect()
}

fn script(bench: &mut Bench, decide: impl FnMut(&str) -> Does + 'static) {
    let mut decide = decide;
    bench.runners.script = Some(Box::new(move |step| decide(&step.command.shown())));
}

fn output(bench: &Bench, step: &Step) -> Value {
    let id = step.answer.expect("it has answered");
    now(bench.store.read("test", move |tx| store::step::data(tx, id, Data::Output))).unwrap().unwrap()
}

fn running_job(bench: &Bench, run: RunId) -> Job {
    let job = bench.job(run);
    assert_eq!(job.status, JobStatus::Running, "{job:?}");
    job
}

fn tries(step: &Step) -> StepTry {
    step.present_try()
}

/// The machine of a run's newest job is gone, by its provider's word.
fn lose_machine(bench: &mut Bench, run: RunId) {
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
}

#[test]
fn an_agent_keeps_one_machine_for_all_its_commands_and_lets_it_go() {
    let mut bench = Bench::new();
    let tasks = vec![task("first", vec![command("a"), call("x"), command("b")]), task("second", vec![command("c")])];
    let run = submit_agents(&mut bench, vec![with_machine("one", tasks)]);
    bench.settle();
    let end = bench.run(run);
    assert_eq!((end.status, end.outcome), (RunStatus::Completed, Some(RunOutcome::Success)), "{:?}", end.last_error);
    assert_eq!(said(&bench), ["a", "b", "c"]);
    assert_eq!(bench.jobs(run).len(), 1, "one machine for the whole agent");
    let job = bench.job(run);
    assert_eq!((job.status, job.reason), (JobStatus::Done, Some(JobReason::DoneByRunner)));
    let answer = output(&bench, &found(&bench, run, "a"));
    assert_eq!(answer, json!({ "exit_code": 0, "stdout_tail": "" }));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn an_agent_without_a_ready_command_has_no_machine() {
    let mut bench = Bench::new();
    bench.tool.decide_by(Box::new(|_, _| adapters::tool::fake::Fate::hang()));
    let run = submit_agents(&mut bench, vec![one_task(vec![call("x"), command("a")])]);
    bench.settle();
    assert_eq!((bench.jobs(run).len(), bench.provider.machines().len()), (0, 0));
    let hanging = bench.tool.hanging()[0].clone();
    assert!(bench.tool.tell(hanging.number, adapters::tool::fake::Fate::answer(json!({}))));
    bench.settle();
    assert_eq!((bench.run(run).status, bench.jobs(run).len()), (RunStatus::Completed, 1));
    bench.check();
}

#[test]
fn two_agents_have_two_machines_of_their_own_size() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let resources = Resources { cpu_milli: Some(2_000), ..Resources::default() };
    let large = AgentPlan {
        machine: Some(MachinePlan { resources: resources.clone(), ..MachinePlan::default() }),
        ..agent("large", vec![task("all", vec![command("a")])])
    };
    let small = with_machine("small", vec![task("all", vec![command("b")])]);
    let run = submit_agents(&mut bench, vec![large, small]);
    bench.settle();
    let jobs = bench.jobs(run);
    assert_eq!((jobs.len(), bench.provider.machines().len()), (2, 2));
    let asked: Vec<_> = jobs.iter().map(|job| job.resources.clone()).collect();
    assert_eq!(asked, [Some(resources), None]);
    bench.cancel(run);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    bench.check();
}

#[test]
fn the_document_lists_what_was_begun_and_has_not_ended() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let env = json!({ "shell": "a", "env": { "TOPIC": "'; rm -rf /" } });
    let first = StepPlan { input: env, ..command("a") };
    let both = TaskPlan { parallel: 2, ..task("all", vec![first, command("b"), command("c")]) };
    let machine = MachinePlan {
        env: [("ALL".to_owned(), json!("1"))].into(),
        working_dir: Some("sub".into()),
        ..MachinePlan::default()
    };
    let run = submit_agents(&mut bench, vec![AgentPlan { machine: Some(machine), ..agent("one", vec![both]) }]);
    bench.settle();
    let job = running_job(&bench, run);
    let desired = now(bench.engine.desired(job.instance.unwrap())).unwrap().job.unwrap();
    let listed: Vec<_> = desired.steps.iter().map(|step| step.command.shown()).collect();
    assert_eq!((listed, desired.closed), (vec!["a".to_owned(), "b".to_owned()], false));
    assert_eq!(desired.steps[0].env["TOPIC"], "'; rm -rf /", "a value, never a part of the text");
    assert_eq!((desired.content.env["ALL"].as_str(), desired.steps[0].working_dir.as_deref()), ("1", Some("sub")));
    assert_eq!(desired.steps[0].max_duration_ms, Some(HOUR));
    let a = tries(&found(&bench, run, "a"));
    bench.command_ends(a, ended(JobReason::DoneByRunner, Some(0), 0, 5));
    let desired = now(bench.engine.desired(job.instance.unwrap())).unwrap().job.unwrap();
    let listed: Vec<_> = desired.steps.iter().map(|step| step.command.shown()).collect();
    assert_eq!(listed, ["b", "c"]);
    bench.check();
}

#[test]
fn an_end_has_a_class_and_an_effect() {
    use StepStatus::{Completed, Failed, Running};
    let signal = |mut end: What| {
        if let What::Ended { signal, .. } = &mut end {
            *signal = Some(9);
        }
        end
    };
    let end = |reason, code| ended(reason, code, 0, 5);
    // (its end, idempotent) -> (status, tries, code)
    let table = [
        (end(JobReason::DoneByRunner, Some(0)), false, (Completed, 1, None)),
        (end(JobReason::ExitedWithError, Some(3)), true, (Failed, 1, Some("exit_code"))),
        (end(JobReason::ExitedWithError, Some(3)), false, (Failed, 1, Some("exit_code"))),
        (signal(end(JobReason::ExitedWithError, None)), true, (Failed, 3, Some("signal"))),
        (signal(end(JobReason::ExitedWithError, None)), false, (Running, 1, Some("signal"))),
        (end(JobReason::LimitsExceeded, None), true, (Failed, 3, Some("limits_exceeded"))),
        (end(JobReason::LimitsExceeded, None), false, (Running, 1, Some("limits_exceeded"))),
        (end(JobReason::MaxDuration, None), true, (Failed, 3, Some("timeout"))),
        (end(JobReason::MaxDuration, None), false, (Running, 1, Some("timeout"))),
        (end(JobReason::InvalidOutput, None), false, (Failed, 1, Some("invalid_output"))),
    ];
    for (end, idempotent, (status, tries, code)) in table {
        let mut bench = Bench::new();
        let told = end.clone();
        script(&mut bench, move |_| Does::Ends(told.clone()));
        let run = submit_agents(&mut bench, vec![one_task(vec![StepPlan { idempotent, ..command("a") }])]);
        bench.advance(MINUTE);
        let step = found(&bench, run, "a");
        let error = step.last_error.as_ref().map(|error| error.code.as_str());
        assert_eq!((step.status, step.tries, error), (status, tries, code), "{end:?} {idempotent}");
        assert_eq!(step.uncertain, status == Running, "of what may have happened a person is asked");
        bench.check();
    }
}

/// A command that was cut off, or lost with its machine, is looked for by another command, if need be on another machine.
#[test]
fn a_verify_may_be_a_command() {
    for lost in [false, true] {
        let mut bench = Bench::new();
        script(&mut bench, move |said| match said {
            "pay" if lost => Does::Runs,
            "pay" => Does::Ends(ended(JobReason::MaxDuration, None, 0, 5)),
            "look" => Does::answers(json!({ "outcome": "done", "output": 7 })),
            _ => Does::exits(0),
        });
        let verify = Some(Box::new(command("look")));
        let run = submit_agents(&mut bench, vec![one_task(vec![StepPlan { verify, ..once("pay") }, command("after")])]);
        bench.settle();
        if lost {
            lose_machine(&mut bench, run);
        }
        bench.advance(10 * MINUTE);
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
        assert_eq!(said(&bench), ["pay", "look", "after"]);
        assert_eq!(output(&bench, &found(&bench, run, "pay")), json!(7));
        assert_eq!(bench.jobs(run).len(), if lost { 2 } else { 1 });
        bench.check();
    }
}

/// The program of a command is gone with its machine, and with it the step that it had begun: a `verify` asks about both.
#[test]
fn what_a_lost_command_has_begun_ends_before_its_verify_asks() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    bench.tool.decide_by(Box::new(|_, _| Fate::hang()));
    let verify = Some(Box::new(call("look")));
    let run = submit_agents(&mut bench, vec![one_task(vec![StepPlan { verify, ..once("pay") }])]);
    bench.settle();
    let (job, pay) = (running_job(&bench, run), tries(&found(&bench, run, "pay")));
    let claim = StepClaim { org: bench.org, run, attempt: job.attempt, job: job.id, epoch: job.epoch, step: pay };
    let (name, input) = ("inner".to_owned(), json!(1));
    let begin = Begin { name, key: None, input, idempotent: false, lease_ms: HOUR, max_cost: Credits::ZERO };
    now(bench.engine.begin_step(Request::plain(Asker::Job(claim), run), begin)).unwrap();
    bench.check();
    lose_machine(&mut bench, run);
    bench.advance(MINUTE);
    assert!(found(&bench, run, "pay").verifying);
    let inner = found(&bench, run, "pay/inner");
    assert!(inner.status == StepStatus::Cancelled && inner.outcome_unknown, "{inner:?}");
    bench.check();
}

#[test]
fn json_is_an_output_and_other_steps_read_it() {
    let mut bench = Bench::new();
    script(&mut bench, |said| match said {
        "a" => Does::answers(json!({ "n": 7 })),
        _ => Does::exits(0),
    });
    let second = StepPlan {
        input: json!({ "argv": ["show", "${{ steps.a.output.n }}"], "env": { "N": "${{ steps.a.output.n }}" } }),
        ..command("b")
    };
    let run = submit_agents(&mut bench, vec![one_task(vec![command("a"), second])]);
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    assert_eq!(output(&bench, &found(&bench, run, "a")), json!({ "n": 7 }));
    assert_eq!(said(&bench), ["a", "show 7"]);
}

#[test]
fn an_output_that_does_not_match_its_schema_is_a_failure() {
    for (n, status) in [(json!(7), StepStatus::Completed), (json!("seven"), StepStatus::Failed)] {
        let mut bench = Bench::new();
        script(&mut bench, move |_| Does::answers(json!({ "n": n.clone() })));
        let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
        let run = submit_agents(&mut bench, vec![one_task(vec![StepPlan { output: Some(schema), ..once("a") }])]);
        bench.advance(MINUTE);
        let step = found(&bench, run, "a");
        assert_eq!(step.status, status);
        let code = step.last_error.map(|error| error.code);
        assert_eq!(code.as_deref(), (status == StepStatus::Failed).then_some("invalid_output"));
    }
}

#[test]
fn an_exec_reads_and_answers_json() {
    for (answers, status) in [(true, StepStatus::Completed), (false, StepStatus::Failed)] {
        let mut bench = Bench::new();
        bench.runners.script = Some(Box::new(move |step| {
            assert!(step.answers && !step.tail, "its standard output is its answer");
            assert_eq!(step.stdin.as_ref().unwrap().size, 9);
            if answers { Does::answers(json!([1])) } else { Does::exits(0) }
        }));
        let exec =
            StepPlan { input: json!({ "argv": ["./x"], "input": { "a": "b" } }), ..StepPlan::new("x", ToolKind::Exec) };
        let run = submit_agents(&mut bench, vec![one_task(vec![exec])]);
        bench.advance(MINUTE);
        assert_eq!(found(&bench, run, "x").status, status);
        bench.check();
    }
}

#[test]
fn an_input_that_no_machine_could_be_told_is_refused_before_it_begins() {
    let mut bench = Bench::new();
    let large = StepPlan { input: json!({ "argv": ["x", "y".repeat(200_000)] }), ..once("large") };
    let run = submit_agents(&mut bench, vec![one_task(vec![large])]);
    bench.settle();
    let step = found(&bench, run, "large");
    assert_eq!((step.status, step.tries), (StepStatus::Failed, 0));
    assert_eq!(step.last_error.unwrap().code, "input_too_large");
    assert_eq!((bench.run(run).status, bench.jobs(run).len()), (RunStatus::Failed, 0));
    // What is large, and not too large, waits for room in the machine's document.
    script(&mut bench, |_| Does::Runs);
    let step = |n: usize| StepPlan { input: json!({ "argv": ["x", "y".repeat(80_000)] }), ..command(&n.to_string()) };
    let many = TaskPlan { parallel: 5, ..task("all", (0..5).map(step).collect()) };
    let run = submit_agents(&mut bench, vec![with_machine("one", vec![many])]);
    bench.settle();
    let begun = tree(&bench, run).steps.iter().filter(|step| step.status == StepStatus::Running).count();
    assert_eq!(begun, 2);
    bench.check();
}

#[test]
fn a_report_about_an_older_try_or_another_job_changes_nothing() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let run = submit_agents(&mut bench, vec![one_task(vec![command("a")])]);
    bench.settle();
    let (job, step) = (running_job(&bench, run), found(&bench, run, "a"));
    let instance = job.instance.unwrap();
    let tell = |bench: &mut Bench, step: StepTry, end: What| {
        let fact = engine::runner::Fact { job: job.id, epoch: job.epoch, step: Some(step), what: end };
        bench.report(instance, vec![fact], vec![]).unwrap().unwrap().refused
    };
    let mut cut = ended(JobReason::ExitedWithError, None, 0, 5);
    if let What::Ended { signal, .. } = &mut cut {
        *signal = Some(9);
    }
    bench.command_ends(tries(&step), cut);
    bench.advance(SECOND);
    let second = found(&bench, run, "a");
    assert_eq!((second.status, second.tries), (StepStatus::Running, 2));
    let done = ended(JobReason::DoneByRunner, Some(0), 0, 5);
    assert_eq!(tell(&mut bench, tries(&step), done.clone()).len(), 1, "an older try");
    let stranger = StepTry { id: model::StepId(1), number: 1 };
    assert_eq!(tell(&mut bench, stranger, done.clone()).len(), 1, "nobody's");
    assert_eq!(found(&bench, run, "a").status, StepStatus::Running);
    assert!(tell(&mut bench, tries(&second), done.clone()).is_empty());
    assert!(tell(&mut bench, tries(&second), done).is_empty(), "said twice");
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    bench.check();
}

#[test]
fn a_cancel_stops_commands_and_closes_the_job() {
    for idempotent in [true, false] {
        let mut bench = Bench::new();
        script(&mut bench, |_| Does::Runs);
        let run =
            submit_agents(&mut bench, vec![one_task(vec![StepPlan { idempotent, ..command("a") }, command("b")])]);
        bench.settle();
        bench.cancel(run);
        bench.settle();
        assert_eq!(bench.run(run).status, RunStatus::Cancelled);
        let step = found(&bench, run, "a");
        assert_eq!((step.status, step.outcome_unknown), (StepStatus::Cancelled, !idempotent));
        assert_eq!(bench.job(run).status, JobStatus::Terminated);
        bench.check();
        bench.check_all_gone();
    }
}

#[test]
fn a_command_whose_sibling_fails_is_stopped_and_waited_for() {
    // The task is tried again: its machine stays. The agent fails: its machine goes with it.
    for (mode, begun) in [(FailureMode::Retry, 4), (FailureMode::FailFast, 2)] {
        let mut bench = Bench::new();
        let mut failed = false;
        script(&mut bench, move |said| match said {
            "bad" if !std::mem::replace(&mut failed, true) => Does::exits(1),
            "long" if !failed => Does::Runs,
            _ => Does::exits(0),
        });
        let both = TaskPlan { parallel: 2, mode, ..task("all", vec![command("long"), command("bad")]) };
        let run = submit_agents(&mut bench, vec![with_machine("one", vec![both])]);
        bench.advance(MINUTE);
        let status = if mode == FailureMode::Retry { RunStatus::Completed } else { RunStatus::Failed };
        assert_eq!(bench.run(run).status, status, "{mode}");
        assert_eq!((bench.runners.commands.len(), bench.jobs(run).len()), (begun, 1), "{mode}");
        bench.check();
    }
}

#[test]
fn a_task_whose_time_is_up_stops_its_command() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let short = TaskPlan { timeout_ms: 30 * SECOND, ..task("all", vec![once("a")]) };
    let run = submit_agents(&mut bench, vec![with_machine("one", vec![short])]);
    bench.advance(2 * MINUTE);
    let end = bench.run(run);
    assert_eq!((end.status, end.last_error.unwrap().code.as_str()), (RunStatus::Failed, "timeout"));
    assert_eq!(found(&bench, run, "a").status, StepStatus::Cancelled);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_task_whose_time_is_up_waits_for_a_silent_machine_without_a_hurry() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let short = TaskPlan { timeout_ms: 30 * SECOND, mode: FailureMode::Retry, ..task("all", vec![command("a")]) };
    let run = submit_agents(&mut bench, vec![with_machine("one", vec![short])]);
    bench.settle();
    let name = bench.cut_off(run);
    bench.advance(MINUTE);
    assert_eq!(found(&bench, run, "a").status, StepStatus::Running, "nobody has said that it has ended");
    script(&mut bench, |_| Does::exits(0));
    bench.reconnect(&name);
    bench.advance(MINUTE);
    assert_eq!((bench.run(run).status, bench.runners.commands.len()), (RunStatus::Completed, 2));
    bench.check();
}

#[test]
fn a_pause_freezes_commands_and_nothing_begins_until_it_is_resumed() {
    let mut bench = Bench::new();
    script(&mut bench, |said| if said == "a" { Does::Runs } else { Does::exits(0) });
    let run = submit_agents(&mut bench, vec![one_task(vec![once("a"), command("b")])]);
    bench.settle();
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    assert_eq!(bench.run(run).status, RunStatus::Paused);
    assert_eq!(found(&bench, run, "a").status, StepStatus::Running, "it stands still");
    bench.advance(10 * MINUTE);
    bench.act(run, Action::Resume).unwrap();
    bench.advance(SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    let a = tries(&found(&bench, run, "a"));
    bench.command_ends(a, ended(JobReason::DoneByRunner, Some(0), 0, 5));
    assert_eq!((bench.run(run).status, said(&bench)), (RunStatus::Completed, vec!["a".to_owned(), "b".to_owned()]));
    bench.check();
}

#[test]
fn the_job_is_charged_by_its_windows() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let run = submit_agents(&mut bench, vec![one_task(vec![command("a")])]);
    bench.settle();
    bench.advance(10 * MINUTE);
    let a = tries(&found(&bench, run, "a"));
    bench.command_ends(a, ended(JobReason::DoneByRunner, Some(0), 0, 5));
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    let (reserved, charged, refunded) = bench.money(run, 1);
    assert_eq!(charged, Credits(600 * 10_000), "ten minutes of its machine");
    assert_eq!(reserved, charged + refunded);
    bench.check();
}

#[test]
fn an_agent_whose_machine_is_lost_goes_on_with_another() {
    // (files, idempotent, retry on interruption) of the finished command -> what runs in the end
    type Case<'a> = (Option<Vec<String>>, bool, bool, &'a [&'a str], bool);
    let table: [Case; 4] = [
        (Some(vec![]), false, false, &["a", "b", "b"], false),
        (None, true, false, &["a", "b", "a", "b"], false),
        (None, false, true, &["a", "b", "a", "b"], false),
        (None, false, false, &["a", "b", "a", "b"], true),
    ];
    for (files, idempotent, retry_interrupted, begun, asks) in table {
        let mut bench = Bench::new();
        let mut lost = false;
        script(&mut bench, move |said| match said {
            "b" if !std::mem::replace(&mut lost, true) => Does::Runs,
            _ => Does::exits(0),
        });
        let first = StepPlan { files: files.clone(), idempotent, retry_interrupted, ..command("a") };
        let run = submit_agents(&mut bench, vec![one_task(vec![call("x"), first, command("b")])]);
        bench.settle();
        lose_machine(&mut bench, run);
        bench.advance(5 * MINUTE);
        let case = (files, idempotent, retry_interrupted);
        if asks {
            assert_eq!(bench.run(run).status, RunStatus::Paused, "{case:?}");
            let step = found(&bench, run, "a");
            assert_eq!(step.last_error.unwrap().code, "workdir_gone");
            resolve(&mut bench, Ticket::Resume);
            bench.advance(MINUTE);
        }
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{case:?} {:?}", bench.run(run).last_error);
        assert_eq!(
            (said(&bench), bench.jobs(run).len()),
            (begun.iter().map(|s| s.to_string()).collect(), 2),
            "{case:?}"
        );
        assert_eq!(
            bench.tool.seen().values().map(|seen| seen.calls).sum::<u32>(),
            1,
            "what needs no machine is not called again"
        );
        assert_eq!((bench.run(run).attempt, tree(&bench, run).agents[0].tries), (1, 1), "the same attempt and try");
        bench.check();
    }
}

#[test]
fn a_command_that_was_cut_off_with_its_machine_is_repeated_or_asked_about() {
    for (idempotent, retry_interrupted) in [(true, false), (false, true), (false, false)] {
        let mut bench = Bench::new();
        let mut lost = false;
        script(&mut bench, move |_| if std::mem::replace(&mut lost, true) { Does::exits(0) } else { Does::Runs });
        let step = StepPlan { idempotent, retry_interrupted, ..command("a") };
        let run = submit_agents(&mut bench, vec![one_task(vec![step])]);
        bench.settle();
        lose_machine(&mut bench, run);
        bench.advance(5 * MINUTE);
        if !idempotent && !retry_interrupted {
            assert_eq!((bench.run(run).status, said(&bench).len()), (RunStatus::Paused, 1), "never silently repeated");
            resolve(&mut bench, Ticket::NotDone);
            bench.advance(MINUTE);
        }
        assert_eq!((bench.run(run).status, said(&bench).len()), (RunStatus::Completed, 2));
        assert_eq!(bench.jobs(run).len(), 2);
        bench.check();
    }
}

#[test]
fn an_agent_gives_up_after_three_machines() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let run = submit_agents(&mut bench, vec![one_task(vec![StepPlan { max_tries: 9, ..command("a") }])]);
    for _ in 0..3 {
        bench.advance(MINUTE);
        lose_machine(&mut bench, run);
    }
    bench.advance(5 * MINUTE);
    let end = bench.run(run);
    assert_eq!((end.status, bench.jobs(run).len()), (RunStatus::Failed, 3), "{:?}", end.last_error);
    assert_eq!(tree(&bench, run).agents[0].status, AgentStatus::Failed);
    bench.check();
}

#[test]
fn a_new_attempt_answers_from_records_where_no_files_are_needed() {
    let mut bench = Bench::new();
    script(&mut bench, |said| Does::exits(i32::from(said == "bad")));
    let none = StepPlan { files: Some(vec![]), ..once("none") };
    let spec = RunSpec { failure_mode: FailureMode::Retry, ..agents_spec() };
    let plans = Plans { agents: vec![one_task(vec![none, command("bad")])], ..Plans::default() };
    let run = submit(&mut bench, spec, plans);
    bench.advance(10 * MINUTE);
    assert_eq!((bench.run(run).status, bench.run(run).attempt), (RunStatus::Failed, 3));
    assert_eq!(said(&bench).iter().filter(|said| *said == "none").count(), 1);
    assert!(found(&bench, run, "none").replayed);
    bench.check();
}

#[test]
fn each_try_has_its_own_log_which_is_sealed_at_its_end() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let run = submit_agents(&mut bench, vec![one_task(vec![command("a")])]);
    bench.settle();
    let mut seen = Vec::new();
    for (number, text) in [(1, "first"), (2, "second")] {
        bench.advance(SECOND);
        let (job, step) = (running_job(&bench, run), found(&bench, run, "a"));
        assert_eq!(step.tries, number);
        let frame = Frame { stream: LogStream::Stdout, at: model::Timestamp(1), data: text.into() };
        let chunk = StepChunk { job: job.id, epoch: job.epoch, step: tries(&step), offset: 0, frames: vec![frame] };
        let taken = bench.report(job.instance.unwrap(), vec![], vec![chunk]).unwrap().unwrap();
        assert_eq!(taken.log_offsets[0].offset, text.len() as i64);
        let code = if number == 1 { None } else { Some(0) };
        let reason = if number == 1 { JobReason::MaxDuration } else { JobReason::DoneByRunner };
        bench.command_ends(tries(&step), ended(reason, code, text.len() as i64, 5));
        let log = LogId::Step(tries(&step));
        let page = now(bench.engine.logs.read(log, 0, 1000)).unwrap();
        assert!(page.done, "sealed: {page:?}");
        seen.push(String::from_utf8(page.frames[0].frame.data.clone()).unwrap());
    }
    assert_eq!(seen, ["first", "second"]);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    bench.check();
}

#[test]
fn a_plan_with_commands_needs_machines_that_exist() {
    let bench = Bench::with(settings(1), Config::default());
    let refused = |agents: Vec<AgentPlan>| {
        let plans = Plans { agents, ..Plans::default() };
        let submission =
            engine::run::Submission { org: bench.org, by: None, name: None, spec: agents_spec(), plans, start: true };
        now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap_err().to_string()
    };
    assert!(refused(vec![agent("one", vec![task("all", vec![command("a")])])]).contains("no machine"));
    let of = |machine| AgentPlan { machine: Some(machine), ..one_task(vec![command("a")]) };
    let nowhere = MachinePlan { provider: Some("nowhere".into()), ..MachinePlan::default() };
    assert!(refused(vec![of(nowhere)]).contains("nowhere"));
    let env = MachinePlan { env: [("A".to_owned(), json!(["x"]))].into(), ..MachinePlan::default() };
    assert!(refused(vec![of(env)]).contains("agents.one.env"));
}

/// Whichever write of the control plane is the last before it dies, and whether that write was committed or not.
#[test]
fn a_crash_at_any_write_repeats_no_command_that_must_not_be() {
    let life = |bench: &mut Bench| {
        let steps = vec![once("a"), call("x"), StepPlan { files: Some(vec![]), ..once("b") }];
        let run = submit_agents(bench, vec![one_task(steps)]);
        bench.advance(5 * MINUTE);
        run
    };
    around_every_write(life, |bench, run, place| {
        assert_eq!(bench.run(run).status, RunStatus::Completed, "{place}");
        assert_eq!(said(bench), ["a", "b"], "{place}");
        bench.check();
    });
}

/// The command of this step ends well, with an output that its machine uploads before it reports it.
pub fn ends_with_upload(bench: &mut Bench, run: RunId, name: &str, text: &str) {
    let (job, step) = (running_job(bench, run), tries(&found(bench, run, name)));
    let path = format!(".repl/output/{step}.json");
    let artifact = artifacts::announce(bench, &job, &path, text.len() as i64, artifacts::FILE).unwrap();
    artifacts::upload(bench, &artifact, text.as_bytes()).unwrap();
    let mut end = ended(JobReason::DoneByRunner, Some(0), 0, 5);
    if let What::Ended { output, .. } = &mut end {
        *output = Some(Output::Artifact { path, size: text.len() as i64 });
    }
    bench.command_ends(step, end);
}

#[test]
fn a_large_output_is_read_from_where_it_was_uploaded() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let run = submit_agents(&mut bench, vec![one_task(vec![command("a")])]);
    bench.settle();
    ends_with_upload(&mut bench, run, "a", &format!("\"{}\"", "x".repeat(100_000)));
    assert_eq!(bench.run(run).status, RunStatus::Completed, "{:?}", bench.run(run).last_error);
    assert_eq!(output(&bench, &found(&bench, run, "a")).as_str().unwrap().len(), 100_000);
}

/// The end of this agent takes more than one commit. The run's item, which goes on with it, leaves alone what stands still beside it.
#[test]
fn a_run_stays_paused_while_an_agent_of_it_ends_in_chunks() {
    let mut bench = Bench::new();
    script(&mut bench, |_| Does::Runs);
    let asked = StepPlan { policy: Some(Policy::Ask), ..call("x") };
    let rest = (0..CHUNK + 50).map(|n| task(&format!("t{n}"), vec![call("y")]));
    let ends = agent("ends", std::iter::once(task("asked", vec![asked])).chain(rest).collect());
    let spec = RunSpec { failure_mode: FailureMode::Continue, ..agents_spec() };
    let run = submit(&mut bench, spec, Plans { agents: vec![ends, one_task(vec![command("a")])], ..Plans::default() });
    bench.settle();
    bench.act(run, Action::Pause).unwrap();
    bench.settle();
    let still = |bench: &Bench| (bench.run(run).status, bench.job(run).freeze);
    assert_eq!(still(&bench), (RunStatus::Paused, FreezeState::Frozen));
    answer_first(&mut bench, false);
    let agents = || tree(&bench, run).agents.iter().map(|agent| agent.status).collect::<Vec<_>>();
    assert_eq!(agents(), [AgentStatus::Completed, AgentStatus::Paused], "without the task that was refused");
    assert_eq!(still(&bench), (RunStatus::Paused, FreezeState::Frozen));
    bench.check();
    bench.act(run, Action::Resume).unwrap();
    bench.settle();
    assert_eq!(still(&bench), (RunStatus::Running, FreezeState::Moving));
    bench.check();
}
