//! The index of an org's project: its name, what is pinned there, and which pins and objects go.

use calls::refs::{RefName, Uuid};
use model::OrgId;

/// The ref of an org's index: its UUID follows from org and project, so that no process has to look it up.
pub(crate) fn index_of(org: OrgId, project: &str) -> RefName {
    let id = calls::Id::of(format!("index of {org} {project}").as_bytes()).to_string();
    let text = format!("{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..32]);
    let uuid: Uuid = text.parse().expect("five groups of hexadecimal digits");
    RefName::Index(uuid)
}
