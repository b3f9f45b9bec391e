//! What the plan of a planner may ask for: what its run's file allows, and what there is here. The planner is told the same before it
//! answers. Writes nothing.

use crate::EngineContext;
use crate::choice::org_name;
use crate::run::check_variables;
use model::offer::Asked;
use model::plan::{AGENTS_IN_ALL, AgentPlan, MachinePlan};
use model::run::Run;
use model::spec::{Resources, RunTerms};
use model::step::ToolKind;
use model::{Failure, Refused};
use plan::{Document, MAX_PROBLEMS, Problem};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::Tx;

/// Why an answer of a planner cannot be used, if it cannot.
pub(crate) type PlanProblem = Box<dyn Fn(&Value) -> Option<String> + Send + Sync>;

/// By what the answer of a planner is checked: when it comes, and again when it is carried out. The run gets no other agents while its planner
/// works, so only a change of the settings in between makes a difference.
#[derive(Clone)]
pub(crate) struct PlanLimits {
    pub(crate) document: Value,
    /// Agents that the run may have in all, the planner and those of earlier plans included.
    pub(crate) most: i64,
    /// How many of them the run does not have yet.
    pub(crate) room: i64,
    pub(crate) spec: RunTerms,
    /// The name by which the settings of providers know the run's org.
    pub(crate) org: String,
}

impl PlanLimits {
    /// `document`: of the run's file. A run without one has no planner.
    pub(crate) fn of(
        tx: &mut Tx,
        context: &EngineContext,
        run: &Run,
        document: Option<Value>,
    ) -> Result<Option<PlanLimits>, Failure> {
        let Some(document) = document else { return Ok(None) };
        let most = AGENTS_IN_ALL * run.spec.plan.max_agents;
        let org = org_name(tx, context, run.org)?;
        Ok(Some(PlanLimits { document, most, room: most - run.agent_count, spec: run.spec.clone(), org }))
    }

    /// The agents of a plan, checked as those of a file are. The error is a text that a model can act on.
    pub(crate) fn planned(&self, context: &EngineContext, source: &Value) -> Result<Vec<AgentPlan>, String> {
        let file = self.file()?;
        let agents = self.allowed(&file, source)?;
        let mut problems = agents.iter().flat_map(|agent| self.not_here(context, &file, agent));
        let first: Vec<String> = problems.by_ref().take(MAX_PROBLEMS).collect();
        if first.is_empty() { Ok(agents) } else { Err(first.join("; ")) }
    }

    fn file(&self) -> Result<Document, String> {
        Ok(plan::check(&self.document).map_err(said)?.document)
    }

    /// What can be said of a plan by its file alone.
    pub(crate) fn allowed(&self, file: &Document, source: &Value) -> Result<Vec<AgentPlan>, String> {
        let agents = plan::check_planned(source, file).map_err(said)?;
        let (asked, PlanLimits { most, room, .. }) = (agents.len() as i64, self);
        if asked > *room {
            let room = room.max(&0);
            return Err(format!(
                "with its {asked} agents the run would have more than {most} agents: it may have {room}"
            ));
        }
        plan::compile_planned(&agents, file).map_err(|problem| problem.to_string())
    }

    /// What this agent asks for and cannot have here.
    fn not_here(&self, context: &EngineContext, file: &Document, agent: &AgentPlan) -> Vec<String> {
        let at = |why: &dyn std::fmt::Display| format!("agents.{}: {why}", agent.name);
        let mut problems = Vec::new();
        if let Some(machine) = &agent.machine {
            problems.extend(self.check_place(context, file, machine).err().map(|refused| at(&refused)));
            problems.extend(check_variables(&BTreeMap::new(), agent, machine).err().map(|refused| refused.to_string()));
        }
        problems.extend(context.check_calls(std::iter::once(agent)).err().map(|refused| at(&refused)));
        for step in agent.tasks.iter().flat_map(|task| &task.steps).filter(|step| step.tool == ToolKind::Llm) {
            let unknown = context.models.find(step.input["model"].as_str().unwrap_or("default")).err();
            problems.extend(unknown.map(|why| at(&format!("step {}: {why}", step.name))));
        }
        problems
    }

