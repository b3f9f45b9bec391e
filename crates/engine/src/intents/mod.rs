//! What workflows achieve: one file an intent, each a blueprint (data) and the kinds of nodes it brings.

pub(crate) mod launch_run;
pub(crate) mod terminate_instance;

use crate::workflow::kind::Registry;
use std::sync::LazyLock;

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry(vec![&launch_run::BLUEPRINT, &terminate_instance::BLUEPRINT]));

pub(crate) fn registry() -> &'static Registry {
    &REGISTRY
}
