//! A submission of `type: agents`: its plan is checked whole, compiled, and completed by what the request says beside it.

use engine::EngineContext;
use engine::plan::AgentsMachine;
use engine::run::{Plans, Submission};
use model::plan::{AgentPlan, PlannerPlan, RunPlan, StepPlan, TaskPlan, Totals};
use model::refused::BadPlan;
use model::spec::{Command, OnLostControl, PlanRules, Priority, Retry, RetryEvent, RunKind, RunSpec};
use model::step::ToolKind;
use model::tree::TreeRef;
use model::{Credits, OrgId, Refused};
use plan::{Compiled, Prices};
use serde_json::Value;
use wire::api::{AgentsMachinePlan, AgentsPlan, Submit};

/// A submission, and what a dry run says of it.
pub(crate) struct Asked {
    pub(crate) submission: Submission,
    pub(crate) estimate: Credits,
    pub(crate) warnings: Vec<String>,
}

pub(crate) fn submission(context: &EngineContext, org: OrgId, body: Submit) -> Result<Asked, Refused> {
    only_what_agents_take(&body)?;
    let Some(document) = &body.plan else {
        return Err(Refused::invalid("plan", "a run of `type: agents` needs one: see `repl schema agents`"));
    };
    let checked = plan::check(document).map_err(refused)?;
    let compiled = plan::with_inputs(plan::compile(&checked.document)).map_err(|problem| refused(vec![problem]))?;
    check_places(context, &compiled)?;
    check_models(context, &compiled)?;
    let budget = match &body.budget {
        Some(text) => Some(text.parse::<Credits>().map_err(|e| Refused::invalid("budget", e.to_string()))?),
        None => compiled.budget,
    };
    let priority = match &body.priority {
        Some(word) => {
            word.parse().map_err(|e: model::string_enum::UnknownWord| Refused::invalid("priority", e.to_string()))?
        }
        None => compiled.priority.unwrap_or(Priority::Normal),
    };
    let estimate = plan::estimate(&Compiled { budget, ..compiled.clone() }, &prices(context));
    let spec = RunSpec {
        budget,
        priority,
        max_duration_ms: Some(body.max_duration_ms.unwrap_or(compiled.max_duration_ms)),
        files: body.files.map(|files| TreeRef { hash: files.tree, files: files.files, bytes: files.bytes }),
        ..spec(context, &compiled, estimate)?
    };
    spec.check()?;
    let name = body.name.or(compiled.name.clone());
    let warnings = checked.warnings.iter().map(ToString::to_string).collect();
    let submission = Submission { org, by: None, name, spec, plans: plans(compiled, document), start: body.start };
    Ok(Asked { submission, estimate, warnings })
}

fn refused(problems: Vec<plan::Problem>) -> Refused {
    let problems = problems.into_iter();
    let one = |problem: plan::Problem| BadPlan { path: problem.path, detail: problem.why, fix: problem.hint };
    Refused::InvalidPlan { problems: problems.map(one).collect() }
}

