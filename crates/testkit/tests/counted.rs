//! What the end of one step costs SQLite in a short run and in a very long one, and what a cancel of the long one writes: counted by
//! SQLite, never timed. The rows are the engine's own, made by working through the plans with a tool in memory.

use adapters::FakeTool;
use adapters::tool::fake::Fate;
use engine::adapters::FakeProvider;
use engine::adapters::fake::{FakeSettings, Fate as MachineFate};
use engine::run::{Action, Plans, Render, Submission};
use engine::{Config, Engine, EngineContext, Presence, Provider};
use model::plan::{AgentPlan, RunPlan, StepPlan, TaskPlan};
use model::recovery::ErrorClass;
use model::run::{Run, RunReason, RunStatus};
use model::spec::{FailureMode, PlanRules, RunSpec};
use model::step::ToolKind;
use model::time::HOUR;
use model::{Credits, Effect, OrgId, RunId};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use store::{Database, Installation, Options, Store, WorkClass, Worker};
use testkit::bare::{self, Cost, Plain, Recording, Said};
use tokio::sync::Notify;
use tokio::task::JoinSet;

const AGENTS: usize = 1_000;
const TASKS: usize = 20;
const STEPS: usize = 5;
/// Rows of agents, tasks and steps that one commit may change, besides those above them.
const CHUNK: usize = 200;

struct Never;

impl engine::Timer for Never {
    fn after(&self, _: i64) -> engine::TimerFuture {
        Box::pin(std::future::pending())
    }
}

/// A control plane without machines over a SQLite file, whose statements are recorded.
struct ControlPlane {
    engine: Engine,
    worker: Worker,
    org: OrgId,
    tool: Arc<FakeTool>,
    /// A call waits for its answer.
    called: Arc<Notify>,
    recording: Arc<Recording>,
    folder: tempfile::TempDir,
    holders: JoinSet<()>,
}

impl ControlPlane {
    async fn open() -> ControlPlane {
        let folder = tempfile::tempdir().unwrap();
        let recording = Arc::new(Recording::default());
        let options = Options {
            recorder: Some(recording.clone().recorder()),
            lease_ms: HOUR,
            ..Options::new(Database::File(folder.path().join("plane.db")))
        };
        let called = Arc::new(Notify::new());
        let waits = called.clone();
        let tool = Arc::new(FakeTool::new(Box::new(move |call, _| {
            if call.input["fails"] == true {
                return Fate::fail(ErrorClass::Permanent, Effect::Done);
            }
            if call.input["plans"] == true {
                let step = json!({ "http": { "url": "https://works.example/" } });
                return Fate::answer(json!({ "agents": [{ "name": "one", "tasks": [{ "steps": [step] }] }] }));
            }
            if call.input["waits"] != true {
                return Fate::answer(json!({}));
            }
            waits.notify_one();
            Fate::hang()
        })));
        let provider = FakeProvider::new(FakeSettings::default(), Box::new(|_, _| MachineFate::Obey));
        let mut config = Config::default();
        config.money.first_topup = Credits(1_000_000_000_000_000);
        // All steps of an agent may be under way at once here, more than one agent gets by default.
        config.worker.agent_steps = (TASKS * STEPS) as i64;
        let store = Store::open(&options).unwrap();
        let context = EngineContext {
            config,
            installation: Installation::new("t3stt3st", [7; 32]),
            providers: BTreeMap::from([("fake".to_owned(), Arc::new(provider) as Arc<dyn Provider>)]).into(),
            tools: BTreeMap::from([(ToolKind::Http, tool.clone() as Arc<dyn engine::Tool>)]),
            models: Default::default(),
            control_urls: engine::ControlUrls::only("test:"),
            control_ca: None,
            presence: Presence::alone(),
            blob_source: store.blobs().source(),
            timer: Arc::new(Never),
        };
        let engine = Engine::new(context, store).unwrap();
        let org = engine.ensure_org("test").await.unwrap();
        let worker = engine.start_worker("one".to_owned()).await.unwrap();
        engine.beat(&worker).await.unwrap();
        ControlPlane { engine, worker, org, tool, called, recording, folder, holders: JoinSet::new() }
    }

    async fn submit(&self, agents: Vec<AgentPlan>, max_agents: i64) -> RunId {
        let plans = Plans { agents, ..Plans::default() };
        self.submit_plans(plans, PlanRules { max_agents, ..PlanRules::default() }, FailureMode::FailFast).await
    }

