//! Names that survive the loss of the database: `repl-<control_id>-<manifest>-<resource>`.

use crate::id::{slug, unslug};

pub const PREFIX: &str = "repl";
/// Stands for "no manifest"; the id whose slug this is, is never given out.
pub const NO_MANIFEST: &str = "none";

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

/// Reads a name back; none if it is not one of ours. Control ids of 6 to 8 characters have existed.
pub fn parse(name: &str) -> Option<ResourceName> {
    let mut parts = name.split('-');
    let (prefix, control_id, manifest, resource) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || prefix != PREFIX || !is_control_id(control_id) {
        return None;
    }
    let manifest = if manifest == NO_MANIFEST { None } else { Some(unslug(manifest)?) };
    Some(ResourceName { control_id: control_id.to_owned(), manifest, resource: unslug(resource)? })
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
    Some(ResourceName { control_id: control_id.to_owned(), manifest: None, resource: unslug(instance)? })
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

    proptest! {
        #[test]
        fn every_name_reads_back(control_id in "[0-9a-z]{6,8}", manifest in proptest::option::of(0i64..i64::MAX), resource in 0i64..i64::MAX) {
            prop_assume!(manifest.map(slug).as_deref() != Some(NO_MANIFEST));
            let name = ResourceName { control_id, manifest, resource };
            prop_assert_eq!(parse(&name.to_string()), Some(name));
        }
    }
}
