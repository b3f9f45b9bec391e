//! Names that survive the loss of the database: `repl-<control_id>-<manifest>-<resource>`.

use crate::id::{slug, unslug};

pub const PREFIX: &str = "repl";
/// Stands for "no manifest"; the id whose slug this is, is never given out.
pub const NO_MANIFEST: &str = "none";
/// A greater number is none that an installation has ever given out, so a name with it is not read as ours: ids begin at 1 or at the time
/// in ms (about 2^41) and are far from using up so many.
pub const MAX_ID: i64 = 1 << 49;
/// A greater id that is seen outside never moves the sequence of ids. Any user may make a name, for example as a folder: the sequence keeps
/// half of the numbers that names can have, so the installation can always read the names that it gives out itself.
pub const MAX_SEEN_ID: i64 = MAX_ID / 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceName {
    pub control_id: String,
    pub manifest: Option<i64>,
    pub resource: i64,
}

impl std::fmt::Display for ResourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let manifest = self.manifest.map_or_else(|| NO_MANIFEST.to_owned(), slug);
        write!(f, "{PREFIX}-{}-{manifest}-{}", self.control_id, slug(self.resource))
    }
}

impl ResourceName {
    /// The ids that it tells of.
    pub fn ids(&self) -> impl Iterator<Item = i64> + use<> {
        [Some(self.resource), self.manifest].into_iter().flatten()
    }
}

/// Reads a name back; none if it is not one of ours, or has an id that none of ours has. Control ids of 6 to 8 characters have existed.
pub fn parse(name: &str) -> Option<ResourceName> {
    let mut parts = name.split('-');
    let (prefix, control_id, manifest, resource) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || prefix != PREFIX || !is_control_id(control_id) {
        return None;
    }
    let manifest = if manifest == NO_MANIFEST { None } else { Some(id(manifest)?) };
    Some(ResourceName { control_id: control_id.to_owned(), manifest, resource: id(resource)? })
}

/// The name by which a machine is known to another service, such as Tailscale: `repl-<control_id>-<instance>`.
pub fn tailscale_name(control_id: &str, instance: i64) -> String {
    format!("{PREFIX}-{control_id}-{}", slug(instance))
}

/// Reads such a name back.
pub fn parse_tailscale(name: &str) -> Option<ResourceName> {
    let mut parts = name.split('-');
    let (prefix, control_id, instance) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || prefix != PREFIX || !is_control_id(control_id) {
        return None;
    }
    Some(ResourceName { control_id: control_id.to_owned(), manifest: None, resource: id(instance)? })
}

fn id(text: &str) -> Option<i64> {
    unslug(text).filter(|id| *id <= MAX_ID)
}

fn is_control_id(text: &str) -> bool {
    (6..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documents_example_reads() {
        let name = parse("repl-v2a1b2c3-9ix-1h2i").unwrap();
        assert_eq!((name.manifest, name.to_string().as_str()), (Some(12345), "repl-v2a1b2c3-9ix-1h2i"));
        assert_eq!(parse("repl-v2a1b2c3-none-2j3k").unwrap().manifest, None);
    }

    #[test]
    fn a_tailscale_machine_is_named_without_a_manifest() {
        let name = parse_tailscale("repl-v2a1b2c3-5p6q").unwrap();
        assert_eq!((name.control_id.as_str(), name.manifest, slug(name.resource).as_str()), ("v2a1b2c3", None, "5p6q"));
        assert_eq!(tailscale_name(&name.control_id, name.resource), "repl-v2a1b2c3-5p6q");
        for other in ["repl-v2a1b2c3", "repl-v2a1b2c3-9ix-5p6q", "repl-v2-5p6q", "repl-v2a1b2c3-05"] {
            assert_eq!(parse_tailscale(other), None, "{other}");
        }
    }

    #[test]
    fn others_names_are_not_ours() {
        for name in [
            "",
            "repl",
            "repl-v2a1b2c3-9ix",
            "repl-v2-9ix-1",
            "repl-V2A1B2C3-9ix-1",
            "reply-v2a1b2c3-9ix-1",
            "repl-v2a1b2c3-9ix-1-2",
            "repl-v2a1b2c3-09-1",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_number_that_no_id_of_ours_reaches_makes_no_name() {
        let name = |manifest, resource| ResourceName { control_id: "v2a1b2c3".into(), manifest, resource };
        for whole in [name(None, MAX_ID), name(Some(MAX_ID), 1)] {
            assert_eq!(parse(&whole.to_string()), Some(whole));
        }
        for far in [name(None, MAX_ID + 1), name(Some(MAX_ID + 1), 1), name(None, i64::MAX), name(Some(i64::MAX), 1)] {
            assert_eq!(parse(&far.to_string()), None, "{far}");
        }
        assert!(parse_tailscale(&tailscale_name("v2a1b2c3", MAX_ID)).is_some());
        assert_eq!(parse_tailscale(&tailscale_name("v2a1b2c3", MAX_ID + 1)), None);
        assert_eq!(name(Some(3), 2).ids().collect::<Vec<_>>(), [2, 3]);
    }

    proptest! {
        #[test]
        fn every_name_reads_back(control_id in "[0-9a-z]{6,8}", manifest in proptest::option::of(0..=MAX_ID), resource in 0..=MAX_ID) {
            prop_assume!(manifest.map(slug).as_deref() != Some(NO_MANIFEST));
            let name = ResourceName { control_id, manifest, resource };
            prop_assert_eq!(parse(&name.to_string()), Some(name));
        }
    }
}
