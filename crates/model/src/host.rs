//! A host of a provider on which machines are made: what it has, whether it is up, and which of several a new machine gets. A host of one
//! slot is given as a whole; one of several is split, and its GPUs are given by their numbers.

use crate::spec::{Gpu, Resources};
use crate::time::MINUTE;
use crate::{Timestamp, Trouble};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A host that is down is asked again after this, then after pauses that double.
const FIRST_PAUSE_MS: i64 = MINUTE;
const LONGEST_PAUSE_MS: i64 = 10 * MINUTE;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub provider: String,
    /// As the provider's settings name it.
    pub name: String,
    /// Machines at once.
    pub slots: i64,
    /// None until it has answered once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// None while it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Down>,
}

/// What a host says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// As its kernel names it, e.g. `x86_64`.
    pub architecture: String,
    /// Id and version of its distribution, e.g. `debian 12`.
    pub os_release: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// The model of each, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// Why no command there can have a sandbox. None: it can, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_sandbox: Option<String>,
}

/// What of a host may change the result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// As the kernel names it, e.g. `x86_64`.
    pub architecture: String,
    /// Id and version of the distribution, e.g. `debian 12`.
    pub os_release: String,
}

impl HostFacts {
    pub fn platform(&self) -> Platform {
        Platform { architecture: self.architecture.clone(), os_release: self.os_release.clone() }
    }
}

/// What a machine must have, and what its host must be able to do.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub resources: &'a Resources,
    /// Commands run in a sandbox there.
    pub sandbox: bool,
    /// A result is kept for machines like this alone.
    pub platform: Option<&'a Platform>,
}

impl<'a> From<&'a Resources> for Wanted<'a> {
    fn from(resources: &'a Resources) -> Wanted<'a> {
        Wanted { resources, sandbox: false, platform: None }
    }
}

/// It could not be used when it was asked last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    pub since: Timestamp,
    pub why: String,
    /// How often it was asked in vain.
    pub tries: i64,
}

/// What machines have of a host at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    pub machines: i64,
    pub gpus: BTreeSet<i64>,
}

/// Where a machine is made, and what it has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub host: String,
    pub resources: Resources,
    /// The numbers of its GPUs; none where the host has none.
    pub gpus: Option<Vec<i64>>,
}

/// Why a host is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    TooSmall {
        has: Resources,
    },
    OtherGpus {
        has: Vec<String>,
    },
    NoSandbox {
        why: String,
    },
    /// None: it has not said which.
    OtherPlatform {
        has: Option<Platform>,
    },
    Down {
        why: String,
    },
    Full {
        slots: i64,
    },
    GpusInUse {
        free: i64,
    },
    Other {
        host: String,
    },
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotTaken::TooSmall { has } => write!(f, "a machine there has {has}"),
            NotTaken::OtherGpus { has } if has.is_empty() => f.write_str("it has no GPUs"),
            NotTaken::OtherGpus { has } => write!(f, "it has other GPUs: {}", has.join(", ")),
            NotTaken::NoSandbox { why } => write!(f, "it cannot make sandboxes: {why}"),
            NotTaken::OtherPlatform { has: Some(has) } => {
                write!(f, "it is another platform: {}, {}", has.architecture, has.os_release)
            }
            NotTaken::OtherPlatform { has: None } => f.write_str("it has not said which platform it is"),
            NotTaken::Down { why } => write!(f, "it is down: {why}"),
            NotTaken::Full { slots: 1 } => f.write_str("it has a machine already"),
            NotTaken::Full { slots } => write!(f, "all its {slots} slots are taken"),
            NotTaken::GpusInUse { free } => write!(f, "{free} of its GPUs are free"),
            NotTaken::Other { host } => write!(f, "{host} has more free slots"),
        }
    }
}

impl Host {
    /// A host of which nothing is known yet.
    pub fn unknown(provider: &str, name: &str, slots: i64) -> Host {
        Host { provider: provider.to_owned(), name: name.to_owned(), slots, facts: None, down: None }
    }