    async fn submit_plans(&self, plans: Plans, rules: PlanRules, mode: FailureMode) -> RunId {
        let mut spec: RunSpec = serde_json::from_value(json!({
            "kind": "agents", "command": { "argv": [] }, "provider": "fake", "region": "here", "stop_duration_ms": 0,
            "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast", "nodes": 1, "resources": {},
        }))
        .unwrap();
        (spec.plan, spec.failure_mode) = (rules, mode);
        let render: Render = Arc::new(|snapshot| snapshot.run.id.to_string().into_bytes());
        let submission = Submission { org: self.org, by: None, name: None, spec, plans, start: true };
        let answer = self.engine.submit(submission, None, render).await.unwrap();
        String::from_utf8(answer.body).unwrap().parse().unwrap()
    }

    async fn run(&self, run: RunId) -> Run {
        self.engine.snapshot(self.org, run).await.unwrap().run
    }

    /// Claims one item of each class and works on it; false if nothing is due. Agents' items are worked on beside the others.
    async fn work_once(&mut self) -> bool {
        let mut worked = false;
        for class in WorkClass::ALL {
            for item in self.engine.claim(&self.worker, class, 1).await.unwrap() {
                let engine = self.engine.clone();
                match class {
                    WorkClass::Control => engine.work_on(item).await,
                    WorkClass::Act | WorkClass::Link => {
                        drop(self.holders.spawn(async move { engine.work_on(item).await }))
                    }
                }
                worked = true;
            }
        }
        worked
    }

    /// Works until this run has ended.
    async fn work_until_ended(&mut self, run: RunId) -> Run {
        loop {
            while self.work_once().await {}
            let seen = self.run(run).await;
            if seen.status.is_end() {
                return seen;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Works until so many calls wait for their answers and nothing else is to be done.
    async fn work_until_waiting(&mut self, calls: usize) {
        let mut hints = self.engine.store.hints();
        while self.tool.hanging().len() != calls || self.work_once().await {
            self.recording.take(); // nothing here is measured
            while self.work_once().await {}
            if self.tool.hanging().len() == calls {
                continue;
            }
            tokio::select! {
                _ = hints.recv() => {}
                () = self.called.notified() => {}
                _ = self.holders.join_next() => {}
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Answers the waiting call of this run, and returns the commits until its next call waits.
    async fn answer(&mut self, of: &str) -> Vec<Said> {
        self.recording.take();
        let mut waiting = self.tool.hanging().into_iter();
        let call = waiting.find(|call| call.input["of"] == of).unwrap_or_else(|| panic!("no call of {of} waits"));
        assert!(self.tool.tell(call.number, Fate::answer(json!({}))));
        while self.tool.hanging().iter().all(|other| other.input["of"] != of || other.number == call.number) {
            self.called.notified().await;
        }
        let commits = self.recording.take().into_iter();
        commits.filter(|said| said.name == "agent.advance").collect()
    }

    /// What the end of a step costs, with which the next step of its task begins: the least of several, because now and then a commit
    /// finds a page full and splits it.
    async fn cost_of_an_end(&mut self, of: &str) -> Cost {
        let (from, to) = (self.path("plane.db"), self.path(of));
        bare::copy(&from, &to).unwrap();
        let mut costs = Vec::new();
        for _ in 1..STEPS {
            let commits = self.answer(of).await;
            assert_eq!(commits.len(), 1, "the end of a step and the beginning of the next are one commit");
            costs.push(Plain::open(&to).unwrap().cost(&commits[0]).unwrap());
        }
        least(&costs)
    }

    /// What the end of a task costs, with which the next task of its agent begins.
    async fn cost_of_a_begin(&mut self, of: &str) -> Cost {
        let (from, to) = (self.path("plane.db"), self.path(of));
        bare::copy(&from, &to).unwrap();
        let mut costs = Vec::new();
        for _ in 1..STEPS {
            let commits = self.answer(of).await;
            let each = commits.iter().map(|said| Plain::open(&to).unwrap().cost(said).unwrap());
            costs.push(each.fold(Cost::default(), |sum, cost| Cost {
                vm_steps: sum.vm_steps + cost.vm_steps,
                bytes_read: sum.bytes_read + cost.bytes_read,
                bytes_written: sum.bytes_written + cost.bytes_written,
            }));
        }
        least(&costs)
    }
}

fn least(costs: &[Cost]) -> Cost {
    let least = |of: fn(&Cost) -> i64| costs.iter().map(of).min().unwrap_or_default();
    Cost {
        vm_steps: least(|cost| cost.vm_steps),
        bytes_read: least(|cost| cost.bytes_read),
        bytes_written: least(|cost| cost.bytes_written),
    }
}

/// How many rows of agents, tasks and steps each commit has changed.
fn changes(commits: &[Said]) -> Vec<usize> {
    let changed = |text: &str| ["UPDATE agents", "UPDATE tasks", "UPDATE steps"].iter().any(|it| text.starts_with(it));
    let of = |said: &Said| said.statements.iter().filter(|statement| changed(&statement.text)).count();
    commits.iter().map(of).collect()
}

fn steps(count: usize, of: &str, waits: bool) -> Vec<StepPlan> {
    let step = |n: usize| StepPlan {
        input: json!({ "of": of, "waits": waits }),
        ..StepPlan::new(&format!("step-{n}"), ToolKind::Http)
    };
    (0..count).map(step).collect()
}

/// One task after the other, one step after the other; in the first task the tool waits.
fn slow_agent(tasks: usize, of: &str) -> AgentPlan {
    let task = |n: usize| TaskPlan::new(&format!("task-{n}"), steps(STEPS, of, n == 0));
    AgentPlan::new("slow", (0..tasks).map(task).collect())
}

/// Everything at once.
fn fast_agent(n: usize, waits: bool) -> AgentPlan {
    let task =
        |n: usize| TaskPlan { parallel: STEPS as i64, ..TaskPlan::new(&format!("task-{n}"), steps(STEPS, "", waits)) };
    let agent = AgentPlan::new(&format!("agent-{n}"), (0..TASKS).map(task).collect());
    AgentPlan { parallel: TASKS as i64, ..agent }
}

/// The same within a tenth.
fn is_alike(small: i64, large: i64) -> bool {
    (large - small).abs() * 10 <= small
}

#[test]
fn the_end_of_a_step_costs_the_same_in_a_run_of_ten_steps_and_of_a_hundred_thousand() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut plane = ControlPlane::open().await;
        let mut agents: Vec<AgentPlan> = (1..AGENTS).map(|n| fast_agent(n, false)).collect();
        agents.push(slow_agent(TASKS, "large"));
        let large = plane.submit(agents, 1).await;
        plane.work_until_waiting(1).await;
        // Its rows lie beside those of the large run's last agent, so that both are in pages as full and as deep.
        let small = plane.submit(vec![slow_agent(2, "small")], 1).await;
        plane.work_until_waiting(2).await;
        let made = plane.run(large).await;
        assert_eq!((made.agent_count, made.task_count), (AGENTS as i64, (AGENTS * TASKS) as i64));
        assert_eq!(
            made.step_count,
            ((AGENTS - 1) * TASKS * STEPS + STEPS) as i64,
            "the last agent is in its first task"
        );
        assert_eq!(plane.run(small).await.step_count, 5);

        let (short, long) = (plane.cost_of_an_end("small").await, plane.cost_of_an_end("large").await);
        let alike = [
            is_alike(short.vm_steps, long.vm_steps),
            is_alike(short.bytes_read, long.bytes_read),
            is_alike(short.bytes_written, long.bytes_written),
        ];
        assert_eq!(alike, [true; 3], "10 steps: {short:?}, 100,000 steps: {long:?}");
    });
}

/// What readers ask of a run that has ended, and what a planner is told of a plan that failed: counted in a run, and in one with three times
/// as many agents, tasks and steps.
#[test]
fn what_is_read_of_a_run_does_not_grow_with_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut plane = ControlPlane::open().await;
        let (few, many) = (reads(&mut plane, 1).await, reads(&mut plane, 3).await);
        assert_eq!(few.len(), 3);
        for ((name, few), (_, many)) in few.iter().zip(&many) {
            assert!(few.vm_steps > 0 && is_alike(few.vm_steps, many.vm_steps), "{name}: {few:?}, {many:?}");
        }
    });
}

