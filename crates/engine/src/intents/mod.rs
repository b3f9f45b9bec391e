//! The intents of workflows, one file each: a blueprint (data) and the kinds of nodes that it uses.

pub(crate) mod cleanup_manifest;
pub(crate) mod create_snapshot;
pub(crate) mod launch_run;
pub(crate) mod terminate_instance;

use crate::workflow::kind::Registry;
use std::sync::LazyLock;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    Registry(vec![
        &launch_run::BLUEPRINT,
        &terminate_instance::BLUEPRINT,
        &create_snapshot::BLUEPRINT,
        &cleanup_manifest::BLUEPRINT,
    ])
});

pub(crate) fn registry() -> &'static Registry {
    &REGISTRY
}