/// What a plain task says in the request itself is said in the plan here, or is not for agents.
fn only_what_agents_take(body: &Submit) -> Result<(), Refused> {
    let in_plan = [
        ("commands", !body.commands.is_empty()),
        ("argv", !body.argv.is_empty()),
        ("env", !body.env.is_empty()),
        ("secrets", !body.secrets.is_empty()),
        ("working_dir", body.working_dir.is_some()),
        ("resources", body.resources != Default::default()),
        ("provider", body.provider.is_some()),
        ("spot", body.spot),
        ("region", body.region.is_some()),
        ("retry", body.retry.is_some()),
        ("sandbox", body.sandbox.is_some()),
    ];
    let of_tasks = [
        ("stdin", body.stdin.is_some()),
        ("providers", !body.providers.is_empty()),
        ("unasked", !body.unasked.is_empty()),
        ("stop_duration_ms", body.stop_duration_ms.is_some()),
        ("hold_ms", body.hold_ms.is_some()),
        ("artifacts", !body.artifacts.is_empty()),
        ("merge", body.merge),
        ("init", body.init.is_some()),
        ("features", !body.features.is_empty()),
        ("snapshot", body.snapshot.is_some()),
        ("step", body.step.is_some()),
        ("save_snapshot", body.save_snapshot),
        ("on_lost_control", body.on_lost_control.is_some()),
    ];
    let said = |fields: &[(&'static str, bool)]| fields.iter().find(|(_, there)| *there).map(|(field, _)| *field);
    if let Some(field) = said(&in_plan) {
        return Err(Refused::invalid(field, "a run of `type: agents` says it in its plan: see `repl schema agents`"));
    }
    match said(&of_tasks) {
        Some(field) => Err(Refused::invalid(field, "is not for runs of `type: agents`")),
        None => Ok(()),
    }
}

/// Providers and regions that agents name exist here.
fn check_places(context: &EngineContext, compiled: &Compiled) -> Result<(), Refused> {
    for agent in &compiled.agents {
        let Some(machine) = &agent.machine else { continue };
        let name = machine.provider.as_deref().unwrap_or(DEFAULT_PROVIDER);
        let at = |field: &str| format!("plan.agents.{}.{field}", agent.name);
        let regions =
            context.provider(name).map_err(|refused| Refused::invalid(at("provider"), refused.to_string()))?;
        let regions = regions.capabilities().regions;
        if let Some(region) = machine.region.as_ref().filter(|region| !regions.contains(region)) {
            let why = format!("`{region}` is not a region of {name}: choose one of {}", regions.join(", "));
            return Err(Refused::invalid(at("region"), why));
        }
    }
    Ok(())
}

const DEFAULT_PROVIDER: &str = "local";

/// Models that steps name are in the settings.
fn check_models(context: &EngineContext, compiled: &Compiled) -> Result<(), Refused> {
    let planner = compiled.planner.iter().filter(|planner| planner.tool == ToolKind::Llm).map(|planner| &planner.input);
    let steps = compiled.agents.iter().flat_map(|agent| &agent.tasks).flat_map(|task| &task.steps);
    let steps = steps.filter(|step| step.tool == ToolKind::Llm).map(|step| &step.input);
    for input in planner.chain(steps) {
        let model = input["model"].as_str().unwrap_or("default");
        context.models.find(model).map_err(|why| Refused::invalid("plan.model", why))?;
    }
    Ok(())
}

/// Credits per 1,000 tokens of each model, the dearer of input and output, and per call of each kind of tool.
pub(crate) fn prices(context: &EngineContext) -> Prices {
    let mut prices = Prices { tools: context.config.tool_prices.all().clone(), ..Prices::default() };
    for (name, settings) in &context.models.0 {
        for (model, limits) in &settings.models {
            let dearest = limits.input_price.into_iter().chain(limits.output_price).max();
            let per_thousand = dearest.map(|price| Credits((price.micro() + 999) / 1_000));
            for alias in [name.clone(), format!("{name}/{model}"), model.clone()] {
                prices.models.extend(per_thousand.map(|price| (alias, price)));
            }
        }
    }
    prices
}

fn spec(context: &EngineContext, compiled: &Compiled, estimate: Credits) -> Result<RunSpec, Refused> {
    let capabilities = context.provider(DEFAULT_PROVIDER)?.capabilities();
    let with_machines = compiled.agents.iter().filter(|agent| agent.machine.is_some()).count() as i64;
    let machines = with_machines.min(compiled.rules.max_agents);
    let retry = Retry {
        max_attempts: compiled.max_attempts,
        on_events: vec![RetryEvent::NoCapacity, RetryEvent::Interruption],
        duration_ms: None,
        delay_ms: None,
    };
    let region = capabilities.regions.first().map_or(DEFAULT_PROVIDER, String::as_str);
    Ok(RunSpec {
        kind: RunKind::Agents,
        retry: Some(retry),
        sandbox: compiled.sandbox,
        on_lost_control: OnLostControl::Stop,
        failure_mode: compiled.failure_mode,
        plan: PlanRules { estimate, machines, goal: compiled.agents.is_empty(), ..compiled.rules },
        ..RunSpec::task(Command::Argv(Vec::new()), DEFAULT_PROVIDER, region)
    })
}

fn plans(compiled: Compiled, document: &Value) -> Plans {
    let planner = compiled.planner.as_ref().map(planning_agent);
    let shared = RunPlan {
        inputs: compiled.inputs,
        goal: compiled.goal,
        output: compiled.output,
        tools: compiled.tools,
        max_tokens: compiled.max_tokens,
        document: planner.is_some().then(|| document.clone()),
    };
    Plans { shared, agents: compiled.agents, planner, document: Some(document.clone()) }
}

/// The planner is an agent with one task and one step.
fn planning_agent(planner: &PlannerPlan) -> AgentPlan {
    let mut step = StepPlan { idempotent: true, input: planner.input.clone(), ..StepPlan::new("plan", planner.tool) };
    if let Some(timeout_ms) = planner.timeout_ms {
        step.timeout_ms = timeout_ms;
    } else if planner.tool == ToolKind::Llm {
        step.timeout_ms = model::plan::LLM_TURN_TIMEOUT_MS;
    }
    let mut agent = AgentPlan::new("planner", vec![TaskPlan::new("plan", vec![step])]);
    agent.machine = planner.machine.clone();
    agent
}

pub(crate) fn dry_run(asked: &Asked, available: Credits, machines: &[AgentsMachine]) -> AgentsPlan {
    let planned = Totals::of(&asked.submission.plans.agents);
    AgentsPlan {
        dry_run: true,
        planned_agents: planned.agents,
        planned_tasks: planned.tasks,
        planned_steps: planned.steps,
        estimate: asked.estimate.to_string(),
        estimate_micro: asked.estimate.micro(),
        credits_available: available.to_string(),
        credits_available_micro: available.micro(),
        warnings: asked.warnings.clone(),
        machines: machines.iter().map(machine).collect(),
    }
}

fn machine(found: &AgentsMachine) -> AgentsMachinePlan {
    let plan = crate::view::plan(&found.spec, &found.plan);
    AgentsMachinePlan {
        agents: found.agents.clone(),
        provider: plan.provider,
        region: plan.region,
        pool: plan.pool,
        machine: plan.machine,
        machine_size: plan.machine_size,
        warm: plan.warm,
        placement: plan.placement,
        limits: plan.limits,
        price_per_hour: plan.price_per_hour,
        price_per_hour_micro: plan.price_per_hour_micro,
    }
}
