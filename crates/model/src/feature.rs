//! Features: what a machine is prepared with by scripts of the settings, and what undoes it before the machine ends. Owns which of them a
//! machine has and in which state, and which machines fit a run that asks for some. The scripts are run by the machine's runner.

use crate::time::MINUTE;
use crate::{Refused, string_enum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Features of one run, and bytes of one script: both stand in documents that are sent and written often.
pub const MAX_FEATURES: usize = 8;
pub const MAX_SCRIPT_BYTES: usize = 16 << 10;
const LONGEST_NAME: usize = 32;

/// `[features.NAME]` of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeatureSettings {
    /// For `sh -e`, on the machine, as its runner's user.
    pub install: String,
    /// Undoes it, also where the installation stopped half-way. It may find nothing to undo.
    pub remove: String,
    /// A program of the control plane's host that lists what the feature has made elsewhere, for the search for orphans.
    pub list: Vec<String>,
    pub install_ms: i64,
    pub remove_ms: i64,
    /// For both scripts and for `list`.
    pub env: BTreeMap<String, String>,
    /// Names of variables of the control plane's own environment that they get, too: for keys that stand in no file.
    pub pass: Vec<String>,
}

impl Default for FeatureSettings {
    fn default() -> FeatureSettings {
        FeatureSettings {
            install: String::new(),
            remove: String::new(),
            list: Vec::new(),
            install_ms: 10 * MINUTE,
            remove_ms: MINUTE,
            env: BTreeMap::new(),
            pass: Vec::new(),
        }
    }
}

pub type Features = BTreeMap<String, FeatureSettings>;

/// Refuses settings that cannot be used, by their names.
pub fn check(features: &Features) -> Result<(), Refused> {
    for (name, it) in features {
        let at = |key: &str| format!("features.{name}.{key}");
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) || name.starts_with('-') {
            let why = format!("a feature's name is 1 to {LONGEST_NAME} characters of a-z, 0-9 and -");
            return Err(Refused::invalid(format!("features.{name}"), why));
        }
        for (key, script) in [("install", &it.install), ("remove", &it.remove)] {
            if script.trim().is_empty() {
                return Err(Refused::invalid(at(key), "a script is needed; `true` does nothing"));
            }
            if script.len() > MAX_SCRIPT_BYTES {
                return Err(Refused::invalid(at(key), "longer than 16 KiB: let it download what it needs"));
            }
        }
        for (key, ms) in [("install_ms", it.install_ms), ("remove_ms", it.remove_ms)] {
            if ms <= 0 {
                return Err(Refused::invalid(at(key), "must be positive"));
            }
        }
        if it.list.first().is_some_and(String::is_empty) {
            return Err(Refused::invalid(at("list"), "the first word names a program, and is empty"));
        }
        for variable in it.env.keys().chain(&it.pass) {
            crate::spec::check_variable(variable).map_err(|why| Refused::invalid(at("env"), why))?;
        }
    }
    Ok(())
}

string_enum! {
    /// `broken`: its installation did not end well, and what it left is removed before the next one. `left`: it could not be removed.
    pub enum FeatureState {
        Installing = "installing", Installed = "installed", Broken = "broken", Removing = "removing", Left = "left",
    }
}

/// A feature of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Feature {
    pub name: String,
    /// Of its scripts and variables, when it was asked for: another one is another feature.
    pub checksum: String,
    pub state: FeatureState,
    /// Raised whenever its runner is asked for something: an answer to an earlier request counts no more.
    pub request: i64,
    /// Kept here, because the settings may have lost it when the machine ends.
    pub remove: String,
    pub remove_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureEvent {
    /// A job that wants it was placed on the machine.
    InstallAsked,
    /// Its runner did what it was asked for.
    Done,
    Failed {
        why: String,
    },
    RemovalAsked,
    /// It took too long, or its machine cannot be asked.
    GivenUp {
        why: String,
    },
}

/// The feature after an event; none: the machine does not have it any more.
pub fn apply(feature: &Feature, event: &FeatureEvent) -> Option<Feature> {
    use FeatureEvent as E;
    use FeatureState as S;
    let mut next = feature.clone();
    let to = |mut next: Feature, state: S, error: Option<&String>| {
        next.state = state;
        next.error = error.cloned();
        Some(next)
    };
    match (feature.state, event) {
        (S::Broken, E::InstallAsked) => {
            next.request += 1;
            to(next, S::Installing, None)
        }
        (S::Installing, E::Done) => to(next, S::Installed, None),
        (S::Installing, E::Failed { why } | E::GivenUp { why }) => to(next, S::Broken, Some(why)),
        (S::Installing | S::Installed | S::Broken, E::RemovalAsked) => {
            next.request += 1;
            to(next, S::Removing, None)
        }
        (S::Removing, E::Done) => None,
        (S::Removing, E::Failed { why } | E::GivenUp { why }) => to(next, S::Left, Some(why)),
        // Said twice, or too late to change anything.
        _ => Some(next),
    }
}

