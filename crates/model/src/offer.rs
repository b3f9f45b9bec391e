//! Which machines a run is offered, in which order they are tried, and why the other providers are passed over. Decides by what providers
//! say of themselves; a provider that bills is never offered to a run that did not name it.

use crate::host::{Host, NotTaken, Platform, Wanted};
use crate::spec::{Gpu, Resources};
use serde::{Deserialize, Serialize};

/// As many are kept for a job: the first and its alternatives.
pub const MAX_OFFERS: usize = crate::workflow::MAX_ALTERNATIVES;

/// A machine that a job may get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub provider: String,
    pub region: String,
    /// It may be taken away at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// What its provider calls machines of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Credits per hour, in micro-credits.
    pub price_micro: i64,
}

/// What a run asks of the place where it runs.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// The name of its org.
    pub org: &'a str,
    pub resources: &'a Resources,
    /// Its commands run in a sandbox.
    pub sandbox: bool,
    /// Its host is one of these.
    pub platform: Option<&'a Platform>,
    pub region: Option<&'a str>,
    pub spot: bool,
    /// The providers that the user named, in the order in which they are tried.
    pub providers: &'a [String],
}

/// A provider, as far as the choice needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    pub bills: bool,
    /// Nothing new is begun there: it is being removed, or is no longer in the settings.
    pub leaving: bool,
    /// Only these orgs may use it.
    pub orgs: Option<Vec<String>>,
    /// Why its machines cannot make sandboxes, where it says so.
    pub no_sandbox: Option<String>,
    pub largest: Resources,
    pub gpus: Vec<Gpu>,
    /// Its hosts, where it has several: one of them must have all that is asked for.
    pub hosts: Vec<Host>,
    /// In the order of its regions.
    pub quotes: Vec<Quote>,
}

/// What a machine for the run would cost in a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    pub region: String,
    pub spot: bool,
    pub instance_type: Option<String>,
    pub price_micro: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// In the order in which they are tried; none if no provider will do.
    pub offers: Vec<Offer>,
    pub passed_over: Vec<PassedOver>,
}

/// A provider that gets no chance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    pub provider: String,
    pub why: Passed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Passed {
    NotAsked {
        bills: bool,
    },
    Leaving,
    OtherOrgs,
    NoSuchRegion {
        regions: Vec<String>,
    },
    TooLarge {
        largest: Resources,
    },
    NoSuchGpu {
        gpus: Vec<Gpu>,
    },
    NoSandbox {
        why: String,
    },
    /// Of its hosts none has what is asked for.
    NoHost {
        hosts: Vec<(String, NotTaken)>,
    },
    /// Its machines would be tried after as many others as are tried at all.
    EnoughBefore,
}

impl std::fmt::Display for Passed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Passed::NotAsked { bills: true } => f.write_str("it bills, and nobody asked for it"),
            Passed::NotAsked { bills: false } => f.write_str("nobody asked for it"),
            Passed::Leaving => f.write_str("it is being removed"),
            Passed::OtherOrgs => f.write_str("it is for other organisations"),
            Passed::NoSuchRegion { regions } => write!(f, "it has no such region: {}", regions.join(", ")),
            Passed::TooLarge { largest } => write!(f, "its largest machine has {largest}"),
            Passed::NoSuchGpu { gpus } if gpus.is_empty() => f.write_str("it has no GPUs"),
            Passed::NoSuchGpu { gpus } => {
                let gpus: Vec<String> = gpus.iter().map(Gpu::to_string).collect();
                write!(f, "it has other GPUs: {}", gpus.join(", "))
            }
            Passed::NoSandbox { why } => write!(f, "it cannot make sandboxes: {why}"),
            Passed::NoHost { hosts } => {
                let hosts: Vec<String> = hosts.iter().map(|(host, why)| format!("{host}: {why}")).collect();
                write!(f, "none of its hosts will do: {}", hosts.join("; "))
            }
            Passed::EnoughBefore => write!(f, "{MAX_OFFERS} machines are tried before it"),
        }
    }
}

