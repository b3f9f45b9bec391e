//! What a run or an org has used, in sums. Reads only the rows of the run, or of the span, that it is asked about.

use crate::Engine;
use crate::price;
use crate::view::owned;
use model::step::Step;
use model::time::HOUR;
use model::usage::{Usage, UsageBy};
use model::{Failure, OrgId, RunId, StepId, Timestamp};
use std::collections::BTreeMap;
use store::Tx;

/// Groups of each kind that are told by name; the others are summed.
pub const MOST_GROUPS: usize = 200;

/// What all have used, and of the dearest what each has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    pub shown: Vec<(String, Usage)>,
    /// Those that are not shown.
    pub others: Option<Usage>,
}

impl Groups {
    /// From one group more than is shown, if there are so many.
    fn new(mut found: Vec<(String, Usage)>, total: Usage) -> Groups {
        let more = found.len() > MOST_GROUPS;
        found.truncate(MOST_GROUPS);
        let shown: Usage = found.iter().map(|(_, usage)| *usage).sum();
        Groups { others: more.then(|| total.without(shown)), shown: found }
    }
}

#[derive(Debug, Clone)]
pub struct RunUsage {
    /// The version of the prices of models, tools and machines that are in force now.
    pub prices: String,
    pub total: Usage,
    /// Of the total, what belongs to no step: machines.
    pub beside_steps: Usage,
    pub agents: Groups,
    pub models: Groups,
    pub providers: Groups,
    /// A page of the steps that have used anything, with the turns below them.
    pub steps: Vec<StepUsed>,
}

#[derive(Debug, Clone)]
pub struct StepUsed {
    pub id: StepId,
    pub step: Option<Step>,
    pub model: String,
    pub usage: Usage,
}

#[derive(Debug, Clone)]
pub struct OrgUsage {
    pub from: Timestamp,
    pub to: Timestamp,
    pub total: Usage,
    pub groups: Groups,
    /// Names of the runs, if the groups are runs.
    pub names: BTreeMap<String, String>,
}

impl Engine {
    /// In all attempts of a run; of its steps those behind `after`.
    pub async fn run_usage(&self, org: OrgId, run: RunId, after: StepId, limit: i64) -> Result<RunUsage, Failure> {
        let prices = price::version(&self.context);
        self.store
            .read("run.usage", move |tx| {
                owned(tx, org, run)?;
                let total = store::usage::of_run(tx, org, run)?;
                let mut by = |by| {
                    let found = store::usage::of_run_by(tx, org, run, by, MOST_GROUPS as i64 + 1)?;
                    Ok::<Groups, Failure>(Groups::new(found, total))
                };
                let (agents, models, providers) = (by(UsageBy::Agent)?, by(UsageBy::Model)?, by(UsageBy::Provider)?);
                let beside_steps = store::usage::beside_steps(tx, org, run)?;
                Ok(RunUsage {
                    prices: prices.clone(),
                    total,
                    beside_steps,
                    agents,
                    models,
                    providers,
                    steps: steps(tx, org, run, after, limit)?,
                })
            })
            .await
    }

    /// Of an org in whole hours: the one in which `from` lies is counted, and the one in which `to` lies.
    pub async fn org_usage(
        &self,
        org: OrgId,
        from: Timestamp,
        to: Timestamp,
        by: UsageBy,
    ) -> Result<OrgUsage, Failure> {
        let begins = |at: Timestamp| Timestamp(at.ms().div_euclid(HOUR) * HOUR);
        let span = (begins(from), begins(to) + HOUR);
        self.store
            .read("credits.usage", move |tx| {
                let total = store::usage::of_org(tx, org, span.0, span.1)?;
                let found = store::usage::of_org_by(tx, org, span, by, MOST_GROUPS as i64 + 1)?;
                let groups = Groups::new(found, total);
                let mut names = BTreeMap::new();
                for (number, _) in groups.shown.iter().filter(|_| by == UsageBy::Run) {
                    let run = number.parse().map(RunId).unwrap_or(RunId(0));
                    let found = store::run::find(tx, run)?.filter(|run| run.org == org);
                    names.extend(found.map(|run| (number.clone(), run.name)));
                }
                Ok(OrgUsage { from: span.0, to: span.1, total, groups, names })
            })
            .await
    }
}

fn steps(tx: &mut Tx, org: OrgId, run: RunId, after: StepId, limit: i64) -> Result<Vec<StepUsed>, Failure> {
    let mut steps = Vec::new();
    for (id, model, usage) in store::usage::steps(tx, org, run, after, limit)? {
        steps.push(StepUsed { id, step: store::step::find(tx, id)?, model, usage });
    }
    Ok(steps)
}
