//! The dry run of a submission: the same checks, placement and prices as for a real one, from the current rows. Writes nothing.

use crate::host::HostsNow;
use crate::run::{Plans, Submission, affordable, check_asked, check_secrets};
use crate::{Engine, EngineContext};
use model::host::{NotTaken, Wanted};
use model::offer::{Asked, Choice};
use model::pool::{Placement, Room, Wish};
use model::spec::{Resources, RetryEvent, RunSpec, RunTerms};
use model::time::HOUR;
use model::{Credits, Failure, InstanceId};
use store::Tx;

#[derive(Debug, Clone)]
pub struct Plan {
    pub placement: Place,
    /// What the machine has, or would have.
    pub size: Resources,
    pub room: Room,
    /// What would be tried, and who would not.
    pub choice: Choice,
    /// The host on which a new machine would be, where its provider has several; why the others would not be taken.
    pub host: Option<String>,
    pub other_hosts: Vec<(String, NotTaken)>,
    pub available: i64,
    pub waiting: i64,
    pub per_hour: Credits,
    pub reserved: Credits,
    pub most: Option<Credits>,
    pub balance: Credits,
    pub missing: Missing,
    /// Of a run with an init: whether its machine has it already.
    pub initialised: Option<bool>,
}

/// What has to be sent first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing {
    /// Its tree is not here as a whole.
    pub tree: bool,
    pub stdin: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On this machine, which is idle.
    Now(InstanceId),
    StartMachine,
    /// An idle machine that does not fit ends first.
    ReplaceMachine(InstanceId),
    Wait,
}

impl Engine {
    pub async fn plan(&self, submission: &Submission) -> Result<Plan, Failure> {
        check_asked(&self.context, submission)?;
        let (org, spec) = (submission.org, &submission.spec);
        let tree = spec.files.iter().map(|tree| tree.hash.clone()).collect();
        let stdin = spec.stdin.iter().map(|stdin| stdin.hash.clone()).collect();
        let missing = Missing {
            tree: !self.missing_trees(org, tree).await?.is_empty(),
            stdin: !self.missing_blobs(org, stdin).await?.is_empty(),
        };
        let (context, submission) = (self.context.clone(), submission.clone());
        let plan = self.store.read("run.plan", move |tx| plan(tx, &context, &submission)).await?;
        Ok(Plan { missing, ..plan })
    }
}

/// The machine that some agents of a plan would get, each as if it were the only one that asked.
#[derive(Debug, Clone)]
pub struct AgentsMachine {
    pub agents: Vec<String>,
    pub spec: RunSpec,
    pub plan: Plan,
}

/// Different machines of one plan that are looked for in a dry run.
const MOST_MACHINES: usize = 20;

impl Engine {
    /// All that would be refused of a run of agents; what its org has available, and the machines of its agents. Writes nothing.
    pub async fn check_agents(&self, submission: &Submission) -> Result<(Credits, Vec<AgentsMachine>), Failure> {
        self.know_hosts_of(&submission.plans).await?;
        check_asked(&self.context, submission)?;
        let (context, submission) = (self.context.clone(), submission.clone());
        let read = move |tx: &mut Tx| {
            check_secrets(tx, &submission)?;
            affordable(tx, &context, &submission)?;
            let mut machines = Vec::new();
            for (agents, spec) in machines_of(tx, &context, &submission)? {
                let (org, start) = (submission.org, submission.start);
                let alone = Submission { org, by: None, name: None, spec, plans: Plans::default(), start };
                let plan = plan(tx, &context, &alone)?;
                machines.push(AgentsMachine { agents, spec: alone.spec, plan });
            }
            Ok((store::org::find(tx, submission.org)?.available, machines))
        };
        self.store.read("run.plan", read).await
    }
}

/// The run as it would ask for the machine of one agent, and the agents that ask for the same.
fn machines_of(
    tx: &mut Tx,
    context: &EngineContext,
    submission: &Submission,
) -> Result<Vec<(Vec<String>, RunSpec)>, Failure> {
    let org = crate::choice::org_name(tx, context, submission.org)?;
    let mut found: Vec<(Vec<String>, RunSpec)> = Vec::new();
    for agent in &submission.plans.agents {
        let Some(machine) = &agent.machine else { continue };
        let named = machine.provider.clone();
        let provider = named.clone().unwrap_or_else(|| submission.spec.provider.clone());
        let providers = vec![provider.clone()];
        let cheapest = || {
            let sandbox = submission.spec.sandbox.is_some();
            let (resources, spot) = (&machine.resources, machine.spot);
            let asked =
                Asked { org: &org, resources, sandbox, platform: None, region: None, spot, providers: &providers };
            context.choose(&asked).offers.into_iter().next().map(|offer| offer.region)
        };
        let region = match &machine.region {
            Some(region) => Some(region.clone()),
            None if named.is_some() => cheapest(),
            None => None,
        };
        let spec = RunSpec {
            any_region: named.is_some() && machine.region.is_none(),
            region: region.unwrap_or_else(|| submission.spec.region.clone()),
            resources: machine.resources.clone(),
            spot: machine.spot,
            provider,
            providers,
            ..submission.spec.clone()
        };
        let name = agent.name.clone();
        match found.iter().position(|(_, other)| *other == spec) {
            Some(at) => found[at].0.push(name),
            None if found.len() < MOST_MACHINES => found.push((vec![name], spec)),
            None => {}
        }
    }
    Ok(found)
}