    /// A provider that bills is taken only if the run's author has named it, and a machine only if there are such machines.
    fn check_place(&self, context: &EngineContext, file: &Document, machine: &MachinePlan) -> Result<(), Refused> {
        let provider = machine.provider.as_ref().unwrap_or(&self.spec.provider);
        if !self.may_take(context, file, provider)? {
            let all = context.providers.all();
            let may: Vec<&str> =
                all.keys().filter(|name| self.may_take(context, file, name) == Ok(true)).map(String::as_str).collect();
            let why =
                format!("`{provider}` bills, and the run's file does not name it: choose one of {}", may.join(", "));
            return Err(Refused::invalid("provider", why));
        }
        let region = match &machine.provider {
            None => Some(machine.region.as_ref().unwrap_or(&self.spec.region)),
            Some(_) => machine.region.as_ref(),
        };
        let asked = Asked {
            org: &self.org,
            resources: &machine.resources,
            sandbox: self.spec.sandbox.is_some(),
            platform: None,
            region: region.map(String::as_str),
            spot: machine.spot,
            providers: std::slice::from_ref(provider),
        };
        context.place_of(&asked).map(drop)
    }

    /// The run's own provider was checked when it was submitted.
    fn may_take(&self, context: &EngineContext, file: &Document, provider: &String) -> Result<bool, Refused> {
        let bills = context.provider(provider)?.capabilities().bills;
        let allowed = file.planner.as_ref().is_some_and(|planner| planner.allow_providers);
        let named = file.agents.iter().any(|agent| agent.provider.as_ref() == Some(provider));
        Ok(!bills || allowed || named || self.spec.provider == *provider || self.spec.providers.contains(provider))
    }

    /// The number of agents that the planner is told to keep to: those that may run at once, as far as there is room.
    pub(crate) fn told(&self, max_agents: i64) -> i64 {
        max_agents.min(self.room)
    }

    /// What a plan may use beside the file's tools, for the planner to read.
    pub(crate) fn may_use(&self, context: &EngineContext) -> Value {
        let Ok(file) = self.file() else { return Value::Null };
        let planner = file.planner.as_ref();
        let allowed = planner.map_or(&[][..], |planner| &planner.allow);
        let tools = [ToolKind::Llm, ToolKind::Approval, ToolKind::Wait].iter().chain(allowed);
        let tools: Vec<&str> = tools.map(|tool| tool.as_str()).collect();
        let providers = context.providers.all();
        let providers = providers.iter().filter(|(name, listing)| {
            let ours = listing.orgs.as_ref().is_none_or(|orgs| orgs.contains(&self.org));
            ours && !listing.leaving && self.may_take(context, &file, name) == Ok(true)
        });
        let providers: Vec<Value> =
            providers.map(|(name, listing)| self.described(name, &listing.provider.capabilities())).collect();
        let secrets = planner.is_some_and(|planner| planner.allow_secrets);
        json!({ "tools": tools, "models": context.models.names(), "providers": providers, "secrets": secrets })
    }

    fn described(&self, name: &String, capabilities: &adapters::provider::Capabilities) -> Value {
        let mut told = json!({ "name": name, "regions": capabilities.regions, "bills": capabilities.bills });
        if self.spec.provider == *name {
            told["default"] = true.into();
        }
        if capabilities.spot {
            told["spot"] = true.into();
        }
        if capabilities.largest != Resources::default() {
            told["largest"] = capabilities.largest.to_string().into();
        }
        if !capabilities.gpus.is_empty() {
            told["gpus"] = capabilities.gpus.iter().map(ToString::to_string).collect();
        }
        told
    }

    /// Why an answer of the planner cannot be used, if it cannot. It is asked again then, with this text.
    pub(crate) fn problem(&self, context: &EngineContext, answer: &Value) -> Option<String> {
        let why = self.planned(context, answer).err()?;
        Some(format!("its plan cannot be used: {why}"))
    }
}

fn said(problems: Vec<Problem>) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}