async fn reads(plane: &mut ControlPlane, times: usize) -> Vec<(&'static str, Cost)> {
    let wide = |n: usize| {
        let tasks = (0..TASKS).map(|n| TaskPlan::new(&format!("task-{n}"), steps(STEPS, "", false)));
        AgentPlan { parallel: TASKS as i64, ..AgentPlan::new(&format!("agent-{n}"), tasks.collect()) }
    };
    let first = AgentPlan::new("first", vec![TaskPlan::new("t", vec![StepPlan::new("s", ToolKind::Http)])]);
    let agents = std::iter::once(first).chain((0..60 * times).map(wide)).collect();
    let output = Some(json!("${{ agents.first.tasks.t.steps.s.output }}"));
    let plans = Plans { agents, shared: RunPlan { output, ..RunPlan::default() }, ..Plans::default() };
    let run = plane.submit_plans(plans, PlanRules::default(), FailureMode::FailFast).await;
    let ended = plane.work_until_ended(run).await;
    assert_eq!(ended.status, RunStatus::Completed);
    plane.recording.take();
    let values = plane.engine.run_values(plane.org, run).await.unwrap();
    assert_eq!((values.output, values.output_error), (Some(json!({})), None));
    plane.engine.step_logs_are_kept(&ended).await.unwrap();
    let mut said = plane.recording.take();
    // An agent of which much has finished fails in its last task, and a planner is asked.
    let mut tasks: Vec<TaskPlan> =
        (0..60 * times).map(|n| TaskPlan::new(&format!("task-{n}"), steps(STEPS, "", false))).collect();
    let bad = StepPlan { input: json!({ "fails": true }), ..StepPlan::new("bad", ToolKind::Http) };
    tasks.push(TaskPlan::new("last", vec![bad]));
    let planner = AgentPlan::new("planner", vec![TaskPlan::new("plan", vec![StepPlan::new("plan", ToolKind::Http)])]);
    let shared = RunPlan { document: Some(json!({ "type": "agents" })), ..RunPlan::default() };
    let agents = vec![AgentPlan::new("long", tasks)];
    let plans = Plans { agents, shared, planner: Some(planner), ..Plans::default() };
    let rules = PlanRules { replans: 1, ..PlanRules::default() };
    let run = plane.submit_plans(plans, rules, FailureMode::Continue).await;
    let ended = plane.work_until_ended(run).await;
    assert_eq!(ended.termination.unwrap().reason, RunReason::PlannerFailed, "its plan is none");
    let planned = plane.recording.take().into_iter().filter(|said| said.name == "agent.plan");
    said.extend(planned.max_by_key(|said| said.statements.len()));
    let (from, to) = (plane.path("plane.db"), plane.path(&format!("read-{times}.db")));
    bare::copy(&from, &to).unwrap();
    let mut plain = Plain::open(&to).unwrap();
    let meant = said.into_iter().filter(|said| ["run.values", "log.steps", "agent.plan"].contains(&said.name));
    meant.map(|said| (said.name, plain.cost(&said).unwrap())).collect()
}