/// Named providers come in that order; without a name there is `default` alone, and only if it costs nothing.
pub fn choose(asked: &Asked<'_>, candidates: &[Candidate], default: &str) -> Choice {
    let mut choice = Choice::default();
    let named: Vec<&str> = match asked.providers {
        [] => vec![default],
        names => names.iter().map(String::as_str).collect(),
    };
    let tried = named.iter().filter_map(|name| candidates.iter().find(|it| it.name == **name));
    let others = candidates.iter().filter(|it| !named.contains(&it.name.as_str()));
    for candidate in tried {
        let found = if candidate.bills && asked.providers.is_empty() {
            Err(Passed::NotAsked { bills: true })
        } else {
            offers(asked, candidate)
        };
        match found {
            Ok(_) if choice.offers.len() >= MAX_OFFERS => choice.pass(candidate, Passed::EnoughBefore),
            Ok(found) => choice.offers.extend(found),
            Err(why) => choice.pass(candidate, why),
        }
    }
    choice.offers.truncate(MAX_OFFERS);
    for candidate in others {
        let bills = candidate.bills;
        choice.pass(candidate, offers(asked, candidate).err().unwrap_or(Passed::NotAsked { bills }));
    }
    choice
}

impl Choice {
    fn pass(&mut self, candidate: &Candidate, why: Passed) {
        self.passed_over.push(PassedOver { provider: candidate.name.clone(), why });
    }
}

/// Of one provider: spot in the cheapest region, spot in the next, ordinary in the cheapest; without spot the cheapest regions.
fn offers(asked: &Asked<'_>, candidate: &Candidate) -> Result<Vec<Offer>, Passed> {
    if candidate.leaving {
        return Err(Passed::Leaving);
    }
    if candidate.orgs.as_ref().is_some_and(|orgs| !orgs.iter().any(|org| org == asked.org)) {
        return Err(Passed::OtherOrgs);
    }
    if let Some(why) = candidate.no_sandbox.clone().filter(|_| asked.sandbox) {
        return Err(Passed::NoSandbox { why });
    }
    candidate.could(Wanted { resources: asked.resources, sandbox: asked.sandbox, platform: asked.platform })?;
    let of = |spot: bool| {
        let there = |quote: &&Quote| asked.region.is_none_or(|region| quote.region == region);
        let mut found: Vec<&Quote> = candidate.quotes.iter().filter(there).filter(|quote| quote.spot == spot).collect();
        found.sort_by_key(|quote| quote.price_micro);
        found
    };
    let ordinary = of(false);
    if ordinary.is_empty() {
        let mut regions: Vec<String> = candidate.quotes.iter().map(|quote| quote.region.clone()).collect();
        regions.dedup();
        return Err(Passed::NoSuchRegion { regions });
    }
    let spot = if asked.spot { of(true) } else { Vec::new() };
    let chosen: Vec<&Quote> = match spot.is_empty() {
        true => ordinary.into_iter().take(MAX_OFFERS).collect(),
        false => spot.into_iter().take(MAX_OFFERS - 1).chain(ordinary.into_iter().take(1)).collect(),
    };
    Ok(chosen.into_iter().map(|quote| candidate.offer(quote)).collect())
}

impl Candidate {
    /// Whether one of its machines could have all of this if no other run were there. Where it could not, waiting does not help.
    pub fn could(&self, wanted: Wanted<'_>) -> Result<(), Passed> {
        if !self.hosts.is_empty() {
            let unable = |host: &Host| Some((host.name.clone(), host.could(wanted).err()?));
            let unable: Vec<(String, NotTaken)> = self.hosts.iter().filter_map(unable).collect();
            if unable.len() == self.hosts.len() {
                return Err(Passed::NoHost { hosts: unable });
            }
        }
        let plain = Resources { gpu: None, ..wanted.resources.clone() };
        if !self.largest.satisfies(&plain) {
            return Err(Passed::TooLarge { largest: self.largest.clone() });
        }
        match &wanted.resources.gpu {
            Some(gpu) if self.hosts.is_empty() && !self.gpus.iter().any(|have| have.satisfies(gpu)) => {
                Err(Passed::NoSuchGpu { gpus: self.gpus.clone() })
            }
            _ => Ok(()),
        }
    }