    /// What it has answered, or that it has not.
    pub fn seen(&self, found: Result<HostFacts, Trouble>, at: Timestamp) -> Host {
        match found {
            Ok(facts) => Host { facts: Some(facts), down: None, ..self.clone() },
            Err(trouble) => {
                let (since, tries) = self.down.as_ref().map_or((at, 0), |down| (down.since, down.tries));
                Host { down: Some(Down { since, why: trouble.what, tries: tries + 1 }), ..self.clone() }
            }
        }
    }

    /// When one that is down is asked again.
    pub fn asked_again_at(&self, at: Timestamp) -> Option<Timestamp> {
        let tries = self.down.as_ref()?.tries;
        Some(at + (FIRST_PAUSE_MS << (tries - 1).clamp(0, 10)).min(LONGEST_PAUSE_MS))
    }

    /// Whether a machine here could have all of this if no other were here.
    pub fn could<'a>(&self, wanted: impl Into<Wanted<'a>>) -> Result<(), NotTaken> {
        let Wanted { resources: asked, sandbox, platform } = wanted.into();
        let plain = Resources { gpu: None, ..asked.clone() };
        let has = self.facts.as_ref().map(|facts| self.share(facts)).unwrap_or_default();
        if !has.satisfies(&plain) {
            return Err(NotTaken::TooSmall { has });
        }
        if self.numbers(asked, &BTreeSet::new()).is_none() {
            return Err(NotTaken::OtherGpus { has: self.facts.as_ref().map_or_else(Vec::new, |it| it.gpus.clone()) });
        }
        if let Some(why) = self.no_sandbox().filter(|_| sandbox) {
            return Err(NotTaken::NoSandbox { why: why.to_owned() });
        }
        let has = self.facts.as_ref().map(HostFacts::platform);
        match platform.is_some_and(|wanted| has.as_ref() != Some(wanted)) {
            true => Err(NotTaken::OtherPlatform { has }),
            false => Ok(()),
        }
    }

    /// Why no command here can have a sandbox; a host of which nothing is known may make them.
    pub fn no_sandbox(&self) -> Option<&str> {
        self.facts.as_ref()?.no_sandbox.as_deref()
    }

    /// What a machine that is made here now would have.
    pub fn offers<'a>(&self, wanted: impl Into<Wanted<'a>>, used: &Used) -> Result<Place, NotTaken> {
        let wanted: Wanted<'a> = wanted.into();
        self.could(wanted)?;
        let asked = wanted.resources;
        if used.machines >= self.slots {
            return Err(NotTaken::Full { slots: self.slots });
        }
        let Some(numbers) = self.numbers(asked, &used.gpus) else {
            let all = self.facts.as_ref().map_or(0, |facts| facts.gpus.len());
            return Err(NotTaken::GpusInUse { free: (all - used.gpus.len().min(all)) as i64 });
        };
        if let Some(down) = &self.down {
            return Err(NotTaken::Down { why: down.why.clone() });
        }
        Ok(self.place(numbers))
    }

    /// One that is down all the same: its provider then says what is wrong.
    fn in_vain(&self, asked: Wanted<'_>, used: &Used) -> Option<Place> {
        let up = Host { down: None, ..self.clone() };
        up.offers(asked, used).ok()
    }

    fn place(&self, numbers: Vec<i64>) -> Place {
        let Some(facts) = &self.facts else {
            return Place { host: self.name.clone(), resources: Resources::default(), gpus: None };
        };
        let first = numbers.first().and_then(|number| facts.gpus.get(*number as usize));
        let gpu = first.map(|model| {
            let same = numbers.iter().filter(|number| facts.gpus.get(**number as usize) == Some(model)).count();
            gpus(model, same)
        });
        let resources = Resources { gpu, ..self.share(facts) };
        let gpus = (!facts.gpus.is_empty()).then_some(numbers);
        Place { host: self.name.clone(), resources, gpus }
    }

    fn share(&self, facts: &HostFacts) -> Resources {
        let of = |whole: Option<i64>| whole.map(|whole| whole / self.slots.max(1));
        Resources { cpu_milli: of(facts.cpu_milli), memory_bytes: of(facts.memory_bytes), gpu: None, disk_bytes: None }
    }

    /// The numbers of the GPUs that a machine gets: all of a host that is not split, what was asked for of one that is. Those that were
    /// asked for come first. None: there are not as many, or not of that kind.
    fn numbers(&self, asked: &Resources, taken: &BTreeSet<i64>) -> Option<Vec<i64>> {
        let models = self.facts.as_ref().map_or(&[][..], |facts| &facts.gpus);
        let free = |model: &String| -> Vec<i64> {
            let all = models.iter().enumerate().map(|(number, other)| (number as i64, other));
            all.filter(|(number, other)| *other == model && !taken.contains(number)).map(|(number, _)| number).collect()
        };
        let of_kind = match &asked.gpu {
            None => Vec::new(),
            Some(want) => {
                let found = models.iter().find_map(|model| {
                    let free = free(model);
                    gpus(model, free.len()).satisfies(want).then_some(free)
                });
                found?
            }
        };
        if self.slots > 1 {
            let count = asked.gpu.as_ref().map_or(0, |want| want.count as usize);
            return Some(of_kind.into_iter().take(count).collect());
        }
        let rest: Vec<i64> = (0..models.len() as i64).filter(|number| !of_kind.contains(number)).collect();
        Some(of_kind.into_iter().chain(rest).collect())
    }
}