/// A run of which a thousand agents, two hundred tasks and a thousand calls are open.
#[test]
fn a_cancel_of_a_thousand_agents_changes_few_rows_a_commit_and_other_runs_are_served_meanwhile() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(cancelled());
}

async fn cancelled() {
    const AT_ONCE: usize = 10;
    let mut plane = ControlPlane::open().await;
    let agents = (0..AGENTS).map(|n| fast_agent(n, true)).collect();
    let run = plane.submit(agents, AT_ONCE as i64).await;
    plane.work_until_waiting(AT_ONCE * TASKS * STEPS).await;
    plane.recording.take();
    let render: Render = Arc::new(|_| Vec::new());
    plane.engine.act_on(plane.org, run, Action::Cancel { abort: false }, None, render).await.unwrap();
    let other = plane.submit(vec![AgentPlan::new("other", vec![TaskPlan::new("main", steps(1, "", false))])], 1).await;
    let mut open_when_the_other_ended = None;
    while !plane.run(run).await.status.is_end() {
        plane.work_once().await;
        tokio::task::yield_now().await;
        if open_when_the_other_ended.is_none() && plane.run(other).await.status.is_end() {
            open_when_the_other_ended = Some(!plane.run(run).await.status.is_end());
        }
    }
    assert_eq!(plane.run(run).await.status, RunStatus::Cancelled);
    assert_eq!(open_when_the_other_ended, Some(true), "other runs are served while the cancel goes on");
    let commits = changes(&plane.recording.take());
    let most = commits.iter().copied().max().unwrap_or_default();
    assert!((1..=CHUNK).contains(&most), "{most} rows in one commit");
    // What was open when it was cancelled: its agents, the tasks of those that had begun, and their calls.
    let open = AGENTS + AT_ONCE * TASKS + AT_ONCE * TASKS * STEPS;
    let changed: usize = commits.iter().sum();
    assert!(changed >= open, "only {changed} changes of rows are seen, and {open} rows had to change");
    let changing = commits.iter().filter(|rows| **rows > 0).count();
    assert!(changing >= changed.div_ceil(CHUNK), "{changed} changes in {changing} commits");
}

/// One task after the other, each of one step; the tool waits in the first ones.
fn long_agent(tasks: usize, of: &str) -> AgentPlan {
    let task = |n: usize| TaskPlan::new(&format!("task-{n}"), steps(1, of, n <= STEPS));
    AgentPlan::new("long", (0..tasks).map(task).collect())
}

#[test]
fn the_beginning_of_a_task_costs_the_same_in_an_agent_of_ten_tasks_and_of_a_thousand() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut plane = ControlPlane::open().await;
        plane.submit(vec![long_agent(1_000, "many")], 1).await;
        plane.work_until_waiting(1).await;
        plane.submit(vec![long_agent(10, "few")], 1).await;
        plane.work_until_waiting(2).await;
        let (few, many) = (plane.cost_of_a_begin("few").await, plane.cost_of_a_begin("many").await);
        let alike = [
            is_alike(few.vm_steps, many.vm_steps),
            is_alike(few.bytes_read, many.bytes_read),
            is_alike(few.bytes_written, many.bytes_written),
        ];
        assert_eq!(alike, [true; 3], "10 tasks: {few:?}, 1,000 tasks: {many:?}");
    });
}
