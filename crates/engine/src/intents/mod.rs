//! What workflows achieve: one file an intent, each a blueprint (data), a look at its nodes (rows) and its acts (the world).

pub(crate) mod launch_run;
pub(crate) mod terminate_instance;