fn gpus(model: &str, count: usize) -> Gpu {
    Gpu { kind: Some(model.to_owned()), count: count as i64 }
}

/// The host that a new machine gets, and why each other one is not taken: among those that are up and have room the one with the most free
/// slots, the first of several. Where all that could be taken are down, the first of them is tried, so that the error says why.
pub fn choose<'a>(
    hosts: &[Host],
    used: &BTreeMap<String, Used>,
    wanted: impl Into<Wanted<'a>>,
) -> (Option<Place>, Vec<(String, NotTaken)>) {
    let asked: Wanted<'a> = wanted.into();
    let none = Used::default();
    let of = |host: &Host| used.get(&host.name).unwrap_or(&none).clone();
    let offers: Vec<_> = hosts.iter().map(|host| (host, host.offers(asked, &of(host)))).collect();
    let free = |host: &Host| host.slots - of(host).machines;
    let able = offers.iter().rev().filter(|(_, offer)| offer.is_ok()).max_by_key(|(host, _)| free(host));
    let mut chosen = able.and_then(|(_, offer)| offer.clone().ok());
    let could = hosts.iter().filter(|host| host.could(asked).is_ok());
    if chosen.is_none() && could.clone().all(|host| host.down.is_some()) {
        chosen = could.into_iter().find_map(|host| host.in_vain(asked, &of(host)));
    }
    let mut passed = Vec::new();
    for (host, offer) in offers {
        match (&chosen, offer) {
            (Some(place), _) if place.host == host.name => {}
            (Some(place), Ok(_)) => passed.push((host.name.clone(), NotTaken::Other { host: place.host.clone() })),
            (_, Err(why)) => passed.push((host.name.clone(), why)),
            (None, Ok(_)) => {}
        }
    }
    (chosen, passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TroubleKind;

    fn host(name: &str, slots: i64, cores: i64, gpus: &[&str]) -> Host {
        let gpus = gpus.iter().map(|model| (*model).to_owned()).collect();
        let facts = HostFacts { cpu_milli: Some(cores * 1000), memory_bytes: Some(cores << 30), gpus, ..facts() };
        Host { facts: Some(facts), ..Host::unknown("lab", name, slots) }
    }

    fn facts() -> HostFacts {
        HostFacts { architecture: "x86_64".into(), os_release: "debian 12".into(), ..HostFacts::default() }
    }

    fn cpu(cores: i64) -> Resources {
        Resources { cpu_milli: Some(cores * 1000), ..Resources::default() }
    }

    fn gpu(text: &str) -> Resources {
        Resources { gpu: Some(Gpu::parse(text).unwrap()), ..Resources::default() }
    }

    fn used(all: &[(&str, i64, &[i64])]) -> BTreeMap<String, Used> {
        let one = |(name, machines, gpus): &(&str, i64, &[i64])| {
            ((*name).to_owned(), Used { machines: *machines, gpus: gpus.iter().copied().collect() })
        };
        all.iter().map(one).collect()
    }

    fn down(host: Host) -> Host {
        host.seen(Err(Trouble::new(TroubleKind::Network, "no route")), Timestamp(5))
    }

    #[test]
    fn a_machine_gets_the_host_with_the_most_room_that_has_what_is_asked_for() {
        let hosts = [host("a", 2, 4, &[]), host("b", 2, 16, &[]), host("c", 2, 16, &[])];
        let on = |used: &BTreeMap<String, Used>, asked: &Resources| choose(&hosts, used, asked).0.map(|it| it.host);
        assert_eq!(on(&used(&[]), &cpu(1)).unwrap(), "a", "the first of the best");
        assert_eq!(on(&used(&[]), &cpu(3)).unwrap(), "b", "two cores are half of the first");
        assert_eq!(on(&used(&[("b", 1, &[])]), &cpu(3)).unwrap(), "c");
        let (chosen, passed) = choose(&hosts, &used(&[("b", 2, &[]), ("c", 2, &[])]), &cpu(3));
        assert_eq!(chosen, None, "they may become free");
        let said: Vec<String> = passed.iter().map(|(host, why)| format!("{host}: {why}")).collect();
        assert_eq!(
            said,
            [
                "a: a machine there has 2 cores and 2GB of memory",
                "b: all its 2 slots are taken",
                "c: all its 2 slots are taken"
            ]
        );
    }

    #[test]
    fn one_that_is_down_is_taken_only_if_no_other_could_be() {
        let hosts = [down(host("a", 1, 4, &[])), host("b", 1, 4, &[])];
        assert_eq!(choose(&hosts, &used(&[]), &cpu(1)).0.unwrap().host, "b");
        let (waits, passed) = choose(&hosts, &used(&[("b", 1, &[])]), &cpu(1));
        assert_eq!(waits, None, "the other one may become free");
        assert_eq!(passed[0].1.to_string(), "it is down: no route");
        assert_eq!(passed[1].1.to_string(), "it has a machine already");
        let all = [down(host("a", 1, 4, &[])), down(host("b", 1, 4, &[])), host("c", 1, 1, &[])];
        assert_eq!(choose(&all, &used(&[]), &cpu(2)).0.unwrap().host, "a", "its provider says what is wrong");
    }

    #[test]
    fn who_wants_a_sandbox_gets_a_host_that_can_make_one() {
        let without = |name: &str| {
            let facts = HostFacts { no_sandbox: Some("no bwrap".into()), ..host(name, 1, 64, &[]).facts.unwrap() };
            Host { facts: Some(facts), ..host(name, 1, 64, &[]) }
        };
        let one = cpu(1);
        let wanted = Wanted { sandbox: true, ..Wanted::from(&one) };
        let hosts = [without("a"), host("b", 1, 4, &[]), Host::unknown("lab", "c", 1)];
        let (chosen, passed) = choose(&hosts, &used(&[]), wanted);
        assert_eq!(chosen.unwrap().host, "b");
        assert_eq!(passed[0].1.to_string(), "it cannot make sandboxes: no bwrap");
        let one_left = choose(&hosts, &used(&[("b", 1, &[])]), wanted).0.unwrap();
        assert_eq!(one_left.host, "c", "of a host that has never answered it is believed");
        assert_eq!(choose(&[without("a")], &used(&[]), wanted).0, None);
        assert_eq!(choose(&hosts, &used(&[]), &cpu(1)).0.unwrap().host, "a", "without a sandbox it is as good as any");
    }

    #[test]
    fn who_wants_a_platform_gets_a_host_that_is_one_and_waits_for_it() {
        let of = |name: &str, os_release: &str| {
            let facts = HostFacts { os_release: os_release.into(), ..host(name, 1, 64, &[]).facts.unwrap() };
            Host { facts: Some(facts), ..host(name, 1, 64, &[]) }
        };
        let (one, platform) = (cpu(1), facts().platform());
        let wanted = Wanted { platform: Some(&platform), ..Wanted::from(&one) };
        let hosts = [Host::unknown("lab", "a", 1), of("b", "debian 13"), of("c", "debian 12")];
        let (chosen, passed) = choose(&hosts, &used(&[]), wanted);
        assert_eq!(chosen.unwrap().host, "c");
        let said: Vec<String> = passed.iter().map(|(_, why)| why.to_string()).collect();
        assert_eq!(said, ["it has not said which platform it is", "it is another platform: x86_64, debian 13"]);
        assert_eq!(choose(&hosts, &used(&[("c", 1, &[])]), wanted).0, None, "it waits for the one that is alike");
    }

    #[test]
    fn gpus_are_given_by_their_numbers_and_never_twice() {
        let split = [host("a", 4, 8, &["A100", "T4", "A100", "A100"])];
        let place = choose(&split, &used(&[]), &gpu("a100:2")).0.unwrap();
        assert_eq!((place.gpus, place.resources.gpu), (Some(vec![0, 2]), Some(gpus("A100", 2))));
        let second = choose(&split, &used(&[("a", 1, &[0, 2])]), &gpu("1")).0.unwrap();
        assert_eq!(second.gpus, Some(vec![3]), "the first kind that is free");
        let (none, passed) = choose(&split, &used(&[("a", 1, &[0, 2])]), &gpu("a100:2"));
        assert_eq!((none, passed[0].1.to_string()), (None, "2 of its GPUs are free".to_owned()));
        assert_eq!(choose(&split, &used(&[]), &cpu(1)).0.unwrap().gpus, Some(vec![]), "unasked it sees none");
        assert_eq!(split[0].could(&gpu("h100")).unwrap_err().to_string(), "it has other GPUs: A100, T4, A100, A100");
        let whole = [host("a", 1, 8, &["T4", "A100"])];
        assert_eq!(choose(&whole, &used(&[]), &cpu(1)).0.unwrap().gpus, Some(vec![0, 1]), "it is the host as a whole");
        let place = choose(&whole, &used(&[]), &gpu("a100")).0.unwrap();
        assert_eq!((place.gpus, place.resources.gpu), (Some(vec![1, 0]), Some(gpus("A100", 1))));
    }

    #[test]
    fn of_a_host_that_has_never_answered_anything_but_gpus_is_believed() {
        let unknown = Host::unknown("lab", "a", 1);
        let place = unknown.offers(&cpu(64), &Used::default()).unwrap();
        assert_eq!((place.gpus, place.resources), (None, Resources::default()));
        assert_eq!(unknown.could(&gpu("1")).unwrap_err().to_string(), "it has no GPUs");
    }

    #[test]
    fn one_that_does_not_answer_is_asked_less_and_less_often_and_its_facts_stay() {
        let first = down(host("a", 1, 4, &[]));
        let again = down(first.clone());
        assert_eq!(again.down.as_ref().unwrap().since, first.down.as_ref().unwrap().since);
        assert_eq!(first.asked_again_at(Timestamp(0)), Some(Timestamp(MINUTE)));
        assert_eq!(again.asked_again_at(Timestamp(0)), Some(Timestamp(2 * MINUTE)));
        assert_eq!(again.facts, host("a", 1, 4, &[]).facts);
        let back = again.seen(Ok(facts()), Timestamp(9));
        assert_eq!((back.down.clone(), back.asked_again_at(Timestamp(0))), (None, None));
    }
}
