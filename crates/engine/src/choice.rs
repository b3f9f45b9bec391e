//! Which provider, region and kind of machine a run gets: asks the providers what they offer and lets `model::offer` choose. Makes no
//! call to a provider's service.

use crate::run_tx::RunTx;
use crate::{EngineContext, Listing};
use adapters::registry::LOCAL;
use model::host::NotTaken;
use model::offer::{Asked, Candidate, Choice, Offer, Passed, PassedOver, Quote};
use model::plan::MachinePlan;
use model::refused::Unfit;
use model::spec::{Resources, RunKind};
use model::{Failure, JobId, OrgId, Refused};
use store::Tx;

impl EngineContext {
    /// The providers as they are for a machine of this size.
    pub(crate) fn candidates(&self, resources: &Resources, sandbox: bool) -> Vec<Candidate> {
        self.providers.all().iter().map(|(name, listing)| candidate(name, listing, resources, sandbox)).collect()
    }

    pub fn choose(&self, asked: &Asked<'_>) -> Choice {
        model::offer::choose(asked, &self.candidates(asked.resources, asked.sandbox), LOCAL)
    }

    /// The choice, if there is a machine for the run anywhere; else why the first provider that it may use has none.
    pub fn place_of(&self, asked: &Asked<'_>) -> Result<Choice, Refused> {
        for name in asked.providers {
            self.provider(name)?;
        }
        let choice = self.choose(asked);
        if !choice.offers.is_empty() {
            return Ok(choice);
        }
        let first = asked.providers.first().map_or(LOCAL, String::as_str);
        let Some(passed) = choice.passed_over.iter().find(|passed| passed.provider == first) else {
            return Err(self.provider(first).err().unwrap_or(Refused::not_found("provider", first)));
        };
        Err(refused(asked, passed, &choice))
    }

    /// Refuses what no machine of the provider could ever hold: waiting would not help.
    pub(crate) fn check_fit(&self, provider: &str, asked: &Resources) -> Result<(), Refused> {
        let all = self.providers.all();
        let Some(listing) = all.get(provider) else { return self.provider(provider).map(drop) };
        let Err(why) = candidate(provider, listing, asked, false).could(asked.into()) else { return Ok(()) };
        let could = |other: &Candidate| other.name != provider && !other.leaving && other.orgs.is_none();
        let others = self.candidates(asked, false).into_iter().filter(could);
        let others = others.filter(|other| other.could(asked.into()).is_ok()).map(|other| other.name).collect();
        let (asked, place) = (asked.clone(), provider.to_owned());
        Err(Refused::DoesNotFit(Box::new(Unfit { at: None, asked, place, why, others })))
    }

    /// Whether some provider is not for every org.
    pub fn limits_orgs(&self) -> bool {
        self.providers.all().values().any(|listing| listing.orgs.is_some())
    }
}

/// One provider as it is for a machine of this size.
fn candidate(name: &str, listing: &Listing, resources: &Resources, sandbox: bool) -> Candidate {
    let (provider, capabilities) = (&listing.provider, listing.provider.capabilities());
    let mut quotes = Vec::new();
    for region in &capabilities.regions {
        for spot in [false, true].into_iter().filter(|spot| capabilities.spot || !spot) {
            quotes.push(Quote {
                region: region.clone(),
                spot,
                instance_type: provider.instance_type(resources, region),
                price_micro: provider.price(resources, region, spot).micro(),
            });
        }
    }
    Candidate {
        name: name.to_owned(),
        bills: capabilities.bills,
        leaving: listing.leaving,
        orgs: listing.orgs.clone(),
        // Asked only if it matters: where it fails, a process is started each time.
        no_sandbox: if sandbox { provider.can_sandbox().err() } else { None },
        largest: capabilities.largest,
        gpus: capabilities.gpus,
        hosts: listing.hosts.clone(),
        quotes,
    }
}