fn plan(tx: &mut Tx, context: &EngineContext, submission: &Submission) -> Result<Plan, Failure> {
    check_secrets(tx, submission)?;
    let spec = &submission.spec;
    let provider = context.provider(&spec.provider)?;
    let pools = store::pool::all(tx)?;
    let pool = pools.iter().find(|pool| pool.provider == spec.provider && pool.region == spec.region);
    let (room, mut slots, waiting) = match pool {
        Some(pool) => (
            crate::pool::room(tx, context, pool)?,
            store::allocation::available(tx, pool.id)?,
            store::job::count_waiting(tx, pool.id)?,
        ),
        // Nothing was ever asked of it.
        None => {
            let room = Room { instances: 0, max_instances: provider.capabilities().max_instances, ending: 0 };
            (room, Vec::new(), 0)
        }
    };
    let available = slots.len() as i64;
    let hosts = pool.map(|pool| HostsNow::read(tx, context, pool, std::iter::empty())).transpose()?.flatten();
    let wanted = Wanted { sandbox: spec.sandbox.is_some(), ..Wanted::from(&spec.resources) };
    let (place, other_hosts) = hosts.as_ref().map_or((None, Vec::new()), |hosts| hosts.choose(wanted));
    let room_here = hosts.as_ref().map_or(room, |hosts| {
        hosts.retain(&mut slots, wanted);
        hosts.room(wanted)
    });
    let wish = Wish {
        org: submission.org,
        resources: spec.resources.clone(),
        spot: spec.spot,
        init_checksum: spec.init_checksum.clone(),
        features: context.wanted_features(&spec.features),
    };
    let made = || place.as_ref().map_or_else(|| provider.size_for(&spec.resources), |it| it.resources.clone());
    let (mut initialised, wants) = (spec.init_checksum.as_ref().map(|_| false), &spec.init_checksum);
    let (placement, size) = match model::pool::place(&wish, &slots, room_here) {
        _ if waiting > 0 => (Place::Wait, made()),
        Placement::Claim(slot) => {
            initialised = initialised.map(|_| slot.init_checksum == *wants);
            (Place::Now(slot.instance), slot.resources)
        }
        Placement::Spawn => (Place::StartMachine, made()),
        Placement::Retire(idle) => (Place::ReplaceMachine(idle), made()),
        Placement::Wait => (Place::Wait, made()),
    };
    let org = crate::choice::org_name(tx, context, submission.org)?;
    let choice = context.choose(&Asked {
        org: &org,
        resources: &spec.resources,
        sandbox: wanted.sandbox,
        platform: None,
        region: if spec.any_region { None } else { Some(&spec.region) },
        spot: spec.spot,
        providers: &spec.providers,
    });
    let first = choice.offers.first().map(|offer| Credits(offer.price_micro));
    let per_hour = first.unwrap_or_else(|| provider.price(&spec.resources, &spec.region, false));
    let starts = matches!(placement, Place::StartMachine);
    Ok(Plan {
        host: place.as_ref().filter(|_| starts).map(|place| place.host.clone()),
        other_hosts,
        placement,
        size,
        room,
        choice,
        available,
        waiting,
        per_hour,
        reserved: affordable(tx, context, submission)?,
        most: most(&spec.terms(), per_hour),
        balance: store::org::find(tx, submission.org)?.available,
        missing: Missing::default(),
        initialised,
    })
}

/// The price of the longest time that the policy allows, within the budget.
fn most(spec: &RunTerms, per_hour: Credits) -> Option<Credits> {
    let attempts = if spec.retries_on(RetryEvent::Error) { spec.max_attempts() } else { 1 };
    let price = spec.max_duration_ms.map(|ms| {
        let micro = i128::from(per_hour.micro()) * i128::from(ms) * i128::from(attempts) / i128::from(HOUR);
        Credits(i64::try_from(micro).unwrap_or(i64::MAX))
    });
    price.into_iter().chain(spec.budget).min()
}