    fn offer(&self, quote: &Quote) -> Offer {
        let Quote { region, spot, instance_type, price_micro } = quote.clone();
        Offer { provider: self.name.clone(), region, spot, instance_type, price_micro }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote(region: &str, spot: bool, price_micro: i64) -> Quote {
        Quote { region: region.into(), spot, instance_type: None, price_micro }
    }

    fn cloud() -> Candidate {
        let quotes = vec![
            quote("a", false, 30),
            quote("a", true, 10),
            quote("b", false, 20),
            quote("b", true, 9),
            quote("c", false, 40),
            quote("c", true, 8),
        ];
        Candidate { name: "cloud".into(), bills: true, quotes, ..Candidate::default() }
    }

    fn local() -> Candidate {
        Candidate { name: "local".into(), quotes: vec![quote("local", false, 1)], ..Candidate::default() }
    }

    const PLAIN: &Resources = &Resources { cpu_milli: None, memory_bytes: None, gpu: None, disk_bytes: None };

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn ask<'a>(providers: &'a [String], region: Option<&'a str>, spot: bool) -> Asked<'a> {
        Asked { org: "default", resources: PLAIN, sandbox: false, platform: None, region, spot, providers }
    }

    fn offered(asked: &Asked<'_>, candidates: &[Candidate]) -> Vec<String> {
        let choice = choose(asked, candidates, "local");
        let shown = |it: &Offer| format!("{}/{}{}", it.provider, it.region, if it.spot { " spot" } else { "" });
        choice.offers.iter().map(shown).collect()
    }

    fn passed(asked: &Asked<'_>, candidates: &[Candidate]) -> Vec<String> {
        let choice = choose(asked, candidates, "local");
        choice.passed_over.iter().map(|it| format!("{}: {}", it.provider, it.why)).collect()
    }

    #[test]
    fn spot_comes_first_in_the_two_cheapest_regions_then_an_ordinary_one() {
        let cloud_only = names(&["cloud"]);
        let all = [cloud(), local()];
        assert_eq!(offered(&ask(&cloud_only, None, true), &all), ["cloud/c spot", "cloud/b spot", "cloud/b"]);
        assert_eq!(offered(&ask(&cloud_only, None, false), &all), ["cloud/b", "cloud/a", "cloud/c"]);
        assert_eq!(offered(&ask(&cloud_only, Some("a"), true), &all), ["cloud/a spot", "cloud/a"]);
    }

    #[test]
    fn providers_come_in_the_order_in_which_they_are_named() {
        let all = [cloud(), local()];
        assert_eq!(offered(&ask(&names(&["local", "cloud"]), None, true), &all)[..2], ["local/local", "cloud/c spot"]);
        let (both, some) = (names(&["cloud", "local"]), ask(&[], None, false));
        assert_eq!(passed(&ask(&both, None, false), &all), ["local: 3 machines are tried before it"]);
        assert_eq!(offered(&some, &all), ["local/local"]);
        assert_eq!(passed(&some, &all), ["cloud: it bills, and nobody asked for it"]);
    }

    #[test]
    fn what_bills_is_never_taken_unasked_not_even_as_the_default() {
        let paid = Candidate { bills: true, ..local() };
        assert_eq!(offered(&ask(&[], None, false), std::slice::from_ref(&paid)), Vec::<String>::new());
        assert_eq!(offered(&ask(&names(&["local"]), None, false), &[paid]), ["local/local"]);
    }

    #[test]
    fn each_provider_that_will_not_do_says_why() {
        let asked = names(&["cloud"]);
        let gpu = Resources { gpu: Some(Gpu { kind: Some("a100".into()), count: 2 }), ..Resources::default() };
        let large = Resources { cpu_milli: Some(9000), ..Resources::default() };
        let small = Resources { cpu_milli: Some(4000), ..Resources::default() };
        let h100 = vec![Gpu { kind: Some("h100".into()), count: 8 }];
        let table: [(Candidate, Option<&str>, &Resources, &str); 6] = [
            (Candidate { leaving: true, ..cloud() }, None, PLAIN, "it is being removed"),
            (Candidate { orgs: Some(names(&["x"])), ..cloud() }, None, PLAIN, "it is for other organisations"),
            (cloud(), Some("d"), PLAIN, "it has no such region: a, b, c"),
            (Candidate { largest: small, ..cloud() }, None, &large, "its largest machine has 4 cores"),
            (cloud(), None, &gpu, "it has no GPUs"),
            (Candidate { gpus: h100, ..cloud() }, None, &gpu, "it has other GPUs: h100:8"),
        ];
        for (candidate, region, resources, why) in table {
            let ask = Asked { resources, ..ask(&asked, region, false) };
            assert_eq!(passed(&ask, &[candidate]), [format!("cloud: {why}")]);
        }
        // Who wants a sandbox is offered the next of the named providers; who wants none has the first.
        let (both, bare) = (names(&["cloud", "local"]), Candidate { no_sandbox: Some("no bwrap".into()), ..cloud() });
        let all = [bare, local()];
        let wants = Asked { sandbox: true, ..ask(&both, None, false) };
        assert_eq!(passed(&wants, &all), ["cloud: it cannot make sandboxes: no bwrap"]);
        assert_eq!(offered(&wants, &all), ["local/local"]);
        assert_eq!(offered(&ask(&both, None, false), &all)[0], "cloud/b");
        let mine = Candidate { orgs: Some(names(&["default"])), ..cloud() };
        assert_eq!(offered(&ask(&asked, Some("a"), false), &[mine]), ["cloud/a"]);
    }
}