fn refused(asked: &Asked<'_>, PassedOver { provider, why }: &PassedOver, choice: &Choice) -> Refused {
    let could = |passed: &&PassedOver| matches!(passed.why, Passed::NotAsked { .. }) && passed.provider != *provider;
    let others: Vec<&str> = choice.passed_over.iter().filter(could).map(|passed| passed.provider.as_str()).collect();
    let or = match others.as_slice() {
        [] => String::new(),
        names => format!("; --provider {} could", names.join(" or ")),
    };
    match why {
        Passed::NoSandbox { why } => Refused::NoSandbox { place: provider.clone(), why: why.clone() },
        Passed::NoHost { hosts } if hosts.iter().all(|(_, why)| matches!(why, NotTaken::NoSandbox { .. })) => {
            Refused::NoSandbox { place: provider.clone(), why: why.to_string() }
        }
        Passed::TooLarge { .. } | Passed::NoSuchGpu { .. } | Passed::NoHost { .. } => {
            let others = others.into_iter().map(str::to_owned).collect();
            let (asked, place) = (asked.resources.clone(), provider.clone());
            Refused::DoesNotFit(Box::new(Unfit { at: None, asked, place, why: why.clone(), others }))
        }
        Passed::NoSuchRegion { regions } => {
            let region = asked.region.unwrap_or_default();
            let known: Vec<&str> = regions.iter().map(String::as_str).collect();
            let meant = plan::nearest::did_you_mean(region, known.iter().copied());
            let fix = meant.unwrap_or_else(|| format!("choose one of {}", known.join(", ")));
            Refused::invalid("region", format!("`{region}` is not a region of {provider}: {fix}"))
        }
        Passed::NotAsked { .. } => Refused::Unasked { provider: provider.clone() },
        Passed::Leaving | Passed::OtherOrgs | Passed::EnoughBefore => {
            Refused::invalid("provider", format!("`{provider}` cannot be used: {why}{or}"))
        }
    }
}

/// The name by which settings know an org.
pub(crate) fn org_name(tx: &mut Tx, context: &EngineContext, org: OrgId) -> Result<String, Failure> {
    if context.limits_orgs() { Ok(store::org::find(tx, org)?.name) } else { Ok(String::new()) }
}

impl RunTx<'_> {
    /// Where a machine of this provider is tried first.
    pub(crate) fn cheapest_region(
        &mut self,
        provider: &str,
        machine: &MachinePlan,
        no_sandbox: bool,
    ) -> Result<String, Failure> {
        let sandbox = self.run.spec.sandbox.is_some() && !no_sandbox;
        let org = org_name(self.tx, self.context, self.run.org)?;
        let (named, resources, spot) = ([provider.to_owned()], &machine.resources, machine.spot);
        let platform = self.run.spec.platform();
        let asked = Asked { org: &org, resources, sandbox, platform, region: None, spot, providers: &named };
        let first = self.context.choose(&asked).offers.into_iter().next();
        Ok(first.map_or_else(|| self.run.spec.region.clone(), |offer| offer.region))
    }

    /// What the job is offered, first of all where it waits already. Ranks of one run stay together.
    pub(crate) fn offers(&mut self, job: JobId) -> Result<Result<Vec<Offer>, Refused>, Failure> {
        let (pool, resources) = (self.job(job)?.pool, self.resources_of(job)?);
        let pool = self.pool(pool)?.clone();
        let org = org_name(self.tx, self.context, self.run.org)?;
        let (job_spot, job_any_region) = (self.job(job)?.spot, self.job(job)?.any_region);
        let sandbox = self.wants_sandbox(job)?;
        let spot = job_spot || self.run.spec.spot;
        let spec = &self.run.spec;
        let own = [pool.provider.clone()];
        let (platform, region) = (spec.platform(), Some(pool.region.as_str()));
        let here = Asked { org: &org, resources: &resources, sandbox, platform, region, spot, providers: &own };
        let mut offers = match self.context.place_of(&here) {
            Ok(choice) => choice.offers,
            Err(refused) => return Ok(Err(refused)),
        };
        if spec.nodes > 1 {
            offers.truncate(1);
            return Ok(Ok(offers));
        }
        // Where an agent's machine is was said in its plan.
        let of_agent = spec.kind == RunKind::Agents;
        if of_agent && !job_any_region {
            return Ok(Ok(offers));
        }
        let named = [if of_agent { pool.provider.clone() } else { spec.provider.clone() }];
        let anywhere = Asked {
            region: if of_agent || spec.any_region { None } else { Some(&spec.region) },
            providers: if of_agent || spec.providers.is_empty() { &named } else { &spec.providers },
            ..here
        };
        let mut all = self.context.choose(&anywhere).offers;
        if let Some(first) = all.iter().position(|it| it.provider == pool.provider && it.region == pool.region) {
            all[..=first].rotate_right(1);
            return Ok(Ok(all));
        }
        all.insert(0, offers.swap_remove(0));
        all.truncate(model::offer::MAX_OFFERS);
        Ok(Ok(all))
    }
}