/// What a run asks for, or a machine has: a name, and the checksum of its scripts.
pub type Wanted = (String, String);

/// How well a machine with these features fits: 100 if it has exactly what is wanted, 50 if something is to be installed first, none if it
/// has anything else. A run does not find itself in a network or with drivers that it did not ask for.
pub fn score(has: &[Feature], wants: &[Wanted]) -> Option<i64> {
    let wanted = |it: &Feature| wants.iter().any(|(name, checksum)| it.name == *name && it.checksum == *checksum);
    let usable = |it: &Feature| !matches!(it.state, FeatureState::Removing | FeatureState::Left);
    if !has.iter().all(|it| wanted(it) && usable(it)) {
        return None;
    }
    let there = has.iter().filter(|it| it.state == FeatureState::Installed).count();
    Some(if there == wants.len() { 100 } else { 50 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str, state: FeatureState) -> Feature {
        let (checksum, remove) = (format!("of {name}"), "true".to_owned());
        Feature { name: name.to_owned(), checksum, state, request: 1, remove, remove_ms: 1, error: None }
    }

    fn wants(names: &[&str]) -> Vec<Wanted> {
        names.iter().map(|name| (name.to_string(), format!("of {name}"))).collect()
    }

    #[test]
    fn a_machine_fits_if_it_has_nothing_that_was_not_asked_for() {
        use FeatureState::*;
        for (has, wanted, score_of) in [
            (vec![], vec![], Some(100)),
            (vec![], vec!["a"], Some(50)),
            (vec![("a", Installed)], vec!["a"], Some(100)),
            (vec![("a", Installed)], vec!["a", "b"], Some(50)),
            (vec![("a", Installing)], vec!["a"], Some(50)),
            (vec![("a", Broken)], vec!["a"], Some(50)),
            (vec![("a", Removing)], vec!["a"], None),
            (vec![("a", Left)], vec!["a"], None),
            (vec![("a", Installed)], vec![], None),
            (vec![("a", Installed), ("b", Broken)], vec!["a"], None),
        ] {
            let has: Vec<Feature> = has.into_iter().map(|(name, state)| feature(name, state)).collect();
            assert_eq!(score(&has, &wants(&wanted)), score_of, "{has:?} {wanted:?}");
        }
        let newer = vec![("a".to_owned(), "of another script".to_owned())];
        assert_eq!(score(&[feature("a", FeatureState::Installed)], &newer), None);
    }

    #[test]
    fn every_event_in_every_state() {
        use FeatureState::*;
        let why = || "it broke".to_owned();
        let events = [
            FeatureEvent::InstallAsked,
            FeatureEvent::Done,
            FeatureEvent::Failed { why: why() },
            FeatureEvent::RemovalAsked,
            FeatureEvent::GivenUp { why: why() },
        ];
        for (from, ends) in [
            (Installing, [Some(Installing), Some(Installed), Some(Broken), Some(Removing), Some(Broken)]),
            (Installed, [Some(Installed), Some(Installed), Some(Installed), Some(Removing), Some(Installed)]),
            (Broken, [Some(Installing), Some(Broken), Some(Broken), Some(Removing), Some(Broken)]),
            (Removing, [Some(Removing), None, Some(Left), Some(Removing), Some(Left)]),
            (Left, [Some(Left), Some(Left), Some(Left), Some(Left), Some(Left)]),
        ] {
            for (event, end) in events.iter().zip(ends) {
                let next = apply(&feature("a", from), event);
                assert_eq!(next.as_ref().map(|next| next.state), end, "{from} {event:?}");
                let asked = next.is_some_and(|next| next.request == 2);
                assert_eq!(asked, end != Some(from) && matches!(end, Some(Installing | Removing)), "{from} {event:?}");
            }
        }
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused_by_name() {
        let fine = FeatureSettings { install: "true".into(), remove: "true".into(), ..FeatureSettings::default() };
        let one = |name: &str, it: &FeatureSettings| check(&BTreeMap::from([(name.to_owned(), it.clone())]));
        one("gpu-drivers", &fine).unwrap();
        let says = |name: &str, it: FeatureSettings, text: &str| {
            let refused = one(name, &it).unwrap_err().to_string();
            assert!(refused.contains(text), "{refused}");
        };
        says("Gpu", fine.clone(), "features.Gpu");
        says("a", FeatureSettings { remove: " ".into(), ..fine.clone() }, "features.a.remove");
        says("a", FeatureSettings { install: "x".repeat(MAX_SCRIPT_BYTES + 1), ..fine.clone() }, "16 KiB");
        says("a", FeatureSettings { install_ms: 0, ..fine.clone() }, "features.a.install_ms");
        says("a", FeatureSettings { pass: vec!["A=B".into()], ..fine.clone() }, "features.a.env");
        says("a", FeatureSettings { list: vec![String::new()], ..fine }, "features.a.list");
    }
}
